"""Is the fabric as fast as it must be before anything is served over it? Measured values in, verdicts out.

What a site wants is data (`link_wanted` of group data). The figures that tell one fault of a DGX Spark from
another are in RAIL_CAUSES and COLLECTIVE_CAUSES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkstack.fabric import FabricPlan, Interface
from sparkstack.host_facts import CheckResult
from sparkstack.link_seen import seen
from sparkstack.links import (
    Cable,
    Collective,
    HostState,
    LinkWanted,
    Ping,
    Rate,
    cables,
    rdma_on,
    unmeasurable,
)

__all__ = ["collective", "judge", "passed", "seen"]

RAIL_CAUSES = (
    (
        8.0,
        25.0,
        "a degenerate start of the ConnectX-7 (about 13 Gb/s): shut the host down, take its power away for a "
        "minute so that it drains, and start it again",
    ),
    (
        40.0,
        63.0,
        "a PCIe half with two lanes instead of four: wanted LnkSta 32GT/s x4 (`lspci -vv`); update the "
        "firmware (`fwupdmgr update`)",
    ),
)
"""Gb/s of one rail from, to: what is then the likely cause."""

COLLECTIVE_CAUSES = (
    (9.0, 15.0, "one rail idle: NCCL_IB_HCA must name both twins (deploy.py --data only=fabric)"),
    (2.0, 6.0, "a wrong NCCL build, or devices that NCCL_IB_HCA does not name: see the image's NCCL version"),
    (0.0, 2.0, "TCP instead of RDMA: the container needs /dev/infiniband and unlimited locked memory"),
)
"""GB/s of bus bandwidth from, to: what is then the likely cause."""

ONE_RAIL = 1.25
"""Two rails that together bring less than this many times one alone share something."""


def judge(
    plan: FabricPlan,
    states: Mapping[str, HostState],
    wanted: LinkWanted,
    pings: Sequence[Ping],
    rates: Sequence[Rate],
) -> list[CheckResult]:
    """Every check of every link. Where one fault explains another, the second is "not checked" with the
    reason, so that each failed line is something to mend."""
    lines = seen(plan, states, wanted)
    silent = {
        (line.host, line.name.split()[0])
        for line in lines
        if line.status == "failed" and line.name.endswith((" carrier", " MTU"))
    }
    lines += _pings(plan, pings, silent)
    for cable in cables(plan):
        lines += _cable(plan, cable, states, wanted, pings, rates)
    return lines


def passed(lines: Sequence[CheckResult]) -> bool:
    """No check failed. "Not checked" is not a failure, and not an "ok" either."""
    return not any(line.status == "failed" for line in lines)


def _far(plan: FabricPlan, host: str, interface: str, peer: str) -> Interface | None:
    subnet = next((one.subnet for one in plan.of(host) if one.name == interface), None)
    return next((one for one in plan.of(peer) if one.subnet == subnet), None)


def _pings(plan: FabricPlan, pings: Sequence[Ping], silent: set[tuple[str, str]]) -> Iterator[CheckResult]:
    """One line for each direction of each rail; `silent` are the ends that cannot answer anyway."""
    answers = {(ping.source, ping.interface, ping.target): ping for ping in pings}
    for node in plan.nodes:
        for end in plan.of(node.name):
            for peer in end.peers:
                far = _far(plan, node.name, end.name, peer)
                if far is None:
                    continue
                name, want = f"{end.name} jumbo ping to {peer}", f"answers to {end.mtu} bytes in one packet"
                ping = answers.get((node.name, end.name, peer))
                blame = [
                    f"{host}: {at}"
                    for host, at in ((node.name, end.name), (peer, far.name))
                    if (host, at) in silent
                ]
                if ping is not None and ping.received == 3:
                    yield CheckResult(node.name, name, "ok", f"3 of 3 answers to {ping.bytes} bytes", want)
                elif blame or ping is None:
                    reason = f"see {blame[0]}" if blame else "not sent"
                    yield CheckResult(node.name, name, "not checked", reason, want)
                else:
                    yield _lost(node.name, name, want, ping, far)


def _lost(host: str, name: str, want: str, ping: Ping, far: Interface) -> CheckResult:
    if ping.received:
        found = f"{ping.received} of 3 answers"
        remedy = f"packets get lost: see `ethtool -S {ping.interface}` for errors, and reseat the cable"
    elif ping.small:
        found = "no answer to whole packets, but to small ones"
        remedy = "something on the way has a smaller MTU: set it in the switch"
    else:
        found = "no answer to any packet, with carrier at both ends"
        remedy = (
            f"a firewall at {ping.target} may drop them (`nft list ruleset`: {far.subnet} must pass), or the "
            f"cable is not the declared one: `ip neigh show dev {ping.interface}`"
        )
    return CheckResult(host, name, "failed", found, want, remedy)


def _cable(
    plan: FabricPlan,
    cable: Cable,
    states: Mapping[str, HostState],
    wanted: LinkWanted,
    pings: Sequence[Ping],
    rates: Sequence[Rate],
) -> Iterator[CheckResult]:
    """Each rail of a cable alone, and both at once."""
    mine = [rate for rate in rates if (rate.client, rate.server) == (cable.client, cable.server)]
    for rail in cable.rails:
        name, rdma = rail[0].name, rdma_on(cable, rail, states)
        if not rdma:
            why = "no RDMA device at both ends, or no ib_write_bw; TCP instead"
            yield _not_checked(cable, f"{name} ib_write_bw to {cable.server}", why)
        measured = [rate for rate in mine if tuple(rate.rails) == (name,)]
        if not measured:
            why = unmeasurable(cable, rail, states, pings) or "not measured"
            yield _not_checked(cable, f"{name} {'ib_write_bw' if rdma else 'tcp'} to {cable.server}", why)
        for rate in measured:
            yield _rate(plan, rate, wanted)
    names = tuple(rail[0].name for rail in cable.rails)
    both = next((rate for rate in mine if len(rate.rails) > 1 and set(rate.rails) <= set(names)), None)
    if both is not None:
        yield _together(both, mine, wanted)
    elif any(rdma_on(cable, rail, states) for rail in cable.rails):
        yield _not_checked(cable, f"both rails to {cable.server}", "see each rail alone")


def _not_checked(cable: Cable, name: str, why: str) -> CheckResult:
    return CheckResult(cable.client, name, "not checked", why, "a measurement")


def _rate(plan: FabricPlan, rate: Rate, wanted: LinkWanted) -> CheckResult:
    """A rail that was measured alone."""
    rail, gbps, problem = rate.rails[0], rate.gbps[0], rate.problem[0]
    name = f"{rail} {rate.tool} to {rate.server}"
    least = wanted.rail_gbps if rate.tool == "ib_write_bw" else wanted.tcp_gbps
    want = f"≥ {least:g} Gb/s"
    if gbps is None:
        return CheckResult(rate.client, name, "failed", *_no_figure(plan, rate, rail, problem, want))
    if gbps >= least:
        return CheckResult(rate.client, name, "ok", f"{gbps:.4g} Gb/s", want)
    cause = next((words for low, high, words in RAIL_CAUSES if low <= gbps <= high), None)
    if cause is None or rate.tool == "tcp":
        cause = f"see `ethtool -S {rail}` at both ends for errors, and what else uses the link"
    return CheckResult(rate.client, name, "failed", f"{gbps:.4g} Gb/s", want, cause)


def _no_figure(plan: FabricPlan, rate: Rate, rail: str, problem: str, want: str) -> tuple[str, str, str]:
    """(found, wanted, remedy) where a tool brought no figure."""
    far = _far(plan, rate.client, rail, rate.server)
    subnet = far.subnet if far else "the fabric"
    if problem == "filtered":
        return (
            "no TCP connection, and no refusal",
            want,
            f"a firewall drops it: let all from {subnet} pass at {rate.server} (`nft list ruleset`)",
        )
    if problem == "stalled":
        return (
            f"{rate.tool} that connected, and nothing came through",
            want,
            f"let UDP 4791 (RoCE) from {subnet} pass at both ends, and see `ethtool -S {rail}`"
            if rate.tool == "ib_write_bw"
            else f"see `ethtool -S {rail}` at both ends",
        )
    if problem == "refused":
        return "a refused connection", want, f"see `journalctl -u 'sparkstack-link-*'` at {rate.server}"
    return problem or "no figure", want, f"see `journalctl -u 'sparkstack-link-*'` at {rate.server}"


def _together(rate: Rate, rates: Sequence[Rate], wanted: LinkWanted) -> CheckResult:
    """Both rails at the same time."""
    name, want = f"both rails to {rate.server}", f"≥ {wanted.both_gbps:g} Gb/s"
    alone = [other.gbps[0] for rail in rate.rails for other in rates if tuple(other.rails) == (rail,)]
    each = " + ".join("none" if value is None else f"{value:.4g}" for value in rate.gbps)
    silent = [rail for rail, value in zip(rate.rails, rate.gbps, strict=True) if value is None]
    total = sum(value or 0.0 for value in rate.gbps)
    if any(value is None or value < wanted.rail_gbps for value in alone) or len(alone) < len(rate.rails):
        return CheckResult(rate.client, name, "not checked", f"{each} Gb/s: see each rail alone", want)
    if silent:
        remedy = f"{' and '.join(silent)} stalls while its twin works: see `ethtool -S` and the kernel's log"
        return CheckResult(rate.client, name, "failed", f"{each} Gb/s", want, remedy)
    if total >= wanted.both_gbps:
        return CheckResult(rate.client, name, "ok", f"{each} = {total:.4g} Gb/s", want)
    remedy = "see `ethtool -S` of both for errors, and `lspci -vv` for LnkSta 32GT/s x4 on both functions"
    if total < ONE_RAIL * max(value for value in alone if value is not None):
        remedy = (
            "one rail idle: both share what one has alone; both twins need addresses in subnets of their own "
            "(deploy.py --data only=fabric), and 32GT/s x4 each (`lspci -vv`)"
        )
    return CheckResult(rate.client, name, "failed", f"{each} = {total:.4g} Gb/s", want, remedy)


def collective(host: str, found: Collective, wanted: LinkWanted, ring: bool) -> CheckResult:
    """NCCL's all_gather over all ranks."""
    least = wanted.nccl_ring_gbytes if ring else wanted.nccl_gbytes
    name, want = "NCCL all_gather", f"≥ {least:g} GB/s of bus bandwidth"
    if found.gbytes is None:
        remedy = "see `journalctl -u sparkstack-nccl` on each host"
        return CheckResult(host, name, "failed", found.problem or "no figure", want, remedy)
    over = f" over {found.transport}" if found.transport else ""
    text = f"{found.gbytes:.4g} GB/s{over}"
    if found.transport == "Socket" and wanted.rdma == "required":
        return CheckResult(host, name, "failed", text, f"{want} over IB", COLLECTIVE_CAUSES[-1][2])
    if found.gbytes >= least:
        return CheckResult(host, name, "ok", text, want)
    # The last one is TCP: what goes over RDMA is slow for another reason.
    causes = COLLECTIVE_CAUSES[:-1] if found.transport == "IB" else COLLECTIVE_CAUSES
    remedy = next(
        (cause for low, high, cause in causes if low <= found.gbytes < high),
        "see NCCL's own words: results/link/nccl.log in the `state_dir` of each host",
    )
    return CheckResult(host, name, "failed", text, want, remedy)
