"""The example inventories of four Sparks, with only their addresses swapped, on four hosts beside the lab."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rerun import hosts
from lab import engine, nodes
from sparkstack import topology
from tests.lab.conftest import ROOT, pyinfra
from tests.lab.test_doctor import bad, doctor

pytestmark = pytest.mark.lab

STAGES = "only=preflight,host,docker,fabric"
PREFIX = "more-spark-"


@pytest.fixture(scope="module")
def four(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of four fresh hosts; `state` has brought up Docker, and made the image."""
    folder = tmp_path_factory.mktemp("more")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "PREFIX", PREFIX)
        for name in ("INVENTORY", "RECIPE", "KEY", "KNOWN_HOSTS"):
            patch.setattr(hosts, name, folder / getattr(hosts, name).name)
        patch.setattr(hosts, "FOLDER", folder)
        try:
            hosts.up(4, None)
            client = engine.connect()
            assert client is not None
            found = []
            for number in range(1, 5):
                container = client.containers.get(f"{PREFIX}{number}")
                found.append(str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]))
            yield found
        finally:
            hosts.down()


@pytest.fixture
def outside(state: dict[str, Any], four: list[str]) -> Iterator[str]:
    """The address by which these four reach the lab's registry and hub; they are on another network."""
    client = engine.connect()
    assert client is not None
    container = client.containers.get(nodes.OUTSIDE)
    bridge = client.networks.get("bridge")
    bridge.connect(container)
    try:
        container.reload()
        yield str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"])
    finally:
        bridge.disconnect(container)


def ask(number: int, command: str) -> str:
    words = ["docker", "exec", f"{PREFIX}{number}", "sh", "-c", command]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def plug_a_ring() -> None:
    """Eight cables, one for each half of each pair of cages, in place of the rails that act as a switch."""
    client = engine.connect()
    assert client is not None
    pids = [client.containers.get(f"{PREFIX}{number}").attrs["State"]["Pid"] for number in range(1, 5)]

    def ip(*words: object, inside: int | None = None) -> None:
        enter = ["nsenter", "-t", str(inside), "-n"] if inside else []
        subprocess.run([*enter, "ip", *map(str, words)], check=True, timeout=60)

    for pid in pids:
        for port, _ in topology.twins(0):
            ip("link", "del", port, inside=pid)
    for here, there in zip(pids, [*pids[1:], pids[0]], strict=True):
        for (leaves, _), (arrives, _) in zip(topology.twins(0), topology.twins(1), strict=True):
            ip("link", "add", "more0", "mtu", 9000, "type", "veth", "peer", "name", "more1", "mtu", 9000)
            for end, pid, port in (("more0", here, leaves), ("more1", there, arrives)):
                ip("link", "set", end, "netns", pid)
                ip("link", "set", end, "name", port, inside=pid)
                ip("link", "set", port, "up", inside=pid)


def swapped(example: str, four: list[str], folder: Path) -> Path:
    """An example inventory with these hosts' addresses."""
    text = (ROOT / "inventories" / f"{example}.py").read_text()
    for number, address in enumerate(four, 1):
        assert text.count(f"192.0.2.1{number}") == 1
        text = text.replace(f"192.0.2.1{number}", address)
    # A ring's ranks meet on the management network, whose interface has another name here.
    inventory = folder / f"{example}.py"
    inventory.write_text(text.replace('"enP7s7"', '"eth0"'))
    return inventory


# The hosts are on two rails, which is a switch, until they are plugged in another way.
@pytest.mark.parametrize(("example", "ports"), [("switch", 2), ("ring", 4)])
def test_an_example_inventory_with_only_its_addresses_swapped(
    four: list[str], example: str, ports: int, tmp_path: Path
) -> None:
    inventory = swapped(example, four, tmp_path)
    values = {
        "ssh_key": hosts.KEY,
        "ssh_known_hosts_file": hosts.KNOWN_HOSTS,
        "recipe": hosts.RECIPE,
        "accelerator": "cpu",
        "accepted_systems": '["debian:12"]',
        "image_bases": json.dumps({"sparkstack-lab/vllm-cpu": f"sparkstack-lab/vllm-cpu@sha256:{'0' * 64}"}),
    }
    words = ["-y", "--data", STAGES]
    words += [word for key, value in values.items() for word in ("--data", f"{key}={value}")]
    names = {f"spark-{number}" for number in range(1, 5)}

    if example == "ring":
        run = pyinfra(*words, inventory=str(inventory))
        assert run.code != 0 and "found no interface enp1s0f1np1, enP2p1s0f1np1" in run.output
        plug_a_ring()
    run = pyinfra(*words, inventory=str(inventory))
    assert run.code == 0, run.output
    assert set(run.changed()) == names
    for number in range(1, 5):
        addresses = ask(number, "ip -4 -o addr show").splitlines()
        networks = {line.split()[3].rpartition(".")[0] for line in addresses if "np" in line}
        assert len(networks) == ports, addresses  # no two ports in one network
        assert all(f".{9 + number}/24" in line for line in addresses if "np" in line)
    run, report = doctor(*words, inventory=str(inventory))
    assert (run.code, bad(report)) == (0, []), run.output
    assert {line["host"] for line in report["lines"]} == {*names, "all hosts"}
    run = pyinfra(*words, inventory=str(inventory))
    assert (run.code, run.changed()) == (0, {}), run.output


def test_four_hosts_serve_a_stand_in(
    four: list[str], outside: str, state: dict[str, Any], tmp_path: Path
) -> None:
    """Ranks of the light engine over the ring: all of a run but the links and the measurement."""
    values = {
        "ssh_key": hosts.KEY,
        "ssh_known_hosts_file": hosts.KNOWN_HOSTS,
        "recipe": "lab-light",
        "accelerator": "cpu",
        "accepted_systems": '["debian:12"]',
        "docker_mirrors": json.dumps([f"http://{outside}:5000"]),
        "hub_endpoint": f"http://{outside}:8080",
        "image_bases": json.dumps(state["image_base"]),
    }
    words = ["-y", "--data", "only=preflight,host,docker,conda,fabric,image,checkpoint,serve"]
    words += [word for key, value in values.items() for word in ("--data", f"{key}={value}")]
    inventory = str(swapped("ring", four, tmp_path))
    run = pyinfra(*words, inventory=inventory)
    assert run.code == 0, run.output
    for number in range(1, 5):
        words = ask(number, "docker inspect -f '{{.Args}}' sparkstack-serve")
        assert f"--rank {number - 1} --world 4 " in words
    body = json.dumps({"model": "light", "prompt": "x", "max_tokens": 3})
    answer = ask(1, f"curl -sS http://127.0.0.1:8000/v1/completions -d '{body}'")
    assert json.loads(answer)["usage"]["completion_tokens"] == 3
    run = pyinfra(*words, inventory=inventory)
    assert (run.code, run.changed()) == (0, {}), run.output
