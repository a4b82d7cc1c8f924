"""Ctrl-C while something is followed: asked once, it ends in good order; asked twice, at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Heard:
    """Whether Ctrl-C was pressed since."""

    def __init__(self) -> None:
        self.pressed = False
        self._told = False

    def once(self) -> bool:
        """True at the first call after Ctrl-C, and never again."""
        told, self._told = self._told, self.pressed
        return self.pressed and not told


@contextmanager
def heard() -> Iterator[Heard]:
    """The first Ctrl-C is noted; a second one does what it did before (pyinfra ends at once)."""
    note = Heard()

    def handle(number: int, frame: Any) -> None:
        note.pressed = True
        signal.signal(signal.SIGINT, before)

    # None: of a handler that is not Python's.
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    try:
        signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: nobody presses a key there
        yield note
        return
    try:
        yield note
    finally:
        signal.signal(signal.SIGINT, before)
