"""`model.safetensors.index.json`: which file holds which tensor, and how many bytes of data there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onhost.plan import JobError
from onhost.staging.safetensors import Header, Piece, read_header

INDEX = "model.safetensors.index.json"
View = Mapping[str, Path]  # relative name → where its bytes are; what a transform reads


@dataclass
class Index:
    """`weight_map` in the file's own order; `metadata` with all keys it had."""

    weight_map: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)

    def content(self) -> bytes:
        """The file's bytes; names sorted, so that equal content is equal bytes."""
        data = {"metadata": self.metadata, "weight_map": dict(sorted(self.weight_map.items()))}
        return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def read_index(view: View) -> Index | None:
    """The view's index, or None where it has none; JobError where it is not one."""
    if INDEX not in view:
        return None
    wanted = f"wanted a weight_map of names to files; remove {view[INDEX]} and fetch it again"
    try:
        data = json.loads(view[INDEX].read_text(encoding="utf-8"))
    except ValueError as error:
        raise JobError(f"found {INDEX} that is not JSON ({error}); {wanted}") from None
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    metadata = data.get("metadata") or {} if isinstance(data, dict) else {}
    if not isinstance(weight_map, dict) or not isinstance(metadata, dict):
        raise JobError(f"found {INDEX} without a weight_map; {wanted}")
    if not all(isinstance(file, str) for file in weight_map.values()):
        raise JobError(f"found {INDEX} with a file name that is no string; {wanted}")
    return Index(weight_map, metadata)


def weight_files(view: View, index: Index | None) -> list[str]:
    """The weight files: what the index names, and others at the top that are no second copy of the model."""
    named = set() if index is None else set(index.weight_map.values())
    return sorted(
        name
        for name in view
        if name in named
        or (name.endswith(".safetensors") and "/" not in name and not name.startswith("consolidated"))
    )


def read_headers(view: View, index: Index | None) -> dict[str, Header]:
    """Headers of all weight files by name, in name order."""
    return {name: read_header(view[name]) for name in weight_files(view, index)}


def check_index(index: Index, headers: Mapping[str, Header]) -> dict[str, Piece]:
    """Each indexed tensor with its bytes.

    JobError where the index names a file or tensor that is not there.
    """
    pieces: dict[str, Piece] = {}
    held = {file: {tensor.name: tensor for tensor in header.tensors} for file, header in headers.items()}
    for name, file in index.weight_map.items():
        if file not in held:
            raise JobError(
                f"found {file} missing though {INDEX} names it; wanted all files; fetch the checkpoint again"
            )
        if name not in held[file]:
            raise JobError(
                f"found no tensor {name} in {file} though {INDEX} says so; wanted it there; "
                "report it to the checkpoint's maker or pin another revision"
            )
        pieces[name] = Piece(held[file][name], headers[file])
    return pieces
