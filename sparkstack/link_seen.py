"""What can be said of links without sending anything: carrier, speed, MTU, RDMA device, tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkstack.fabric import FabricPlan, Interface
from sparkstack.host_facts import CheckResult, Status
from sparkstack.links import HostState, LinkWanted, Port


def seen(plan: FabricPlan, states: Mapping[str, HostState], wanted: LinkWanted) -> list[CheckResult]:
    """What can be judged without sending anything: carrier, speed, MTU, RDMA device, tool."""
    return [line for node in plan.nodes for line in _seen_host(node.name, plan, states, wanted)]


def _seen_host(
    host: str, plan: FabricPlan, states: Mapping[str, HostState], wanted: LinkWanted
) -> Iterator[CheckResult]:
    state = states.get(host)
    if state is None:
        yield CheckResult(host, "links", "not checked", "not part of this run", "all hosts")
        return
    for end in plan.of(host):
        port = state.ports.get(end.name)
        if port is None:
            remedy = "check `fabric` in group_data (port) and `ip link`"
            yield CheckResult(host, f"{end.name} carrier", "failed", "no such interface", "carrier", remedy)
            continue
        if not port.carrier:
            yield _no_carrier(host, end, port, _twin_has_carrier(end, plan.of(host), state))
            continue
        yield CheckResult(host, f"{end.name} carrier", "ok", "carrier", "carrier")
        yield _speed(host, end, port, wanted)
        status: Status = "ok" if port.mtu == end.mtu else "failed"
        remedy = "run deploy.py --data only=fabric; a switch between needs it, too" if status != "ok" else ""
        yield CheckResult(host, f"{end.name} MTU", status, f"MTU {port.mtu}", f"MTU {end.mtu}", remedy)
        yield from _rdma(host, end, port, wanted)
    if not state.perftest and (wanted.rdma == "required" or any(p.hca for p in state.ports.values())):
        remedy = "install package perftest (it is in `packages`: deploy.py --data only=host)"
        yield CheckResult(host, "ib_write_bw", "failed", "no ib_write_bw", "package perftest", remedy)


def _no_carrier(host: str, end: Interface, port: Port, twin_has: bool) -> CheckResult:
    found, remedy = "no carrier", "seat the cable at both ends, and see that the host at the other end is on"
    if port.carrier is None:  # the kernel says it of an interface that is up
        found = "an interface that is down"
        remedy = f"run deploy.py --data only=fabric, or `ip link set dev {end.name} up`"
    elif twin_has:
        remedy = (
            "its twin on the same cage has carrier, so the cable is there: look for mlx5 in the kernel's log "
            "and restart the host"
        )
    return CheckResult(host, f"{end.name} carrier", "failed", found, "carrier", remedy)


def _twin_has_carrier(end: Interface, ends: Sequence[Interface], state: HostState) -> bool:
    # A plan lists the two halves of a cage one after the other.
    place = ends.index(end)
    twin = state.ports.get(ends[place ^ 1].name) if place ^ 1 < len(ends) else None
    return twin is not None and bool(twin.carrier)


def _speed(host: str, end: Interface, port: Port, wanted: LinkWanted) -> CheckResult:
    name, want = f"{end.name} speed", f"{wanted.speed_mbps} Mb/s"
    if wanted.speed_mbps == 0:
        return CheckResult(host, name, "not checked", f"{port.speed_mbps} Mb/s", "any speed")
    if port.speed_mbps is None:
        remedy = f"see `ethtool {end.name}`"
        return CheckResult(host, name, "failed", "a speed that the driver does not say", want, remedy)
    if port.speed_mbps >= wanted.speed_mbps:
        return CheckResult(host, name, "ok", f"{port.speed_mbps} Mb/s", want)
    remedy = "check that the cable is made for it"
    if port.speed_mbps == 100_000 and wanted.speed_mbps == 200_000:
        remedy = (
            "negotiated 100G: use a 200G cable; on a switch force 200G-baseCR4 with autonegotiation off "
            "on this port"
        )
    return CheckResult(host, name, "failed", f"{port.speed_mbps} Mb/s", want, remedy)


def _rdma(host: str, end: Interface, port: Port, wanted: LinkWanted) -> Iterator[CheckResult]:
    name = f"{end.name} RDMA"
    if port.hca is None:
        status: Status = "failed" if wanted.rdma == "required" else "not checked"
        remedy = "load mlx5_ib (`modprobe mlx5_ib`), and see `ibv_devices`" if status == "failed" else ""
        yield CheckResult(host, name, status, "no RDMA device", f"RDMA device {end.hca}", remedy)
    elif not port.hca_active:
        remedy = f"see `rdma link` and `ibv_devinfo -d {port.hca}`"
        yield CheckResult(host, name, "failed", f"{port.hca} that is not active", "an active port", remedy)
    else:
        yield CheckResult(host, name, "ok", f"{port.hca} is active", "an active port")
