"""The limits of a rank's start and of its watchdog: what `watchdog.json` says, by the names of the knob."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from onhost.plan import Plan


@dataclass(frozen=True)
class Limits:
    """All in s but `misses`. Each may be missing in the file, which an older version wrote without it.

    The watchdog's: between two looks; for one token; how many are missed before an engine is dead; for how
    long a rank may be gone; for how long an engine without counters may be busy; for how long a worker stays
    with a head that stops, at least (until then open requests may end there).

    A start's: for a Docker that runs and does not answer, or clears up after a kill; for a port whose holder
    is just ending; for memory that an engine before gives back; for how long a look at image, checkpoint and
    memory is good while a rank waits for others (who uses the host meanwhile fills the memory in minutes, and
    the look takes seconds); the longest pause after starts that did not serve.
    """

    interval: float = 15
    timeout: float = 30
    misses: int = 4
    away: float = 120
    busy: float = 3600
    head_stops: float = 60
    docker: float = 120
    port: float = 60
    memory: float = 180
    again: float = 300
    back_off: float = 60

    @classmethod
    def read(cls, path: Path) -> Limits:
        """Errors: JobError for no such file, or a wrong value in it."""
        plan = Plan.read(path)
        seconds = {
            one.name: plan.number(f"{one.name}_s", float(str(one.default)))
            for one in dataclasses.fields(cls)
            if one.name != "misses"
        }
        return cls(misses=plan.integer("misses", cls.misses), **seconds)
