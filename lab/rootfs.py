"""A Debian root file system becomes a Docker image: mmdebstrap into `docker import`, no registry needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lab.paths import LabError, Progress, image_labels

SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def import_rootfs(tag: str, packages: Sequence[str], progress: Progress, stage: str = "rootfs") -> None:
    """Makes image `tag` from Debian's minimal system and `packages` (needs root; about a minute).

    The mirrors are mmdebstrap's own default, so this machine's apt configuration decides where they are.
    Raises LabError with mmdebstrap's last words when it fails.
    """
    check({"mmdebstrap": "mmdebstrap", "docker": "docker.io (or docker-cli)"})
    with tempfile.TemporaryDirectory(prefix="sparkstack-rootfs-") as scratch:
        archive = Path(scratch) / "rootfs.tar"
        bootstrap(archive, packages, progress, stage)
        progress(stage, len(packages), None, "importing")
        changes = [f"--change=LABEL {key}={value}" for key, value in image_labels().items()]
        done = subprocess.run(
            ["docker", "import", *changes, str(archive), tag], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise LabError(f"docker import of {tag}: {done.stderr.strip()[-300:]}")


def check(tools: Mapping[str, str]) -> None:
    """Raises LabError where a tool (its package is the value), Debian's keyring or root is missing."""
    for tool, package in tools.items():
        if shutil.which(tool) is None:
            raise LabError(f"the lab needs {tool}: apt install {package}")
    if not KEYRING.exists():
        raise LabError(f"{KEYRING} is missing: apt install debian-archive-keyring")
    if os.geteuid() != 0:
        raise LabError("making the lab's image needs root: use ./try, or sudo")


def bootstrap(
    target: Path, packages: Sequence[str], progress: Progress, stage: str, options: Sequence[str] = ()
) -> None:
    """Debian's minimal system and `packages` into `target`: an archive (.tar), or a folder (no suffix).

    `options` are further ones of mmdebstrap, such as hooks. Raises LabError.
    """
    command = [
        "mmdebstrap",
        "--variant=minbase",
        f"--keyring={KEYRING}",
        f"--include={','.join(packages)}",
        *options,
        '--customize-hook=rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/*',
        SUITE,
        str(target),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        tail: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=_follow, args=(process.stderr, tail, progress, stage))
        reader.start()
        status = process.wait()
        reader.join()
    if status != 0:
        errors = [line for line in tail if line.startswith("E:")] or tail
        raise LabError(f"mmdebstrap ended with {status}: {' '.join(errors)[-400:]}")


def _follow(stream: IO[str], tail: list[str], progress: Progress, stage: str) -> None:
    """Passes mmdebstrap's information lines on as progress; keeps the last lines in `tail`."""
    count = 0
    for line in stream:
        line = line.strip()
        tail.append(line)
        del tail[:-20]
        if line.startswith("I: "):
            count += 1
            progress(stage, count, None, line[3:].rstrip("."))
