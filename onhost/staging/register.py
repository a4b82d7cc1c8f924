"""Transform register_mtp: tensors that lie in the files but that the index does not name get an entry.

Quantisers put the draft (MTP) layers into a file of their own and some builders then forget it in the index;
an engine that reads by index never sees it. What is there is read from the files' headers, never from another
index.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onhost.files import link_or_copy, write_atomic
from onhost.plan import JobError
from onhost.staging.model_index import INDEX, View, check_index, read_headers, read_index

if TYPE_CHECKING:
    from onhost.staging.transforms import Meter

VERSION = 1


def register_mtp(view: View, target: Path, meter: Meter) -> None:
    """Fills `target` with the view's files and an index that names all tensors; equal bytes if none lacked.

    Without an index there is nothing to register: an engine then reads every file. JobError where two files
    hold a tensor that the index gives to neither, or where the index and the files contradict each other.
    """
    meter.stage("register_mtp", len(view), "files", "reading headers")
    new_index = _completed_index(view)
    for name, path in view.items():
        if name == INDEX and new_index is not None:
            write_atomic(target / name, new_index)
        else:
            link_or_copy(path, target / name)
        meter.add(1)


def _completed_index(view: View) -> bytes | None:
    index = read_index(view)
    if index is None:
        return None
    headers = read_headers(view, index)
    sizes = {name: piece.tensor.size for name, piece in check_index(index, headers).items()}
    added: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in index.weight_map:
                continue
            if tensor.name in added:
                raise JobError(
                    f"found tensor {tensor.name} in {added[tensor.name]} and in {file}, and {INDEX} names "
                    "neither; "
                    "wanted one; leave one of the files out with the source's allow list"
                )
            added[tensor.name] = file
            sizes[tensor.name] = tensor.size
    if not added:
        return None
    index.weight_map.update(added)
    index.metadata["total_size"] = sum(sizes.values())
    return index.content()
