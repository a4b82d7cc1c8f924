"""Transforms one after the other, joined before anything is written, and a runner for files that are here.

A range that a later transform copies from an earlier one's file is traced back to where that one took it
from. So a graft that is then cut anew reads the base and the donor and writes once. Only where a transform
computes from what another one computed is a file between them needed.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onhost.files import files_below, safe_relative
from onhost.plan import JobError
from onhost.staging.catalog import SOURCE, Catalog, Need, View, catalog_of
from onhost.staging.ngram import check_row_map
from onhost.staging.outputs import Copy, Literal, Made, Meter, Output, Part, Planned, kept, merged
from onhost.staging.safetensors import read_header

Donors = Mapping[str, Catalog]
WRITERS = 2  # one file is copied while the other is brought to the disk


@dataclass(frozen=True)
class Donor:
    """A checkpoint that a transform takes tensors or files from."""

    repo: str
    revision: str
    origin: str


@dataclass(frozen=True)
class Step:
    """A transform of a plan, its parameters read and checked; `plan` is pure."""

    name: str
    version: int
    params: dict[str, Any]
    plan: Callable[[Catalog, Donors], Planned]
    donors: tuple[Donor, ...] = ()

    def described(self) -> dict[str, Any]:
        """As the manifest names it."""
        return {"name": self.name, "version": self.version, **self.params}


@dataclass(frozen=True)
class Chained:
    """`outputs` are the checkpoint; `between` (origin → outputs) are files that only other outputs need."""

    outputs: tuple[Output, ...]
    between: dict[str, tuple[Output, ...]]

    @property
    def written(self) -> int:
        """Bytes that are written anew, links left out."""
        return sum(o.written for o in itertools.chain(self.outputs, *self.between.values()))


def chain(source: Catalog, steps: Iterable[Step], donors: Donors) -> Chained:
    """The files after all steps, with needs among the source's, the donors' and `between`.

    JobError where a step refuses what it was given.
    """
    # A large model has a hundred thousand tensors, none of them garbage: looking for some is half the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _chain(source, steps, donors)
    finally:
        if collecting:
            gc.enable()


def _chain(source: Catalog, steps: Iterable[Step], donors: Donors) -> Chained:
    outputs = [kept(name, info) for name, info in source.items()]
    catalog = source
    between: dict[str, tuple[Output, ...]] = {}
    for number, step in enumerate(steps):
        planned = step.plan(catalog, donors)
        joined = _Joined(f"step{number}", {output.name: output for output in outputs})
        outputs = [joined.resolved(output) for output in planned.outputs]
        if joined.wanted:
            between[joined.origin] = tuple(joined.before[name] for name in sorted(joined.wanted))
        catalog = planned.catalog()
    check_row_map(catalog)
    return Chained(tuple(outputs), between)


class _Joined:
    """Traces what a step takes from the step before it."""

    def __init__(self, origin: str, before: dict[str, Output]) -> None:
        self.origin = origin
        self.before = before
        self.wanted: set[str] = set()  # files of the step before that have to be written after all
        self._ends: dict[str, list[int]] = {}

    def resolved(self, output: Output) -> Output:
        if output.link_of is not None:
            if output.link_of.origin != SOURCE:
                return output
            old = self.before[output.link_of.file]
            return Output(output.name, output.info, old.parts, old.link_of)
        return Output(output.name, output.info, merged(p for part in output.parts for p in self._part(part)))

    def _part(self, part: Part) -> list[Part]:
        if isinstance(part, Literal):
            return [part]
        if isinstance(part, Copy):
            return self._copy(part)
        return [Made(part.size, tuple(self._input(copy) for copy in part.inputs), part.make)]

    def _input(self, copy: Copy) -> Copy:
        traced = merged(self._copy(copy))
        if len(traced) == 1 and isinstance(traced[0], Copy):
            return traced[0]
        return self._written(copy)

    def _written(self, copy: Copy) -> Copy:
        self.wanted.add(copy.need.file)
        return Copy(Need(self.origin, copy.need.file), copy.offset, copy.size)

    def _copy(self, copy: Copy) -> list[Part]:
        if copy.need.origin != SOURCE or not copy.size:
            return [copy]
        old = self.before[copy.need.file]
        if old.link_of is not None:
            return [Copy(old.link_of, copy.offset, copy.size)]
        if copy.need.file not in self._ends:
            self._ends[copy.need.file] = list(itertools.accumulate(part.size for part in old.parts))
        ends = self._ends[copy.need.file]
        at, end = copy.offset, copy.offset + copy.size
        found: list[Part] = []
        for number in range(bisect.bisect_right(ends, at), len(ends)):
            part, begin = old.parts[number], ends[number] - old.parts[number].size
            skip, count = at - begin, min(end, ends[number]) - at
            if isinstance(part, Literal):
                found.append(Literal(part.data[skip : skip + count]))
            elif isinstance(part, Copy):
                found.append(Copy(part.need, part.offset + skip, count))
            elif count == part.size:
                found.append(part)
            else:
                return [self._written(copy)]
            at += count
            if at == end:
                return found
        raise JobError(
            f"found {at} bytes planned of {copy.need.file}; wanted {end}; report it to us with the recipe"
        )


def check_written(output: Output, path: Path) -> None:
    """JobError unless a written weight file has the header that was planned for it."""
    if output.info.header is None or output.link_of is not None:
        return
    if read_header(path) != output.info.header:
        raise JobError(
            f"found another header in {path.name} than was written; wanted the same; check the disk"
        )


def apply_steps(
    source: View,
    steps: Sequence[Step],
    target: Path,
    meter: Meter,
    donors: Mapping[str, View] | None = None,
) -> None:
    """Fills `target` (which must not exist) from files that are all here; leaves no other folder behind."""
    views = {SOURCE: source, **(donors or {})}
    chained = chain(
        catalog_of(source), steps, {origin: catalog_of(view) for origin, view in (donors or {}).items()}
    )
    folders = {origin: target.with_name(f"{target.name}.{origin}") for origin in chained.between}

    def find(need: Need) -> Path:
        return folders[need.origin] / need.file if need.origin in folders else views[need.origin][need.file]

    target.mkdir(parents=True)
    total = sum(o.info.size for o in itertools.chain(chained.outputs, *chained.between.values()))
    meter.stage("transform", total, "B", ", ".join(step.name for step in steps) or "no transforms")

    def make(output: Output, folder: Path) -> None:
        output.write(find, folder / output.name, meter)
        check_written(output, folder / output.name)

    with ThreadPoolExecutor(WRITERS, thread_name_prefix="write") as pool:
        for origin, outputs in [*chained.between.items(), ("", chained.outputs)]:
            folder = folders.get(origin, target)
            for future in [pool.submit(make, output, folder) for output in outputs]:
                future.result()
    for folder in folders.values():
        shutil.rmtree(folder)


def folder_view(folder: Path) -> dict[str, Path]:
    """All files below a folder as a view."""
    return {safe_relative(name): folder / name for name in files_below(folder)}
