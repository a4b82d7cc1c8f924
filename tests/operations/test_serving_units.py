"""The units of a rank and of its watchdog: what boot, Docker and an operator may count on."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from onhost import caches
from tasks.site import UNIT, Site

Unit = dict[str, list[str]]


def read(text: str) -> Unit:
    found: Unit = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name.isalpha():
            found.setdefault(name, []).extend(value.split())
    return found


@pytest.fixture
def units(sites: Callable[..., list[Site]]) -> tuple[Unit, Unit]:
    site = sites(2)[0]
    return read(site.unit_file.content.decode()), read(site.watchdog_files[-1].content.decode())


def test_boot_does_not_wait_for_a_rank_that_waits(units: tuple[Unit, Unit]) -> None:
    """multi-user.target is ordered after what it wants, unless that has no default dependencies; what these
    give a service besides is said in their place. Nothing else of ours that boot wants comes after a rank."""
    serve, watchdog = units
    assert serve["WantedBy"] == ["multi-user.target"] and serve["DefaultDependencies"] == ["no"]
    assert serve["Requires"] == ["sysinit.target"]
    assert {"sysinit.target", "basic.target"} < set(serve["After"])
    assert serve["Conflicts"] == serve["Before"] == ["shutdown.target"]
    assert UNIT not in watchdog["After"]


def test_a_rank_does_not_stop_with_docker_and_does_not_start_it(units: tuple[Unit, Unit]) -> None:
    """So that it comes back with Docker, and stays stopped where an operator stopped the rank itself."""
    for unit in units:
        assert "docker.service" in unit["After"]
        ties = ("Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "WantedBy")
        assert not any("docker" in word for tie in ties for word in unit.get(tie, []))


def test_the_pause_after_a_failure_is_not_systemds(units: tuple[Unit, Unit]) -> None:
    """While systemd waits nobody answers at the endpoint's port."""
    assert units[0]["Restart"] == ["always"] and float(units[0]["RestartSec"][0]) <= 2
    assert "RestartSteps" not in units[0]


@pytest.mark.parametrize(("state", "asked"), [("active", True), ("deactivating", False), ("inactive", False)])
def test_a_docker_that_stops_is_not_asked(
    units: tuple[Unit, Unit], tmp_path: Path, state: str, asked: bool
) -> None:
    """Its socket would start it again. The line is run as systemd would run it."""
    words = shlex.split(" ".join(units[0]["ExecStop"]).removeprefix("-").replace("$$", "$"))
    for name, does in (("systemctl", f"echo {state}"), ("docker", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "stop --time 30 sparkstack-serve\n" if asked else "")


@pytest.mark.parametrize("drain", [0, 25, 300])
def test_who_stops_a_rank_waits_as_long_as_the_site_says(
    sites: Callable[..., list[Site]], drain: int
) -> None:
    """vLLM, Docker that ends its container, Docker that is stopped itself, and systemd, each longer than the
    one before."""
    site = sites(2, drain_s=drain)[0]
    unit, argv = read(site.unit_file.content.decode()), site.argv(0)
    told = {word: after for word, after in itertools.pairwise([*unit["ExecStop"], *argv])}
    assert int(told["--shutdown-timeout"]) == drain
    assert int(told["--time"]) == int(told["--stop-timeout"]) == drain + 5
    assert unit["TimeoutStopSec"] == [str(drain + 20)]


@pytest.mark.parametrize(("boot", "stays"), [("this one", False), ("another", True), (None, None)])
def test_the_end_takes_the_note_of_its_own_boot_alone(
    sites: Callable[..., list[Site]], tmp_path: Path, boot: str | None, stays: bool | None
) -> None:
    """A start that fails early ends the unit, too: what a power cut left must be known to the next one. The
    line is run as systemd would run it."""
    site = sites(2)[0]
    line = read(site.unit_file.content.decode())["ExecStopPost"]
    here, note = tmp_path / "boot_id", tmp_path / caches.BEGAN
    text = " ".join(line).removeprefix("-").replace(str(caches.BOOT), str(here))
    assert f"{site.data.state_dir}/{caches.BEGAN}" in text and str(here) in text
    here.write_text("this one")
    if boot is not None:
        note.write_text(boot)
    subprocess.run(shlex.split(text.replace(site.data.state_dir, str(tmp_path))), check=False)
    assert note.exists() is bool(stays)
