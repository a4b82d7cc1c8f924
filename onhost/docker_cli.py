"""The little that jobs ask of Docker's command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from onhost.plan import JobError

# The build and the tags go through the command line: it finds the daemon, builder and credentials as an admin
# would.
ENVIRONMENT = {**os.environ, "BUILDKIT_PROGRESS": "plain", "NO_COLOR": "1"}
SECONDS = 120.0
"""s for a command that takes seconds: a daemon that hangs would hold whoever asks it for ever."""
TAG = re.compile(r"[a-z0-9][a-z0-9._/-]*(:[0-9]+/[a-z0-9._/-]+)?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")


UNIT = "docker.service"
STOPPED = ("inactive", "deactivating", "failed")
"""States of Docker's unit in which nobody shall ask it: by its socket that would start it again."""


def unit_state() -> str:
    """The state of Docker's unit ("active", …); "" where there is no such unit, or nobody to ask."""
    words = ["systemctl", "show", "-p", "LoadState,ActiveState", UNIT]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return "" if found.get("LoadState") == "not-found" else found.get("ActiveState", "")


def check_tag(tag: str) -> str:
    """The tag itself; JobError where it is not one (and might be read as an option)."""
    if not TAG.fullmatch(tag):
        raise JobError(f"found the image tag {tag!r}; wanted name:tag; correct the plan's maker")
    return tag


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a docker command that takes seconds; one that hangs has failed with 124, as `timeout` has it.
    JobError only where there is no docker at all."""
    words = ["docker", *arguments]
    try:
        return subprocess.run(
            words, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no answer in {SECONDS:.0f} s")
    except FileNotFoundError:
        raise JobError(
            "found no docker command; wanted Docker Engine; run the deploy's docker step"
        ) from None


def inspect_image(name: str) -> dict[str, Any] | None:
    """What the daemon knows of an image by tag, digest or id; None where it has none.

    JobError without a daemon.
    """
    done = docker("image", "inspect", name)
    if done.returncode == 0:
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found[0]
    if "no such image" in done.stderr.lower():
        return None
    raise JobError(
        f"found '{done.stderr.strip()}' from docker; wanted a running daemon; see `systemctl status docker`"
    )
