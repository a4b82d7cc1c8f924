"""The kernels in Triton's interpreter, on a CPU, against the dequantised product in float64.

They need torch and Triton, which the project does not; `./test --vllm` has both. What a GPU makes of them is
measured by benchmarks/gpu.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "files" / "patches"))

from sparkstack_vllm import int8_lm_head as feature  # noqa: E402
from sparkstack_vllm.kernels import draft_head, draft_pack, int8_head, tuning  # noqa: E402


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


def off(got: Any, exact: Any) -> float:
    return float((got.double() - exact).norm() / exact.norm())


SMALL = int8_head.Config(64, 64, 4, 2)


def int8(vocab: int, width: int) -> tuple[Any, Any, Any]:
    quantised, scale = feature.quantise(torch.randn(vocab, width).bfloat16())
    return quantised, scale, quantised.double() * scale.double()[:, None]


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 18, 70])
@pytest.mark.parametrize(("vocab", "width"), [(64, 64), (97, 80)])
def test_int8_logits_for_any_number_of_rows_and_any_vocabulary(rows: int, vocab: int, width: int) -> None:
    quantised, scale, restored = int8(vocab, width)
    x = torch.randn(rows, width).bfloat16()
    got = int8_head.logits(x.float(), quantised, scale, SMALL)
    assert got.shape == (rows, vocab)
    assert off(got, x.double() @ restored.T) < 2e-4


def test_int8_logits_do_not_depend_on_the_batch_or_the_configuration() -> None:
    quantised, scale, _ = int8(70, 128)
    x = torch.randn(12, 128)
    together = int8_head.logits(x, quantised, scale, SMALL)
    for config in (SMALL, int8_head.Config(128, 128, 8, 3)):
        alone = int8_head.logits(x[3:4], quantised, scale, config)
        assert torch.equal(alone[0], together[3])


@pytest.mark.parametrize(
    "kind", ["zeros", "one element", "one far above the others", "tiny", "a strided view"]
)
def test_int8_logits_of_odd_rows(kind: str) -> None:
    quantised, scale, restored = int8(65, 64)
    x = torch.randn(2, 64)
    if kind == "zeros":
        x.zero_()
    elif kind == "one element":
        x.zero_()[:, 5] = 2.5
    elif kind == "one far above the others":
        x[:, 7] = 1e4
    elif kind == "tiny":
        x *= 1e-30
    else:
        x = torch.randn(64, 2).T
    got = int8_head.logits(x, quantised, scale, SMALL)
    exact = x.double() @ restored.T
    assert torch.isfinite(got).all()
    assert (got == 0).all() if kind == "zeros" else off(got, exact) < 3e-4


def test_int8_logits_of_a_row_with_nan_are_nan() -> None:
    quantised, scale, restored = int8(65, 64)
    x = torch.randn(3, 64)
    x[1, 9] = float("nan")
    got = int8_head.logits(x, quantised, scale, SMALL)
    assert got[1].isnan().all()
    assert off(got[[0, 2]], x[[0, 2]].double() @ restored.T) < 3e-4


def test_int8_bias_and_type() -> None:
    quantised, scale, restored = int8(65, 64)
    x, bias = torch.randn(2, 64).bfloat16(), torch.randn(65)
    got = int8_head.logits(x, quantised, scale, SMALL, bias)
    assert got.dtype == torch.bfloat16
    assert off(got, x.double() @ restored.T + bias.double()) < 5e-3


def test_no_rows() -> None:
    quantised, scale, _ = int8(65, 64)
    assert int8_head.logits(torch.empty(0, 64), quantised, scale, SMALL).shape == (0, 65)


DRAFT = draft_head.Config(64, 4, 2)


@pytest.mark.parametrize("rows", [1, 6, 20])
@pytest.mark.parametrize(
    ("vocab", "width", "config"), [(128, 128, DRAFT), (131, 256, draft_head.Config(128, 4, 3, True))]
)
def test_fp8_draft_head_is_exact(rows: int, vocab: int, width: int, config: draft_head.Config) -> None:
    weight = (torch.randn(vocab, width) * 50).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-vocab // 128), width // 128) + 0.1
    x = torch.randn(rows, width).bfloat16()
    got = draft_head.fp8_logits(x, draft_pack.pack_fp8(weight), scale, vocab, config, torch.float32)
    assert got.shape == (rows, vocab)
    assert off(got, x.double() @ draft_pack.dequantise_fp8(weight, scale).T) < 1e-6


def test_every_fp8_value_survives_packing() -> None:
    """Through the kernel: a one-hot activation reads single weights."""
    values = torch.arange(256, dtype=torch.uint8)
    values = values[(values & 127) != 127].repeat(2)[:256]  # without the two that are not numbers
    weight = values.view(torch.float8_e4m3fn).reshape(2, 128)
    x = torch.eye(128).bfloat16()
    got = draft_head.fp8_logits(x, draft_pack.pack_fp8(weight), torch.ones(1, 1), 2, DRAFT, torch.float32)
    assert torch.equal(got.T, weight.float())


@pytest.mark.parametrize("rows", [1, 6, 20])
@pytest.mark.parametrize(
    ("vocab", "width", "config"), [(64, 128, DRAFT), (131, 384, draft_head.Config(256, 4, 3))]
)
def test_nvfp4_draft_head_is_exact(rows: int, vocab: int, width: int, config: draft_head.Config) -> None:
    published = torch.randint(0, 256, (vocab, width // 2), dtype=torch.uint8)
    scale = (torch.rand(vocab, width // 16) * 448).to(torch.float8_e4m3fn)
    scale[0], scale[1], scale[2] = 0.0, 2.0**-9, 448.0
    scale_2 = torch.tensor(0.013)
    x = torch.randn(rows, width).bfloat16()
    words, small = draft_pack.pack_nvfp4(published, scale)
    got = draft_head.nvfp4_logits(x, words, small, float(scale_2), vocab, config, torch.float32)
    assert got.shape == (rows, vocab)
    assert off(got, x.double() @ draft_pack.dequantise_nvfp4(published, scale, scale_2).T) < 1e-6
    assert not got[:, 0].any()  # a scale of zero


def test_every_nvfp4_value_and_scale_survives_packing() -> None:
    scale = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).repeat(2)[:128, None].repeat(1, 8)
    published = torch.arange(256, dtype=torch.uint8).repeat(32).reshape(128, 64)
    words, small = draft_pack.pack_nvfp4(published, scale)
    got = draft_head.nvfp4_logits(torch.eye(128).bfloat16(), words, small, 1.0, 128, DRAFT, torch.float32)
    assert torch.equal(got.T.double(), draft_pack.dequantise_nvfp4(published, scale, torch.ones(1)))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_a_draft_head_packed_in_parts_is_the_same(kind: str) -> None:
    weight = torch.randint(0, 120, (600, 256), dtype=torch.uint8)
    scale = torch.rand(600, 32).to(torch.float8_e4m3fn)
    if kind == "fp8":
        whole = [draft_pack.pack_fp8(weight.view(torch.float8_e4m3fn))]
        parts = [[draft_pack.pack_fp8(part)] for part in weight.view(torch.float8_e4m3fn).split(256)]
    else:
        whole = list(draft_pack.pack_nvfp4(weight, scale))
        pairs = zip(weight.split(256), scale.split(256), strict=True)
        parts = [list(draft_pack.pack_nvfp4(*pair)) for pair in pairs]
    for place, tensor in enumerate(whole):
        assert tensor.shape[0] == 768
        assert torch.equal(tensor, torch.cat([part[place] for part in parts]))


def test_a_width_that_the_draft_kernels_do_not_cut() -> None:
    x = torch.zeros(1, 192, dtype=torch.bfloat16)
    words = torch.zeros(128, 96, dtype=torch.int16)
    with pytest.raises(ValueError, match="found a width of 192; wanted a multiple of 128"):
        draft_head.fp8_logits(x, words, torch.ones(1, 1), 1, DRAFT)


def test_nvfp4_scales_that_are_none() -> None:
    published = torch.zeros(1, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="found an NVFP4 scale below zero or NaN"):
        draft_pack.pack_nvfp4(published, torch.tensor([[-1.0]]).to(torch.float8_e4m3fn))


def test_the_choice_is_remembered_and_a_broken_memory_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.json"
    tuning._remember(path, SMALL, 12.0)
    assert tuning._remembered(path, int8_head.CANDIDATES[:1]) is None  # no candidate any more
    assert tuning._remembered(path, (SMALL,)) == SMALL
    path.write_text('{"config": [64')
    assert tuning._remembered(path, (SMALL,)) is None
