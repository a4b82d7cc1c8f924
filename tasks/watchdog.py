"""The watchdog on a host: its files, and that it runs where the site wants it."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import StringCommand, operation

from sparkstack import machine
from tasks import drift, undo
from tasks.files import Commands, ManagedFile
from tasks.machine import MachineState
from tasks.site import UNIT, WATCHDOG, Site

# The serving unit and this one: asked together, for each question costs a host's time.
UNITS = {"packages": [], "units": [UNIT, WATCHDOG]}


def wanted(site: Site) -> bool:
    return bool(dict(site.data.watchdog).get("enabled", True))


def files(site: Site) -> list[ManagedFile]:
    """Its unit, where it is wanted, and the limits, which a rank's start reads in every case."""
    return site.watchdog_files if wanted(site) else site.watchdog_files[:1]


@operation()
def watched(site: Site) -> Commands:
    """Make the watchdog run, now and after each boot; where the site switched it off, stop it.

    No-op when it is so. The watchdog reads its limits at each look and ends by itself where its code was
    replaced, so a change of these is no change here. A new unit file waits, as that of the ranks does, while
    systemd must not read its files again.
    """
    state = host.get_fact(MachineState, **UNITS)
    unit = state.unit(WATCHDOG)
    if not wanted(site):
        if unit.enabled in ("enabled", "enabled-runtime") or unit.active not in ("inactive", "failed"):
            drift.differs(WATCHDOG, f"{unit.enabled} {unit.active}", "none")
            yield StringCommand(f"systemctl disable --now --no-reload --quiet {WATCHDOG}")
        else:
            host.noop("no watchdog is wanted")
        return
    if runs(unit):
        host.noop("the watchdog runs")
        return
    drift.differs(WATCHDOG, f"{unit.enabled or 'unknown'} {unit.active}", "enabled and active")
    if not unit.stale:
        # systemd reads a unit that it has not loaded yet by itself.
        yield StringCommand(_run(unit))
    elif machine.reload_refused(state):
        host.noop("waits until the ranks are stopped: the container that serves would lose the GPU")
    else:
        yield StringCommand(f"systemctl daemon-reload && {_run(unit)}")


def runs(unit: machine.Unit) -> bool:
    return not unit.stale and unit.enabled == "enabled" and unit.active == "active"


def _run(unit: machine.Unit) -> str:
    note = undo.did("unit", WATCHDOG, f"{unit.enabled or 'not-found'} {unit.active}")
    return f"{note} && systemctl enable --quiet --no-reload {WATCHDOG} && systemctl restart {WATCHDOG}"

