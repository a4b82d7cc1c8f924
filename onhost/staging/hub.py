"""What the hub says about a pinned revision: files, sizes, hashes; and its refusals in one line each."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Read by huggingface_hub when it is imported: no second transport with a cache of its own, no shared blobs
# that a local folder would only point to, no bars in the journal, no look at the user's own login.
os.environ.update(
    HF_HUB_DISABLE_XET="1",
    HF_HUB_DISABLE_SHARED_BLOBS="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
)

from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

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
        size = path.stat().st_size
        if size != self.size:
            return f"{size} bytes (announced: {self.size})"
        if self.sha256 is not None:
            found = sha256_of(path)
            return None if found == self.sha256 else f"sha256 {found} (announced: {self.sha256})"
        found = git_sha1_of(path)
        return None if found == self.blob_id else f"git blob id {found} (announced: {self.blob_id})"


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


def list_files(source: Source) -> dict[str, HubFile]:
    """All files of the revision, from the hub; JobError with the hub's refusal in words."""
    try:
        entries = HfApi(endpoint=source.endpoint, token=source.token or False).list_repo_tree(
            source.repo, revision=source.revision, recursive=True
        )
        return {
            safe_relative(entry.path): HubFile(
                entry.size, entry.blob_id, None if entry.lfs is None else entry.lfs.sha256
            )
            for entry in entries
            if isinstance(entry, RepoFile)
        }
    except JobError:
        raise
    except Exception as error:
        raise refusal_of(error, source) from error


def refusal_of(error: BaseException, source: Source) -> JobError:
    """The line for any exception out of the hub's client, judged by the answer that is behind it."""
    seen: BaseException | None = error
    while seen is not None:
        answer = getattr(seen, "response", None)
        if answer is not None and hasattr(answer, "status_code"):
            gone = isinstance(seen, RevisionNotFoundError)
            gated = isinstance(seen, GatedRepoError)
            retry = answer.headers.get("retry-after")
            return refusal(answer.status_code, source, gated=gated, revision_gone=gone, retry_after=retry)
        seen = seen.__cause__ or seen.__context__
    if type(error).__module__.split(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2"}:
        return JobError(
            f"found {source.endpoint} unreachable ({error}); wanted the hub; "
            "check the network, or set the site's hub endpoint to a mirror"
        )
    return JobError(
        f"found {type(error).__name__}: {error} from the hub's client; wanted {source.repo}; run again"
    )


def refusal(
    status: int,
    source: Source,
    *,
    file: str = "",
    gated: bool = False,
    revision_gone: bool = False,
    retry_after: str | None = None,
) -> JobError:
    """The line for an HTTP status from the hub."""
    what = f"{source.repo}/{file}" if file else source.repo
    by = "without a token" if source.token is None else "with the site's token"
    if gated or status == 403:
        return JobError(
            f"found HTTP {status} for {what} at {source.endpoint} {by}; wanted access; "
            "accept the repository's terms on its page and set a hub token of that account"
        )
    if status == 401:
        return JobError(
            f"found HTTP 401 for {what} at {source.endpoint} {by}; wanted access; "
            "check the repository's name, and set a valid hub token if it is private"
        )
    if status == 404 or revision_gone:
        wanted = "that revision" if revision_gone else "the repository and file"
        return JobError(
            f"found HTTP 404 for {what} at revision {source.revision[:12]}; wanted {wanted} at "
            f"{source.endpoint}; "
            "check name and revision in the recipe"
        )
    if status == 429:
        later = f"in {retry_after} s" if retry_after else "later"
        return JobError(
            f"found HTTP 429 (too many requests) for {what} at {source.endpoint} {by}; wanted the file; "
            f"run again {later}, or set a hub token, which has a higher limit"
        )
    return JobError(f"found HTTP {status} for {what} at {source.endpoint}; wanted 200; run again later")
