"""What pyinfra works out anew at each fact and operation, though a run cannot change it: worked out once.

Each of these gives what pyinfra's own code gives; a test holds them against it. They matter where a run
changes nothing: then the controller's processor is most of its time, and each host adds to that.
"""

from __future__ import annotations

import functools
import socket
import sys
from contextlib import suppress
from copy import copy
from types import FrameType
from typing import Any, NamedTuple

from pyinfra.api import arguments, util
from pyinfra.api.host import HostData


def make_quicker(host: Any) -> None:
    """For the run, and for what is asked of this host's data. No-op when it is done."""
    _remember_arguments()
    _walk_the_stack()
    _merge_data(host)
    _send_at_once(host)


def _remember_arguments() -> None:
    """At each fact and operation pyinfra works out anew, from annotations that are text, which global
    arguments there are (`_sudo`…) and of which types. They are the same at any time; that is 1 ms of each."""
    if not hasattr(arguments.all_global_arguments, "cache_info"):
        arguments.all_global_arguments = functools.cache(arguments.all_global_arguments)


class _Call(NamedTuple):
    """What pyinfra reads of a frame's info."""

    filename: str
    lineno: int


def _walk_the_stack() -> None:
    """At each operation pyinfra asks `inspect` for every frame on the stack, with the lines of source around
    each, and takes the names of files and the numbers of lines: those a frame knows itself."""
    of_pyinfra: Any = util
    of_pyinfra.stack = _stack
    of_pyinfra.getframeinfo = lambda frame: _Call(frame.f_code.co_filename, frame.f_lineno)


def _stack() -> list[tuple[Any]]:
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((frame,))
        frame = frame.f_back
    return found


def _merge_data(host: Any) -> None:
    """At each look at a host's data, some 30 of them a fact, pyinfra merges that of its groups anew, and most
    looks find nothing."""
    if type(host.data) is HostData:
        host.data = _Merged(host.data)


class _Merged(HostData):
    """A host's data with what is declared in one piece: no run changes it."""

    def __init__(self, data: HostData) -> None:
        own, override, *declared, of_deploy = data.datas
        merged: dict[str, Any] = {}
        for one in reversed(declared):  # the first one counts
            merged |= one()
        datas = (own, override(), merged, of_deploy)
        self.__dict__.update(data.__dict__, datas=datas)

    def __getattr__(self, key: str) -> Any:
        *declared, of_deploy = self.datas
        for data in (*declared, of_deploy()):
            if key in data:
                return copy(data[key])
        raise AttributeError(f"host {self.host.name} has no data {key!r}")

    def __str__(self) -> str:
        # The names alone: in pyinfra's own words the values are hidden behind functions, and some are secret.
        *declared, of_deploy = self.datas
        names = {key for data in (*declared, of_deploy()) for key in data}
        return f"data of {self.host.name}: {', '.join(sorted(names))}"


def _send_at_once(host: Any) -> None:
    """A command with something on its standard input is several small packets, and the kernel holds one back
    until the one before is acknowledged: 40 ms for each command (Nagle's way, and a delayed answer)."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    # Behind ProxyCommand or ProxyJump it is no socket; one that is gone says so to the next command.
    set_option = getattr(getattr(transport, "sock", None), "setsockopt", None)
    if set_option is not None:
        with suppress(OSError):
            set_option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
