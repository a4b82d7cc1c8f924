"""Can the planned fabric be brought up on a host, and what of it is not as planned? Judged from its state."""

from __future__ import annotations

from collections.abc import Sequence

from sparkstack import routes
from sparkstack.errors import Problem
from sparkstack.fabric import FabricPlan, Interface
from sparkstack.fabric_state import FabricState, Link
from sparkstack.migration import Migration


def problems(
    plan: FabricPlan, node: str, state: FabricState, old: Migration, reached_by: str, management: str
) -> list[Problem]:
    """What stops the fabric on `node` before anything is changed; `old` goes, so it is in nobody's way.
    `reached_by` is the address by which the controller comes, `management` the interface by which the ranks
    of a ring meet."""
    found = []
    if plan.kind == "ring" and management not in state.links:
        there = ", ".join(name for name, link in state.links.items() if name != "lo" and link.addresses)
        found.append(
            Problem(
                f"{node}: fabric",
                f"no interface {management}",
                "the management interface, by which the ranks of a ring meet",
                f"set `management_interface` for this host (with addresses: {there or 'none'})",
            )
        )
    interfaces = plan.of(node)
    missing = [i.name for i in interfaces if i.name not in state.links]
    if missing:
        known = {netdev for port in plan.names[node].values() for netdev, _ in port}
        others = [
            name
            for name, link in state.links.items()
            if not link.kind and name != "lo" and name not in known and not link.addresses
        ]
        remedy = "check the port number in `fabric`"
        if others:
            remedy += f", or say in `fabric_ports` of this host which of {', '.join(others)} they are"
        found.append(
            Problem(f"{node}: fabric", f"no interface {', '.join(missing)}", "the ports of `fabric`", remedy)
        )
    for i in interfaces:
        link = state.links.get(i.name, Link())
        way = [one for one in link.addresses if reached_by and one.startswith(f"{reached_by}/")]
        if way or any(_default_by(route, i.name) for route in state.routes):
            found.append(
                Problem(
                    f"{node}: fabric",
                    f"{i.name} as the way to this host ({', '.join(link.addresses) or 'default route'})",
                    "a port that is the fabric's alone",
                    "correct `fabric_ports` or `port`",
                )
            )
    going = {i.name for i in interfaces} | set(old.masters)
    kept = [route for route in state.routes if not any(_by(route, name) for name in going)]
    return found + routes.collisions(plan, {node: kept})


def _by(route: str, name: str) -> bool:
    words = route.split()
    return "dev" in words[:-1] and words[words.index("dev") + 1] == name


def _default_by(route: str, name: str) -> bool:
    return route.startswith("default ") and _by(route, name)


def differences(
    interfaces: Sequence[Interface], state: FabricState, old: Migration
) -> list[tuple[str, str, str]]:
    """(thing, found, wanted) of what a deployment would change besides our own file."""
    told = []
    for i in interfaces:
        link = state.links.get(i.name, Link())
        if link.addresses != (i.cidr,):
            told.append((i.name, ", ".join(link.addresses) or "no address", i.cidr))
        if link.mtu != i.mtu:
            told.append((i.name, f"MTU {link.mtu}", f"MTU {i.mtu}"))
    told += [(path, "a port of the fabric in it", "none but in our file") for path in old.files]
    told += [(path, "a profile for a port of the fabric", "none") for path in old.profiles]
    told += [(name, "a bond or bridge of the fabric's ports", "none") for name in old.masters]
    return told


def silence(interfaces: Sequence[Interface], state: FabricState) -> list[tuple[str, str, str]]:
    """(interface, found, wanted) of ports that have their address and whose neighbour does not answer with
    packets of the full MTU. Nothing for a port that was not asked."""
    words = {
        "none": "no answer from {peer}",
        "small": "answers of {peer} to small packets only",
    }
    return [
        (i.name, words[how].format(peer=i.next_peer), f"answers to packets of {i.mtu} bytes")
        for i in interfaces
        if (how := state.reach.get(i.name)) in words and i.cidr in state.links.get(i.name, Link()).addresses
    ]
