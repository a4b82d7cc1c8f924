"""What tells a busy engine from a dead one that has no counters in /metrics: llama.cpp's slots, and the
processor time of its container."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onhost.docker_cli import docker

SLOT_COUNTS = ("n_decoded", "n_past", "n_prompt_tokens_processed")
"""What work on a request moves, and what a request that only waits, or fails at once, does not."""
SHARE = 0.05
"""Of one processor. A thread that drives a GPU takes nearly all of one, or tens of per cent where it sleeps
between steps; a server that only answers questions takes less than one per cent."""


@dataclass(frozen=True)
class Spent:
    """So much processor time (s) had been spent when the clock (monotonic, s) said `at`."""

    seconds: float
    at: float

    def works_since(self, before: Spent | None) -> bool:
        if before is None or self.at <= before.at:
            return False
        return self.seconds - before.seconds >= SHARE * (self.at - before.at)


def slots_of(page: Any) -> tuple[float, ...] | None:
    """The counts in llama.cpp's answer to /slots; None where it is another one."""
    if not isinstance(page, list) or not page or not all(isinstance(slot, dict) for slot in page):
        return None
    found: list[float] = []

    def gather(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(
                float(count)
                for name, count in sorted(value.items())
                if name in SLOT_COUNTS and isinstance(count, int)
            )
            value = [part for _, part in sorted(value.items())]
        if isinstance(value, list):
            for part in value:
                gather(part)

    gather(page)
    return tuple(found) or None


PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def spent_by(container: str, proc: Path = PROC, groups: Path = GROUPS) -> Spent | None:
    """The processor time of all that runs in a container, by its control group; None where that says none."""
    done = docker("container", "inspect", "-f", "{{.State.Pid}}", container)
    pid = done.stdout.strip()
    if done.returncode or not pid.isdigit() or pid == "0":
        return None
    try:
        lines = (proc / pid / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        seconds = None
        if not controllers:  # version 2
            seconds = _microseconds(groups / path.lstrip("/") / "cpu.stat")
        elif "cpuacct" in controllers.split(","):
            seconds = _nanoseconds(groups / controllers / path.lstrip("/") / "cpuacct.usage")
        if seconds is not None:
            return Spent(seconds, time.monotonic())
    return None


def _microseconds(path: Path) -> float | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _nanoseconds(path: Path) -> float | None:
    try:
        return int(path.read_text(encoding="ascii")) / 1e9
    except (OSError, ValueError):
        return None
