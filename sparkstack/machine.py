"""The host below Docker: from what it is now to the steps that make it what a site declares.

A step that needs systemd to read its files again (`daemon-reload`) takes the GPU away from containers that
run under systemd's control groups; `reload_refused` is the one place that knows when it is safe.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstack.errors import Problem
from sparkstack.units import bytes_text

# Files of ours on the host, by what they are about. Each is whole; none is a vendor's.
FILES = {
    "sshd": "/etc/systemd/system/ssh.service.d/sparkstack.conf",
    "earlyoom": "/etc/systemd/system/earlyoom.service.d/sparkstack.conf",
    "memlock": "/etc/security/limits.d/90-sparkstack.conf",
    "sysctl": "/etc/sysctl.d/90-sparkstack.conf",
    "sudoers": "/etc/sudoers.d/sparkstack",
    "journald": "/etc/systemd/journald.conf.d/90-sparkstack.conf",
    "gpu-clocks": "/etc/systemd/system/sparkstack-gpu-clocks.service",
    "swap-off": "/etc/systemd/system/sparkstack-swap-off.service",
}
# Those that systemd reads by a daemon-reload.
UNIT_TOPICS = ("sshd", "earlyoom", "gpu-clocks", "swap-off")
# Units of which we are asked for the state.
ONESHOTS = {"gpu-clocks": "sparkstack-gpu-clocks.service", "swap-off": "sparkstack-swap-off.service"}
TIME_DAEMONS = (
    "chrony.service",
    "chronyd.service",
    "ntpsec.service",
    "ntp.service",
    "systemd-timesyncd.service",
)
UNITS = ("ssh.service", "earlyoom.service", *ONESHOTS.values(), *TIME_DAEMONS)


@dataclass(frozen=True)
class Unit:
    """A unit as systemd shows it: "enabled", "active" and so on; `stale`: its file was changed since."""

    enabled: str = ""
    active: str = "inactive"
    stale: bool = False
    oom_score: str = ""

    @property
    def runs(self) -> bool:
        return self.enabled in ("enabled", "static", "alias") and self.active == "active"


@dataclass(frozen=True)
class Machine:
    """What a host said of itself. A container's kernel, clock and swap are those of its machine.

    `due`: topics whose files a run wrote and then ended before they took effect.
    """

    container: bool = False
    gpu: bool = False
    swappiness: int | None = None
    swaps: tuple[str, ...] = ()
    swap_used_bytes: int = 0
    memory_available_bytes: int = 0
    target: str = ""
    units: Mapping[str, Unit] = field(default_factory=dict)
    due: frozenset[str] = frozenset()
    installed: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    gpu_containers: tuple[str, ...] = ()
    cgroup_driver: str = ""

    def unit(self, name: str) -> Unit:
        return self.units.get(name, Unit())


@dataclass(frozen=True)
class Step:
    """A command for the host. `unit`, `restarted`, `target`, `sysctl`: what it is about, for the undo.

    `reloads`: systemctl makes systemd read its files again as a part of it. `differs`: (what, found, wanted)
    for the doctor, where it is not a file of ours that differs.
    """

    command: str
    unit: str = ""
    restarted: str = ""
    target: str = ""
    sysctl: str = ""
    reloads: bool = False
    differs: tuple[str, str, str] | None = None


def reload_refused(machine: Machine, apart_from: Collection[str] = ()) -> str | None:
    """Why systemd must not read its files again now; None where it may.

    With the cgroup driver "systemd" a daemon-reload writes the device rules of every container's scope anew,
    without the GPU that NVIDIA's runtime put there. With "cgroupfs" systemd knows nothing of containers.
    """
    serving = [name for name in machine.gpu_containers if name not in apart_from]
    if not serving or machine.cgroup_driver == "cgroupfs":
        return None
    return (
        f"found container {', '.join(serving)} using the GPU under Docker's cgroup driver "
        f"{machine.cgroup_driver or 'unknown'}; wanted none while systemd reads its files again (it would "
        "lose the GPU); stop it, or run --data only=docker first (with docker_cgroupfs)"
    )


def missing_packages(wanted: list[str], installed: Collection[str]) -> list[str]:
    """The packages to install, in the order in which they are wanted, each once."""
    return [name for name in dict.fromkeys(wanted) if name not in installed]


def time_daemon(machine: Machine) -> str | None:
    """The unit that shall keep the clock: the one that runs, else one that is there, else systemd's.

    None in a container, whose clock is its machine's.
    """
    if machine.container:
        return None
    there = [name for name in TIME_DAEMONS if machine.unit(name).enabled not in ("", "masked", "alias")]
    running = [name for name in there if machine.unit(name).active == "active"]
    return next(iter([*running, *there]), "systemd-timesyncd.service")


def to_hold(patterns: list[str], installed: Collection[str]) -> list[str]:
    """What is installed of kernel and driver. A pattern that begins with "!" takes names out again."""

    def among(names: list[str], name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in names)

    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return sorted(name for name in installed if among(wanted, name) and not among(unwanted, name))


def wanted_packages(data: Any, machine: Machine) -> list[str]:
    """The declared packages and those that the declared settings need."""
    wanted = list(data.packages)
    if data.earlyoom:
        wanted.append("earlyoom")
    daemon = time_daemon(machine) if data.time_sync else None
    if daemon and machine.unit(daemon).enabled == "":
        wanted.append("systemd-timesyncd")
    return wanted


def swap_problem(name: str, machine: Machine) -> Problem | None:
    """Why swap cannot be switched off now: what is in it must find room in memory."""
    if machine.swap_used_bytes < machine.memory_available_bytes * 0.9:
        return None
    return Problem(
        f"{name}: swap",
        f"{bytes_text(machine.swap_used_bytes)} in swap and {bytes_text(machine.memory_available_bytes)} of "
        "memory available",
        "room for it in memory",
        "stop what takes the memory, then run again",
    )


def before_removal(topic: str) -> list[Step]:
    """What comes before a unit of ours goes because its knob was switched off."""
    if topic in ONESHOTS:
        return [Step(f"systemctl disable --now {ONESHOTS[topic]}")]
    if topic == "earlyoom":
        return [Step("systemctl disable --now earlyoom.service 2>/dev/null || true", unit="earlyoom.service")]
    return []


def reload_needed(changed: Collection[str], machine: Machine) -> bool:
    """Whether systemd must read its files again: we changed one, or somebody did and left it at that."""
    stale = any(machine.unit(name).stale for name in ("ssh.service", "earlyoom.service", *ONESHOTS.values()))
    return stale or any(topic in UNIT_TOPICS for topic in changed)


def steps(changed: Collection[str], data: Any, machine: Machine) -> list[Step]:
    """What makes the files of `changed` topics, and whatever else differs on the host, take effect."""
    result: list[Step] = []
    if reload_needed(changed, machine):
        result.append(Step("systemctl daemon-reload"))

    def unit(name: str, command: str) -> Step:
        state = machine.unit(name)
        differs = (
            None if state.runs else (name, f"{state.enabled or 'unknown'} and {state.active}", "running")
        )
        return Step(command, unit=name, reloads=True, differs=differs)

    score = machine.unit("ssh.service").oom_score
    protected = score in ("", "-1000") or not data.sshd_protected
    if "sshd" in changed or not protected:
        # Sessions live on while the daemon restarts; a configuration that it refuses must not stop it.
        command = "/usr/sbin/sshd -t && systemctl try-restart ssh.service"
        differs = None if protected else ("ssh.service", f"OOMScoreAdjust {score}", "-1000")
        result.append(Step(command, restarted="ssh.service", differs=differs))
    name = "earlyoom.service"
    if data.earlyoom and ("earlyoom" in changed or not machine.unit(name).runs):
        result.append(unit(name, f"systemctl enable --quiet {name} && systemctl restart {name}"))
    wanted = data.vm_swappiness
    if wanted is not None and not machine.container:
        same = machine.swappiness == wanted
        if "sysctl" in changed or not same:
            differs = None if same else ("vm.swappiness", str(machine.swappiness), str(wanted))
            command = f"sysctl -q -p {FILES['sysctl']}"
            result.append(Step(command, sysctl="vm.swappiness", differs=differs))
    if "journald" in changed:
        restart = "systemctl restart systemd-journald.service && journalctl --flush"
        result.append(Step(restart, restarted="systemd-journald.service"))
    for topic, name in ONESHOTS.items():
        declared = data.gpu_clock_max_mhz is not None if topic == "gpu-clocks" else data.swap == "off"
        state = machine.unit(name)
        # Without a GPU the unit's condition does not hold, and systemd passes it over.
        done = state.enabled == "enabled" if topic == "gpu-clocks" and not machine.gpu else state.runs
        if declared and (topic in changed or not done):
            result.append(unit(name, f"systemctl enable --quiet {name} && systemctl restart {name}"))
        elif declared and topic == "swap-off" and machine.swaps and not machine.container:
            differs = ("swap", ", ".join(machine.swaps), "off")
            # Not by a restart: that would bring all of it back first.
            result.append(Step("swapoff --all", differs=differs))
    if data.headless and machine.target != "multi-user.target":
        differs = ("default target", machine.target, "multi-user.target")
        command = "systemctl set-default --quiet multi-user.target"
        result.append(Step(command, target=machine.target, reloads=True, differs=differs))
    daemon = time_daemon(machine)
    if data.time_sync and daemon and not machine.unit(daemon).runs:
        result.append(unit(daemon, f"systemctl enable --now --quiet {shlex.quote(daemon)}"))
    return result


def parse(lines: list[str]) -> Machine:
    """A machine from the lines of `tasks/machine.sh` (KEY=VALUE)."""
    values: dict[str, str] = {}
    units: dict[str, Unit] = {}
    for line in lines:
        key, _, value = line.partition("=")
        if key.startswith("unit:"):
            enabled, active, stale, score = [*value.split(","), "", "", "", ""][:4]
            units[key[5:]] = Unit(enabled, active, stale == "yes", score)
        else:
            values[key] = value

    def words(key: str) -> list[str]:
        return values.get(key, "").split()

    swappiness = values.get("swappiness", "")
    return Machine(
        container=values.get("container", "") not in ("", "none"),
        gpu=values.get("gpu") == "yes",
        swappiness=int(swappiness) if swappiness.isdigit() else None,
        swaps=tuple(words("swaps")),
        swap_used_bytes=int(values.get("swap_used") or 0),
        memory_available_bytes=int(values.get("memory_available") or 0),
        target=values.get("target", ""),
        units=units,
        due=frozenset(words("due")),
        installed=frozenset(words("installed")),
        held=frozenset(words("held")),
        gpu_containers=tuple(words("gpu_containers")),
        cgroup_driver=values.get("cgroup_driver", ""),
    )
