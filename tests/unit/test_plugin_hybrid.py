"""Which layers of a checkpoint are FP8, and under which names. `./test --vllm` tries vLLM's own code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"
PACKED = {"gate_up_proj": ["gate_proj", "up_proj"], "qkv_proj": ["q_proj", "k_proj", "v_proj"]}


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(PATCHES)
    from sparkstack_vllm import hybrid

    yield hybrid
    for name in [n for n in sys.modules if n.split(".")[0] == "sparkstack_vllm"]:
        del sys.modules[name]


def fp8(name: str, shape: list[int], scale: list[int] | None) -> dict[str, dict[str, Any]]:
    tensors = {f"{name}.weight": {"dtype": "F8_E4M3", "shape": shape}}
    return tensors | ({f"{name}.weight_scale_inv": {"dtype": "F32", "shape": scale}} if scale else {})


def test_self_check(hybrid: Any) -> None:
    hybrid.self_check()


def test_layers_and_block(hybrid: Any) -> None:
    tensors = fp8("a.q", [1024, 3072], [8, 24]) | fp8("a.small", [100, 64], [1, 1])
    tensors |= {
        "a.norm.weight": {"dtype": "BF16", "shape": [64]},
        "a.b.qweight": {"dtype": "I32", "shape": [8, 8]},
    }
    assert hybrid.fp8_layers(tensors) == (frozenset({"a.q", "a.small"}), (128, 128))
    assert hybrid.fp8_layers({"a.weight": {"dtype": "BF16", "shape": [4, 4]}}) == (frozenset(), (0, 0))
    assert hybrid.fp8_layers(fp8("a", [640, 640], [10, 5])).block == (64, 128)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        (fp8("a", [256, 256], None), "a.weight in FP8 without a block scale; wanted a.weight_scale_inv"),
        (fp8("a", [256, 256], [2]), "a.weight in FP8 without a block scale; wanted a.weight_scale_inv"),
        (
            {"a.weight": {"dtype": "BF16"}, "a.weight_scale_inv": {"dtype": "F32", "shape": [2, 2]}},
            "a.weight_scale_inv; wanted an FP8 tensor a.weight with it",
        ),
        (
            fp8("a", [1024, 1024], [8, 8]) | fp8("b", [1024, 1024], [16, 8]),
            "b: weight [1024, 1024], scale [16, 8]; wanted one block size for all layers (128 by those",
        ),
        (fp8("a", [1024, 1024], [7, 8]), "a: weight [1024, 1024], scale [7, 8]; wanted one block size"),
    ],
    ids=["no scale", "scale of one dimension", "scale alone", "two sizes", "no size"],
)
def test_what_no_layer_is_made_of(hybrid: Any, tensors: dict[str, Any], found: str) -> None:
    with pytest.raises(hybrid.PluginError) as caught:
        hybrid.fp8_layers(tensors)
    message = str(caught.value)
    assert message.startswith(f"sparkstack plugin: hybrid: found {found}")
    assert message.endswith("; make the checkpoint anew") and "\n" not in message


@pytest.mark.parametrize(
    ("prefix", "names", "expected"),
    [
        ("m.0.gate_up_proj", ["m.0.gate_proj", "m.0.up_proj"], True),
        ("m.0.gate_up_proj", ["m.1.gate_proj", "m.1.up_proj"], False),
        ("m.0.gate", ["m.0.gate_proj"], False),  # a beginning is not the name
        ("m.0.down_proj", ["m.0.down_proj"], True),
        ("m.10.down_proj", ["m.1.down_proj"], False),
        ("qkv_proj", ["q_proj", "k_proj", "v_proj"], True),
        ("x.gate_up_proj.inner", ["x.gate_proj.inner", "x.up_proj.inner"], False),  # not the last part
    ],
)
def test_a_layer_is_fp8_by_its_whole_name(hybrid: Any, prefix: str, names: list[str], expected: bool) -> None:
    assert hybrid.is_fp8(prefix, PACKED, set(names)) is expected


def test_a_fused_layer_is_all_or_nothing(hybrid: Any) -> None:
    with pytest.raises(
        hybrid.PluginError, match=r"found m\.qkv_proj, of which m\.k_proj, m\.v_proj is not FP8"
    ):
        hybrid.is_fp8("m.qkv_proj", PACKED, {"m.q_proj"})
