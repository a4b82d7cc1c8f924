"""LAB ONLY: the image of the light engine, `sparkstack-lab/light:<hash>`: one script and empty folders.

Its Python is the virtual Spark's own, mounted by the recipe (recipes/lab-light.yaml), so that building and
sending it costs nothing, and a release of it says something about everything but the size of images.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import docker

from lab import images
from lab.paths import LABEL_IMAGE, LabError, Progress, digest, image_labels

REPOSITORY = "sparkstack-lab/light"
SCRIPT = Path(__file__).parent / "light_engine.py"
INSIDE = "opt/light/engine.py"
FOLDERS = ("dev", "etc", "model", "opt/light", "proc", "run", "sys", "tmp", "usr", "var")
LINKS = ("bin", "lib", "lib64", "sbin")
"""Into /usr, as in every Debian since 12."""


def tag() -> str:
    return f"{REPOSITORY}:{digest(SCRIPT.read_bytes(), FOLDERS, LINKS)}"


def archive() -> bytes:
    """The image's files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name in LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        script = tarfile.TarInfo(INSIDE)
        script.size, script.mode = SCRIPT.stat().st_size, 0o644
        tar.addfile(script, io.BytesIO(SCRIPT.read_bytes()))
    return out.getvalue()


def build(client: docker.DockerClient, progress: Progress) -> str:
    """Makes the image where it is missing; returns its tag."""
    wanted = tag()
    if images.exists(client, wanted):
        return wanted
    progress("image", 0, None, wanted)
    repository, _, version = wanted.partition(":")
    changes = [f"LABEL {LABEL_IMAGE}={image_labels()[LABEL_IMAGE]}", "ENV PATH=/usr/bin:/bin"]
    client.api.import_image_from_data(archive(), repository=repository, tag=version, changes=changes)
    if not images.exists(client, wanted):
        raise LabError(f"image {wanted} was not made; see the log of dockerd")
    return wanted
