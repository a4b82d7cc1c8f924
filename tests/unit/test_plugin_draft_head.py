"""The draft head: files that staging wrote, read and multiplied by the plugin; and what stops the server.

Needs torch, as its fellows do: `./test --vllm` runs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"
STAGING = Path(__file__).parents[1] / "onhost"
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")


@pytest.fixture
def draft(monkeypatch: pytest.MonkeyPatch) -> Any:
    for path in (PATCHES, STAGING, STAGING.parents[1]):
        monkeypatch.syspath_prepend(path)
    from sparkstack_vllm import draft_head

    return draft_head


def staged(folder: Path, output: str, size: int = 300) -> Path:
    """A checkpoint of the tests' small model, with a draft head as the transform makes it."""
    from making import write_repo
    from models import next_files
    from staged import apply

    write_repo(folder / "source", next_files())
    made: Path = apply(
        folder / "source", folder / "out", {"name": "draft_vocab", "size": size, "output": output}
    )
    return made


def whole_head(folder: Path) -> Any:
    """lm_head of the checkpoint, float64."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if "lm_head.weight" in file.keys():  # noqa: SIM118
                return file.get_tensor("lm_head.weight").double()
    raise AssertionError("no lm_head")


def test_self_check(draft: Any) -> None:
    draft.self_check()


# How far each format may be from BF16, as a part of the logits' size.
@pytest.mark.parametrize(("output", "error"), [("bf16", 1e-6), ("fp8", 0.04), ("nvfp4", 0.15)])
def test_what_staging_writes_gives_the_heads_logits(
    draft: Any, tmp_path: Path, output: str, error: float
) -> None:
    out = staged(tmp_path, output)
    weight = whole_head(out)
    head = draft.read(out)
    assert head.kind == output
    logits = draft.DraftLogits(head, weight.shape[0], torch.device("cpu"))
    x = torch.randn(5, weight.shape[1])
    exact = x.double() @ weight.T
    got = logits(None, x)
    assert got.shape == exact.shape and got.dtype == x.dtype
    kept = torch.zeros(weight.shape[0], dtype=torch.bool)
    kept[head.ids] = True
    assert torch.isinf(got[:, ~kept]).all()
    assert ((got[:, kept] - exact[:, kept]).norm() / exact[:, kept].norm()).item() < error
    assert torch.equal(logits.get_top_tokens(None, x), got.argmax(dim=-1))
    narrow = x.bfloat16()
    assert logits(None, narrow).dtype == torch.bfloat16


@pytest.mark.parametrize("output", ["bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_rank_has_all_logits(draft: Any, tmp_path: Path, output: str, world: int) -> None:
    """300 rows over 5 ranks of 128: two of them have nothing but zeros."""
    head = draft.read(staged(tmp_path, output))
    x, cpu = torch.randn(2, head.width), torch.device("cpu")
    alone = draft.DraftLogits(head, 640, cpu)
    parts = [draft.Rows(draft.part(head, rank, world), cpu).logits(x) for rank in range(world)]
    assert {part.shape for part in parts} == {(2, draft.part_rows(300, world))}

    def gather(mine: Any) -> Any:
        return torch.cat(parts, dim=-1)

    for rank in (0, world - 1):
        ranks = draft.DraftLogits(head, 640, cpu, rank, world, gather)
        assert torch.allclose(ranks(None, x), alone(None, x), rtol=1e-5, atol=1e-5)
        assert torch.equal(ranks.get_top_tokens(None, x), alone.get_top_tokens(None, x))


def test_the_models_scale_of_logits(draft: Any, tmp_path: Path) -> None:
    head = draft.read(staged(tmp_path, "bf16"))
    x, cpu = torch.randn(2, head.width), torch.device("cpu")
    once, twice = (draft.DraftLogits(head, 640, cpu, scale=scale)(None, x) for scale in (1.0, 2.0))
    assert torch.equal(once * 2.0, twice)


def test_without_a_draft_head_the_server_stops(draft: Any, tmp_path: Path) -> None:
    with pytest.raises(draft.PluginError) as caught:
        draft.read(tmp_path)
    assert str(caught.value) == (
        f"sparkstack plugin: draft_head: found no draft_vocab/head.safetensors in {tmp_path}; wanted the "
        "head that the transform draft_vocab writes; add draft_vocab to checkpoint.transforms of the recipe, "
        "or set SPARKSTACK_DRAFT_HEAD=0"
    )


def head_file(folder: Path, **tensors: Any) -> Path:
    from safetensors.torch import save_file

    path = folder / "draft_vocab" / "head.safetensors"
    path.parent.mkdir()
    save_file(tensors, path)
    return path


IDS = torch.tensor([1, 4, 9])
ROWS = torch.zeros(3, 128)


@pytest.mark.parametrize(
    ("tensors", "found", "wanted"),
    [
        ({"weight": ROWS}, "weight in PATH", "ids and weight"),
        (
            {"ids": IDS[:2], "weight": ROWS.bfloat16()},
            "ids torch.int64 [2], weight [3, 128]",
            "an id (int64) a row",
        ),
        (
            {"ids": torch.tensor([1, 9, 4]), "weight": ROWS.bfloat16()},
            "ids that are not in rising order",
            "each token once",
        ),
        (
            {"ids": torch.tensor([4, 4, 9]), "weight": ROWS.bfloat16()},
            "ids that are not in rising order",
            "each token once",
        ),
        ({"ids": IDS - 3, "weight": ROWS.bfloat16()}, "ids that are not in rising order", "each token once"),
        ({"ids": IDS, "weight": ROWS.half()}, "a weight of type torch.float16", "bfloat16, float8_e4m3fn"),
        ({"ids": IDS, "weight": ROWS.to(torch.float8_e4m3fn)}, "no scale beside", "[1, 1]"),
        (
            {"ids": IDS, "weight": ROWS.to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(2, 1)},
            "scale torch.float32 [2, 1] beside",
            "weight_scale_inv torch.float32 [1, 1]",
        ),
        (
            {
                "ids": IDS,
                "weight": ROWS.to(torch.uint8),
                "weight_scale": torch.ones(3, 16).to(torch.float8_e4m3fn),
            },
            "no weight_scale_2",
            "one float32 number",
        ),
    ],
)
def test_a_head_that_is_not_as_described(
    draft: Any, tmp_path: Path, tensors: dict[str, Any], found: str, wanted: str
) -> None:
    path = head_file(tmp_path, **tensors)
    with pytest.raises(draft.PluginError) as caught:
        draft.read(tmp_path)
    said = str(caught.value)
    assert said.startswith(f"sparkstack plugin: draft_head: found {found.replace('PATH', str(path))}")
    assert f"wanted {wanted}" in said or wanted in said.partition("; wanted ")[2]
    assert said.endswith("; stage the checkpoint again with the transform draft_vocab")


def test_a_file_that_is_cut(draft: Any, tmp_path: Path) -> None:
    path = head_file(tmp_path, ids=IDS, weight=ROWS.bfloat16())
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(draft.PluginError, match=r"cannot be read: .*; wanted a safetensors file; stage"):
        draft.read(tmp_path)


@pytest.mark.parametrize("output", ["fp8", "nvfp4"])
@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="TRITON_INTERPRET is not set: ./test --vllm")
def test_the_kernel_is_used_as_plain_torch_is(draft: Any, tmp_path: Path, output: str) -> None:
    """What a GPU does, in Triton's interpreter: packed at load, the same logits for any number of rows."""
    pytest.importorskip("triton")
    cpu = torch.device("cpu")
    head = draft.part(draft.read(staged(tmp_path, output)), 1, 2)
    plain, kernel = draft.Rows(head, cpu), draft.Rows(head, cpu)
    kernel._tune(cpu)
    assert kernel.head.weight.dtype == torch.int16
    for rows in (1, 9):
        x = torch.randn(rows, head.width).bfloat16()
        got, wanted = kernel.logits(x).float(), plain.logits(x.float())
        assert ((got - wanted).norm() / wanted.norm()).item() < 0.004
