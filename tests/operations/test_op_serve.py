"""A release is activated on all ranks in order, or left alone where it serves already."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import commands_of, follow, kind_of

from sparkstack.machine import Machine, Unit
from tasks import activation, remote, serve
from tasks.facts import Completes, ServeState
from tasks.machine import MachineState
from tasks.site import UNIT, Site

Sites = Callable[..., list[Site]]
LACKS, STATE, RESTARTS, JOURNAL = "lacks", "state of rank", "restarts of rank", "journal of rank"

KNOWN = Machine(units={UNIT: Unit("enabled", "active")})
STALE = Machine(
    units={UNIT: Unit("enabled", "active", stale=True)},
    gpu_containers=("sparkstack-serve",),
    cgroup_driver="systemd",
)


def in_states(sites: list[Site], **changes: str) -> None:
    """Both ranks serve this release, but for `changes` on the last one."""
    good = {"release": sites[0].release_id, "unit": "active", "fabric": "same"}
    for site in sites:
        site.host.facts = {ServeState: good, MachineState: KNOWN}
    sites[-1].host.facts |= {ServeState: {**good, **changes}}


def test_a_release_that_serves_is_left_alone(sites: Sites) -> None:
    ranks = sites(2)
    in_states(ranks)
    asked: list[dict[str, Any]] = []

    def completes(**question: Any) -> bool:
        asked.append(question)
        return True

    ranks[0].host.facts[Completes] = completes
    assert commands_of(serve.activated, ranks[0].host, ranks[0]) == []
    assert ranks[0].host.noops == [f"release {ranks[0].release_id} serves on every rank"]
    assert asked == [
        {
            "python": "/opt/sparkstack/env/bin/python",
            "url": ranks[0].endpoint,
            "model": "org/model",
            "seconds": 10,
        }
    ]


def test_units_that_are_active_without_a_completion_are_started_anew(sites: Sites) -> None:
    """A head that waits for a dead worker: nothing but a completion shows it."""
    ranks = head, worker = sites(2)
    in_states(ranks)
    head.host.facts[Completes] = False
    head.host.answers, worker.host.answers = {STATE: "active"}, {}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.noops == []
    assert head.host.kinds() == [
        LACKS, "write", "stop rank", "switch rank", "start rank", STATE, "write", "drop activation"
    ]  # fmt: skip
    assert worker.host.kinds() == [LACKS, "stop rank", "switch rank", "start rank"]


@pytest.mark.parametrize("of_the_worker", ["active", "activating"])
def test_a_start_that_is_under_way_is_joined(sites: Sites, of_the_worker: str) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, unit=of_the_worker)
    head.host.facts[ServeState]["unit"] = "activating"
    head.host.answers = {STATE: ["activating", "active"], RESTARTS: "0"}
    worker.host.answers = {RESTARTS: "0"}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.kinds() == [RESTARTS, STATE, RESTARTS, STATE, "write", "drop activation"]
    assert worker.host.kinds() == [RESTARTS]


@pytest.mark.parametrize("at", [0, 1])
def test_a_start_that_has_failed_already_is_begun_anew(sites: Sites, at: int) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks)
    head.host.facts[ServeState]["unit"] = "activating"
    head.host.answers, worker.host.answers = {STATE: "active", RESTARTS: "0"}, {RESTARTS: "0"}
    ranks[at].host.answers[RESTARTS] = "1"
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    for rank in ranks:
        assert "stop rank" in rank.host.kinds() and "start rank" in rank.host.kinds()


@pytest.mark.parametrize(
    "change",
    [
        {"release": "older"},
        {"fabric": ""},
        {"unit": "failed"},
        {"unit": "inactive"},
        {"unit": "deactivating"},
    ],
)
def test_a_start_of_something_else_is_not_joined(sites: Sites, change: dict[str, str]) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, **change)
    head.host.facts[ServeState]["unit"] = "activating"
    head.host.answers = {STATE: "active"}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.kinds()[:3] == [LACKS, "write", "stop rank"]
    assert worker.host.kinds()[:2] == [LACKS, "stop rank"]


def test_a_head_that_serves_while_a_worker_starts_is_not_joined(sites: Sites) -> None:
    """The head has nothing to follow: it would be called ready at once."""
    ranks = head, _ = sites(2)
    in_states(ranks, unit="activating")
    head.host.answers = {STATE: "active"}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.kinds()[:3] == [LACKS, "write", "stop rank"]


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("/etc/sparkstack/fabric.env", "/etc/sparkstack/fabric.env"),
        ("image a:b\ncheckpoint 0a1b", "image a:b, checkpoint 0a1b"),
        ((False, "sudo: a password is required"), "answer"),
        (EOFError(), "answer"),
    ],
)
def test_nothing_stops_where_a_rank_lacks_something(sites: Sites, at: int, answer: Any, found: str) -> None:
    ranks = head, _ = sites(2)
    in_states(ranks, release="older")
    ranks[at].host.answers = {LACKS: answer}
    assert not follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.shown == [
        f"spark-{at + 1}: serve: found no {found}; wanted all of release {head.release_id} "
        "before the present one stops; run all stages on all hosts"
    ]
    assert {kind for rank in ranks for kind in rank.host.kinds()} == {LACKS}


@pytest.mark.parametrize(
    "change", [{"release": "older"}, {"unit": "activating"}, {"unit": "failed"}, {"fabric": ""}]
)
def test_one_rank_that_differs_is_enough(sites: Sites, change: dict[str, str]) -> None:
    ranks = sites(2)
    in_states(ranks, **change)
    assert len(commands_of(serve.activated, ranks[0].host, ranks[0])) == 1


def test_stop_all_switch_all_start_workers_first(sites: Sites, monkeypatch: Any) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, release="older")
    order: list[tuple[str, str]] = []
    shell = remote.shell

    def listen(host: Any, command: str, stdin: str | None = None) -> tuple[bool, str]:
        order.append((host.name, kind_of(command)))
        return shell(host, command, stdin)

    monkeypatch.setattr(activation, "shell", listen)
    monkeypatch.setattr(remote, "shell", listen)
    head.host.answers = {STATE: ["activating\nLoading weights", "active"], RESTARTS: "0"}
    worker.host.answers = {RESTARTS: "0"}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert order == [
        ("spark-1", LACKS),
        ("spark-2", LACKS),
        ("spark-1", "write"),
        ("spark-1", "stop rank"),
        ("spark-2", "stop rank"),
        ("spark-1", "switch rank"),
        ("spark-2", "switch rank"),
        ("spark-2", "start rank"),
        ("spark-1", "start rank"),
        ("spark-1", STATE),
        ("spark-1", RESTARTS),
        ("spark-2", RESTARTS),
        ("spark-1", STATE),
        ("spark-1", "write"),
        ("spark-1", "drop activation"),
    ]
    for rank in ranks:
        (switched,) = [line for line in rank.host.heard if kind_of(line) == "switch rank"]
        assert f"ln -sfn /etc/sparkstack/releases/{head.release_id} /etc/sparkstack/current.new" in switched


@pytest.mark.parametrize("state", ["active", "activating", "deactivating", "inactive", "failed"])
@pytest.mark.parametrize("idle", [False, True])
def test_an_engine_that_loads_is_killed_before_its_unit_is_stopped(
    tmp_path: Path, state: str, idle: bool
) -> None:
    """It has no open request, and would not hear the signal; one that serves is stopped in peace."""
    log = tmp_path / "log"
    tools = {
        "systemctl": f'[ "$1" = show ] && echo {state} || echo "systemctl $*" >> {log}',
        "docker": f'echo "docker $*" >> {log}; exit 1',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", activation.stop_words(idle)], env=path, check=True, timeout=20)
    assert done.returncode == 0
    kill = ["docker kill sparkstack-serve"] if idle or state == "activating" else []
    assert log.read_text().splitlines() == [*kill, "systemctl stop sparkstack-serve.service"]


@pytest.mark.parametrize("state", ["active", "activating", "inactive"])
def test_workers_of_a_head_that_loads_are_killed_too(sites: Sites, state: str) -> None:
    """Their units are active as soon as their containers run. A head that is inactive tells nothing: in an
    inventory in another order it is a host that has not served yet."""
    head, worker = sites(2)
    head.host.answers["stop rank"] = state
    assert activation.stop_ranks(head.host, [head.host, worker.host])
    (stop,) = worker.host.heard
    assert stop.startswith(activation.stop_words(state == "activating") + " && ")


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("stop rank", "spark-2: sparkstack-serve.service could not be stopped; found: no"),
        ("switch rank", "spark-2: `current` could not be switched; found: no"),
        ("start rank", "spark-2: sparkstack-serve.service could not be started; found: no"),
    ],
)
def test_a_step_that_fails_names_the_rank(sites: Sites, part: str, line: str) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, release="older")
    worker.host.answers = {part: (False, "no")}
    assert not follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.shown == [line]


def test_a_rank_that_starts_again_and_again_ends_the_wait(sites: Sites) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, release="older")
    head.host.answers = {STATE: "activating", RESTARTS: "0"}
    worker.host.answers = {RESTARTS: ["0", "3"], JOURNAL: "ValueError: no such model"}
    assert not follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.shown == [
        "spark-2: serve: found ValueError: no such model; wanted a completion within 600 s; "
        "see `journalctl -u sparkstack-serve.service` there",
        f"spark-1: serve: found no release before {head.release_id} to go back to; wanted one; "
        "serving is stopped",
    ]
    assert [rank.host.kinds().count("stop rank") for rank in ranks] == [2, 2]


def test_no_completion_in_time(sites: Sites) -> None:
    (site,) = sites(1)
    in_states([site], release="older")
    site.host.answers = {STATE: "activating", RESTARTS: "0", JOURNAL: ""}
    assert not follow(commands_of(serve.activated, site.host, site), site.host)
    line, _ = site.host.shown
    assert line.startswith(
        "spark-1: serve: found no error in its journal; wanted a completion within 600 s; "
    )


def test_a_worker_that_misses_a_question_does_not_end_the_wait(sites: Sites) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, release="older")
    head.host.answers = {STATE: ["activating", "activating", "active"], RESTARTS: "0"}
    worker.host.answers = {RESTARTS: [(False, "Failed to connect to bus: 7"), EOFError(), "0"]}
    assert follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.shown == []


def test_a_head_that_stops_answering(sites: Sites) -> None:
    ranks = head, worker = sites(2)
    in_states(ranks, release="older")
    head.host.answers = {STATE: ["activating", EOFError()], RESTARTS: "0"}
    worker.host.answers = {RESTARTS: "0"}
    assert not follow(commands_of(serve.activated, head.host, head), head.host)
    assert head.host.shown == ["spark-1: serve: the host stopped answering; run again"]


@pytest.mark.parametrize(
    ("state", "does"),
    [
        (KNOWN, "nothing"),
        (Machine(units={UNIT: Unit("", "inactive")}), "reloads"),
        (replace(STALE, gpu_containers=()), "reloads"),
        (replace(STALE, cgroup_driver="cgroupfs"), "reloads"),
        (STALE, "waits"),
        (replace(STALE, gpu_containers=("sparkstack-serve", "jupyter")), "fails"),
    ],
)
def test_no_reload_takes_the_gpu_away(sites: Sites, state: Machine, does: str) -> None:
    (site,) = sites(1)
    site.host.facts = {MachineState: state}
    commands = commands_of(serve.unit_known, site.host)
    went = follow(commands, site.host)
    assert went is (does != "fails")
    assert site.host.kinds() == (["know unit"] if does == "reloads" else [])
    if does == "fails":
        assert site.host.shown == [
            "spark-1: serve: found container jupyter using the GPU under Docker's cgroup driver systemd; "
            "wanted none while systemd reads its files again (it would lose the GPU); "
            "stop it, or run --data only=docker first (with docker_cgroupfs)"
        ]
    if does == "waits":
        assert "waits until the ranks are stopped" in site.host.noops[0]


def test_the_reload_that_waited_comes_after_the_stop(sites: Sites) -> None:
    (site,) = sites(1)
    in_states([site], release="older")
    stopped = replace(STALE, gpu_containers=())
    site.host.facts[MachineState] = lambda **_: stopped if "stop rank" in site.host.kinds() else STALE
    site.host.answers = {STATE: "active", RESTARTS: "0"}
    assert follow(commands_of(serve.activated, site.host, site), site.host)
    assert site.host.kinds()[2:6] == ["stop rank", "know unit", "switch rank", "start rank"]


@pytest.mark.parametrize(
    ("bind", "endpoint"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("0::0", "http://[::1]:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
        ("management", "http://10.0.0.1:8000"),
    ],
)
def test_where_the_head_is_asked(sites: Sites, bind: str, endpoint: str) -> None:
    (site,) = sites(1, serve_bind=bind)
    assert site.endpoint == endpoint
