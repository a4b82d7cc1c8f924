"""The watchdog runs where it is wanted, its limits are no part of a release, and it waits with a new file."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fake_host import commands_of, follow

from sparkstack import knobs
from sparkstack.machine import Machine, Unit
from tasks import drift, watchdog
from tasks.machine import MachineState
from tasks.site import WATCHDOG, Site

Sites = Callable[..., list[Site]]
RUNS = Unit("enabled", "active")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("unit", "kinds"),
    [
        (RUNS, []),
        (Unit("", "inactive"), ["run watchdog"]),
        (Unit("disabled", "active"), ["run watchdog"]),
        (Unit("enabled", "failed"), ["run watchdog"]),
        (Unit("enabled", "active", stale=True), ["run watchdog"]),
    ],
)
def test_it_runs_on_every_host(sites: Sites, rank: int, unit: Unit, kinds: list[str]) -> None:
    site = sites(2)[rank]
    site.host.facts = {MachineState: Machine(units={WATCHDOG: unit})}
    assert follow(commands_of(watchdog.watched, site.host, site), site.host)
    assert site.host.kinds() == kinds
    assert ("daemon-reload" in "".join(site.host.heard)) == unit.stale
    assert site.host.noops == ([] if kinds else ["the watchdog runs"])


def test_a_new_file_waits_while_the_gpu_would_be_lost(sites: Sites) -> None:
    site = sites(1)[0]
    site.host.facts = {
        MachineState: Machine(
            units={WATCHDOG: Unit("enabled", "active", stale=True)},
            gpu_containers=("sparkstack-serve",),
            cgroup_driver="systemd",
        )
    }
    assert commands_of(watchdog.watched, site.host, site) == []
    assert site.host.noops[0].startswith("waits until the ranks are stopped")


@pytest.mark.parametrize(
    ("unit", "kinds"),
    [
        (RUNS, ["end watchdog"]),
        (Unit("disabled", "active"), ["end watchdog"]),
        (Unit(), []),
        (Unit("disabled"), []),
    ],
)
def test_switched_off_it_is_stopped(sites: Sites, unit: Unit, kinds: list[str]) -> None:
    site = sites(1, watchdog={"enabled": False})[0]
    # How long a rank's start waits stays declared.
    assert [file.path for file in watchdog.files(site)] == ["/etc/sparkstack/watchdog.json"]
    site.host.facts = {MachineState: Machine(units={WATCHDOG: unit})}
    assert follow(commands_of(watchdog.watched, site.host, site), site.host)
    assert site.host.kinds() == kinds


def test_the_doctor_says_that_it_does_not_run(sites: Sites) -> None:
    site = sites(1)[0]
    site.host.facts = {MachineState: Machine(units={WATCHDOG: Unit("enabled", "failed")})}
    with drift.listen(site.host.name) as told:
        assert commands_of(watchdog.watched, site.host, site)
    assert [(one.thing, one.found, one.wanted) for one in told] == [
        (WATCHDOG, "enabled failed", "enabled and active")
    ]


def test_its_limits_change_no_release(sites: Sites) -> None:
    plain, quick = sites(2)[0], sites(2, watchdog={"interval_s": 3, "misses": 2})[0]
    assert plain.release_id == quick.release_id
    limits, unit = watchdog.files(quick)
    assert (limits.path, json.loads(limits.content)) == (
        "/etc/sparkstack/watchdog.json",
        {"interval_s": 3, "misses": 2},
    )
    assert unit == watchdog.files(plain)[1]
    assert b"-m onhost watchdog --config-dir /etc/sparkstack\n" in unit.content


@pytest.mark.parametrize(
    ("drain", "declared", "stays"),
    [
        (25, {}, None),
        (0, {}, None),
        (300, {}, 335),
        (300, {"head_stops_s": 90}, 335),
        (300, {"head_stops_s": 900}, 900),
        (25, {"head_stops_s": 20}, 60),
    ],
)
def test_a_worker_stays_until_the_head_may_have_stopped(
    sites: Sites, drain: int, declared: dict[str, int], stays: int | None
) -> None:
    limits = json.loads(watchdog.files(sites(2, drain_s=drain, watchdog=declared)[0])[0].content)
    assert limits.get("head_stops_s") == stays


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"misses": 0}, "found watchdog.misses = 0 (a number); wanted greater than or equal to 1"),
        ({"timeout_s": "a"}, "found watchdog.timeout_s = 'a' (text); wanted a valid number"),
        ({"mises": 4}, "found unknown name 'watchdog.mises'; wanted one of: enabled, interval_s, "),
        (False, "found watchdog = False"),
    ],
)
def test_wrong_limits_are_a_line(sites: Sites, value: object, said: str) -> None:
    data = {name: item for name, item in vars(sites(1)[0].data).items() if name in knobs.Knobs.model_fields}
    (found,) = knobs.problems({**data, "watchdog": value})
    assert said in str(found)
