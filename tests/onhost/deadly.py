"""Processes that are killed, at a place of a test's choice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onhost import jobs


def in_a_child(prepare: Callable[[], None], plan: Path) -> int:
    """Forks a process for the job, to be killed; `prepare` changes things in it first. Returns its id."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            prepare()
            os._exit(jobs.main(str(plan)))
        finally:
            os._exit(99)
    return child


def end_of(child: int) -> int:
    """Its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Deadly:
    """Counts the moments at which a crash may leave something half-done, and ends the process at one."""

    NAMES = ("fsync", "replace", "rename", "link", "unlink")

    def __init__(self, at: int | None, told: Path) -> None:
        self.at, self.seen, self.told = at, 0, told
        for name in self.NAMES:
            setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.seen += 1
            if self.seen == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.at is None:
                self.told.write_text(str(self.seen))
            return real(*arguments, **more)

        return call
