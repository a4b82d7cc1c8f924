"""draft_vocab and ngram_table with its reader: the exact bytes that come out, and what each refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import models
import pytest
import safetensors as library
from making import Silent, contents, safetensors
from making import write_repo as repo
from models import TABLE, bf16
from staged import CUT, DENSE, DONOR, INDEX, apply, in_blocks, indexed

from onhost.plan import JobError, Plan
from onhost.staging.chain import apply_steps, folder_view
from onhost.staging.rows import RowReader
from onhost.staging.transforms import read_steps

ROOT = Path(__file__).resolve().parent.parent.parent


def draft(size: int, output: str, **rest: Any) -> dict[str, Any]:
    return {"name": "draft_vocab", "size": size, "output": output, **rest}


def rows_of(ids: list[int]) -> bytes:
    head, size = bf16("head", models.VOCABULARY, models.HIDDEN)[2], 2 * models.HIDDEN
    return b"".join(head[size * number : size * (number + 1)] for number in ids)


# All 258 special and byte tokens, then the lowest.
LOWEST = sorted({*range(300, 556), 600, 601, *range(126)})


def test_draft_vocab_in_bf16(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "next", tmp_path / "out", draft(384, "bf16"))
    assert contents(out / "draft_vocab/head.safetensors") == {
        "ids": ("I64", [384], struct.pack("<384q", *LOWEST)),
        "weight": ("BF16", [384, 256], rows_of(LOWEST)),
    }
    assert (out / INDEX).samefile(folder / "next" / INDEX)  # engines load by index, and not this file


def test_draft_vocab_in_fp8(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "next", tmp_path / "out", draft(384, "fp8"))
    found = contents(out / "draft_vocab/head.safetensors")
    codes, scales = in_blocks(rows_of(LOWEST), 384, 256)
    assert found["weight"] == ("F8_E4M3", [384, 256], codes)
    assert found["weight_scale_inv"] == ("F32", [3, 2], scales)


def test_draft_vocab_in_nvfp4(folder: Path, tmp_path: Path) -> None:
    from onhost.staging import nvfp4

    out = apply(folder / "next", tmp_path / "out", draft(300, "nvfp4"))
    head = out / "draft_vocab/head.safetensors"
    found, ids = contents(head), sorted({*range(300, 556), 600, 601, *range(42)})
    data = rows_of(ids)
    scale = nvfp4.tensor_scale(max(code & 0x7FFF for code in memoryview(data).cast("H")))
    encoder = nvfp4.Encoder(scale)
    assert found["ids"][2] == struct.pack("<300q", *ids)
    assert found["weight"] == ("U8", [300, 128], encoder.values(data, len(data) // 2))
    assert found["weight_scale"] == ("F8_E4M3", [300, 16], encoder.scales(data, len(data) // 2))
    assert found["weight_scale_2"] == ("F32", [], struct.pack("<f", scale))
    library.deserialize(head.read_bytes())


def test_draft_vocab_by_counts(folder: Path, tmp_path: Path) -> None:
    """The most used ids beside the pinned ones; counts from the checkpoint or from a donor."""
    counts = "\n".join(str(1000 if number in {7, 250, 599} else number % 3) for number in range(620))
    repo(tmp_path / "donor", {"counts.txt": counts.encode()})
    step = draft(261, "bf16", counts="counts.txt", donor=DONOR)
    out = apply(folder / "next", tmp_path / "out", step, donor=tmp_path / "donor")
    ids = struct.unpack("<261q", contents(out / "draft_vocab/head.safetensors")["ids"][2])
    assert set(ids) == {*range(300, 556), 600, 601, 7, 250, 599}
    repo(tmp_path / "free", {**models.next_files(), "c.json": json.dumps([0, 5, 9, 9]).encode()})
    out = apply(tmp_path / "free", tmp_path / "out2", draft(3, "bf16", counts="c.json", pin_special=False))
    assert struct.unpack("<3q", contents(out / "draft_vocab/head.safetensors")["ids"][2]) == (1, 2, 3)


@pytest.mark.parametrize(
    ("step", "files", "found"),
    [
        (draft(700, "bf16"), {}, "found an LM head of 640 rows; wanted at least 700"),
        (draft(100, "bf16"), {}, "found 258 special and byte tokens and an LM head of 640 rows"),
        (draft(300, "fp8"), {"tokenizer.json": b"{"}, "found tokenizer.json that is not JSON"),
        (draft(300, "fp8"), {"tokenizer.json": b"{}"}, "found a tokenizer.json of an unknown form"),
        (
            draft(300, "fp8"),
            {"tokenizer.json": b'{"model": {"vocab": {"a": 1}}}'},
            "no complete set of 256 byte",
        ),
        (draft(300, "fp8", counts="no.txt"), {}, "found no no.txt, which has the counts"),
        (draft(300, "fp8", counts="c"), {"c": b"1 x"}, "found c with something that is no whole number"),
        (draft(300, "fp8", counts="c"), {"c": b"1 " * 641}, "found 641 counts in c; wanted at most 640"),
        (draft(300, "fp8", counts="c"), {"c": b"1 -1"}, "found a count below zero in c"),
        (draft(300, "int8"), {}, "found the output 'int8' of draft_vocab"),
        (draft(300, "fp8", donor=DONOR), {}, "found a donor for draft_vocab and no `counts`"),
    ],
)
def test_draft_vocab_refuses(
    folder: Path, tmp_path: Path, step: dict[str, Any], files: dict[str, bytes], found: str
) -> None:
    view = {**folder_view(folder / "next"), **repo(tmp_path / "more", files)}
    with pytest.raises(JobError) as error:
        apply_steps(view, read_steps([Plan(step)]), tmp_path / "out", Silent())
    assert found in str(error.value)


ROWS = models.TABLE_ROWS * models.TABLE_PARTS
MAP = {"name": "ngram_table", "expect_rows": ROWS}


def table_rows() -> list[bytes]:
    parts = [models.next_tensors()[1][f"{TABLE}.shard_{part}.weight"][2] for part in range(4)]
    data = b"".join(parts)
    return [data[at : at + 160] for at in range(0, len(data), 160)]


def test_ngram_table(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "next", tmp_path / "out", MAP)
    found = json.loads((out / "ngram_rows.json").read_text())
    path = out / "model-fp8-mtp-ple.safetensors"
    assert path.samefile(folder / "next" / path.name)
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    size = 50 * 160
    place = {0: header + size, 1: header + 2 * size, 2: header, 3: header + 3 * size}
    assert found == {
        "format": 1,
        "table": TABLE,
        "dtype": "F8_E4M3",
        "rows": 200,
        "columns": 160,
        "row_bytes": 160,
        "rows_per_shard": 50,
        "scale": {"file": path.name, "offset": header + 4 * size, "dtype": "BF16", "shape": [1]},
        "shards": [{"file": path.name, "offset": place[part], "rows": 50} for part in range(4)],
    }
    wanted = table_rows()
    with RowReader(out, threads=4) as reader:
        ids = [199, 0, 49, 50, 50, 101, *range(200)]
        assert bytes(reader.read(ids)) == b"".join(wanted[row] for row in ids)
        assert (reader.rows, reader.dtype, reader.columns) == (200, "F8_E4M3", 160)
        assert bytes(reader.read([])) == b""
        buffer = bytearray(320)
        reader.read_into([3, 4], memoryview(buffer))
        assert bytes(buffer) == wanted[3] + wanted[4]
        for row in (-1, 200):
            with pytest.raises(IndexError, match=f"row {row} of a table with 200 rows"):
                reader.read([1, row])
            with pytest.raises(IndexError):
                reader.place(row)
        with pytest.raises(ValueError, match="a buffer of 320 bytes for 1 rows of 160"):
            reader.read_into([1], memoryview(buffer))
    with pytest.raises(ValueError, match="closed"):
        reader.read([1])


def test_row_reader_refuses(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no row map at"):
        RowReader(tmp_path)
    out = apply(folder / "next", tmp_path / "sound", MAP)
    with RowReader(out) as reader, pytest.raises(ValueError, match="cannot be written"):
        reader.read_into([0], memoryview(bytes(160)))
    out = apply(folder / "next", tmp_path / "out", MAP)
    name = "model-fp8-mtp-ple.safetensors"
    short = (out / name).read_bytes()[:-200]
    (out / name).unlink()
    (out / name).write_bytes(short)
    with pytest.raises(
        ValueError, match=r"found model-fp8-mtp-ple.safetensors shorter than ngram_rows\.json"
    ):
        RowReader(out)
    (out / "ngram_rows.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="another format"):
        RowReader(out)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"rows": 10**9}, "found 1000000000 rows in .* and other shards; wanted shards of 50 rows that"),
        ({"rows": 149}, "found 149 rows in "),
        ({"rows_per_shard": 0}, "wanted shards of 0 rows that add up; stage the checkpoint again"),
        ({"row_bytes": 0}, "stage the checkpoint again"),
        ({"rows": "x"}, "that leads nowhere .*; wanted the map that ngram_table wrote; stage the"),
        ({"shards": None}, "leads nowhere"),
        ({"shards": [{"rows": 200}], "rows_per_shard": 200}, "leads nowhere .KeyError: 'file'.; "),
        (
            {"shards": [{"rows": 200, "file": "none", "offset": 0}], "rows_per_shard": 200},
            "leads nowhere .FileNotFoundError: .*none",
        ),
    ],
)
def test_a_row_map_that_contradicts_itself(
    folder: Path, tmp_path: Path, change: dict[str, Any], found: str
) -> None:
    """Never another row's bytes, nor an error from within."""
    out = apply(folder / "next", tmp_path / "out", MAP)
    rows = json.loads((out / "ngram_rows.json").read_text())
    (out / "ngram_rows.json").write_text(json.dumps({**rows, **change}))
    with pytest.raises(ValueError, match=found):
        RowReader(out)


def test_ngram_table_comes_after_what_moves_it(folder: Path, tmp_path: Path) -> None:
    cut = {"name": "reshard", "max_shard_bytes": 100_000}
    table = models.next_tensors()[1]
    content = {**models.next_tensors()[0], **table}
    one = {"model.safetensors": safetensors(content), "config.json": models.as_json(models.CONFIG)}
    source = repo(tmp_path / "src", one)["config.json"].parent
    with pytest.raises(JobError, match=r"found the table's rows elsewhere than ngram_rows\.json says"):
        apply(source, tmp_path / "out", MAP, cut)
    with RowReader(apply(source, tmp_path / "right", cut, MAP)) as reader:
        assert bytes(reader.read(range(200))) == b"".join(table_rows())


def test_the_seed_recipes_transforms(folder: Path, tmp_path: Path) -> None:
    """Those of recipes/qwen3.8-flash-next.yaml in its order, at small size; and cut anew before the map."""
    import yaml

    recipe = yaml.safe_load((ROOT / "recipes/qwen3.8-flash-next.yaml").read_text())
    steps = [{**next(iter(s.values())), "name": next(iter(s))} for s in recipe["checkpoint"]["transforms"]]
    assert [step["name"] for step in steps] == ["ngram_table", "fp8_dense", "draft_vocab"]
    small = [{"expect_rows": ROWS}, {"expect_tensors": DENSE["expect_tensors"]}, {"size": 300}]
    rows, dense, draft_head = [{**step, **change} for step, change in zip(steps, small, strict=True)]
    out = apply(folder / "next", tmp_path / "out", rows, dense, draft_head)
    assert {"ngram_rows.json", "draft_vocab/head.safetensors"} <= set(folder_view(out))
    again = apply(folder / "next", tmp_path / "again", dense, draft_head, CUT, rows)
    assert indexed(out) == indexed(again)
    for made in (out, again):
        with RowReader(made) as reader:
            assert bytes(reader.read(range(200))) == b"".join(table_rows())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({f"{TABLE}.shard_1.weight": None}, "found the table's shard 1 missing; wanted all from 0 to 3"),
        (
            {f"{TABLE}.shard_1.weight": ("F8_E4M3", [49, 160], bytes(7840))},
            "[49, 160]; wanted F8_E4M3 [50, 160]",
        ),
        (
            {f"{TABLE}.shard_3.weight": ("F8_E4M3", [51, 160], bytes(8160))},
            "[51, 160]; wanted F8_E4M3 [50, 160]",
        ),
        ({f"{TABLE}.shard_2.weight": ("BF16", [50, 160], bytes(16000))}, "shard_2.weight as BF16"),
        (
            {f"{TABLE}.shard_3.weight": ("F8_E4M3", [49, 160], bytes(7840))},
            "found a table of 199 rows; wanted 200",
        ),
        (
            {"x.ngram_embedding.shard_0.weight": ("F8_E4M3", [50, 160], bytes(8000))},
            "as n-gram tables; wanted one",
        ),
        ({f"{TABLE}.shard_{part}.weight": None for part in range(4)}, "found no table as n-gram tables"),
    ],
)
def test_ngram_table_refuses(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    content = {n: t for n, t in {**models.next_tensors()[1], **change}.items() if t is not None}
    repo(tmp_path / "src", {"model.safetensors": safetensors(content)})
    with pytest.raises(JobError) as error:
        apply(tmp_path / "src", tmp_path / "out", MAP)
    assert found in str(error.value)
