"""The lab's three Docker networks, and which NIC of a Spark is on which."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import docker
from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from lab.paths import LABEL, LabError, labels

CANDIDATES = [f"10.213.{third}.0/24" for third in range(0, 256, 8)]
"""Where the management network may live; the first that is free is taken."""

FABRIC_MTU = 9000


@dataclass(frozen=True)
class Wire:
    """A network of the lab: its Docker name, the NIC on it, and whether Docker's address stays."""

    network: str
    nic: str
    keeps_address: bool


MANAGEMENT = Wire("sparkstack-lab-management", "enP7s7", True)
RAILS = (
    Wire("sparkstack-lab-rail0", "enp1s0f0np0", False),
    Wire("sparkstack-lab-rail1", "enP2p1s0f0np0", False),
)


def ensure(client: docker.DockerClient) -> None:
    """Makes the networks that are missing."""
    present = {network.name for network in client.networks.list(filters={"label": LABEL})}
    if MANAGEMENT.network not in present:
        _make_management(client)
    for rail in RAILS:
        if rail.network not in present:
            make_rail(client, rail, labels())


def make_rail(client: docker.DockerClient, rail: Wire, marks: dict[str, str]) -> None:
    """A network for one twin of each host."""
    # Not `internal`: Docker would then drop the fabric's own addresses where bridges are filtered.
    options = {
        "com.docker.network.driver.mtu": str(FABRIC_MTU),
        "com.docker.network.bridge.enable_ip_masquerade": "false",
    }
    client.networks.create(rail.network, driver="bridge", options=options, labels=marks)


def _make_management(client: docker.DockerClient) -> None:
    try:
        said = subprocess.check_output(["ip", "-json", "-4", "route"], text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LabError(f"this machine's routes: {error}; wanted `ip -json route`; install iproute2") from None
    routes = json.loads(said or "[]")
    refused = "this machine has routes to every subnet that it may have"
    for subnet in free(route["dst"] for route in routes):
        pool = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet, gateway=str(_hosts(subnet)[0]))])
        try:
            client.networks.create(MANAGEMENT.network, driver="bridge", ipam=pool, labels=labels())
        except APIError as error:
            refused = str(error.explanation or error)
            if "overlap" not in refused and "conflict" not in refused:
                break
        else:
            return
    raise LabError(f"no management network for the lab: {refused}")


def free(routes: Iterable[str]) -> list[str]:
    """The candidates that no route (as `ip route` names its destination) leads to, best first.

    Docker looks at its own networks only: a bridge that an ended daemon left, or a network of these numbers
    that this machine is on, would get the lab's packets. A wider route is second best: the lab works,
    and hides some of that network's hosts from this machine while it is up.
    """
    taken = [ipaddress.IPv4Network(route) for route in routes if route != "default"]

    def nearest(subnet: str) -> int:
        """The longest prefix among the routes that touch this subnet; 0 for none."""
        network = ipaddress.IPv4Network(subnet)
        return max((route.prefixlen for route in taken if route.overlaps(network)), default=0)

    usable = [subnet for subnet in CANDIDATES if nearest(subnet) < ipaddress.IPv4Network(subnet).prefixlen]
    return sorted(usable, key=nearest)


def subnet(client: docker.DockerClient, wire: Wire) -> str:
    """The IPv4 subnet that Docker gave the network."""
    attributes = client.api.inspect_network(wire.network)
    return str(attributes["IPAM"]["Config"][0]["Subnet"])


def outside_address(subnet: str) -> str:
    return str(_hosts(subnet)[1])


def node_address(subnet: str, number: int) -> str:
    """The management address of `spark-<number>`: the same at every start."""
    return str(_hosts(subnet)[9 + number])


def nics(client: docker.DockerClient) -> str:
    """What /etc/sparkstack-lab/nics says on every node (see lab/image/lab-nics)."""
    return "".join(
        f"{subnet(client, wire)} {wire.nic} {'keep' if wire.keeps_address else 'bare'}\n"
        for wire in (MANAGEMENT, *RAILS)
    )


def _hosts(subnet: str) -> list[ipaddress.IPv4Address]:
    return list(ipaddress.IPv4Network(subnet).hosts())
