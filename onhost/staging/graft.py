"""Transform graft_fp8: some layers of an INT4 checkpoint become the donor's FP8 ones, scales beside them.

Quantisers leave sensitive layers in BF16; on a Spark these cost the most memory traffic a token. The donor is
the same model in block FP8, so its tensors fit by name and shape; nothing is converted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from onhost.plan import JobError
from onhost.staging.catalog import SOURCE, Catalog, Need
from onhost.staging.model_index import (
    INDEX,
    Index,
    check_index,
    index_of_all,
    json_bytes,
    read_index,
    read_json,
    weight_headers,
)
from onhost.staging.outputs import Copy, Output, Piece, Planned, kept, piece_of, text, weights
from onhost.staging.safetensors import Header, Tensor

VERSION = 2
NOTE = "_sparkstack_graft"  # a key of config.json that engines ignore
SCALE = "weight_scale_inv"


def some(names: Iterable[str]) -> str:
    """The first of many names, for a message."""
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def matching(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The names that a pattern matches; JobError for a pattern that matches none."""
    listed = list(names)
    found: set[str] = set()
    for pattern in patterns:
        hits = {name for name in listed if fnmatchcase(name, pattern)}
        if not hits:
            raise JobError(
                f"found no tensor that matches {pattern}; wanted some; correct `tensors` in the recipe"
            )
        found |= hits
    return found


def scale_shape(shape: Sequence[int], block: Sequence[int]) -> tuple[int, int]:
    """The shape of a weight's scales, one a block, the last ones of a row or column perhaps smaller."""
    return math.ceil(shape[0] / block[0]), math.ceil(shape[1] / block[1])


@dataclass(frozen=True)
class Weights:
    """A checkpoint's weights: its index (made where it has none), headers by file, tensors by name."""

    index: Index
    headers: dict[str, Header]
    tensors: dict[str, Tensor]
    origin: str

    @classmethod
    def read(cls, catalog: Catalog, origin: str = SOURCE) -> Weights:
        """From a catalog; JobError where index and files contradict each other."""
        index = read_index(catalog)
        headers = weight_headers(catalog, index)
        index = index or index_of_all(headers)
        return cls(index, headers, check_index(index, headers), origin)

    def piece(self, name: str) -> Piece:
        """A tensor with its bytes."""
        file = self.index.weight_map[name]
        return piece_of(self.tensors[name], self.headers[file], Need(self.origin, file))

    def place(self, name: str) -> Copy:
        """Where a tensor's bytes lie."""
        file = self.index.weight_map[name]
        tensor = self.tensors[name]
        return Copy(Need(self.origin, file), self.headers[file].data_start + tensor.begin, tensor.size)


def rewritten(
    catalog: Catalog, old: Weights, change: Mapping[str, Sequence[Piece]], files: Mapping[str, Output]
) -> list[Output]:
    """All files of a catalog with some tensors replaced by others (by name, in the file that held them).

    `files` are small files with new content. The index names what is new, where there is an index. A second,
    stale copy of a replaced tensor in another file goes: engines load all that is in a file.
    """
    by_file: dict[str, list[str]] = {}
    for name in sorted(change):
        by_file.setdefault(old.index.weight_map[name], []).append(name)
    touched = {
        file
        for file, header in old.headers.items()
        if any(tensor.name in change for tensor in header.tensors)
    }
    weight_map = dict(old.index.weight_map)
    total = sum(tensor.size for tensor in old.tensors.values())
    outputs = []
    for file, info in catalog.items():
        if file in touched:
            header = old.headers[file]
            pieces = [
                piece_of(tensor, header, Need(SOURCE, file))
                for tensor in header.tensors
                if tensor.name not in change
            ]
            for name in by_file.get(file, []):
                del weight_map[name]
                total -= old.tensors[name].size
                for piece in change[name]:
                    pieces.append(piece)
                    weight_map[piece.tensor.name] = file
                    total += piece.part.size
            outputs.append(weights(file, pieces, header.metadata))
        elif file not in files and file != INDEX:
            outputs.append(kept(file, info))
    if INDEX in catalog:
        metadata = {**old.index.metadata, "total_size": total}
        outputs.append(text(INDEX, Index(weight_map, metadata).content()))
    return [*outputs, *files.values()]


@dataclass(frozen=True)
class Graft:
    """The options of the transform; `origin` is how needs call the donor."""

    repo: str
    revision: str
    origin: str
    tensors: tuple[str, ...]
    expect: int
    block: tuple[int, int]
    note: bool

    def plan(self, catalog: Catalog, donors: Mapping[str, Catalog]) -> Planned:
        """The base with the donor's tensors in place of its own; JobError for whatever was not expected."""
        base = Weights.read(catalog)
        self._check_blocks(donors[self.origin])
        donor = Weights.read(donors[self.origin], self.origin)
        names = self._wanted(base, donor)
        change = {name: self._pair(name, base, donor) for name in sorted(names)}
        return Planned(tuple(rewritten(catalog, base, change, self._config(catalog, names))))

    def _check_blocks(self, donor: Catalog) -> None:
        """Where the donor's config.json names a block size: small tensors' scales alone would not tell."""
        said = (read_json(donor, "config.json") or {}).get("quantization_config")
        found = said.get("weight_block_size") if isinstance(said, dict) else None
        if found is not None and found != list(self.block):
            raise JobError(
                f"found the weight_block_size {found!r} in config.json of {self.repo}; wanted "
                f"{list(self.block)}; correct `block_size` in the recipe, or take another donor"
            )

    def _wanted(self, base: Weights, donor: Weights) -> set[str]:
        ours = matching(base.tensors, self.tensors)
        theirs = {
            name
            for name in matching(donor.tensors, self.tensors)
            if not name.endswith(f".{SCALE}")
        }
        odd = {name for name in ours if not name.endswith(".weight")}
        if odd:
            raise JobError(
                f"found {some(odd)} among the tensors to graft; wanted names that end in .weight; "
                "correct `tensors` in the recipe"
            )
        if ours != theirs:
            raise JobError(
                f"found {len(ours)} matching tensors in the checkpoint and {len(theirs)} in {self.repo}, "
                f"different: {some(ours ^ theirs)}; wanted the same names in both; "
                "correct `tensors` in the recipe, or its donor"
            )
        if len(ours) != self.expect:
            raise JobError(
                f"found {len(ours)} tensors to graft; wanted {self.expect}; "
                "correct `tensors` or `expect_tensors` in the recipe"
            )
        return ours

    def _pair(self, name: str, base: Weights, donor: Weights) -> list[Piece]:
        old, new = base.tensors[name], donor.tensors[name]
        scale = f"{name.removesuffix('weight')}{SCALE}"
        if old.dtype not in {"BF16", "F16"}:
            raise JobError(
                f"found {name} as {old.dtype} in the checkpoint; wanted BF16 or F16; "
                "graft each tensor once, and only those that are not quantised"
            )
        if new.dtype != "F8_E4M3" or new.shape != old.shape or len(new.shape) != 2:
            raise JobError(
                f"found {name} as {new.dtype} {list(new.shape)} in {self.repo}; wanted F8_E4M3 "
                f"{list(old.shape)}; take a donor of the same model"
            )
        if scale in base.tensors:
            raise JobError(
                f"found {scale} in the checkpoint already; wanted it from the donor alone; "
                "leave the graft out of the recipe"
            )
        wanted = scale_shape(new.shape, self.block)
        found = donor.tensors.get(scale)
        if found is None or found.dtype not in {"F32", "BF16"} or found.shape != wanted:
            seen = "no scales" if found is None else f"scales {found.dtype} {list(found.shape)}"
            raise JobError(
                f"found {seen} of {name} in {self.repo}; wanted F32 or BF16 {list(wanted)}, one a block of "
                f"{self.block[0]}×{self.block[1]}; correct `block_size`, or take another donor"
            )
        return [donor.piece(name), donor.piece(scale)]

    def _config(self, catalog: Catalog, names: Iterable[str]) -> dict[str, Output]:
        config = read_json(catalog, "config.json") if self.note else None
        if config is None:
            return {}
        note = {
            "donor": self.repo,
            "revision": self.revision,
            "weight_block_size": list(self.block),
            "tensors": sorted(names),
        }
        return {"config.json": text("config.json", json_bytes({**config, NOTE: note}))}


def made_tensor(name: str, dtype: str, shape: Sequence[int], size: int) -> Tensor:
    """The description of a tensor that is not in any file yet."""
    return Tensor(name, dtype, tuple(shape), 0, size)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config
