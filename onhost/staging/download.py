"""Brings a pinned revision from the hub into `downloads/<org>--<name>/<revision>/`, each file verified.

The hub's own client gives the list, the hashes, the addresses and the small files. Large files are fetched in
ranges by onhost.staging.ranged, since that client starts a broken file from its beginning (a table of 51 GB
is one file).
"""

from __future__ import annotations

import fnmatch
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from onhost.files import fsync_path, need_space
from onhost.http_client import make_client
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging import hub
from onhost.staging.hub import HubFile, Metadata, Source
from onhost.staging.openers import httpx_opener
from onhost.staging.ranged import Body, Fetcher, Wanted

LARGE = 16 << 20  # bytes; from here on a file comes in ranges
SEGMENT = 128 << 20  # bytes; a kill costs one a stream, and each is a request that counts at the hub
STREAMS = 8
STALL = 30.0  # s without a byte that end an attempt


@dataclass(frozen=True)
class Settings:
    """What tests and sites may want otherwise: bytes, counts, seconds."""

    large: int = LARGE
    segment: int = SEGMENT
    streams: int = STREAMS
    stall: float = STALL
    pause: float = 1.0


SETTINGS = Settings()


def download(job: Job, source: Source, downloads_dir: Path) -> dict[str, Path]:
    """All allowed files of the revision as a view, on disk and verified. Needs no network where they are.

    JobError with one line for what the hub refuses, an unreachable hub, a full disk, a stall, wrong content.
    """
    home = downloads_dir / source.repo.replace("/", "--")
    folder = home / source.revision
    folder.mkdir(parents=True, exist_ok=True)
    metadata = Metadata.load(home / f"{source.revision}.hub-metadata.json")
    if metadata is None:
        job.progress.stage("list", None, "files", source.repo)
        metadata = Metadata(home / f"{source.revision}.hub-metadata.json", hub.list_files(source), {})
        metadata.save(source)
    files = _allowed(metadata.files, source)
    missing = _missing(job, folder, files, metadata)
    metadata.save(source)
    if missing:
        _fetch(job, source, folder, missing, SETTINGS)
        for name in missing:
            metadata.verified[name] = _stamp(folder / name)
            fsync_path(folder / name)
        metadata.save(source)
    return {name: folder / name for name in files}


def forget(source: Source, downloads_dir: Path, name: str) -> None:
    """Removes a file that turned out damaged, so that the next run fetches it again."""
    home = downloads_dir / source.repo.replace("/", "--")
    (home / source.revision / name).unlink(missing_ok=True)


def _allowed(files: dict[str, HubFile], source: Source) -> dict[str, HubFile]:
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


def _missing(job: Job, folder: Path, files: dict[str, HubFile], metadata: Metadata) -> dict[str, HubFile]:
    """The files that are not there whole.

    What lies there unverified is hashed, and removed where it is wrong.
    """
    unknown = {n: f for n, f in files.items() if (folder / n).is_file()}
    unknown = {n: f for n, f in unknown.items() if metadata.verified.get(n) != _stamp(folder / n)}
    if unknown:
        job.progress.stage(
            "check", sum(file.size for file in unknown.values()), "B", "files from an earlier run"
        )
    for name, file in unknown.items():
        fault = file.fault(folder / name)
        if fault is None:
            metadata.verified[name] = _stamp(folder / name)
        else:
            (folder / name).unlink()
        job.progress.add(file.size, name)
    return {name: file for name, file in files.items() if not (folder / name).is_file()}


def _fetch(job: Job, source: Source, folder: Path, missing: dict[str, HubFile], settings: Settings) -> None:
    total = sum(file.size for file in missing.values())
    parts = folder.with_name(f"{folder.name}.parts")
    held = sum(part.stat().st_blocks * 512 for part in parts.glob("*.part")) if parts.is_dir() else 0
    need_space(folder, total - held, f"{len(missing)} files of {source.repo}")
    job.progress.stage("download", total, "B", f"{len(missing)} files of {source.repo}")
    small = {name: file for name, file in missing.items() if file.size < settings.large}
    large = {name: file for name, file in missing.items() if file.size >= settings.large}
    _fetch_small(job, source, folder, small, settings)
    if large:
        job.progress.add(0, f"{len(large)} large files of {source.repo}")
        _fetch_large(job, source, folder, parts, large, settings)
    shutil.rmtree(
        folder / ".cache", ignore_errors=True
    )  # the hub client's book-keeping; ours is the metadata file
    shutil.rmtree(parts, ignore_errors=True)


def _fetch_small(
    job: Job, source: Source, folder: Path, files: dict[str, HubFile], settings: Settings
) -> None:
    from huggingface_hub import hf_hub_download

    def one(name: str) -> None:
        for attempt in (1, 2):
            if job.stop.is_set():
                return
            try:
                hf_hub_download(
                    source.repo,
                    name,
                    revision=source.revision,
                    local_dir=folder,
                    endpoint=source.endpoint,
                    token=source.token or False,
                    force_download=attempt > 1,
                )
            except OSError as error:
                if error.errno is not None:  # the disk's own word, not the hub's
                    raise
                raise hub.refusal_of(error, source) from error
            except Exception as error:
                raise hub.refusal_of(error, source) from error
            fault = files[name].fault(folder / name)
            if fault is None:
                job.progress.add(files[name].size, name)
                return
            (folder / name).unlink()
        raise JobError(
            f"found {name} with {fault}, twice; wanted the content that the hub announces; "
            "check the mirror and run again"
        )

    pool = ThreadPoolExecutor(settings.streams, thread_name_prefix="hub")
    try:
        for future in [pool.submit(one, name) for name in files]:
            future.result()
    except BaseException:
        job.stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _fetch_large(
    job: Job, source: Source, folder: Path, parts: Path, files: dict[str, HubFile], settings: Settings
) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    def refusal(status: int, name: str, body: Body) -> JobError:
        return hub.refusal(status, source, file=name, retry_after=body.header("retry-after"))

    wanted = [
        Wanted(
            name,
            hf_hub_url(source.repo, name, revision=source.revision, endpoint=source.endpoint),
            file.size,
            file.fault,
        )
        for name, file in files.items()
    ]
    with make_client(timeout=settings.stall, connections=settings.streams, redirects=True) as client:
        fetcher = Fetcher(
            httpx_opener(client, build_hf_headers(token=source.token or False)),
            folder,
            parts,
            streams=settings.streams,
            stop=job.stop,
            on_bytes=job.progress.add,
            refusal=refusal,
            segment=settings.segment,
            pause=settings.pause,
        )
        fetcher.fetch(wanted)
