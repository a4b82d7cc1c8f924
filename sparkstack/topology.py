"""How Sparks are cabled, and which address each interface has because of it.

A Spark has two QSFP cages (port 0 and 1). Each cage is two network interfaces, twins, one on each PCIe half;
both carry traffic over the one cable. Twins never share a subnet: the kernel would send for both through one.
So every cable, or every switch, has two /24 networks, one for each PCIe half.

What stays where it is: a second run gives the same plan. A node appended to a switch changes nothing for the
others, and a pair with one cable keeps its addresses when it becomes a switch. A node appended to a ring
takes over the cable from the last one to the first: only port 1 of the first node gets new networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError

from sparkstack.cabling import KINDS, MOST, Cables, Cabling, Port, declared
from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan, Interface, Node, Ports, Twins
from sparkstack.routes import collisions

__all__ = ["KINDS", "FabricPlan", "Interface", "Node", "collisions", "plan", "plan_of", "twins"]

FIRST_OCTET = 254 - MOST + 1
DEFAULT_BASE = "192.168.96.0/19"
"""One for all kinds, so that a pair that becomes a switch keeps its addresses; enough for a ring of 16."""


def twins(port: int) -> Twins:
    """(interface, RDMA device) of a cage on PCIe half 1 and on half 2."""
    return (
        (f"enp1s0f{port}np{port}", f"rocep1s0f{port}"),
        (f"enP2p1s0f{port}np{port}", f"roceP2p1s0f{port}"),
    )


def ports_of(knob: Mapping[int | str, Sequence[Sequence[str]]]) -> Ports:
    """The knob `fabric_ports` of a host as names of the twins, by port."""
    return {int(port): ((one[0], one[1]), (other[0], other[1])) for port, (one, other) in knob.items()}


def plan(
    kind: str,
    nodes: Sequence[str],
    base: str | None = None,
    port: Port = 0,
    cables: Cables | None = None,
    names: Mapping[str, Ports] | None = None,
) -> FabricPlan:
    """The fabric of `nodes` (inventory order) as declared; see `cabling.declared` and `plan_of`."""
    return plan_of(declared(kind, nodes, port, cables), nodes, base, names)


def plan_of(
    cabling: Cabling,
    nodes: Sequence[str],
    base: str | None = None,
    names: Mapping[str, Ports] | None = None,
) -> FabricPlan:
    """Addresses for a cabling. `base` is the IPv4 network that the /24s are cut from, in order of the links;
    a host's last octet is 10 plus its place in the inventory. `names` has the interfaces of hosts that do not
    call them as DGX OS does. Errors: SparkstackError for a base without room, and for one name twice.
    """
    base = base or DEFAULT_BASE
    usual: Ports = {0: twins(0), 1: twins(1)}
    named = {name: {**usual, **(names or {}).get(name, {})} for name in nodes}
    _check_names(named)
    subnets = _subnets(cabling.kind, base, 2 * len(cabling.links))
    octet = {name: FIRST_OCTET + place for place, name in enumerate(nodes)}
    interfaces: dict[str, list[Interface]] = {name: [] for name in nodes}
    # In order of the ports, so that both ends of a cable list their rails alike.
    ends = sorted(
        ((end, number) for number, link in enumerate(cabling.links) for end in link),
        key=lambda item: item[0].port,
    )
    for end, number in ends:
        ring = [other.node for other in sorted(cabling.links[number], key=lambda one: octet[one.node])]
        peers = tuple(name for name in ring if name != end.node)
        following = ring[(ring.index(end.node) + 1) % len(ring)]
        for half, (netdev, hca) in enumerate(named[end.node][end.port]):
            subnet = subnets[2 * number + half]
            interfaces[end.node].append(
                Interface(
                    netdev,
                    hca,
                    str(subnet[octet[end.node]]),
                    str(subnet),
                    peers,
                    next_peer=str(subnet[octet[following]]),
                )
            )
    ports = {name: tuple(end.port for end, _ in ends if end.node == name) for name in nodes}
    return FabricPlan(
        cabling.kind,
        tuple(Node(name, ports[name]) for name in nodes),
        {name: tuple(found) for name, found in interfaces.items()},
        cabling,
        named,
    )


def _check_names(named: Mapping[str, Ports]) -> None:
    problems = []
    for node, ports in named.items():
        for kind, place in (("interface", 0), ("RDMA device", 1)):
            names = [half[place] for port in (0, 1) for half in ports[port]]
            for name in dict.fromkeys(one for one in names if names.count(one) > 1):
                problems.append(
                    Problem(
                        node, f"{kind} {name!r} twice in its ports", "each once", "correct `fabric_ports`"
                    )
                )
    if problems:
        raise SparkstackError(problems)


def _subnets(kind: str, base: str, count: int) -> list[IPv4Network]:
    try:
        network = IPv4Network(base)
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise SparkstackError(
            Problem(f"topology {kind!r}", f"base {base!r} ({error})", "an IPv4 network such as 10.20.0.0/16")
        ) from error
    room = 2 ** (24 - network.prefixlen) if network.prefixlen <= 24 else 0
    if room < count:
        networks = "1 network" if room == 1 else f"{room} networks"
        found = f"base {base} with room for {networks} of /24"
        raise SparkstackError(
            Problem(f"topology {kind!r}", found, f"room for {count}", "declare a wider base")
        )
    first = int(network.network_address)
    odd = (network.is_multicast, network.is_loopback, network.is_link_local, network.is_reserved)
    if any(odd) or first >> 24 == 0:
        found = f"base {base}, which hosts cannot have addresses of"
        raise SparkstackError(Problem(f"topology {kind!r}", found, "a network such as 10.20.0.0/16"))
    return [IPv4Network((first + 256 * index, 24)) for index in range(count)]
