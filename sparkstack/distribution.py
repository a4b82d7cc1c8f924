"""From whom each host receives a checkpoint, and over which network. Pure.

Fan-out: everybody takes from the head, whose link is then shared. Chain: each takes from the one before it,
which passes on what it has while it still receives, so that a link carries the checkpoint once however many
hosts there are. TCP has been seen to carry 96 Gb/s over a Spark's port, which is what about three NVMe drives
write: up to three receivers wait for their own disks, and a chain would only add its latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkstack.fabric import FabricPlan

Distribution = Literal["auto", "fan-out", "chain"]
FAN_OUT_MOST = 3
"""Receivers that a head serves by itself where the site does not say."""


@dataclass(frozen=True)
class Sender:
    """A host to receive from, its address as the receiver reaches it, and whether that is the fabric's."""

    node: str
    address: str
    fabric: bool


def is_chain(mode: Distribution, hosts: int) -> bool:
    """Do `hosts` (the head among them) pass a checkpoint on from one to the next?"""
    return mode == "chain" or (mode == "auto" and hosts - 1 > FAN_OUT_MOST)


def senders(
    fabric: FabricPlan, nodes: Sequence[str], receiver: str, mode: Distribution, management: Mapping[str, str]
) -> tuple[Sender, ...]:
    """Whom `receiver` asks, in order; the head is always the last. () for the head itself.

    `management` has each host's own address, for two hosts that no cable of the fabric joins (on a ring). A
    host with a cable to the head needs nobody between.
    """
    at = nodes.index(receiver)
    if at == 0:
        return ()
    chosen = [nodes[0]]
    beside_head = fabric.kind == "ring" and fabric.link(receiver, nodes[0]) is not None
    if is_chain(mode, len(nodes)) and at > 1 and not beside_head:
        chosen.insert(0, nodes[at - 1])
    return tuple(_sender(fabric, node, receiver, management) for node in chosen)


def _sender(fabric: FabricPlan, node: str, receiver: str, management: Mapping[str, str]) -> Sender:
    link = fabric.link(node, receiver)
    return Sender(node, management[node] if link is None else link.address, link is not None)


def listening(
    fabric: FabricPlan, nodes: Sequence[str], sender: str, mode: Distribution, management: Mapping[str, str]
) -> tuple[str, ...]:
    """The addresses on which `sender` must give, so that each who asks it reaches it; () for nobody."""
    asked = (one for node in nodes for one in senders(fabric, nodes, node, mode, management))
    return tuple(dict.fromkeys(one.address for one in asked if one.node == sender))
