"""The link gate on kernels of their own: RDMA that works, a cable that is pulled, a wrong MTU, a firewall,
and what restarts leave. The tests build on one another."""

from __future__ import annotations

import pytest

from tests.lab_vm.conftest import Machine, deploy, lab

pytestmark = pytest.mark.lab

ONE, TWO = "enp1s0f0np0", "enP2p1s0f0np0"
GATE = "link | links are as fast as wanted"


def test_the_gate_measures_rdma_on_both_rails(machines: list[Machine]) -> None:
    run = deploy("--data", "only=fabric,link")
    assert run.code == 0, run.output
    assert run.links("failed") == run.links("not checked") == {}
    rates = run.report["links"]["rates"]
    assert [(rate["tool"], rate["rails"]) for rate in rates] == [
        ("ib_write_bw", [ONE]),
        ("ib_write_bw", [TWO]),
        ("ib_write_bw", [ONE, TWO]),
    ]
    assert all(value > 0 for rate in rates for value in rate["gbps"])
    # The kernels' own counters say that it was RDMA.
    for machine in machines:
        sent = machine.run("cat /sys/class/infiniband/roce*/ports/1/hw_counters/sent_pkts").split()
        assert len(sent) == 2 and all(int(count) > 100 for count in sent), sent
        kept = machine.run("cat /var/lib/sparkstack/results/link/links.json")
        assert run.report["links"]["key"] in kept
        assert machine.run("systemctl list-units --no-legend 'sparkstack-link-*'") == ""


def test_a_second_run_changes_nothing(machines: list[Machine]) -> None:
    run = deploy("--data", "only=fabric,link")
    assert run.code == 0 and run.changed() == [], run.output


def test_a_rail_without_cable(machines: list[Machine]) -> None:
    lab("cable", "spark-2", TWO, "out")
    try:
        run = deploy("--data", "only=link")
    finally:
        lab("cable", "spark-2", TWO, "in")
    assert run.code == 1
    assert run.links("failed") == {f"spark-2: {TWO} carrier": "no carrier"}
    assert f"link: spark-2: {TWO} carrier: found no carrier; wanted carrier; its twin" in run.output
    # The other rail is measured all the same, and what could not be is not "ok".
    assert f"spark-1: {ONE} ib_write_bw to spark-2" in run.links("ok")
    assert run.links("not checked")["spark-1: both rails to spark-2"] == "see each rail alone"


def test_no_rdma_device_and_a_hundred_gigabits(machines: list[Machine]) -> None:
    one, two = machines
    one.run(f"ethtool -s {ONE} speed 100000 duplex full")
    two.run("rdma link delete roceP2p1s0f0")
    try:
        run = deploy("--data", "only=link")
    finally:
        two.run("/usr/local/sbin/lab-rdma")
        one.run(f"ethtool -s {ONE} speed 200000 duplex full")
    assert run.code == 1
    assert run.links("failed") == {
        f"spark-1: {ONE} speed": "100000 Mb/s",
        f"spark-2: {TWO} RDMA": "no RDMA device",
    }
    assert "negotiated 100G" in run.output
    # The rail without one is measured by TCP, the other one by RDMA.
    assert f"spark-1: {TWO} tcp to spark-2" in run.links("ok")
    assert f"spark-1: {ONE} ib_write_bw to spark-2" in run.links("ok")


def test_an_mtu_on_one_side_and_a_firewall_on_the_other_rail(machines: list[Machine]) -> None:
    _, two = machines
    two.run(f"ip link set dev {ONE} mtu 1500")
    two.run("nft add table inet lab")
    two.run("nft add chain inet lab input '{ type filter hook input priority 0; }'")
    two.run(f"nft add rule inet lab input iifname {TWO} udp dport 4791 drop")
    try:
        run = deploy("--data", "only=link")
    finally:
        two.run(f"nft delete table inet lab; ip link set dev {ONE} mtu 9000")
    assert run.code == 1
    failed = run.links("failed")
    assert failed[f"spark-2: {ONE} MTU"] == "MTU 1500"
    assert "through" in failed[f"spark-1: {TWO} ib_write_bw to spark-2"]
    assert run.links("not checked")[f"spark-2: {ONE} jumbo ping to spark-1"] == f"see spark-2: {ONE}"
    assert "deploy.py --data only=fabric" in run.output and "let UDP 4791 (RoCE)" in run.output


def test_after_restarts_all_is_as_before(machines: list[Machine]) -> None:
    before = [machine.fabric() for machine in machines]
    boots = [machine.boot() for machine in machines]
    one, two = machines
    one.run("systemctl reboot", check=False)
    lab("restart", "--vm", two.name)  # a power cut
    for machine, boot in zip(machines, boots, strict=True):
        machine.wait_for_boot_after(boot)
    run = deploy("--data", "only=fabric,link")
    assert run.code == 0, run.output
    # Nothing had to be set up again, and the links of another boot are measured again.
    assert run.changed() == [GATE]
    assert [machine.fabric() for machine in machines] == before
    assert deploy("--data", "only=fabric,link").changed() == []
