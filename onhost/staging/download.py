"""Brings files of pinned revisions from the hub into `downloads/<org>--<name>/<revision>/`, each verified.

The hub's own client gives the list, the hashes and the addresses. The bytes come in ranges by
onhost.staging.ranged over plain HTTP: that client starts a broken file from its beginning (a table of 51 GB
is one file), and its other transport (Xet) is known to stall.
"""

from __future__ import annotations

import fnmatch
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onhost.files import OnBytes, ignore_bytes, write_atomic
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.ranged import Fetcher, nobody_waits
from onhost.staging.safetensors import FormatError, Header, header_length, parse_header, prefix_of
from onhost.staging.source import HubFile, Metadata, Source
from onhost.staging.transfer import Body, Transfer, Wanted

SEGMENT = 128 << 20  # bytes; a kill costs one a stream, and each is a request that counts at the hub
STREAMS = 8
STALL = 30.0  # s without a byte that end an attempt
HEADER = ".header"
PROBE = 1 << 16  # bytes asked first of a weight file whose header is wanted; most headers fit


@dataclass(frozen=True)
class Settings:
    """What tests and sites may want otherwise: bytes, counts, seconds."""

    segment: int = SEGMENT
    streams: int = STREAMS
    stall: float = STALL
    pause: float = 1.0


SETTINGS = Settings()


class Origin:
    """A pinned revision on this host: what the hub says of it, and what of it is here.

    Asks the hub for the list of files where no earlier run has; JobError with one line for its refusal.
    """

    def __init__(self, job: Job, source: Source, downloads: Path) -> None:
        self.source = source
        home = downloads / source.repo.replace("/", "--")
        self.folder = home / source.revision
        self.parts = home / f"{source.revision}.parts"
        self._headers = home / f"{source.revision}.headers"
        self.folder.mkdir(parents=True, exist_ok=True)
        path = home / f"{source.revision}.hub-metadata.json"
        metadata = Metadata.load(path)
        if metadata is None:
            from onhost.staging import hub

            job.progress.stage("list", None, "files", source.repo)
            metadata = Metadata(path, hub.list_files(source), {})
            metadata.save(source)
        self._metadata = metadata
        self._lock = threading.Lock()
        self.files = _allowed(metadata.files, source)
        self.fresh: set[str] = set()  # verified in this run

    def look(self, job: Job, names: Iterable[str] | None = None, distrust: bool = False) -> set[str]:
        """The names (of all files, or of `names`) that are here whole.

        What an earlier run has verified and nobody has touched since is believed, unless `distrust`; anything
        else is hashed, and removed where it is wrong.
        """
        wanted = self.files if names is None else {name: self.files[name] for name in names}
        there = {name: file for name, file in wanted.items() if (self.folder / name).is_file()}
        verified = self._metadata.verified
        unknown = {
            name: file
            for name, file in there.items()
            if distrust or verified.get(name) != _stamp(self.folder / name)
        }
        if unknown:
            total = sum(file.size for file in unknown.values())
            job.progress.stage("check", total, "B", "files from an earlier run")
            sized = [n for n, f in unknown.items() if (self.folder / n).stat().st_size == f.size]
            hashes = manifests.hash_files(
                [self.folder / name for name in sized if unknown[name].sha256], job.progress.add
            )
            for name, file in unknown.items():
                path = self.folder / name
                right = hashes[path] == file.sha256 if path in hashes else file.fault(path) is None
                if right:
                    verified[name] = _stamp(path)
                    self.fresh.add(name)
                else:
                    path.unlink()
                    verified.pop(name, None)
            self._metadata.save(self.source)
        return {name for name in there if (self.folder / name).is_file()}

    def wanted(self, name: str) -> Wanted:
        """What the fetcher must know of a file."""
        from onhost.staging import hub

        file = self.files[name]

        def refused(status: int, body: Body) -> JobError:
            code = body.header("x-error-code")  # as for the list, where the hub's client reads it
            return hub.refusal(
                status,
                self.source,
                file=name,
                gated=code == "GatedRepo",
                revision_gone=code == "RevisionNotFound",
                retry_after=body.header("retry-after"),
            )

        def lost(error: Transfer) -> JobError | None:
            return hub.lost(error, self.source, name)

        url = hub.file_url(self.source, name)
        return Wanted(
            name,
            [url],
            file.size,
            file.fault,
            self.folder / name,
            self.parts,
            refused,
            lost,
            arrived=lambda: self._note(name),
            key=(self, name),
        )

    def _note(self, name: str) -> None:
        """A file has arrived and was verified: the next run need not hash it."""
        with self._lock:
            self.fresh.add(name)
            self._metadata.verified[name] = _stamp(self.folder / name)
            self._metadata.save(self.source)

    def forget(self, name: str) -> None:
        """Removes a file: one that turned out damaged, or whose bytes are no longer needed."""
        with self._lock:
            (self.folder / name).unlink(missing_ok=True)
            if self._metadata.verified.pop(name, None) is not None:
                self._metadata.save(self.source)

    def header_path(self, name: str) -> Path:
        """Where the first bytes of a weight file are kept: its length field and its header."""
        return self._headers / f"{name.replace('/', '%2F')}{HEADER}"

    def check_header(self, name: str) -> None:
        """JobError where a file begins otherwise than what the plan was made from.

        A header that was read by itself has no hash of its own; the file that has arrived since does.
        """
        kept = self.header_path(name)
        if kept.exists() and kept.read_bytes() != prefix_of(self.folder / name):
            kept.unlink()
            raise JobError(
                f"found {name} of {self.source.repo} with another header than was read before it came; "
                "wanted the same; run again: the plan is made anew, and what is here is kept"
            )

    def held(self) -> int:
        """Bytes on the disk of files that have begun to come."""
        return sum(part.stat().st_blocks * 512 for part in self.parts.glob("*.part"))



def tidy(source: Source, downloads: Path, keep_files: bool) -> None:
    """Removes what only a job's work needed; without `keep_files` the files, too.

    With them stay the headers of files that were never needed whole: without these a later run, which may be
    offline, could not plan.
    """
    folder = downloads / source.repo.replace("/", "--") / source.revision
    headers = folder.with_name(f"{source.revision}.headers")
    if keep_files and headers.is_dir():
        for path in headers.iterdir():
            name = path.name.removesuffix(HEADER).replace("%2F", "/")
            if name == path.name or (folder / name).is_file():  # half-written at a kill, or of a whole file
                path.unlink()
        with suppress(OSError):
            headers.rmdir()
    for path in (
        folder.with_name(f"{source.revision}.parts"),
        *(() if keep_files else (folder, headers)),
    ):
        shutil.rmtree(path, ignore_errors=True)
    folder.with_name(f".{source.revision}.hub-metadata.json.tmp").unlink(missing_ok=True)  # of a killed run


class Downloads:
    """The streams from the hub, shared by all revisions of a job (they have one endpoint and one token)."""

    def __init__(self, job: Job, source: Source) -> None:
        self._job, self._source, self._settings = job, source, SETTINGS

    def fetch(
        self,
        files: Iterable[Wanted],
        on_bytes: OnBytes,
        on_whole: Callable[[Wanted], None] = nobody_waits,
    ) -> None:
        """Fetches files in their order, each verified and noted as such before `on_whole` hears of it.

        JobError with one line for what the hub refuses, a full disk, a stall, wrong content.
        """
        with self._fetcher(on_bytes) as fetcher:
            fetcher.fetch(files, on_whole=on_whole)

    def headers(self, origin: Origin, names: Iterable[str], keep: bool) -> dict[str, Header]:
        """The headers of weight files, from the files that are here and from the hub without their data.

        What came from the hub is kept for later runs; `keep`: also what did not, as the files will go.
        """
        headers: dict[str, Header] = {}
        todo = []
        parsing = threading.Lock()  # one at a time: a header takes ten times its size while it is read

        def read(name: str, start: bytes) -> Header:
            try:
                with parsing:
                    return parse_header(start[8:], origin.files[name].size, str(origin.folder / name))
            except FormatError as error:
                origin.header_path(name).unlink(missing_ok=True)
                raise broken(error, origin) from None

        for name in names:
            if (kept := origin.header_path(name)).exists():
                headers[name] = read(name, kept.read_bytes())
            elif (origin.folder / name).is_file():
                try:
                    start = prefix_of(origin.folder / name)
                except FormatError as error:  # its hash is the hub's
                    raise broken(error, origin) from None
                if keep:
                    write_atomic(kept, start)
                headers[name] = read(name, start)
            else:
                todo.append(name)
        if todo:
            self._job.progress.stage("headers", len(todo), "files", origin.source.repo)
            with self._fetcher(ignore_bytes) as fetcher:

                def one(name: str) -> Header:
                    try:
                        start = _prefix(fetcher, origin.wanted(name))
                    except FormatError as error:
                        raise broken(error, origin) from None
                    write_atomic(origin.header_path(name), start)
                    self._job.progress.add(1)
                    return read(name, start)

                pool = ThreadPoolExecutor(self._settings.streams, thread_name_prefix="headers")
                try:
                    headers.update(zip(todo, pool.map(one, todo), strict=True))
                except BaseException:
                    self._job.stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
                pool.shutdown()
        return headers

    @contextmanager
    def _fetcher(self, on_bytes: OnBytes) -> Iterator[Fetcher]:
        # An HTTP client and the hub's take longer to load than a run with nothing to do takes otherwise.
        from onhost.http_client import make_client
        from onhost.staging import hub
        from onhost.staging.openers import httpx_opener

        settings = self._settings
        with make_client(timeout=settings.stall, connections=settings.streams, redirects=True) as client:
            yield Fetcher(
                httpx_opener(client, hub.request_headers(self._source)),
                streams=settings.streams,
                stop=self._job.stop,
                on_bytes=on_bytes,
                segment=settings.segment,
                pause=settings.pause,
                stall=settings.stall,
            )


def broken(error: FormatError, origin: Origin) -> FormatError:
    """The line for a weight file that is not valid though it is, to the hash, what the hub has."""
    return FormatError(
        f"{str(error).split('; ')[0]} of {origin.source.repo}; wanted a valid safetensors file; "
        "run again, and if it stays so pin another revision: the hub's file is broken"
    )


def _prefix(fetcher: Fetcher, wanted: Wanted) -> bytes:
    """A weight file's length field and header, from the hub."""
    start = fetcher.read(wanted, 0, min(PROBE, wanted.size))
    end = 8 + header_length(start, wanted.size, str(wanted.target))
    return start[:end] if end <= len(start) else start + fetcher.read(wanted, len(start), end)


def _allowed(files: Mapping[str, HubFile], source: Source) -> dict[str, HubFile]:
    allow = source.allow
    chosen = {
        name: file
        for name, file in sorted(files.items())
        if allow is None or any(fnmatch.fnmatchcase(name, glob) for glob in allow)
    }
    if not chosen:
        raise JobError(
            f"found none of {len(files)} files of {source.repo} allowed by {list(allow or ())}; wanted some; "
            "correct the recipe's allow list"
        )
    return chosen


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]
