"""What each switched-on feature found in the model: one line a feature and worker, once all is loaded.

All is the model and its drafter, whose heads and layers may be the only ones that a feature is for. vLLM's
executors reach every kind of worker through `WorkerWrapperBase`, which is also what loads plugins in a
worker; its `load_model` is where both are there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparkstack_vllm.features import Feature

DONE = "_sparkstack_says"


class Nothing(NamedTuple):
    """A feature found nothing to do."""

    found: str
    remedy: str = ""  # what to do other than to switch it off
    in_last: bool = False  # whether only a pipeline's last stage can have what it is for
    changed: str = "nothing was changed"


def line(feature: Feature, said: str | Nothing, stage: int, stages: int) -> tuple[int, str]:
    """Level and text of a feature's line in stage `stage` (from 1) of a pipeline of `stages`.

    A stage without what is in the last one is as it should be. What may be in any stage can be missing in
    some: no stage knows of the others, so none of several warns.
    """
    start = f"sparkstack plugin: {feature.name}: "
    if isinstance(said, str):
        return logging.INFO, start + said
    where = f"in pipeline stage {stage} of {stages}"
    if said.in_last and stage < stages:
        return logging.INFO, f"{start}nothing to do {where}; the last stage says what was done"
    off = f"set {feature.switch}=0"
    remedy = f"{said.remedy}, or {off}" if said.remedy else off
    if stages > 1 and not said.in_last:
        text = f"found {said.found} {where}; {said.changed} here; where every stage says so, {remedy}"
        return logging.INFO, start + text
    return logging.WARNING, f"{start}found {said.found}; {said.changed}; {remedy}"


def install(switched_on: Sequence[tuple[Feature, Any]]) -> None:
    """Have the features' modules asked, after each load of a worker, what they did. Once a process."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from sparkstack_vllm.plugin import log

    usual = getattr(WorkerWrapperBase, "load_model", None)
    if getattr(usual, DONE, False):
        return

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.distributed.parallel_state import get_pp_group

        # No version read so far has a method of this name here: the wrapper passes it on to its worker.
        result = usual(self, *args, **kwargs) if usual else self.worker.load_model(*args, **kwargs)
        try:
            model, pipeline = self.worker.get_model(), get_pp_group()
            for feature, module in switched_on:
                said = module.loaded(model)
                level, text = line(feature, said, pipeline.rank_in_group + 1, pipeline.world_size)
                log.log(level, "%s", text)
        except Exception as error:  # no server is to end for want of a line on what was done
            log.warning("sparkstack plugin: found %r when asked what its features did; not known", error)
        return result

    setattr(load_model, DONE, True)
    WorkerWrapperBase.load_model = load_model
