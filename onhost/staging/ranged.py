"""Files of known size over HTTP: in ranges, several at once, going on after a kill, verified at the end.

A file grows as `<name>.part` in the parts folder, with `<name>.segments` beside it: the numbers of the
segments that are there. Segments come in any order. When all are there the content is verified, and only then
moved to its place.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from onhost.plan import JobError

SEGMENT = 64 << 20  # bytes; what a kill may cost, times the streams
ATTEMPTS = 5  # in a row without a byte
LONGEST_WAIT = 60.0  # s that a server may ask us to wait


class Transfer(OSError):
    """The connection failed, stalled or was cut: worth another attempt."""


class Body(Protocol):
    """An answer whose body has not been read yet."""

    status: int

    def header(self, name: str) -> str | None:
        """A header's value."""

    def chunks(self) -> Iterator[memoryview]:
        """The body; each piece is valid until the next. Transfer where it is cut."""


Opener = Callable[[str, str | None], AbstractContextManager[Body]]  # (URL, Range header or None)
Refusal = Callable[[int, str, Body], JobError]  # (status, file, answer) → what the user is told


@dataclass
class Wanted:
    """A file to fetch: its relative name, where it is, its size in bytes, and how to tell that it is right.

    `check` gets the complete file and returns None, or what is wrong with it.
    """

    name: str
    url: str
    size: int
    check: Callable[[Path], str | None]


@dataclass
class _State:
    wanted: Wanted
    part: Path
    journal: Path
    left: set[int]
    lock: threading.Lock = field(default_factory=threading.Lock)


class Fetcher:
    """Fetches files into `folder`; parts lie in `parts` (same file system)."""

    def __init__(
        self,
        opener: Opener,
        folder: Path,
        parts: Path,
        *,
        streams: int,
        stop: threading.Event,
        on_bytes: Callable[[int], None],
        refusal: Refusal,
        segment: int = SEGMENT,
        pause: float = 1.0,
    ) -> None:
        self._opener = opener
        self._folder = folder
        self._parts = parts
        self._streams = streams
        self._stop = stop
        self._on_bytes = on_bytes
        self._refusal = refusal
        self._segment = segment
        self._pause = pause  # s before the second attempt; doubles
        self._bad: dict[str, str] = {}

    def fetch(self, files: Sequence[Wanted]) -> None:
        """Fetches all files. One whose content is wrong is fetched once more, whole; then JobError.

        Bytes that lie there from an earlier run are reported through `on_bytes` like fetched ones.
        """
        todo = list(files)
        for _ in range(2):
            self._bad = {}
            self._round(todo)
            todo = [file for file in todo if file.name in self._bad]
            if not todo:
                return
        name, fault = next(iter(self._bad.items()))
        raise JobError(
            f"found {name} with {fault}, twice; wanted the content that its source announces; "
            "check the source (a mirror or the head's disk) and run again"
        )

    def _round(self, files: Sequence[Wanted]) -> None:
        self._parts.mkdir(parents=True, exist_ok=True)
        pool = ThreadPoolExecutor(self._streams, thread_name_prefix="fetch")
        futures: list[Future[None]] = []
        try:
            for file in files:
                state = self._open(file)
                if state.left:
                    futures += [pool.submit(self._one, state, number) for number in sorted(state.left)]
                else:
                    futures.append(pool.submit(self._complete, state))
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    def _open(self, file: Wanted) -> _State:
        base = quote(file.name, safe="")
        part, journal = self._parts / f"{base}.part", self._parts / f"{base}.segments"
        count = -(-file.size // self._segment)
        have: set[int] = set()
        if part.exists() and part.stat().st_size == file.size and journal.exists():
            lines = journal.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
            # The first line says for which cut of which file the numbers stand.
            if lines and lines[0] == self._stamp(file):
                have = {int(line) for line in lines[1:] if line.isdigit() and int(line) < count}
        if not have:
            journal.unlink(missing_ok=True)
            with part.open("wb") as out:
                out.truncate(file.size)
            journal.write_text(self._stamp(file) + "\n", encoding="ascii")
        for number in have:
            self._on_bytes(self._length(file, number))
        return _State(file, part, journal, set(range(count)) - have)

    def _stamp(self, file: Wanted) -> str:
        return f"{file.size} {self._segment}"

    def _length(self, file: Wanted, number: int) -> int:
        return min(self._segment, file.size - number * self._segment)

    def _one(self, state: _State, number: int) -> None:
        begin = number * self._segment
        end = begin + self._length(state.wanted, number)
        try:
            with state.part.open("r+b", buffering=0) as out:
                self._range(state.wanted, out.fileno(), begin, end)
        except OSError as error:
            error.filename = error.filename or str(state.part)  # a full disk is told by its place
            raise
        with state.lock:
            with state.journal.open("a", encoding="ascii") as journal:
                journal.write(f"{number}\n")
            state.left.discard(number)
            complete = not state.left
        if complete:
            self._complete(state)

    def _range(self, file: Wanted, out: int, at: int, end: int) -> None:
        """Fetches [at, end), going on where a cut stream ended; JobError after ATTEMPTS without a byte."""
        failures = 0
        fault = ""
        while at < end:
            if self._stop.is_set():
                raise JobError("found the job stopping; wanted to go on; start it again")
            if failures:
                self._stop.wait(min(self._pause * 2 ** (failures - 1), 8 * self._pause))
            if failures >= ATTEMPTS:
                raise JobError(
                    f"found {fault} for {file.name}, {ATTEMPTS} times; wanted its bytes; "
                    "check the network and run again, what is here is kept"
                )
            before = at
            try:
                whole = at == 0 and end == file.size
                with self._opener(file.url, None if whole else f"bytes={at}-{end - 1}") as body:
                    if body.status in {408, 429, 500, 502, 503, 504}:
                        fault = f"HTTP {body.status}"
                        failures += 1
                        if failures >= ATTEMPTS:
                            raise self._refusal(body.status, file.name, body)
                        self._stop.wait(asked_wait(body))
                        continue
                    self._expect(file, body, whole)
                    for chunk in body.chunks():
                        if self._stop.is_set() or at + len(chunk) > end:
                            break
                        at += _pwrite(out, chunk, at)
                        self._on_bytes(len(chunk))
                if at < end:
                    fault = "a stream that was cut"
            except Transfer as error:
                fault = str(error)
            if at < end:
                failures = 1 if at > before else failures + 1

    def _expect(self, file: Wanted, body: Body, whole: bool) -> None:
        size: str | None
        if body.status == 416:  # the file there ends before this range
            size = (body.header("content-range") or "").rpartition("/")[2]
        elif body.status not in {200, 206}:
            raise self._refusal(body.status, file.name, body)
        elif whole and body.status == 200:
            size = body.header("content-length")
        elif body.status == 206:
            size = (body.header("content-range") or "").rpartition("/")[2]
        else:
            raise JobError(
                f"found a server that ignores Range for {file.name}; wanted status 206; use another mirror"
            )
        if size is not None and size.isdigit() and int(size) != file.size:
            raise JobError(
                f"found {size} bytes announced for {file.name}; wanted {file.size}; the source has changed: "
                "check it (a mirror may be out of date) and run again"
            )

    def _complete(self, state: _State) -> None:
        file = state.wanted
        fault = file.check(state.part)
        if fault is None:
            target = self._folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            state.part.replace(target)
        else:
            state.part.unlink()
            self._bad[file.name] = fault
            self._on_bytes(-file.size)
        state.journal.unlink(missing_ok=True)


def asked_wait(body: Body) -> float:
    """The s that a server asks to wait: Retry-After, or the hub's `RateLimit: …;t=S`; 0 without, bounded."""
    asked = body.header("retry-after") or ""
    limit = re.search(r"\bt=(\d+)", body.header("ratelimit") or "")
    if not asked.isdigit():
        asked = limit[1] if limit else "0"
    return min(float(asked), LONGEST_WAIT)


def _pwrite(handle: int, data: memoryview, at: int) -> int:
    total = len(data)
    while data:
        done = os.pwrite(handle, data, at)
        data, at = data[done:], at + done
    return total


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
