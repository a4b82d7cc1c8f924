# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""The fabric: netplan only where something differs, never over a network that is somebody else's, and taken
back by the host where nobody comes back to it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of, follow, shell_lines, written

from sparkstack import netplan, topology
from sparkstack.fabric_state import FabricState, Link
from sparkstack.machine import Machine
from tasks import discover, fabric, fabric_facts, fabric_try
from tasks.fabric_facts import FabricFacts
from tasks.machine import MachineState
from tasks.site import Site

Sites = Callable[..., list[Site]]
TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
OLD = "/etc/netplan/40-cx7.yaml"
SAME_SUBNET = "network:\n  version: 2\n  ethernets:\n" + "".join(
    f"    {name}:\n      dhcp4: no\n      addresses: [192.168.7.{n}/24]\n" for n, name in enumerate(TWINS, 1)
)


def state_of(site: Site, declared: bool = True, **changes: Any) -> FabricState:
    """A host whose fabric is as declared, but for `changes`."""
    wanted = {
        "sha256": hashlib.sha256(netplan.render(site.interfaces).encode()).hexdigest(),
        "mode": "600",
        "owner": "root:root",
    }
    links = {i.name: Link((i.cidr,), 9000, f"02:00:00:00:00:0{n}") for n, i in enumerate(site.interfaces)}
    plain = FabricState(
        links={"lo": Link(("127.0.0.1/8",), 65536), **links},
        files={netplan.PATH: wanted} if declared else {},
        routes=[f"{i.subnet} dev {i.name} proto kernel scope link" for i in site.interfaces],
        reach={i.name: "jumbo" for i in site.interfaces},
    )
    return dataclasses.replace(plain, **changes)


def bare(site: Site, **changes: Any) -> FabricState:
    links = {"lo": Link(), **{i.name: Link((), 1500) for i in site.interfaces}}
    return state_of(site, False, links=links, routes=[], reach={}, **changes)


def prepare(site: Site, state: FabricState) -> None:
    site.host.facts = {FabricFacts: state}


def test_a_fresh_host_gets_addresses(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, bare(head))
    commands = commands_of(fabric.addressed, head.host, head)
    text = written(commands)[netplan.PATH]
    assert "- 192.168.96.10/24" in text and "- 192.168.97.10/24" in text
    head.host.answers = {"state of try": ["trying", (False, ""), "applied", "applied", "kept"]}
    assert follow(commands, head.host)
    assert head.host.kinds() == [
        *("note deed", "begin try", "state of try", "write", "keep network", "state of try")
    ]
    # What runs on the host has the very file, and the addresses that it waits for.
    script = head.host.fed[0]
    assert f"{TWINS[0]} 192.168.96.10/24 9000" in script
    assert netplan.PATH.rpartition("/")[2] in script and "seconds=60" in script


@pytest.mark.parametrize(
    ("link", "told"),
    [
        (Link((), 9000), ("no address", "192.168.97.10/24")),
        (Link(("192.168.97.10/24", "169.254.3.4/16"), 9000), ("192.168.97.10/24, 169.254.3.4/16", "192.168.97.10/24")),
        (Link(("192.168.97.10/24",), 1500), ("MTU 1500", "MTU 9000")),
    ],
)  # fmt: skip
def test_what_went_comes_back_without_a_new_file(sites: Sites, link: Link, told: tuple[str, str]) -> None:
    head, _ = sites(2)
    good = state_of(head)
    prepare(head, dataclasses.replace(good, links={**good.links, TWINS[1]: link}))
    with fabric.drift.listen("spark-1") as heard:
        commands = commands_of(fabric.addressed, head.host, head)
    assert [(one.thing, one.found, one.wanted) for one in heard] == [(TWINS[1], *told)]
    assert written(commands) == {}
    head.host.answers = {"state of try": ["applied", "kept"]}
    assert follow(commands, head.host)


def test_nothing_to_do(sites: Sites) -> None:
    both = sites(2)
    for site in both:
        prepare(site, state_of(site))
        assert commands_of(fabric.possible, site.host, site) == []
    head = both[0]
    assert commands_of(fabric.cabled, head.host, head) == []
    assert commands_of(fabric.addressed, head.host, head) == []
    assert head.host.noops[-2:] == ["every port hears its neighbour", "both twins have their addresses"]


def fails(site: Site, operation: Any = fabric.possible) -> list[str]:
    """The lines of an operation that does nothing but fail."""
    commands = commands_of(operation, site.host, site)
    assert shell_lines(commands) == []
    assert not follow(commands, site.host)
    assert site.host.heard == []
    return site.host.shown


def test_no_such_interface(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(
        head, FabricState(links={"eth0": Link(("10.0.0.1/24",)), "cx0": Link(), "br0": Link(kind="bridge")})
    )
    assert fails(head) == [
        "spark-1: fabric: found no interface enp1s0f0np0, enP2p1s0f0np0; wanted the ports of `fabric`; check "
        "the port number in `fabric`, or say in `fabric_ports` of this host which of cx0 they are"
    ]


def test_a_ring_meets_by_an_interface_that_is_there(sites: Sites) -> None:
    """Its name may differ between hosts: a rank that has none of that name would hang when it serves."""
    made = sites(3)
    head = dataclasses.replace(made[0], fabric=topology.plan("ring", made[0].names))
    good = state_of(head)
    prepare(head, dataclasses.replace(good, links={**good.links, "eno1": Link(("10.0.0.1/24",))}))
    head.host.data.management_interface = "eno1"
    assert commands_of(fabric.possible, head.host, head) == []
    head.host.data.management_interface = "enP7s7"
    (line,) = fails(head)
    assert line.startswith(
        "spark-1: fabric: found no interface enP7s7; wanted the management interface, by which the ranks of a "
        "ring meet; set `management_interface` for this host (with addresses: "
    )
    assert "eno1" in line
    prepare(made[0], state_of(made[0]))  # a switch does without
    assert commands_of(fabric.possible, made[0].host, made[0]) == []


def test_a_network_that_is_in_use(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, state_of(head, routes=["192.168.96.0/22 dev wlan0 proto kernel"]))
    assert [line.partition(" free")[0] for line in fails(head)] == [
        f"spark-1: found route 192.168.96.0/22 on wlan0; wanted {subnet}"
        for subnet in ("192.168.96.0/24", "192.168.97.0/24")
    ]


def test_the_way_to_the_host_is_no_port_of_the_fabric(sites: Sites) -> None:
    head, _ = sites(2)
    good = state_of(head)
    mine = Link(("10.0.0.1/24",), 1500)
    prepare(head, dataclasses.replace(good, links={**good.links, TWINS[0]: mine}))
    assert fails(head) == [
        "spark-1: fabric: found enp1s0f0np0 as the way to this host (10.0.0.1/24); wanted a port that is the "
        "fabric's alone; correct `fabric_ports` or `port`"
    ]


def test_what_an_earlier_tool_left_is_taken_out(sites: Sites) -> None:
    """Both twins in one subnet: their routes and addresses are in nobody's way, for they go."""
    head, _ = sites(2)
    links = {name: Link((f"192.168.7.{n}/24",), 1500) for n, name in enumerate(TWINS, 1)}
    routes = [f"192.168.96.0/24 dev {name}" for name in TWINS]
    other = "/etc/netplan/01-all.yaml"
    texts = {OLD: SAME_SUBNET, other: SAME_SUBNET + "    enP7s7: {dhcp4: true}\n"}
    prepare(head, state_of(head, False, links=links, routes=routes, reach={}, netplan=texts))
    assert commands_of(fabric.possible, head.host, head) == []
    commands = commands_of(fabric.addressed, head.host, head)
    files = written(commands)
    assert set(files) == {netplan.PATH, other}
    assert "enP7s7" in files[other] and TWINS[0] not in files[other]
    head.host.answers = {"state of try": ["applied", "kept"]}
    assert follow(commands, head.host)
    assert head.host.kinds() == [
        "note deed", "keep file", "begin try", "state of try", "write", "remove file", "write",
        "keep network", "state of try",
    ]  # fmt: skip
    # The try hides both: a file of the same name in /run/netplan counts instead of the one in /etc.
    assert " 40-cx7.yaml" in head.host.fed[0] and " 01-all.yaml" in head.host.fed[0]


def test_a_file_with_passwords_is_left_to_its_owner(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, state_of(head, netplan={"/etc/netplan/50-wifi.yaml": None}))
    assert fails(head) == [
        "spark-1: /etc/netplan/50-wifi.yaml: found a port of the fabric in a file with passwords; wanted the "
        "port in no file but ours; take enp1s0f0np0 and enP2p1s0f0np0 out of it by hand"
    ]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (["refused /etc/netplan/50-theirs.yaml:3:1: Error in 'ethernets'"],
         "found netplan refusing: /etc/netplan/50-theirs.yaml:3:1: Error in 'ethernets'; wanted files that it can "
         "read; mend the one that it names; ours is taken back"),
        (["trying", EOFError(), EOFError(), "back applied"],
         "found no way to the host for 60 s after netplan applied; wanted an answer; it went back to its files of "
         "before by itself; look in /etc/netplan for a change that was never applied (`netplan get`)"),
        (["without enp1s0f0np0 enP2p1s0f0np0 ", "back without"],
         "found no carrier on enP2p1s0f0np0; wanted 192.168.96.10/24 on enp1s0f0np0, 192.168.97.10/24 on "
         "enP2p1s0f0np0; the host is back as it was; check the cable and that the host at its other end is on, "
         "then run again"),
        ([EOFError()],
         "found no answer for 310 s after netplan applied; wanted it to answer, or to go back by itself; look at "
         "its console"),
    ],
    ids=["refused", "unreachable", "port down", "gone"],
)  # fmt: skip
def test_a_change_that_does_not_stay(sites: Sites, said: list[Any], line: str) -> None:
    head, _ = sites(2)
    prepare(head, bare(head))
    head.host.answers = {"state of try": said, "carriers": f"{TWINS[0]} 1\n{TWINS[1]} 0"}
    assert not follow(commands_of(fabric.addressed, head.host, head), head.host)
    assert head.host.shown == [f"spark-1: fabric: {line}"]
    assert "write" not in head.host.kinds() and "keep network" not in head.host.kinds()


def test_another_runs_change_is_waited_for(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, bare(head))
    commands = commands_of(fabric.addressed, head.host, head)
    head.host.answers = {"begin try": ["busy", "busy", "begun"], "state of try": ["applied", "kept"]}
    assert follow(commands, head.host)
    head.host.shown.clear()
    head.host.answers = {"begin try": "busy"}
    assert not follow(commands, head.host)
    assert head.host.shown == [
        "spark-1: fabric: found another run at work on the network for 310 s; wanted none; see `systemctl "
        f"status {fabric_try.UNIT}`, then run again"
    ]


def test_a_container_on_the_gpu_is_not_robbed(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, bare(head))
    head.host.facts[MachineState] = Machine(gpu_containers=("theirs",), cgroup_driver="systemd")
    (line,) = fails(head, fabric.addressed)
    assert line.startswith("spark-1: fabric: found container theirs using the GPU")


def heard(*pairs: tuple[str, str, str]) -> str:
    """A probe's answer: (interface, host, interface that was heard)."""
    ports: dict[str, Any] = {}
    for mine, host, theirs in pairs:
        ports.setdefault(mine, {"present": True, "carrier": True, "heard": []})["heard"].append(
            [host, theirs]
        )
    return json.dumps({"ports": ports})


def off(both: list[Site], **reach: str) -> None:
    for site in both:
        prepare(site, state_of(site, reach=reach or {}))
        commands_of(fabric.possible, site.host, site)


def test_a_port_that_hears_nobody_has_the_cables_looked_at(sites: Sites) -> None:
    both = sites(2)
    head = both[0]
    off(both, enp1s0f0np0="none")
    commands = commands_of(fabric.cabled, head.host, head)
    for site, other in zip(both, both[::-1], strict=True):
        site.host.answers = {"probe": heard(*((twin, other.host.name, twin) for twin in TWINS))}
    assert follow(commands, head.host)  # as declared: something else is wrong, and others will say what
    assert [site.host.kinds() for site in both] == [["probe"], ["probe"]]


def test_a_cable_that_was_moved_stops_the_run_and_both_are_drawn(sites: Sites) -> None:
    both = sites(2)
    head, worker = both
    off(both, enp1s0f0np0="none")
    commands = commands_of(fabric.cabled, head.host, head)
    head.host.answers = {"probe": heard((TWINS[0], "spark-2", "enp1s0f1np1"))}
    worker.host.answers = {"probe": heard(("enp1s0f1np1", "spark-1", TWINS[0]))}
    assert not follow(commands, head.host)
    assert head.host.shown == [
        "fabric: found spark-1:0 - spark-2:1 and spark-2:0 with no such interfaces; wanted spark-1:0 - "
        "spark-2:0; correct `fabric_ports` of that host, or its `port`",
        "  declared: pair                       found",
        "    spark-1:0 --------- spark-2:0        spark-1:0 --------- spark-2:1",
        "                                         spark-1:1 --x  no such interfaces",
        "                                         spark-2:0 --x  no such interfaces",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((False, "sh: 1: python3: not found"), "sh: 1: python3: not found"),
        (json.dumps({"error": "Operation not permitted (PermissionError)"}), "Operation not permitted (PermissionError)"),
        ("", "no answer"),
    ],
)  # fmt: skip
def test_a_probe_that_fails_is_one_line(sites: Sites, answer: Any, said: str) -> None:
    both = sites(2)
    head, worker = both
    off(both, enp1s0f0np0="none")
    commands = commands_of(fabric.cabled, head.host, head)
    head.host.answers = {"probe": heard()}
    worker.host.answers = {"probe": answer}
    assert not follow(commands, head.host)
    assert head.host.shown == [
        f"spark-2: fabric: found a probe that ends with: {said}; wanted what its ports hear; it needs python3 "
        "and root rights there"
    ]


def test_a_port_that_was_down_is_given_time_for_its_carrier(sites: Sites) -> None:
    both = sites(2)
    head, worker = both
    off(both, enp1s0f0np0="none")
    commands = commands_of(fabric.cabled, head.host, head)
    for site, other in zip(both, both[::-1], strict=True):
        late = heard(*((twin, other.host.name, twin) for twin in TWINS))
        site.host.answers = {"probe": [heard()[:-1] + f', "raised": {json.dumps(TWINS)}}}', late]}
    assert follow(commands, head.host)
    assert [" 3.0 " in worker.host.heard[0], " 12.0 " in worker.host.heard[1]] == [True, True]


def test_a_cabling_that_is_found_is_shown_as_a_declaration(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = sites(2)
    monkeypatch.setattr(discover, "_cablings", {})
    monkeypatch.setattr(discover.access, "ensure", lambda host: None)
    hosts = [site.host for site in both]
    for host, other in zip(hosts, hosts[::-1], strict=True):
        host.answers = {"probe": heard(*((twin, other.name, twin) for twin in TWINS))}
    for _ in hosts:  # found once, for all
        found = discover.cabling(hosts, {host.name: {} for host in hosts})
    assert found == both[0].fabric.cabling
    assert hosts[0].shown == [
        "fabric: found pair; to declare it: fabric = {'kind': 'pair', 'cables': ['spark-1:0 spark-2:0']}",
        "    spark-1:0 --------- spark-2:0",
    ]
    assert len(hosts[1].heard) == 1


def test_rank_environment_names_the_active_devices_of_the_fabric(sites: Sites) -> None:
    _, worker = sites(2, accelerator="gpu")
    hcas = {TWINS[1]: "roceP2p1s0f0", TWINS[0]: "rocep1s0f0", "enp1s0f1np1": "rocep1s0f1"}
    prepare(worker, state_of(worker, hcas=hcas))
    (text,) = written(commands_of(fabric.rank_environment, worker.host, worker)).values()
    assert "VLLM_HOST_IP=192.168.96.11\n" in text
    assert "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0\n" in text  # not the other cage's, which is no part of it
    assert "NCCL_SOCKET_IFNAME=enp1s0f0np0\n" in text


def test_rank_environment_stays(sites: Sites) -> None:
    (site,) = sites(1)
    text = b"VLLM_HOST_IP=127.0.0.1\n"
    path = "/etc/sparkstack/fabric.env"
    wanted = {"sha256": hashlib.sha256(text).hexdigest(), "mode": "644", "owner": "root:root"}
    prepare(site, FabricState(files={path: wanted}))
    assert commands_of(fabric.rank_environment, site.host, site) == []
    assert site.host.noops == [f"{path} is as declared"]


def test_a_host_is_asked_once_where_nothing_changes(sites: Sites) -> None:
    head, _ = sites(2)
    asked: list[Any] = []
    good = state_of(head)
    head.host.facts = {FabricFacts: lambda **arguments: asked.append(arguments) or good}
    for operation in (fabric.possible, fabric.cabled, fabric.addressed, fabric.rank_environment):
        commands_of(operation, head.host, head)
    assert len(asked) == 1
    assert asked[0]["ports"] == {TWINS[0]: "192.168.96.11", TWINS[1]: "192.168.97.11"}
    assert set(fabric_facts._known) == {"spark-1"}
