"""The gate: measured once, from the head; a failed check ends the run with its line, or only warns."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of, follow

from sparkstack import links
from tasks import drift, link_gate, link_nccl, report
from tasks.facts import Json, UnitState
from tasks.link_facts import LinkState
from tasks.site import Site

Sites = Callable[..., list[Site]]
RDMA = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}
LISTENS = [json.dumps([{"said": ""}] * count) for count in (1, 1, 2)]
PINGS = json.dumps([{"received": 3, "small": True, "said": ""}] * 2)
SLOW = json.dumps([{"gbps": 13.0, "problem": ""}])
FAST = json.dumps([{"gbps": 100.0, "problem": ""}])
BOTH = json.dumps([{"gbps": 95.0, "problem": ""}, {"gbps": 96.0, "problem": ""}])


def state(result: Any = None, rdma: bool = True, **changes: Any) -> dict[str, Any]:
    good = {"carrier": True, "speed_mbps": 200000, "mtu": 9000, "changes": 2}
    ports = {
        name: {**good, "hca": hca if rdma else None, "hca_active": rdma, **changes}
        for name, hca in RDMA.items()
    }
    return {"boot": "one", "ports": ports, "perftest": rdma, "result": result}


def say(site: Site, *states: dict[str, Any]) -> None:
    """What the host says of its links: as a fact, and each time that it is looked at."""
    site.host.facts = {LinkState: lambda names, result: states[0]}
    site.host.answers["look at links"] = [text_of(one) for one in states]


def text_of(said: dict[str, Any]) -> str:
    signs = {True: "1", False: "0", None: "-"}
    lines = [f"boot={said['boot']}", *(["perftest=yes"] if said["perftest"] else [])]
    for name, port in said["ports"].items():
        values = [signs[port["carrier"]], port["speed_mbps"] or -1, port["mtu"], port["changes"]]
        lines.append(" ".join(map(str, [f"port={name}", *values])))
        if port["hca"]:
            lines.append(f"link={port['hca']}/1 state ACTIVE physical_state LINK_UP netdev {name}")
    return "\n".join(lines)


@pytest.fixture
def pair(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Site]]:
    noted: list[Any] = []
    monkeypatch.setattr(report, "note_links", noted.append)

    def make(result: Any = None, **data: Any) -> list[Site]:
        noted.clear()
        both = sites(2, **data)
        for site in both:
            site.host.noted = noted
        head, worker = (site.host for site in both)
        head.answers = {"ping links": PINGS, "send over links": [FAST, FAST, BOTH]}
        worker.answers = {"ping links": PINGS, "serve links": LISTENS[:], "stop links": "[]"}
        for site in both:
            say(site, state(result))
        return both

    return make


def measured(both: list[Site]) -> tuple[bool, dict[str, Any]]:
    """Whether the run goes on, and the result that was kept on the worker."""
    head, worker = both
    ok = follow(commands_of(link_gate.measured, head.host, head), head.host)
    kept = [base64.b64decode(text) for text in worker.host.fed]
    return ok, json.loads(kept[-1]) if kept and kept[-1].startswith(b"{") else {}


def test_a_pair_is_measured_and_kept_on_both(pair: Any) -> None:
    both = pair()
    ok, result = measured(both)
    head, worker = both[0].host, both[1].host
    assert ok and result["ok"] and result["states"]["spark-2"]["boot"] == "one"
    assert head.fed[-1] == worker.fed[-1] and head.noted == [result]
    assert head.kinds() == ["look at links", "write", "ping links", "send over links", "write"]
    # Each rail alone, then both: a server that was asked for is ended each time.
    assert [kind for kind in worker.kinds() if "links" in kind] == [
        "look at links",
        "ping links",
        *["serve links", "stop links"] * 3,
    ]
    assert head.shown == []


def test_measured_once_is_measured(pair: Any) -> None:
    _, result = measured(pair())
    head, worker = pair(result)
    assert commands_of(link_gate.measured, head.host, head) == []
    assert head.host.noops == [f"links were measured at {result['when']}"]
    assert head.host.heard == worker.host.heard == [] and head.host.noted == [result]


@pytest.mark.parametrize("changed", ["key", "ok", "option", "broken"])
def test_measured_again(pair: Any, changed: str) -> None:
    _, result = measured(pair())
    result |= {"key": {"key": "other"}, "ok": {"ok": False}}.get(changed, {})
    head, _ = pair(
        [] if changed == "broken" else result, **({"measure_links": True} if changed == "option" else {})
    )
    with drift.listen("spark-1") as told:
        assert len(commands_of(link_gate.measured, head.host, head)) == 1
    assert (
        told[0].found
        == {
            "key": "measured against other wishes",
            "ok": "measured, and failed",
            "option": "measured",
            "broken": "never measured",
        }[changed]
    )


def test_a_slow_rail_ends_the_run_with_its_cause(pair: Any) -> None:
    both = pair()
    both[0].host.answers["send over links"] = [SLOW, FAST, BOTH]
    ok, result = measured(both)
    assert not ok and not result["ok"]
    (line,) = both[0].host.shown
    assert line.startswith(
        "link: spark-1: enp1s0f0np0 ib_write_bw to spark-2: found 13 Gb/s; wanted ≥ 80 Gb/s; "
    )
    assert "take its power away" in line


def test_warn_goes_on_and_says_it_in_every_run(pair: Any, caplog: pytest.LogCaptureFixture) -> None:
    both = pair(link_gate="warn")
    both[0].host.answers["send over links"] = [SLOW, FAST, BOTH]
    with caplog.at_level("WARNING", logger="pyinfra"):
        ok, result = measured(both)
        head, _ = pair(result, link_gate="warn")
        assert commands_of(link_gate.measured, head.host, head) == []
    assert ok and both[0].host.shown == []
    assert caplog.text.count("found 13 Gb/s") == 2


def test_off_and_one_spark_are_not_checked(pair: Any, sites: Sites) -> None:
    head, _ = pair(link_gate="off")
    head.host.facts = {}
    assert commands_of(link_gate.measured, head.host, head) == []
    (alone,) = sites(1)
    assert commands_of(link_gate.measured, alone.host, alone) == []
    assert (head.host.noops, alone.host.noops) == (
        ["links are not checked: link_gate is off"],
        ["links are not checked: one Spark has no links"],
    )


def test_without_rdma_tcp_is_measured(pair: Any) -> None:
    head, _ = both = pair()
    for site in both:
        say(site, state(rdma=False))
        site.host.data.link_wanted = {**site.data.link_wanted, "rdma": "optional"}
    head.host.answers["send over links"] = FAST
    ok, result = measured(both)
    assert ok and [rate["tool"] for rate in result["rates"]] == ["tcp", "tcp"]
    assert sum(line["status"] == "not checked" for line in result["lines"]) == 4 + 2


def test_no_carrier_is_waited_for_and_then_told_without_sending(pair: Any) -> None:
    head, worker = both = pair()
    say(worker, state(carrier=False, speed_mbps=None))
    ok, result = measured(both)
    assert not ok and result["pings"] == [] and result["rates"] == []
    assert [line.partition(";")[0] for line in head.host.shown] == [
        f"link: spark-2: {name} carrier: found no carrier" for name in RDMA
    ]
    assert "serve links" not in worker.host.kinds()


def test_carrier_that_comes_is_enough(pair: Any) -> None:
    _, worker = both = pair()
    say(worker, state(carrier=False), state(carrier=False), state())
    assert measured(both)[0]
    # Looked at anew each time, and not by a fact that was asked ahead.
    assert sum("boot_id" in text for text in worker.host.heard) == 3


def test_a_host_that_says_nothing_of_its_links_is_one_line(pair: Any) -> None:
    line = (
        "spark-2: link: found no answer; wanted the state of its links; see that the host is well and run "
        "again"
    )
    both = pair()
    both[1].host.facts = {LinkState: {}}  # what a fact is that could not be had
    assert not measured(both)[0] and both[0].host.shown == [line]
    for said in ((False, ""), OSError("gone")):
        both = pair()
        both[1].host.answers["look at links"] = said
        assert not measured(both)[0] and both[0].host.shown == [line]


def test_what_is_seen_is_told_to_the_doctor(pair: Any) -> None:
    head, worker = pair()
    say(worker, state(mtu=1500))
    (command,) = commands_of(link_gate.measured, head.host, head)
    assert [line.partition(";")[0] for line in command.function.lines] == [
        f"spark-2: {name} MTU: found MTU 1500" for name in RDMA
    ]


def test_a_server_that_does_not_listen(pair: Any) -> None:
    both = pair()
    both[1].host.answers["serve links"] = [
        json.dumps([{"said": "the server does not listen: no device"}] * count) for count in (1, 1, 2)
    ]
    ok, _ = measured(both)
    assert not ok and "found the server does not listen: no device" in both[0].host.shown[0]
    assert "send over links" not in both[0].host.kinds() and "stop links" in both[1].host.kinds()


@pytest.mark.parametrize("said", [(False, ""), (False, "python3: not found"), "no JSON", EOFError()])
def test_a_host_that_does_not_answer_is_one_line(pair: Any, said: Any) -> None:
    both = pair()
    both[0].host.answers["send over links"] = said
    ok, _ = measured(both)
    assert not ok and both[1].host.kinds()[-1] == "stop links"
    (line,) = both[0].host.shown
    assert line.startswith("spark-1: link: found ") and line.endswith(
        "see that the host is well and run again"
    )


def test_a_host_that_is_left_out_is_not_checked(pair: Any) -> None:
    head, worker = both = pair()
    worker.host.connected = False
    ok = follow(commands_of(link_gate.measured, head.host, head), head.host)
    assert ok and head.host.noted[0]["rates"] == []
    assert {line["status"] for line in head.host.noted[0]["lines"] if line["host"] == "spark-2"} == {
        "not checked"
    }
    assert both[1].host.heard == []


def test_the_fact_reads_what_hosts_say() -> None:
    said = [
        "boot=b1",
        "port=enp1s0f0np0 1 200000 9000 2",
        "port=enP2p1s0f0np0 - - 1500 3",
        "port=eth9 0 -1 1500 -",
        "link=rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0",
        "link=mlx5_9/1 state DOWN physical_state DISABLED",
        "perftest=yes",
        'result={"key":',
        'result="a=b"}',
    ]
    found = LinkState().process(said)
    one = {"carrier": True, "speed_mbps": 200000, "mtu": 9000, "changes": 2}
    assert found["ports"]["enp1s0f0np0"] == {**one, "hca": "rocep1s0f0", "hca_active": True}
    assert found["ports"]["enP2p1s0f0np0"] == {"carrier": None, "speed_mbps": None, "mtu": 1500, "changes": 3}
    assert found["ports"]["eth9"]["speed_mbps"] is None and found["ports"]["eth9"]["carrier"] is False
    assert (found["boot"], found["perftest"], found["result"]) == ("b1", True, {"key": "a=b"})
    assert links.HostState.model_validate(found).ports["eth9"].changes is None
    assert LinkState().process(["result=broken"])["result"] is None


# ── NCCL ──

LOG = (
    "spark-1:1:1 [0] NCCL INFO NET/IB : Using [RO]; OOB enp1s0f0np0:192.168.96.10<0>\n"
    "spark-1:1:1 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.96.10<0>\n"
    "spark-1:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
    '{"gbytes": 23.2, "problem": ""}'
)


def nccl(both: list[Site], links_result: Any = None, stored: Any = None, unit: str = "inactive") -> Any:
    head = both[0]
    kept = {"links.json": links_result, "nccl.json": stored}
    head.host.facts = {Json: lambda path: kept[path.rpartition("/")[2]], UnitState: unit}
    for site in both:
        site.host.answers = {"begin nccl": "", "end nccl": ""}
    head.host.answers |= {"state of nccl": ["active", "inactive"], "log of nccl": LOG}
    return commands_of(link_nccl.collective, head.host, head)


def test_nccl_gathers_on_every_rank(sites: Sites) -> None:
    both = sites(2, accelerator="gpu")
    assert follow(nccl(both), both[0].host)
    for site, rank in zip(both, "01", strict=True):
        begin = next(text for text in site.host.heard if "allgather.py" in text and "systemd-run" in text)
        assert f"/plans/allgather.py {rank} 2 192.168.96.10 18517 2.0" in begin
        assert "--env-file /etc/sparkstack/fabric.env" in begin and "--privileged" not in begin
        assert "end nccl" in site.host.kinds()
    result = json.loads(base64.b64decode(both[0].host.fed[-1]))
    assert result["lines"][0]["found"] == "23.2 GB/s over IB" and result["ok"]
    again = nccl(both, None, result)
    assert again == [] and both[0].host.noops == [f"NCCL's all_gather was measured at {result['when']}"]
    assert len(nccl(both, {"key": "other links"}, result)) == 1


def test_nccl_over_tcp_ends_the_run(sites: Sites) -> None:
    both = sites(2, accelerator="gpu")
    commands = nccl(both)
    both[0].host.answers["log of nccl"] = LOG.replace("via NET/IB", "via NET/Socket").replace("23.2", "1.1")
    assert not follow(commands, both[0].host)
    assert (
        "found 1.1 GB/s over Socket" in both[0].host.shown[0] and "/dev/infiniband" in both[0].host.shown[0]
    )


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"log of nccl": "docker: no such image\n"}, "found no figure, but: docker: no such image"),
        ({"state of nccl": "active", "log of nccl": ""}, "found no figure, but: nothing"),
        ({"log of nccl": '{"gbytes": null, "problem": "NCCL error"}'}, "found NCCL error"),
        ({"begin nccl": (False, "no docker")}, "spark-1: nccl: found no docker"),
    ],
)
def test_nccl_that_brings_no_figure(sites: Sites, answers: dict[str, Any], words: str) -> None:
    both = sites(2, accelerator="gpu")
    commands = nccl(both)
    both[0].host.answers |= answers
    assert not follow(commands, both[0].host)
    assert words in both[0].host.shown[0]
    assert all(site.host.kinds()[-2:].count("end nccl") or "end nccl" in site.host.kinds() for site in both)


@pytest.mark.parametrize(
    ("data", "unit", "why"),
    [
        ({"accelerator": "cpu"}, "inactive", "no GPU"),
        ({"accelerator": "gpu", "link_gate": "off"}, "inactive", "link_gate is off"),
        ({"accelerator": "gpu"}, "active", "a release serves, and has the memory"),
    ],
)
def test_nccl_is_not_checked(sites: Sites, data: dict[str, Any], unit: str, why: str) -> None:
    both = sites(2, **data)
    assert nccl(both, unit=unit) == []
    assert both[0].host.noops == [f"NCCL's all_gather is not checked: {why}"]
