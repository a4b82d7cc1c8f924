"""The n-gram table's rows from disk, and BF16 to FP8 at load: the plugin's own arithmetic and reading.

Needs torch, as its fellows do: `./test --vllm` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"
STAGING = Path(__file__).parents[1] / "onhost"
torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    for path in (PATCHES, STAGING, STAGING.parents[1]):
        monkeypatch.syspath_prepend(path)
    from sparkstack_vllm import ngram_table

    return ngram_table


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Any:
    for path in (PATCHES, STAGING, STAGING.parents[1]):
        monkeypatch.syspath_prepend(path)
    from sparkstack_vllm import fp8_dense_at_load

    return fp8_dense_at_load


def test_self_checks(table: Any, dense: Any) -> None:
    table.self_check()
    dense.self_check()


@pytest.fixture
def staged(tmp_path: Path, table: Any) -> Path:
    """The tests' small model with its row map, as the transform writes it."""
    from making import write_repo
    from models import TABLE, next_files
    from staged import apply

    write_repo(tmp_path / "source", next_files())
    shapes = table_shapes(tmp_path / "source")
    rows = sum(shape[0] for name, shape in shapes.items() if name.startswith(TABLE))
    out: Path = apply(tmp_path / "source", tmp_path / "out", {"name": "ngram_table", "expect_rows": rows})
    return out


def table_shapes(folder: Path) -> dict[str, list[int]]:
    from making import contents

    found = {}
    for path in folder.glob("*.safetensors"):
        found |= {n: shape for n, (_, shape, _) in contents(path).items() if ".shard_" in n}
    return found


@pytest.mark.parametrize("mode", ["cached", "direct"])
@pytest.mark.parametrize("threads", [1, 7])
def test_rows_are_those_that_staging_reads(table: Any, staged: Path, mode: str, threads: int) -> None:
    """What the plugin reads by the map that the transform wrote, against the reader of the transform."""
    from onhost.staging.rows import RowReader

    try:
        ours = table.TableFile(staged, mode, threads)
    except table.PluginError as error:
        pytest.skip(str(error))
    theirs = RowReader(staged)
    picked = numpy.random.default_rng(1).integers(0, ours.rows, 300)
    picked[:3] = 0, ours.rows - 1, picked[5]
    out = bytearray(len(picked) * ours.row_bytes)
    ours.read_into(picked, memoryview(out))
    assert out == theirs.read(picked.tolist())
    theirs.close()
    for bad in (-1, ours.rows):
        with pytest.raises(IndexError, match=f"row {bad} of an n-gram table with {ours.rows}"):
            ours.read_into(numpy.array([0, bad]), memoryview(bytearray(2 * ours.row_bytes)))
    ours.read_into(numpy.array([], dtype=numpy.int64), memoryview(bytearray()))


def test_a_step_that_is_too_large(table: Any, staged: Path) -> None:
    stage = table.Stage(table.TableFile(staged), 2, 4, torch.device("cpu"))
    with pytest.raises(table.PluginError, match="found a step of 3 tokens; wanted at most 2; raise max_num"):
        stage.fill(torch.zeros(3, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (None, "ngram_rows.json that cannot be used (FileNotFoundError: "),
        ("{", "ngram_rows.json that cannot be used (JSONDecodeError: "),
        ({"format": 2}, "format 2 of "),
        ({"rows": 7}, "shards of "),
        ({"shards": [{"rows": 1}]}, "shards of 1 rows in "),
        ({"row_bytes": 10**6}, "shorter than ngram_rows.json says"),
    ],
)
def test_a_map_that_cannot_be_right(table: Any, staged: Path, change: Any, found: str) -> None:
    path = staged / "ngram_rows.json"
    data = json.loads(path.read_text())
    path.unlink()
    if isinstance(change, str):
        path.write_text(change)
    elif change is not None:
        path.write_text(json.dumps(data | change))
    with pytest.raises(table.PluginError) as caught:
        table.TableFile(staged)
    said = str(caught.value)
    assert said.startswith("sparkstack plugin: ngram_table: found ") and found in said
    assert said.endswith("; stage the checkpoint again with the transform ngram_table") and "\n" not in said


@pytest.mark.parametrize(
    ("name", "value"), [("IO", "mmap"), ("THREADS", "0"), ("THREADS", "many"), ("THREADS", "257")]
)
def test_a_knob_that_is_wrong(table: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SPARKSTACK_NGRAM_TABLE_{name}", value)
    with pytest.raises(table.PluginError, match=f"found SPARKSTACK_NGRAM_TABLE_{name}='{value}'; wanted "):
        table.settings()


def test_fp8_is_what_the_transform_writes(dense: Any) -> None:
    """The same bytes as `fp8_dense`, so that both ways serve the same model."""
    from staged import in_blocks

    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(3)).bfloat16()
    weight[0, 0], weight[200, 5] = 300.0, -1e-30
    weight[128:, :128] = 0
    codes, scales = in_blocks(weight.view(torch.uint8).numpy().tobytes(), 256, 384)
    quantised, scale = dense.quantise(weight)
    assert scale.numpy().tobytes() == scales
    assert quantised.view(torch.uint8).numpy().tobytes() == codes


def test_which_layers(dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dense.patterns() == dense.DEFAULT
    monkeypatch.setenv(dense.LAYERS, "*.o_proj, mtp.*.o_proj")
    layers = dense.patterns()
    assert dense.chosen("model.layers.0.self_attn.o_proj", layers)
    assert dense.chosen("mtp.layers.0.self_attn.o_proj", layers)
    assert not dense.chosen("model.layers.0.self_attn.qkv_proj", layers)
    monkeypatch.setenv(dense.LAYERS, "*.o_proj,")
    with pytest.raises(dense.PluginError, match="wanted patterns of layers' names, with commas between them"):
        dense.patterns()
