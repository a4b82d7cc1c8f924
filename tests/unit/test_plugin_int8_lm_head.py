"""INT8 LM head. The arithmetic needs torch, which the project does not: the image build runs it as the
feature's self-check; here it runs where torch happens to be installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"


@pytest.fixture
def int8(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(PATCHES)
    from sparkstack_vllm import int8_lm_head

    return int8_lm_head


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The classes of vLLM that the feature touches, each with what it relies on and nothing else."""

    class QuantizeMethodBase:
        def process_weights_after_loading(self, layer: Any) -> None:
            layer.prepared = True

    class UnquantizedLinearMethod(QuantizeMethodBase):
        pass

    class UnquantizedEmbeddingMethod(QuantizeMethodBase):
        pass

    class ParallelLMHead:
        pass

    root = "vllm.model_executor.layers"
    for name, classes in {
        f"{root}.linear": [UnquantizedLinearMethod],
        f"{root}.quantization.base_config": [QuantizeMethodBase],
        f"{root}.vocab_parallel_embedding": [ParallelLMHead, UnquantizedEmbeddingMethod],
    }.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(name)
        for cls in classes:
            setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(
        Head=ParallelLMHead, Linear=UnquantizedLinearMethod, Embedding=UnquantizedEmbeddingMethod
    )


def loaded(cls: Any, method: Any, weight: Any) -> Any:
    layer = cls()
    layer.quant_method, layer.weight = method, weight
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def test_self_check(int8: Any) -> None:
    int8.self_check()


def test_rows_are_exact_at_their_largest_value(int8: Any) -> None:
    import torch

    weight = torch.tensor([[1.0, -127.0, 63.4], [0.0, 0.0, 0.0], [2e-30, -1e-30, 0.0]])
    quantised, scale = int8.quantise(weight)
    assert quantised.tolist() == [[1, -127, 63], [0, 0, 0], [127, -64, 0]]
    assert scale[:2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("method", ["Linear", "Embedding"])
def test_a_head_is_converted_whichever_method_it_has(int8: Any, layers: Any, method: str) -> None:
    import torch

    int8.apply()
    weight = torch.nn.Parameter(torch.randn(32, 16).bfloat16(), requires_grad=False)
    head = loaded(layers.Head, getattr(layers, method)(), weight)

    assert head.weight.dtype == torch.int8 and head.weight.shape == (32, 16)
    assert not hasattr(head, "prepared")
    x = torch.randn(3, 16).bfloat16()
    bias = torch.randn(32)
    expected = x.float() @ weight.float().t() + bias
    got = head.quant_method.apply(head, x, bias=bias)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), expected, atol=0.1)
    assert weight.dtype == torch.bfloat16  # the embedding's, where it is shared

    head.quant_method.process_weights_after_loading(head)  # a drafter with the same head
    assert torch.equal(head.quant_method.apply(head, x, bias=bias), got)


def test_other_layers_are_left_alone(int8: Any, layers: Any) -> None:
    import torch

    int8.apply()
    layer = loaded(type("Linear", (), {}), layers.Linear(), torch.randn(4, 4))
    assert layer.prepared and layer.weight.dtype == torch.float32


def test_loading_again_is_refused(int8: Any, layers: Any) -> None:
    import torch

    int8.apply()
    head = loaded(layers.Head, layers.Linear(), torch.nn.Parameter(torch.randn(4, 4), requires_grad=False))
    with pytest.raises(RuntimeError, match="cannot be loaded a second time; restart the server"):
        head.weight.weight_loader(head.weight, torch.randn(4, 4))


def test_a_kernel_that_does_not_run_stops_the_server_with_a_line(
    int8: Any, layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def broken(*_: Any) -> None:
        raise OSError("Failed to find C compiler.\nPlease specify via CC")

    int8.apply()
    monkeypatch.setattr(int8, "tune", broken)
    with pytest.raises(int8.PluginError) as caught:
        loaded(layers.Head, layers.Linear(), torch.nn.Parameter(torch.randn(4, 4), requires_grad=False))
    assert str(caught.value) == (
        "sparkstack plugin: int8_lm_head: found OSError from its kernel: Failed to find C compiler. Please "
        "specify via CC; wanted a GPU and driver that run it; set SPARKSTACK_INT8_LM_HEAD=0"
    )


def a_head(layers: Any, rows: int) -> Any:
    import torch

    weight = torch.nn.Parameter(torch.randn(rows, 16), requires_grad=False)
    head = loaded(layers.Head, layers.Linear(), weight)
    head.itself = head  # as vLLM's layers, which the garbage collector has to free
    return head


def model(*modules: Any, weights: Any = ()) -> Any:
    return SimpleNamespace(modules=lambda: iter(modules), parameters=lambda: iter(weights))


def test_what_is_said_of_heads(int8: Any, layers: Any) -> None:
    """A drafter loads a head of its own, after the model's, and gives it up where the two are shared."""
    import torch

    int8.apply()
    ours, drafters = a_head(layers, 32), a_head(layers, 32)
    del drafters
    assert int8.loaded(model(object(), ours)) == "LM head of 32×16 is INT8 now"

    ours, kept = a_head(layers, 32), a_head(layers, 8)
    assert int8.loaded(model(ours)) == "LM head of 32×16 is INT8 now, and the drafter's own of 8×16"

    several = [a_head(layers, rows) for rows in (32, 8)]
    assert int8.loaded(model(*several)) == "2 LM heads of 32×16, 8×16 are INT8 now"

    none = int8.loaded(model(*several))  # a second model in this process
    assert none.in_last and none.changed == "nothing was changed"
    assert none.found == (
        "no LM head of its own in this model (one that is the embedding itself, or quantised already, "
        "stays as it is)"
    )
    embedding = torch.nn.Parameter(torch.randn(32, 16), requires_grad=False)
    tied = loaded(layers.Head, layers.Linear(), embedding)
    assert int8.loaded(model(tied, weights=[embedding])) == (
        "LM head of 32×16 (the embedding it is tied to keeps its own) is INT8 now"
    )
    kept = a_head(layers, 8)
    assert int8.loaded(model(object())).changed == "only the drafter's of 8×16 is INT8 now"
    assert kept is not None
