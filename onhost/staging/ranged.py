"""Files of known size over HTTP: in ranges, several at once, going on after a kill, verified at the end.

A file grows as `<name>.part` in its parts folder, with `<name>.segments` beside it: the numbers of the
segments that are on the disk. Segments come in any order. When all are there the content is verified, and
only then moved to its place.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from onhost.files import fsync_path, placed
from onhost.plan import JobError
from onhost.staging.transfer import LONGEST_WAIT, Body, Opener, Transfer, Wanted, asked_wait

SEGMENT = 64 << 20  # bytes; what a kill may cost, times the streams
ATTEMPTS = 5  # in a row without a byte
LEAST_RATE = 1024  # bytes a s; a stream below it for a whole stall time is as good as silent
NOT_YET = "x-not-yet"  # header of a 503: the sender will have the file, and is itself receiving it


@dataclass
class _State:
    wanted: Wanted
    part: Path
    journal: Path
    left: set[int]
    lock: threading.Lock = field(default_factory=threading.Lock)


def nobody_waits(_file: Wanted) -> None:
    """For callers that begin when all files are there."""


class Fetcher:
    """Fetches files, each to its target.

    `segment` in bytes; `pause` in s before a second attempt, doubling; `stall` in s: a stream that moves less
    than LEAST_RATE for so long is opened anew; `patience` in s that a sender may say "not yet".
    """

    def __init__(
        self,
        opener: Opener,
        *,
        streams: int,
        stop: threading.Event,
        on_bytes: Callable[[int], None],
        segment: int = SEGMENT,
        pause: float = 1.0,
        stall: float = 30.0,
        patience: float = 120.0,
    ) -> None:
        self._opener = opener
        self._streams = streams
        self._stop = stop
        self._on_bytes = on_bytes
        self._segment = segment
        self._pause, self._stall, self._patience = pause, stall, patience
        self._moved = time.monotonic()  # when the last byte or file came, of whatever file
        self._again: set[Path] = set()
        self._silent: set[str] = set()  # sources (address and port) that are not asked again
        self._idle = threading.Condition()
        self._open_tasks = 0
        self._error: BaseException | None = None

    def fetch(
        self,
        files: Iterable[Wanted],
        *,
        on_whole: Callable[[Wanted], None] = nobody_waits,
    ) -> None:
        """Fetches all files, in their order. One whose content is wrong is fetched once more; then JobError.

        `files` may take its time before it gives the next one (and then must look at the stop event);
        `on_whole` is called from a thread when a file is at its target, verified. Bytes that lie there from
        an earlier run are reported through `on_bytes` like fetched ones.
        """
        pool = ThreadPoolExecutor(self._streams, thread_name_prefix="fetch")
        self._moved = time.monotonic()
        try:
            for file in files:
                if self._error is not None:
                    break
                self._begin(pool, file, on_whole)
            with self._idle:
                while self._open_tasks and self._error is None:
                    self._idle.wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    def read(self, file: Wanted, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of a file, into memory; errors as for whole files."""
        handle = os.memfd_create("range")
        try:
            self._range(file, handle, begin, end)
            return os.pread(handle, end - begin, begin)
        finally:
            os.close(handle)

    def _begin(self, pool: ThreadPoolExecutor, file: Wanted, on_whole: Callable[[Wanted], None]) -> None:
        state = self._open(file)

        def complete() -> None:
            if self._complete(state):
                file.arrived()
                on_whole(file)
            else:
                self._begin(pool, replace(file, urls=file.urls[-1:]), on_whole)

        def segment(number: int) -> None:
            if self._one(state, number):
                complete()

        if not state.left:
            self._submit(pool, complete)
        for number in sorted(state.left):
            self._submit(pool, segment, number)

    def _submit(self, pool: ThreadPoolExecutor, task: Callable[..., None], *arguments: int) -> None:
        def run() -> None:
            try:
                if self._error is None:
                    task(*arguments)
            except BaseException as error:
                with self._idle:
                    self._error = self._error or error
                self._stop.set()  # also whoever gives the next file must hear of it
            finally:
                with self._idle:
                    self._open_tasks -= 1
                    self._idle.notify_all()

        with self._idle:
            self._open_tasks += 1
        try:
            pool.submit(run)
        except RuntimeError:  # the pool has been closed because of another task's error
            with self._idle:
                self._open_tasks -= 1

    def _open(self, file: Wanted) -> _State:
        file.parts.mkdir(parents=True, exist_ok=True)
        base = quote(file.name, safe="")
        part, journal = file.parts / f"{base}.part", file.parts / f"{base}.segments"
        count = -(-file.size // self._segment)
        have: set[int] = set()
        if part.exists() and part.stat().st_size == file.size and journal.exists():
            lines = journal.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
            # The first line says for which cut of which file the numbers stand.
            if lines and lines[0] == self._stamp(file):
                have = {int(line) for line in lines[1:] if line.isdigit() and int(line) < count}
        if not have:
            journal.unlink(missing_ok=True)
            with placed(part):
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

    def _one(self, state: _State, number: int) -> bool:
        """Fetches a segment; True where it was the last one missing."""
        begin = number * self._segment
        end = begin + self._length(state.wanted, number)
        with placed(state.part), state.part.open("r+b", buffering=0) as out:
            self._range(state.wanted, out.fileno(), begin, end)
            os.fsync(out.fileno())  # the journal must not know more than the disk holds
        with state.lock:
            with placed(state.journal), state.journal.open("a", encoding="ascii") as journal:
                journal.write(f"{number}\n")
            state.left.discard(number)
            return not state.left

    def _range(self, file: Wanted, out: int, at: int, end: int) -> None:
        """Fetches [at, end), going on where a cut stream ended; JobError after ATTEMPTS without a byte.

        Every source has as many attempts; the last one's failure is the one that is told.
        """
        for place, url in enumerate(file.urls):
            last = place == len(file.urls) - 1
            if not last and urlsplit(url).netloc in self._silent:
                continue
            try:
                self._range_from(url, file, out, at, end)
                return
            except _GaveUp as gave_up:
                at = gave_up.at
                if last:
                    raise gave_up.error from None
                if gave_up.silent:  # waiting for it anew with every range would be waiting for ever
                    self._silent.add(urlsplit(url).netloc)

    def _range_from(self, url: str, file: Wanted, out: int, at: int, end: int) -> None:
        failures = 0
        whole = file.size == end and at == 0
        while at < end:
            if self._stop.is_set():
                raise JobError("found the job stopping; wanted to go on; start it again")
            if failures:
                self._stop.wait(min(self._pause * 2 ** (failures - 1), 8 * self._pause))
            before = at
            try:
                whole = whole and at == 0
                with self._opener(url, None if whole else f"bytes={at}-{end - 1}") as body:
                    if body.status == 503 and body.header(NOT_YET):
                        if time.monotonic() - self._moved > self._patience:
                            raise _GaveUp(at, file.refused(body.status, body), silent=True)
                        self._stop.wait(min(self._pause, 0.5))
                        continue
                    if body.status in {408, 429, 500, 502, 503, 504}:
                        failures += 1
                        wait = asked_wait(body)
                        if failures >= ATTEMPTS or wait > LONGEST_WAIT:
                            raise _GaveUp(at, file.refused(body.status, body))
                        self._stop.wait(wait)
                        continue
                    self._expect(file, body, whole, at)
                    for chunk in self._watched(body, url):
                        if self._stop.is_set() or at + len(chunk) > end:
                            break
                        at += _pwrite(out, chunk, at)
                        self._on_bytes(len(chunk))
                if at < end:
                    raise Transfer("a stream that was cut")
            except Transfer as error:
                failures = 1 if at > before else failures + 1
                if failures >= ATTEMPTS:
                    raise _GaveUp(at, file.lost(error) or _lost(file, error), silent=True) from None

    def _watched(self, body: Body, url: str) -> Iterator[memoryview]:
        """The body's pieces; Transfer where they come so slowly that it is no progress."""
        began, got = time.monotonic(), 0
        for chunk in body.chunks():
            now = time.monotonic()
            self._moved = now
            got += len(chunk)
            if now - began > self._stall:
                if got < LEAST_RATE * self._stall:
                    raise Transfer(f"only {got} bytes in {now - began:.0f} s")
                began, got = now, 0
            yield chunk

    def _expect(self, file: Wanted, body: Body, whole: bool, at: int) -> None:
        size: str | None
        if body.status == 416:  # the file there ends before this range
            size = (body.header("content-range") or "").rpartition("/")[2]
        elif body.status not in {200, 206}:
            raise _GaveUp(at, file.refused(body.status, body))
        elif whole and body.status == 200:
            size = body.header("content-length")
        elif body.status == 206:
            size = (body.header("content-range") or "").rpartition("/")[2]
        else:
            fault = f"found a server that ignores Range for {file.name}"
            raise _GaveUp(at, JobError(f"{fault}; wanted status 206; use another mirror"))
        if size is not None and size.isdigit() and int(size) != file.size:
            fault = f"found {size} bytes announced for {file.name}; wanted {file.size}"
            remedy = "the source has changed: check it (a mirror may be out of date) and run again"
            raise _GaveUp(at, JobError(f"{fault}; {remedy}"))

    def _complete(self, state: _State) -> bool:
        """Moves a right file to its place; False where a wrong one is to be fetched once more."""
        file = state.wanted
        fault = file.check(state.part)
        if fault is None:
            file.target.parent.mkdir(parents=True, exist_ok=True)
            state.part.replace(file.target)
            fsync_path(file.target.parent)
            state.journal.unlink(missing_ok=True)
            self._moved = time.monotonic()
            return True
        state.journal.unlink(missing_ok=True)
        state.part.unlink()
        if file.target in self._again:
            raise JobError(
                f"found {file.name} with {fault}, twice; wanted the content that its source announces; "
                "check the source (a mirror or the head's disk) and run again"
            )
        self._again.add(file.target)
        self._on_bytes(-file.size)
        return False


class _GaveUp(Exception):
    """One source will not do: what is there up to `at`, and what to say if it was the last one.

    `silent`: it does not answer at all, or has nothing to give.
    """

    def __init__(self, at: int, error: JobError, silent: bool = False) -> None:
        super().__init__(str(error))
        self.at, self.error, self.silent = at, error, silent


def _lost(file: Wanted, error: Transfer) -> JobError:
    return JobError(
        f"found {error} for {file.name}, {ATTEMPTS} times; wanted its bytes; "
        "check the network and run again, what is here is kept"
    )


def _pwrite(handle: int, data: memoryview, at: int) -> int:
    total = len(data)
    while data:
        done = os.pwrite(handle, data, at)
        data, at = data[done:], at + done
    return total
