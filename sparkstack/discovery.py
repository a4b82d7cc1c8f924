"""From what each port heard (onhost/probe.py) to the cabling that is there; is it the declared one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkstack.cabling import Cabling, End, Link, declared, doubled
from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan, Ports


@dataclass(frozen=True)
class Port:
    """An interface as its host sees it: `heard` are (host, interface) whose frames came in; `speed` is in
    Mb/s."""

    present: bool = False
    carrier: bool = False
    speed: int | None = None
    heard: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Found:
    """What is there: the links between hosts, and for each end without one why."""

    links: tuple[Link, ...]
    idle: Mapping[End, str] = field(default_factory=dict)


def ports_of_report(report: Mapping[str, Any]) -> dict[str, Port]:
    """The answer of a probe, by interface."""
    return {
        name: Port(
            bool(one.get("present")),
            bool(one.get("carrier")),
            one.get("speed"),
            frozenset((str(host), str(interface)) for host, interface in one.get("heard", [])),
        )
        for name, one in report.get("ports", {}).items()
    }


def found(names: Mapping[str, Ports], reports: Mapping[str, Mapping[str, Port]]) -> Found:
    """The links, in the order in which a declaration of the usual form has them.

    `names` are the interfaces of each host by port (inventory order), `reports` what they heard. The twins of
    a cage are one end: each may hear both twins of the other side, or only its own half's.
    """
    end_of = {
        (node, netdev): End(node, port)
        for node, ports in names.items()
        for port, halves in ports.items()
        for netdev, _ in halves
    }
    group: dict[End, set[End]] = {end: {end} for end in end_of.values()}
    for node, ports in reports.items():
        for netdev, port in ports.items():
            here = end_of.get((node, netdev))
            for heard in port.heard:
                there = end_of.get(heard)
                if here is None or there is None or group[here] is group[there]:
                    continue
                joined = group[here] | group[there]
                for end in joined:
                    group[end] = joined
    place = {node: number for number, node in enumerate(names)}
    links = sorted(
        {
            tuple(sorted(ends, key=lambda end: (end.port, place[end.node])))
            for ends in group.values()
            if len(ends) > 1
        },
        key=lambda link: (link[0].port, place[link[0].node]),
    )
    joined = {end for link in links for end in link}
    idle = {
        end: _why(names, reports, end)
        for end in sorted(group, key=lambda end: (place[end.node], end.port))
        if end not in joined
    }
    return Found(tuple(links), idle)


def _why(names: Mapping[str, Ports], reports: Mapping[str, Mapping[str, Port]], end: End) -> str:
    ports = [reports.get(end.node, {}).get(netdev, Port()) for netdev, _ in names[end.node][end.port]]
    if not any(port.present for port in ports):
        return "no such interfaces"
    return "carrier, but heard nobody" if any(port.carrier for port in ports) else "no carrier"


def proposed(names: Mapping[str, Ports], there: Found) -> Cabling:
    """The cabling of a known kind that was found. Errors: CablingError, which draws what is there."""
    nodes = list(names)
    if len(nodes) == 1 and not there.links:
        return Cabling("single")
    texts = [" ".join(map(str, link)) for link in there.links]
    for kind in ("pair", "ring", "switch"):
        try:
            cabling = declared(kind, nodes, cables=texts)
        except SparkstackError:
            continue
        # Where the usual form says the same, its order counts, so that declaring it changes no address.
        for form in _usual(kind, nodes):
            if form.same_as(cabling):
                return form
        return cabling
    problem = Problem(
        "fabric",
        "cables of no known kind" if there.links else "no cable between the hosts",
        "a pair, a ring or a switch of all hosts",
        "plug in what is missing below",
    )
    problems = doubled(there.links) or [problem]
    raise CablingError(problems, [*_titled("found", _drawn(there.links, there.idle))])


def _usual(kind: str, nodes: Sequence[str]) -> list[Cabling]:
    if kind == "ring":
        return [declared(kind, nodes)]
    forms = [declared(kind, nodes, port) for port in (0, 1)]
    return [*forms, declared(kind, nodes, cables=2)] if kind == "pair" else forms


def compare(plan: FabricPlan, reports: Mapping[str, Mapping[str, Port]]) -> None:
    """Is what was found what the plan declares, on both twins? Errors: CablingError, which draws both."""
    there = found(plan.names, reports)
    wanted = plan.cabling
    problems = []
    found_links = {frozenset(link): link for link in there.links}
    for link in wanted.links:
        if frozenset(link) not in found_links:
            problems.append(_missing(link, there))
    used = {end for link in wanted.links for end in link}
    for link in there.links:
        if not used.intersection(link):
            problems.append(
                Problem("fabric", f"a cable {_text(link)}", "none there", "declare it, or take it out")
            )
    if problems:
        raise CablingError(problems, side_by_side(wanted, there))
    deaf = _deaf(plan, reports)
    if deaf:
        raise CablingError(deaf, [])


def _missing(link: Link, there: Found) -> Problem:
    """What is at the ends of a declared link that was not found."""
    parts = [_text(other) for other in there.links if set(other) & set(link)]
    parts += [f"{end} with {there.idle[end]}" for end in link if end in there.idle]
    proposal = "move the cable, or declare what is there"
    if any("no such" in there.idle.get(end, "") for end in link):
        proposal = "correct `fabric_ports` of that host, or its `port`"
    elif all(end in there.idle for end in link):
        proposal = "check the cable, and that both ends are up"
    return Problem("fabric", " and ".join(parts) or "nothing", _text(link), proposal)


def _deaf(plan: FabricPlan, reports: Mapping[str, Mapping[str, Port]]) -> list[Problem]:
    """Twins that heard nobody while the other one of their cage did."""
    problems = []
    for node in plan.nodes:
        for interface in plan.of(node.name):
            port = reports.get(node.name, {}).get(interface.name, Port())
            if any(host in interface.peers for host, _ in port.heard):
                continue
            what = "no such interface" if not port.present else "no carrier" if not port.carrier else ""
            found = what or f"carrier, and no frame of {' or '.join(interface.peers)}"
            cage = [reports.get(node.name, {}).get(one.name, Port()) for one in plan.of(node.name)]
            if any(host in interface.peers for port in cage for host, _ in port.heard):
                remedy = f"its twin heard them; see `ethtool {interface.name}`, then restart the host"
            else:
                remedy = f"they heard it; see `ip -d link show {interface.name}` for what takes its frames"
            problems.append(Problem(f"{node.name}: {interface.name}", found, "frames of them", remedy))
    return problems


def _text(link: Link) -> str:
    return " - ".join(map(str, link))


class CablingError(SparkstackError):
    """Problems of the cabling with a drawing under their lines."""

    def __init__(self, problems: Sequence[Problem], drawing: Sequence[str]) -> None:
        super().__init__(problems)
        self.drawing = list(drawing)

    def __str__(self) -> str:
        return "\n".join([*self.lines, *self.drawing])


def side_by_side(wanted: Cabling, there: Found) -> list[str]:
    """Both cablings as text, the declared one on the left."""
    left = _titled(f"declared: {wanted.kind}", _drawn(wanted.links, {}))
    right = _titled("found", _drawn(there.links, there.idle))
    width = max(map(len, left)) + 4
    rows = max(len(left), len(right))
    left, right = left + [""] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{one:<{width}}{other}".rstrip() for one, other in zip(left, right, strict=True)]


def drawing(cabling: Cabling) -> list[str]:
    """A cabling as text: a line a cable; the ends at a switch in one bracket."""
    return _drawn(cabling.links, {})


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {title}", *(f"    {line}" for line in lines)]


def _drawn(links: Sequence[Link], idle: Mapping[End, str]) -> list[str]:
    ends = [str(end) for link in links for end in link] + [str(end) for end in idle]
    width = max(map(len, ends), default=0)
    lines = []
    for link in links:
        if len(link) == 2:
            lines.append(f"{link[0]!s:<{width}} --------- {link[1]}")
            continue
        middle = (len(link) - 1) // 2
        for number, end in enumerate(link):
            lines.append(f"{end!s:<{width}} --+{'-- switch' if number == middle else ''}")
    lines += [f"{end!s:<{width}} --x  {why}" for end, why in idle.items()]
    return lines or ["no cable"]
