"""Transform ngram_table: where each row of the n-gram (PLE) table lies, so that it need not be loaded.

The table of Qwen3.8-Flash-Next has 320 million rows of 160 bytes (51 GB), of which a token reads sixteen. It
stays in its files; `ngram_rows.json` says at which byte of which file a row begins. onhost.staging.rows reads
by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onhost.plan import JobError
from onhost.staging.catalog import Catalog
from onhost.staging.graft import Weights, some
from onhost.staging.model_index import json_bytes, read_json
from onhost.staging.outputs import Planned, kept, text
from onhost.staging.safetensors import Tensor, tensor_bytes

VERSION = 1
FILE = "ngram_rows.json"
PART = re.compile(r"(?P<table>.*ngram_embedding)\.shard_(?P<number>\d+)\.weight")


def ngram_table(catalog: Catalog, expect_rows: int | None) -> Planned:
    """The same files and the row map; JobError where the table is not whole, or not as large as expected."""
    rows = row_map(Weights.read(catalog))
    if expect_rows is not None and rows["rows"] != expect_rows:
        raise JobError(
            f"found a table of {rows['rows']} rows; wanted {expect_rows}; "
            "correct `expect_rows` in the recipe or pin another revision"
        )
    others = (kept(name, info) for name, info in catalog.items() if name != FILE)
    return Planned((*others, text(FILE, json_bytes(rows))))


def row_map(model: Weights) -> dict[str, Any]:
    """The content of `ngram_rows.json`: row i is in shard i // rows_per_shard, at a multiple of row_bytes."""
    parts: dict[int, str] = {}
    tables = set()
    for name in model.tensors:
        if found := PART.fullmatch(name):
            tables.add(found["table"])
            parts[int(found["number"])] = name
    if len(tables) != 1:
        raise JobError(
            f"found {some(tables) or 'no table'} as n-gram tables; wanted one "
            "(…ngram_embedding.shard_N.weight); leave ngram_table out of the recipe"
        )
    if sorted(parts) != list(range(len(parts))):
        missing = set(range(max(parts) + 1)) - set(parts)
        raise JobError(
            f"found the table's shard {min(missing)} missing; wanted all from 0 to {max(parts)}; "
            "add its file to the source's allow list"
        )
    shards = [model.tensors[parts[number]] for number in range(len(parts))]
    first = shards[0]
    for number, tensor in enumerate(shards):
        last = number == len(shards) - 1
        if (
            tensor.dtype != first.dtype
            or len(tensor.shape) != 2
            or tensor.shape[1] != first.shape[1]
            or tensor.shape[0] < 1
            or (tensor.shape[0] > first.shape[0] if last else tensor.shape[0] != first.shape[0])
        ):
            raise JobError(
                f"found {tensor.name} as {tensor.dtype} {list(tensor.shape)}; wanted {first.dtype} "
                f"{list(first.shape)} like shard 0; report it to the checkpoint's maker"
            )
    table = tables.pop()
    scale = model.tensors.get(f"{table}.weight_scale")
    return {
        "format": 1,
        "table": table,
        "dtype": first.dtype,
        "rows": sum(tensor.shape[0] for tensor in shards),
        "columns": first.shape[1],
        "row_bytes": tensor_bytes(first.dtype, (first.shape[1],)),
        "rows_per_shard": first.shape[0],
        "scale": None if scale is None else _place(scale, model) | {"shape": list(scale.shape)},
        "shards": [{**_place(tensor, model), "rows": tensor.shape[0]} for tensor in shards],
    }


def _place(tensor: Tensor, model: Weights) -> dict[str, Any]:
    copy = model.place(tensor.name)
    place = {"file": copy.need.file, "offset": copy.offset}
    return place if PART.fullmatch(tensor.name) else place | {"dtype": tensor.dtype}


def check_row_map(catalog: Catalog) -> None:
    """JobError where a checkpoint's row map is not that of its files, since a later transform moved them."""
    rows = read_json(catalog, FILE)
    if rows is not None and not _same(rows, catalog):
        raise JobError(
            f"found the table's rows elsewhere than {FILE} says; wanted ngram_table after every transform "
            "that writes the table's files anew; move it to the end of the recipe's transforms"
        )


def _same(rows: Mapping[str, Any], catalog: Catalog) -> bool:
    return row_map(Weights.read(catalog)) == rows
