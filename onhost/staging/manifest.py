"""`manifest.json`: what a finished checkpoint consists of.

Its presence under a final name is the mark of "done".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onhost.files import OnBytes, files_below, ignore_bytes, safe_relative, sha256_of
from onhost.plan import JobError
from onhost.staging.safetensors import FormatError, prefix_of, read_header

MANIFEST = "manifest.json"
HASHERS = 32  # files at once at most; hashing releases the interpreter, so every core takes part
SMALL = 16 << 20  # bytes; configurations and tokenizers, whose hash costs nothing


@dataclass(frozen=True)
class Manifest:
    """Files by relative name with size (bytes) and SHA-256 (hex); `raw` is the whole JSON object."""

    id: str
    files: dict[str, tuple[int, str]]
    raw: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(size for size, _ in self.files.values())

    def value(self) -> dict[str, Any]:
        """What a job's result says about the checkpoint."""
        return {"id": self.id, "bytes": self.bytes, "files": len(self.files)}


def make(
    id: str,
    source: Mapping[str, Any],
    transforms: list[Any],
    files: Mapping[str, tuple[int, str]],
    inputs: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Manifest:
    """A manifest from its parts. `inputs`: each repository that bytes came from, with revision and hashes;
    `headers`: for weight files the SHA-256 of their header, by which they are checked without their data."""
    held = {name: {"header_sha256": sha256} for name, sha256 in (headers or {}).items()}
    raw = {
        "format": 1,
        "id": id,
        "source": dict(source),
        "inputs": [dict(one) for one in inputs],
        "transforms": transforms,
        "files": {
            name: {"size": size, "sha256": sha, **held.get(name, {})}
            for name, (size, sha) in sorted(files.items())
        },
        "bytes": sum(size for size, _ in files.values()),
    }
    return Manifest(id, dict(files), raw)


def parse(text: str, where: str) -> Manifest:
    """From JSON text; JobError where it is not a manifest of format 1 or names a file outside the folder."""
    try:
        raw = json.loads(text)
        if raw["format"] != 1:
            raise JobError(f"found format {raw['format']} in {where}; wanted 1; bring onhost up to date")
        files = {safe_relative(name): (int(f["size"]), str(f["sha256"])) for name, f in raw["files"].items()}
        return Manifest(str(raw["id"]), files, raw)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise JobError(
            f"found no manifest in {where}; wanted format 1; remove the folder and run again"
        ) from None


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder; JobError where there is none."""
    path = folder / MANIFEST
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise JobError(
            f"found {folder} without {MANIFEST}; wanted a checkpoint that a job has finished; "
            "move the folder away and run again"
        ) from None


def hash_files(paths: Iterable[Path], on_bytes: OnBytes = ignore_bytes) -> dict[Path, str]:
    """SHA-256 of several files, a few at once."""
    todo = sorted(paths, key=lambda path: -path.stat().st_size)
    pool = ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1), thread_name_prefix="hash")
    try:
        hashes = list(pool.map(lambda path: sha256_of(path, on_bytes), todo))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return dict(zip(todo, hashes, strict=True))


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a checkpoint. `unlisted`: a file too many, which no copy of ours can mend."""

    name: str
    what: str
    unlisted: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def quick_faults(folder: Path, manifest: Manifest) -> list[Fault]:
    """What is wrong by names, sizes, the headers of weight files, and the SHA-256 of small other files."""
    found = set(files_below(folder)) - {MANIFEST}
    faults = [Fault(name, "missing") for name in set(manifest.files) - found]
    faults += [Fault(name, "not in the manifest", unlisted=True) for name in found - set(manifest.files)]
    for name in found & set(manifest.files):
        size, wanted = (folder / name).stat().st_size, manifest.files[name][0]
        if size != wanted:
            faults.append(Fault(name, f"{size} bytes, wanted {wanted}"))
        elif name.endswith(".safetensors"):
            if found_in_header := _header_fault(folder / name, manifest.raw["files"][name]):
                faults.append(Fault(name, found_in_header))
        elif size <= SMALL and (sha256 := sha256_of(folder / name)) != manifest.files[name][1]:
            faults.append(Fault(name, f"sha256 {sha256}, wanted {manifest.files[name][1]}"))
    return sorted(faults, key=str)


def header_sha256(path: Path) -> str:
    """SHA-256 of a weight file's length field and header; FormatError where it has none."""
    return hashlib.sha256(prefix_of(path)).hexdigest()


def _header_fault(path: Path, entry: Mapping[str, Any]) -> str | None:
    try:
        if "header_sha256" not in entry:
            read_header(path)
        elif header_sha256(path) != entry["header_sha256"]:
            return "another header than the manifest's"
    except FormatError as error:
        return f"header: {str(error).split('; ')[0]}"
    return None


def faults(folder: Path, manifest: Manifest, on_bytes: Callable[[int], None] = ignore_bytes) -> list[Fault]:
    """What is wrong by names, sizes, headers and the SHA-256 of each file."""
    lines = quick_faults(folder, manifest)
    told = {fault.name for fault in lines}
    names = {folder / name: name for name in manifest.files if name not in told}
    for path, found in hash_files(names, on_bytes).items():
        wanted = manifest.files[names[path]][1]
        if found != wanted:
            lines.append(Fault(names[path], f"sha256 {found}, wanted {wanted}"))
    return sorted(lines, key=str)
