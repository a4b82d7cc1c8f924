"""`manifest.json`: what a finished checkpoint consists of.

Its presence under a final name is the mark of "done".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    except (FileNotFoundError, NotADirectoryError):
        raise JobError(
            f"found {folder} without {MANIFEST}; wanted a checkpoint that a job has finished; "
            "move the folder away and run again"
        ) from None
    except OSError as error:
        raise JobError(f"found {path} that {unreadable(error)}; wanted to read it; run as root") from None


def unreadable(error: OSError) -> str:
    """What is wrong with a file that the disk does not give out, or not to us."""
    return f"cannot be read ({error.strerror})"


def hash_files(paths: Iterable[Path], on_bytes: OnBytes = ignore_bytes) -> dict[Path, str]:
    """SHA-256 of several files, a few at once; of one that cannot be read, words that are no hash."""

    def one(path: Path) -> str:
        try:
            return sha256_of(path, on_bytes)
        except OSError as error:  # a bad block is damage like any other
            return unreadable(error)

    todo = sorted(paths, key=lambda path: -path.stat().st_size)
    # Each run asks each host for `verify`, which seldom hashes: this takes a third of its start.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1), thread_name_prefix="hash")
    try:
        hashes = list(pool.map(one, todo))
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
        try:
            what = _quick_fault(folder / name, manifest.files[name], manifest.raw["files"][name])
        except OSError as error:
            what = unreadable(error)
        if what is not None:
            faults.append(Fault(name, what))
    return sorted(faults, key=str)


def _quick_fault(path: Path, wanted: tuple[int, str], entry: Mapping[str, Any]) -> str | None:
    size = path.stat().st_size
    if size != wanted[0]:
        return f"{size} bytes, wanted {wanted[0]}"
    if path.suffix == ".safetensors":
        return _header_fault(path, entry)
    return _content_fault(sha256_of(path), wanted[1]) if size <= SMALL else None


def _content_fault(found: str, wanted: str) -> str | None:
    if found == wanted:
        return None
    return found if found.startswith("cannot") else f"sha256 {found}, wanted {wanted}"


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
        if what := _content_fault(found, manifest.files[names[path]][1]):
            lines.append(Fault(names[path], what))
    return sorted(lines, key=str)
