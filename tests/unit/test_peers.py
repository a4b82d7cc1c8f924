"""Who is pinned, who may come from where, and the one thing that then happens."""

from __future__ import annotations

import pytest

from sparkstack import peers
from sparkstack.errors import SparkstackError
from sparkstack.peers import Peer
from sparkstack.topology import plan

NODES = ["spark-1", "spark-2", "spark-3", "spark-4"]


def known(count: int, **changes: str) -> dict[str, Peer]:
    return {
        name: Peer(
            name,
            n,
            changes.get(name.replace("-", "_"), f"10.0.0.{n}"),
            f"ssh-ed25519 K{n}",
            f"ssh-ed25519 H{n}",
        )
        for n, name in enumerate(NODES[:count])
    }


def test_a_pair() -> None:
    fabric = plan("pair", NODES[:2])
    assert peers.known_hosts(fabric, "spark-1", known(2)) == "192.168.96.11,192.168.97.11 ssh-ed25519 H1\n"
    assert peers.authorized_keys(fabric, "spark-2", known(2), "/x/command") == (
        'restrict,from="192.168.96.10,192.168.97.10",command="/x/command" '
        "ssh-ed25519 K0 sparkstack-rank-0\n"
    )
    text = peers.config(fabric, "spark-2", known(2), "/etc/sparkstack/ssh")
    assert (
        "Host rank-0\n  HostName 192.168.96.10\n  Port 22\n"
        "Host rank-0-rail-2\n  HostName 192.168.97.10\n  Port 22\nHost *\n" in text
    )
    assert "StrictHostKeyChecking yes" in text and "BatchMode yes" in text and "spark-2" not in text


def test_on_a_ring_those_without_a_cable_meet_on_the_management_network() -> None:
    fabric = plan("ring", NODES)
    lines = peers.authorized_keys(fabric, "spark-1", known(4), "/x").splitlines()
    assert ['from="10.0.0.2"' in line for line in lines] == [False, True, False]
    assert 'from="192.168.96.11,192.168.97.11"' in lines[0]
    assert 'from="192.168.102.13,192.168.103.13"' in lines[2]
    with pytest.raises(SparkstackError) as caught:
        peers.known_hosts(fabric, "spark-1", known(4, spark_3="spark-3.local"))
    assert caught.value.lines == [
        "spark-3: found management address 'spark-3.local'; wanted an IP address, for no cable joins it to "
        "spark-1; set `address` in the inventory"
    ]
    peers.known_hosts(fabric, "spark-2", known(4, spark_3="spark-3.local"))  # a cable joins these two


def test_another_port_of_sshd() -> None:
    two = known(2)
    two["spark-1"] = Peer("spark-1", 0, "10.0.0.1", "k", "ssh-ed25519 H0", 2222)
    text = peers.known_hosts(plan("pair", NODES[:2]), "spark-2", two)
    assert text == "[192.168.96.10]:2222,[192.168.97.10]:2222 ssh-ed25519 H0\n"
