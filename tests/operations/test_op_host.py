"""The host's packages, group, settings and holds: what is done, what is not, and what refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_host import commands_of, follow, shell_lines, written

from sparkstack import machine
from sparkstack.machine import Machine, Unit
from tasks import host as host_task
from tasks.facts import FileStates
from tasks.host import Account
from tasks.machine import MachineState
from tasks.site import Site

Sites = Callable[..., list[Site]]
RUNS = Unit("enabled", "active")
GOOD = Machine(
    gpu=True,
    swappiness=10,
    target="graphical.target",
    memory_available_bytes=100 * 10**9,
    units={
        "ssh.service": Unit("enabled", "active", oom_score="-1000"),
        "earlyoom.service": RUNS,
        "systemd-timesyncd.service": RUNS,
    },
    installed=frozenset(
        {"ca-certificates", "curl", "ethtool", "iproute2", "iputils-ping", "netplan.io", "perftest"}
        | {"python3", "earlyoom"}
        | {"linux-image-6.17-nvidia", "nvidia-driver-580-open", "linux-base"}
    ),
    held=frozenset(["linux-image-6.17-nvidia", "nvidia-driver-580-open"]),
)


def files_of(site: Site) -> dict[str, dict[str, str]]:
    return {one.path: one.wanted() for one in host_task.host_files(site.data, site.user).values() if one}


def settle(site: Site, state: Machine = GOOD, **found: Any) -> list[Any]:
    """What settings_in_place does to a host that has all declared files but for `found`."""
    files: dict[str, Any] = files_of(site)
    for topic, there in found.items():
        path = machine.FILES[topic.replace("_", "-")]
        files = {key: value for key, value in files.items() if key != path} | ({path: there} if there else {})
    site.host.facts = {MachineState: state, FileStates: files}
    return commands_of(host_task.settings_in_place, site.host, site)


def plain(commands: list[Any]) -> list[str]:
    """The commands without the notes for the undo, the marks of what is due, and those that write."""
    lines = [line for line in shell_lines(commands) if "base64 -d" not in line and host_task.DUE not in line]
    return [line.rpartition(" ) && ")[2] for line in lines]


def test_a_host_as_declared_is_left_alone(sites: Sites) -> None:
    (site,) = sites(1)
    assert settle(site) == []
    assert site.host.noops == ["all settings are in place"]
    assert commands_of(host_task.packages_installed, site.host, site) == []
    assert commands_of(host_task.packages_held, site.host, site) == []


def test_a_fresh_host_gets_whole_files_and_takes_them_up(sites: Sites) -> None:
    (site,) = sites(1)
    fresh = replace(GOOD, swappiness=60, units={"ssh.service": Unit("enabled", "active", oom_score="0")})
    commands = settle(
        site, fresh, **dict.fromkeys(["sshd", "earlyoom", "memlock", "sysctl", "sudoers", "journald"])
    )
    files = written(commands)
    assert set(files) == {machine.FILES[t] for t in machine.FILES if t not in ("gpu-clocks", "swap-off")}
    assert "OOMScoreAdjust=-1000" in files[machine.FILES["sshd"]]
    assert plain(commands) == [
        "visudo -cqf -",
        "systemctl daemon-reload",
        "/usr/sbin/sshd -t && systemctl try-restart ssh.service",
        "systemctl enable --quiet earlyoom.service && systemctl restart earlyoom.service",
        "sysctl -q -p /etc/sysctl.d/90-sparkstack.conf",
        "systemctl restart systemd-journald.service && journalctl --flush",
        "systemctl enable --now --quiet systemd-timesyncd.service",
    ]


def test_what_a_run_wrote_and_did_not_put_into_effect(sites: Sites) -> None:
    (site,) = sites(1)
    first = shell_lines(settle(site, journald=None, earlyoom=None))
    assert (
        first[0]
        == "mkdir -p /run/sparkstack-due && touch /run/sparkstack-due/earlyoom /run/sparkstack-due/journald"
    )
    assert first[-1] == "rm -rf /run/sparkstack-due"
    again = settle(site, replace(GOOD, due=frozenset(["journald", "earlyoom"])))
    assert [line for line in shell_lines(again)][-1] == first[-1]
    assert plain(again) == [
        "systemctl daemon-reload",
        "systemctl enable --quiet earlyoom.service && systemctl restart earlyoom.service",
        "systemctl restart systemd-journald.service && journalctl --flush",
    ]


def test_sudoers_is_judged_before_it_lands(sites: Sites) -> None:
    (site,) = sites(1)
    _, check, write, _ = settle(site, sudoers=None)
    assert check.get_raw_value() == "visudo -cqf -"
    assert check.connector_arguments["_stdin"] == written([write])["/etc/sudoers.d/sparkstack"]
    assert "chmod 440 " in write.get_raw_value()


def test_a_container_is_not_given_its_machines_settings(sites: Sites) -> None:
    (site,) = sites(1)
    inside = replace(
        GOOD, container=True, swappiness=60, units={**GOOD.units, "systemd-timesyncd.service": Unit()}
    )
    commands = settle(site, inside, sysctl=None)
    assert list(written(commands)) == [machine.FILES["sysctl"]] and plain(commands) == []


@pytest.mark.parametrize(
    ("data", "topic", "before", "after"),
    [
        (
            {"gpu_clock_max_mhz": None},
            "gpu_clocks",
            ["systemctl disable --now sparkstack-gpu-clocks.service"],
            [],
        ),
        ({"swap": "keep"}, "swap_off", ["systemctl disable --now sparkstack-swap-off.service"], []),
        (
            {"earlyoom": False},
            "earlyoom",
            ["systemctl disable --now earlyoom.service 2>/dev/null || true"],
            [],
        ),
        (
            {"sshd_protected": False},
            "sshd",
            [],
            ["/usr/sbin/sshd -t && systemctl try-restart ssh.service"],
        ),
    ],
)
def test_a_knob_that_is_switched_off_takes_its_file_along(
    sites: Sites, data: dict[str, Any], topic: str, before: list[str], after: list[str]
) -> None:
    (site,) = sites(1, **data)
    path = machine.FILES[topic.replace("_", "-")]
    folder = path.rpartition("/")[0]
    removed = f"rm -f {path}" + (f"; rmdir {folder} 2>/dev/null; true" if folder.endswith(".d") else "")
    there: dict[str, Any] = {topic: {"sha256": "0", "mode": "644", "owner": "root:root"}}
    commands = settle(site, **there)
    assert plain(commands) == [*before, removed, "systemctl daemon-reload", *after]


def test_swap_off_by_a_unit_that_a_later_run_can_undo(sites: Sites) -> None:
    (site,) = sites(1, swap="off")
    state = replace(GOOD, swaps=("/swap.img",), swap_used_bytes=10**9)
    commands = settle(site, state, swap_off=None)
    assert plain(commands)[-1] == (
        "systemctl enable --quiet sparkstack-swap-off.service && "
        "systemctl restart sparkstack-swap-off.service"
    )
    units = {**GOOD.units, "sparkstack-swap-off.service": RUNS}
    assert settle(site, replace(GOOD, units=units)) == []
    # Somebody switched it on again by hand.
    assert plain(settle(site, replace(state, units=units))) == ["swapoff --all"]


def test_swap_that_does_not_fit_into_memory_stays(sites: Sites) -> None:
    (site,) = sites(1, swap="off")
    full = replace(GOOD, swaps=("/swap.img",), swap_used_bytes=8 * 10**9, memory_available_bytes=4 * 10**9)
    assert not follow(settle(site, full, swap_off=None), site.host)
    assert site.host.shown == [
        "spark-1: swap: found 8.00 GB in swap and 4.00 GB of memory available; wanted room for it in memory; "
        "stop what takes the memory, then run again"
    ]


def test_clock_cap_and_headless(sites: Sites) -> None:
    (site,) = sites(1, gpu_clock_max_mhz=2000, headless=True)
    commands = settle(site, gpu_clocks=None)
    (unit,) = written(commands).values()
    assert "ExecStart=/usr/bin/nvidia-smi --lock-gpu-clocks=0,2000\n" in unit
    assert plain(commands)[1:] == [
        "systemctl enable --quiet sparkstack-gpu-clocks.service && "
        "systemctl restart sparkstack-gpu-clocks.service",
        "systemctl set-default --quiet multi-user.target",
    ]


@pytest.mark.parametrize("knob", [{"sshd": None}, {}])
def test_no_reload_under_a_container_that_would_lose_the_gpu(sites: Sites, knob: dict[str, Any]) -> None:
    (site,) = sites(1)
    busy = replace(GOOD, gpu_containers=("jupyter",), cgroup_driver="systemd", swappiness=60)
    went = follow(settle(site, busy, **knob), site.host) if knob else bool(settle(site, busy))
    assert went is not bool(knob)  # what needs no reload is done all the same
    if knob:
        assert site.host.heard == []
        assert site.host.shown[0].startswith(
            "spark-1: host: found container jupyter using the GPU under Docker's "
        )
        assert settle(site, replace(busy, cgroup_driver="cgroupfs"), **knob)


def test_missing_packages_are_installed_in_one_go(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {MachineState: replace(GOOD, installed=GOOD.installed - {"curl", "earlyoom"})}
    assert follow(commands_of(host_task.packages_installed, site.host, site), site.host)
    (line,) = site.host.heard
    assert " -o DPkg::Lock::Timeout=300 curl earlyoom " in line and "--no-upgrade" in line


def test_a_package_that_apt_does_not_know(sites: Sites) -> None:
    (site,) = sites(1, packages=["no-such"])
    site.host.facts = {MachineState: GOOD}
    site.host.answers = {"install packages": (False, "E: Unable to locate package no-such")}
    assert not follow(commands_of(host_task.packages_installed, site.host, site), site.host)
    assert site.host.shown == [
        "spark-1: packages: found apt failing: E: Unable to locate package no-such; wanted no-such; mend "
        "apt's sources, or take the name out of group_data"
    ]


def test_kernel_and_driver_are_held_as_a_set(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {MachineState: replace(GOOD, held=frozenset(["nvidia-driver-580-open"]))}
    (command,) = commands_of(host_task.packages_held, site.host, site)
    assert plain([command]) == ["apt-mark hold linux-image-6.17-nvidia"]


ACCOUNT = {"exists": True, "groups": ["nvidia"], "docker": True}


def test_an_unknown_user(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {Account: {**ACCOUNT, "exists": False, "groups": []}}
    assert not follow(commands_of(host_task.user_may_use_docker, site.host, "nobdy"), site.host)
    assert site.host.shown == [
        "spark-1: user: found no user nobdy; wanted the one that owns the daily work; correct `user` in "
        "group_data, or create the user on the host"
    ]


def test_a_member_is_left_alone_and_the_connection_too(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {Account: {**ACCOUNT, "groups": ["nvidia", "docker"]}}
    assert commands_of(host_task.user_may_use_docker, site.host, "nvidia") == []


@pytest.mark.parametrize(("docker", "adds"), [(True, 1), (False, 2)])
def test_a_new_membership_renews_the_connection(sites: Sites, docker: bool, adds: int) -> None:
    (site,) = sites(1)
    site.host.facts = {Account: {**ACCOUNT, "docker": docker}}
    *shell, last = commands_of(host_task.user_may_use_docker, site.host, "nvidia")
    assert len(shell) == adds and plain(shell)[-1] == "usermod -aG docker nvidia"
    assert last.function is host_task._reconnect


class Connection:
    """A pyinfra host whose second connection works, or not."""

    name = "spark-1"

    def __init__(self, works: bool) -> None:
        self.works, self.connected, self.done = works, True, list[str]()
        self.connector = self
        self.client: Any = self

    def close(self) -> None:
        self.done.append("closed")

    def disconnect(self) -> None:
        self.connected = False
        self.done.append("disconnected")

    def connect(self, reason: str) -> None:
        self.connected, self.client = self.works, object()
        self.done.append("connected")

    def log_styled(self, line: str, **style: Any) -> None:
        self.done.append(line)


def test_reconnecting_ends_the_old_session() -> None:
    host = Connection(works=True)
    assert host_task._reconnect(None, host)
    assert host.done == ["disconnected", "connected", "closed"]


def test_a_second_connection_that_fails_is_said() -> None:
    host = Connection(works=False)
    assert not host_task._reconnect(None, host)
    assert host.done[-1] == (
        "spark-1: host: found no answer to a second connection; wanted the new group to count; run again"
    )


def test_machine_state_by_a_real_shell() -> None:
    command = MachineState().command(packages=["bash", "no-such-package"])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    state = MachineState().process(done.stdout.splitlines())
    assert state.memory_available_bytes > 0 and state.swappiness is not None
    assert state.held is not None and "no-such-package" not in state.installed
