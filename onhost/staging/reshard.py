"""Transform reshard: the model's files are cut anew so that none is larger than a loader on a Spark can bear.

Loading maps a whole file beside the memory that the weights themselves take; on unified memory one file of 80
GB doubles the peak. Tensors are copied byte for byte from their headers; nothing is decoded, nothing is made
up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from onhost.files import BLOCK
from onhost.plan import JobError
from onhost.staging.catalog import SOURCE, Catalog, Need
from onhost.staging.model_index import INDEX, Index, check_index, index_of_all, read_index, weight_headers
from onhost.staging.outputs import SHARING, Piece, Planned, kept, piece_of, text, weights
from onhost.staging.safetensors import ALIGNMENT, Header, Tensor

VERSION = 2
OVERHEAD = 96  # bytes; keys, brackets and two offsets of up to 20 digits in a header's entry

# The names that hubs use for the parts of a model. All other weight files keep their name and their bytes.
MODEL_FILE = re.compile(r"model(\.safetensors)?-\d{5}-of-\d{5}\.safetensors|model\.safetensors")

# Tensors of one module that a quantised layer needs together: a loader that sees one without the other stalls
# or fails.
COMPANIONS = re.compile(
    r"\.(weight|weight_scale|weight_scale_inv|weight_scale_2|weight_packed|weight_shape|weight_zero_point"
    r"|weight_g_idx|weight_global_scale|input_scale|input_global_scale|qweight|qzeros|scales|g_idx|bias)$"
)


def reshard(catalog: Catalog, max_shard_bytes: int, _donors: Any = None) -> Planned:
    """Model files of at most `max_shard_bytes` (header included), everything else as it is.

    A tensor (with its companions) that is larger has a file of its own. Where no file is too large, all files
    stay. JobError where there is no model file, or where index and files contradict.
    """
    index = read_index(catalog)
    headers = weight_headers(catalog, index)
    model = {name: header for name, header in headers.items() if MODEL_FILE.fullmatch(name)}
    if not model:
        raise JobError(
            f"found no model file among {', '.join(headers) or 'no safetensors files'}; "
            "wanted model.safetensors or model-NNNNN-of-NNNNN.safetensors; leave reshard out of the recipe"
        )
    if all(catalog[name].size <= max_shard_bytes for name in model):
        return Planned(tuple(kept(name, info) for name, info in catalog.items()))
    index = index or index_of_all(headers)
    indexed = check_index(index, headers)
    metadata = _merged_metadata(model)
    padding = ALIGNMENT if max_shard_bytes < SHARING else BLOCK
    room = max_shard_bytes - 8 - padding - len(json.dumps(metadata or {})) - OVERHEAD
    bins = _fill(_groups(model, index), room)
    outputs = [kept(name, info) for name, info in catalog.items() if name not in model and name != INDEX]
    weight_map = dict(index.weight_map)
    for at, pieces in enumerate(bins):
        name = f"model-{at + 1:05d}-of-{len(bins):05d}.safetensors"
        outputs.append(weights(name, pieces, metadata))
        weight_map.update({p.tensor.name: name for p in pieces if p.tensor.name in index.weight_map})
    new = Index(weight_map, dict(index.metadata))
    new.metadata["total_size"] = sum(tensor.size for tensor in indexed.values())
    return Planned((*outputs, text(INDEX, new.content())))


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
            groups.setdefault(COMPANIONS.sub("", tensor.name), []).append(
                piece_of(tensor, header, Need(SOURCE, file))
            )
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
