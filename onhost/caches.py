"""What engines have compiled, in a Docker volume an image: kept over restarts, but not for ever.

The volume comes with the first `docker run` (sparkstack/engine_cache.py) and says in a label whose it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from onhost.docker_cli import docker

LABEL = "sparkstack.image"
BEGAN = "engine-began"
"""In the state folder from an engine's start to its unit's end, which removes one of its own boot: who finds
one of another boot knows that the host went down without an end, and that what was written last may be half
there. An engine that reads such a file would never come back by itself."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


def begins(state_dir: Path) -> None:
    """Note that an engine begins. A disk that is full costs the note, and not the start. A note of another
    boot stays as long as what it speaks of is there."""
    if broke_off(state_dir):
        return
    with contextlib.suppress(OSError), (state_dir / BEGAN).open("w", encoding="ascii") as file:
        file.write(BOOT.read_text(encoding="ascii"))
        file.flush()
        os.fsync(file.fileno())


def broke_off(state_dir: Path) -> bool:
    """Did this host go down with an engine, without ending it?"""
    with contextlib.suppress(OSError):
        return (state_dir / BEGAN).read_text(encoding="ascii") != BOOT.read_text(encoding="ascii")
    return False


def tidy(state_dir: Path) -> list[str]:
    """Remove the volumes of images that are gone, and all of them where the host went down with an engine;
    a line for each. A volume that is in use stays, and a Docker that does not answer is nobody's problem
    here: what is left is looked at again before the next start.
    """
    distrust, kept = broke_off(state_dir), 0
    form = '{{.Name}} {{.Label "' + LABEL + '"}}'
    listed = docker("volume", "ls", "--filter", f"label={LABEL}", "--format", form)
    said = []
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        volume, _, owner = line.partition(" ")
        why = "this host went down while its engine ran" if distrust else _gone(owner)
        if why and docker("volume", "rm", volume).returncode == 0:
            said.append(f"what engines compiled in {volume} is removed: {why}")
        else:
            kept += 1
    if distrust and listed.returncode == 0 and not kept:
        (state_dir / BEGAN).unlink(missing_ok=True)
    return said


def _gone(image: str) -> str:
    """"" where the image is there, or Docker does not say."""
    found = docker("image", "inspect", "-f", "{{.Id}}", image)
    return f"image {image} is gone" if "no such image" in found.stderr.lower() else ""
