"""Transforms as the tests apply them, and what comes out as an engine would read it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import models
import safetensors as library
from making import Content, Silent, contents
from test_onhost_numerals import one_by_one

from onhost.plan import Plan
from onhost.staging.catalog import donor_origin
from onhost.staging.chain import apply_steps, folder_view
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


@functools.cache
def in_blocks(data: bytes, rows: int, columns: int) -> tuple[bytes, bytes]:
    """Codes and scales of a weight in blocks of 128×128, by the definition."""
    strip = 2 * 128 * columns
    made = [one_by_one(data[at : at + strip], 128, columns, 128) for at in range(0, len(data), strip)]
    return b"".join(codes for codes, _ in made), b"".join(scales for _, scales in made)
