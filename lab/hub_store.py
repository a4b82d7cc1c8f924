"""Repositories on disk as the hub stand-in sees them: folders `<org>/<name>/`, one revision each.

Standard library only: this runs inside the lab's outside container.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")
LFS_BYTES = 10 * 1024 * 1024
"""Files with such a name, or larger, are LFS objects (the hub decides by .gitattributes, to this effect)."""


@dataclass(frozen=True)
class Entry:
    """A file of a repository: its path inside, its size in bytes, its two digests."""

    path: str
    size: int
    sha256: str
    git_sha1: str
    file: Path

    @property
    def lfs(self) -> bool:
        return self.size > LFS_BYTES or self.path.endswith(LFS_SUFFIXES)

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1

    def tree(self) -> dict[str, Any]:
        """As the hub's tree and paths-info calls describe a file."""
        found: dict[str, Any] = {"type": "file", "path": self.path, "size": self.size, "oid": self.git_sha1}
        if self.lfs:
            found["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return found


@dataclass
class Store:
    """What lies under `root`. JSON files are read at each call, so that tests may change them at run time.

    `revisions.json` maps a repository to its revision (40 hex digits); without an entry it is the SHA-1 of
    its name. `access.json`, where present: `{"gated": [repo], "tokens": {token: [repo, …]}}`.
    """

    root: Path
    _digests: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)

    def revision(self, repo: str) -> str | None:
        """The one revision of `repo`, or None where there is no such folder."""
        parts = repo.split("/")
        if len(parts) != 2 or not all(parts) or ".." in parts or not (self.root / repo).is_dir():
            return None
        found = self._json("revisions.json").get(repo)
        return str(found) if found else hashlib.sha1(repo.encode()).hexdigest()

    def access(self, repo: str, token: str | None) -> str:
        """`ok`, `gated` (known token or none, not on the list) or `invalid` (a token that nobody issued)."""
        rules = self._json("access.json")
        tokens = rules.get("tokens", {})
        if token is not None and tokens and token not in tokens:
            return "invalid"
        if repo in rules.get("gated", []) and repo not in tokens.get(token, []):
            return "gated"
        return "ok"

    def gated(self, repo: str) -> bool:
        return repo in self._json("access.json").get("gated", [])

    def entries(self, repo: str) -> list[Entry]:
        """All files of `repo`, sorted by path."""
        top = self.root / repo
        files = [path for path in top.rglob("*") if path.is_file()]
        return sorted((self._entry(top, path) for path in files), key=lambda entry: entry.path)

    def entry(self, repo: str, path: str) -> Entry | None:
        top = self.root / repo
        file = top / path
        if ".." in Path(path).parts or not file.is_file():
            return None
        return self._entry(top, file)

    def _entry(self, top: Path, file: Path) -> Entry:
        stat = file.stat()
        key = (str(file), stat.st_mtime_ns, stat.st_size)
        if key not in self._digests:
            self._digests[key] = _digests(file, stat.st_size)
        sha256, sha1 = self._digests[key]
        return Entry(file.relative_to(top).as_posix(), stat.st_size, sha256, sha1, file)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            loaded = json.loads((self.root / name).read_text())
        except FileNotFoundError:
            return {}
        return dict(loaded)


def folders(entries: list[Entry], below: str, recursive: bool) -> list[dict[str, Any]]:
    """The hub's tree listing: files and folders under `below`, directly or at any depth."""
    prefix = f"{below}/" if below else ""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if not entry.path.startswith(prefix):
            continue
        parts = entry.path[len(prefix) :].split("/")
        for depth in range(1, len(parts)):
            path = prefix + "/".join(parts[:depth])
            if recursive or depth == 1:
                oid = hashlib.sha1(path.encode()).hexdigest()
                found[path] = {"type": "directory", "path": path, "size": 0, "oid": oid}
        if recursive or len(parts) == 1:
            found[entry.path] = entry.tree()
    return [found[path] for path in sorted(found)]


def _digests(file: Path, size: int) -> tuple[str, str]:
    """(SHA-256 of the content, SHA-1 of the git blob)."""
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode())
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            sha1.update(block)
    return sha256.hexdigest(), sha1.hexdigest()
