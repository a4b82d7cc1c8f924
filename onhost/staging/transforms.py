"""The transforms by name, and how a plan's steps are read.

A transform plans over a catalog and gives outputs (onhost.staging.outputs). Each has a version: when the
bytes it makes change, the version goes up, and with it the checkpoint's id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from onhost.plan import JobError, Plan
from onhost.staging import draft, fp8_dense, graft, ngram, register, reshard, turboquant
from onhost.staging.catalog import SOURCE, donor_origin
from onhost.staging.chain import Donor, Step

REVISION = re.compile(r"[0-9a-f]{40}")


def _register(plan: Plan) -> Step:
    return Step("register_mtp", register.VERSION, {}, register.register_mtp)


def _reshard(plan: Plan) -> Step:
    limit = plan.integer("max_shard_bytes")
    work = partial(reshard.reshard, max_shard_bytes=limit)
    return Step("reshard", reshard.VERSION, {"max_shard_bytes": limit}, lambda catalog, _: work(catalog))


def _donor(plan: Plan) -> Donor:
    repo, revision = plan.text("repo"), plan.text("revision")
    if not REVISION.fullmatch(revision):
        raise JobError(
            f"found the donor's revision {revision!r}; wanted 40 hex digits; pin the commit in the recipe"
        )
    return Donor(repo, revision, donor_origin(repo, revision))


def _patterns(plan: Plan) -> tuple[str, ...]:
    patterns = plan.texts("tensors")
    if not patterns:
        raise JobError("found no `tensors` in the plan; wanted patterns of names; correct the recipe")
    return tuple(patterns)


def _block(plan: Plan) -> tuple[int, int]:
    value = plan.data.get("block_size", [128, 128])
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in value)
    ):
        raise JobError(f"found the block size {value!r}; wanted [rows, columns]; correct the recipe")
    return value[0], value[1]


def _graft(plan: Plan) -> Step:
    donor = _donor(plan.sub("donor"))
    note = plan.truth("config_note", True)
    expect, block = plan.integer("expect_tensors"), _block(plan)
    work = graft.Graft(donor.repo, donor.revision, donor.origin, _patterns(plan), expect, block, note)
    params = {
        "donor": {"repo": donor.repo, "revision": donor.revision},
        "tensors": list(work.tensors),
        "expect_tensors": expect,
        "block_size": list(block),
        "config_note": note,
    }
    return Step("graft_fp8", graft.VERSION, params, work.plan, (donor,))


def _turboquant(plan: Plan) -> Step:
    recipe = plan.text("recipe")
    if recipe not in turboquant.RECIPES and recipe not in turboquant.SHORT:
        raise JobError(
            f"found the recipe {recipe!r} of turboquant_metadata; wanted one of "
            f"{', '.join([*turboquant.RECIPES, *turboquant.SHORT])}; correct the recipe"
        )
    work = partial(turboquant.turboquant_metadata, recipe=recipe)
    params = {"recipe": recipe}
    return Step("turboquant_metadata", turboquant.VERSION, params, lambda catalog, _: work(catalog))


def _dense(plan: Plan) -> Step:
    work = fp8_dense.Dense(_patterns(plan), plan.integer("expect_tensors"), _block(plan))
    params = {
        "tensors": list(work.tensors),
        "expect_tensors": work.expect,
        "block_size": list(work.block),
    }
    return Step("fp8_dense", fp8_dense.VERSION, params, lambda catalog, _: work.plan(catalog))


def _draft(plan: Plan) -> Step:
    output = plan.text("output") if "output" in plan.data else "bf16"
    if output not in {"bf16", "fp8", "nvfp4"}:
        raise JobError(
            f"found the output {output!r} of draft_vocab; wanted bf16, fp8 or nvfp4; correct the recipe"
        )
    counts, pin = plan.maybe_text("counts"), plan.truth("pin_special", True)
    donor = _donor(plan.sub("donor")) if plan.data.get("donor") is not None else None
    size = plan.integer("size", 65536)
    if donor is not None and counts is None:
        raise JobError(
            "found a donor for draft_vocab and no `counts`; wanted the name of a file in it; "
            "correct the recipe"
        )
    work = draft.Draft(size, output, counts, pin, SOURCE if donor is None else donor.origin)
    params = {
        "size": size,
        "output": output,
        "counts": counts,
        "pin_special": pin,
        "donor": None if donor is None else {"repo": donor.repo, "revision": donor.revision},
    }
    return Step("draft_vocab", draft.VERSION, params, work.plan, () if donor is None else (donor,))


def _ngram(plan: Plan) -> Step:
    rows = None if plan.data.get("expect_rows") is None else plan.integer("expect_rows")
    work = partial(ngram.ngram_table, expect_rows=rows)
    return Step("ngram_table", ngram.VERSION, {"expect_rows": rows}, lambda catalog, _: work(catalog))


TRANSFORMS: dict[str, Callable[[Plan], Step]] = {
    "register_mtp": _register,
    "reshard": _reshard,
    "graft_fp8": _graft,
    "turboquant_metadata": _turboquant,
    "fp8_dense": _dense,
    "draft_vocab": _draft,
    "ngram_table": _ngram,
}


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
