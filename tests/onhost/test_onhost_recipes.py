"""The transforms that recipes name: the exact bytes that come out, and what each refuses."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import models
import pytest
import safetensors as library
from making import Content, Silent, contents, safetensors
from making import write_repo as repo
from models import TABLE, bf16
from test_onhost_numerals import one_by_one

from onhost.plan import JobError, Plan
from onhost.staging.catalog import donor_origin
from onhost.staging.chain import apply_steps, folder_view
from onhost.staging.rows import RowReader
from onhost.staging.transforms import read_steps

INDEX = "model.safetensors.index.json"
REVISION = "a" * 40
DONOR = {"repo": "Qwen/Qwen3.5-122B-A10B-FP8", "revision": REVISION}
ORIGIN = donor_origin(DONOR["repo"], REVISION)
GRAFT = {
    "name": "graft_fp8",
    "donor": DONOR,
    "tensors": ["model.language_model.layers.*.mlp.shared_expert.*_proj.weight"],
    "expect_tensors": 3 * models.LAYERS,
}
DENSE = {
    "name": "fp8_dense",
    "tensors": [
        "model.language_model.layers.*.linear_attn.in_proj_qkv.weight",
        "model.language_model.layers.*.linear_attn.in_proj_z.weight",
        "model.language_model.layers.*.linear_attn.out_proj.weight",
        "model.language_model.layers.*.self_attn.[qkvo]_proj.weight",
        "model.language_model.layers.*.mlp.shared_expert.*_proj.weight",
    ],
    "expect_tensors": 3 * 3 + 4 + 4 * 3,
}
REGISTER, CUT = {"name": "register_mtp"}, {"name": "reshard", "max_shard_bytes": 400_000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, `donor` and `next`, which no test may change."""
    where = tmp_path_factory.mktemp("models")
    repo(where / "base", models.hybrid_base())
    repo(where / "donor", models.donor_files())
    repo(where / "next", models.next_files())
    return where


def apply(source: Path, target: Path, *steps: Mapping[str, Any], donor: Path | None = None) -> Path:
    views = {} if donor is None else {ORIGIN: folder_view(donor)}
    meter = Silent()
    apply_steps(folder_view(source), read_steps([Plan(step) for step in steps]), target, meter, views)
    assert meter.done == sum(path.stat().st_size for path in folder_view(target).values())
    return target


def indexed(folder: Path) -> Content:
    """What an engine that reads by index gets, each file also read by the format's own library."""
    data = json.loads((folder / INDEX).read_text())
    held = {file: contents(folder / file) for file in set(data["weight_map"].values())}
    for file, content in held.items():
        read = {n: bytes(info["data"]) for n, info in library.deserialize((folder / file).read_bytes())}
        assert read == {name: data for name, (_, _, data) in content.items()}
    found = {name: held[file][name] for name, file in data["weight_map"].items()}
    assert data["metadata"]["total_size"] == sum(len(data) for _, _, data in found.values())
    return found


def merged(groups: list[Content]) -> Content:
    return {name: tensor for content in groups for name, tensor in content.items()}


def digest(folder: Path) -> str:
    """One hash of all names and bytes: the product of a version, which must not change under it."""
    total = hashlib.sha256()
    for name, path in sorted(folder_view(folder).items()):
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def grafted() -> Content:
    wanted, donor = merged(models.base_tensors()), merged(models.donor_tensors())
    for layer in range(models.LAYERS):
        for name in models.shared_expert(layer):
            wanted[name] = donor[name]
            wanted[f"{name}_scale_inv"] = donor[f"{name}_scale_inv"]
    return wanted


def test_graft(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "base", tmp_path / "out", GRAFT, donor=folder / "donor")
    assert indexed(out) == grafted()
    weights = [contents(path) for path in out.glob("model-*.safetensors")]
    assert sum(map(len, weights)) == len(grafted())  # nothing of the old is left in a file
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"] == models.AUTOROUND
    assert config["_sparkstack_graft"]["tensors"] == sorted(
        n for i in range(4) for n in models.shared_expert(i)
    )
    for name in ("model_extra_tensors.safetensors", "quantization_config.json"):
        assert (out / name).samefile(folder / "base" / name)
    assert digest(out) == "ee733a7b751a3f1a"


def test_graft_then_register_then_reshard(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "base", tmp_path / "out", GRAFT, REGISTER, CUT, donor=folder / "donor")
    assert indexed(out) == {**grafted(), **models.mtp()}
    assert all(path.stat().st_size <= 400_000 for path in out.glob("model-*"))
    where = json.loads((out / INDEX).read_text())["weight_map"]
    assert all(where[name] == where[f"{name}_scale_inv"] for name in models.shared_expert(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert digest(out) == "5b6a287ac6cf029e"


def with_donor(folder: Path, tmp_path: Path, change: Content) -> Path:
    """The donor with some tensors changed; None removes one."""
    content = {**merged(models.donor_tensors()), **change}
    files = {"model.safetensors": safetensors({n: t for n, t in content.items() if t is not None})}
    return repo(tmp_path / "donor", files)["model.safetensors"].parent


GATE = "model.language_model.layers.0.mlp.shared_expert.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({GATE: None}, "found 12 matching tensors in the checkpoint and 11 in Qwen/"),
        ({f"{GATE}_scale_inv": None}, f"found no scales of {GATE} in Qwen/"),
        ({f"{GATE}_scale_inv": ("F32", [2, 2], bytes(16))}, f"found scales F32 [2, 2] of {GATE}"),
        (
            {f"{GATE}_scale_inv": ("F8_E8M0", [1, 2], bytes(2))},
            "wanted F32 or BF16 [1, 2], one a block of 128×128",
        ),
        ({GATE: ("F8_E5M2", [128, 256], bytes(32768))}, f"found {GATE} as F8_E5M2 [128, 256] in Qwen/"),
        (
            {GATE: ("F8_E4M3", [256, 128], bytes(32768))},
            "wanted F8_E4M3 [128, 256]; take a donor of the same",
        ),
    ],
)
def test_graft_refuses_another_donor(folder: Path, tmp_path: Path, change: Content, found: str) -> None:
    with pytest.raises(JobError) as error:
        apply(folder / "base", tmp_path / "out", GRAFT, donor=with_donor(folder, tmp_path, change))
    assert found in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            {"expect_tensors": 11},
            "found 12 tensors to graft; wanted 11; correct `tensors` or `expect_tensors`",
        ),
        ({"tensors": ["*.nothing"]}, "found no tensor that matches *.nothing; wanted some"),
        ({"tensors": [*GRAFT["tensors"], "gate"]}, "found no tensor that matches gate"),  # type: ignore[misc]
        ({"block_size": [64, 128]}, "wanted F32 or BF16 [4, 1], one a block of 64×128"),
        ({"tensors": ["*.0.linear_attn.*"]}, "qweight"),
        (
            {"donor": {"repo": "a/b", "revision": "main"}},
            "found the donor's revision 'main'; wanted 40 hex digits",
        ),
    ],
)
def test_graft_refuses_other_options(
    folder: Path, tmp_path: Path, change: Mapping[str, Any], found: str
) -> None:
    with pytest.raises(JobError) as error:
        apply(folder / "base", tmp_path / "out", {**GRAFT, **change}, donor=folder / "donor")
    assert found in str(error.value)


def test_graft_happens_once(folder: Path, tmp_path: Path) -> None:
    once = apply(folder / "base", tmp_path / "once", GRAFT, donor=folder / "donor")
    with pytest.raises(
        JobError, match="as F8_E4M3 in the checkpoint; wanted BF16 or F16; graft each tensor once"
    ):
        apply(once, tmp_path / "twice", GRAFT, donor=folder / "donor")


def tq(recipe: str) -> dict[str, str]:
    return {"name": "turboquant_metadata", "recipe": recipe}


@pytest.mark.parametrize(
    ("recipe", "name", "keys", "values"),
    [
        ("turboquant35", "turboquant35", range(128), range(128)),
        ("turboquant25", "turboquant25", range(64), range(64)),
        ("turboquant_asym", "turboquant_asym", range(128), range(128, 256)),
        ("q8k_tq35v", "turboquant_q8k_tq35v", range(128), range(128)),
        ("q8k_tq25v", "turboquant_q8k_tq25v", range(64), range(64)),
    ],
)
def test_turboquant(folder: Path, tmp_path: Path, recipe: str, name: str, keys: range, values: range) -> None:
    out = apply(folder / "base", tmp_path / "out", tq(recipe))
    layer = {
        "key_high_precision_indices": [list(keys)] * 2,
        "value_high_precision_indices": [list(values)] * 2,
    }
    wanted = {
        "version": 1,
        "recipe": name,
        "head_size": 256,
        "model_name": "qwen3_5_moe",
        "transform_version": "structured_hadamard_v1",
        "codebook_version": "lloyd_beta_v1",
        "layers": {"model.layers.3.self_attn.attn": layer, "mtp.layers.0.self_attn.attn": layer},
    }
    assert (out / "turboquant_kv.json").read_bytes() == models.as_json(wanted)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"head_dim": 16}, "found heads of 16 dimensions; wanted enough for turboquant35"),
        ({"num_key_value_heads": "2"}, "found '2' for num_key_value_heads in config.json"),
        ({"layer_types": ["full_attention"]}, "found 1 layer_types for 4 layers"),
        ({"layer_types": ["full_attention", "sliding", "sliding", "x"]}, "layers of the type sliding, x"),
    ],
)
def test_turboquant_refuses(tmp_path: Path, config: dict[str, Any], found: str) -> None:
    inner = {**models.CONFIG["text_config"], **config}  # type: ignore[dict-item]
    repo(tmp_path / "src", {"config.json": models.as_json({"text_config": inner})})
    with pytest.raises(JobError) as error:
        apply(tmp_path / "src", tmp_path / "out", tq("turboquant35"))
    assert found in str(error.value)


def dense_names() -> dict[str, tuple[int, int]]:
    return {
        n: s
        for i in range(models.LAYERS)
        for n, s in {**models.shared_expert(i), **models.attention(i)}.items()
    }


@functools.cache
def in_blocks(data: bytes, rows: int, columns: int) -> tuple[bytes, bytes]:
    """Codes and scales of a weight in blocks of 128×128, by the definition."""
    strip = 2 * 128 * columns
    made = [one_by_one(data[at : at + strip], 128, columns, 128) for at in range(0, len(data), strip)]
    return b"".join(codes for codes, _ in made), b"".join(scales for _, scales in made)


def converted(content: Content, scale: str) -> Content:
    """What fp8_dense has to make of these tensors."""
    out = dict(content)
    for name, (rows, columns) in dense_names().items():
        codes, scales = in_blocks(content[name][2], rows, columns)
        down, across = rows // 128, columns // 128
        shape = [down, 1, across, 1] if scale == "weight_scale" else [down, across]
        out[name] = ("F8_E4M3", [rows, columns], codes)
        out[f"{name.removesuffix('weight')}{scale}"] = ("F32", shape, scales)
    return out


def test_fp8_dense_of_a_mixed_checkpoint(folder: Path, tmp_path: Path) -> None:
    out = apply(folder / "next", tmp_path / "out", DENSE)
    assert indexed(out) == converted(merged(models.next_tensors()), "weight_scale")
    entry = {"quant_algo": "FP8_PB_WO", "group_size": 128}
    listed = {name.removesuffix(".weight"): entry for name in dense_names()}
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    experts = models.next_quantization("ignore")["quantized_layers"]
    assert config["quantized_layers"] == experts | listed  # type: ignore[operator]
    assert config["ignore"] == ["lm_head", "model.visual*"]
    other = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert other["quantized_layers"] == config["quantized_layers"]
    assert other["exclude_modules"] == config["ignore"]
    assert (out / "model-fp8-mtp-ple.safetensors").samefile(folder / "next/model-fp8-mtp-ple.safetensors")
    assert digest(out) == "9e8bde7641f2f267"


def test_fp8_dense_of_a_checkpoint_that_is_not_quantised(folder: Path, tmp_path: Path) -> None:
    content = {
        name: tensor for name, tensor in models.next_tensors()[0].items() if "experts" not in name.split(".")
    }
    files = {"model.safetensors": safetensors(content), "config.json": models.as_json(models.CONFIG)}
    out = apply(repo(tmp_path / "src", files)["config.json"].parent, tmp_path / "out", DENSE)
    assert contents(out / "model.safetensors") == converted(content, "weight_scale_inv")
    found = json.loads((out / "config.json").read_text())["quantization_config"]
    assert found == {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [
            "lm_head",
            *(f"model.language_model.layers.{i}.mlp.gate" for i in range(4)),
        ],
    }


def test_fp8_dense_then_reshard_is_reshard_of_the_same(folder: Path, tmp_path: Path) -> None:
    """A computed tensor goes straight into its last file; a computation over cut files reads the original."""
    one = apply(folder / "next", tmp_path / "one", DENSE, CUT)
    two = apply(apply(folder / "next", tmp_path / "half", DENSE), tmp_path / "two", CUT)
    assert digest(one) == digest(two)
    assert indexed(apply(folder / "next", tmp_path / "three", CUT, DENSE)) == indexed(one)


def test_the_processes_write_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from onhost.staging import fp8_dense, workers

    wanted = digest(apply(folder / "next", tmp_path / "one", DENSE))
    monkeypatch.setattr(workers, "WORTH", 0)
    monkeypatch.setattr(fp8_dense, "ROWS_AT_ONCE", 1)
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(workers, "_processes", lambda: pool)
        assert digest(apply(folder / "next", tmp_path / "two", DENSE)) == wanted


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"expect_tensors": 24}, "found 25 tensors to convert; wanted 24"),
        (
            {"tensors": ["*.experts.0.gate_proj.weight"], "expect_tensors": 4},
            "as U8 [128, 128]; wanted the BF16",
        ),
        ({"block_size": [128, 100]}, "found a block size of [128, 100]; wanted [128, 128]"),
        ({"block_size": [128]}, "found the block size [128]; wanted [rows, columns]"),
        ({"tensors": []}, "found no `tensors` in the plan"),
    ],
)
def test_fp8_dense_refuses(folder: Path, tmp_path: Path, change: Mapping[str, Any], found: str) -> None:
    with pytest.raises(JobError) as error:
        apply(folder / "next", tmp_path / "out", {**DENSE, **change})
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("weight", "quantization", "found"),
    [
        (bf16("w", 128, 200), None, "found a.weight with 200 columns; wanted a multiple of 128"),
        (
            ("BF16", [1, 128], b"\x80\x7f" * 128),
            None,
            "found a value in a.weight that is infinite or no number",
        ),
        (bf16("w", 128, 128), models.AUTOROUND, "found a checkpoint quantised as 'auto-round'; wanted MIXED"),
    ],
)
def test_fp8_dense_refuses_weights(
    tmp_path: Path, weight: tuple[str, list[int], bytes], quantization: Any, found: str
) -> None:
    config = {"quantization_config": quantization} if quantization else {}
    files = {"model.safetensors": safetensors({"a.weight": weight}), "config.json": models.as_json(config)}
    repo(tmp_path / "src", files)
    step = {"name": "fp8_dense", "tensors": ["a.weight"], "expect_tensors": 1}
    with pytest.raises(JobError) as error:
        apply(tmp_path / "src", tmp_path / "out", step)
    assert found in str(error.value)


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
