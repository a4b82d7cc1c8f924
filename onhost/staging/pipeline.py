"""Works off a graph: each file is made as soon as what it needs is whole, while other files still come.

What is finished is noted in a journal beside the partial folder, with its hash, after it is on the disk. So a
run that was killed goes on from there, and a source may be removed once its last user is noted.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from onhost.files import fsync_path, placed, sha256_of, write_atomic
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging.catalog import Need
from onhost.staging.chain import check_written
from onhost.staging.download import Downloads, Origin
from onhost.staging.graph import FINAL, Graph, Ledger, disk_limit
from onhost.staging.outputs import Output
from onhost.staging.transfer import Wanted

# Files made at once: one is copied while another is hashed; on a Spark's twenty cores four keep a disk busy.
MAKERS = max(2, min(4, (os.cpu_count() or 1) // 4))


class Journal:
    """The finished files of a partial folder: name → (size in bytes, SHA-256). `stamp` says of which plan."""

    def __init__(self, path: Path, folder: Path, stamp: str) -> None:
        self._path, self._folder = path, folder
        self._lock = threading.Lock()
        self.files: dict[str, tuple[int, str]] = {}
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else []
        head = json.dumps({"stamp": stamp})
        for line in lines[1:] if lines[:1] == [head] else []:
            try:
                entry = json.loads(line)
                stat = (folder / entry["name"]).stat()
                if [stat.st_size, stat.st_mtime_ns] == entry["stat"]:
                    self.files[entry["name"]] = (stat.st_size, entry["sha256"])
            except (ValueError, TypeError, KeyError, OSError):
                continue  # a line that was cut, or a file that somebody took away
        _remove_others(folder, set(self.files))
        folder.mkdir(parents=True, exist_ok=True)
        entries = [self._line(name, sha256) for name, (_, sha256) in self.files.items()]
        write_atomic(path, "".join(line + "\n" for line in [head, *entries]).encode())

    def add(self, name: str, sha256: str) -> None:
        """A file is whole and on the disk."""
        fsync_path((self._folder / name).parent)
        with self._lock, placed(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(name, sha256) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self.files[name] = ((self._folder / name).stat().st_size, sha256)

    def _line(self, name: str, sha256: str) -> str:
        stat = (self._folder / name).stat()
        return json.dumps({"name": name, "stat": [stat.st_size, stat.st_mtime_ns], "sha256": sha256})

    def remove(self) -> None:
        """The folder has its final name: the journal's work is done."""
        self._path.unlink(missing_ok=True)


def _remove_others(folder: Path, names: set[str]) -> None:
    """Removes what a killed run left half-made."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in names:
            path.unlink()


class _Ended(BaseException):
    """The run ends because of somebody else's error: nothing of its own to tell."""


class Pipeline:
    """One run over a graph into `folder`; files between lie beside it and are gone at the end."""

    def __init__(
        self,
        job: Job,
        graph: Graph,
        origins: Mapping[str, Origin],
        downloads: Downloads,
        folder: Path,
        journal: Journal,
        keep_source: bool,
    ) -> None:
        self._job, self._graph, self._origins, self._downloads = job, graph, origins, downloads
        self._folder, self._journal, self._keep = folder, journal, keep_source
        self._ledger = Ledger(graph, keep_source)
        self._limit = disk_limit(graph, keep_source)
        self._whole = {need for need in graph.sources if self._path(need).is_file()}
        self._missing = {need: size for need, size in graph.sources.items() if need not in self._whole}
        self._begun: set[Need] = set()
        self._waiting = list(graph.tasks)
        self._open = len(self._waiting)
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._flow = _Flow(job, self._missing, graph)
        self._pool = ThreadPoolExecutor(MAKERS, thread_name_prefix="make")

    def run(self) -> None:
        """Downloads and makes everything; JobError with the first thing that went wrong."""
        thread = threading.Thread(target=self._guarded, args=(self._download,), daemon=True, name="download")
        self._flow.begin()
        thread.start()
        try:
            with self._change:
                while self._open and self._error is None:
                    self._change.wait()
            if self._error is not None:
                raise self._error
            thread.join()
            if self._error is not None:
                raise self._error
        except BaseException:
            self._job.stop.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        self._pool.shutdown()
        for origin in {key.origin for key in self._graph.tasks} - {FINAL}:
            shutil.rmtree(self._folder.with_name(f"{self._folder.name}.{origin}"), ignore_errors=True)

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except _Ended:
            pass
        except BaseException as error:
            with self._change:
                self._error = self._error or error
                self._change.notify_all()
            self._job.stop.set()

    def _download(self) -> None:
        files = self._files()
        if not self._missing:
            for _ in files:
                pass
        else:
            self._downloads.fetch(files, self._flow.fetched, self._arrived)
        self._flow.all_here()

    def _files(self) -> Iterator[Wanted]:
        """The missing files in the order of their use, each as soon as the disk may take its group."""
        asked: set[Need] = set()
        for group in self._graph.groups:
            with self._change:
                while self._ledger.now and self._ledger.now + self._ledger.cost(group) > self._limit:
                    self._change.wait(0.2)
                    if self._job.stop.is_set():
                        raise _Ended
                self._ledger.begin(group)
                self._begun.update(group)
            self._start_due()
            for need in self._graph.sources_of(group):
                if need in self._missing and need not in asked:
                    asked.add(need)
                    wanted = self._origins[need.origin].wanted(need.file)
                    wanted.key = need
                    yield wanted

    def _arrived(self, wanted: Wanted) -> None:
        self._origins[wanted.key.origin].check_header(wanted.key.file)
        with self._change:
            self._whole.add(wanted.key)
        self._start_due()

    def _start_due(self) -> None:
        with self._change:
            due = [
                key
                for key in self._waiting
                if key in self._begun and all(need in self._whole for need in self._graph.tasks[key].needs)
            ]
            self._waiting = [key for key in self._waiting if key not in set(due)]
        for key in due:
            try:
                self._pool.submit(self._guarded, self._make, key)
            except RuntimeError:  # closed: the run has failed
                return

    def _make(self, key: Need) -> None:
        output, path = self._graph.tasks[key], self._path(key)
        path.unlink(missing_ok=True)
        output.write(self._path, path, _Counter(self._job, self._flow))
        check_written(output, path)
        if key.origin == FINAL:
            self._journal.add(key.file, self._hash(output, path))
        with self._change:
            gone = self._ledger.finish(key)
            self._whole.add(key)
            self._open -= 1
            self._change.notify_all()
        for need in gone:
            if need not in self._graph.sources:
                self._path(need).unlink(missing_ok=True)
            elif need.file.endswith(".safetensors"):  # the rest is small, and wanted to plan after a kill
                self._origins[need.origin].forget(need.file)
        self._flow.made()
        self._start_due()

    def _hash(self, output: Output, path: Path) -> str:
        """The file's SHA-256; what the hub has announced counts for its own files verified in this run."""
        if output.link_of is None:
            return sha256_of(path)
        origin, name = self._origins[output.link_of.origin], output.link_of.file
        announced = origin.files[name].sha256
        if announced is not None and name in origin.fresh:
            return announced
        found = sha256_of(path)
        if announced is not None and found != announced:
            path.unlink()
            origin.forget(name)
            raise JobError(
                f"found {name} with another sha256 than the hub announced, after it was right at download; "
                "wanted a sound disk; the file is removed: run again, it is fetched anew"
            )
        return found

    def _path(self, need: Need) -> Path:
        if need.origin == FINAL:
            return self._folder / need.file
        if need.origin in self._origins:
            return self._origins[need.origin].folder / need.file
        return self._folder.with_name(f"{self._folder.name}.{need.origin}") / need.file


class _Flow:
    """Two flows, shown as one after the other: what comes in, then what is still to be written."""

    def __init__(self, job: Job, missing: Mapping[Need, int], graph: Graph) -> None:
        self._job = job
        self._to_fetch, self._files = sum(missing.values()), len(missing)
        self._to_write = sum(task.info.size for task in graph.tasks.values())
        self._tasks, self._made, self._written = len(graph.tasks), 0, 0
        self._downloading = bool(missing)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Shows the first stage."""
        if self._downloading:
            self._job.progress.stage("download", self._to_fetch, "B", f"{self._files} files")
        else:
            self._job.progress.stage("transform", self._to_write, "B", self._note())

    def fetched(self, count: int) -> None:
        """Bytes have come."""
        self._job.progress.add(count)

    def wrote(self, count: int) -> None:
        """Bytes have been written."""
        with self._lock:
            self._written += count
            if not self._downloading:
                self._job.progress.add(count, self._note())

    def made(self) -> None:
        """A file is finished."""
        with self._lock:
            self._made += 1
            self._job.progress.add(0, self._note())

    def all_here(self) -> None:
        """Everything has come: from now on the writing is shown."""
        with self._lock:
            if self._downloading:
                self._downloading = False
                self._job.progress.stage(
                    "transform", self._to_write, "B", self._note(), done=self._written
                )

    def _note(self) -> str:
        return f"{self._made} of {self._tasks} files made"


class _Counter:
    """What an output tells its progress to; ends it where the run has failed elsewhere."""

    def __init__(self, job: Job, flow: _Flow) -> None:
        self._job, self._flow = job, flow

    def stage(self, name: str, total: int | None, unit: str, note: str = "", done: int = 0) -> None:
        """The run has its own stages."""

    def add(self, count: int, note: str | None = None) -> None:
        """Bytes are written."""
        if self._job.stop.is_set():
            raise _Ended
        self._flow.wrote(count)
