"""One place that makes HTTP clients, so that certificates are read once a process."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Mapping
from typing import Any

import httpx


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def make_client(*, timeout: float, connections: int = 1, redirects: bool = False) -> httpx.Client:
    """A client for `connections` at once, by the environment's proxies; `timeout` is s without a byte.
    Waiting for a free connection has no limit."""
    return httpx.Client(
        verify=_certificates(),
        timeout=httpx.Timeout(timeout, pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
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


def ask(
    method: str,
    url: str,
    *,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    json: Any = None,
) -> httpx.Response:
    """One request, without proxies (the serving endpoint is never behind one), and its whole answer, within
    `seconds`: also from a server that sends a byte now and then, for which a limit on each read never ends.

    Errors: httpx.HTTPError. Where the time is over that is ReadTimeout if the whole question was sent, else
    ConnectTimeout.
    """
    sent = False

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        nonlocal sent
        sent = sent or event.endswith("send_request_body.complete")

    async def asked() -> httpx.Response:
        # The client itself, which reads certificates at first, is no part of the server's time.
        async with make_async_client(connections=1, headers=headers) as client:
            try:
                async with asyncio.timeout(seconds):
                    return await client.request(method, url, json=json, extensions={"trace": trace})
            except TimeoutError:
                over = httpx.ReadTimeout if sent else httpx.ConnectTimeout
                raise over(f"no answer in {seconds:.0f} s") from None

    return asyncio.run(asked())


def words_of(error: httpx.HTTPError) -> str:
    """What an error says; of a connection that did not come about, what the system said."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
