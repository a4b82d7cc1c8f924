"""The units of a rank and of its watchdog: what boot, Docker and an operator may count on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
    assert serve["Requires"] == ["sysinit.target"] and {"sysinit.target", "basic.target"} < set(serve["After"])
    assert serve["Conflicts"] == serve["Before"] == ["shutdown.target"]
    assert UNIT not in watchdog["After"]
