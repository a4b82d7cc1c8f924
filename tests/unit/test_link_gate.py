"""The verdict on links: every fault is told with its cause, and what was not measured is no "ok"."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from sparkstack import link_gate, links, topology
from sparkstack.host_facts import CheckResult
from sparkstack.links import Collective, HostState, LinkWanted, Ping, Port, Rate

ROOT = Path(__file__).resolve().parents[2]
WANTED = LinkWanted.model_validate(runpy.run_path(str(ROOT / "group_data/all.py"))["link_wanted"])
PAIR = topology.plan("pair", ["a", "b"])
ONE, TWO = "enp1s0f0np0", "enP2p1s0f0np0"


def port(name: str, **changes: Any) -> Port:
    hca = name.replace("enP", "roceP").replace("enp", "rocep").partition("np0")[0].partition("np1")[0]
    good = {"carrier": True, "speed_mbps": 200000, "mtu": 9000, "changes": 2, "hca": hca, "hca_active": True}
    return Port.model_validate({**good, **changes})


def states(plan: Any = PAIR, **ports: dict[str, Any]) -> dict[str, HostState]:
    """Healthy hosts; `a_ONE={"mtu": 1500}` changes what a says of an interface."""
    found = {}
    for node in plan.nodes:
        mine = {}
        for end in plan.of(node.name):
            label = f"{node.name}_{'ONE' if end.name == ONE else 'TWO'}"
            mine[end.name] = port(end.name, **ports.get(label, {}))
        found[node.name] = HostState(boot=f"boot-{node.name}", ports=mine, perftest=True)
    return found


def pings(plan: Any = PAIR, **bad: dict[str, Any]) -> list[Ping]:
    return [
        Ping(
            **{
                **{"source": node.name, "target": peer, "interface": end.name, "bytes": 9000},
                **{"received": 3, "small": True},
                **bad.get(f"{node.name}_{'ONE' if end.name == ONE else 'TWO'}", {}),
            }
        )
        for node in plan.nodes
        for end in plan.of(node.name)
        for peer in end.peers
    ]


def rates(
    one: Any = 105.0, two: Any = 105.0, both: Any = (92.57, 97.28), tool: str = "ib_write_bw"
) -> list[Rate]:
    def rate(rails: list[str], values: list[Any]) -> Rate:
        gbps = [value if isinstance(value, float) else None for value in values]
        problem = ["" if isinstance(value, float) else str(value) for value in values]
        return Rate(client="a", server="b", rails=rails, tool=tool, gbps=gbps, problem=problem)

    found = [rate([ONE], [one]), rate([TWO], [two])]
    return [*found, rate([ONE, TWO], list(both))] if both else found


def judged(
    at: dict[str, HostState] | None = None,
    sent: Any = None,
    measured: Any = None,
    wanted: LinkWanted = WANTED,
) -> list[CheckResult]:
    return link_gate.judge(
        PAIR,
        states() if at is None else at,
        wanted,
        pings() if sent is None else sent,
        rates() if measured is None else measured,
    )


def failed(lines: list[CheckResult]) -> list[str]:
    return [str(line) for line in lines if line.status == "failed"]


def test_a_healthy_pair_passes_every_check() -> None:
    lines = judged()
    assert {line.status for line in lines} == {"ok"} and link_gate.passed(lines)
    # carrier, speed, MTU, RDMA of four ends; four pings; two rails; both
    assert len(lines) == 16 + 4 + 3
    assert "92.57 + 97.28 = 189.8 Gb/s" in lines[-1].found or "189.9" in lines[-1].found


# What is measured, and the words that the verdict must have.
RATES: list[tuple[str, list[Rate], list[list[str]]]] = [
    (
        "degenerate start",
        rates(one=13.0),
        [["a: enp1s0f0np0 ib_write_bw to b: found 13 Gb/s; wanted ≥ 80 Gb/s", "power"]],
    ),
    ("two lanes", rates(two=55.0), [[TWO, "found 55 Gb/s", "x4", "fwupdmgr"]]),
    ("slow", rates(one=70.0), [["found 70 Gb/s", f"ethtool -S {ONE}"]]),
    (
        "one rail idle",
        rates(both=(54.0, 52.0)),
        [["both rails to b: found 54 + 52 = 106 Gb/s; wanted ≥ 160", "one rail idle"]],
    ),
    ("both a bit slow", rates(both=(75.0, 75.0)), [["75 + 75 = 150 Gb/s", "LnkSta"]]),
    (
        "one stalls when both send",
        rates(both=(97.0, "stalled")),
        [["97 + none Gb/s", f"{TWO} stalls while its twin works"]],
    ),
    (
        "hangs",
        rates(one="stalled"),
        [["ib_write_bw that connected, and nothing came through", "UDP 4791", "192.168.96.0/24"]],
    ),
    ("firewall", rates(two="filtered"), [["no TCP connection", "a firewall", "192.168.97.0/24"]]),
    ("refused", rates(one="refused"), [["a refused connection", "journalctl"]]),
    ("a tool's words", rates(one="ib_write_bw: no GID"), [["found ib_write_bw: no GID"]]),
    ("an empty answer", rates(one=""), [["found no figure"]]),
]


@pytest.mark.parametrize(("measured", "wanted"), [row[1:] for row in RATES], ids=[row[0] for row in RATES])
def test_a_rate_names_its_likely_cause(measured: list[Rate], wanted: list[list[str]]) -> None:
    lines = failed(judged(measured=measured))
    assert len(lines) == len(wanted), lines
    for line, words in zip(lines, wanted, strict=True):
        assert all(word in line for word in words), line


def test_no_carrier_explains_all_that_follows() -> None:
    at = states(b_TWO={"carrier": False, "speed_mbps": None, "hca_active": False})
    lines = judged(at, [one for one in pings() if one.interface == ONE], rates(both=None)[:1])
    (line,) = failed(lines)
    assert line.startswith(
        "b: enP2p1s0f0np0 carrier: found no carrier; wanted carrier; its twin on the same cage"
    )
    skipped = {line.name: line.found for line in lines if line.status == "not checked"}
    assert skipped[f"{TWO} ib_write_bw to b"] == f"no carrier on {TWO} of b"
    assert skipped[f"{TWO} jumbo ping to b"] == f"see b: {TWO}"
    assert skipped["both rails to b"] == "see each rail alone"


def test_an_interface_that_is_down_is_no_cable() -> None:
    (line,) = failed(judged(states(a_ONE={"carrier": None}), pings()[1:], rates()[1:2]))
    assert "a: enp1s0f0np0 carrier: found an interface that is down; wanted carrier; run deploy.py" in line


def test_no_carrier_on_both_is_the_cable() -> None:
    down = {"carrier": False}
    lines = failed(judged(states(a_ONE=down, a_TWO=down, b_ONE=down, b_TWO=down), [], []))
    assert len(lines) == 4 and all("seat the cable at both ends" in line for line in lines)


def test_a_hundred_gigabits_negotiated() -> None:
    (line,) = failed(judged(states(a_ONE={"speed_mbps": 100000})))
    assert "found 100000 Mb/s; wanted 200000 Mb/s; negotiated 100G" in line and "200G-baseCR4" in line


@pytest.mark.parametrize(("speed", "found"), [(None, "does not say"), (25000, "found 25000 Mb/s")])
def test_another_speed(speed: int | None, found: str) -> None:
    (line,) = failed(judged(states(b_ONE={"speed_mbps": speed})))
    assert found in line


def test_any_speed_is_not_checked() -> None:
    lines = judged(wanted=WANTED.model_copy(update={"speed_mbps": 0}))
    assert [line.status for line in lines if line.name.endswith("speed")] == ["not checked"] * 4


def test_an_mtu_on_one_side_only() -> None:
    sent = pings(a_ONE={"received": 0}, b_ONE={"received": 0})
    lines = judged(states(b_ONE={"mtu": 1500}), sent)
    assert failed(lines) == [
        "b: enp1s0f0np0 MTU: found MTU 1500; wanted MTU 9000; run deploy.py --data only=fabric; a switch "
        "between needs it, too"
    ]
    assert [line.found for line in lines if line.status == "not checked"] == [f"see b: {ONE}"] * 2


def test_a_switch_with_a_smaller_mtu() -> None:
    (line,) = failed(judged(sent=pings(a_ONE={"received": 0})))
    assert "no answer to whole packets, but to small ones" in line and "switch" in line


def test_a_firewall_that_drops_pings() -> None:
    (line,) = failed(judged(sent=pings(a_TWO={"received": 0, "small": False}), measured=rates()))
    assert line.startswith("a: enP2p1s0f0np0 jumbo ping to b: found no answer to any packet, with carrier")
    assert "a firewall at b may drop them" in line and "192.168.97.0/24 must pass" in line


def test_packets_that_get_lost() -> None:
    (line,) = failed(judged(sent=pings(b_ONE={"received": 2})))
    assert "found 2 of 3 answers" in line and "reseat" in line


def test_no_such_interface() -> None:
    at = states()
    at["a"] = HostState(boot="x", ports={TWO: at["a"].ports[TWO]}, perftest=True)
    (line,) = failed(judged(at, [one for one in pings() if one.interface == TWO], rates()[1:2]))
    assert "a: enp1s0f0np0 carrier: found no such interface" in line


def test_no_rdma_device_is_a_fault_where_it_is_required() -> None:
    bare = {"hca": None, "hca_active": False}
    at = states(a_ONE=bare)
    measured = [rates(one=20.0, tool="tcp")[0], rates()[1]]
    lines = judged(at, measured=measured)
    (line,) = failed(lines)
    assert "a: enp1s0f0np0 RDMA: found no RDMA device; wanted RDMA device rocep1s0f0; load mlx5_ib" in line
    # The other rail has one, and is measured with it.
    statuses = {line.name: line.status for line in lines if line.host == "a"}
    assert statuses[f"{ONE} tcp to b"] == statuses[f"{TWO} ib_write_bw to b"] == "ok"
    assert statuses[f"{ONE} ib_write_bw to b"] == statuses["both rails to b"] == "not checked"


def test_no_rdma_device_is_not_checked_where_it_is_optional() -> None:
    bare = {"hca": None, "hca_active": False}
    at = states(a_ONE=bare, a_TWO=bare, b_ONE=bare, b_TWO=bare)
    wanted = WANTED.model_copy(update={"rdma": "optional"})
    lines = judged(at, measured=rates(one=20.0, two=20.0, both=None, tool="tcp"), wanted=wanted)
    assert failed(lines) == []
    statuses = {line.name: line.status for line in lines if line.host == "a"}
    assert statuses[f"{ONE} ib_write_bw to b"] == statuses[f"{ONE} RDMA"] == "not checked"
    assert statuses[f"{ONE} tcp to b"] == "ok" and "both rails to b" not in statuses
    slow = judged(at, measured=rates(one=2.0, two=20.0, both=None, tool="tcp"), wanted=wanted)
    assert len(failed(slow)) == 1 and "wanted ≥ 10 Gb/s" in failed(slow)[0]


def test_an_rdma_port_that_is_not_active() -> None:
    (line,) = failed(judged(states(a_TWO={"hca_active": False})))
    assert "found roceP2p1s0f0 that is not active" in line


def test_no_perftest() -> None:
    at = {name: one.model_copy(update={"perftest": False}) for name, one in states().items()}
    lines = failed(judged(at, measured=[]))
    assert [line.partition(";")[0] for line in lines] == [
        f"{n}: ib_write_bw: found no ib_write_bw" for n in "ab"
    ]


def test_a_host_that_is_not_part_of_the_run() -> None:
    at = {"a": states()["a"]}
    lines = judged(at, [], [])
    assert failed(lines) == [] and "not checked" in {line.status for line in lines if line.host == "b"}
    assert not any(line.status == "ok" for line in lines if "ib_write_bw" in line.name or "ping" in line.name)


def test_nothing_measured_is_nothing_passed() -> None:
    lines = judged(sent=[], measured=[])
    assert [line.status for line in lines if "ping" in line.name or "ib_write" in line.name] == [
        "not checked"
    ] * 6


# ── NCCL ──

NCCL: list[tuple[Collective, str]] = [
    (Collective(gbytes=12.0, transport="IB"), "one rail idle"),
    (Collective(gbytes=3.0, transport="IB"), "a wrong NCCL build"),
    (Collective(gbytes=1.1, transport="IB"), "see NCCL's own words"),
    (Collective(gbytes=1.1), "TCP instead of RDMA"),
    (Collective(gbytes=23.0, transport="Socket"), "TCP instead of RDMA"),
    (Collective(gbytes=18.5, transport="IB"), "see NCCL's own words"),
    (Collective(gbytes=None, problem="NCCL error 5"), "found NCCL error 5"),
    (Collective(gbytes=None), "found no figure"),
]


@pytest.mark.parametrize(("found", "words"), NCCL)
def test_nccl_names_its_likely_cause(found: Collective, words: str) -> None:
    line = link_gate.collective("a", found, WANTED, ring=False)
    assert line.status == "failed" and words in str(line)


def test_nccl_on_a_pair_and_on_a_ring() -> None:
    assert (
        link_gate.collective("a", Collective(gbytes=23.2, transport="IB"), WANTED, ring=False).status == "ok"
    )
    assert (
        link_gate.collective("a", Collective(gbytes=11.0, transport="IB"), WANTED, ring=True).status == "ok"
    )


# ── Which cables, and when they are measured again ──


def test_every_cable_of_a_ring_once() -> None:
    ring = links.cables(topology.plan("ring", ["a", "b", "c", "d"]))
    assert [(one.client, one.server) for one in ring] == [("a", "b"), ("a", "d"), ("b", "c"), ("c", "d")]
    assert all(len(one.rails) == 2 and near.subnet == far.subnet for one in ring for near, far in one.rails)


def test_a_switch_is_measured_from_the_first_host() -> None:
    found = links.cables(topology.plan("switch", ["a", "b", "c"]))
    assert [(one.client, one.server) for one in found] == [("a", "b"), ("a", "c")]
    assert links.cables(topology.plan("single", ["a"])) == []


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"a_ONE": {"changes": 4}}, "a: enp1s0f0np0: carrier went or came"),
    ({"b_TWO": {"mtu": 1500}}, "b: enP2p1s0f0np0: MTU 9000 → 1500"),
    ({"b_TWO": {"speed_mbps": 100000}}, "b: enP2p1s0f0np0: speed 200000 → 100000"),
    ({"a_TWO": {"hca": None}}, "a: enP2p1s0f0np0: RDMA device roceP2p1s0f0 → None"),
    ({"a_TWO": {"hca_active": False}}, "a: enP2p1s0f0np0: RDMA port changed its state"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[row[1] for row in CHANGES])
def test_what_is_measured_again(change: dict[str, Any], words: str) -> None:
    before, now = states(), states(**change)
    assert links.key(PAIR, before, WANTED) != links.key(PAIR, now, WANTED)
    assert links.changes({name: one.model_dump() for name, one in before.items()}, now) == [words]


def test_a_restart_and_other_wishes_are_measured_again() -> None:
    before = states()
    now = {**before, "b": before["b"].model_copy(update={"boot": "another"})}
    assert links.key(PAIR, before, WANTED) != links.key(PAIR, now, WANTED)
    assert links.changes({name: one.model_dump() for name, one in before.items()}, now) == ["b was restarted"]
    assert links.changes({"c": {}}, {}) == ["c is not part of this run"]
    assert links.changes({}, before) == ["a was not measured", "b was not measured"]
    other = WANTED.model_copy(update={"rail_gbps": 90.0})
    assert links.key(PAIR, before, WANTED) != links.key(PAIR, before, other)
    assert links.key(PAIR, before, WANTED) == links.key(PAIR, states(), WANTED)
    elsewhere = topology.plan("pair", ["a", "b"], base="10.9.0.0/16")
    assert links.key(PAIR, before, WANTED) != links.key(elsewhere, before, WANTED)
