"""The image of a virtual Spark. Its tag is a hash of everything that goes in."""

from __future__ import annotations

import io
import platform
import tarfile
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from lab import rootfs
from lab.paths import CHECKOUT, LABEL_IMAGE, LabError, Progress, digest, image_labels

CONTEXT = Path(__file__).parent / "image"

PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    "docker-registry",
    "docker.io",
    "earlyoom",  # installed by apt where it is missing; here so that the lab needs no mirror
    "ethtool",
    "iperf3",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "less",
    "netplan.io",
    "openssh-server",
    "procps",
    "python3",
    "python3-venv",
    "python3-yaml",
    "rsync",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
)


def context_files(folder: Path = CONTEXT) -> dict[str, bytes]:
    """The build context, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def tags() -> tuple[str, str]:
    """(root file system, Spark): the tags of the two layers."""
    base = digest(rootfs.SUITE, list(PACKAGES), platform.machine())
    files = context_files()
    spark = digest(base, *[part for name in sorted(files) for part in (name, files[name])])
    return f"sparkstack-lab/rootfs:{base}", f"sparkstack-lab/spark:{spark}"


def build(client: docker.DockerClient, progress: Progress) -> str:
    """Makes the Spark's image where it is missing; returns its tag."""
    base, spark = tags()
    if exists(client, spark):
        return spark
    if not exists(client, base):
        rootfs.import_rootfs(base, PACKAGES, progress)
    progress("image", 0, None, spark)
    context = archive(context_files())
    error = ""
    for line in client.api.build(
        fileobj=context,
        custom_context=True,
        tag=spark,
        buildargs={"BASE": base},
        labels=image_labels(),
        rm=True,
        forcerm=True,
        decode=True,
    ):
        error = line.get("error", error)
        if note := line.get("stream", "").strip():
            progress("image", 0, None, note.splitlines()[0].removeprefix("\x1b[91m"))
    if error or not exists(client, spark):
        raise LabError(f"image {spark} did not build: {error.strip()[-300:]}")
    progress("image", 1, 1, spark)
    return spark


def exists(client: docker.DockerClient, tag: str) -> bool:
    """Whether the Docker daemon has image `tag`."""
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def remove(client: docker.DockerClient, progress: Progress) -> None:
    """Removes the images that this checkout's lab made; one that somebody still uses stays, and is named."""
    chosen = client.images.list(filters={"label": f"{LABEL_IMAGE}={CHECKOUT}"})
    for name in sorted({tag for image in chosen for tag in image.tags or [image.id or ""]}):
        progress("images", 0, None, f"removing {name}")
        try:
            client.images.remove(name, force=True)
        except ImageNotFound:
            continue
        except APIError as error:
            progress("images", 0, None, f"{name} stays: {error.explanation}")


def archive(files: dict[str, bytes]) -> io.BytesIO:
    """A tar archive of these files, as a stream that stands at its start."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(data))
    out.seek(0)
    return out
