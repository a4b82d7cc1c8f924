"""Can a model fit into the unified memory of so many Sparks? Worked out from what `metadata` says of it."""

from __future__ import annotations

import math
import re
from typing import Any

from sparkstack.description import DEFAULT_GPU_MEMORY_UTILIZATION, GB, UNIFIED_MEMORY_GB, Launch
from sparkstack.findings import Finding, error
from sparkstack.flags import is_placeholder
from sparkstack.units import GIB

_BITS = {
    "float32": 32, "fp32": 32, "bfloat16": 16, "bf16": 16, "float16": 16, "fp16": 16, "auto": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "mxfp4": 4.25, "nvfp4": 4.5, "int4": 4.25, "fp4": 4.5,
    "mxfp8": 8.25, "modelopt": 8, "modelopt_fp4": 4.5, "awq": 4.25, "awq_marlin": 4.25, "gptq_int4": 4.25,
    "w4a16": 4.25, "w8a8": 8, "w8a16": 8,
}  # fmt: skip
"""Bits a value, scales included where a format is known to have them (NVFP4: one FP8 a group of 16)."""


def weights_gb(metadata: dict[str, Any], quantization: Any = None) -> float | None:
    """Size of the weights (GB): `model_vram`, or `model_params` times the bits of a weight.

    `quantization` is what the engine is told: it may quantize as it loads."""
    said = _number(metadata.get("model_vram"))
    if said is not None:
        return said
    count = _params(metadata.get("model_params"))
    bits = _number(metadata.get("quant_bits")) or _bits(
        metadata.get("quantization"), quantization, metadata.get("model_dtype")
    )
    return None if count is None or bits is None else count * bits / 8 / GB


def kv_gb_per_token(metadata: dict[str, Any], kv_cache_dtype: str) -> float | None:
    """Size of the KV cache for one token (GB): `kv_vram_per_token`, or from layers, heads and their size."""
    said = _number(metadata.get("kv_vram_per_token"))
    if said is not None:
        return said
    parts = [_number(metadata.get(name)) for name in ("num_layers", "num_kv_heads", "head_dim")]
    bits = _bits(kv_cache_dtype if kv_cache_dtype != "auto" else None, metadata.get("kv_dtype")) or 16
    layers, heads, size = parts
    if layers is None or heads is None or size is None:
        return None
    return 2 * layers * heads * size * bits / 8 / GB


def fits(launch: Launch, nodes: int | None = None) -> list[Finding]:
    """An error when weights and the KV cache of one sequence of full length are more than what the engine may
    take of 128 GB a Spark; [] where the metadata does not tell.

    Judged on `nodes` hosts; where that is not known, on as few as the recipe allows, or on as many as its
    parallel sizes say. A budget is one Spark's, whatever their number.
    """
    return [*_budget(launch), *(_share(launch) or _model(launch, nodes))]


def _share(launch: Launch) -> list[Finding]:
    value = launch.options.get("gpu_memory_utilization")
    if value is None or (isinstance(value, str) and is_placeholder(value)):
        return []
    share = _number(value)
    if share is not None and share <= 1:
        return []
    where = launch.where("options.gpu_memory_utilization")
    return [error("memory", where, f"gpu_memory_utilization {value}", "more than 0, at most 1")]


def _budget(launch: Launch) -> list[Finding]:
    recipe = launch.recipe
    if launch.format != "3" or recipe is None or recipe.budget.memory_gib * GIB <= UNIFIED_MEMORY_GB * GB:
        return []
    found = f"budget.memory_gib {recipe.budget.memory_gib:g}"
    wanted = f"at most {UNIFIED_MEMORY_GB * GB / GIB:.0f} (128 GB, one Spark's)"
    remedy = "correct it, or spread the model over more hosts"
    return [error("memory", launch.where("budget"), found, wanted, remedy)]


def _model(launch: Launch, nodes: int | None) -> list[Finding]:
    weights = weights_gb(launch.metadata, launch.options.get("quantization"))
    if weights is None:
        return []
    count = nodes or max(launch.min_nodes, launch.size("tensor_parallel_size") * launch.other_parallel)
    if nodes is None and launch.max_nodes is not None:
        count = max(min(count, launch.max_nodes), launch.min_nodes)
    per_token = kv_gb_per_token(launch.metadata, launch.kv_cache_dtype) or 0.0
    length = _number(launch.options.get("max_model_len")) or 0.0
    share = _number(launch.options.get("gpu_memory_utilization")) or DEFAULT_GPU_MEMORY_UTILIZATION
    need = weights + per_token * length
    room = UNIFIED_MEMORY_GB * share
    if need <= room * count:
        return []
    hosts = math.ceil(need / room)
    host = "1 host" if count == 1 else f"{count} hosts"
    cache = f" + {per_token * length:.1f} GB of KV cache for {length:.0f} tokens"
    cache = cache if per_token and length else ""
    found = f"{weights:.1f} GB of weights{cache} on {host}"
    wanted = f"at most {room * count:.1f} GB (128 GB × {count} × {share:g})"
    remedy = f"min_nodes: {hosts}, a shorter max_model_len, or a smaller model"
    if launch.max_nodes is not None and hosts > launch.max_nodes:
        remedy = f"{hosts} hosts could hold it; raise max_nodes, or take a smaller model"
    key = "options.max_model_len" if cache and weights <= room * count else "metadata"
    return [error("memory", launch.where(key), found, wanted, remedy)]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _params(value: Any) -> float | None:
    """8000000000 or "8B" or "122B-A10B" as a count of weights."""
    if isinstance(value, str) and (match := re.match(r"(\d+(?:\.\d+)?)\s*([KMBT])", value.upper())):
        return float(match[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2]]
    return _number(value)


def _bits(*names: Any) -> float | None:
    for name in names:
        if isinstance(name, str) and name.lower() in _BITS:
            return _BITS[name.lower()]
    return None
