"""A pinned revision of a repository: how to reach it, and what the hub has said of its files.

No hub client is needed for what is here, so a run that finds everything in place loads none.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onhost.files import git_sha1_of, safe_relative, sha256_of, write_json
from onhost.plan import JobError, Plan

PUBLIC = "https://huggingface.co"


@dataclass(frozen=True)
class Source:
    """A revision of a repository, and how to reach it. The token is never shown."""

    repo: str
    revision: str
    endpoint: str
    token: str | None
    allow: tuple[str, ...] | None

    @classmethod
    def read(cls, plan: Plan) -> Source:
        """From a plan's `source`; JobError where the revision is not pinned to a commit."""
        repo, revision = plan.text("repo"), plan.text("revision")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repo) or ".." in repo:
            raise JobError(f"found the repository {repo!r}; wanted org/name; correct the recipe")
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise JobError(
                f"found the revision {revision!r} for {repo}; wanted a commit (40 hex digits), since a "
                "branch moves; "
                "take it from the repository's history"
            )
        endpoint = (plan.maybe_text("endpoint") or os.environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
        allow = plan.texts("allow")
        return cls(
            repo, revision, endpoint, plan.secret("token_file"), None if allow is None else tuple(allow)
        )


@dataclass(frozen=True)
class HubFile:
    """A file as the hub describes it: bytes, git blob id, and for large files SHA-256."""

    size: int
    blob_id: str
    sha256: str | None

    def fault(self, path: Path) -> str | None:
        """None where the file at `path` is this one, else what is wrong."""
        try:
            return self._fault(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"a bad block ({error.strerror})"

    def _fault(self, path: Path) -> str | None:
        size = path.stat().st_size
        if size != self.size:
            return f"{size} bytes (announced: {self.size})"
        if self.sha256 is not None:
            found = sha256_of(path)
            return None if found == self.sha256 else f"sha256 {found} (announced: {self.sha256})"
        found = git_sha1_of(path)
        return None if found == self.blob_id else f"git blob id {found} (announced: {self.blob_id})"

    def described(self) -> dict[str, Any]:
        """As a manifest names it: size, and the hash that the hub gave."""
        if self.sha256 is None:
            return {"size": self.size, "git_sha1": self.blob_id}
        return {"size": self.size, "sha256": self.sha256}


@dataclass
class Metadata:
    """`<revision>.hub-metadata.json`: the whole revision's files, and which of them were verified here.

    `verified` maps a name to [size, mtime in ns] at the time when its hash was right.
    """

    path: Path
    files: dict[str, HubFile]
    verified: dict[str, list[int]]

    @classmethod
    def load(cls, path: Path) -> Metadata | None:
        """From an earlier run; None where there is none or it cannot be used."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != 1:
                return None
            files = {safe_relative(name): HubFile(**info) for name, info in data["files"].items()}
            return cls(path, files, {name: list(stamp) for name, stamp in data["verified"].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def save(self, source: Source) -> None:
        """Writes it atomically."""
        data: dict[str, Any] = {"format": 1, "repo": source.repo, "revision": source.revision}
        data["files"] = {name: asdict(file) for name, file in sorted(self.files.items())}
        data["verified"] = dict(sorted(self.verified.items()))
        write_json(self.path, data)
