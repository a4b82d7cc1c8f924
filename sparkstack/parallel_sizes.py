"""How vLLM's parallel sizes share out the hosts; one host is one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

OTHERS = ("pipeline_parallel_size", "prefill_context_parallel_size", "data_parallel_size")
"""The sizes beside tensor parallel that multiply the GPUs. `decode_context_parallel_size` is none of them: it
shares the GPUs of tensor parallel (vllm/config/parallel.py, read in 0.32.0)."""
SIZES = ("tensor_parallel_size", *OTHERS, "decode_context_parallel_size")
OTHERS_NAME = "pipeline × prefill context × data parallel size"
ALL_NAME = f"tensor × {OTHERS_NAME}"

Told = tuple[str, str, str, str]
"""The option that it is about; found, wanted, remedy."""


def size(options: Mapping[str, Any], name: str) -> int:
    """A parallel size, 1 when it is not said."""
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def others(options: Mapping[str, Any]) -> int:
    """The product of the sizes beside tensor parallel."""
    return prod(size(options, name) for name in OTHERS)


def said(options: Mapping[str, Any]) -> str:
    """The first of those sizes that is said to be more than 1, to show where it stands."""
    return next((name for name in OTHERS if size(options, name) > 1), OTHERS[0])


def over_ray(options: Mapping[str, Any], world: int) -> bool:
    """Do the hosts meet over Ray? Only where the recipe says so; a single host needs nobody to meet."""
    return world > 1 and options.get("distributed_executor_backend") == "ray"


def derived(options: Mapping[str, Any], metadata: Mapping[str, Any], world: int) -> dict[str, int]:
    """Tensor parallel size: the hosts that the other sizes leave. Where the model's heads do not divide by
    that and the recipe says nothing of pipeline parallel, what the heads leave is that. Nothing where the
    recipe says the tensor parallel size."""
    if options.get("tensor_parallel_size") is not None:
        return {}
    left = max(world // others(options), 1)
    if options.get("pipeline_parallel_size") is not None:
        return {"tensor_parallel_size": left}
    tensor = max(part for part in range(1, left + 1) if left % part == 0 and _heads_divide(metadata, part))
    pipeline = {} if tensor == left else {"pipeline_parallel_size": left // tensor}
    return {"tensor_parallel_size": tensor, **pipeline}


def _heads_divide(metadata: Mapping[str, Any], part: int) -> bool:
    """Can so many ranks share the model's heads? Where `metadata` does not say how many there are: the heads
    of most models divide by 2, 4 and 8, and of few by 3. KV heads may also be repeated, each on as many ranks
    as the others."""
    heads, kv_heads = (metadata.get(name) for name in ("num_attention_heads", "num_kv_heads"))
    if isinstance(heads, int) and not isinstance(heads, bool) and heads > 0:
        divide = heads % part == 0
    else:
        divide = part & (part - 1) == 0
    if not divide:
        return False
    return not (type(kv_heads) is int and kv_heads > 0 and kv_heads % part and part % kv_heads)


def mistakes(options: Mapping[str, Any], metadata: Mapping[str, Any], world: int) -> list[Told]:
    """Sizes that are not the number of hosts."""
    rest = others(options)
    if options.get("tensor_parallel_size") is None:
        if world % rest:
            found = f"{OTHERS_NAME} {rest} on {world} hosts"
            return [(said(options), found, f"a divisor of {world}", "correct serve.options")]
    elif (product := size(options, "tensor_parallel_size") * rest) != world:
        found = f"serve.options for {product} GPUs ({ALL_NAME})"
        return [("tensor_parallel_size", found, f"{world}, one a host", "remove tensor_parallel_size")]
    return decode_context(options, metadata, world)


def decode_context(options: Mapping[str, Any], metadata: Mapping[str, Any], world: int) -> list[Told]:
    """A decode context parallel size that the tensor parallel size does not hold. With prefill context
    parallel vLLM's versions differ in what they take; there it is left to them."""
    name = "decode_context_parallel_size"
    part = size(options, name)
    tensor = size({**options, **derived(options, metadata, world)}, "tensor_parallel_size")
    if tensor % part == 0 or size(options, "prefill_context_parallel_size") > 1:
        return []
    found, wanted = f"{name} {part} with tensor parallel size {tensor}", f"a divisor of {tensor}"
    return [(name, found, wanted, "it shares the GPUs of tensor parallel; correct it")]


def backends(options: Mapping[str, Any], env: Mapping[str, str], world: int) -> list[Told]:
    """What data parallel and Ray cannot do together on so many hosts. Replicas are processes of vLLM's, or
    actors of Ray's; the latter do not go with `--nnodes`, and the former all begin on the head."""
    name, replicas = "data_parallel_backend", size(options, "data_parallel_size")
    said_backend, remedy = options.get(name), "remove it: it follows from distributed_executor_backend"
    if world == 1:
        return []
    if not over_ray(options, world):
        if said_backend != "ray":
            return []
        wanted = "mp, or distributed_executor_backend: ray beside it"
        return [(name, f"{name} ray on {world} hosts without Ray", wanted, "correct one of the two")]
    if replicas == 1:
        return []
    if said_backend not in (None, "ray"):
        return [(name, f"{name} {said_backend!r} over Ray", "ray", remedy)]
    hosts = world // replicas
    if hosts > 1 and env.get("VLLM_RAY_DP_PACK_STRATEGY") != "span":
        found = f"data_parallel_size {replicas} over Ray with {hosts} hosts a replica"
        remedy = "remove distributed_executor_backend, or set VLLM_RAY_DP_PACK_STRATEGY: span in serve.env"
        return [("data_parallel_size", found, "replicas of one host", remedy)]
    return []


def over_ray_options(options: Mapping[str, Any], head_address: str) -> dict[str, Any]:
    """What vLLM has to be told for replicas over Ray: without it all of them would begin on the head."""
    if size(options, "data_parallel_size") == 1:
        return {}
    return {
        "data_parallel_backend": "ray",
        "data_parallel_size_local": 1,
        "data_parallel_address": head_address,
    }
