"""The links of a fabric: what is wanted of them, what was seen and measured, and which cables there are.

What the values mean is judged in `sparkstack.link_gate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sparkstack.fabric import FabricPlan, Interface
from sparkstack.release import content_id
from sparkstack.schema import Strict

FORMAT = 1

Positive = Annotated[float, Field(ge=0)]


class LinkWanted(Strict):
    """What the links must give, and how long they are measured; the knob `link_wanted`.

    Gb/s are 10^9 bits, GB/s 10^9 bytes a second. `speed_mbps`: the rate that both ends negotiate; 0: any.
    `rdma` "optional": where a host has no RDMA device that is "not checked", and TCP is measured instead.
    """

    speed_mbps: Annotated[int, Field(ge=0)]
    rail_gbps: Positive
    both_gbps: Positive
    tcp_gbps: Positive
    rdma: Literal["required", "optional"]
    nccl_gbytes: Positive
    nccl_ring_gbytes: Positive
    nccl_size_gib: Annotated[float, Field(gt=0, le=16)]
    seconds: Annotated[int, Field(ge=1, le=60)]
    port: Annotated[int, Field(ge=1024, le=65000)]


class _Measured(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Port(_Measured):
    """An interface as its host sees it. None: the kernel does not say. `changes` counts how often the carrier
    came or went since boot; `hca` is the RDMA device on it."""

    carrier: bool | None
    speed_mbps: int | None
    mtu: int | None
    changes: int | None
    hca: str | None = None
    hca_active: bool = False


class HostState(_Measured):
    """A host now: its boot, its interfaces of the fabric (one that is not there is missing), its tools."""

    boot: str
    ports: Mapping[str, Port]
    perftest: bool = False


class Ping(_Measured):
    """Three packets of `bytes` (the whole MTU) that may not be cut, after one of 56 bytes (`small`)."""

    source: str
    target: str
    interface: str
    bytes: int
    received: int
    small: bool
    said: str = ""


class Rate(_Measured):
    """What went from `client` to `server` over the client's interfaces `rails`, all at the same time.

    `gbps` has one value a rail, None where nothing was measured; `problem` says why: "refused" and "filtered"
    (no TCP connection), "stalled" (connected, and nothing came through in time), or the tool's own words.
    """

    client: str
    server: str
    rails: Sequence[str]
    tool: Literal["ib_write_bw", "tcp"]
    gbps: Sequence[float | None]
    problem: Sequence[str]


class Collective(_Measured):
    """NCCL's all_gather over all ranks: bus bandwidth in GB/s, and what NCCL said it goes over ("IB",
    "Socket"; "" where it did not say)."""

    gbytes: float | None
    transport: str = ""
    problem: str = ""


Rail = tuple[Interface, Interface]
"""Two ends that reach each other without a hop."""


class Cable(BaseModel):
    """Two hosts and the rails between them: pairs of interfaces, the client's first."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    client: str
    server: str
    rails: tuple[Rail, ...]


def cables(plan: FabricPlan) -> list[Cable]:
    """What is measured: every cable once. On a switch the first host to each of the others: so each host's
    own link is measured, and nobody's at the same time as another's."""
    found = []
    names = [node.name for node in plan.nodes]
    for place, name in enumerate(names):
        if plan.kind == "switch" and place > 0:
            break
        for peer in names[place + 1 :]:
            far = {interface.subnet: interface for interface in plan.of(peer)}
            rails = [(near, far[near.subnet]) for near in plan.of(name) if near.subnet in far]
            # A second cable between the same two is a second pair of twins.
            found += [
                Cable(client=name, server=peer, rails=tuple(rails[at : at + 2]))
                for at in range(0, len(rails), 2)
            ]
    return found


def rdma_on(cable: Cable, rail: Rail, states: Mapping[str, HostState]) -> bool:
    """Can ib_write_bw be tried: has the rail an RDMA device at both ends, and both hosts the tool?"""
    hosts = [states.get(cable.client), states.get(cable.server)]
    if not all(one is not None and one.perftest for one in hosts):
        return False
    ends = (
        port_of(states, name, end.name)
        for name, end in zip((cable.client, cable.server), rail, strict=True)
    )
    return all(port is not None and port.hca is not None for port in ends)


def unmeasurable(
    cable: Cable,
    rail: Rail,
    states: Mapping[str, HostState],
    pings: Sequence[Ping],
) -> str | None:
    """Why sending over this rail would only wait in vain; None where it can be measured."""
    for name, end in zip((cable.client, cable.server), rail, strict=True):
        if name not in states:
            return f"{name} is not part of this run"
        port = port_of(states, name, end.name)
        if port is None or not port.carrier:
            return f"no carrier on {end.name} of {name}"
    sent = (cable.client, rail[0].name, cable.server)
    if any((one.source, one.interface, one.target) == sent and not one.small for one in pings):
        return f"no ping from {cable.client} to {cable.server} on {rail[0].name}"
    return None


def port_of(states: Mapping[str, HostState], host: str, name: str) -> Port | None:
    """What `host` says of its interface `name`; None where it has none, or was not asked."""
    return states[host].ports.get(name) if host in states else None


def key(plan: FabricPlan, states: Mapping[str, HostState], wanted: LinkWanted) -> str:
    """Names the conditions of a measurement: while it stays the same, nothing is measured again.

    In it: every host's boot, and each interface's address, carrier, speed, MTU, RDMA device and count of
    carrier changes (a cable that was pulled and put back), and what is wanted.
    """
    addresses = {node.name: [[i.name, i.cidr] for i in plan.of(node.name)] for node in plan.nodes}
    seen = {name: state.model_dump(mode="json") for name, state in states.items()}
    return content_id([FORMAT, plan.kind, addresses, seen, wanted.model_dump(mode="json")])


def changes(before: Mapping[str, Any], now: Mapping[str, HostState]) -> list[str]:
    """What is not as it was when the links were measured, a phrase each."""
    found = [f"{host} is not part of this run" for host in before if host not in now]
    for host, state in now.items():
        try:
            then = HostState.model_validate(before[host])
        except (KeyError, ValueError):
            found.append(f"{host} was not measured")
            continue
        if then.boot != state.boot:
            found.append(f"{host} was restarted")
            continue
        for name in sorted({*then.ports, *state.ports}):
            old, new = then.ports.get(name), state.ports.get(name)
            if old == new:
                continue
            if old is None or new is None:
                found.append(f"{host}: {name} {'came' if old is None else 'is gone'}")
                continue
            words = [
                f"{label} {getattr(old, field)} → {getattr(new, field)}"
                for field, label in (("speed_mbps", "speed"), ("mtu", "MTU"), ("hca", "RDMA device"))
                if getattr(old, field) != getattr(new, field)
            ]
            if (old.carrier, old.changes) != (new.carrier, new.changes):
                words.append("carrier went or came")
            found.append(f"{host}: {name}: {', '.join(words) or 'RDMA port changed its state'}")
    return found
