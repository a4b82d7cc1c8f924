"""Transform register_mtp: tensors that lie in the files but that the index does not name get an entry.

Quantisers put the draft (MTP) layers into a file of their own and some builders then forget it in the index;
an engine that reads by index never sees it. What is there is read from the files' headers, never from another
index.
"""

from __future__ import annotations

from typing import Any

from onhost.plan import JobError
from onhost.staging.catalog import Catalog
from onhost.staging.model_index import INDEX, check_index, read_index, weight_headers
from onhost.staging.outputs import Planned, kept, text

VERSION = 1


def register_mtp(catalog: Catalog, _donors: Any = None) -> Planned:
    """The same files with an index that names all tensors; the index's own bytes where none lacked.

    Without an index there is nothing to register: an engine then reads every file. JobError where two files
    hold a tensor that the index gives to neither, or where the index and the files contradict each other.
    """
    index = _completed_index(catalog)
    outputs = [kept(name, info) for name, info in catalog.items() if index is None or name != INDEX]
    return Planned((*outputs, *([] if index is None else [text(INDEX, index)])))


def _completed_index(catalog: Catalog) -> bytes | None:
    index = read_index(catalog)
    if index is None:
        return None
    headers = weight_headers(catalog, index)
    sizes = {name: tensor.size for name, tensor in check_index(index, headers).items()}
    added: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in index.weight_map:
                continue
            if tensor.name in added:
                raise JobError(
                    f"found tensor {tensor.name} in {added[tensor.name]} and in {file}, and {INDEX} names "
                    "neither; wanted one; leave one of the files out with the source's allow list"
                )
            added[tensor.name] = file
            sizes[tensor.name] = tensor.size
    if not added:
        return None
    index.weight_map.update(added)
    index.metadata["total_size"] = sum(sizes.values())
    return index.content()
