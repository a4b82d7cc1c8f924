"""BF16 linears of a quantised checkpoint become FP8 (a scale for 128×128) once they are loaded.

Attention, gated delta-net and shared-expert projections that a checkpoint left in BF16 are most of what a
decode step reads beside the experts; FP8 halves that. The values are those of transform `fp8_dense`, which
does the same to the files: take that where the checkpoint is staged anyway, and this where one stays as it
is.

From 0.30 on vLLM does it by itself (`--quantization-config '{"targets": {"re:PATTERN": "fp8_per_block"}}'`
beside the checkpoint's own quantisation), so this feature ends there. Before, vLLM's online FP8 is for
checkpoints without quantisation only.

The layer gets vLLM's own FP8 block linear, made as for a checkpoint that holds FP8. Its BF16 weight is in
memory until the layer is converted; what a server may use is measured after that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.loading import Nothing

BLOCK = 128
LARGEST = 448.0  # of float8_e4m3fn
ROWS = 4096  # of the weight that are float32 at a time
LAYERS = "SPARKSTACK_FP8_DENSE_AT_LOAD_LAYERS"
# By vLLM's names, which fuse q, k and v, or gate and up. Not: routers and gates, in_proj_ba (too small),
# vision, MTP (what the drafter sees decides what is accepted), the LM head.
DEFAULT = (
    "*.linear_attn.in_proj_qkv",
    "*.linear_attn.in_proj_qkvz",
    "*.linear_attn.in_proj_z",
    "*.linear_attn.out_proj",
    "*.self_attn.qkv_proj",
    "*.self_attn.o_proj",
    "*.mlp.shared_expert.gate_up_proj",
    "*.mlp.shared_expert.down_proj",
)
MADE = "_sparkstack_created"  # how a layer's weight was made, until it is loaded

# Names of layers since `loaded` was last asked: converted ones, and ones that blocks do not cut evenly.
_converted: list[str] = []
_uneven: list[str] = []


def patterns() -> tuple[str, ...]:
    """Patterns of layers' names, from the environment where it has any; PluginError for an empty one."""
    text = os.environ.get(LAYERS)
    if text is None:
        return DEFAULT
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise PluginError(
            f"sparkstack plugin: fp8_dense_at_load: found {LAYERS}={text!r}; wanted patterns of layers' "
            "names, with commas between them; correct it"
        )
    return found


def chosen(prefix: str, layers: Sequence[str]) -> bool:
    """Whether the layer is one to convert. The drafter's are not, unless a pattern names `mtp`."""
    if "mtp" in prefix.split("."):
        layers = [pattern for pattern in layers if "mtp" in pattern]
    return any(fnmatchcase(prefix, pattern) for pattern in layers)


def fits(inputs: int, outputs: Sequence[int]) -> bool:
    """Whether blocks cut a rank's weight evenly, and none lies across two parts of a fused layer."""
    return inputs % BLOCK == 0 and all(size % BLOCK == 0 for size in outputs)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """BF16 [rows, columns], multiples of 128 → FP8 [rows, columns], float32 [rows / 128, columns / 128]."""
    rows, columns = weight.shape
    quantised = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight.device)
    scale = torch.empty(rows // BLOCK, columns // BLOCK, dtype=torch.float32, device=weight.device)
    for start in range(0, rows, ROWS):
        block = weight[start : start + ROWS].float().reshape(-1, BLOCK, columns // BLOCK, BLOCK)
        step = block.abs().amax(dim=(1, 3)).clamp_min(1e-12) / LARGEST
        scaled = (block / step[:, None, :, None]).clamp(-LARGEST, LARGEST)
        quantised[start : start + ROWS] = scaled.reshape(-1, columns).to(torch.float8_e4m3fn)
        scale[start // BLOCK : start // BLOCK + step.shape[0]] = step
    return quantised, scale


def apply() -> None:
    """Note how the weights of chosen layers are made, and exchange them once they are loaded."""
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod

    from sparkstack_vllm.plugin import log

    layers = patterns()
    create = UnquantizedLinearMethod.create_weights
    process = UnquantizedLinearMethod.process_weights_after_loading

    def create_weights(
        self: Any,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        made = (input_size_per_partition, output_partition_sizes, input_size, output_size, params_dtype)
        create(self, layer, *made, **extra)
        if isinstance(layer, LinearBase) and chosen(getattr(layer, "prefix", ""), layers):
            if fits(input_size_per_partition, output_partition_sizes):
                setattr(layer, MADE, made)
            else:
                shape = f"{sum(output_partition_sizes)}×{input_size_per_partition}"
                log.warning("sparkstack plugin: fp8_dense_at_load: %s (%s) stays BF16", layer.prefix, shape)
                _uneven.append(layer.prefix)

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        made = layer.__dict__.pop(MADE, None)
        if made is None:
            process(self, layer)
            return
        quantised, scale = quantise(layer.weight.data)
        method = Fp8LinearMethod(
            Fp8Config(
                is_checkpoint_fp8_serialized=True,
                activation_scheme="dynamic",
                weight_block_size=[BLOCK, BLOCK],
            )
        )
        del layer.weight
        with quantised.device:
            method.create_weights(layer, *made, weight_loader=_no_reload)
        layer.weight.data = quantised
        layer.weight_scale_inv.data = scale
        layer.quant_method = method
        method.process_weights_after_loading(layer)
        _converted.append(layer.prefix)

    UnquantizedLinearMethod.create_weights = create_weights
    UnquantizedLinearMethod.process_weights_after_loading = process_weights_after_loading


def loaded(model: Any) -> str | Nothing:
    """How many layers are FP8, the drafter's included."""
    converted, uneven = list(_converted), list(_uneven)
    _converted.clear()
    _uneven.clear()
    if converted:
        others = len(converted) - 1
        return f"{converted[0]} is FP8 now" + (f", and {others} other{'s' * (others > 1)}" if others else "")
    named = f"named by {', '.join(patterns())}"
    if uneven:
        found = f"{len(uneven)} linear(s) {named}, of sizes that 128×128 blocks do not cut evenly"
        return Nothing(found, f"correct {LAYERS}")
    return Nothing(f"no unquantised linear {named}", f"correct {LAYERS}")


def _no_reload(*_: Any, **__: Any) -> None:
    raise RuntimeError("fp8_dense_at_load: weights cannot be loaded a second time; restart the server")


def self_check() -> None:
    """Each weight within half a step of its FP8 value; names that are chosen and not."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2 * BLOCK, 3 * BLOCK, generator=generator).bfloat16()
    weight[:BLOCK, :BLOCK] = 0
    quantised, scale = quantise(weight)
    spread = scale.repeat_interleave(BLOCK, dim=0).repeat_interleave(BLOCK, dim=1)
    exact = weight.float()
    # FP8 has 3 bits after the point: at most a sixteenth of a value, or half of the smallest step.
    room = (exact.abs() / 16).maximum(spread * 2.0**-10) * 1.0001
    worst = ((quantised.float() * spread - exact).abs() / room).max().item()
    assert worst <= 1, f"a weight is {worst:.3f} times as far from its FP8 value as rounding allows"
    assert chosen("model.layers.3.self_attn.qkv_proj", DEFAULT), "attention was not chosen"
    for name in ("mtp.layers.0.self_attn.qkv_proj", "model.layers.3.mlp.gate", "visual.blocks.0.attn.qkv"):
        assert not chosen(name, DEFAULT), f"{name} was chosen"
    assert fits(256, [128, 256]) and not fits(256, [192, 64]), "blocks across parts of a fused layer"
