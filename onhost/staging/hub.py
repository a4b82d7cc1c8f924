"""What the hub says about a pinned revision: files, sizes, hashes; and its refusals in one line each."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

# Read by huggingface_hub when it is imported: no second transport with a cache of its own, no shared blobs
# that a local folder would only point to, no bars in the journal, no look at the user's own login.
os.environ.update(
    HF_HUB_DISABLE_XET="1",
    HF_HUB_DISABLE_SHARED_BLOBS="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
)

from huggingface_hub import HfApi, hf_hub_url, set_client_factory
from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import default_client_factory

from onhost.files import safe_relative
from onhost.plan import JobError
from onhost.staging.source import HubFile, Source
from onhost.staging.transfer import LONGEST_WAIT, Transfer, wait_of

API_TIMEOUT = 30.0  # s without a byte of an answer


class _TooBusy(Exception):
    """The hub asks for a longer wait than a run should sit through."""

    def __init__(self, response: Any) -> None:
        super().__init__("the hub asks to wait")
        self.response = response


def _client() -> Any:
    """The hub client's own HTTP client, which by itself waits for ever, and as long as a server asks."""
    client = default_client_factory()

    def limit(request: Any) -> None:
        asked = request.extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
        request.extensions["timeout"] = {k: API_TIMEOUT if v is None else v for k, v in asked.items()}

    def judge(response: Any) -> None:
        asked = wait_of(response.headers.get("retry-after"), response.headers.get("ratelimit"))
        if response.status_code in {429, 503} and asked > LONGEST_WAIT:
            raise _TooBusy(response)

    hooks = client.event_hooks
    client.event_hooks = {"request": [*hooks["request"], limit], "response": [*hooks["response"], judge]}
    return client


set_client_factory(_client)


def file_url(source: Source, name: str) -> str:
    """Where a file of the revision is."""
    return hf_hub_url(source.repo, name, revision=source.revision, endpoint=source.endpoint)


def request_headers(source: Source) -> dict[str, str]:
    """What a request for a file carries: the client's name, and the token where there is one."""
    return dict(build_hf_headers(token=source.token or False))


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


def lost(error: Transfer, source: Source, name: str) -> JobError | None:
    """The line for files that lie on another host than the hub's API and cannot be had from there.

    A mirror may answer for the API and send to the public hub's data hosts, which it does not stand in for.
    None where it was the endpoint itself that failed.
    """
    home = urlsplit(source.endpoint).hostname
    if error.host is None or error.host == home:
        return None
    return JobError(
        f"found {source.endpoint} sending to {error.host} for {name}, and {error.host} not reachable "
        f"({error}); wanted the file's bytes; use a mirror that holds the files itself, "
        f"or let this host reach {error.host}"
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
        later = f"in {retry_after} s" if (retry_after or "").isdigit() else "later"
        return JobError(
            f"found HTTP 429 (too many requests) for {what} at {source.endpoint} {by}; wanted the file; "
            f"run again {later}, or set a hub token, which has a higher limit"
        )
    return JobError(f"found HTTP {status} for {what} at {source.endpoint}; wanted 200; run again later")
