"""Ctrl-C while something is followed: asked once, it ends in good order; asked twice, at once.

So it is with SIGTERM, and with SIGHUP, by which a terminal that closes says so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP, as of a terminal that closed",
}


class Heard:
    """Whether Ctrl-C was pressed since, or a signal to end came; `name` says which in words."""

    def __init__(self) -> None:
        self.pressed = False
        self.name = ""
        self._told = False

    def once(self) -> bool:
        """True at the first call after it, and never again."""
        told, self._told = self._told, self.pressed
        return self.pressed and not told


@contextmanager
def heard() -> Iterator[Heard]:
    """The first one is noted; a second Ctrl-C or SIGTERM does what it did before (pyinfra ends at once). A
    second SIGHUP does nothing, for shell and kernel may both send one; nor does a signal that was ignored
    before (nohup)."""
    note = Heard()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def handle(number: int, frame: Any) -> None:
        if not note.pressed:
            note.pressed, note.name = True, NAMES[signal.Signals(number)]
            restore(signal.SIGINT, signal.SIGTERM)
        if number == signal.SIGHUP:
            _leave(terminals)

    def restore(*numbers: signal.Signals) -> None:
        for number in numbers:
            if number in before:
                signal.signal(number, before[number])

    # None: of a handler that is not Python's.
    before: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.getsignal(signal.SIGINT) or signal.default_int_handler
    }
    for number in (signal.SIGTERM, signal.SIGHUP):
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
            before[number] = signal.SIG_DFL if handler is None else handler
    try:
        for number in before:
            signal.signal(number, handle)
    except ValueError:  # not the main thread: no signal comes there
        yield note
        return
    try:
        yield note
    finally:
        restore(*before)


def _leave(terminals: list[int]) -> None:
    """What is written to a terminal that is gone fails, and the report is still to come: it goes nowhere."""
    gone = [number for number in terminals if not os.isatty(number)]
    if gone:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in gone:
            os.dup2(nowhere, number)
        os.close(nowhere)
