"""Transform reshard: the model's files are cut anew so that none is larger than a loader on a Spark can bear.

Loading maps a whole file beside the memory that the weights themselves take; on unified memory one file of 80
GB doubles the peak. Tensors are copied byte for byte from their headers; nothing is decoded, nothing is made
up.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onhost.files import CHUNK, link_or_copy, write_atomic
from onhost.plan import JobError
from onhost.staging.model_index import INDEX, Index, View, check_index, read_headers, read_index
from onhost.staging.safetensors import ALIGNMENT, Header, Piece, Tensor, layout, read_header, write_file

if TYPE_CHECKING:
    from onhost.staging.transforms import Meter

VERSION = 1
OVERHEAD = 96  # bytes; keys, brackets and two offsets of up to 20 digits in a header's entry

# The names that hubs use for the parts of a model. All other weight files keep their name and their bytes.
MODEL_FILE = re.compile(r"model(\.safetensors)?-\d{5}-of-\d{5}\.safetensors|model\.safetensors")

# Tensors of one module that a quantised layer needs together: a loader that sees one without the other stalls
# or fails.
COMPANIONS = re.compile(
    r"\.(weight|weight_scale|weight_scale_inv|weight_scale_2|weight_packed|weight_shape|weight_zero_point"
    r"|weight_g_idx|weight_global_scale|input_scale|input_global_scale|qweight|qzeros|scales|g_idx|bias)$"
)


@dataclass(frozen=True)
class _Cut:
    """What reshard makes of a view: the new files' pieces by name, the names left alone, the new index."""

    shards: dict[str, list[Piece]]
    kept: list[str]
    metadata: dict[str, str] | None
    index: Index


def reshard(view: View, target: Path, meter: Meter, max_shard_bytes: int) -> None:
    """Fills `target`: model files of at most `max_shard_bytes` (header included), everything else as it is.

    A tensor (with its companions) that is larger has a file of its own. Where no file is too large, all files
    stay. JobError where there is no model file, where index and files contradict, or where a copy differs
    from its source.
    """
    cut = _cut(view, max_shard_bytes)
    if cut is None:
        meter.stage("reshard", len(view), "files", "all files are small enough")
        for name, path in view.items():
            link_or_copy(path, target / name)
            meter.add(1)
        return
    total = sum(piece.tensor.size for pieces in cut.shards.values() for piece in pieces)
    meter.stage("reshard", total, "B", f"{len(cut.shards)} files")
    for name, pieces in cut.shards.items():
        write_file(target / name, pieces, cut.metadata, meter.add)
    meter.stage("compare", total, "B", "copies with their sources")
    for name, pieces in cut.shards.items():
        _compare(target / name, pieces, meter)
    for name in cut.kept:
        link_or_copy(view[name], target / name)
    write_atomic(target / INDEX, cut.index.content())


def bytes_to_write(view: View, max_shard_bytes: int) -> int:
    """Bytes that `reshard` writes anew (headers of new files left out)."""
    cut = _cut(view, max_shard_bytes)
    return 0 if cut is None else sum(piece.tensor.size for pieces in cut.shards.values() for piece in pieces)


def _cut(view: View, limit: int) -> _Cut | None:
    index = read_index(view)
    headers = read_headers(view, index)
    model = {name: header for name, header in headers.items() if MODEL_FILE.fullmatch(name)}
    if not model:
        raise JobError(
            f"found no model file among {', '.join(headers) or 'no safetensors files'}; "
            "wanted model.safetensors or model-NNNNN-of-NNNNN.safetensors; leave reshard out of the recipe"
        )
    if all(view[name].stat().st_size <= limit for name in model):
        return None
    index = index or _index_of_all(headers)
    indexed = check_index(index, headers)
    metadata = _merged_metadata(model)
    bins = _fill(_groups(model, index), limit - 8 - ALIGNMENT - len(json.dumps(metadata or {})) - OVERHEAD)
    shards: dict[str, list[Piece]] = {}
    weight_map = dict(index.weight_map)
    for at, pieces in enumerate(bins):
        name = f"model-{at + 1:05d}-of-{len(bins):05d}.safetensors"
        shards[name] = pieces
        weight_map.update({p.tensor.name: name for p in pieces if p.tensor.name in index.weight_map})
    new = Index(weight_map, dict(index.metadata))
    new.metadata["total_size"] = sum(piece.tensor.size for piece in indexed.values())
    kept = [name for name in view if name not in model and name != INDEX]
    return _Cut(shards, kept, metadata, new)


def _index_of_all(headers: Mapping[str, Header]) -> Index:
    """What an engine loads where there is no index: every file.

    A name twice would be a guess, hence an error.
    """
    weight_map: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in weight_map:
                raise JobError(
                    f"found tensor {tensor.name} in {weight_map[tensor.name]} and in {file} and no {INDEX}; "
                    "wanted one; leave one of the files out with the source's allow list"
                )
            weight_map[tensor.name] = file
    return Index(weight_map)


def _groups(model: Mapping[str, Header], index: Index) -> list[list[Piece]]:
    """Tensors in their original order (file, then offset), companions drawn to the first of them.

    Of a name that lies in several files the index's one is taken. A tensor that no entry names stays
    (unnamed): a later register_mtp may want it, and a file that an engine reads whole gives it out today as
    well.
    """
    groups: dict[str, list[Piece]] = {}
    taken: set[str] = set()
    for file, header in model.items():
        for tensor in header.tensors:
            if tensor.name in taken or index.weight_map.get(tensor.name, file) != file:
                continue
            taken.add(tensor.name)
            groups.setdefault(COMPANIONS.sub("", tensor.name), []).append(Piece(tensor, header))
    return list(groups.values())


def _fill(groups: list[list[Piece]], limit: int) -> list[list[Piece]]:
    """Groups one after the other into files of at most `limit` bytes; a larger group has one of its own."""
    bins: list[list[Piece]] = []
    room = -1
    for group in groups:
        size = sum(piece.tensor.size + _entry_bytes(piece.tensor) for piece in group)
        if size > room:
            bins.append([])
            room = limit
        bins[-1].extend(group)
        room -= size
    return bins


def _entry_bytes(tensor: Tensor) -> int:
    """What a tensor takes in a header, at most."""
    return len(json.dumps([tensor.name, tensor.dtype, list(tensor.shape)]).encode()) + OVERHEAD


def _merged_metadata(model: Mapping[str, Header]) -> dict[str, str] | None:
    """The metadata of all files, the first file's word where they differ; None where none has any."""
    merged: dict[str, str] | None = None
    for header in model.values():
        if header.metadata is not None:
            merged = {**header.metadata, **(merged or {})}
    return merged


def _compare(path: Path, pieces: list[Piece], meter: Meter) -> None:
    """JobError unless every tensor of the new file has its source's type, shape and bytes."""
    new = read_header(path)
    wanted = [tensor for tensor, _ in layout(pieces)]
    # Zero-size tensors share an offset with their neighbour, so reading order may differ from writing order.
    if {tensor.name: tensor for tensor in new.tensors} != {tensor.name: tensor for tensor in wanted}:
        raise JobError(
            f"found another header in {path.name} than was written; wanted the same; check the disk"
        )
    with path.open("rb", buffering=0) as mine:
        for tensor, piece in layout(pieces):
            with piece.header.path.open("rb", buffering=0) as theirs:
                for at in range(0, tensor.size, CHUNK):
                    count = min(CHUNK, tensor.size - at)
                    left = os.pread(mine.fileno(), count, new.data_start + tensor.begin + at)
                    if left != os.pread(theirs.fileno(), count, piece.offset + at):
                        raise JobError(
                            f"found tensor {tensor.name} in {path.name} differing from its source; "
                            "wanted equal bytes; check the disk and run again"
                        )
                    meter.add(count)
