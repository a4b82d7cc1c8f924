"""One place that makes HTTP clients, so that certificates are read once a process."""

from __future__ import annotations

import functools
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
