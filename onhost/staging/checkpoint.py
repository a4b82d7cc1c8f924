"""Job checkpoint: what has to be made is planned from headers, then downloaded and made, file by file.

Only a folder whose files are all on the disk, hashed and listed in its manifest gets the final name. A
finished checkpoint whose files were damaged since is mended: just those files are made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onhost.files import need_space, size_text
from onhost.jobs import Job
from onhost.locks import Held, exclusive
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.staging.catalog import CONTENT, SOURCE, FileInfo, Need
from onhost.staging.chain import Chained, Step, chain
from onhost.staging.download import Downloads, Origin, broken, tidy
from onhost.staging.folder import Standing, checkpoint_id, claimed, publish, replace_files, standing
from onhost.staging.graph import Graph, disk_limit, graph_of
from onhost.staging.manifest import MANIFEST
from onhost.staging.pipeline import Journal, Pipeline
from onhost.staging.safetensors import FormatError
from onhost.staging.source import Source
from onhost.staging.transforms import read_steps


def build(job: Job) -> dict[str, Any]:
    """The job's function: returns id, bytes and number of files of a checkpoint that stands whole."""
    plan = job.plan
    source = Source.read(plan.sub("source"))
    steps = read_steps(plan.subs("transforms"))
    checkpoints, id = plan.path("checkpoints_dir"), checkpoint_id(plan.text("id"))
    final = checkpoints / id
    with claimed(checkpoints, id), ExitStack() as locks:
        found = standing(job, final)
        if found is not None and not found.damaged:
            if _journal(final).exists():  # a run was killed after its work was done
                _lock(job, source, steps, locks)
                _tidy(job, source, steps, final)
            return found.manifest.value()
        _lock(job, source, steps, locks)
        work = _planned(job, source, steps)
        if found is not None:
            _mend(job, final, found, work)
            _tidy(job, source, steps, final)
            return found.manifest.value()
        partial = final.with_name(f"{id}.partial")
        inputs = work.inputs()
        described = [step.described() for step in steps]
        journal = Journal(_journal(final), partial, _stamp(described, inputs))
        _carry_out(job, work, partial, journal)
        manifest = manifests.make(
            id,
            {"repo": source.repo, "revision": source.revision},
            described,
            journal.files,
            inputs,
            _header_hashes(partial, journal.files, work.origins[SOURCE]),
        )
        publish(partial, final, manifest)
        _tidy(job, source, steps, final)
        return manifest.value()


@dataclass
class _Work:
    """What a job is about to do: the planned files, where their bytes come from, and how they come."""

    chained: Chained
    origins: dict[str, Origin]
    downloads: Downloads
    keep_source: bool

    def graph(self, done: Iterable[str] = ()) -> Graph:
        """The tasks for all files but those of `done`."""
        sizes = {
            Need(key, name): file.size
            for key, origin in self.origins.items()
            for name, file in origin.files.items()
        }
        return graph_of(self.chained, sizes, done)

    def inputs(self) -> list[dict[str, Any]]:
        """Each repository with the files that the checkpoint is made from, as the manifest lists them."""
        used = self.graph().sources
        found = []
        for key, origin in self.origins.items():
            names = sorted(need.file for need in used if need.origin == key)
            files = {name: origin.files[name].described() for name in names}
            found.append({"repo": origin.source.repo, "revision": origin.source.revision, "files": files})
        return found


def _sources(source: Source, steps: Sequence[Step]) -> dict[str, Source]:
    """The recipe's own revision and the donors', by what needs call them."""
    donors = [donor for step in steps for donor in step.donors]
    return {SOURCE: source} | {
        donor.origin: replace(source, repo=donor.repo, revision=donor.revision, allow=None)
        for donor in donors
    }


def _lock(job: Job, source: Source, steps: Sequence[Step], locks: ExitStack) -> None:
    """Nobody else may work on these downloads; JobError that names who does."""
    for one in _sources(source, steps).values():
        home = job.plan.path("downloads_dir") / one.repo.replace("/", "--")
        home.mkdir(parents=True, exist_ok=True)
        try:
            locks.enter_context(exclusive(home / f".{one.revision}.lock"))
        except Held as held:
            raise JobError(
                f"found another job at work on the files of {one.repo} ({held}); wanted to be alone; "
                "wait for it and run again"
            ) from None


def _planned(job: Job, source: Source, steps: Sequence[Step]) -> _Work:
    """Lists the repositories, reads the headers, and lets the transforms plan. No weight is downloaded."""
    downloads_dir = job.plan.path("downloads_dir")
    keep_source = job.plan.flag("keep_source", True)
    origins = {key: Origin(job, one, downloads_dir) for key, one in _sources(source, steps).items()}
    downloads = Downloads(job, source)
    for origin in origins.values():
        origin.look(job)
    if MANIFEST in origins[SOURCE].files:
        raise JobError(
            f"found a file {MANIFEST} in {source.repo}; wanted that name free; leave it out by `allow`"
        )
    catalogs = {
        key: _catalog(origin, downloads, not keep_source) if steps else _listing(origin)
        for key, origin in origins.items()
    }
    base = catalogs.pop(SOURCE)
    return _Work(chain(base, steps, catalogs), origins, downloads, keep_source)


def _header_hashes(folder: Path, names: Iterable[str], source: Origin) -> dict[str, str]:
    try:
        return {n: manifests.header_sha256(folder / n) for n in names if n.endswith(".safetensors")}
    except FormatError as error:  # what a transform wrote has been read back: it is one of the source's
        raise broken(error, source) from None


def _listing(origin: Origin) -> dict[str, FileInfo]:
    """A catalog without headers, where nothing reads them."""
    return {name: FileInfo(file.size, file.sha256) for name, file in origin.files.items()}


def _catalog(origin: Origin, downloads: Downloads, keep_headers: bool) -> dict[str, FileInfo]:
    contents = [name for name in origin.files if CONTENT.fullmatch(name)]
    missing = [name for name in contents if not (origin.folder / name).is_file()]
    if missing:
        downloads.fetch([origin.wanted(name) for name in missing], lambda _count: None)
    weights = [name for name in origin.files if name.endswith(".safetensors")]
    headers = downloads.headers(origin, weights, keep_headers)
    return {
        name: FileInfo(
            file.size,
            file.sha256,
            headers.get(name),
            (origin.folder / name).read_bytes() if name in contents else None,
        )
        for name, file in origin.files.items()
    }


def _carry_out(job: Job, work: _Work, folder: Path, journal: Journal, whole: Iterable[str] = ()) -> None:
    """Makes what neither the journal nor `whole` has; says beforehand what that takes."""
    graph = work.graph({*journal.files, *whole})
    here = {need for need in graph.sources if (work.origins[need.origin].folder / need.file).is_file()}
    fetch = sum(size for need, size in graph.sources.items() if need not in here)
    write = sum(task.written for task in graph.tasks.values())
    limit = disk_limit(graph, work.keep_source)
    job.progress.stage(
        "plan",
        None,
        "B",
        f"{size_text(fetch)} to download, {size_text(write)} to write; "
        f"at most {size_text(limit)} on the disk at a time",
        done=limit,
    )
    held = sum(graph.sources[need] for need in here) + sum(o.held() for o in work.origins.values())
    downloads = work.origins[SOURCE].folder
    if downloads.stat().st_dev == folder.stat().st_dev:
        need_space(folder, limit - held, f"checkpoint {job.plan.text('id')}")
    else:  # links between two file systems are copies
        need_space(downloads, fetch, "the files to download")
        need_space(folder, sum(task.info.size for task in graph.tasks.values()), "the files to write")
    Pipeline(job, graph, work.origins, work.downloads, folder, journal, work.keep_source).run()


def _mend(job: Job, final: Path, found: Standing, work: _Work) -> None:
    """Makes the damaged files alone, holds them against the manifest, and puts them in their places."""
    names = {output.name for output in work.chained.outputs}
    if names != set(found.manifest.files):
        raise JobError(
            f"found {final} with other files than this recipe makes; wanted the same; stop what serves it, "
            "move the folder away and run again"
        )
    repaired = final.with_name(f"{final.name}.repair")
    journal = Journal(_journal(final), repaired, f"repair of {', '.join(found.damaged)}")
    whole = names - set(found.damaged)
    needed = work.graph(whole).sources
    for key, origin in work.origins.items():
        # A damaged file may be one with the download's: what it is made from is hashed, whatever is noted.
        origin.look(job, [need.file for need in needed if need.origin == key], distrust=True)
    _carry_out(job, work, repaired, journal, whole)
    for name in found.damaged:
        if journal.files[name] != found.manifest.files[name]:
            raise JobError(
                f"found {name} made anew with another sha256 than {final / MANIFEST} says; wanted the same "
                "bytes; stop what serves it, move the folder away and run again"
            )
    replace_files(final, repaired, found.damaged)


def _journal(final: Path) -> Path:
    return final.with_name(f".{final.name}.journal")


def _stamp(described: Sequence[Mapping[str, Any]], inputs: Sequence[Mapping[str, Any]]) -> str:
    """Says of which work a journal is: other inputs or transforms, and it does not count."""
    return hashlib.sha256(json.dumps([described, inputs], sort_keys=True).encode()).hexdigest()


def _tidy(job: Job, source: Source, steps: Sequence[Step], final: Path) -> None:
    """Removes what only the work needed; the journal last, as the sign that this has been done."""
    for folder in final.parent.glob(f"{final.name}.*"):
        if folder.is_dir() and folder.name.split(".")[1] in {"partial", "repair"}:
            shutil.rmtree(folder)
    for one in _sources(source, steps).values():
        tidy(one, job.plan.path("downloads_dir"), job.plan.flag("keep_source", True))
    _journal(final).unlink(missing_ok=True)
