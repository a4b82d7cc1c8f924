"""Two ways to open a URL for onhost.staging.ranged: httpx (TLS, redirects, proxies) and http.client.

Inside the cluster the fabric is faster than httpx can parse; http.client reads a plain stream straight into a
buffer.
"""

from __future__ import annotations

import errno
import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from onhost.files import CHUNK
from onhost.plan import JobError
from onhost.staging.transfer import Answer, Opener, Transfer

_NETWORK = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}


def httpx_opener(client: httpx.Client, headers: Mapping[str, str]) -> Opener:
    """Opens through `client`, whose timeouts say what a stall is.

    Credentials never follow to another host.
    """

    @contextmanager
    def opened(url: str, span: str | None) -> Iterator[Answer]:
        asked = {**headers, "Accept-Encoding": "identity"} | ({"Range": span} if span else {})
        try:
            with client.stream("GET", url, headers=asked) as answer:

                def pieces() -> Iterator[memoryview]:
                    for chunk in answer.iter_raw():  # as they come: a cut then loses none of them
                        yield memoryview(chunk)

                yield Answer(answer.status_code, answer.headers, pieces)
        except httpx.TimeoutException as error:
            what = f"no byte for {client.timeout.read:g} s ({type(error).__name__})"
            raise Transfer(what, _host(error, url)) from None
        except httpx.TransportError as error:
            host = _host(error, url)
            raise Transfer(f"'{error or type(error).__name__}' from {host}", host) from None

    return opened


def _host(error: httpx.TransportError, url: str) -> str:
    """Who did not answer: after a redirect another host than that of `url`."""
    try:
        return error.request.url.host
    except RuntimeError:  # the client did not say
        return urlsplit(url).hostname or url


def plain_opener(headers: Mapping[str, str], timeout: float) -> Opener:
    """Opens http:// without redirects or proxies, one connection a request; `timeout` in s without a byte."""

    @contextmanager
    def opened(url: str, span: str | None) -> Iterator[Answer]:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise JobError(f"found the address {url}; wanted http://ADDRESS:PORT; correct the plan's maker")
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={**headers, **({"Range": span} if span else {})})
            answer = connection.getresponse()

            def pieces() -> Iterator[memoryview]:
                buffer = memoryview(bytearray(CHUNK))
                while got := answer.readinto(buffer):
                    yield buffer[:got]
                if answer.length:  # http.client takes a closed connection for an end
                    raise Transfer("a stream that was cut")

            yield Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, pieces)
        except TimeoutError:
            raise Transfer(f"no byte for {timeout:g} s from {parts.netloc}") from None
        except (http.client.HTTPException, ConnectionError) as error:
            raise Transfer(f"'{error or type(error).__name__}' from {parts.netloc}") from None
        except OSError as error:
            if error.errno in _NETWORK:
                raise Transfer(f"'{error.strerror}' from {parts.netloc}") from None
            raise
        finally:
            connection.close()

    return opened
