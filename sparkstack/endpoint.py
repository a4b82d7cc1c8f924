"""The addresses of an endpoint: where it listens, how its head asks it, and how others reach it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit


def is_everywhere(bind: str) -> bool:
    """Is it all addresses of a host ("0.0.0.0", "::", "::ffff:0.0.0.0", however written), and not one?"""
    try:
        return _plain(bind).is_unspecified
    except ValueError:
        return False


def _plain(address: str) -> IPv4Address | IPv6Address:
    """An address, and of an IPv4 one that is written as IPv6 ("::ffff:…") that. Errors: ValueError."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return found if mapped is None else mapped


def no_bind(address: str) -> str | None:
    """What is wanted in place of an address on which no endpoint can listen so that all find it; None for a
    good one. Errors: ValueError for what is no address."""
    found = ip_address(address)
    if (plain := _plain(address)) != found:
        return f"{plain}, which this is"
    if isinstance(found, IPv6Address) and (found.is_link_local or found.scope_id):
        # It means something with its interface alone, which a URL does not have.
        return "an address that is more than one link's"
    return None


def is_loopback(address: str) -> bool:
    """Does a host reach only itself by it? Other names than "localhost" are not looked up."""
    try:
        return _plain(address).is_loopback
    except ValueError:
        return address == "localhost"


def url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def own_url(bind: str, port: int) -> str:
    """How the head asks its own endpoint."""
    if is_everywhere(bind):
        # Not 127.0.0.1 for all: a server of asyncio at "::" listens on IPv6 alone.
        return url("::1" if ":" in str(_plain(bind)) else "127.0.0.1", port)
    return url(bind, port)


def url_for_others(own: str, bind: str | None, address: str | None) -> str:
    """How others reach the endpoint that the head asks at `own`; `address` is the head's on the management
    network. `own` itself where it listens on one address, or where `address` is none that it listens on."""
    port = urlsplit(own).port
    if bind is None or not is_everywhere(bind) or not address or port is None or is_loopback(address):
        return own
    if ":" in address and ":" not in str(_plain(bind)):  # 0.0.0.0 is all of IPv4
        return own
    return url(address, port)
