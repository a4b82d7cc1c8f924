"""Job checkpoint: download, transform, verify, and only then a folder with the final name.

Also the command verify.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onhost.files import fsync_path, fsync_tree, need_space, write_json
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.catalog import View, catalog_of
from onhost.staging.chain import apply_steps, chain, folder_view
from onhost.staging.download import download, forget
from onhost.staging.hub import HubFile, Metadata, Source
from onhost.staging.manifest import MANIFEST, Manifest
from onhost.staging.transforms import read_steps


def build(job: Job) -> dict[str, Any]:
    """The job's function: returns id, bytes and number of files of a checkpoint that stands whole."""
    plan = job.plan
    source = Source.read(plan.sub("source"))
    steps = read_steps(plan.subs("transforms"))
    checkpoints, id = plan.path("checkpoints_dir"), checkpoint_id(plan.text("id"))
    with claimed(checkpoints, id):
        done = finished(job, checkpoints / id)
        if done is not None:
            return done.value()
        partial = checkpoints / f"{id}.partial"
        for left in [partial, *checkpoints.glob(f"{id}.partial.step*")]:
            _remove(left)  # a transform takes minutes and starts afresh; the download beside it goes on
        view = download(job, source, plan.path("downloads_dir"))
        need_space(checkpoints, chain(catalog_of(view), steps, {}).written, "the transformed files")
        apply_steps(view, steps, partial, job.progress)
        manifest = _seal(job, id, partial, view, source, [step.described() for step in steps])
        publish(partial, checkpoints / id, manifest)
        return manifest.value()


def checkpoint_id(id: str) -> str:
    """The id itself, as long as it is a plain folder name; else JobError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
        raise JobError(
            f"found the checkpoint id {id!r}; wanted letters, digits, '-'; correct the plan's maker"
        )
    return id


@contextmanager
def claimed(checkpoints: Path, id: str) -> Iterator[None]:
    """Only one job makes a checkpoint at a time, whichever kind it is."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    with (checkpoints / f".{id}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobError(
                f"found another job at work on checkpoint {id}; wanted to be alone; wait for it and run again"
            ) from None
        yield


def finished(job: Job, folder: Path) -> Manifest | None:
    """The manifest of a checkpoint that stands already; None without one, JobError if it is broken."""
    if not folder.exists():
        return None
    if not (folder / MANIFEST).exists():
        # The manifest is the only mark of "done": what lies here without one are parts, and checked as such.
        partial = folder.with_name(f"{folder.name}.partial")
        if partial.exists():
            shutil.rmtree(folder)
        else:
            folder.rename(partial)
        return None
    manifest = manifests.read(folder)
    faults = manifests.quick_faults(folder, manifest)
    if faults:
        raise JobError(
            f"found {folder} damaged ({'; '.join(faults[:3])}); wanted what its manifest says; "
            "stop what serves it, move the folder away and run again"
        )
    job.progress.stage("done", manifest.bytes, "B", "the checkpoint stands already", done=manifest.bytes)
    return manifest


def publish(partial: Path, final: Path, manifest: Manifest) -> None:
    """Gives a complete folder its final name: content to the disk, then the manifest, then the rename."""
    fsync_tree(partial)
    write_json(partial / MANIFEST, manifest.raw)
    partial.rename(final)
    fsync_path(final.parent)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _seal(
    job: Job, id: str, partial: Path, view: View, source: Source, transforms: list[dict[str, Any]]
) -> Manifest:
    """Hashes the result. Files that are the hub's own are held against the hub's hashes once more."""
    made = folder_view(partial)
    if MANIFEST in made:
        raise JobError(
            f"found a file {MANIFEST} in the checkpoint; wanted that name free; leave it out by `allow`"
        )
    total = sum(path.stat().st_size for path in made.values())
    job.progress.stage("verify", total, "B", f"{len(made)} files")
    hashes = manifests.hash_files(made.values(), job.progress.add)
    announced = _announced(job, source)
    for name, path in made.items():
        unchanged = name in view and view[name].exists() and path.samefile(view[name])
        expected = announced.get(name)
        if unchanged and expected is not None and expected.sha256 not in {None, hashes[path]}:
            forget(source, job.plan.path("downloads_dir"), name)
            raise JobError(
                f"found {name} with another sha256 than the hub announced, after it was right at download; "
                "wanted a sound disk; the file is removed: run again, it is fetched anew"
            )
    files = {name: (path.stat().st_size, hashes[path]) for name, path in made.items()}
    return manifests.make(id, {"repo": source.repo, "revision": source.revision}, transforms, files)


def _announced(job: Job, source: Source) -> dict[str, HubFile]:
    home = job.plan.path("downloads_dir") / source.repo.replace("/", "--")
    metadata = Metadata.load(home / f"{source.revision}.hub-metadata.json")
    return {} if metadata is None else metadata.files


def verify(folder: Path) -> int:
    """The command: one line a fault on standard output, 1 where there is any; needs no network."""
    try:
        manifest = manifests.read(folder)
    except JobError as error:
        print(error, file=sys.stderr)
        return 1
    lines = manifests.faults(folder, manifest)
    for line in lines:
        print(line)
    if not lines:
        print(f"{folder.name}: {len(manifest.files)} files, {manifest.bytes} bytes, all as the manifest says")
    return 1 if lines else 0
