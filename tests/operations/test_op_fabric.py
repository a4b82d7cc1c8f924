"""The fabric: netplan only where something differs, and never over a network that is somebody else's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of, follow, shell_lines, written

from sparkstack import netplan
from tasks import fabric
from tasks.facts import Addresses, FileStates, Hcas, Routes
from tasks.site import Site

Sites = Callable[..., list[Site]]
TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
THERE = {TWINS[0]: ["192.168.100.10/24"], TWINS[1]: ["192.168.101.10/24"], "lo": ["127.0.0.1/8"]}

UP = "2: enp1s0f0np0    inet 192.168.100.10/24 brd x\n3: enP2p1s0f0np0    inet 192.168.101.10/24 brd x"


def prepare(site: Site, addresses: Any = THERE, routes: Any = (), declared: bool = True) -> None:
    state = {
        "sha256": hashlib.sha256(netplan.render(site.interfaces).encode()).hexdigest(),
        "mode": "600",
        "owner": "root:root",
    }
    site.host.facts = {
        Addresses: addresses,
        Routes: list(routes),
        FileStates: {netplan.PATH: state} if declared else {},
    }


def test_a_fresh_host_gets_addresses(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, {TWINS[0]: [], TWINS[1]: []}, ["default via 10.0.0.254 dev eth0"], declared=False)
    commands = commands_of(fabric.addressed, head.host, head)
    text = written(commands)[netplan.PATH]
    assert "- 192.168.100.10/24" in text and "- 192.168.101.10/24" in text
    head.host.answers = {"addresses": ["", UP.splitlines()[0], UP]}
    assert follow(commands, head.host)
    assert head.host.kinds() == [
        *("note deed", "keep netplan", "write", "try netplan", "apply netplan", "addresses")
    ]
    assert head.host.heard.count("ip -o -4 addr show") == 3


def test_addresses_that_went_come_back_without_a_new_file(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, {**THERE, TWINS[1]: []})
    commands = commands_of(fabric.addressed, head.host, head)
    assert written(commands) == {}
    head.host.answers = {"addresses": UP}
    assert follow(commands, head.host)
    assert head.host.kinds() == ["note deed", "keep netplan", "try netplan", "apply netplan", "addresses"]


def test_nothing_to_do(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, routes=["192.168.100.0/24 dev enp1s0f0np0 proto kernel scope link src 192.168.100.10"])
    assert commands_of(fabric.addressed, head.host, head) == []
    assert head.host.noops == ["both twins have their addresses"]


def test_no_such_interface(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, {"eth0": ["10.0.0.1/24"]}, declared=False)
    commands = commands_of(fabric.addressed, head.host, head)
    assert shell_lines(commands) == []
    assert not follow(commands, head.host)
    (line,) = head.host.shown
    assert line.startswith("spark-1: fabric: found no interface enp1s0f0np0, enP2p1s0f0np0; wanted ")
    assert "check the cabling" in line


def test_a_network_that_is_in_use(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, routes=["192.168.100.0/22 dev wlan0 proto kernel scope link"], declared=False)
    commands = commands_of(fabric.addressed, head.host, head)
    assert shell_lines(commands) == []
    assert not follow(commands, head.host)
    assert [line.partition(" free")[0] for line in head.host.shown] == [
        f"spark-1: found route 192.168.100.0/22 on wlan0; wanted {subnet}"
        for subnet in ("192.168.100.0/24", "192.168.101.0/24")
    ]


def test_a_file_that_netplan_refuses_is_taken_back(sites: Sites) -> None:
    head, _ = sites(2)
    prepare(head, {TWINS[0]: [], TWINS[1]: []}, declared=False)
    head.host.answers = {"try netplan": (False, "/etc/netplan/50-theirs.yaml:3:1:\n  Error in 'ethernets'")}
    assert not follow(commands_of(fabric.addressed, head.host, head), head.host)
    assert head.host.kinds() == ["note deed", "keep netplan", "write", "try netplan", "take netplan back"]
    assert head.host.shown == [
        "spark-1: fabric: found netplan refusing: /etc/netplan/50-theirs.yaml:3:1: Error in 'ethernets'; "
        "wanted files that it can read; mend the one that it names; ours is taken back"
    ]


@pytest.mark.parametrize("said", ["", (False, ""), EOFError()])
def test_addresses_that_do_not_come(sites: Sites, said: Any) -> None:
    head, _ = sites(2)
    prepare(head, {TWINS[0]: [], TWINS[1]: []})
    head.host.answers = {"addresses": said}
    assert not follow(commands_of(fabric.addressed, head.host, head), head.host)
    (line,) = head.host.shown
    assert line.startswith("spark-1: fabric: found no address 192.168.100.10/24 on enp1s0f0np0 after 20 s; ")
    assert "networkctl status enp1s0f0np0" in line


def test_rank_environment_names_the_active_devices(sites: Sites) -> None:
    _, worker = sites(2, accelerator="gpu")
    worker.host.facts = {Hcas: ["roceP2p1s0f0", "rocep1s0f0"], FileStates: {}}
    (text,) = written(commands_of(fabric.rank_environment, worker.host, worker)).values()
    assert "VLLM_HOST_IP=192.168.100.11\n" in text
    assert "NCCL_IB_HCA==roceP2p1s0f0,rocep1s0f0\n" in text
    assert "NCCL_SOCKET_IFNAME=enp1s0f0np0\n" in text


def test_rank_environment_stays(sites: Sites) -> None:
    (site,) = sites(1)
    text = b"VLLM_HOST_IP=127.0.0.1\n"
    path = "/etc/sparkstack/fabric.env"
    state = {"sha256": hashlib.sha256(text).hexdigest(), "mode": "644", "owner": "root:root"}
    site.host.facts = {Hcas: [], FileStates: {path: state}}
    assert commands_of(fabric.rank_environment, site.host, site) == []
    assert site.host.noops == [f"{path} is as declared"]
