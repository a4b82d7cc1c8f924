"""What a planned fabric is: hosts, their interfaces, and who reaches whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MTU = 9000
"""Bytes. With the usual 1500, RDMA sends packets of 1024 instead of 4096."""


@dataclass(frozen=True)
class Node:
    """A host and which of its cages hold a cable of the fabric."""

    name: str
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Interface:
    """One twin: its name, RDMA device, IPv4 address and network (CIDR), MTU in bytes, and the hosts that it
    reaches without a hop."""

    name: str
    hca: str
    address: str
    subnet: str
    peers: tuple[str, ...]
    mtu: int = MTU

    @property
    def cidr(self) -> str:
        """The address with its prefix length, as netplan has it."""
        return f"{self.address}/{self.subnet.partition('/')[2]}"


@dataclass(frozen=True)
class FabricPlan:
    """The wanted fabric; nodes in inventory order, the head first."""

    kind: str
    nodes: tuple[Node, ...]
    interfaces: Mapping[str, tuple[Interface, ...]]

    def of(self, node: str) -> tuple[Interface, ...]:
        """The interfaces of `node`, first twin first; () on a single Spark."""
        return self.interfaces[node]

    def link(self, node: str, peer: str) -> Interface | None:
        """The first interface of `node` that reaches `peer` without a hop; None when a ring lies between."""
        return next((interface for interface in self.of(node) if peer in interface.peers), None)
