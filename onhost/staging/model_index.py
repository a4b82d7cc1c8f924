"""`model.safetensors.index.json`: which file holds which tensor, and how many bytes of data there are."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onhost.plan import JobError
from onhost.staging.catalog import Catalog
from onhost.staging.safetensors import Header, Tensor

INDEX = "model.safetensors.index.json"


@dataclass
class Index:
    """`weight_map` in the file's own order; `metadata` with all keys it had."""

    weight_map: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)

    def content(self) -> bytes:
        """The file's bytes; names sorted, so that equal content is equal bytes."""
        data = {"metadata": self.metadata, "weight_map": dict(sorted(self.weight_map.items()))}
        return json_bytes(data)


def read_json(catalog: Catalog, name: str) -> dict[str, Any] | None:
    """A small JSON file's object, or None where there is no such file; JobError where it is not an object."""
    if name not in catalog:
        return None
    wanted = f"wanted a JSON object; remove {name} and fetch it again"
    try:
        data = json.loads((catalog[name].content or b"").decode("utf-8"))
    except ValueError as error:
        raise JobError(f"found {name} that is not JSON ({error}); {wanted}") from None
    if not isinstance(data, dict):
        raise JobError(f"found {type(data).__name__} in {name}; {wanted}")
    return data


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """A JSON file's bytes, readable; keys in the order they have."""
    out = io.BytesIO()
    # Piece by piece: `dumps` would hold the pieces of a large model's index, five a name, as strings at once.
    with io.TextIOWrapper(out, "utf-8", newline="") as text:
        json.dump(data, text, indent=2, ensure_ascii=False)
        text.write("\n")
        text.flush()
        return out.getvalue()


def read_index(catalog: Catalog) -> Index | None:
    """The catalog's index, or None where it has none; JobError where it is not one."""
    data = read_json(catalog, INDEX)
    if data is None:
        return None
    wanted = f"wanted a weight_map of names to files; remove {INDEX} and fetch it again"
    weight_map, metadata = data.get("weight_map"), data.get("metadata") or {}
    if not isinstance(weight_map, dict) or not isinstance(metadata, dict):
        raise JobError(f"found {INDEX} without a weight_map; {wanted}")
    if not all(isinstance(file, str) for file in weight_map.values()):
        raise JobError(f"found {INDEX} with a file name that is no string; {wanted}")
    # The names are those of the files' headers, and the files are few.
    return Index({sys.intern(name): sys.intern(file) for name, file in weight_map.items()}, metadata)


def weight_files(catalog: Catalog, index: Index | None) -> list[str]:
    """The weight files: what the index names, and others at the top that are no second copy of the model."""
    named = set() if index is None else set(index.weight_map.values())
    return sorted(
        name
        for name in catalog
        if name in named
        or (name.endswith(".safetensors") and "/" not in name and not name.startswith("consolidated"))
    )


def weight_headers(catalog: Catalog, index: Index | None) -> dict[str, Header]:
    """Headers of all weight files by name, in name order."""
    headers: dict[str, Header] = {}
    for name in weight_files(catalog, index):
        header = catalog[name].header
        if header is None:
            raise JobError(
                f"found weights in {name}, which is no safetensors file; wanted safetensors alone; "
                "leave it out with the source's allow list"
            )
        headers[name] = header
    return headers


def check_index(index: Index, headers: Mapping[str, Header]) -> dict[str, Tensor]:
    """Each indexed tensor, as the file that the index names has it, file by file.

    JobError where the index names a file or tensor that is not there.
    """
    found: dict[str, Tensor] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if index.weight_map.get(tensor.name) == file:
                found[tensor.name] = tensor
    for name, file in index.weight_map.items():
        if file not in headers:
            raise JobError(
                f"found {file} missing though {INDEX} names it; wanted all files; fetch the checkpoint again"
            )
        if name not in found:
            raise JobError(
                f"found no tensor {name} in {file} though {INDEX} says so; wanted it there; "
                "report it to the checkpoint's maker or pin another revision"
            )
    return found


def index_of_all(headers: Mapping[str, Header]) -> Index:
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
