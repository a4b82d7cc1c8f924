"""How Sparks are cabled, and which address each interface has because of it.

A Spark has two QSFP cages (port 0 and 1). Each cage is two network interfaces, twins, one on each PCIe half;
both carry traffic over the one cable. Twins never share a subnet: the kernel would send for both through one.
So every cable, or every switch, has two /24 networks, one for each PCIe half.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError

from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan, Interface, Node
from sparkstack.routes import collisions

__all__ = ["KINDS", "FabricPlan", "Interface", "Node", "collisions", "plan", "twins"]

KINDS = ("single", "pair", "ring", "switch")
FIRST_OCTET = 10
DEFAULT_BASE = {"pair": "192.168.100.0/22", "switch": "192.168.100.0/22", "ring": "10.20.0.0/16"}


def twins(port: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """(interface, RDMA device) of a cage on PCIe half 1 and on half 2."""
    return (
        (f"enp1s0f{port}np{port}", f"rocep1s0f{port}"),
        (f"enP2p1s0f{port}np{port}", f"roceP2p1s0f{port}"),
    )


def plan(kind: str, nodes: Sequence[str], base: str | None = None, port: int = 0) -> FabricPlan:
    """The fabric of `nodes` (inventory order) cabled as `kind`.

    `single`: none. `pair`: one cable between the same `port` of both. `ring`: a cable from port 0 of each
    node to port 1 of the next, the last one's to the first. `switch`: one cable from `port` of each into one
    switch. `base` is the IPv4 network that the /24s are cut from, in order; a host's last octet is 10 plus
    its place in the inventory. Errors: SparkstackError for a declaration that cannot be built.
    """
    base = base or DEFAULT_BASE.get(kind, DEFAULT_BASE["pair"])
    _check(kind, nodes, port)
    names = tuple(nodes)
    # (cage, its place among the cables, neighbours) of every node
    ends: dict[str, list[tuple[int, int, tuple[str, ...]]]] = {name: [] for name in names}
    cables = 0
    if kind in ("pair", "switch"):
        cables = 1
        for name in names:
            ends[name].append((port, 0, tuple(other for other in names if other != name)))
    elif kind == "ring":
        cables = len(names)
        for index, name in enumerate(names):
            ends[name].append((0, index, (names[(index + 1) % cables],)))
            ends[name].append((1, (index - 1) % cables, (names[index - 1],)))
    subnets = _subnets(kind, base, 2 * cables)
    interfaces = {}
    for index, name in enumerate(names):
        interfaces[name] = tuple(
            Interface(netdev, hca, str(subnets[2 * cable + half][FIRST_OCTET + index]), str(subnet), peers)
            for cage, cable, peers in ends[name]
            for half, (netdev, hca) in enumerate(twins(cage))
            for subnet in (subnets[2 * cable + half],)
        )
    return FabricPlan(
        kind, tuple(Node(name, tuple(cage for cage, _, _ in ends[name])) for name in names), interfaces
    )


def _check(kind: str, nodes: Sequence[str], port: int) -> None:
    where = f"topology {kind!r}"
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        remedy = f"did you mean {near[0]!r}?" if near else "name how the Sparks are cabled"
        raise SparkstackError(Problem("topology", repr(kind), "one of: " + ", ".join(KINDS), remedy))
    problems = []
    count, most = len(nodes), 254 - FIRST_OCTET + 1
    found = f"{count} nodes ({', '.join(nodes)})" if nodes else "no nodes"
    wanted, remedy = {
        "single": ("exactly 1 node", "name the cabling: pair, ring or switch"),
        "pair": ("exactly 2 nodes", "use single for one, ring or switch for more"),
        "ring": (f"3 to {most} nodes", "two Sparks with a cable are a pair"),
        "switch": (f"2 to {most} nodes", "use single for one"),
    }[kind]
    low, high = {"single": (1, 1), "pair": (2, 2), "ring": (3, most), "switch": (2, most)}[kind]
    if not low <= count <= high:
        problems.append(Problem(where, found, wanted, remedy))
    for name in sorted({name for name in nodes if list(nodes).count(name) > 1}):
        problems.append(Problem(where, f"node {name!r} twice", "each node once", "correct the inventory"))
    if port not in (0, 1):
        problems.append(Problem(where, f"port {port}", "port 0 or 1", "port 0 is the cage beside the RJ45"))
    elif kind == "ring" and port != 0:
        problems.append(Problem(where, f"port {port}", "no port", "a ring uses both ports; remove it"))
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
        found = f"base {base} with room for {room} networks of /24"
        raise SparkstackError(
            Problem(f"topology {kind!r}", found, f"room for {count}", "declare a wider base")
        )
    first = int(network.network_address)
    return [IPv4Network((first + 256 * index, 24)) for index in range(count)]
