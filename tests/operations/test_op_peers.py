"""SSH between the hosts: each makes its key, all are pinned, one command is allowed, and it is tried."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import commands_of, follow, written

from sparkstack.fabric_state import FabricState
from sparkstack.peers import USER
from tasks import fabric_facts, peer_files, peers
from tasks.fabric_facts import FabricFacts
from tasks.site import Site

Sites = Callable[..., list[Site]]


@pytest.fixture
def pair(sites: Sites) -> list[Site]:
    """Two hosts with keys that know nobody yet."""
    both = sites(2)
    for n, site in enumerate(both):
        state = FabricState(key=f"ssh-ed25519 K{n}", host_key=f"ssh-ed25519 H{n}")
        site.host.facts = {FabricFacts: state}
        fabric_facts._known[site.host.name] = state
    return both


def change(site: Site, **changes: Any) -> None:
    fabric_facts._known[site.host.name] = dataclasses.replace(fabric_facts._known[site.host.name], **changes)


def test_a_key_is_made_where_it_is_used_and_known_at_once(pair: list[Site]) -> None:
    head, worker = pair
    assert commands_of(peers.key_made, worker.host, worker) == []
    change(head, key="")
    head.host.answers = {"make key": "ssh-ed25519 NEW"}
    assert follow(commands_of(peers.key_made, head.host, head), head.host)
    assert fabric_facts._known["spark-1"].key == "ssh-ed25519 NEW"
    files = written(commands_of(peers.peers_known, worker.host, worker))
    assert "ssh-ed25519 NEW sparkstack-rank-0" in files["/etc/sparkstack/peer/.ssh/authorized_keys"]
    head.host.answers = {"make key": (False, "ssh-keygen: not found")}
    change(head, key="")
    assert not follow(commands_of(peers.key_made, head.host, head), head.host)
    assert head.host.shown == [
        "spark-1: peers: found ssh-keygen failing: ssh-keygen: not found; wanted a key"
    ]


def test_the_others_are_pinned_and_may_come_and_then_they_are_asked(pair: list[Site]) -> None:
    head, worker = pair
    commands = commands_of(peers.peers_known, head.host, head)
    files = written(commands)
    assert list(files) == peer_files.paths(head)  # who may come is the last one
    assert files["/etc/sparkstack/ssh/known_hosts"] == "192.168.96.11,192.168.97.11 ssh-ed25519 H1\n"
    assert follow(commands, head.host)
    assert head.host.kinds() == ["add user", "write", "try sudoers", "write"]
    # One host's files were written: both ask.
    asked = commands_of(peers.peers_answer, worker.host, worker)
    worker.host.answers = {"ask peer": "ActiveState=inactive"}
    assert follow(asked, worker.host)
    worker.host.answers = {
        "ask peer": (False, "sparkstack-peer@192.168.96.10: Permission denied (publickey).")
    }
    assert not follow(asked, worker.host)
    (line,) = worker.host.shown
    assert line.startswith("spark-2: peers: found spark-1 not answering by SSH: sparkstack-peer@")
    assert f"AllowUsers of sshd does not leave out {USER}" in line


def test_nothing_to_do(pair: list[Site]) -> None:
    for site in pair:
        known = peers._peers(site)
        states = {file.path: file.wanted() for file in peer_files.files(site, known)}
        change(site, files=states, peer_user=True)
        assert commands_of(peers.peers_known, site.host, site) == []
        assert commands_of(peers.peers_answer, site.host, site) == []
    assert pair[0].host.noops == ["the other hosts are known", "nothing changed since they answered"]


def test_a_spark_that_is_alone_again_lets_nobody_in(sites: Sites) -> None:
    (alone,) = sites(1)
    path = "/etc/sparkstack/peer/.ssh/authorized_keys"
    assert path in fabric_facts.words(alone)["paths"]
    fabric_facts._known[alone.host.name] = FabricState(files={path: {}})
    commands = commands_of(peers.nobody_comes, alone.host, alone)
    assert follow(commands, alone.host) and alone.host.heard == [f"rm -f {path}"]
    fabric_facts._known[alone.host.name] = FabricState()
    assert commands_of(peers.nobody_comes, alone.host, alone) == []


def test_a_host_that_was_not_asked_is_asked_for_its_keys(pair: list[Site]) -> None:
    head, worker = pair
    del fabric_facts._known["spark-2"]
    worker.host.facts = {FabricFacts: FabricState(key="ssh-ed25519 K9", host_key="ssh-ed25519 H9")}
    files = written(commands_of(peers.peers_known, head.host, head))
    assert "ssh-ed25519 K9" in files["/etc/sparkstack/peer/.ssh/authorized_keys"]
    assert "ssh-ed25519 H9" in files["/etc/sparkstack/ssh/known_hosts"]


def test_the_others_come_by_the_port_of_sshd_itself(pair: list[Site]) -> None:
    head, worker = pair
    worker.host.data.ssh_port = 40022  # forwarded
    change(worker, ssh_port=22)
    files = written(commands_of(peers.peers_known, head.host, head))
    assert "  Port 22\n" in files["/etc/sparkstack/ssh/config"]
    assert files["/etc/sparkstack/ssh/known_hosts"].startswith("192.168.96.11,")
    # A host that does not say: the inventory's is the best guess.
    change(worker, ssh_port=None)
    files = written(commands_of(peers.peers_known, head.host, head))
    assert "  Port 40022\n" in files["/etc/sparkstack/ssh/config"]


def test_before_the_keys_are_made_a_change_is_all_that_can_be_said(pair: list[Site]) -> None:
    head, worker = pair
    change(worker, key="")
    head.host.state.is_executing = False
    commands = commands_of(peers.peers_known, head.host, head)
    assert [str(command) for command in commands] == ["true"] and not peers._written
    head.host.state.is_executing = True
    assert not follow(commands_of(peers.peers_known, head.host, head), head.host)
    assert head.host.shown == ["spark-1: peers: found no key on spark-2; wanted one on each; run again"]


def test_a_host_without_a_host_key(pair: list[Site]) -> None:
    head, worker = pair
    change(worker, host_key="")
    assert not follow(commands_of(peers.peers_known, head.host, head), head.host)
    assert head.host.shown == [
        "spark-2: peers: found no /etc/ssh/ssh_host_ed25519_key.pub; wanted sshd's key to pin; run "
        "`ssh-keygen -A` there"
    ]


def test_a_host_that_is_left_out_says_nothing_about_keys(pair: list[Site]) -> None:
    head, worker = pair
    worker.host.connected = False
    assert commands_of(peers.peers_known, head.host, head) == []
    assert head.host.noops == ["not looked at: spark-2 left out of this run"]


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        ("status", "status"),
        ("restart", "restart"),
        ("", None),
        ("sh", None),
        ("status; id", None),
        ("-h", None),
    ],
)
def test_only_two_words_are_obeyed(pair: list[Site], tmp_path: Path, asked: str, runs: str | None) -> None:
    files = {Path(file.path).name: file for file in peer_files.files(pair[0], peers._peers(pair[0]))}
    (tmp_path / "sudo").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {tmp_path}/ran\n')
    (tmp_path / "sudo").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SSH_ORIGINAL_COMMAND": asked}
    text = files["command"].content.decode()
    done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=False)
    ran = tmp_path / "ran"
    assert (ran.read_text() if ran.exists() else None) == (runs and f"-n /etc/sparkstack/peer/serve {runs}\n")
    assert (done.returncode == 0) == bool(runs)
