"""What exactly differs, said by the operations while they look: the doctor listens, a deployment does not.

An operation calls `differs` with one line before it yields the command that would mend it. For operations
that say nothing (pyinfra's own) the doctor shows the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pyinfra import host as current_host

from sparkstack.errors import Problem


@dataclass(frozen=True)
class Difference:
    host: str
    thing: str
    found: str
    wanted: str
    status: Literal["drift", "warning", "not checked"] = "drift"
    # What to do about a warning, which no deployment mends.
    remedy: str = ""


# Hosts are looked at side by side: each has its own list while somebody listens.
_heard: dict[str, list[Difference]] = {}


def differs(thing: str, found: str, wanted: str, host: str | None = None) -> None:
    """`thing` of the current host (or of another one: `host`) is `found` and not as `wanted`."""
    listening = _heard.get(current_host.name)
    if listening is not None:
        listening.append(Difference(host or current_host.name, thing, found, wanted))


def not_checked(thing: str, why: str) -> None:
    """`thing` of the current host is not looked at, and a deployment would not, either."""
    listening = _heard.get(current_host.name)
    if listening is not None:
        listening.append(Difference(current_host.name, thing, why, "", "not checked"))


def warns(problem: Problem) -> None:
    """Something of the current host is wrong that stops no deployment, and that none mends."""
    listening = _heard.get(current_host.name)
    if listening is not None:
        name = current_host.name
        thing = problem.where.removeprefix(f"{name}: ")
        said = Difference(name, thing, problem.found, problem.wanted, "warning", problem.remedy)
        listening.append(said)


@contextmanager
def listen(host: str) -> Iterator[list[Difference]]:
    """The differences that operations of `host` tell within the block."""
    heard = _heard[host] = []
    try:
        yield heard
    finally:
        del _heard[host]
