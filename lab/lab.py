"""`lab up`, `lab down`, `lab status`, `lab restart`: the whole of it, idempotent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
from docker.models.containers import Container

from lab import content, engine, images, keys, light_image, network, nodes, publish, ssh
from lab.paths import (
    CHECKOUT,
    KEY,
    KNOWN_HOSTS,
    LAB,
    LABEL,
    LABEL_PATH,
    ROOT,
    STATE,
    LabError,
    Progress,
    quiet,
)

USER = "nvidia"
BOOT_S = 120


def up(count: int | None = None, progress: Progress = quiet) -> dict[str, Any]:
    """Makes the lab stand with `count` nodes (None: as many as it has, else 2); returns the state."""
    with alone():
        client = engine.ensure(progress)
        _other_checkouts(client)
        if count is None:
            count = len(_ours(client)) or 2
        image = images.build(client, progress)
        made = content.make(progress)
        network.ensure(client)
        subnet = network.subnet(client, network.MANAGEMENT)
        services = _outside(client, image, made.base, subnet, progress)
        port = _push_port(nodes.find(client, nodes.OUTSIDE))
        home = publish.storage(made.base)
        bases = {}
        for tag in (made.base, light_image.build(client, progress)):
            bases[tag.partition(":")[0]] = publish.publish(
                client, tag, home, services["registry"], port, progress
            )
        found = _nodes(client, image, subnet, count, progress)
        state = {
            "format": 1,
            "nodes": found,
            "user": USER,
            "key": str(KEY.relative_to(ROOT)),
            "known_hosts": str(KNOWN_HOSTS.relative_to(ROOT)),
            **services,
            "image_base": bases,
            "conda": {
                "url": f"{services['files']}/miniforge/{content.CONDA_NAME}",
                "sha256": made.conda_sha256,
            },
            "models": made.models,
            "daemon_pid": engine.ours(),
        }
        _write_state(state)
        progress("lab", 1, 1, f"up: {', '.join(node['name'] for node in found)}")
        return state


def down(everything: bool = False, progress: Progress = quiet) -> None:
    """Removes containers, their volumes and the networks; `everything`: images, files and our dockerd too."""
    with alone():
        # Images outlive a daemon: to remove them one must run, if only for that.
        client = engine.ensure(progress) if everything else engine.connect()
        if client is not None:
            _sweep(client, CHECKOUT, progress)
            if everything:
                images.remove(client, progress)
        STATE.unlink(missing_ok=True)
        if everything:
            engine.stop()
    if everything and LAB.exists():
        shutil.rmtree(LAB)
    progress("lab", 1, 1, "down, nothing left" if everything else "down")


def status() -> dict[str, Any]:
    """What stands now: `{"up": bool, "docker": bool, "nodes": [...], "outside": "running", …}`."""
    client = engine.connect()
    found: dict[str, Any] = {"up": False, "docker": client is not None, "nodes": [], "outside": "absent"}
    if client is None:
        return found
    state = read_state()
    outside = nodes.find(client, nodes.OUTSIDE)
    found["outside"] = outside.status if outside else "absent"
    addresses = {node["name"]: node["address"] for node in state["nodes"]} if state else {}
    for container in _ours(client):
        found["nodes"].append(
            {
                "name": container.name,
                "container": container.id,
                "status": container.status,
                "address": addresses.get(container.name or ""),
            }
        )
    running = [node for node in found["nodes"] if node["status"] == "running"]
    found["up"] = bool(state) and len(running) == len(addresses) and found["outside"] == "running"
    if state:
        found |= {key: state[key] for key in ("registry", "hub", "files", "image_base", "models")}
    return found


def restart(name: str, progress: Progress = quiet) -> None:
    """Restarts one node as a reboot would; its NICs have a Spark's names again when this returns."""
    with alone():
        client = engine.connect()
        container = nodes.find(client, name) if client else None
        if client is None or container is None or container.labels.get(LABEL) != CHECKOUT:
            raise LabError(f"the lab has no node {name}; see: sparkstack lab status")
        progress("restart", 0, None, name)
        container.restart(timeout=30)
        _booted(container)
        state = read_state() or {"nodes": []}
        for address in [node["address"] for node in state["nodes"] if node["name"] == name]:
            ssh.wait(address, USER, KEY, KNOWN_HOSTS, BOOT_S)
        progress("restart", 1, 1, f"{name} is back")


def wait_booted(name: str) -> None:
    """Waits until a node that was started by other means is up, with a Spark's names for its NICs."""
    client = engine.connect()
    container = nodes.find(client, name) if client else None
    if container is None:
        raise LabError(f"the lab has no node {name}; see: sparkstack lab status")
    _booted(container)


def read_state() -> dict[str, Any] | None:
    """The state file, or None where the lab is not up."""
    try:
        return dict(json.loads(STATE.read_text()))
    except FileNotFoundError:
        return None


def _outside(
    client: docker.DockerClient, image: str, base: str, subnet: str, progress: Progress
) -> dict[str, str]:
    options = nodes.outside_options(image, subnet, publish.storage(base))
    container = nodes.standing(client, options)
    if container is None or container.status != "running":
        progress("outside", 0, None, "registry, hub, files")
        container = nodes.create(client, options, [])
        container.start()
    address = options["address"]
    services = {
        "registry": f"http://{address}:5000",
        "hub": f"http://{address}:8080",
        "files": f"http://{address}:8000",
    }
    for port in (5000, 8080, 8000):
        if not ssh.open_port(address, port, 20):
            log = container.logs(tail=3).decode(errors="replace").strip()
            raise LabError(f"{nodes.OUTSIDE}: port {port} does not open: {log[-300:]}")
    return services


def _push_port(outside: Container | None) -> int:
    assert outside is not None
    outside.reload()
    published = outside.ports.get("5000/tcp")
    assert published, "made with this port published"
    return int(published[0]["HostPort"])


def _nodes(
    client: docker.DockerClient, image: str, subnet: str, count: int, progress: Progress
) -> list[dict[str, str]]:
    """Makes spark-1…spark-N stand and no other; returns them as the state lists them."""
    nics = network.nics(client)
    wanted = [nodes.node_options(image, number, subnet, nics) for number in range(1, count + 1)]
    kept = {one["name"]: nodes.standing(client, one) for one in wanted}
    for container in _ours(client):
        if container.name not in kept:
            nodes.remove(client, str(container.name))
    if not KEY.exists() or not any(kept.values()):
        keys.write_private(KEY, *keys.pair("sparkstack-lab"))
        kept = dict.fromkeys(kept)
    authorized = KEY.with_name(KEY.name + ".pub").read_bytes()
    found: list[dict[str, str]] = []
    pinned: dict[str, bytes] = {}
    for options in wanted:
        container = kept[options["name"]] or _create(client, options, authorized, progress)
        if container.status != "running":
            container.start()
        pinned[options["address"]] = nodes.read(container, "/etc/ssh/ssh_host_ed25519_key.pub")
        found.append({"name": options["name"], "container": str(container.id), "address": options["address"]})
    KNOWN_HOSTS.write_text(keys.known_hosts(pinned))

    def ready(node: dict[str, str]) -> None:
        _booted(client.containers.get(node["container"]))
        ssh.wait(node["address"], USER, KEY, KNOWN_HOSTS, BOOT_S)

    with ThreadPoolExecutor(max_workers=8) as pool:
        for done, _ in enumerate(pool.map(ready, found), start=1):
            progress("nodes", done, count, f"{found[done - 1]['name']} answers")
    return found


def _create(
    client: docker.DockerClient, options: dict[str, Any], authorized: bytes, progress: Progress
) -> Container:
    name = options["name"]
    progress("nodes", 0, None, f"{name} is made")
    private, public = keys.pair(f"root@{name}")
    files = [
        nodes.File("/etc/ssh/ssh_host_ed25519_key", private, 0o600),
        nodes.File("/etc/ssh/ssh_host_ed25519_key.pub", public),
        nodes.File("/home/nvidia/.ssh/authorized_keys", authorized, 0o600, owner=1000),
        nodes.File("/etc/sparkstack-lab/nics", options["nics"].encode()),
    ]
    return nodes.create(client, options, files, network.RAILS)


def _booted(container: Container) -> None:
    """Waits until systemd has started everything, then sees to the NICs' names (which it did itself)."""
    deadline = time.monotonic() + BOOT_S
    while True:
        _, found = nodes.output(container, "systemctl", "is-system-running", "--wait")
        if found in ("running", "degraded"):
            break
        if time.monotonic() > deadline:
            raise LabError(f"{container.name}: found system state {found!r} after {BOOT_S} s; wanted running")
        time.sleep(0.2)
    nodes.run(container, "/usr/local/sbin/lab-nics")


def _ours(client: docker.DockerClient) -> list[Container]:
    """This lab's nodes, in order of their numbers, running or not."""
    found = client.containers.list(all=True, filters={"label": f"{LABEL}={CHECKOUT}"})
    sparks = [one for one in found if str(one.name).startswith("spark-")]
    return sorted(sparks, key=lambda one: int(str(one.name).removeprefix("spark-")))


def _other_checkouts(client: docker.DockerClient) -> None:
    """A lab of another checkout that runs is an error; one that has ended is removed."""
    containers = _containers(client, LABEL)
    for container in containers:
        if container.labels[LABEL] != CHECKOUT and container.status == "running":
            path = container.labels.get(LABEL_PATH, "another checkout")
            raise LabError(f"the lab of {path} is up; end it there first: sparkstack lab down")
    for thing in (*containers, *_networks(client)):
        value = _label(thing)
        if value != CHECKOUT:
            _sweep(client, value, quiet)


def _containers(client: docker.DockerClient, label: str) -> list[Container]:
    """The lab's containers with this label: by name too, since images made before handed their label on."""
    found = client.containers.list(all=True, filters={"label": label})
    return [one for one in found if str(one.name).startswith(("spark-", "sparkstack-lab-"))]


def _networks(client: docker.DockerClient) -> list[Any]:
    return client.networks.list(filters={"label": LABEL})


def _label(thing: Any) -> str:
    labels = thing.labels if isinstance(thing, Container) else thing.attrs["Labels"]
    return str(labels[LABEL])


def _sweep(client: docker.DockerClient, checkout: str, progress: Progress) -> None:
    """Removes the containers, volumes and networks that carry this checkout's label."""
    chosen: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={checkout}"}
    for container in _containers(client, f"{LABEL}={checkout}"):
        progress("containers", 0, None, f"removing {container.name}")
        container.remove(force=True, v=True)
    for volume in client.volumes.list(filters=chosen):
        volume.remove(force=True)
    for one in client.networks.list(filters=chosen):
        one.remove()


def _write_state(state: dict[str, Any]) -> None:
    fresh = STATE.with_name("state.json.partial")
    fresh.write_text(json.dumps(state, indent=2) + "\n")
    fresh.replace(STATE)


@contextlib.contextmanager
def alone(name: str = "lock") -> Iterator[None]:
    """One `lab` command at a time in a checkout; containers and virtual machines each have a lock."""
    LAB.mkdir(exist_ok=True)
    with (LAB / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError("another `sparkstack lab` command is at work in this checkout") from None
        yield
