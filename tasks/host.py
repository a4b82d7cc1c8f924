"""The host: packages, the user in Docker's group, and settings as whole files of ours.

What shall be where is decided in `sparkstack/machine.py`; what each setting is for is in docs/host.md.
"""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra import host
from pyinfra.api import FactBase, FunctionCommand, StringCommand, deploy, operation

from sparkstack import machine
from tasks import drift, undo
from tasks.facts import Ask, FileStates
from tasks.files import Commands, ManagedFile, render
from tasks.machine import MachineState
from tasks.remote import fail, report_failure, shell
from tasks.site import Site

DUE = "/run/sparkstack-due"


class Account(FactBase[dict[str, Any]]):
    """Returns `{"exists", "groups", "docker"}`: a user's groups, and whether the group docker exists."""

    default = dict

    def command(self, user: str) -> str:
        name = shlex.quote(user)
        return (
            f'echo "exists=$(id -u {name} 2>/dev/null)"; echo "groups=$(id -nG {name} 2>/dev/null)"; '
            'echo "docker=$(getent group docker)"'
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found = dict(line.split("=", 1) for line in output if "=" in line)
        return {
            "exists": bool(found.get("exists")),
            "groups": found.get("groups", "").split(),
            "docker": bool(found.get("docker")),
        }


def host_files(data: Any, user: str) -> dict[str, ManagedFile | None]:
    """The file of each topic of `machine.FILES`; None where its knob is off and the file shall not be."""

    def file(
        topic: str, declared: bool, template: str, mode: str = "644", **values: Any
    ) -> ManagedFile | None:
        if not declared:
            return None
        return ManagedFile.text(machine.FILES[topic], render(template, **values), mode)

    return {
        "sshd": file("sshd", data.sshd_protected, "sshd-oom.conf.j2"),
        "earlyoom": file(
            "earlyoom",
            data.earlyoom,
            "earlyoom.conf.j2",
            memory_percent=data.earlyoom_memory_percent,
            swap_percent=data.earlyoom_swap_percent,
        ),
        "memlock": file("memlock", data.memlock_unlimited, "memlock.conf.j2"),
        "sysctl": file(
            "sysctl", data.vm_swappiness is not None, "sysctl.conf.j2", swappiness=data.vm_swappiness
        ),
        "sudoers": file("sudoers", data.drop_caches_sudo, "sudoers.j2", "440", user=user),
        "journald": file("journald", data.journald_persistent, "journald.conf.j2"),
        "gpu-clocks": file(
            "gpu-clocks",
            data.gpu_clock_max_mhz is not None,
            "gpu-clocks.service.j2",
            mhz=data.gpu_clock_max_mhz,
        ),
        "swap-off": file("swap-off", data.swap == "off", "swap-off.service.j2"),
    }


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    return [
        (MachineState, {"packages": _asked_packages(site.data)}),
        (Account, {"user": site.user}),
        (FileStates, {"paths": list(machine.FILES.values())}),
    ]


def _machine(site: Site) -> machine.Machine:
    found: machine.Machine = host.get_fact(MachineState, packages=_asked_packages(site.data))
    return found


def _asked_packages(data: Any) -> list[str]:
    held = [pattern for pattern in data.held_packages if not pattern.startswith("!")]
    return [*data.packages, "earlyoom", "systemd-timesyncd", *held]


@operation()
def packages_installed(site: Site) -> Commands:
    """Install what is declared, and what the declared settings need, where it is missing.

    No-op when dpkg has all of them. Nothing is ever upgraded or removed.
    """
    state = _machine(site)
    missing = machine.missing_packages(machine.wanted_packages(site.data, state), state.installed)
    if not missing:
        host.noop("all packages are installed")
        return
    for name in missing:
        drift.differs(f"package {name}", "not installed", "installed")
    if refused := machine.reload_refused(state):
        # A package that brings a unit makes systemd read its files again.
        yield fail(f"{host.name}: packages {', '.join(missing)}: {refused}")
        return
    yield FunctionCommand(_install, (missing,), {})


def _install(state: Any, host: Any, missing: list[str]) -> bool:
    names = " ".join(shlex.quote(name) for name in missing)
    install = (
        "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-upgrade --no-install-recommends "
        f"-o DPkg::Lock::Timeout=300 {names} >/dev/null"
    )
    ok, said = shell(
        host, f"apt-get update -qq -o DPkg::Lock::Timeout=300; {undo.installing(missing)}; {install}"
    )
    if ok:
        return True
    errors = [line for line in said.splitlines() if line.startswith("E:")] or said.splitlines()[-1:]
    return report_failure(
        host,
        f"{host.name}: packages: found apt failing: {' '.join(errors)[-300:]}; wanted {', '.join(missing)}; "
        "mend apt's sources, or take the name out of group_data",
    )


@operation()
def user_may_use_docker(user: str) -> Commands:
    """Put the user into the group docker (made where it is missing); the connection is renewed then, so that
    the membership counts in the same run.

    No-op when the user is in the group.
    """
    account = host.get_fact(Account, user=user)
    if not account["exists"]:
        yield fail(
            f"{host.name}: user: found no user {user}; wanted the one that owns the daily work; correct "
            "`user` in group_data, or create the user on the host"
        )
        return
    if "docker" in account["groups"]:
        host.noop(f"{user} is in group docker")
        return
    drift.differs(f"user {user}", "not in group docker", "in group docker")
    if not account["docker"]:
        yield StringCommand(f"{undo.did('group', 'docker')} && groupadd --system docker")
    yield StringCommand(f"{undo.did('member', f'{user}:docker')} && usermod -aG docker {shlex.quote(user)}")
    yield FunctionCommand(_reconnect, (), {})


def _reconnect(state: Any, host: Any) -> bool:
    """A new session, for a login's groups are those of its beginning."""
    old = getattr(host.connector, "client", None)
    host.disconnect()
    host.connect(reason="group docker")
    if not host.connected:
        return report_failure(
            host,
            f"{host.name}: host: found no answer to a second connection; wanted the new group to count; "
            "run again",
        )
    if old is not None and old is not getattr(host.connector, "client", None):
        old.close()
    return True


@operation()
def settings_in_place(site: Site) -> Commands:
    """Write the files of the declared settings, remove those of settings that are off, make both take effect.

    No-op when every file is as declared, none is there whose knob is off, and units, kernel and systemd say
    the same. Fails before any change where systemd would have to read its files again under a container that
    would lose the GPU by it.
    """
    state = _machine(site)
    files = host_files(site.data, site.user)
    found = host.get_fact(FileStates, paths=list(machine.FILES.values()))
    changed = [
        topic
        for topic, file in files.items()
        if found.get(machine.FILES[topic]) != (file.wanted() if file else None)
    ]
    steps = machine.steps({*changed, *state.due}, site.data, state)
    if not changed and not steps and not state.due:
        host.noop("all settings are in place")
        return
    for step in steps:
        if step.differs:
            drift.differs(*step.differs)
    for topic in sorted(state.due):
        drift.differs(machine.FILES.get(topic, topic), "written, and not in effect yet", "in effect")
    reloads = machine.reload_needed({*changed, *state.due}, state) or any(step.reloads for step in steps)
    if reloads and (refused := machine.reload_refused(state)):
        yield fail(f"{host.name}: host: {refused}")
        return
    if "swap-off" in changed and files["swap-off"] and (problem := machine.swap_problem(host.name, state)):
        yield fail(str(problem))
        return
    if changed:
        # A run that ends in the middle leaves the marks; a boot puts all files into effect and forgets them.
        yield StringCommand(f"mkdir -p {DUE} && touch {' '.join(f'{DUE}/{topic}' for topic in changed)}")
    for topic in changed:
        file, path = files[topic], machine.FILES[topic]
        if file is None:
            drift.differs(path, "a file", "none, for its knob is off")
            yield from (_command(step, state) for step in machine.before_removal(topic))
            folder = path.rpartition("/")[0]
            # The folder of a drop-in is there for it alone; others' drop-ins keep it.
            rmdir = f"; rmdir {folder} 2>/dev/null; true" if folder.endswith(".service.d") else ""
            yield StringCommand(f"rm -f {path}{rmdir}")
            continue
        if topic == "sudoers":
            # A mistake there locks everybody out of sudo, so it never lands.
            yield StringCommand("visudo -cqf -", _stdin=file.content.decode())
        yield file.write()
    yield from (_command(step, state) for step in steps)
    if changed or state.due:
        yield StringCommand(f"rm -rf {DUE}")


def _command(step: machine.Step, state: machine.Machine) -> StringCommand:
    notes = []
    if step.unit:
        unit = state.unit(step.unit)
        notes.append(undo.did("unit", step.unit, f"{unit.enabled or 'not-found'} {unit.active}"))
    if step.restarted:
        notes.append(undo.did("restarted", step.restarted))
    if step.target:
        notes.append(undo.did("target", "default", step.target))
    if step.sysctl:
        notes.append(undo.did("sysctl", step.sysctl, str(state.swappiness)))
    return StringCommand(" && ".join([*notes, step.command]))


@operation()
def packages_held(site: Site) -> Commands:
    """Hold what is installed of kernel and driver, all of it or none, against upgrades of a part.

    No-op when apt holds all of them (or none is installed).
    """
    state = _machine(site)
    wanted = machine.to_hold(site.data.held_packages, state.installed)
    missing = [name for name in wanted if name not in state.held]
    if not missing:
        host.noop(f"{len(wanted)} packages of kernel and driver are held")
        return
    for name in missing:
        drift.differs(f"package {name}", "not held", "held")
    notes = " && ".join(undo.did("hold", name) for name in missing)
    yield StringCommand(f"{notes} && apt-mark hold {' '.join(shlex.quote(name) for name in missing)}")


@deploy("host")
def deploy_host(site: Site) -> None:
    """Packages are only ever added; groups of others stay; files are whole files of ours."""
    packages_installed(name="packages are there", site=site)
    user_may_use_docker(name=f"{site.user} may use Docker", user=site.user)
    settings_in_place(name="settings are in place", site=site)
    packages_held(name="kernel and driver are held", site=site)
