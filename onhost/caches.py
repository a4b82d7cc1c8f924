"""What engines have compiled, in a Docker volume an image: kept over restarts, but not for ever.

The volume comes with the first `docker run` (sparkstack/launch.py) and says in a label whose it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from onhost.docker_cli import docker

LABEL = "sparkstack.image"
BEGAN = "engine-began"
"""In the state folder from an engine's start to its unit's end, which removes it: who finds one of another
boot knows that the host went down without an end, and that what was written last may be half there. An engine
that reads such a file would never come back by itself."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


def begins(state_dir: Path) -> None:
    """Note that an engine begins. A disk that is full costs the note, and not the start."""
    with contextlib.suppress(OSError), (state_dir / BEGAN).open("w", encoding="ascii") as file:
        file.write(BOOT.read_text(encoding="ascii"))
        file.flush()
        os.fsync(file.fileno())


def broke_off(state_dir: Path) -> bool:
    """Did this host go down with an engine, without ending it?"""
    with contextlib.suppress(OSError):
        return (state_dir / BEGAN).read_text(encoding="ascii") != BOOT.read_text(encoding="ascii")
    return False


def tidy(image: str, distrust: bool) -> list[str]:
    """Remove the volumes of images that are gone, and with `distrust` also `image`'s own; a line for each.
    A volume that is in use stays, and a Docker that does not answer is nobody's problem here: what is left
    costs disk, and is looked at again before the next start.
    """
    form = '{{.Name}} {{.Label "' + LABEL + '"}}'
    listed = docker("volume", "ls", "--filter", f"label={LABEL}", "--format", form)
    said = []
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        volume, _, owner = line.partition(" ")
        if owner == image:
            why = "this host went down while its engine ran" if distrust else ""
        else:
            found = docker("image", "inspect", "-f", "{{.Id}}", owner)
            why = f"image {owner} is gone" if "no such image" in found.stderr.lower() else ""
        if why and docker("volume", "rm", volume).returncode == 0:
            said.append(f"what engines compiled in {volume} is removed: {why}")
    return said
