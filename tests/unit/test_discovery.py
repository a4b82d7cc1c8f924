# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""What the ports heard becomes a cabling, or a drawing of why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import discovery
from sparkstack.cabling import Cabling, End, Link, declared
from sparkstack.discovery import Port
from sparkstack.fabric import FabricPlan
from sparkstack.topology import plan

NODES = ["spark-1", "spark-2", "spark-3", "spark-4"]
Reports = dict[str, dict[str, Port]]


def reports(fabric: FabricPlan, links: tuple[Link, ...], crossed: bool = False) -> Reports:
    """What each port hears when `links` are plugged; `crossed`: each twin hears both twins of the other side."""
    found: Reports = {}
    for node, ports in fabric.names.items():
        found[node] = {}
        for port, halves in ports.items():
            end = End(node, port)
            others = [one for link in links if end in link for one in link if one != end]
            for half, (netdev, _) in enumerate(halves):
                heard = {
                    (one.node, name)
                    for one in others
                    for other, (name, _) in enumerate(fabric.names[one.node][one.port])
                    if crossed or other == half
                }
                found[node][netdev] = Port(True, bool(others), 200000 if others else None, frozenset(heard))
    return found


FORMS = [
    declared("pair", NODES[:2]), declared("pair", NODES[:2], 1), declared("pair", NODES[:2], cables=2),
    declared("pair", NODES[:2], {"spark-1": 0, "spark-2": 1}),
    declared("ring", NODES[:3]), declared("ring", NODES), declared("ring", NODES[:3], cables=["spark-1:1 spark-2:1", "spark-2:0 spark-3:1", "spark-3:0 spark-1:0"]),
    declared("switch", NODES[:3]), declared("switch", NODES, 1), declared("switch", NODES, {"spark-1": 1, "spark-2": 0, "spark-3": 0, "spark-4": 0}),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind} {form.links[0][0]}")
@pytest.mark.parametrize("crossed", [False, True])
def test_what_is_plugged_is_what_is_found(form: Cabling, crossed: bool) -> None:
    nodes = [node for node in NODES if any(end.node == node for link in form.links for end in link)]
    fabric = plan(form.kind, nodes, cables=form.declaration()["cables"])  # type: ignore[arg-type]
    heard = reports(fabric, form.links, crossed)
    there = discovery.found(fabric.names, heard)
    made = discovery.proposed(fabric.names, there)
    assert made.same_as(form) and made.kind == form.kind
    discovery.compare(fabric, heard)
    # To declare what was found changes no address: the usual forms keep their order.
    if form in (declared("ring", nodes) if len(nodes) > 2 else form, *FORMS[:3]):
        assert made == form


@given(st.permutations(NODES), st.integers(3, 4))
def test_a_ring_is_found_whatever_the_order_of_the_inventory(order: list[str], count: int) -> None:
    cabling = declared("ring", order[:count])
    nodes = sorted(order[:count])
    fabric = plan("ring", nodes)
    there = discovery.found(fabric.names, reports(fabric, cabling.links))
    assert discovery.proposed(fabric.names, there).same_as(cabling)


def test_one_spark_alone() -> None:
    fabric = plan("single", NODES[:1])
    assert discovery.proposed(fabric.names, discovery.found(fabric.names, {})) == Cabling("single")


def refused(fabric: FabricPlan, heard: Reports) -> list[str]:
    with pytest.raises(discovery.CablingError) as caught:
        discovery.compare(fabric, heard)
    return str(caught.value).split("\n")


def test_a_moved_cable_is_drawn_beside_the_declaration() -> None:
    fabric = plan("pair", NODES[:2])
    moved = ((End("spark-1", 0), End("spark-2", 1)),)
    assert refused(fabric, reports(fabric, moved)) == [
        "fabric: found spark-1:0 - spark-2:1 and spark-2:0 with no carrier; wanted spark-1:0 - spark-2:0; move the cable, or declare what is there",
        "  declared: pair                       found",
        "    spark-1:0 --------- spark-2:0        spark-1:0 --------- spark-2:1",
        "                                         spark-1:1 --x  no carrier",
        "                                         spark-2:0 --x  no carrier",
    ]


def test_two_cables_of_a_ring_that_were_swapped() -> None:
    """Every port has a carrier and a neighbour, only not its own."""
    fabric = plan("ring", NODES)
    one, two, three, four = fabric.cabling.links
    swapped = ((one[0], two[1]), (two[0], one[1]), three, four)
    lines = refused(fabric, reports(fabric, swapped))
    assert lines[:2] == [
        "fabric: found spark-1:0 - spark-3:1 and spark-2:0 - spark-2:1; wanted spark-1:0 - spark-2:1; move the cable, or declare what is there",
        "fabric: found spark-1:0 - spark-3:1 and spark-2:0 - spark-2:1; wanted spark-2:0 - spark-3:1; move the cable, or declare what is there",
    ]


def test_a_switch_in_place_of_a_ring() -> None:
    fabric = plan("ring", NODES[:3])
    lines = refused(fabric, reports(fabric, declared("switch", NODES[:3]).links))
    assert "    spark-2:0 --------- spark-3:1        spark-2:0 --+-- switch" in lines


def test_a_cable_that_nobody_declared() -> None:
    fabric = plan("pair", NODES[:2])
    first = refused(fabric, reports(fabric, declared("pair", NODES[:2], cables=2).links))[0]
    assert first == "fabric: found a cable spark-1:1 - spark-2:1; wanted none there; declare it, or take it out"


def test_a_cable_that_is_not_plugged() -> None:
    fabric = plan("pair", NODES[:2])
    assert refused(fabric, reports(fabric, ()))[0] == (
        "fabric: found spark-1:0 with no carrier and spark-2:0 with no carrier; wanted spark-1:0 - spark-2:0; check the cable, and that both ends are up"
    )


def test_a_twin_that_hears_nothing() -> None:
    fabric = plan("pair", NODES[:2])
    heard = reports(fabric, fabric.cabling.links)
    heard["spark-2"]["enP2p1s0f0np0"] = Port(True, True, 200000, frozenset())
    assert refused(fabric, heard) == [
        "spark-2: enP2p1s0f0np0: found carrier, and no frame of spark-1; wanted frames of them; its twin heard them; see `ethtool enP2p1s0f0np0`, then restart the host"
    ]


def test_half_a_ring_is_no_known_kind() -> None:
    fabric = plan("ring", NODES[:3])
    there = discovery.found(fabric.names, reports(fabric, fabric.cabling.links[:2]))
    with pytest.raises(discovery.CablingError) as caught:
        discovery.proposed(fabric.names, there)
    assert str(caught.value).split("\n") == [
        "fabric: found cables of no known kind; wanted a pair, a ring or a switch of all hosts; plug in what is missing below",
        "  found",
        "    spark-1:0 --------- spark-2:1",
        "    spark-2:0 --------- spark-3:1",
        "    spark-1:1 --x  no carrier",
        "    spark-3:0 --x  no carrier",
    ]


def test_both_cages_on_one_switch_are_no_fabric() -> None:
    fabric = plan("pair", NODES[:2])
    link = tuple(End(*one) for one in (("spark-1", 0), ("spark-2", 0), ("spark-1", 1)))
    there = discovery.found(fabric.names, reports(fabric, [link]))
    with pytest.raises(discovery.CablingError) as caught:
        discovery.proposed(fabric.names, there)
    assert str(caught.value).split("\n")[:2] == [
        "fabric: found both ports of 'spark-1' on one switch; wanted one port of each node; take a cable of 'spark-1' out: a Spark is no faster with two",
        "  found",
    ]


def test_a_report_is_read_and_strangers_in_it_do_not_count() -> None:
    ports = discovery.ports_of_report(
        {"ports": {"enp1s0f0np0": {"present": True, "carrier": True, "speed": 200000, "heard": [["x", "y"]]}}}
    )
    assert ports["enp1s0f0np0"] == Port(True, True, 200000, frozenset({("x", "y")}))
    fabric = plan("pair", NODES[:2])
    assert discovery.found(fabric.names, {"spark-1": ports}).links == ()
