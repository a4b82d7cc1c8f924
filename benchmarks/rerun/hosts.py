"""Hosts to measure on, apart from the lab: `python -m benchmarks.rerun.hosts up N | down`.

Containers of the lab's Spark image with the options that the lab gives its nodes, named rerun-spark-1…N, on
Docker's own bridge, with a key of their own, and on two networks of their own as the fabric's rails; instead
of an environment built by conda a virtual environment with its marks and the controller's own copies of what
a second run imports there. An inventory for them is written to .cache/rerun/hosts/hosts.py.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
import time
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from packaging.requirements import Requirement

from benchmarks.rerun.paths import CACHE, ROOT
from lab import engine, images, keys, network, nodes, ssh
from sparkstack import conda, topology
from tasks import wheels

USER = "nvidia"
FOLDER = CACHE / "hosts"
INVENTORY = FOLDER / "hosts.py"
RECIPE = FOLDER / "recipe.yaml"
KEY = FOLDER / "id_ed25519"
KNOWN_HOSTS = FOLDER / "known_hosts"
PREFIX = "rerun-spark-"
BOOT_SECONDS = 120


def up(count: int, image: str | None) -> Path:
    """Make `count` fresh hosts in place of those that are there; returns their inventory."""
    client = engine.connect()
    if client is None:
        raise SystemExit("rerun: found no Docker daemon; wanted one for the hosts; start it")
    down()
    FOLDER.mkdir(parents=True, exist_ok=True)
    image = image or images.build(client, lambda *_: None)
    keys.write_private(KEY, *keys.pair("sparkstack-rerun"))
    wires = _wires(client)
    containers = [_create(client, image, number, wires) for number in range(1, count + 1)]
    for container in containers:
        container.start()
    found: dict[str, str] = {}
    pinned: dict[str, bytes] = {}
    for container in containers:
        _booted(container)
        container.reload()
        address = str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"])
        found[str(container.name)] = address
        pinned[address] = nodes.read(container, "/etc/ssh/ssh_host_ed25519_key.pub")
    KNOWN_HOSTS.write_text(keys.known_hosts(pinned))
    packages = _packages(("huggingface_hub", "httpx"))
    for container in containers:
        ssh.wait(found[str(container.name)], USER, KEY, KNOWN_HOSTS, BOOT_SECONDS)
        _furnish(container, packages)
    _write_inventory(found)
    return INVENTORY


def down() -> None:
    """Remove the hosts and their volumes."""
    client = engine.connect()
    if client is not None:
        for container in client.containers.list(all=True, filters={"name": f"^/{PREFIX}"}):
            nodes.remove(client, str(container.name))
        for one in client.networks.list(names=[f"^{PREFIX}rail"]):
            one.remove()


def _wires(client: docker.DockerClient) -> tuple[network.Wire, ...]:
    """The rails: a fabric whose ports hear nobody is no second run."""
    wires = tuple(
        network.Wire(f"{PREFIX}rail{half}", name, False) for half, (name, _) in enumerate(topology.twins(0))
    )
    for wire in wires:
        network.make_rail(client, wire, {})
    return wires


def _create(
    client: docker.DockerClient, image: str, number: int, wires: tuple[network.Wire, ...]
) -> Container:
    name = f"{PREFIX}{number}"
    command, host = nodes.systemd_options()
    volume = {nodes.volume_name(name): {"bind": "/var/lib/docker", "mode": "rw"}}
    options: dict[str, Any] = {
        "name": name,
        "address": None,
        "unconfined": True,
        "container": {"image": image, "hostname": name, "command": command},
        "host": {
            "network_mode": "bridge",
            "cap_add": nodes.CAPABILITIES,
            "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
            "tmpfs": {"/run": "", "/run/lock": ""},
            **host,
            "binds": {**volume, **host.get("binds", {})},
        },
    }
    private, public = keys.pair(f"root@{name}")
    authorized = KEY.with_name(KEY.name + ".pub").read_bytes()
    nics = "".join(f"{network.subnet(client, wire)} {wire.nic} bare\n" for wire in wires)
    return nodes.create(
        client,
        options,
        [
            nodes.File("/etc/ssh/ssh_host_ed25519_key", private, 0o600),
            nodes.File("/etc/ssh/ssh_host_ed25519_key.pub", public),
            nodes.File(f"/home/{USER}/.ssh/authorized_keys", authorized, 0o600, owner=1000),
            nodes.File("/etc/sparkstack-lab/nics", nics.encode()),
        ],
        wires,
    )


def _booted(container: Container) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while nodes.output(container, "systemctl", "is-system-running", "--wait")[1] not in (
        "running",
        "degraded",
    ):
        if time.monotonic() > deadline:
            raise SystemExit(f"rerun: {container.name}: found it not booted after {BOOT_SECONDS} s")
        time.sleep(0.2)


def _packages(names: tuple[str, ...]) -> bytes:
    """An archive of the installed distributions `names` and all that they need, as site-packages has them."""
    out, todo, taken = io.BytesIO(), [*names], set[str]()
    with tarfile.open(fileobj=out, mode="w") as archive:
        while todo:
            found = distribution(todo.pop())
            if found.name in taken:
                continue
            taken.add(found.name)
            needs = [Requirement(line) for line in found.requires or []]
            todo += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
            for file in found.files or []:
                if ".." not in file.parts and file.suffix != ".pyc":
                    archive.add(str(file.locate()), str(file))
        for source in (ROOT / "onhost").rglob("*.py"):  # whose mark says that it is installed
            archive.add(source, str(source.relative_to(ROOT)))
    return out.getvalue()


def _furnish(container: Container, packages: bytes) -> None:
    """A built environment with its marks (tasks/conda.py writes them last)."""
    defaults: dict[str, Any] = {}
    exec((ROOT / "group_data/all.py").read_text(), defaults)
    arch = nodes.run(container, "uname", "-m")
    _, sha256 = conda.installer(arch, defaults["conda_installers"], None, None)
    definition = (ROOT / "files/environment.yml").read_bytes()
    _, onhost = wheels.build(ROOT / "onhost")
    place = defaults["install_dir"]
    marks = {
        f"{place}/conda/.sparkstack": sha256,
        f"{place}/env/.sparkstack": hashlib.sha256(definition).hexdigest()[:12],
        f"{place}/env/.sparkstack-onhost": onhost,
    }
    writes = "; ".join(
        f"mkdir -p {path.rpartition('/')[0]}; echo {text} > {path}" for path, text in marks.items()
    )
    make = f"python3 -m venv --without-pip {place}/env; echo {place}/env/lib/python3*/site-packages"
    folder = nodes.run(container, "sh", "-ec", make).splitlines()[-1]
    container.put_archive(folder, packages)
    nodes.run(container, f"{place}/env/bin/python", "-m", "compileall", "-q", folder)
    # Last, as where it was installed: what is touched later is looked at again.
    nodes.run(container, "sh", "-ec", writes)


def _write_inventory(addresses: dict[str, str]) -> None:
    # The lab's recipe, for as many hosts as there are; no stage that is measured looks at the rest of it.
    recipe = (ROOT / "recipes/lab-tiny.yaml").read_text()
    RECIPE.write_text(recipe.replace("max_nodes: 2", f"max_nodes: {max(2, len(addresses))}"))
    common = {
        "ssh_user": USER,
        "ssh_key": str(KEY),
        "ssh_known_hosts_file": str(KNOWN_HOSTS),
        "ssh_strict_host_key_checking": "yes",
        "ssh_allow_agent": False,
        "ssh_look_for_keys": False,
    }
    hosts = [(name, {"ssh_hostname": address, **common}) for name, address in addresses.items()]
    data = {
        "recipe": str(RECIPE),
        "accelerator": "cpu",
        "image_bases": {"sparkstack-lab/vllm-cpu": "sparkstack-lab/vllm-cpu@sha256:" + "0" * 64},
        # A switch for any number of hosts: the first two want the same as they want among eight.
        "fabric": {"kind": "switch" if len(hosts) > 1 else "single", "port": 0, "base": "192.168.96.0/19"},
    }
    INVENTORY.write_text(f'"""Made by benchmarks/rerun/hosts.py."""\n\nsparks = {(hosts, data)!r}\n')


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerun.hosts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("up", help="make N fresh hosts")
    make.add_argument("count", type=int)
    make.add_argument("--image", help="an image of the lab's Spark; default: the lab's own, built if missing")
    commands.add_parser("down", help="remove them")
    words = parser.parse_args()
    if words.command == "down":
        return down()
    print(json.dumps({"inventory": str(up(words.count, words.image).relative_to(ROOT))}))


if __name__ == "__main__":
    main()
