# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""What earlier tools left on the fabric's ports is taken out; what they say of others stays."""

from __future__ import annotations

import pytest
import yaml

from sparkstack import migration
from sparkstack.fabric_state import FabricState, Link, Profile

OURS = "/etc/netplan/40-sparkstack.yaml"
PORTS = ("enp1s0f0np0", "enP2p1s0f0np0")
LINKS = {
    **{name: Link(mac=f"aa:bb:cc:00:00:0{n}") for n, name in enumerate(PORTS)},
    "enP7s7": Link(mac="aa:bb:cc:00:00:07"),
    "docker0": Link(kind="bridge"),
}
# As NVIDIA's own script leaves it: both twins in one subnet.
SAME_SUBNET = """
network:
  version: 2
  ethernets:
    enp1s0f0np0:
      dhcp4: no
      addresses: [192.168.100.10/24]
    enP2p1s0f0np0:
      dhcp4: no
      addresses: [192.168.100.11/24]
"""
LINK_LOCAL = """
network:
  version: 2
  ethernets:
    enp1s0f0np0: {link-local: [ipv4]}
    enP2p1s0f0np0: {link-local: [ipv4]}
"""
BOND = """
network:
  version: 2
  ethernets: {enp1s0f0np0: {}, enP2p1s0f0np0: {}}
  bonds:
    bond0: {interfaces: [enp1s0f0np0, enP2p1s0f0np0], addresses: [172.16.0.1/30], parameters: {mode: balance-xor}}
"""
MIXED = """
# the management port, and the fabric
network:
  version: 2
  renderer: NetworkManager
  ethernets:
    enP7s7:
      match: {macaddress: 10:20:30:40:50:59}
      dhcp4: on
      mtu: 1500
    enp1s0f0np0: {dhcp4: yes}
"""
MINE = "network: {version: 2, ethernets: {nm: {match: {macaddress: AA:BB:CC:00:00:01}, dhcp4: true}}}"


def plan(texts: dict[str, str | None], **more: object) -> tuple[migration.Migration, list[str]]:
    state = FabricState(links=LINKS, netplan=texts)
    for name, value in more.items():
        object.__setattr__(state, name, value)
    found, problems = migration.plan("spark-1", PORTS, state, OURS)
    return found, list(map(str, problems))


@pytest.mark.parametrize("text", [SAME_SUBNET, LINK_LOCAL, MINE], ids=["same subnet", "link-local", "by MAC"])
def test_a_file_of_nothing_else_goes(text: str) -> None:
    assert plan({"/etc/netplan/40-cx7.yaml": text}) == (
        migration.Migration({"/etc/netplan/40-cx7.yaml": None}),
        [],
    )


def test_a_bond_of_the_twins_goes_with_its_file() -> None:
    assert plan({"/etc/netplan/a.yaml": BOND}) == (
        migration.Migration({"/etc/netplan/a.yaml": None}, (), ("bond0",)),
        [],
    )


def test_what_a_file_says_of_other_interfaces_stays_to_the_letter() -> None:
    found, problems = plan({"/etc/netplan/a.yaml": MIXED})
    assert problems == []
    text = found.files["/etc/netplan/a.yaml"]
    assert text is not None and text.startswith("# sparkstack took its fabric ports out")
    kept = yaml.load(text, yaml.BaseLoader)["network"]
    wanted = yaml.load(MIXED, yaml.BaseLoader)["network"]
    del wanted["ethernets"]["enp1s0f0np0"]
    assert kept == wanted  # a MAC address of digits is no number, "on" is no boolean
    assert kept["ethernets"]["enP7s7"]["match"]["macaddress"] == "10:20:30:40:50:59"


def test_our_own_file_and_those_of_others_are_left_alone() -> None:
    other = "network: {version: 2, ethernets: {enP7s7: {dhcp4: true}, all: {match: {name: 'enP7*'}}}}"
    broken = "network: [\n  enp1s0f0np0: {"
    found, problems = plan({OURS: SAME_SUBNET, "/etc/netplan/b.yaml": other, "/etc/netplan/c.yaml": broken})
    assert not found and problems == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("network: {ethernets: {all: {match: {name: 'en*'}, dhcp4: true}}}",
         "found 'all' for enP2p1s0f0np0, enP7s7, enp1s0f0np0; wanted the fabric's ports in no file but ours; narrow its `match` so that it leaves out enp1s0f0np0 and enP2p1s0f0np0"),
        ("network: {ethernets: {enp1s0f0np0: {}}, bridges: {br0: {interfaces: [enp1s0f0np0, enP7s7]}}}",
         "found br0 of enp1s0f0np0, enP7s7; wanted the fabric's ports in no bond or bridge; take them out of it by hand"),
        ("network: {ethernets: {enp1s0f0np0: {}}, vlans: {v5: {id: 5, link: enp1s0f0np0}}}",
         "found VLAN v5 on enp1s0f0np0; wanted nothing on top of the fabric's ports; remove it, then run again"),
        (None,
         "found a port of the fabric in a file with passwords; wanted the port in no file but ours; take enp1s0f0np0 and enP2p1s0f0np0 out of it by hand"),
    ],
    ids=["wide match", "mixed bridge", "vlan", "passwords"],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_a_problem(text: str | None, line: str) -> None:
    assert plan({"/etc/netplan/a.yaml": text})[1][0] == f"spark-1: /etc/netplan/a.yaml: {line}"


def test_a_bond_that_nobodys_file_makes() -> None:
    links = {**LINKS, **{name: Link(master="bond0") for name in PORTS}, "bond0": Link(kind="bond")}
    assert plan({}, links=links) == (migration.Migration({}, (), ("bond0",)), [])
    links["enP7s7"] = Link(master="bond0")
    assert plan({}, links=links)[1] == [
        "spark-1: bond0: found a bond of enP2p1s0f0np0, enP7s7, enp1s0f0np0; wanted the fabric's ports in no bond or bridge; take them out of it by hand"
    ]


def test_profiles_of_network_manager() -> None:
    folder = "/etc/NetworkManager/system-connections"
    profiles = [
        Profile(f"{folder}/bond.nmconnection", "bond0", "u-1", "bond", "bond0"),
        Profile(f"{folder}/a port.nmconnection", "p1", "u-2", "ethernet", "enp1s0f0np0", "u-1"),
        Profile(f"{folder}/other twin.nmconnection", "p2", "u-3", "ethernet", "", "bond0", "AA:BB:CC:00:00:01"),
        Profile(f"{folder}/wifi.nmconnection", "home", "u-4", "wifi", "wlP9s9"),
        Profile(f"{folder}/any.nmconnection", "Wired", "u-5", "ethernet"),
    ]
    found, problems = plan({}, profiles=profiles)
    assert problems == []
    assert [path.rpartition("/")[2] for path in found.profiles] == [
        "a port.nmconnection", "bond.nmconnection", "other twin.nmconnection"
    ]  # fmt: skip
    profiles.append(Profile(f"{folder}/strange", "p3", "u-6", "ethernet", "enP7s7", "bond0"))
    assert f"{folder}/bond.nmconnection" not in plan({}, profiles=profiles)[0].profiles
