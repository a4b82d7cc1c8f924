"""vLLM's side of `hybrid`: INC's config with FP8 layers. Importing it registers it.

At the top of a module of its own, because vLLM pickles the config for the processes it starts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from vllm.model_executor.layers.quantization.inc import INCConfig
from vllm.transformers_utils.config import get_safetensors_params_metadata

from sparkstack_vllm import hybrid
from sparkstack_vllm.plugin import log


def _guarded(prefix: str) -> UnquantizedLinearMethod:
    """The unquantised method, with a weight that refuses FP8 data instead of casting it without its scale."""

    def create_weights(self: Any, *args: Any, weight_loader: Any = None, **kwargs: Any) -> None:
        def load(param: Any, loaded: Tensor, *more: Any, **named: Any) -> Any:
            if loaded.is_floating_point() and loaded.element_size() == 1:
                raise hybrid.not_dispatched(prefix)
            return weight_loader(param, loaded, *more, **named)

        UnquantizedLinearMethod.create_weights(self, *args, weight_loader=load, **kwargs)

    # vLLM picks the form of a layer's loader by the class's name.
    cls = type("UnquantizedLinearMethod", (UnquantizedLinearMethod,), {"create_weights": create_weights})
    method: UnquantizedLinearMethod = cls()
    return method


@register_quantization_config("inc")
class HybridINCConfig(INCConfig):  # type: ignore[misc]
    """INC; layers that are FP8 in the checkpoint's files are FP8 with block scales."""

    fp8_names: frozenset[str] = frozenset()
    fp8_block: tuple[int, int] = (0, 0)

    def maybe_update_config(self, model_name: str, *args: Any, **kwargs: Any) -> None:
        # vLLM 0.19 gives the model alone, later ones also its config and revision.
        super().maybe_update_config(model_name, *args, **kwargs)
        headers = get_safetensors_params_metadata(model_name, revision=kwargs.get("revision"))
        self.fp8_names, self.fp8_block = hybrid.fp8_layers(headers)
        if self.fp8_names:
            rows, columns = self.fp8_block
            log.info("sparkstack plugin: hybrid: %d FP8 layers, %d×%d", len(self.fp8_names), rows, columns)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        super().apply_vllm_mapper(hf_to_vllm_mapper)
        self.fp8_names = frozenset(hf_to_vllm_mapper.apply_list(sorted(self.fp8_names)))

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if not self.fp8_names or not isinstance(layer, LinearBase):
            return super().get_quant_method(layer, prefix)
        fp8 = hybrid.is_fp8(prefix, self.packed_modules_mapping, self.fp8_names)
        hybrid.note(self.fp8_names, prefix if fp8 else None)
        method = super().get_quant_method(layer, prefix)
        if method is not None and not isinstance(method, UnquantizedLinearMethod):
            if fp8:
                raise hybrid.two_formats(prefix, type(method).__name__)
            return method
        if not fp8:
            return _guarded(prefix)
        return Fp8LinearMethod(
            Fp8Config(
                is_checkpoint_fp8_serialized=True,
                activation_scheme="dynamic",
                weight_block_size=list(self.fp8_block),
            )
        )
