"""What a planned fabric is: hosts, their interfaces, and who reaches whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstack.cabling import Cabling

MTU = 9000
"""Bytes. With the usual 1500, RDMA sends packets of 1024 instead of 4096."""


Twins = tuple[tuple[str, str], tuple[str, str]]
"""(interface, RDMA device) of a cage on PCIe half 1, and on half 2."""
Ports = Mapping[int, Twins]


@dataclass(frozen=True)
class Node:
    """A host and which of its cages hold a cable of the fabric."""

    name: str
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Interface:
    """One twin: its name, RDMA device, IPv4 address and network (CIDR), MTU in bytes, and the hosts that it
    reaches without a hop. `next_peer` is the address of one of them: asked by each, all are asked."""

    name: str
    hca: str
    address: str
    subnet: str
    peers: tuple[str, ...]
    mtu: int = MTU
    next_peer: str = ""

    @property
    def cidr(self) -> str:
        """The address with its prefix length, as netplan has it."""
        return f"{self.address}/{self.subnet.partition('/')[2]}"


@dataclass(frozen=True)
class FabricPlan:
    """The wanted fabric; nodes in inventory order, the head first. `names` are the twins of each cage of a
    node, cabled or not: `names[node][port]` is ((interface, RDMA device), (interface, RDMA device))."""

    kind: str
    nodes: tuple[Node, ...]
    interfaces: Mapping[str, tuple[Interface, ...]]
    cabling: Cabling
    names: Mapping[str, Ports] = field(default_factory=dict)

    def of(self, node: str) -> tuple[Interface, ...]:
        """The interfaces of `node`, first twin first; () on a single Spark."""
        return self.interfaces[node]

    def routes(self, node: str) -> list[tuple[str, str]]:
        """(network, interface): all that the fabric adds to the routing table of `node`. Nobody forwards:
        on a ring of four or more, Sparks that share no cable meet on the management network."""
        return [(interface.subnet, interface.name) for interface in self.of(node)]

    def link(self, node: str, peer: str) -> Interface | None:
        """The first interface of `node` that reaches `peer` without a hop; None when a ring lies between."""
        return next((interface for interface in self.of(node) if peer in interface.peers), None)
