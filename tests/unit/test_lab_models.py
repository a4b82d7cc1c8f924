"""The tiny models: the same bytes everywhere, valid files, the right names in the right places."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lab import models, tiny_qwen

REVISION = "b9560bff4041b189271c9d8ad5cc1b237e3f483f"
"""What recipes pin. A change here means: every recipe that names it must follow."""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return models.tiny_qwen_files()


def header(content: bytes) -> dict[str, Any]:
    """The header of a safetensors file, with its offsets checked against the file's length."""
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    found: dict[str, Any] = json.loads(content[8 : 8 + length])
    assert found.pop("__metadata__") == {"format": "pt"}
    at = 0
    for name, entry in found.items():
        start, end = entry["data_offsets"]
        size = 2
        for side in entry["shape"]:
            size *= side
        assert (entry["dtype"], start, end - start) == ("BF16", at, size), name
        at = end
    assert 8 + length + at == len(content)
    return found


def test_revision_is_the_one_that_recipes_pin(files: dict[str, bytes]) -> None:
    assert models.revision(files) == REVISION


def test_revision_depends_on_name_and_content() -> None:
    assert models.revision({"a": b"x"}) != models.revision({"a": b"y"}) != models.revision({"b": b"y"})


def test_index_names_every_tensor_of_the_shards_and_no_mtp(files: dict[str, bytes]) -> None:
    index = json.loads(files[models.INDEX])
    physical = {
        name: shard
        for shard in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        for name in header(files[shard])
    }
    assert index["weight_map"] == physical
    assert not [name for name in physical if name.startswith("mtp")]
    entries = [entry for shard in set(physical.values()) for entry in header(files[shard]).values()]
    assert index["metadata"]["total_size"] == sum(
        e["data_offsets"][1] - e["data_offsets"][0] for e in entries
    )


def test_mtp_file_has_the_names_that_vllm_wants(files: dict[str, bytes]) -> None:
    names = set(header(files[models.EXTRA]))
    assert all(name.startswith("mtp.") for name in names)
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight"} <= names
    assert f"mtp.layers.0.mlp.experts.{tiny_qwen.EXPERTS - 1}.down_proj.weight" in names
    assert len(names) == 17 + 3 * tiny_qwen.EXPERTS


def test_layers_are_three_delta_nets_and_one_attention(files: dict[str, bytes]) -> None:
    names = json.loads(files[models.INDEX])["weight_map"]
    kinds = [
        {name.split(".")[4] for name in names if name.startswith(f"model.language_model.layers.{layer}.")}
        & {"linear_attn", "self_attn"}
        for layer in range(4)
    ]
    assert kinds == [{"linear_attn"}] * 3 + [{"self_attn"}]
    config = json.loads(files["config.json"])
    assert config["text_config"]["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    assert config["text_config"]["mtp_num_hidden_layers"] == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_widths_divide_by_the_ranks(ranks: int) -> None:
    sides = (
        tiny_qwen.HEADS,
        tiny_qwen.GDN_KEY_HEADS,
        tiny_qwen.GDN_VALUE_HEADS,
        tiny_qwen.EXPERT_WIDTH,
        tiny_qwen.VOCAB,
    )
    assert [side % ranks for side in sides] == [0] * len(sides)


def test_only_printable_characters_go_without_penalty(files: dict[str, bytes]) -> None:
    """So a completion runs to max_tokens, and each token is one visible character."""
    shard = files["model-00002-of-00002.safetensors"]
    (length,) = struct.unpack("<Q", shard[:8])
    start = 8 + length + header(shard)["lm_head.weight"]["data_offsets"][0]
    column = [shard[start + 2 * tiny_qwen.HIDDEN * row :][:2] for row in range(tiny_qwen.VOCAB)]
    free = [row for row, value in enumerate(column) if value == b"\0\0"]
    assert free == list(range(32, 127))
    assert set(column) == {tiny_qwen.bf16(0.0), tiny_qwen.bf16(-16.0)}


def test_tokenizer_has_a_token_for_each_byte_and_the_special_ones(files: dict[str, bytes]) -> None:
    tokenizer = json.loads(files["tokenizer.json"])
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(256))
    assert tokenizer["model"]["vocab"]["Ġ"] == 32
    assert [token["id"] for token in tokenizer["added_tokens"]] == list(range(256, 265))


@pytest.mark.parametrize(
    ("value", "bits"), [(1.0, 0x3F80), (-2.0, 0xC000), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (0.0, 0)]
)
def test_bf16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert struct.unpack("<H", tiny_qwen.bf16(value)) == (bits,)


def test_noise_has_its_mean_and_deviation() -> None:
    tensor = tiny_qwen.noise("any", (64, 64), 0.5, mean=2.0)
    values = [
        struct.unpack("<f", b"\0\0" + tensor.data[at : at + 2])[0] for at in range(0, len(tensor.data), 2)
    ]
    mean = sum(values) / len(values)
    assert mean == pytest.approx(2.0, abs=0.03)
    assert (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5 == pytest.approx(0.5, rel=0.05)


def test_build_writes_once_and_mends_what_was_changed(tmp_path: Path) -> None:
    assert models.build(tmp_path) == {models.TINY_QWEN: REVISION}
    config = tmp_path / models.TINY_QWEN / "config.json"
    before = config.stat()
    models.build(tmp_path)
    assert config.stat().st_ino == before.st_ino
    config.write_text("{}")
    (config.parent / "stray").write_text("")
    models.build(tmp_path)
    assert config.stat().st_size == before.st_size
    assert not (config.parent / "stray").exists()
