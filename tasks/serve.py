"""Serving: a release's files on every rank, one unit a rank, activation in rank order by one coordinator."""

from __future__ import annotations

import shlex
import time
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import machine
from tasks import drift, image, undo
from tasks.facts import Completes, ServeState
from tasks.files import Commands
from tasks.machine import MachineState
from tasks.operations import managed_files
from tasks.remote import POLL_SECONDS, fail, progress, report_failure, shell
from tasks.site import UNIT, Site

# What the unit calls its container.
CONTAINER = "sparkstack-serve"

# A tiny completion takes well under a second; a head that waits for a dead worker answers never.
COMPLETION_SECONDS = 10


def _states(site: Site) -> list[dict[str, str]]:
    return [rank.get_fact(ServeState, config_dir=site.data.config_dir) for rank in site.hosts]


def _is_this(state: dict[str, str], site: Site) -> bool:
    return state.get("release") == site.release_id and state.get("fabric") == "same"


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

    No-op when on every rank `current` is this release, started with the present fabric.env, the unit is
    active, and the endpoint answers a completion now. A start of this release that is under way is joined.
    """
    if not site.is_head:
        return
    states = _states(site)
    units = [state.get("unit") for state in states]
    if all(_is_this(state, site) for state in states):
        if set(units) == {"active"} and host.get_fact(
            Completes,
            python=site.python,
            url=site.endpoint,
            model=site.served_model,
            seconds=COMPLETION_SECONDS,
        ):
            host.noop(f"release {site.release_id} serves on every rank")
            return
        if units[0] == "activating" and set(units) <= {"active", "activating"}:
            yield FunctionCommand(_join_start, (site,), {})
            return
    _tell(site, states)
    yield FunctionCommand(_activate, (site,), {})


def _tell(site: Site, states: list[dict[str, str]]) -> None:
    """Which rank does not serve this release, and why not."""
    for rank, state in zip(site.hosts, states, strict=True):
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


def _join_start(state: Any, host: Any, site: Site) -> bool:
    """Follow the start that an earlier run began; one that has failed already is begun anew."""
    if any(_restarts(rank) for rank in site.hosts):
        return _activate(state, host, site)
    return _follow_start(site, f"{host.name} serve")


def _missing(rank: Any, site: Site) -> str:
    """What a rank lacks to start this release, or "": asked before anything is stopped."""
    config = site.data.config_dir
    wanted = {
        f"{config}/releases/{site.release_id}/run": f"test -x {config}/releases/{site.release_id}/run",
        f"{config}/fabric.env": f"test -f {config}/fabric.env",
        f"image {site.image_tag}": f"docker image inspect {site.image_tag} >/dev/null 2>&1",
        f"checkpoint {site.checkpoint_id}": f"test -f {site.checkpoint_dir}/manifest.json",
    }
    asks = "; ".join(f"{command} || echo {shlex.quote(what)}" for what, command in wanted.items())
    ok, text = shell(rank, asks)
    return ", ".join(text.splitlines()) if ok else "answer"


def _activate(state: Any, host: Any, site: Site) -> bool:
    """Stop all ranks (head first), switch `current` on each by one rename, start workers, then the head."""
    config = site.data.config_dir
    release = f"{config}/releases/{site.release_id}"
    for rank in site.hosts:
        if missing := _missing(rank, site):
            return report_failure(
                host,
                f"{rank.name}: serve: found no {missing}; wanted all of release {site.release_id} "
                "before the present one stops; run all stages on all hosts",
            )
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
    image.recorded(name="image's check is in the release", site=site)
    managed_files(name="unit file", files=[site.unit_file])
    unit_known(name="systemd knows the unit")
    activated(name="release serves on all ranks", site=site)
