"""Which cage of which Spark is joined to which: what a user declares, and the same shape for what was found.

A link is two or more ends that hear one another: two ends are a cable, more are a switch. A switch with two
Sparks and a cable between them are the same thing to everybody on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from sparkstack.errors import Problem, SparkstackError

KINDS = ("single", "pair", "ring", "switch")
MOST = 245
"""Nodes. A host's last octet is 10 plus its place, and 254 is the last one."""

Port = int | Mapping[str, int]
Cables = int | Sequence[str]


@dataclass(frozen=True, order=True)
class End:
    """A cage of a host: port 0 is the one beside the RJ45 socket."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


Link = tuple[End, ...]


@dataclass(frozen=True)
class Cabling:
    """`kind` as in KINDS; `links` in the order in which they get their networks."""

    kind: str
    links: tuple[Link, ...] = ()

    def same_as(self, other: Cabling) -> bool:
        """True where the same ends are joined, whatever the order and the word for it."""
        return _unordered(self) == _unordered(other)

    def declaration(self) -> dict[str, object]:
        """The knob `fabric` that says this cabling."""
        if not self.links:
            return {"kind": self.kind}
        return {"kind": self.kind, "cables": [" ".join(map(str, link)) for link in self.links]}


def _unordered(cabling: Cabling) -> set[frozenset[End]]:
    return {frozenset(link) for link in cabling.links}


def declared(kind: str, nodes: Sequence[str], port: Port = 0, cables: Cables | None = None) -> Cabling:
    """The cabling of `nodes` (inventory order) as `kind`.

    `single`: none. `pair`: a cable between `port` of both; with `cables` 2, one between ports 0 and one
    between ports 1. `ring`: a cable from port 0 of each node to port 1 of the next, the last one's to the
    first. `switch`: a cable from `port` of each into one switch. `port` may name a port for each node.
    `cables` may instead list them, one text a cable: "spark-1:0 spark-2:1".
    Errors: SparkstackError for a declaration that cannot be built.
    """
    where = f"topology {kind!r}"
    if kind not in KINDS:
        near = get_close_matches(kind, (*KINDS, "auto"), 1)
        remedy = f"did you mean {near[0]!r}?" if near else "name how the Sparks are cabled"
        raise SparkstackError(Problem("topology", repr(kind), f"one of: {', '.join(KINDS)}, auto", remedy))
    names = tuple(nodes)
    problems = _count(kind, names)
    listed = not isinstance(cables, int | None)
    if listed and kind != "single":
        problems += _no_port(where, port, "the cables name their ports")
        links = _listed(where, names, cables, problems)  # type: ignore[arg-type]
    elif isinstance(cables, int) and kind == "pair" and cables == 2:
        problems += _no_port(where, port, "two cables use both ports")
        links = [tuple(End(name, side) for name in names) for side in (0, 1)]
    elif cables is not None and (kind != "pair" or cables != 1):
        wanted = {"pair": "1, 2 or a list of them", "single": "none"}.get(kind, "a list of them, or nothing")
        problems.append(Problem(where, f"cables {cables!r}", wanted, "remove `cables` from `fabric`"))
        links = []
    elif kind == "ring":
        problems += _no_port(where, port, "a ring uses both ports")
        links = [(End(name, 0), End(after, 1)) for name, after in zip(names, _turned(names), strict=True)]
    else:
        ends = _ends(where, names, port, problems)
        links = [] if kind == "single" else [tuple(ends)]
    if not problems and listed:
        problems += _shape(where, kind, names, links)
    if problems:
        raise SparkstackError(problems)
    return Cabling(kind, tuple(links))


def _turned(names: Sequence[str]) -> list[str]:
    return [*names[1:], *names[:1]]


def _count(kind: str, nodes: Sequence[str]) -> list[Problem]:
    where = f"topology {kind!r}"
    wanted, remedy, low, high = {
        "single": ("exactly 1 node", "name the cabling: pair, ring or switch", 1, 1),
        "pair": ("exactly 2 nodes", "use single for one, ring or switch for more", 2, 2),
        "ring": (f"3 to {MOST} nodes", "two Sparks with a cable are a pair", 3, MOST),
        "switch": (f"2 to {MOST} nodes", "use single for one", 2, MOST),
    }[kind]
    problems = []
    if not low <= len(nodes) <= high:
        plural = "node" if len(nodes) == 1 else "nodes"
        found = f"{len(nodes)} {plural} ({', '.join(nodes)})" if nodes else "no nodes"
        problems.append(Problem(where, found, wanted, remedy))
    twice = sorted(name for name, count in Counter(nodes).items() if count > 1)
    return problems + [
        Problem(where, f"node {name!r} twice", "each node once", "correct the inventory") for name in twice
    ]


def _no_port(where: str, port: Port, why: str) -> list[Problem]:
    return [] if port == 0 else [Problem(where, f"port {port}", "no port", f"{why}; remove it")]


def _ends(where: str, nodes: Sequence[str], port: Port, problems: list[Problem]) -> list[End]:
    """The end of each node, by one port for all or one for each."""
    each = port if isinstance(port, Mapping) else dict.fromkeys(nodes, port)
    beside = "port 0 is the cage beside the RJ45"
    for name in each:
        if name not in nodes:
            near = get_close_matches(str(name), nodes, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "take it out of `port`"
            wanted = f"nodes of the inventory: {', '.join(nodes)}"
            problems.append(Problem(where, f"a port of {name!r}", wanted, remedy))
    for number in dict.fromkeys(each[name] for name in nodes if name in each):
        if number not in (0, 1) or isinstance(number, bool):
            problems.append(Problem(where, f"port {number}", "port 0 or 1", beside))
    for name in nodes:
        if name not in each:
            problems.append(Problem(where, f"no port of {name!r}", "0 or 1", f"add it to `port`; {beside}"))
    return [End(name, each.get(name, 0)) for name in nodes]


def _listed(where: str, nodes: Sequence[str], cables: Sequence[str], problems: list[Problem]) -> list[Link]:
    """The links of a list of texts; a mistake in a text is a problem that quotes it."""
    form = 'ends such as "spark-1:0 spark-2:1"'
    if isinstance(cables, str):
        problems.append(Problem(where, f"cables {cables!r}", "a list of cables", "put it into brackets"))
        return []
    links: list[Link] = []
    for text in cables:
        ends = []
        for word in str(text).split():
            name, _, digit = word.rpartition(":")
            if digit not in ("0", "1") or not name:
                problems.append(Problem(where, f"end {word!r} of cable {text!r}", form, "write NODE:PORT"))
            elif name not in nodes:
                near = get_close_matches(name, nodes, 1)
                remedy = f"did you mean {near[0]!r}?" if near else "correct its name"
                found = f"node {name!r} in cable {text!r}"
                problems.append(Problem(where, found, f"one of: {', '.join(nodes)}", remedy))
            else:
                ends.append(End(name, int(digit)))
        if len(str(text).split()) < 2:
            problems.append(Problem(where, f"cable {text!r}", form, "a cable has two ends"))
        if ends and {end.node for end in ends} == {ends[0].node} and len(ends) > 1:
            problems.append(Problem(where, f"cable {text!r}", "ends on different nodes", "correct one end"))
        else:
            problems += _doubled(where, ends)
        links.append(tuple(ends))
    used = Counter(end for link in links for end in link)
    for end, count in used.items():
        if count > 1:
            found = f"port {end.port} of {end.node!r} in {count} places of `cables`"
            problems.append(Problem(where, found, "each port once", "a cage holds one cable"))
    return links


def _doubled(where: str, ends: Sequence[End]) -> list[Problem]:
    """Nodes with both ports on one link: two of their interfaces would share a subnet."""
    return [
        Problem(
            where,
            f"both ports of {name!r} on one switch",
            "one port of each node",
            f"take a cable of {name!r} out: a Spark is no faster with two",
        )
        for name in dict.fromkeys(end.node for end in ends)
        if len({end.port for end in ends if end.node == name}) > 1
    ]


def doubled(links: Sequence[Link]) -> list[Problem]:
    """The same for links that were found."""
    return [problem for link in links for problem in _doubled("fabric", link)]


def _shape(where: str, kind: str, nodes: Sequence[str], links: Sequence[Link]) -> list[Problem]:
    """Do the listed links make the kind?"""
    at = {name: [link for link in links if any(end.node == name for end in link)] for name in nodes}
    if alone := [name for name in nodes if not at[name]]:
        return [
            Problem(where, f"no cable at {', '.join(alone)}", "each node on a cable", "add it to `cables`")
        ]
    if kind == "switch":
        if len(links) == 1:
            return []
        return [Problem(where, f"{len(links)} entries of `cables`", "one with an end of each node", "")]
    if any(len(link) > 2 for link in links):
        return [Problem(where, "a cable with more than two ends", "two", "more than two are a switch")]
    if kind == "pair":
        return []
    if len(links) == len(nodes) and _circle(links) == len(nodes):
        return []
    found = f"{len(links)} cables that make no circle of all {len(nodes)} nodes"
    return [Problem(where, found, "each node joined to two others, in one circle", "correct `cables`")]


def _circle(links: Sequence[Link]) -> int:
    """How many nodes lie on the circle through the first link; 0 where it is none."""
    after: dict[str, list[str]] = {}
    for one, other in links:
        after.setdefault(one.node, []).append(other.node)
        after.setdefault(other.node, []).append(one.node)
    if any(len(set(others)) != 2 for others in after.values()):
        return 0
    start = before = links[0][0].node
    here, seen = after[start][0], 1
    while here != start:
        before, here = here, next(name for name in after[here] if name != before)
        seen += 1
    return seen
