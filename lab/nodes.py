"""The lab's containers: how each is made, and when one that stands is still right."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from lab import network
from lab.paths import FILES, LABEL_SPEC, MODELS, ROOT, LabError, digest, labels

OUTSIDE = "sparkstack-lab-outside"
SERVES = ("hub.py", "hub_store.py", "faults.py", "outside.py", "__init__.py")
"""Modules that run in the outside container: it is made anew when one of them changes."""

CAPABILITIES = ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_NICE", "IPC_LOCK"]
"""Named, for --privileged fails where the machine itself lacks one of all capabilities."""


@dataclass(frozen=True)
class File:
    """A file to be put into a container before it starts; owner by number (nvidia is 1000)."""

    path: str
    data: bytes
    mode: int = 0o644
    owner: int = 0


def node_name(number: int) -> str:
    return f"spark-{number}"


def node_options(image: str, number: int, subnet: str, nics: str) -> dict[str, Any]:
    """What makes `spark-<number>` the container it is; `nics` counts because it is written inside."""
    name = node_name(number)
    command, host = systemd_options()
    return {
        "name": name,
        "address": network.node_address(subnet, number),
        "nics": nics,
        "unconfined": True,
        "container": {"image": image, "hostname": name, "command": command},
        "host": {
            "network_mode": network.MANAGEMENT.network,
            "cap_add": CAPABILITIES,
            "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
            "tmpfs": {"/run": "", "/run/lock": ""},
            "shm_size": "2g",
            **host,
            "binds": {volume_name(name): {"bind": "/var/lib/docker", "mode": "rw"}, **host.get("binds", {})},
        },
    }


def systemd_options() -> tuple[list[str], dict[str, Any]]:
    """(command, host options): systemd must write its control groups, and where depends on their version.

    Version 1: the machine's hierarchy, as it is. Version 2: a namespace of its own, so that systemd and the
    nested Docker agree on paths; Docker mounts it read-only, so that comes first.
    """
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        boot = "mount -o remount,rw /sys/fs/cgroup && exec /sbin/init"
        return ["/bin/sh", "-c", boot], {"cgroupns": "private"}
    groups = "/sys/fs/cgroup"
    return ["/sbin/init"], {"cgroupns": "host", "binds": {groups: {"bind": groups, "mode": "rw"}}}


def outside_options(image: str, subnet: str, registry: Path) -> dict[str, Any]:
    """The outside container; its registry is also reached at a port of 127.0.0.1, to push to."""
    return {
        "name": OUTSIDE,
        "address": network.outside_address(subnet),
        "code": digest(*[(ROOT / "lab" / name).read_bytes() for name in SERVES]),
        "container": {
            "image": image,
            "hostname": "outside",
            "command": ["python3", "-m", "lab.outside"],
            "environment": {"PYTHONPATH": "/opt/sparkstack-lab", "PYTHONDONTWRITEBYTECODE": "1"},
            "stop_signal": "SIGTERM",
            "ports": [5000],
        },
        "host": {
            "network_mode": network.MANAGEMENT.network,
            "port_bindings": {"5000": ("127.0.0.1",)},
            "binds": {
                str(ROOT / "lab"): {"bind": "/opt/sparkstack-lab/lab", "mode": "ro"},
                str(MODELS): {"bind": "/srv/models", "mode": "ro"},
                str(FILES): {"bind": "/srv/files", "mode": "ro"},
                str(registry): {"bind": "/srv/registry", "mode": "rw"},
            },
        },
    }


def volume_name(node: str) -> str:
    return f"sparkstack-lab-{node}-docker"


def find(client: docker.DockerClient, name: str) -> Container | None:
    try:
        return client.containers.get(name)
    except NotFound:
        return None


def standing(client: docker.DockerClient, options: Mapping[str, Any]) -> Container | None:
    """The container that these options describe, where it exists and was made from the same ones."""
    container = find(client, options["name"])
    if container is not None and container.labels.get(LABEL_SPEC) == digest(dict(options)):
        return container
    return None


def create(
    client: docker.DockerClient,
    options: Mapping[str, Any],
    files: list[File],
    wires: tuple[network.Wire, ...] = (),
) -> Container:
    """Makes (not starts) a container, in place of one of this lab's with the same name."""
    name = options["name"]
    remove(client, name)
    host = client.api.create_host_config(**options["host"])
    if options.get("unconfined"):
        # What `docker run --security-opt systempaths=unconfined` sends; the SDK has no word for it.
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    for volume in options["host"]["binds"]:
        if not volume.startswith("/"):
            client.volumes.create(volume, labels=labels())
    endpoint = client.api.create_endpoint_config(ipv4_address=options["address"])
    try:
        made = client.api.create_container(
            **options["container"],
            name=name,
            host_config=host,
            labels=labels(**{LABEL_SPEC: digest(dict(options))}),
            networking_config={"EndpointsConfig": {options["host"]["network_mode"]: endpoint}},
        )
    except APIError as error:
        raise LabError(f"container {name}: {error.explanation}") from None
    container = client.containers.get(made["Id"])
    for wire in wires:
        client.networks.get(wire.network).connect(container)
    if files:
        container.put_archive("/", _archive(files))
    return container


def remove(client: docker.DockerClient, name: str) -> None:
    """Removes the lab's container `name` and its volume. Raises LabError where it is somebody else's."""
    container = find(client, name)
    if container is not None:
        if LABEL_SPEC not in container.labels:
            raise LabError(f"a container {name} stands that is not the lab's; remove it: docker rm -f {name}")
        container.remove(force=True, v=True)
    with contextlib.suppress(NotFound):
        client.volumes.get(volume_name(name)).remove()


def run(container: Container, *command: str) -> str:
    """Runs a command inside as root; its output. Raises LabError where it fails."""
    status, text = output(container, *command)
    if status != 0:
        raise LabError(f"{container.name}: {' '.join(command)} ended with {status}: {text[-300:]}")
    return text


def output(container: Container, *command: str) -> tuple[int, str]:
    """Runs a command inside as root: (exit status, what it wrote)."""
    status, written = container.exec_run(list(command))
    assert isinstance(written, bytes) and status is not None
    return status, written.decode(errors="replace").strip()


def read(container: Container, path: str) -> bytes:
    """A file of a container, running or not."""
    chunks, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.extractfile(archive.getmembers()[0])
        assert member is not None
        return member.read()


def _archive(files: list[File]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file in files:
            member = tarfile.TarInfo(file.path.lstrip("/"))
            member.size, member.mode = len(file.data), file.mode
            member.uid = member.gid = file.owner
            archive.addfile(member, io.BytesIO(file.data))
    return out.getvalue()
