"""Who receives from whom, by cabling and number of hosts."""

from __future__ import annotations

import pytest

from sparkstack import topology
from sparkstack.distribution import FAN_OUT_MOST, Distribution, Sender, listening, senders

MANAGEMENT = {f"s{at}": f"10.0.0.{at}" for at in range(9)}


def who(kind: str, count: int, mode: Distribution) -> dict[str, list[str]]:
    names = list(MANAGEMENT)[:count]
    fabric = topology.plan(kind, names)
    return {
        name: [one.node for one in senders(fabric, names, name, mode, MANAGEMENT)] for name in names
    }


def test_a_pair() -> None:
    fabric = topology.plan("pair", ["s0", "s1"])
    (sender,) = senders(fabric, ["s0", "s1"], "s1", "auto", MANAGEMENT)
    assert sender == Sender("s0", fabric.of("s0")[0].address, True)
    assert listening(fabric, ["s0", "s1"], "s0", "auto", MANAGEMENT) == (sender.address,)
    assert listening(fabric, ["s0", "s1"], "s1", "auto", MANAGEMENT) == ()


def test_many_on_a_switch_pass_it_on() -> None:
    assert who("switch", FAN_OUT_MOST + 1, "auto") == {"s0": [], "s1": ["s0"], "s2": ["s0"], "s3": ["s0"]}
    chain = {"s0": [], "s1": ["s0"], "s2": ["s1", "s0"], "s3": ["s2", "s0"], "s4": ["s3", "s0"]}
    assert who("switch", FAN_OUT_MOST + 2, "auto") == chain
    assert who("switch", 5, "chain") == chain
    assert set(map(tuple, who("switch", 5, "fan-out").values())) == {(), ("s0",)}
    assert who("switch", 3, "chain")["s2"] == ["s1", "s0"]


def test_a_ring_goes_along_its_cables() -> None:
    assert who("ring", 3, "auto") == {"s0": [], "s1": ["s0"], "s2": ["s0"]}
    names = list(MANAGEMENT)[:5]
    fabric = topology.plan("ring", names)
    for name in names[1:]:
        first = senders(fabric, names, name, "auto", MANAGEMENT)[0]
        assert first.fabric and fabric.link(name, first.node) is not None
    # Who has no cable to the head reaches it over the management network, and only in need.
    assert senders(fabric, names, "s2", "auto", MANAGEMENT)[-1] == Sender("s0", "10.0.0.0", False)
    assert [one.node for one in senders(fabric, names, "s4", "auto", MANAGEMENT)] == ["s0"]
    assert len(listening(fabric, names, "s0", "auto", MANAGEMENT)) == 3
    assert len(listening(fabric, names, "s1", "auto", MANAGEMENT)) == 1


@pytest.mark.parametrize("kind", ["switch", "ring"])
def test_everybody_hangs_on_the_head(kind: str) -> None:
    for count in range(3, 10):
        asked = who(kind, count, "chain")
        for name in list(asked)[1:]:
            at, seen = name, set()
            while at != "s0":
                assert at not in seen
                seen.add(at)
                at = asked[at][0]
            assert asked[name][-1] == "s0"
