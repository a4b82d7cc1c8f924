"""A lock that says who holds it, so that whoever comes second can be told whom to wait for."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onhost.files import placed, write_all


class Held(Exception):
    """Somebody else has the lock; the text names process, host and since when (UTC)."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file at `path`; Held where another process does. It ends with the process, however."""
    with path.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise Held(lock.read(200).strip() or "a process that has not said its name") from None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        words = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        with placed(path):
            lock.truncate(0)
            # Past the text layer, which would try again on closing what a full disk did not take.
            write_all(lock.fileno(), words.encode())
        yield
