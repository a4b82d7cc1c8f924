"""What is known of a checkpoint before its bytes are here: sizes, hashes, headers, and the small files.

Transforms plan over catalogs alone, so a plan is made before the first weight is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onhost.staging.safetensors import Header, read_header

# The files whose content decides what a transform does. A tokenizer is none of them: it is large, and only
# read when something is written.
CONTENT = re.compile(r"([^/]*config|[^/]*\.index|ngram_rows)\.json")

SOURCE = "source"  # the origin of a recipe's own checkpoint; a donor's is "repo@revision"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Size in bytes; SHA-256 in hex where the hub told it; the header of a safetensors file; the content of
    a file that CONTENT names."""

    size: int
    sha256: str | None = None
    header: Header | None = None
    content: bytes | None = None


Catalog = Mapping[str, FileInfo]
View = Mapping[str, Path]  # relative name → where its bytes are


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """A file of one origin: SOURCE, a donor, or `stepN` for what the N-th transform made."""

    origin: str
    file: str


def donor_origin(repo: str, revision: str) -> str:
    """How needs call a donor."""
    return f"{repo}@{revision}"


def catalog_of(view: View) -> dict[str, FileInfo]:
    """The catalog of files that are all here; FormatError for a safetensors file that is not valid."""
    catalog = {}
    for name, path in view.items():
        header = read_header(path) if name.endswith(".safetensors") else None
        content = path.read_bytes() if CONTENT.fullmatch(name) else None
        catalog[name] = FileInfo(path.stat().st_size, None, header, content)
    return catalog
