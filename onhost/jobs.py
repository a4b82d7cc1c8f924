"""Runs a plan as a job: one at a time, progress as JSON lines, the end as one JSON file.

A job lives in `<jobs_dir>/<job>/`: `progress.jsonl` (begun anew at each start), `result.json` (removed at the
start, written last and atomically), `lock`. The formats are in docs/interfaces.md.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from onhost.files import placed, write_json
from onhost.locks import Held, exclusive
from onhost.plan import JobError, Plan

__all__ = ["KINDS", "Job", "JobError", "Progress", "main", "one_line", "run"]

KINDS = {
    "checkpoint": "onhost.staging.checkpoint:build",
    "fetch-checkpoint": "onhost.staging.fetch:fetch",
    "image": "onhost.image:build",
    "fetch-image": "onhost.image:fetch",
    "bench": "onhost.bench.run:bench",
}
INTERVAL = 0.4  # s between progress lines of one stage
LONGEST_ERROR = 900  # characters


class Stopped(BaseException):
    """SIGTERM or SIGINT came. Not an Exception: no handler on the way may swallow it."""


class Progress:
    """Writes progress.jsonl; rate-limited, flushed at each line, usable from several threads."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._next = 0.0
        self._written: tuple[object, ...] = ()
        self._state: dict[str, Any] = {}

    def stage(self, name: str, total: int | None, unit: str, note: str = "", done: int = 0) -> None:
        """Begins a stage; always written. `total` is None where nobody knows it."""
        with self._lock:
            self._finish()
            self._state = {"stage": name, "done": done, "total": total, "unit": unit, "note": note}
            self._write()

    def add(self, count: int, note: str | None = None) -> None:
        """`count` more units are done (negative where work has to be done again)."""
        with self._lock:
            if self._state:
                self._update(self._state["done"] + count, note)

    def set(self, done: int, total: int | None = None, note: str | None = None) -> None:
        """The stage stands at `done`; a `total` given replaces the one known."""
        with self._lock:
            if self._state:
                if total is not None:
                    self._state["total"] = total
                self._update(done, note)

    def close(self) -> None:
        """Writes what rate limiting has held back."""
        with self._lock:
            self._finish()

    def _update(self, done: int, note: str | None) -> None:
        self._state["done"] = done
        if note is not None:
            self._state["note"] = note
        if self._clock() >= self._next:
            self._write()

    def _finish(self) -> None:
        if self._state and tuple(self._state.values()) != self._written:
            self._write()

    def _write(self) -> None:
        line = {"t": round(time.time(), 1), **self._state}
        with placed(Path(getattr(self._file, "name", "the progress"))):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        self._written = tuple(self._state.values())
        self._next = self._clock() + INTERVAL


@dataclass
class Job:
    """What a kind's function gets: its plan, where to report, and whether to stop (for worker threads)."""

    name: str
    plan: Plan
    folder: Path
    progress: Progress
    stop: threading.Event


def run(plan: Plan) -> int:
    """Runs the plan's job to its end: 0 when it is done, 1 when it failed or runs already."""
    name, kind, jobs_dir = plan.text("job"), plan.text("kind"), plan.path("jobs_dir")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", name):
        raise JobError(
            f"found the job name {name!r}; wanted letters, digits, '.', '-'; correct the plan's maker"
        )
    if kind not in KINDS:
        raise JobError(
            f"found the job kind {kind!r}; wanted one of {', '.join(KINDS)}; bring onhost up to date"
        )
    folder = jobs_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(folder / "lock"):
            return _run_locked(Job(name, plan, folder, Progress(sys.stderr), threading.Event()), KINDS[kind])
    except Held as held:
        print(
            f"found {name} running already; wanted one at a time; follow it in {folder} ({held})",
            file=sys.stderr,
        )
        return 1


def _run_locked(job: Job, target: str) -> int:
    result = job.folder / "result.json"
    result.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        end = _worked(job, target)
    except OSError as error:  # of the progress file: the work's own are in `end`
        end = {"ok": False, "error": one_line(explain(error))}
    try:
        write_json(result, {"ok": end["ok"], "seconds": round(time.monotonic() - began, 2), **end})
    except OSError as error:  # who follows the job reads the journal's last lines then
        end = {"ok": False, "error": end.get("error") or one_line(explain(error))}
    if not end["ok"]:
        print(end["error"], file=sys.stderr)
    return 0 if end["ok"] else 1


def _worked(job: Job, target: str) -> dict[str, Any]:
    """How the job's function ended, as result.json has it. OSError where progress could not be written."""
    end: dict[str, Any]
    path = job.folder / "progress.jsonl"
    with placed(path), path.open("w", encoding="utf-8") as file, _signals(job.stop):
        job.progress = Progress(file)
        try:
            module, _, function = target.partition(":")
            value = getattr(importlib.import_module(module), function)(job)
            end = {"ok": True, "value": value}
        except Stopped as stopped:
            end = {
                "ok": False,
                "error": f"found {stopped} before the end; wanted to finish; "
                "start the job again, it goes on from what is there",
            }
        except JobError as error:
            end = {"ok": False, "error": one_line(str(error))}
        except Exception as error:
            traceback.print_exc()
            end = {"ok": False, "error": one_line(explain(error))}
        finally:
            job.stop.set()
        job.progress.close()
    return end


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Turns SIGTERM and SIGINT into Stopped in the main thread; elsewhere (tests) leaves signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if not stop.is_set():  # a second signal must not disturb the writing of the result
            stop.set()
            raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain(error: Exception) -> str:
    """One line for an exception that nobody foresaw, or that the whole machine is the cause of."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        where = error.filename or "the disk"
        return (
            f"found no space left at {where}; wanted room for the job's files; free some space and run again"
        )
    if isinstance(error, OSError) and error.errno in {errno.EROFS, errno.EACCES, errno.EIO}:
        return (
            f"found '{os.strerror(error.errno or 0)}' at {error.filename}; wanted to write or read; check "
            "the disk"
        )
    return (
        f"found an unexpected {type(error).__name__}: {error}; wanted none; see the journal of this unit "
        "for where"
    )


def one_line(text: str) -> str:
    """`text` on one line, of bearable length; the end of a long one is what is left out."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_ERROR else flat[: LONGEST_ERROR - 1] + "…"


def main(path: str, **more: Any) -> int:
    """The command `job PLAN`; `more` are keys that count as if they were in the plan."""
    try:
        return run(Plan({**Plan.read(Path(path)).data, **more}))
    except JobError as error:
        print(one_line(str(error)), file=sys.stderr)
        return 1
    except OSError as error:  # before the job began: its folder, its lock
        print(one_line(explain(error)), file=sys.stderr)
        return 1
