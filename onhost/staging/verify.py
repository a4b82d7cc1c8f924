"""The commands `verify` and `repair`: a finished checkpoint held against its manifest, offline."""

from __future__ import annotations

import sys
from pathlib import Path

from onhost.plan import JobError
from onhost.staging import manifest as manifests


def verify(folder: Path, hashes: bool) -> int:
    """One line a fault on standard output, 1 where there is any; needs no network.

    Names, sizes, headers and small files always; the content of large files with `hashes`.
    """
    try:
        manifest = manifests.read(folder)
    except JobError as error:
        print(error, file=sys.stderr)
        return 1
    found = manifests.faults(folder, manifest) if hashes else manifests.quick_faults(folder, manifest)
    for fault in found:
        print(fault)
    if not found:
        by = "all as the manifest says" if hashes else "headers as the manifest says; contents not checked"
        print(f"{folder.name}: {len(manifest.files)} files, {manifest.bytes} bytes, {by}")
    return 1 if found else 0
