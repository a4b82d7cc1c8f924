"""The LM head in INT8: half the memory that BF16 takes, and half the bytes to read for each token.

The matrix from hidden state to vocabulary is the largest single weight that a decode step reads. Each row
(one token of the vocabulary) is scaled by its largest absolute value onto −127…127; sums are INT32 and
float32, so the only error that counts is the rounding of the weight: at most half a step, `absmax / 254`, an
element.

On a GPU `kernels/int8_head.py` reads INT8 alone, with launches that are tried once when the weights are
loaded (`kernels/tuning.py`) and compiled by then. Elsewhere plain torch does it, block by block: it saves
memory, not time.

The hook is the head's `quant_method`, which every vLLM version asks for logits, on each tensor-parallel rank
for the rank's own rows. Gathering, trimming padded rows and top-token search stay vLLM's own.
"""

from __future__ import annotations

import gc
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.loading import Nothing

if TYPE_CHECKING:
    from sparkstack_vllm.kernels.int8_head import Config

# Rows that are float32 at a time: 4096 rows of 3072 are 50 MB, whatever the vocabulary's size.
BLOCK_ROWS = 4096

# Heads that were converted and that nobody has been told of, each with the weight that it had. Weak: a
# drafter's own head is given up for the model's where the two are shared, and a weight is freed.
_converted: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [rows, width] of any float type → INT8 [rows, width] and float32 scale [rows].

    A row of zeros (padding of the vocabulary) gets scale 1 and stays zero.
    """
    rows = weight.shape[0]
    quantised = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(rows, dtype=torch.float32, device=weight.device)
    for start in range(0, rows, BLOCK_ROWS):
        block = weight[start : start + BLOCK_ROWS].float()
        largest = block.abs().amax(dim=1)
        step = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
        quantised[start : start + BLOCK_ROWS] = (block / step[:, None]).round()
        scale[start : start + BLOCK_ROWS] = step
    return quantised, scale


def logits(x: Tensor, quantised: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., width] → [..., rows] in x's type: x · (quantised · scale)ᵀ + bias, summed in float32."""
    flat = x.reshape(-1, x.shape[-1]).float()
    rows = quantised.shape[0]
    out = torch.empty(flat.shape[0], rows, dtype=x.dtype, device=x.device)
    for start in range(0, rows, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, rows)
        block = torch.mm(flat, quantised[start:end].float().t()) * scale[start:end]
        if bias is not None:
            block += bias[start:end].float()
        out[:, start:end] = block
    return out.reshape(*x.shape[:-1], rows)


def tuned(
    quantised: Tensor, scale: Tensor, dtype: torch.dtype, block: int, bias: Tensor | None = None
) -> Config:
    """The kernel's configuration for `block` rows of activations of `dtype`; compiled when this returns."""
    from sparkstack_vllm.kernels import int8_head, tuning

    x = torch.randn(block, quantised.shape[1], dtype=torch.float32, device=quantised.device).to(dtype)
    return tuning.choose(
        int8_head,
        "int8-lm-head",
        (*quantised.shape, block, int(bias is not None)),
        int8_head.CANDIDATES,
        lambda config: int8_head.logits(x, quantised, scale, config, bias),
        quantised.device,
    )


def tune(
    quantised: Tensor, scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None
) -> dict[int, Config]:
    """Configurations by block of rows; empty where the kernel does not run and plain torch must do.

    The kernel wants a GPU with Triton, and rows of the weight that begin at multiples of 16 bytes.
    """
    if not quantised.is_cuda or find_spec("triton") is None:
        return {}
    from sparkstack_vllm.kernels import int8_head

    width = quantised.shape[1]
    if width % 16 or width > int8_head.MAX_WIDTH:
        return {}
    return {block: tuned(quantised, scale, dtype, block, bias) for block in int8_head.ROW_BLOCKS}


def kernel_logits(
    x: Tensor, quantised: Tensor, scale: Tensor, configs: dict[int, Config], bias: Tensor | None = None
) -> Tensor:
    """As `logits`, by the kernel. x [..., width] → [..., rows]."""
    from sparkstack_vllm.kernels import int8_head

    flat = x.reshape(-1, x.shape[-1])
    out = int8_head.logits(flat, quantised, scale, configs[int8_head.row_block(flat.shape[0])], bias)
    return out.reshape(*x.shape[:-1], quantised.shape[0])


def _no_reload(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("int8_lm_head: weights cannot be loaded a second time; restart the server")


def convert(layer: Any, method: Any) -> None:
    """Put INT8 in the place of a loaded head's weight, and `method` in the place of its quant_method.

    `weight` keeps its name and shape: code that compares the heads of model and drafter goes on working, and
    code that would multiply by it directly fails on the type instead of giving wrong logits. A weight that is
    shared with the embedding is left alone there.
    """
    dtype, usual = layer.weight.dtype, weakref.ref(layer.weight)
    quantised, scale = quantise(layer.weight.data)
    layer.weight = Parameter(quantised, requires_grad=False)
    layer.weight_scale = Parameter(scale, requires_grad=False)
    for parameter in (layer.weight, layer.weight_scale):
        parameter.weight_loader = _no_reload  # type: ignore[attr-defined]
    try:
        layer.int8_configs = tune(quantised, scale, dtype, getattr(layer, "bias", None))
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise PluginError(
            f"sparkstack plugin: int8_lm_head: found {type(error).__name__} from its kernel: {said}; "
            "wanted a GPU and driver that run it; set SPARKSTACK_INT8_LM_HEAD=0"
        ) from error
    layer.quant_method = method
    _converted.append((weakref.ref(layer), usual))


def loaded(model: Any) -> str | Nothing:
    """Which heads are INT8: the model's, and a drafter's where it keeps one of its own."""
    inside = {id(module) for module in model.modules()}
    if any(id(head()) not in inside for head, _ in _converted):
        gc.collect()  # a head that was given up refers to itself
    embedded = {id(parameter) for parameter in model.parameters()}
    ours, drafters = [], []
    for each, weight in _converted:
        if (head := each()) is not None:
            shape = "×".join(map(str, head.weight.shape))
            tied = weight() is not None and id(weight()) in embedded
            told = f"{shape} (the embedding it is tied to keeps its own)" if tied else shape
            (ours if id(head) in inside else drafters).append(told)
    _converted.clear()
    if not ours:
        return Nothing(
            "no LM head of its own in this model (one that is the embedding itself, or quantised already, "
            "stays as it is)",
            in_last=True,
            changed=f"only the drafter's of {', '.join(drafters)} is INT8 now"
            if drafters
            else "nothing was changed",
        )
    which = f"LM head of {ours[0]} is" if len(ours) == 1 else f"{len(ours)} LM heads of {', '.join(ours)} are"
    return f"{which} INT8 now" + (f", and the drafter's own of {', '.join(drafters)}" if drafters else "")


def apply() -> None:
    """Have every unquantised LM head converted as soon as its weights are loaded."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    class Int8LMHeadMethod(QuantizeMethodBase):  # type: ignore[misc]
        def create_weights(self, *_: Any, **__: Any) -> NoReturn:
            raise RuntimeError("int8_lm_head: made from loaded weights only")

        def process_weights_after_loading(self, layer: Any) -> None:
            """Nothing left to do: a drafter that shares the model's head comes by a second time."""

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            if layer.int8_configs:
                return kernel_logits(x, layer.weight, layer.weight_scale, layer.int8_configs, bias)
            return logits(x, layer.weight, layer.weight_scale, bias)

    def hook(cls: Any) -> None:
        usual = cls.process_weights_after_loading

        def process_weights_after_loading(self: Any, layer: Any) -> None:
            # For a head the usual step is left out: it only prepares (on a CPU: repacks a copy) what the
            # usual `apply` would read.
            if isinstance(layer, ParallelLMHead):
                convert(layer, Int8LMHeadMethod())
            else:
                usual(self, layer)

        cls.process_weights_after_loading = process_weights_after_loading

    # Which of the two a head has depends on whether the model hands its quantisation config to the head.
    for cls in (UnquantizedEmbeddingMethod, UnquantizedLinearMethod):
        hook(cls)


def self_check() -> None:
    """Quantise a head with a padded row and compare its logits with those of the weight it stands for."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(BLOCK_ROWS + 3, 64, generator=generator).bfloat16()
    weight[-1] = 0
    x = torch.randn(2, 5, 64, generator=generator).bfloat16()
    quantised, scale = quantise(weight)
    restored = quantised.double() * scale.double()[:, None]

    step = weight.double().abs().amax(dim=1, keepdim=True) / 127
    worst = ((restored - weight.double()).abs() / step.clamp_min(1e-30)).max().item()
    assert worst <= 0.5001, f"a weight is {worst:.4f} steps from its INT8 value; wanted at most half a step"
    assert not quantised[-1].any(), "a row of zeros did not stay zero"

    got = logits(x.float(), quantised, scale).double()
    exact = x.double() @ restored.t()
    error = ((got - exact).norm() / exact.norm()).item()
    assert error < 1e-6, f"logits are off by {error:.1e} of their size; wanted less than 1e-6"
    narrow = logits(x, quantised, scale)
    assert narrow.dtype == x.dtype and narrow.shape == got.shape, "logits have the wrong type or shape"
