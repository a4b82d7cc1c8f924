import yaml

from sparkstack import netplan
from sparkstack.topology import plan


def test_the_file_of_a_pair() -> None:
    text = netplan.render(plan("pair", ["a", "b"]).of("a"))
    assert text.startswith("# managed by sparkstack")
    stanza = {"dhcp4": False, "dhcp6": False, "link-local": [], "optional": True, "mtu": 9000}
    assert yaml.safe_load(text) == {
        "network": {
            "version": 2,
            "ethernets": {
                "enp1s0f0np0": {**stanza, "addresses": ["192.168.100.10/24"]},
                "enP2p1s0f0np0": {**stanza, "addresses": ["192.168.101.10/24"]},
            },
        }
    }


def test_the_same_plan_gives_the_same_bytes() -> None:
    assert netplan.render(plan("ring", list("abc")).of("b")) == netplan.render(
        plan("ring", list("abc")).of("b")
    )


def test_without_interfaces_there_is_nothing_to_set() -> None:
    assert yaml.safe_load(netplan.render(())) == {"network": {"version": 2}}


def test_addresses_are_read_back() -> None:
    interfaces = plan("pair", ["a", "b"]).of("b")
    assert netplan.addresses(netplan.render(interfaces)) == [(i.name, i.cidr) for i in interfaces]
    assert netplan.addresses(netplan.render(())) == []
    assert (
        netplan.addresses("network:\n  ethernets:\n    eth0:\n      addresses:\n        - 10.0.0.1/8\n") == []
    )
