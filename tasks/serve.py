"""Serving: a release's files on every rank, one unit a rank, activation in rank order by one coordinator."""

from __future__ import annotations

import time
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import machine
from tasks import drift, undo
from tasks.facts import ServeState
from tasks.files import Commands
from tasks.machine import MachineState
from tasks.operations import managed_files
from tasks.remote import POLL_SECONDS, fail, progress, report_failure, shell
from tasks.site import UNIT, Site

# What the unit calls its container.
CONTAINER = "sparkstack-serve"


def serving(site: Site) -> bool:
    """True when every rank runs this release with its present fabric environment."""
    states = [rank.get_fact(ServeState, config_dir=site.data.config_dir) for rank in site.hosts]
    return all(
        state.get("release") == site.release_id
        and state.get("unit") == "active"
        and state.get("fabric") == "same"
        for state in states
    )


@operation()
def unit_known() -> Commands:
    """Make systemd read the unit's file again, and start the unit at boot.

    No-op when it has read it and the unit is enabled; and while a container of ours would lose the GPU by it:
    then it is done when the ranks are stopped, which a changed unit makes a release of its own do. Another's
    container that uses the GPU fails the host.
    """
    state = host.get_fact(MachineState, packages=[], units=[UNIT])
    unit = state.unit(UNIT)
    if not unit.stale and unit.enabled == "enabled":
        host.noop("systemd knows the unit")
        return
    drift.differs(
        UNIT,
        f"{unit.enabled or 'unknown'}{', an older file in use' if unit.stale else ''}",
        "enabled, the present file in use",
    )
    if refused := machine.reload_refused(state, apart_from=[CONTAINER]):
        yield fail(f"{host.name}: serve: {refused}")
    elif machine.reload_refused(state):
        host.noop("waits until the ranks are stopped: the container that serves would lose the GPU")
    else:
        yield StringCommand(_make_known(unit))


def _make_known(unit: machine.Unit) -> str:
    note = undo.did("unit", UNIT, f"{unit.enabled or 'not-found'} {unit.active}")
    return f"{note} && systemctl daemon-reload && systemctl enable --quiet {UNIT}"


@operation()
def activated(site: Site) -> Commands:
    """Make this release the one that serves, on all ranks, from the head's place in the run.

    No-op when on every rank `current` is this release, started with the present fabric.env, and the unit
    is active (on the head: after a real completion).
    """
    if not site.is_head:
        return
    if serving(site):
        host.noop(f"release {site.release_id} serves on every rank")
        return
    _tell(site)
    yield FunctionCommand(_activate, (site,), {})


def _tell(site: Site) -> None:
    """Which rank does not serve this release, and why not."""
    for rank in site.hosts:
        state = rank.get_fact(ServeState, config_dir=site.data.config_dir)
        for thing, key, wanted in (
            (f"{site.data.config_dir}/current", "release", site.release_id),
            (UNIT, "unit", "active"),
        ):
            if state.get(key) != wanted:
                drift.differs(thing, state.get(key) or "nothing", wanted, host=rank.name)
        if state.get("fabric") != "same":
            drift.differs(
                f"{site.data.config_dir}/fabric.env",
                "another one than the rank was started with",
                "the same",
                host=rank.name,
            )


def _activate(state: Any, host: Any, site: Site) -> bool:
    """Stop all ranks (head first), switch `current` on each by one rename, start workers, then the head."""
    config = site.data.config_dir
    release = f"{config}/releases/{site.release_id}"
    if not stop_ranks(host, site):
        return False
    for rank in site.hosts:
        if not _known(host, rank):
            return False
    for rank in site.hosts:
        ok, said = shell(
            rank,
            f"systemctl reset-failed {UNIT} 2>/dev/null; cp {config}/fabric.env {release}/fabric.env"
            f" && ln -sfn {release} {config}/current.new && mv -fT {config}/current.new {config}/current",
        )
        if not ok:
            return report_failure(host, f"{rank.name}: `current` could not be switched; found: {said}")
    return start_ranks(host, site)


def stop_ranks(host: Any, site: Site) -> bool:
    """Stop the units of all ranks, the head's first: it stops taking requests before a worker goes."""
    progress.update(f"{site.head.name} serve", "stop", 0, None, "s", "stopping the ranks")
    for rank in site.hosts:
        ok, said = shell(rank, f"systemctl stop {UNIT}")
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be stopped; found: {said}")
    return True


def start_ranks(host: Any, site: Site) -> bool:
    """Start the workers' units, then the head's, and wait until the head has answered a completion."""
    for rank in [*site.hosts[1:], site.head]:
        ok, said = shell(rank, f"systemctl start --no-block {UNIT}")
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be started; found: {said}")
    return _follow_start(site, f"{site.head.name} serve")


def _known(host: Any, rank: Any) -> bool:
    """What `unit_known` left until the ranks are stopped."""
    state = rank.get_fact(MachineState, packages=[], units=[UNIT])
    unit = state.unit(UNIT)
    if not unit.stale and unit.enabled == "enabled":
        return True
    if refused := machine.reload_refused(state):
        return report_failure(host, f"{rank.name}: serve: {refused}")
    ok, said = shell(rank, _make_known(unit))
    return ok or report_failure(host, f"{rank.name}: systemd could not read {UNIT} again; found: {said}")


def _follow_start(site: Site, label: str) -> bool:
    """Wait until the head's unit is active; a rank whose unit starts again and again ends the wait."""
    began = time.monotonic()
    limit = site.recipe.serve.ready_timeout_s
    last_line = "docker logs --tail 1 sparkstack-serve 2>/dev/null | cut -c1-160"
    while True:
        ok, text = shell(site.head, f"systemctl show -p ActiveState --value {UNIT}; {last_line}; true")
        if not ok:
            progress.finish(label)
            return report_failure(
                site.head, f"{site.head.name}: serve: the host stopped answering; run again"
            )
        state, *said = text.splitlines() or [""]
        if state == "active":
            progress.finish(label)
            return True
        waited = time.monotonic() - began
        progress.update(label, "start", waited, limit, "s", said[0] if said else "")
        restarts = {rank.name: _restarts(rank) for rank in site.hosts}
        broken = [name for name, count in restarts.items() if count >= 3]
        if broken or waited > limit:
            progress.finish(label)
            name = broken[0] if broken else site.head.name
            rank = next(rank for rank in site.hosts if rank.name == name)
            _, journal = shell(
                rank,
                f"journalctl -u {UNIT} -n 60 -o cat --no-pager | grep -iE "
                "'error|exception' | grep -v 'No such container' | tail -n 2 | cut -c1-300; true",
            )
            found = " / ".join(journal.split("\n")) or "no error in its journal"
            return report_failure(
                site.head,
                f"{name}: serve: found {found}; wanted a completion within {limit} s; "
                f"see `journalctl -u {UNIT}` there",
            )
        time.sleep(POLL_SECONDS)


def _restarts(rank: Any) -> int:
    ok, text = shell(rank, f"systemctl show -p NRestarts --value {UNIT}")
    return int(text) if ok and text.strip().isdigit() else 0


@deploy("serve")
def deploy_serve(site: Site) -> None:
    """After this `current` is the release on every rank, and the head has answered a completion."""
    managed_files(name="release files", files=site.release_files)
    managed_files(name="unit file", files=[site.unit_file])
    unit_known(name="systemd knows the unit")
    activated(name="release serves on all ranks", site=site)
