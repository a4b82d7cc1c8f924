"""The transforms by name, and how a plan's steps are read.

A transform plans over a catalog and gives outputs (onhost.staging.outputs). Each has a version: when the
bytes it makes change, the version goes up, and with it the checkpoint's id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onhost.plan import JobError, Plan
from onhost.staging import register, reshard
from onhost.staging.chain import Step


def _register(plan: Plan) -> Step:
    return Step("register_mtp", register.VERSION, {}, register.register_mtp)


def _reshard(plan: Plan) -> Step:
    limit = plan.integer("max_shard_bytes")
    work = partial(reshard.reshard, max_shard_bytes=limit)
    return Step("reshard", reshard.VERSION, {"max_shard_bytes": limit}, lambda catalog, _: work(catalog))


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
                f"{plan.data['version']}; bring onhost up to date"
            )
        steps.append(step)
    return steps
