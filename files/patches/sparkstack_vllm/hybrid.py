"""Checkpoints of AutoRound (INT4) in which some layers are FP8 with block scales: each layer by what it is.

vLLM's INC knows INT4 and unquantised. A layer that the checkpoint's config leaves at 16 bit and that is FP8
in the files would be loaded as if it were BF16, without its scales: nonsense, no error (vLLM issue 46311).
Here the files' headers say which layers are FP8. Their names go through the model's own mapping, as INC's do,
and only a layer of exactly such a name becomes FP8; a fused layer only when all its parts are. Whatever else
would read FP8 as something it is not stops the server.

This module holds the decisions, which need no vLLM; `hybrid_config.py` is vLLM's side.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.loading import Nothing

FP8 = "F8_E4M3"
WEIGHT, SCALE = ".weight", ".weight_scale_inv"
BLOCKS = (32, 64, 128, 256)  # sizes that are tried; the published checkpoints have 128

# Since `loaded` was last asked: layers that became FP8, and FP8 modules that the checkpoint was seen to have.
_made: set[str] = set()
_seen: set[str] = set()


class Fp8Layers(NamedTuple):
    names: frozenset[str]  # modules, as the checkpoint names them
    block: tuple[int, int]  # rows and columns that share a scale; (0, 0) where there is no FP8 layer


def _refuse(found: str, wanted: str, remedy: str) -> PluginError:
    return PluginError(f"sparkstack plugin: hybrid: found {found}; wanted {wanted}; {remedy}")


def fp8_layers(tensors: Mapping[str, Mapping[str, Any]]) -> Fp8Layers:
    """Which modules are FP8 with block scales, from the files' headers: name → {"dtype", "shape", …}.

    Errors: PluginError for an FP8 weight without a scale or the reverse, and for blocks that differ in size.
    """
    shapes: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
    for name, info in sorted(tensors.items()):
        if name.endswith(SCALE):
            module = name.removesuffix(SCALE)
            if tensors.get(module + WEIGHT, {}).get("dtype") != FP8:
                raise _refuse(name, f"an FP8 tensor {module}{WEIGHT} with it", "make the checkpoint anew")
        elif name.endswith(WEIGHT) and info["dtype"] == FP8:
            module = name.removesuffix(WEIGHT)
            scale = tensors.get(module + SCALE)
            if scale is None or len(info["shape"]) != 2 or len(scale["shape"]) != 2:
                raise _refuse(
                    f"{name} in FP8 without a block scale",
                    f"{module}{SCALE} of two dimensions",
                    "make the checkpoint anew",
                )
            shapes[module] = (info["shape"], scale["shape"])
    if not shapes:
        return Fp8Layers(frozenset(), (0, 0))
    rows, columns = _block(shapes, 0), _block(shapes, 1)
    return Fp8Layers(frozenset(shapes), (rows, columns))


def _block(shapes: Mapping[str, tuple[Sequence[int], Sequence[int]]], axis: int) -> int:
    """The block size that every layer's shapes allow along an axis; small layers allow several."""
    possible = set(BLOCKS)
    for module, (weight, scale) in shapes.items():
        fits = {size for size in possible if -(-weight[axis] // size) == scale[axis]}
        if not fits:
            raise _refuse(
                f"{module}: weight {list(weight)}, scale {list(scale)}",
                f"one block size for all layers ({', '.join(map(str, sorted(possible)))} by those before it)",
                "make the checkpoint anew",
            )
        possible = fits
    return 128 if 128 in possible else min(possible)


def parts(prefix: str, packed: Mapping[str, Sequence[str]]) -> list[str]:
    """The checkpoint's modules behind a layer of vLLM: itself, or what it fuses. Matches whole names only."""
    head, dot, last = prefix.rpartition(".")
    return [head + dot + name for name in packed.get(last, (last,))]


def is_fp8(prefix: str, packed: Mapping[str, Sequence[str]], names: Collection[str]) -> bool:
    """Whether the layer is FP8. Errors: PluginError when only some parts of a fused layer are."""
    wanted = parts(prefix, packed)
    missing = [name for name in wanted if name not in names]
    if missing and len(missing) < len(wanted):
        raise _refuse(
            f"{prefix}, of which {', '.join(missing)} is not FP8 and the rest is",
            "all parts of a fused layer in one format",
            "make the checkpoint anew",
        )
    return not missing


def two_formats(prefix: str, method: str) -> PluginError:
    """A layer that is FP8 in the files and something else by the config."""
    return _refuse(
        f"{prefix}: FP8 in the files, {method} by the checkpoint's quantization_config",
        "one of the two",
        "list the layer with 16 bits in extra_config",
    )


def not_dispatched(prefix: str) -> PluginError:
    """FP8 data that is about to be copied into a weight that is not FP8."""
    return _refuse(
        f"FP8 data for {prefix}, which vLLM built unquantised",
        "a layer whose name, mapped as this vLLM maps the model's, is FP8 in the checkpoint",
        "use another vLLM version, or a checkpoint without FP8 layers",
    )


def note(names: Collection[str], prefix: str | None = None) -> None:
    """Remember the checkpoint's FP8 modules, and a layer that became one."""
    _seen.update(names)
    if prefix is not None:
        _made.add(prefix)


def loaded(model: Any) -> str | Nothing:
    """How many layers are FP8 as the files have them, the drafter's included."""
    made, seen = len(_made), len(_seen)
    _made.clear()
    _seen.clear()
    if made:
        return f"{made} layer{'s are' if made > 1 else ' is'} FP8 as in the checkpoint's files"
    if seen:
        return Nothing(f"{seen} FP8 modules in the checkpoint's files, and no layer for them")
    return Nothing("no AutoRound (INC) checkpoint with FP8 layers", "add graft_fp8 to checkpoint.transforms")


def apply() -> None:
    """Register the config class under INC's name, which vLLM lets a plugin do."""
    from sparkstack_vllm import hybrid_config  # noqa: F401  # registers as it is imported


def self_check() -> None:
    """A fused layer, a name that another one contains, and a block that does not fit."""
    tensors = {
        f"m.{name}{suffix}": {"dtype": dtype, "shape": shape}
        for name in ("gate_proj", "up_proj")
        for suffix, dtype, shape in ((WEIGHT, FP8, [300, 256]), (SCALE, "F32", [3, 2]))
    }
    layers = fp8_layers({**tensors, "m.gate.weight": {"dtype": "BF16", "shape": [4, 256]}})
    assert layers.block == (128, 128), f"block {layers.block}"
    packed = {"gate_up_proj": ["gate_proj", "up_proj"]}
    assert is_fp8("m.gate_up_proj", packed, layers.names), "a fused layer of FP8 parts was not found"
    assert not is_fp8("m.gate", packed, layers.names), "gate was taken for gate_proj"
    try:
        is_fp8("m.gate_up_proj", packed, {"m.gate_proj"})
    except PluginError:
        return
    raise AssertionError("a fused layer of two formats was accepted")
