"""The link gate between containers: no RDMA, so pings and TCP; and each fault that a network can have there.

Runs after test_end_to_end.py or by itself; the tests build on one another and leave the links as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.conftest import Run, Spark, newest_report, pyinfra

pytestmark = pytest.mark.lab

ONE, TWO = "enp1s0f0np0", "enP2p1s0f0np0"
GATE = "link | links are as fast as wanted"
WISHES = "link_wanted="


def gate(*words: str) -> tuple[Run, dict[str, dict[str, str]]]:
    """A run of the stage; the lines of its report as `{status: {"host: check": found}}`."""
    run = pyinfra("-y", "--data", "only=link", *words)
    links: dict[str, Any] = json.loads(newest_report().read_text())["links"] or {"lines": []}
    lines: dict[str, dict[str, str]] = {"ok": {}, "failed": {}, "not checked": {}}
    for line in links["lines"]:
        lines[line["status"]][f"{line['host']}: {line['name']}"] = line["found"]
    return run, lines


@contextmanager
def fault(spark: Spark, do: str, undo: str) -> Iterator[None]:
    spark.run(do)
    try:
        yield
    finally:
        spark.run(undo)


def test_links_are_measured_and_what_is_not_is_said(sparks: list[Spark]) -> None:
    assert pyinfra("-y", "--data", "only=fabric").code == 0
    run, lines = gate("--data", "measure_links=yes")
    assert run.code == 0, run.output
    assert lines["failed"] == {}
    assert f"spark-1: {ONE} tcp to spark-2" in lines["ok"] and f"spark-1: {TWO} tcp to spark-2" in lines["ok"]
    assert f"spark-2: {TWO} jumbo ping to spark-1" in lines["ok"]
    assert f"spark-1: {ONE} ib_write_bw to spark-2" in lines["not checked"]
    again, _ = gate()
    assert again.code == 0 and again.changed() == {}, again.output


def test_an_interface_that_is_down(sparks: list[Spark]) -> None:
    with fault(sparks[1], f"ip link set dev {TWO} down", f"ip link set dev {TWO} up; networkctl reload"):
        run, lines = gate()
    assert run.code == 1 and lines["failed"] == {f"spark-2: {TWO} carrier": "an interface that is down"}
    assert f"link: spark-2: {TWO} carrier: found an interface that is down; wanted carrier; run" in run.output


def test_an_mtu_on_one_side(sparks: list[Spark]) -> None:
    with fault(sparks[0], f"ip link set dev {ONE} mtu 1500", f"ip link set dev {ONE} mtu 9000"):
        run, lines = gate()
    assert run.code == 1 and lines["failed"] == {f"spark-1: {ONE} MTU": "MTU 1500"}
    assert lines["not checked"][f"spark-2: {ONE} jumbo ping to spark-1"] == f"see spark-1: {ONE}"


def test_a_firewall_for_tcp_and_one_for_pings(sparks: list[Spark]) -> None:
    rules = [f"-i {ONE} -p tcp --dport 18515 -j DROP", f"-i {TWO} -p icmp -j DROP"]
    do = " && ".join(f"iptables -I INPUT {rule}" for rule in rules)
    with fault(sparks[1], do, do.replace("-I INPUT", "-D INPUT")):
        run, lines = gate()
    assert run.code == 1
    assert lines["failed"][f"spark-1: {ONE} tcp to spark-2"] == "no TCP connection, and no refusal"
    assert "no answer to any packet" in lines["failed"][f"spark-1: {TWO} jumbo ping to spark-2"]
    assert "no ping from" in lines["not checked"][f"spark-1: {TWO} tcp to spark-2"]
    assert run.output.count("a firewall") >= 2


def test_speed_below_and_no_rdma_where_it_is_wanted(sparks: list[Spark]) -> None:
    wanted = {
        **{"speed_mbps": 200000, "rail_gbps": 80.0, "both_gbps": 160.0, "tcp_gbps": 10000.0},
        **{"rdma": "required", "nccl_gbytes": 1.0, "nccl_ring_gbytes": 1.0, "nccl_size_gib": 1.0},
        **{"seconds": 1, "port": 18515},
    }
    run, lines = gate("--data", WISHES + json.dumps(wanted))
    assert run.code == 1
    assert lines["failed"][f"spark-1: {ONE} speed"] == "10000 Mb/s"
    assert lines["failed"][f"spark-2: {TWO} RDMA"] == "no RDMA device"
    assert lines["failed"][f"spark-1: {ONE} tcp to spark-2"].endswith("Gb/s")
    warned, _ = gate("--data", WISHES + json.dumps(wanted), "--data", "link_gate=warn")
    assert warned.code == 0 and "link_gate is warn: the run goes on" in warned.output
    off, lines = gate("--data", "link_gate=off")
    assert off.code == 0 and off.changed() == {} and lines["ok"] == {}


def test_the_links_are_as_they_were(sparks: list[Spark]) -> None:
    run, lines = gate()
    assert run.code == 0 and lines["failed"] == {}, run.output
    again, _ = gate()
    assert again.changed() == {}
    for spark in sparks:
        assert spark.run("systemctl list-units --no-legend 'sparkstack-link-*'") == ""
