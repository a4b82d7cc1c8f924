"""Job fetch-checkpoint: a finished checkpoint from the head's share, in parallel ranges, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from onhost.files import need_space, sha256_of
from onhost.jobs import Job
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.checkpoint import checkpoint_id, claimed, finished, publish
from onhost.staging.manifest import MANIFEST, Manifest
from onhost.staging.openers import plain_opener
from onhost.staging.ranged import SEGMENT, Fetcher, Opener, Transfer, Wanted

PARTS = ".parts"
PAUSE = 1.0  # s before a second attempt; doubles
STALL = 30.0  # s without a byte that end an attempt
LONGEST_MANIFEST = 64 << 20  # bytes


def fetch(job: Job) -> dict[str, Any]:
    """The job's function: returns id, bytes and number of files of a checkpoint that stands whole."""
    plan = job.plan
    checkpoints, id = plan.path("checkpoints_dir"), checkpoint_id(plan.text("id"))
    url, streams = plan.text("url").rstrip("/"), plan.integer("streams", 8)
    with claimed(checkpoints, id):
        done = finished(job, checkpoints / id)
        if done is not None:
            return done.value()
        token = plan.secret("token_file")
        opener = plain_opener({"Authorization": f"Bearer {token}"} if token else {}, STALL)
        base = f"{url}/checkpoints/{id}"
        job.progress.stage("manifest", None, "B", url)
        manifest = _manifest(opener, base, id)
        partial = checkpoints / f"{id}.partial"
        partial.mkdir(exist_ok=True)
        missing = _missing(job, partial, manifest)
        held = sum(part.stat().st_blocks * 512 for part in (partial / PARTS).glob("*.part"))
        need_space(partial, sum(manifest.files[name][0] for name in missing) - held, f"checkpoint {id}")
        job.progress.stage(
            "fetch", sum(manifest.files[n][0] for n in missing), "B", f"{len(missing)} files from {url}"
        )
        fetcher = Fetcher(
            opener,
            partial,
            partial / PARTS,
            streams=streams,
            stop=job.stop,
            on_bytes=job.progress.add,
            refusal=lambda status, name, _body: _refusal(status, f"{base}/{name}"),
            segment=SEGMENT,
            pause=PAUSE,
        )
        fetcher.fetch([_wanted(base, name, manifest) for name in missing])
        _clean(partial, manifest)
        publish(partial, checkpoints / id, manifest)
        return manifest.value()


def _wanted(base: str, name: str, manifest: Manifest) -> Wanted:
    size, sha256 = manifest.files[name]

    def check(path: Path) -> str | None:
        found = sha256_of(path)
        return None if found == sha256 else f"sha256 {found} (manifest: {sha256})"

    return Wanted(name, f"{base}/{quote(name)}", size, check)


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
    for name, path in ((name, partial / name) for name in there):
        size, sha256 = manifest.files[name]
        if path.stat().st_size != size or sha256_of(path, job.progress.add) != sha256:
            path.unlink()
    return [name for name in manifest.files if not (partial / name).is_file()]


def _clean(partial: Path, manifest: Manifest) -> None:
    """Removes what is not in the manifest: parts, and leftovers of another attempt under this name."""
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(partial).as_posix() not in manifest.files:
            path.unlink()
