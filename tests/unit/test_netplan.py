from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstack import netplan
from sparkstack.topology import plan

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "netplan"


def test_the_file_of_a_pair() -> None:
    text = netplan.render(plan("pair", ["a", "b"]).of("a"))
    assert text.startswith("# managed by sparkstack")
    stanza = {"dhcp4": False, "dhcp6": False, "link-local": [], "optional": True, "mtu": 9000}
    assert yaml.safe_load(text) == {
        "network": {
            "version": 2,
            "ethernets": {
                "enp1s0f0np0": {**stanza, "addresses": ["192.168.96.10/24"]},
                "enP2p1s0f0np0": {**stanza, "addresses": ["192.168.97.10/24"]},
            },
        }
    }


FORMS: dict[str, dict[str, Any]] = {
    "pair": {"kind": "pair", "nodes": 2},
    "pair-two-cables": {"kind": "pair", "nodes": 2, "cables": 2},
    "ring-3": {"kind": "ring", "nodes": 3},
    "ring-4": {"kind": "ring", "nodes": 4},
    "switch-4": {"kind": "switch", "nodes": 4, "port": 1},
}


@pytest.mark.parametrize("name", FORMS)
def test_the_files_of_each_topology_are_the_golden_ones(name: str) -> None:
    """tests/golden/netplan: read them beside docs/fabric.md; the lab has netplan itself read each of them."""
    form = dict(FORMS[name])
    nodes = [f"spark-{number}" for number in range(1, form.pop("nodes") + 1)]
    fabric = plan(nodes=nodes, base="192.168.96.0/19", **form)
    for node in nodes:
        assert netplan.render(fabric.of(node)) == (GOLDEN / name / f"{node}.yaml").read_text(), node
    assert sorted(path.stem for path in (GOLDEN / name).iterdir()) == nodes
    assert {path.name for path in GOLDEN.iterdir()} == set(FORMS)


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
