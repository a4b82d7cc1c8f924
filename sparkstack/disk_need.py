"""How much room a recipe needs, and where: weights under the state folder, the image at Docker's root.

A recipe's budget names the whole (`disk_gib`) and what is downloaded (`download_gib`). A transformed
checkpoint is written anew, about as large as its source; the image is what remains. The job that stages works
the need out exactly, from the headers, before it fetches a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkstack.native import Budget
from sparkstack.units import GIB


@dataclass(frozen=True)
class Staged:
    """What a host has already."""

    checkpoint: bool = False
    image: bool = False
    downloaded_bytes: int = 0


@dataclass(frozen=True)
class Need:
    """Bytes that are still to be written, into the folder of downloads, that of checkpoints, and at Docker's
    root. `image` is None where the budget does not tell it apart: it is then within `checkpoint`."""

    download: int
    checkpoint: int
    image: int | None


SHARDS = 20 * GIB
"""Two source files that are there at a time where sources do not stay; hubs cut models at 5 or 10 GB."""


def need(
    budget: Budget,
    *,
    transformed: bool,
    head: bool,
    staged: Staged,
    keep_source: bool = True,
    one_file_system: bool = True,
) -> Need:
    """What this host still writes. The head downloads and transforms; the others receive one copy.

    Without `keep_source` what was downloaded goes while it is transformed, but for two files at a time. What
    no transform changes is linked where downloads and checkpoints are on `one_file_system`, else copied.
    """
    whole = int(budget.disk_gib * GIB)
    if budget.download_gib is None:
        return Need(0, 0, 0) if staged.checkpoint else Need(0, whole, None)
    download = int(budget.download_gib * GIB)
    if transformed and not keep_source:
        window = min(download, SHARDS)
        image = 0 if staged.image else max(whole - download - window, 0)
        if staged.checkpoint or not head:
            return Need(0, 0 if staged.checkpoint else download, image)
        rest = max(download + window - staged.downloaded_bytes, 0)
        checkpoint = min(rest, download)
        return Need(rest - checkpoint, checkpoint, image)
    anew = min(download, max(whole - download, 0)) if transformed else 0
    image = 0 if staged.image else max(whole - download - anew, 0)
    if staged.checkpoint:
        return Need(0, 0, image)
    if not head:
        return Need(0, anew or download, image)
    copied = 0 if one_file_system else download
    return Need(max(download - staged.downloaded_bytes, 0), anew or copied, image)


def by_file_system(needs: Mapping[str, int], file_systems: Mapping[str, str]) -> list[tuple[list[str], int]]:
    """(folders, bytes that they need together) for each file system, in the order of `needs`.

    A folder whose file system is not known stands alone.
    """
    groups: dict[str, tuple[list[str], int]] = {}
    for folder, size in needs.items():
        key = file_systems.get(folder, f"unknown of {folder}")
        folders, together = groups.get(key, ([], 0))
        groups[key] = ([*folders, folder], together + size)
    return list(groups.values())
