"""Would the planned fabric take an address range that a host already uses for something else?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, ip_network

from sparkstack.errors import Problem
from sparkstack.fabric import FabricPlan

_TYPES = {
    "unicast", "local", "broadcast", "multicast", "anycast", "unreachable", "prohibit", "blackhole",
}  # fmt: skip


def collisions(plan: FabricPlan, routes_by_host: Mapping[str, Sequence[str]]) -> list[Problem]:
    """One problem for each route that overlaps a planned network and is not the planned one itself.

    `routes_by_host` holds lines of `ip -4 route` (of any table), or bare networks. A route is ours when it is
    the planned network on the planned interface, as it is from the second run on. Default routes do not
    count: anything is inside of them, and a /24 wins against them.
    """
    problems = []
    subnets = {IPv4Network(i.subnet) for interfaces in plan.interfaces.values() for i in interfaces}
    for host, routes in routes_by_host.items():
        ours = {(IPv4Network(i.subnet), i.name) for i in plan.interfaces.get(host, ())}
        for route in routes:
            words = route.split()
            if words and words[0] in _TYPES:
                words = words[1:]
            # "throw" leads nowhere: the next table is asked.
            if not words or words[0] in ("default", "nexthop", "throw"):
                continue
            try:
                network = ip_network(words[0], strict=False)
            except ValueError:
                wanted = "lines of `ip -4 route`"
                problems.append(Problem(host, f"route {route!r}", wanted, "check its routing table by hand"))
                continue
            # A VPN may split the default route into two halves of /1.
            if not isinstance(network, IPv4Network) or network.prefixlen <= 1:
                continue
            device = words[words.index("dev") + 1] if "dev" in words[:-1] else ""
            if any(network.subnet_of(subnet) and device == name for subnet, name in ours):
                continue
            problems += [
                _problem(host, network, device, subnet)
                for subnet in sorted(subnets)
                if network.overlaps(subnet)
            ]
    return problems


def _problem(host: str, network: IPv4Network, device: str, subnet: IPv4Network) -> Problem:
    found = f"route {network}" + (f" on {device}" if device else "")
    return Problem(
        host, found, f"{subnet} free for the fabric", "declare another fabric base, or remove the route"
    )
