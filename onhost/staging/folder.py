"""Checkpoint folders: their names, who works on one, when one is whole, how a file in one is replaced."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onhost.files import fsync_path, fsync_tree, write_json
from onhost.jobs import Job
from onhost.locks import Held, exclusive
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.manifest import MANIFEST, Manifest


@dataclass(frozen=True)
class Standing:
    """A checkpoint that a job has finished, and the files of it that are damaged since."""

    manifest: Manifest
    damaged: tuple[str, ...]


def checkpoint_id(id: str) -> str:
    """The id itself, as long as it is a plain folder name; else JobError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
        raise JobError(
            f"found the checkpoint id {id!r}; wanted letters, digits, '-'; correct the plan's maker"
        )
    return id


@contextmanager
def claimed(checkpoints: Path, id: str) -> Iterator[None]:
    """Only one job makes a checkpoint at a time, whichever kind it is; JobError that names the other."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(checkpoints / f".{id}.lock"):
            yield
    except Held as held:
        raise JobError(
            f"found another job at work on checkpoint {id} ({held}); wanted to be alone; "
            "wait for it and run again"
        ) from None


def standing(job: Job, folder: Path) -> Standing | None:
    """What stands under the final name; None where nothing does.

    Sizes, headers and small files are looked at always, all contents where the plan has `hashes`. JobError
    for files that no manifest knows: an engine might load them, and they may be somebody's.
    """
    if not folder.exists():
        return None
    if not (folder / MANIFEST).exists():
        # The manifest is the only mark of "done": what lies here without one are parts, checked as such.
        partial = folder.with_name(f"{folder.name}.partial")
        if partial.exists():
            shutil.rmtree(folder)
        else:
            folder.rename(partial)
        return None
    manifest = manifests.read(folder)
    if job.plan.flag("hashes", False):
        job.progress.stage("verify", manifest.bytes, "B", "what stands there")
        faults = manifests.faults(folder, manifest, job.progress.add)
    else:
        faults = manifests.quick_faults(folder, manifest)
    foreign = [fault.name for fault in faults if fault.unlisted]
    if foreign:
        raise JobError(
            f"found {', '.join(foreign[:3])} in {folder}, which its manifest does not know; wanted only its "
            "own files, since an engine may load others too; move them away and run again"
        )
    if not faults:
        job.progress.stage("done", manifest.bytes, "B", "the checkpoint stands already", done=manifest.bytes)
    else:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        note = "; ".join(map(str, faults[:3])) + more
        job.progress.stage("damage", len(faults), "files", note)
    return Standing(manifest, tuple(fault.name for fault in faults))


def publish(partial: Path, final: Path, manifest: Manifest) -> None:
    """Gives a complete folder its final name: content to the disk, then the manifest, then the rename."""
    fsync_tree(partial)
    write_json(partial / MANIFEST, manifest.raw)
    partial.rename(final)
    fsync_path(final.parent)


def replace_files(folder: Path, repaired: Path, names: Sequence[str]) -> None:
    """Moves right files over damaged ones, each at once; who has an old one open keeps it."""
    for name in names:
        fsync_path(repaired / name)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            target.rmdir()  # it is empty: a file in it would be a foreign one, and the end
        (repaired / name).replace(target)
        fsync_path(target.parent)
    shutil.rmtree(repaired)
