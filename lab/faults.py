"""Faults that the hub stand-in shows on demand, and its log of requests. Standard library only."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("status", "cut", "stall", "slow", "corrupt")


@dataclass
class Fault:
    """One fault, shown to the next `count` fitting requests (None: to all).

    `path` is a glob over the URL's path. A `status` fault answers with that status (and `headers`).
    The others act on GETs that deliver a file or a list: `cut` closes the connection after `after_bytes`,
    `stall` falls silent there for `seconds`, `corrupt` flips the byte there, `slow` sends `bytes_per_second`.
    Offsets count from the first byte of the answer.
    """

    path: str
    kind: str
    count: int | None = 1
    method: str | None = None
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    after_bytes: int = 0
    seconds: float = 3600.0
    bytes_per_second: int = 65536

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault kind {self.kind!r}; wanted one of {', '.join(KINDS)}")


@dataclass
class Faults:
    """The faults that are armed. Threads of the server share it."""

    _armed: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, described: Any) -> None:
        """Adds what a POST describes, one object or a list. Raises TypeError or ValueError on nonsense."""
        new = [Fault(**one) for one in (described if isinstance(described, list) else [described])]
        with self._lock:
            self._armed.extend(new)

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    def listed(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(fault) for fault in self._armed]

    def take(self, method: str, path: str, *, body: bool) -> Fault | None:
        """The first fault that fits, used up by one. `body`: this request is about to deliver a file."""
        with self._lock:
            for fault in self._armed:
                fits = fnmatch.fnmatchcase(path, fault.path) and fault.method in (None, method)
                if fits and (fault.kind == "status") is not body:
                    if fault.count is not None:
                        fault.count -= 1
                        if fault.count <= 0:
                            self._armed.remove(fault)
                    return fault
        return None


@dataclass
class Requests:
    """What was asked and what was sent, the last 20,000 requests."""

    _seen: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=20000))

    def add(self, method: str, path: str, range_header: str | None, status: int, sent: int) -> None:
        seen = {"t": time.time(), "method": method, "path": path, "range": range_header}
        self._seen.append({**seen, "status": status, "bytes": sent})

    def listed(self) -> list[dict[str, Any]]:
        return list(self._seen)

    def clear(self) -> None:
        self._seen.clear()
