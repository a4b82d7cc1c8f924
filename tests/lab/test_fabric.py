"""The fabric on two virtual Sparks: found, addressed, migrated, broken, taken back; and SSH between them.

Needs nothing but the hosts: the stage `fabric` alone. What is asserted is read over SSH. The tests build on
one another and leave the hosts as they came out of the box.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.conftest import BIN, ROOT, Run, Spark, pyinfra
from tests.lab.test_doctor import bad, doctor

pytestmark = pytest.mark.lab

ONLY = ("-y", "--data", "only=fabric")
TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
OURS = "/etc/netplan/40-sparkstack.yaml"
THEIRS = "/etc/netplan/40-cx7.yaml"
KEYS, PEER = "/etc/sparkstack/ssh", "/etc/sparkstack/peer"
SSH = f"ssh -F {KEYS}/config"


def deploy(*words: str, fails: bool = False) -> Run:
    run = pyinfra(*ONLY, *words)
    assert (run.code != 0) == fails, run.output
    assert "Traceback" not in run.output, run.output
    return run


def addresses(spark: Spark, name: str) -> list[str]:
    return spark.run(f"ip -4 -o addr show dev {name} | awk '{{print $4}}'").split()


def as_planned(sparks: list[Spark]) -> None:
    """Both twins of both: exactly one address, each in its own network, and packets of the full MTU."""
    for number, spark in enumerate(sparks):
        for half, twin in enumerate(TWINS):
            assert addresses(spark, twin) == [f"192.168.{96 + half}.{10 + number}/24"]
            assert spark.run(f"cat /sys/class/net/{twin}/mtu") == "9000"
            other = f"192.168.{96 + half}.{11 - number}"
            spark.run(f"ping -nq -c 1 -W 2 -M do -s 8972 -I {twin} {other}")
        assert spark.run(f"stat -c '%a %U' {OURS}") == "600 root"
        assert spark.run("ls /run/netplan; systemctl is-active sparkstack-fabric-try || true") == "inactive"


@contextmanager
def unplugged(spark: Spark, name: str) -> Iterator[None]:
    """A NIC without carrier: its other end, on this machine, is down."""
    index = spark.run(f"cat /sys/class/net/{name}/iflink")
    links = json.loads(
        subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    )
    (outside,) = [link["ifname"] for link in links if str(link["ifindex"]) == index]
    subprocess.run(["ip", "link", "set", outside, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", outside, "up"], check=True)


def test_what_is_cabled_is_found_and_shown_as_a_declaration(sparks: list[Spark]) -> None:
    run = deploy("--data", 'fabric={"kind": "auto", "base": "192.168.96.0/19"}')
    assert (
        "found pair; to declare it: fabric = {'kind': 'pair', 'cables': ['spark-1:0 spark-2:0']}"
        in run.output
    )
    assert "spark-1:0 --------- spark-2:0" in run.output
    as_planned(sparks)


def test_declared_it_is_the_same_and_nothing_changes(sparks: list[Spark]) -> None:
    before = [spark.files() for spark in sparks]
    assert deploy().changed() == {}
    assert [spark.files() for spark in sparks] == before


@pytest.mark.parametrize("form", sorted(path.name for path in (ROOT / "tests/golden/netplan").iterdir()))
def test_netplan_itself_reads_the_golden_files(sparks: list[Spark], form: str) -> None:
    for path in sorted((ROOT / "tests/golden/netplan" / form).iterdir()):
        text = path.read_text().replace("'", "")
        found = sparks[0].run(
            "rm -rf /tmp/golden; mkdir -p /tmp/golden/etc/netplan; umask 077; "
            f"cat > /tmp/golden/etc/netplan/40-sparkstack.yaml <<'END'\n{text}END\n"
            "netplan generate --root-dir /tmp/golden 2>&1; cat /tmp/golden/run/systemd/network/*.network; "
            "rm -rf /tmp/golden"
        )
        assert found.count("Address=192.168.") == text.count("        - ")
        assert found.count("LinkLocalAddressing=no") == found.count("[Match]") == text.count("mtu: 9000")
        assert "DHCP" not in found, found


def test_netplan_hands_them_to_network_manager_where_that_is_the_renderer(sparks: list[Spark]) -> None:
    found = sparks[0].run(
        "rm -rf /tmp/golden; mkdir -p /tmp/golden/etc/netplan; umask 077; "
        f"cp {OURS} /tmp/golden/etc/netplan/; "
        "echo 'network: {version: 2, renderer: NetworkManager}' > /tmp/golden/etc/netplan/01-all.yaml; "
        "netplan generate --root-dir /tmp/golden; "
        "cat /tmp/golden/run/NetworkManager/system-connections/*; rm -rf /tmp/golden"
    )
    for twin in TWINS:
        assert f"interface-name={twin}" in found
    assert found.count("mtu=9000") == found.count("method=manual") == 2 and "method=auto" not in found


# What earlier tools leave: the file's text, and an interface with the address that it gives.
EARLIER = {
    # Both twins in one network, as the vendor's own script does it; and the management port in the same file.
    "one subnet": (
        "".join(
            f"    {twin}: {{dhcp4: false, addresses: [192.168.96.{n}/24]}}\n"
            for n, twin in enumerate(TWINS, 1)
        ),
        (TWINS[1], "192.168.96.2/24"),
    ),
    # A bridge for a bond, which this kernel may not have: taken apart in the same way.
    "both in one master": (
        "".join(f"    {twin}: {{}}\n" for twin in TWINS)
        + f"  bridges:\n    old0: {{interfaces: [{', '.join(TWINS)}], addresses: [172.16.0.1/30]}}\n",
        ("old0", "172.16.0.1/30"),
    ),
}


@pytest.mark.parametrize("name", EARLIER)
def test_what_an_earlier_tool_left_is_migrated_and_given_back(sparks: list[Spark], name: str) -> None:
    lines, (port, address) = EARLIER[name]
    removed = pyinfra("-y", script="remove.py")
    assert removed.code == 0, removed.output
    head = sparks[0]

    def theirs() -> bool:
        return address in head.run(f"ip -4 -o addr show dev {port} 2>/dev/null || true")

    head.run(
        f"umask 077; cat > {THEIRS} <<'END'\nnetwork:\n  version: 2\n  ethernets:\n{lines}END\nnetplan apply"
    )
    before = head.run(f"sha256sum {THEIRS}; stat -c '%a %U' {THEIRS}")
    wait(theirs)
    run, report = doctor("-y", "--data", "only=fabric")
    assert {line["check"] for line in bad(report)} >= {THEIRS, OURS, *TWINS}, run.output
    deploy()
    as_planned(sparks)
    assert head.run(f"test -e {THEIRS} || echo gone; ip link show old0 2>/dev/null || true") == "gone"
    assert deploy().changed() == {}
    removed = pyinfra("-y", script="remove.py")
    assert removed.code == 0, removed.output
    assert head.run(f"sha256sum {THEIRS}; stat -c '%a %U' {THEIRS}") == before
    wait(theirs)
    head.run(
        f"rm {THEIRS}; netplan apply; ip link del old0 2>/dev/null; "
        f"for i in {' '.join(TWINS)}; do ip -4 addr flush dev $i; done"
    )
    deploy()
    as_planned(sparks)


def wait(look: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not look():
        assert time.monotonic() < until
        time.sleep(0.5)


def test_a_management_address_that_is_lost_for_seconds_fails_nothing(sparks: list[Spark]) -> None:
    head = sparks[0]
    head.run(f"rm {OURS}; ip -4 addr flush dev {TWINS[0]}")
    running = subprocess.Popen(
        [str(BIN / "pyinfra"), "inventories/lab.py", "deploy.py", *ONLY],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while head.run("systemctl is-active sparkstack-fabric-try || true") != "active":
        assert time.monotonic() < until, "the network's try never began"
    with unplugged(head, "enP7s7"):
        time.sleep(12)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    as_planned(sparks)


def test_a_network_that_locks_us_out_is_taken_back_by_the_host(sparks: list[Spark]) -> None:
    head = sparks[0]
    before = head.run("ip -4 -o addr show dev enP7s7; ip -4 route show default")
    head.run(f"rm {OURS}; ip -4 addr flush dev {TWINS[0]}")
    # Somebody's change that was never applied: the next one who does is locked out.
    head.run(
        "umask 077; cat > /etc/netplan/99-wrong.yaml <<'END'\n"
        "network: {version: 2, ethernets: {enP7s7: {dhcp4: false, addresses: [203.0.113.1/24]}}}\nEND"
    )
    run = deploy(fails=True)
    assert (
        "spark-1: fabric: found no way to the host for 60 s after netplan applied; wanted an answer; it went"
        in (" ".join(run.output.split()))
    )
    # The same connections as before the run: the host is where it was.
    for line in before.splitlines():
        address = re.search(r"inet (\S+)|via (\S+)", line)
        assert address and (address[1] or address[2]) in head.run("ip -4 addr show; ip -4 route show")
    assert head.run(f"ls {OURS} /run/netplan 2>/dev/null || true") in ("", "/run/netplan:")
    head.run("rm /etc/netplan/99-wrong.yaml; ip addr del 203.0.113.1/24 dev enP7s7 2>/dev/null; true")
    deploy()
    as_planned(sparks)


def test_a_port_that_is_down_while_it_is_applied(sparks: list[Spark]) -> None:
    worker = sparks[1]
    worker.run(f"rm {OURS}; ip -4 addr flush dev {TWINS[1]}")
    with unplugged(worker, TWINS[1]):
        run = deploy(fails=True)
        text = " ".join(run.output.split())
        assert f"spark-2: {TWINS[1]}: found no carrier; wanted frames of them; its twin heard them" in text
    deploy()
    as_planned(sparks)


def test_an_mtu_that_the_peer_does_not_have(sparks: list[Spark]) -> None:
    sparks[1].run(f"ip link set {TWINS[1]} mtu 1500")
    run, report = doctor("-y", "--data", "only=fabric")
    found = {(line["host"], line["check"]): line["found"] for line in bad(report)}
    assert found["spark-2", TWINS[1]] == "MTU 1500", run.output
    assert found["spark-1", TWINS[1]] == "answers of 192.168.97.11 to small packets only", run.output
    deploy()
    as_planned(sparks)


def test_a_cable_that_was_moved_is_drawn(sparks: list[Spark]) -> None:
    """The NICs of the worker's cage get the names of the other cage."""
    worker = sparks[1]
    other = [name.replace("f0np0", "f1np1") for name in TWINS]

    def rename(pairs: Any) -> None:
        for one, to in pairs:
            worker.run(f"ip link set {one} down; ip link set {one} name {to}; ip link set {to} up")

    rename(zip(TWINS, other, strict=True))
    try:
        run = deploy(fails=True)
        assert "found no interface enp1s0f0np0, enP2p1s0f0np0; wanted the ports of `fabric`" in run.output
        # Where the other cage's interfaces are there, too, the cable is what was moved.
        for twin in TWINS:
            worker.run(f"ip link add {twin} type veth peer name x{twin[-1]}{twin[2]}; ip link set {twin} up")
        run = deploy(fails=True)
        assert re.search(r"spark-1:0 -+ spark-2:0 +spark-1:0 -+ spark-2:1", run.output), run.output
        run = deploy("--data", 'fabric={"kind": "auto"}', "--dry")
        assert "['spark-1:0 spark-2:1']" in run.output
    finally:
        for twin in TWINS:
            worker.run(f"ip link del {twin} 2>/dev/null; true")
        rename(zip(other, TWINS, strict=True))
    deploy()
    as_planned(sparks)


def test_two_runs_at_the_same_time(sparks: list[Spark]) -> None:
    for spark in sparks:
        spark.run(f"rm {OURS}; ip -4 addr flush dev {TWINS[0]}")
    command = [str(BIN / "pyinfra"), "inventories/lab.py", "deploy.py", *ONLY]
    runs = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [run.communicate(timeout=300)[0] for run in runs]
    # One goes to its end; the other changes nothing and says who was first. (One that was so late that the
    # first had ended has done as well.)
    good = [output for run, output in zip(runs, outputs, strict=True) if run.returncode == 0]
    refused = [output for run, output in zip(runs, outputs, strict=True) if run.returncode != 0]
    assert good, outputs
    told = re.compile(r"spark-1: found another run at work \(\S+ on \S+, pid \d+, since \S+Z\); wanted one")
    assert all(told.search(output) and "Traceback" not in output for output in refused), outputs
    as_planned(sparks)
    assert deploy().changed() == {}


def test_the_hosts_reach_one_another_for_two_words(sparks: list[Spark]) -> None:
    for rank, (spark, other) in enumerate(zip(sparks, sparks[::-1], strict=True)):
        peer = f"rank-{1 - rank}"
        assert "ActiveState=" in spark.run(f"{SSH} {peer} status")
        assert spark.run(f"{SSH} {peer} id; echo $?").splitlines()[-1] == "2"
        assert spark.run(f"{SSH} -T {peer} </dev/null; echo $?").splitlines()[-1] == "2"
        # By the management network the key opens nothing.
        anyhow = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        refused = spark.run(f"{SSH} {anyhow} -o HostName={other.address} {peer} status 2>&1; true")
        assert "Permission denied" in refused
        assert spark.run(f"stat -c '%a %U' {KEYS} {KEYS}/id_ed25519").split("\n") == ["700 root", "600 root"]
    keys = [spark.run(f"cat {KEYS}/id_ed25519") for spark in sparks]
    assert keys[0] != keys[1]
    everywhere = [spark.run(f"cat {PEER}/.ssh/authorized_keys {KEYS}/known_hosts") for spark in sparks]
    assert not any("PRIVATE" in text for text in everywhere)


def test_another_host_key_is_refused_and_the_doctor_sees_an_edit(sparks: list[Spark]) -> None:
    head = sparks[0]
    head.run(
        f"cp -p {KEYS}/known_hosts /root/kept; "
        f"sed -i 's/AAAAC3NzaC1lZDI1NTE5AAAAI./AAAAC3NzaC1lZDI1NTE5AAAAIX/' {KEYS}/known_hosts"
    )
    said = head.run(f"{SSH} rank-1 status 2>&1; true")
    assert "Host key verification failed" in said or "No ED25519 host key" in said, said
    sparks[1].run(f"echo 'ssh-ed25519 AAAA mine' >> {PEER}/.ssh/authorized_keys")
    run, report = doctor("-y", "--data", "only=fabric")
    found = {(line["host"], line["check"]) for line in bad(report)}
    assert found == {("spark-1", f"{KEYS}/known_hosts"), ("spark-2", f"{PEER}/.ssh/authorized_keys")}, (
        run.output
    )
    head.run("rm /root/kept")
    assert set(deploy().changed()) == {"spark-1", "spark-2"}
    assert deploy().changed() == {}


def test_all_of_it_is_taken_back(sparks: list[Spark]) -> None:
    removed = pyinfra("-y", "--data", "checkpoints=yes", script="remove.py")
    assert removed.code == 0, removed.output
    for spark in sparks:
        assert spark.run("id -u sparkstack-peer 2>/dev/null || echo none") == "none"
        assert spark.run(f"ls -d /etc/sudoers.d/sparkstack* {OURS} /etc/sparkstack 2>/dev/null || true") == ""
        assert [addresses(spark, twin) for twin in TWINS] == [[], []]
