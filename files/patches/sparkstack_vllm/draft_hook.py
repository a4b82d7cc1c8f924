"""vLLM's side of `draft_head`: where a drafter is loaded, and what it must be like."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkstack_vllm.draft_head import DraftLogits, given, read, refuse

# Drafters whose head is the model's. Others (a small model, DFlash, Medusa) come with a head or a sampler of
# their own, which these rows know nothing of.
METHODS = ("mtp", "eagle", "eagle3")

# The classes whose `load_model` ends with a drafter in `self.model`, by the modules they were in: V1's, and
# V2's since it has a base class and before that. One of each group must be there.
LOADERS = (
    (
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer"),
        ("vllm.v1.spec_decode.eagle", "SpecDecodeBaseProposer"),
    ),
    (
        ("vllm.v1.worker.gpu.spec_decode.speculator", "DraftModelSpeculator"),
        ("vllm.v1.worker.gpu.spec_decode.eagle.speculator", "EagleSpeculator"),
    ),
)
DONE = "_sparkstack_draft_head"


def _loader(places: tuple[tuple[str, str], ...]) -> Any:
    for module, name in places:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise  # vLLM's module is there and lacks something itself
            continue
        if hasattr(found, name):
            return getattr(found, name)
    names = " or ".join(f"{module}.{name}" for module, name in places)
    raise refuse(f"no {names} in this vLLM", "a drafter's loader to hook into", "set SPARKSTACK_DRAFT_HEAD=0")


def install() -> None:
    """Hook into the loaders of drafters. A second call changes nothing."""
    for places in LOADERS:
        cls = _loader(places)
        usual = cls.load_model
        if getattr(usual, DONE, False):
            continue

        def load_model(self: Any, target_model: Any, *args: Any, usual: Any = usual, **kwargs: Any) -> Any:
            result = usual(self, target_model, *args, **kwargs)
            put(self.model, target_model, self.vllm_config)
            return result

        setattr(load_model, DONE, True)
        cls.load_model = load_model


def put(drafter: Any, target: Any, config: Any) -> None:
    """Give a loaded drafter the checkpoint's draft head.

    Errors: PluginError for a drafter that does not draft with the model's own head over the model's own
    vocabulary, and for a head that is not this model's.
    """
    from vllm.distributed.communication_op import tensor_model_parallel_all_gather
    from vllm.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    off, kind = "set SPARKSTACK_DRAFT_HEAD=0", type(drafter).__name__
    speculative = config.speculative_config
    if speculative.method not in METHODS:
        raise refuse(f"speculative method {speculative.method!r}", f"one of {', '.join(METHODS)}", off)
    if getattr(speculative, "draft_lm_head_quantization", None) is not None:
        asked = f"draft_lm_head_quantization {speculative.draft_lm_head_quantization!r} beside draft_head"
        raise refuse(asked, "one of the two", "remove it from speculative_config")
    if getattr(drafter, "draft_id_to_target_id", None) is not None:
        raise refuse("a drafter with a draft vocabulary of its own", "one that drafts all tokens", off)
    theirs = list(_processors(drafter, LogitsProcessor))
    if not theirs:
        raise refuse(f"no LogitsProcessor in {kind}", "the drafter's logits to come from one", off)
    if not _shares(drafter, target):
        raise refuse(f"{kind} with an LM head of its own", "one that shares the model's", off)

    folder = Path(config.model_config.model)
    head = read(folder)
    hidden = drafting_width(target)
    usual = theirs[0][2]
    if hidden is not None and hidden != head.width:
        raise refuse(
            f"a draft head of width {head.width} in {folder}",
            f"{hidden}, the width of the model's head",
            "stage the checkpoint again",
        )
    if int(head.ids[-1]) >= usual.org_vocab_size:
        raise refuse(
            f"token {int(head.ids[-1])} in the draft head of {folder}",
            f"tokens below {usual.org_vocab_size}",
            "stage the checkpoint again",
        )
    if any(one.soft_cap is not None for _, _, one in theirs):
        raise refuse("a model that caps its logits (soft_cap)", "one that does not", off)

    world = get_tensor_model_parallel_world_size()
    rank = get_tensor_model_parallel_rank()
    gather = gathered(tensor_model_parallel_all_gather) if world > 1 else None
    device = next(drafter.parameters()).device
    made = DraftLogits(head, usual.org_vocab_size, device, rank, world, gather, usual.scale)
    for owner, name, _ in theirs:
        setattr(owner, name, made)
    tokens = f"{head.ids.shape[0]} of {usual.org_vocab_size} tokens"
    given.append(f"{tokens}, {head.kind}, on {world} rank(s)")


def gathered(all_gather: Any) -> Any:
    def gather(part: Tensor) -> Tensor:
        joined: Tensor = all_gather(part, dim=-1)
        return joined

    return gather


def _processors(drafter: Any, cls: Any) -> Iterator[tuple[Any, str, Any]]:
    """(module, attribute, processor) of each logits processor in a drafter."""
    for module in list(drafter.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, cls):
                yield module, name, child


def _language_model(model: Any) -> Any:
    return model.get_language_model() if hasattr(model, "get_language_model") else model


def _head(model: Any) -> Any:
    """A model's own LM head; for a model of text and pictures that of its language model."""
    return getattr(_language_model(model), "lm_head", None) or getattr(model, "lm_head", None)


def drafting_width(target: Any) -> int | None:
    width = getattr(_head(target), "embedding_dim", None)
    return None if width is None else int(width)


def _shares(drafter: Any, target: Any) -> bool:
    """Whether all heads in the drafter are the model's, as objects or by content.

    vLLM 0.20's V2 runner loads the head a second time for models of text and pictures.
    """
    ours = _head(target)
    inner = getattr(drafter, "model", None)
    layers = getattr(inner, "layers", None)
    items = layers.values() if isinstance(layers, torch.nn.ModuleDict) else layers or ()
    heads = [getattr(layer.shared_head, "head", None) for layer in items if hasattr(layer, "shared_head")]
    heads = [head for head in heads if head is not None] or [getattr(drafter, "lm_head", None)]
    return all(head is not None and (head is ours or _equal(head, ours)) for head in heads)


def _equal(one: Any, other: Any, rows: int = 4096) -> bool:
    mine, theirs = getattr(one, "weight", None), getattr(other, "weight", None)
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return False
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    # A piece at a time: comparing makes a copy of the size of what is compared.
    steps = range(0, mine.shape[0], rows)
    return all(torch.equal(mine[at : at + rows], theirs[at : at + rows]) for at in steps)
