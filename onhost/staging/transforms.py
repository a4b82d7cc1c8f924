"""The transforms by name, and how they are applied one after the other.

A transform is a function from a view (names → files that it may only read) to a folder that it fills. Each
has a version: when the bytes it makes change, the version goes up, and with it the checkpoint's id.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onhost.files import files_below, link_or_copy, safe_relative
from onhost.plan import JobError, Plan
from onhost.staging import register, reshard
from onhost.staging.model_index import View


class Meter(Protocol):
    """Where a transform tells how far it is; onhost.jobs.Progress fits."""

    def stage(self, name: str, total: int | None, unit: str, note: str = "", done: int = 0) -> None:
        """Begins a stage."""

    def add(self, count: int, note: str | None = None) -> None:
        """Some units are done."""


@dataclass(frozen=True)
class Step:
    """A transform of a plan, its parameters read and checked."""

    name: str
    version: int
    params: dict[str, Any]
    apply: Callable[[View, Path, Meter], None]
    space: Callable[[View], int]  # bytes that it writes anew, at most

    def described(self) -> dict[str, Any]:
        """As the manifest names it."""
        return {"name": self.name, "version": self.version, **self.params}


def _register(plan: Plan) -> Step:
    return Step("register_mtp", register.VERSION, {}, register.register_mtp, lambda view: 0)


def _reshard(plan: Plan) -> Step:
    limit = plan.integer("max_shard_bytes")
    return Step(
        "reshard",
        reshard.VERSION,
        {"max_shard_bytes": limit},
        lambda view, target, meter: reshard.reshard(view, target, meter, limit),
        lambda view: reshard.bytes_to_write(view, limit),
    )


TRANSFORMS: dict[str, Callable[[Plan], Step]] = {"register_mtp": _register, "reshard": _reshard}


def read_steps(plans: Sequence[Plan]) -> list[Step]:
    """The plan's transforms in order.

    JobError for a name, a parameter or a version that is not known here.
    """
    steps = []
    for plan in plans:
        name = plan.text("name")
        if name not in TRANSFORMS:
            raise JobError(
                f"found the transform {name!r}; wanted one of {', '.join(TRANSFORMS)}; correct the recipe"
            )
        step = TRANSFORMS[name](plan)
        unknown = set(plan.data) - set(step.described())
        if unknown:
            raise JobError(
                f"found {name} with {', '.join(sorted(unknown))}; wanted known keys; correct the recipe"
            )
        if plan.integer("version", step.version) != step.version:
            raise JobError(
                f"found version {step.version} of {name} on this host; wanted version "
                f"{plan.data['version']}; "
                "bring onhost up to date"
            )
        steps.append(step)
    return steps


def apply_steps(source: View, steps: Sequence[Step], target: Path, meter: Meter) -> None:
    """Fills `target` (which must not exist) with the source after all steps.

    Leaves no other folder behind.
    """
    view = source
    between: Path | None = None
    for at, step in enumerate(steps):
        folder = target if at == len(steps) - 1 else target.with_name(f"{target.name}.step{at + 1}")
        folder.mkdir(parents=True)
        step.apply(view, folder, meter)
        if between is not None:
            shutil.rmtree(between)  # what is still wanted of it has a second link in `folder`
        view = folder_view(folder)
        between = folder
    if not steps:
        target.mkdir(parents=True)
        meter.stage("link", sum(path.stat().st_size for path in view.values()), "B", "no transforms")
        for name, path in view.items():
            link_or_copy(path, target / name, meter.add)


def folder_view(folder: Path) -> dict[str, Path]:
    """All files below a folder as a view."""
    return {safe_relative(name): folder / name for name in files_below(folder)}
