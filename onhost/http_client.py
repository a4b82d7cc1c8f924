"""One place that makes HTTP clients, so that certificates are read once a process."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping

import httpx


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def make_client(
    *,
    timeout: float,
    connections: int = 1,
    headers: Mapping[str, str] | None = None,
    proxies: bool = True,
    redirects: bool = False,
) -> httpx.Client:
    """A client for `connections` at once; `timeout` is s without a byte. Waiting for a free one has no limit.

    `proxies`: whether the environment's proxies count; the serving endpoint is never behind one.
    """
    return httpx.Client(
        verify=_certificates(),
        timeout=httpx.Timeout(timeout, pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers=headers,
        trust_env=proxies,
        follow_redirects=redirects,
    )


def make_async_client(
    *, connections: int, headers: Mapping[str, str] | None, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """The same for the event loop, without proxies and without time limits: those are the caller's.

    Idle connections go after 3 s: servers close theirs after 5 s, and a request must not meet that.
    """
    return httpx.AsyncClient(
        transport=transport,
        verify=_certificates(),
        timeout=None,
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=3
        ),
        headers=headers,
        trust_env=False,
    )


def words_of(error: httpx.HTTPError) -> str:
    """What an error says; of a connection that did not come about, what the system said."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
