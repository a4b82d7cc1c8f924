"""Serving: a release's files on every rank, one unit a rank, activation in rank order by one coordinator."""

from __future__ import annotations

import time
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation
from pyinfra.operations import systemd

from tasks.facts import ServeState
from tasks.files import Commands
from tasks.operations import managed_files
from tasks.remote import POLL_SECONDS, progress, report_failure, shell
from tasks.site import UNIT, Site


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
    yield FunctionCommand(_activate, (site,), {})


def _activate(state: Any, host: Any, site: Site) -> bool:
    """Stop all ranks (head first), switch `current` on each by one rename, start workers, then the head."""
    config = site.data.config_dir
    release = f"{config}/releases/{site.release_id}"
    label = f"{host.name} serve"
    progress.update(label, "stop", 0, None, "s", "stopping the ranks")
    for rank in site.hosts:
        ok, said = shell(rank, f"systemctl stop {UNIT}")
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be stopped; found: {said}")
    for rank in site.hosts:
        ok, said = shell(
            rank,
            f"systemctl reset-failed {UNIT} 2>/dev/null; cp {config}/fabric.env {release}/fabric.env"
            f" && ln -sfn {release} {config}/current.new && mv -fT {config}/current.new {config}/current",
        )
        if not ok:
            return report_failure(host, f"{rank.name}: `current` could not be switched; found: {said}")
    for rank in [*site.hosts[1:], site.head]:
        ok, said = shell(rank, f"systemctl start --no-block {UNIT}")
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be started; found: {said}")
    return _follow_start(site, label)


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
    unit = managed_files(name="unit file", files=[site.unit_file])
    systemd.daemon_reload(name="systemd reads the unit file", _if=unit.did_change)
    systemd.service(name="unit starts at boot", service=UNIT, running=None, enabled=True)
    activated(name="release serves on all ranks", site=site)
