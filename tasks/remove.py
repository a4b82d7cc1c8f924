"""Takes back all that `deploy.py` did: what runs, what is in Docker, what is on disk, what was set.

Reads the notes of `tasks/undo.py`, not the declaration: it works after a partial deploy, with a recipe that
no longer loads, and for things that an earlier declaration asked for. The notes go last, so a removal that
was cut off is finished by the next one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pyinfra import host, inventory
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import daemon_json, docker_settings, knobs, netplan
from sparkstack.errors import Problem
from sparkstack.units import bytes_text
from tasks import declared, undo
from tasks.activation import stop_words
from tasks.docker import Others
from tasks.facts import Text, UnitState
from tasks.files import Commands
from tasks.machine import MachineState
from tasks.put_back import drop, forget, purge, restore, take_back, tell_once, undo_deed
from tasks.remote import fail
from tasks.remove_docker import daemon_json_back, data_roots_gone, images_gone
from tasks.remove_fabric import fabric_back, is_theirs
from tasks.remove_facts import Jobs, Leavings, is_ours
from tasks.site import UNIT, SiteError
from tasks.undo import Undo

UNIT_PATH = f"/etc/systemd/system/{UNIT}"
# The knobs of undo.OWN's folders, in its order.
HOMES = ("config_dir", "state_dir", "install_dir")


@dataclass(frozen=True)
class Removal:
    """What a user asked for, as one host sees it."""

    data: Any
    is_head: bool
    checkpoints: bool

    @property
    def restart(self) -> bool:
        """May Docker's restart stop containers of others?"""
        return knobs.switched_on(self.data, "restart_serving")


def _folders(notes: dict[str, Any]) -> list[list[str]]:
    """[knob, path, the nearest folder that was there] of all that deployments used."""
    noted = [[before.partition(" ")[0], path, before.partition(" ")[2]] for path, before in notes.items()]
    return [*noted, *([knob, path, ""] for knob, path in zip(HOMES, undo.OWN, strict=True))]


@operation()
def others_asked(removal: Removal) -> Commands:
    """Stop before anything is changed where containers of others use the GPU, or run under a Docker that
    would restart: that ends them, and systemd reading its files again takes the GPU from them. Never changes
    anything.
    """
    state = host.get_fact(MachineState, packages=[], units=[])
    others = [name for name in state.gpu_containers if not name.startswith("sparkstack-")]
    if others:
        yield fail(
            f"{host.name}: remove: found container {', '.join(others)} using the GPU; wanted none of others "
            "while Docker restarts; stop it and run again"
        )
        return
    if removal.restart or host.get_fact(Text, path=f"{undo.ROOT}/settings{daemon_json.PATH}") is None:
        return
    problem = docker_settings.restart_refused(host.name, {}, {host.name: host.get_fact(Others)}, False)
    if problem is not None:
        yield fail(str(problem))


@operation()
def serving_stopped(removal: Removal, head: bool) -> Commands:
    """Stop the serving unit, on the head or on the other ranks.

    No-op when it is inactive, and where this host is not meant.
    """
    if removal.is_head != head:
        return
    if host.get_fact(UnitState, unit=UNIT) == "inactive":
        host.noop(f"{UNIT} does not run")
        return
    # The head, where requests come, has been stopped before the others.
    stop = stop_words(idle=not head)
    yield StringCommand(f"{stop} && {{ systemctl reset-failed {UNIT} 2>/dev/null || true; }}")


@operation()
def jobs_ended() -> Commands:
    """Stop what jobs are under way. No-op when none is."""
    jobs = host.get_fact(Jobs)
    if not jobs:
        host.noop("no job is under way")
        return
    yield StringCommand("systemctl stop " + " ".join(map(shlex.quote, jobs)))


def _units(paths: list[str]) -> list[str]:
    """The units that files of ours directly in /etc/systemd/system define."""
    found = [PurePosixPath(path) for path in paths]
    kinds = (".service", ".timer", ".socket", ".path", ".mount", ".target")
    return [p.name for p in found if str(p.parent) == "/etc/systemd/system" and p.suffix in kinds]


@operation()
def files_back() -> Commands:
    """Put back every file that was there before us and remove every one that was not; units end first.

    No-op when all are as they were.
    """
    notes = host.get_fact(Undo)
    special = {daemon_json.PATH, netplan.PATH}
    back = sorted(
        path
        for path, same in notes["files"].items()
        if not same and path not in special and not is_theirs(path)
    )
    gone = sorted(path for path, gone in notes["absent"].items() if not gone and path not in special)
    if not notes["absent"].get(UNIT_PATH) and UNIT_PATH not in [*back, *gone]:
        # A deploy of before there were notes left it; nobody else has a unit of this name.
        gone += [UNIT_PATH] if host.get_fact(Text, path=UNIT_PATH) is not None else []
    if not back and not gone:
        host.noop("all files are as they were")
        return
    for unit in _units(gone):
        yield StringCommand(
            f"systemctl disable --now --quiet {unit}; systemctl reset-failed {unit} 2>/dev/null; true"
        )
    for path in back:
        yield StringCommand(restore(path))
    for path in gone:
        yield StringCommand(drop(path))
    if any(path.startswith("/etc/systemd/system/") for path in [*back, *gone]):
        yield StringCommand("systemctl daemon-reload")
    for unit in notes["did"].get("restarted", {}):
        yield StringCommand(f"systemctl try-restart {shlex.quote(unit)}; {forget('restarted', unit)}")


# Holds before packages, members before their group.
ORDER = ("hold", "unit", "package", "member", "user", "group", "target", "sysctl", "swap")


@operation()
def settings_back() -> Commands:
    """Take back holds, units, packages, group members, groups, the boot target, sysctls and swap, as noted.

    No-op when nothing is noted.
    """
    did = host.get_fact(Undo)["did"]
    deeds = [(kind, name, before) for kind in ORDER for name, before in did.get(kind, {}).items()]
    if not deeds:
        host.noop("nothing else is noted")
        return
    packages = [name for kind, name, _ in deeds if kind == "package"]
    for kind, name, before in deeds:
        if kind == "package":
            if packages:
                yield FunctionCommand(purge, (tuple(packages),), {})
                packages = []
        else:
            yield FunctionCommand(undo_deed, (kind, name, before, take_back(kind, name, before)), {})


@operation()
def folders_gone(removal: Removal) -> Commands:
    """Remove our folders, the notes last; downloads and checkpoints only where the user said so.

    No-op when nothing else of ours is there.
    """
    notes = host.get_fact(Undo)
    named = notes["did"].get("folder", {})
    folders = _folders(named)
    found = host.get_fact(Leavings, folders=[folder[:2] for folder in folders])
    stay = {} if removal.checkpoints else found["data"]
    if stay:
        tell_once(
            host,
            f"{host.name}: remove: kept {' and '.join(stay)} ({bytes_text(sum(stay.values()))}); to remove "
            "them too: --data checkpoints=yes",
        )
    doomed = [
        path for path in found["entries"] if path not in stay and not f"{undo.ROOT}/".startswith(f"{path}/")
    ]
    # Where the site named the folder of what stays, the note of that stays: no declaration may say it later.
    note = f"{undo.ROOT}/did/folder" if stay and named else ""
    only_note = not notes["files"] and not notes["absent"] and set(notes["did"]) == {"folder"}
    if not doomed and (undo.ROOT not in found["entries"] or (note and only_note)):
        host.noop("our folders are gone")
        return
    for path in doomed:
        yield StringCommand(f"rm -rf --one-file-system {shlex.quote(path)}")
    for _, path, was in folders:
        if was and not note:
            # One that the site named goes where we made it and it is empty, with what we made above it.
            yield StringCommand(
                f'd={shlex.quote(path)}; while [ "$d" != {shlex.quote(was)} ] && rmdir "$d" 2>/dev/null; '
                'do d=$(dirname "$d"); done; true'
            )
    parents = " ".join(shlex.quote(path) for _, path, _ in folders if is_ours(path))
    own = shlex.quote(str(PurePosixPath(undo.ROOT).parent))
    root = shlex.quote(undo.ROOT)
    but = shlex.quote(f"{note}/*")
    notes_gone = f"find {root} -type f ! -path {but} -delete" if note else f"rm -rf {root}"
    yield StringCommand(
        # The run's own lock stays for its end; a reboot takes that.
        "rm -rf /run/sparkstack-*; find /run/sparkstack -mindepth 1 ! -name run.lock -delete 2>/dev/null; "
        f"{notes_gone} && "
        f"rmdir --ignore-fail-on-non-empty {own} {parents} 2>/dev/null; true"
    )


def load() -> Removal:
    """What the user asked for. Errors: SiteError."""
    asked = str(host.data.get("checkpoints", "no")).lower()
    if asked not in ("yes", "no", "true", "false"):
        raise SiteError(str(Problem("--data checkpoints", repr(asked), "yes or no")))
    if mistakes := declared.problems(host):
        raise SiteError("\n".join(map(str, mistakes)))
    return Removal(host.data, next(iter(inventory)).name == host.name, asked in ("yes", "true"))


@deploy("remove")
def deploy_remove(removal: Removal) -> None:
    """After this the host is as it was, but for downloads and checkpoints, which stay unless asked for."""
    others_asked(name="nothing of others would stop", removal=removal)
    serving_stopped(name="serving ends on the head", removal=removal, head=True)
    serving_stopped(name="serving ends on the other ranks", removal=removal, head=False)
    jobs_ended(name="jobs have ended")
    images_gone(name="containers and images are gone", last=False)
    daemon_json_back(name="daemon.json is without our settings")
    images_gone(name="no image of ours is left", last=True)
    data_roots_gone(name="Docker's data is where it was")
    fabric_back(name="twins are without our addresses")
    files_back(name="files are as they were")
    settings_back(name="packages, groups and units are as they were")
    folders_gone(name="our folders are gone", removal=removal)
