"""Transform turboquant_metadata: `turboquant_kv.json`, which the reference's build of vLLM reads.

It says, for each attention layer and each KV head, which dimensions of a head are kept at the higher
precision. Upstream's TurboQuant (from vLLM 0.20 on) has no such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onhost.plan import JobError
from onhost.staging.catalog import Catalog
from onhost.staging.graft import text_config
from onhost.staging.model_index import json_bytes, read_json
from onhost.staging.outputs import Planned, kept, text

VERSION = 1
FILE = "turboquant_kv.json"
STEP = 16  # dimensions; the high-precision part is a multiple of it

# Recipe → share of the dimensions, and whether V's are the last ones instead of the first.
RECIPES = {
    "turboquant35": (0.5, False),
    "turboquant25": (0.25, False),
    "turboquant_asym": (0.5, True),
    "turboquant_q8k_tq35v": (0.5, False),
    "turboquant_q8k_tq25v": (0.25, False),
}
SHORT = {"q8k_tq35v": "turboquant_q8k_tq35v", "q8k_tq25v": "turboquant_q8k_tq25v"}


def turboquant_metadata(catalog: Catalog, recipe: str) -> Planned:
    """The same files and the metadata; JobError where config.json does not say what is needed."""
    config = read_json(catalog, "config.json")
    if config is None:
        raise JobError("found no config.json; wanted one; fetch the checkpoint with its config.json")
    if FILE in catalog:
        raise JobError(f"found {FILE} in the checkpoint already; wanted none; leave it out by `allow`")
    content = json_bytes(metadata(config, recipe))
    return Planned((*(kept(name, info) for name, info in catalog.items()), text(FILE, content)))


def metadata(config: Mapping[str, Any], recipe: str) -> dict[str, Any]:
    """The file's object for a model's config."""
    name = SHORT.get(recipe, recipe)
    inner = text_config(config)
    share, apart = RECIPES[name]
    heads = _count(inner, "num_key_value_heads")
    size = (
        _count(inner, "head_dim")
        if "head_dim" in inner
        else _count(inner, "hidden_size") // _count(inner, "num_attention_heads")
    )
    count = round(size * share / STEP) * STEP
    if not 0 < count < size:
        raise JobError(
            f"found heads of {size} dimensions; wanted enough for {recipe} (a multiple of {STEP} "
            "below that); leave turboquant_metadata out of the recipe"
        )
    keys = [list(range(count)) for _ in range(heads)]
    values = [list(range(size - count, size)) for _ in range(heads)] if apart else keys
    layers = [f"model.layers.{layer}.self_attn.attn" for layer in attention_layers(inner)]
    draft = inner.get("mtp_num_hidden_layers", inner.get("num_nextn_predict_layers", 0)) or 0
    layers += [f"mtp.layers.{layer}.self_attn.attn" for layer in range(draft)]
    return {
        "version": 1,
        "recipe": name,
        "head_size": size,
        "model_name": str(config.get("_name_or_path") or config.get("model_type") or "unknown"),
        "transform_version": "structured_hadamard_v1",
        "codebook_version": "lloyd_beta_v1",
        "layers": {
            layer: {"key_high_precision_indices": keys, "value_high_precision_indices": values}
            for layer in layers
        },
    }


def attention_layers(inner: Mapping[str, Any]) -> list[int]:
    """The layers with a KV cache: `layer_types`, or every n-th, or all of a model that is not hybrid."""
    total = _count(inner, "num_hidden_layers")
    kinds, interval = inner.get("layer_types"), inner.get("full_attention_interval")
    if isinstance(kinds, list):
        if len(kinds) != total:
            raise JobError(
                f"found {len(kinds)} layer_types for {total} layers in config.json; wanted as many; "
                "pin a revision with a sound config.json"
            )
        unknown = {str(kind) for kind in kinds} - {"full_attention", "linear_attention"}
        if unknown:
            raise JobError(
                f"found layers of the type {', '.join(sorted(unknown))} in config.json; wanted "
                "full_attention or linear_attention; leave turboquant_metadata out of the recipe"
            )
        return [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    if interval is not None:
        every = _count(inner, "full_attention_interval")
        return list(range(every - 1, total, every))
    return list(range(total))


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise JobError(
            f"found {value!r} for {key} in config.json; wanted a whole number; "
            "pin a revision with a sound config.json"
        )
    return value
