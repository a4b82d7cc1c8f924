"""What onhost.staging.ranged and the ways to open a URL agree on: answers, failures, and what is wanted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

from onhost.plan import JobError

LONGEST_WAIT = 60.0  # s that a server may ask us to wait; where it asks more, the run ends and says so


class Transfer(OSError):
    """The connection failed, stalled or was cut: worth another attempt. `host`: who it was with."""

    def __init__(self, what: str, host: str | None = None) -> None:
        super().__init__(what)
        self.host = host


class Body(Protocol):
    """An answer whose body has not been read yet."""

    status: int

    def header(self, name: str) -> str | None:
        """A header's value."""

    def chunks(self) -> Iterator[memoryview]:
        """The body; each piece is valid until the next. Transfer where it is cut."""


Opener = Callable[[str, str | None], AbstractContextManager[Body]]  # (URL, Range header or None)


@dataclass
class Wanted:
    """A file to fetch: its name, where it is, its size in bytes, and how to tell that it is right.

    `urls` in the order in which to ask: the next one where one refuses or stays silent. `check` gets the
    complete file and returns None, or what is wrong with it. `refused` makes the line for a status, `lost`
    the one for a connection that failed (None: a general one). `arrived` is called when the file is at its
    `target` (on one file system with `parts`). `key` is the caller's own name for it.
    """

    name: str
    urls: Sequence[str]
    size: int
    check: Callable[[Path], str | None]
    target: Path
    parts: Path
    refused: Callable[[int, Body], JobError]
    lost: Callable[[Transfer], JobError | None] = lambda _error: None
    arrived: Callable[[], None] = lambda: None
    key: Any = None


@dataclass
class Answer:
    """A Body made of a status, headers (lower case) and a way to iterate."""

    status: int
    headers: Mapping[str, str]
    pieces: Callable[[], Iterator[memoryview]]

    def header(self, name: str) -> str | None:
        """A header's value."""
        return self.headers.get(name.lower())

    def chunks(self) -> Iterator[memoryview]:
        """The body."""
        return self.pieces()


def asked_wait(body: Body) -> float:
    """The s that an answer asks to wait before the next attempt; 0 where it asks nothing."""
    return wait_of(body.header("retry-after"), body.header("ratelimit"))


def wait_of(retry_after: str | None, ratelimit: str | None) -> float:
    """The s that headers ask for: Retry-After as seconds or as a date, or the hub's `RateLimit: …;t=S`."""
    asked = (retry_after or "").strip()
    limit = re.search(r"\bt=(\d+)", ratelimit or "")
    if asked.isdigit():
        return float(asked)
    if limit:
        return float(limit[1])
    try:
        return max(parsedate_to_datetime(asked).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, IndexError):
        return 0.0
