"""Job fetch-checkpoint: a finished checkpoint from other Sparks' shares, in parallel ranges, verified.

Where hosts receive in a chain, each takes from the one before it, which may still be receiving itself, and
from the head where that one fails. Every file is held against the head's manifest.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onhost.files import need_space, sha256_of, write_json
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.folder import Standing, checkpoint_id, claimed, publish, replace_files, standing
from onhost.staging.manifest import MANIFEST, Manifest
from onhost.staging.openers import plain_opener
from onhost.staging.ranged import SEGMENT, Fetcher
from onhost.staging.transfer import Body, Opener, Transfer, Wanted

PARTS = ".parts"
RECEIVING = ".parts/manifest.json"  # in the partial folder: what is coming, for who takes from here
PAUSE = 1.0  # s before a second attempt; doubles
STALL = 30.0  # s without a byte that end an attempt
PATIENCE = 120.0  # s without any byte that one in a chain may say "not yet"
LONGEST_MANIFEST = 64 << 20  # bytes


def fetch(job: Job) -> dict[str, Any]:
    """The job's function: returns id, bytes and number of files of a checkpoint that stands whole."""
    plan = job.plan
    checkpoints, id = plan.path("checkpoints_dir"), checkpoint_id(plan.text("id"))
    final = checkpoints / id
    with claimed(checkpoints, id):
        found = standing(job, final)
        if found is not None and not found.damaged:
            shutil.rmtree(_repair(final), ignore_errors=True)  # of a run that was killed at its very end
            return found.manifest.value()
        shares = _Shares(job, id)
        manifest = shares.manifest()
        if found is not None:
            _mend(job, final, found, manifest, shares)
            return manifest.value()
        partial = checkpoints / f"{id}.partial"
        partial.mkdir(exist_ok=True)
        (partial / RECEIVING).unlink(missing_ok=True)  # nobody may take what has not been looked at
        missing = _missing(job, partial, manifest)
        write_json(partial / RECEIVING, manifest.raw)
        shares.fetch(missing, manifest, partial)
        _clean(partial, manifest)
        publish(partial, final, manifest)
        return manifest.value()


def _mend(job: Job, final: Path, found: Standing, manifest: Manifest, shares: _Shares) -> None:
    """Fetches the damaged files alone."""
    if found.manifest.files != manifest.files:
        raise JobError(
            f"found {final} damaged ({', '.join(found.damaged[:3])}) and of another content than the head's; "
            "wanted the same files; stop what serves it, move the folder away and run again"
        )
    repaired = _repair(final)
    repaired.mkdir(exist_ok=True)
    shares.fetch(found.damaged, manifest, repaired)
    replace_files(final, repaired, found.damaged)


def _repair(final: Path) -> Path:
    return final.with_name(f"{final.name}.repair")


class _Shares:
    """The shares that a plan names, in the order in which they are asked; the last one is the head's."""

    def __init__(self, job: Job, id: str) -> None:
        plan = job.plan
        self._job, self._id = job, id
        self._urls = [url.rstrip("/") for url in plan.texts("urls") or [plan.text("url")]]
        self._streams = plan.integer("streams", 8)
        token = plan.secret("token_file")
        self._opener = plain_opener({"Authorization": f"Bearer {token}"} if token else {}, STALL)

    def manifest(self) -> Manifest:
        """The head's manifest."""
        self._job.progress.stage("manifest", None, "B", self._urls[-1])
        return _manifest(self._opener, f"{self._urls[-1]}/checkpoints/{self._id}", self._id)

    def fetch(self, names: Sequence[str], manifest: Manifest, folder: Path) -> None:
        """Fetches files of the manifest into `folder`, each verified; parts of an earlier run are used."""
        total = sum(manifest.files[name][0] for name in names)
        held = sum(part.stat().st_blocks * 512 for part in (folder / PARTS).glob("*.part"))
        need_space(folder, total - held, f"checkpoint {self._id}")
        self._job.progress.stage("fetch", total, "B", f"{len(names)} files from {', '.join(self._urls)}")
        fetcher = Fetcher(
            self._opener,
            streams=self._streams,
            stop=self._job.stop,
            on_bytes=self._job.progress.add,
            segment=SEGMENT,
            pause=PAUSE,
            stall=STALL,
            patience=PATIENCE,
        )
        fetcher.fetch([self._wanted(name, manifest, folder) for name in names])
        shutil.rmtree(folder / PARTS, ignore_errors=True)

    def _wanted(self, name: str, manifest: Manifest, folder: Path) -> Wanted:
        size, sha256 = manifest.files[name]
        urls = [f"{url}/checkpoints/{self._id}/{quote(name)}" for url in self._urls]

        def check(path: Path) -> str | None:
            found = sha256_of(path)
            return None if found == sha256 else f"sha256 {found} (manifest: {sha256})"

        def refused(status: int, _body: Body) -> JobError:
            return _refusal(status, urls[-1])

        return Wanted(name, urls, size, check, folder / name, folder / PARTS, refused)


def _manifest(opener: Opener, base: str, id: str) -> Manifest:
    where = f"{base}/{MANIFEST}"
    try:
        with opener(where, None) as body:
            if body.status != 200:
                raise _refusal(body.status, where)
            content = b""
            for chunk in body.chunks():
                content += chunk
                if len(content) > LONGEST_MANIFEST:
                    raise JobError(
                        f"found more than {LONGEST_MANIFEST} bytes at {where}; wanted a manifest; check it"
                    )
    except Transfer as error:
        raise JobError(
            f"found {error} at {where}; wanted the head's share; check the fabric, and that the head still "
            "shares"
        ) from None
    manifest = manifests.parse(content.decode("utf-8", "replace"), where)
    if manifest.id != id:
        raise JobError(f"found a manifest of {manifest.id} at {where}; wanted {id}; check the head")
    return manifest


def _refusal(status: int, where: str) -> JobError:
    if status == 401:
        return JobError(
            f"found HTTP 401 at {where}; wanted access with the share's token; "
            "run the deploy again, which gives all hosts the same token"
        )
    if status == 404:
        return JobError(
            f"found HTTP 404 at {where}; wanted the head's checkpoint; stage it on the head first"
        )
    return JobError(
        f"found HTTP {status} at {where}; wanted 200; see the journal of sparkstack-share on the head"
    )


def _missing(job: Job, partial: Path, manifest: Manifest) -> list[str]:
    """Names still to fetch. A killed run's files had the right hash; a power cut may have hurt them since."""
    there = [name for name in manifest.files if (partial / name).is_file()]
    if there:
        total = sum((partial / name).stat().st_size for name in there)
        job.progress.stage("check", total, "B", f"{len(there)} files from an earlier run")
    right = [name for name in there if (partial / name).stat().st_size == manifest.files[name][0]]
    hashes = manifests.hash_files([partial / name for name in right], job.progress.add)
    for name in there:
        if hashes.get(partial / name) != manifest.files[name][1]:
            (partial / name).unlink()
    return [name for name in manifest.files if not (partial / name).is_file()]


def _clean(partial: Path, manifest: Manifest) -> None:
    """Removes what is not in the manifest: parts, and leftovers of another attempt under this name."""
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(partial).as_posix() not in manifest.files:
            path.unlink()
