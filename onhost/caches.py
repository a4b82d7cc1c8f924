"""What engines have compiled, in a Docker volume an image: kept over restarts, but not for ever.

The volume comes with the first `docker run` (sparkstack/launch.py) and says in a label whose it is.
"""

from __future__ import annotations

from onhost.docker_cli import docker

LABEL = "sparkstack.image"
DISTRUST = 3
"""Starts in a row that failed, after which what was compiled is thrown away once: a power cut can leave half
a file, and an engine that reads it would never come back by itself."""


def tidy(image: str, failed: int) -> list[str]:
    """Remove the volumes of images that are gone, and `image`'s own at the third start in a row that failed;
    a line for each. A volume that is in use stays, and a Docker that does not answer is nobody's problem
    here: what is left costs disk, and is looked at again before the next start.
    """
    form = '{{.Name}} {{.Label "' + LABEL + '"}}'
    listed = docker("volume", "ls", "--filter", f"label={LABEL}", "--format", form)
    said = []
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        volume, _, owner = line.partition(" ")
        if owner == image:
            why = f"{failed} starts in a row failed" if failed == DISTRUST else ""
        else:
            found = docker("image", "inspect", "-f", "{{.Id}}", owner)
            why = f"image {owner} is gone" if "no such image" in found.stderr.lower() else ""
        if why and docker("volume", "rm", volume).returncode == 0:
            said.append(f"what engines compiled in {volume} is removed: {why}")
    return said
