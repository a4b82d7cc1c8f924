"""graft_fp8, turboquant_metadata and fp8_dense: the exact bytes that come out, and what each refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import models
import pytest
from making import Content, contents, safetensors
from making import write_repo as repo
from models import bf16
from staged import CUT, DENSE, DONOR, GRAFT, INDEX, REGISTER, apply, digest, in_blocks, indexed, merged

from onhost.plan import JobError


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


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MIXED = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}
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


def test_graft_takes_the_donors_word_on_its_blocks(folder: Path, tmp_path: Path) -> None:
    """[1, 2] scales of a [128, 256] weight are those of blocks of 128, and as well of 1000×128."""
    donor = with_donor(folder, tmp_path, {})
    for said, step in (([128, 128], {**GRAFT, "block_size": [1000, 128]}), ([64, 128], GRAFT)):
        config = {"quantization_config": {**BLOCKS, "weight_block_size": said}}
        (donor / "config.json").write_bytes(models.as_json(config))
        with pytest.raises(JobError) as error:
            apply(folder / "base", tmp_path / "out", step, donor=donor)
        wanted = step.get("block_size", [128, 128])
        assert str(error.value).startswith(
            f"found the weight_block_size {said} in config.json of {DONOR['repo']}; wanted {wanted}; "
        )


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


def test_graft_leaves_no_stale_copy(tmp_path: Path) -> None:
    """An engine loads all that is in a file, whatever the index says of it."""
    files = models.hybrid_base()
    stale: Content = {GATE: ("BF16", [1], b"zz"), **models.mtp()}
    files["model_extra_tensors.safetensors"] = safetensors(stale)
    repo(tmp_path / "base", files)
    repo(tmp_path / "donor", models.donor_files())
    out = apply(tmp_path / "base", tmp_path / "out", GRAFT, donor=tmp_path / "donor")
    assert contents(out / "model_extra_tensors.safetensors") == models.mtp()
    assert indexed(out) == grafted()


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
    assert digest(out) == "d2f486fce2393ef0"


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
        (bf16("w", 128, 128), {**BLOCKS, "modules_to_not_convert": 5}, "found 5 as modules_to_not_convert; "),
        (bf16("w", 128, 128), {**MIXED, "ignore": "lm_head"}, "found 'lm_head' as ignore; wanted a list of"),
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
