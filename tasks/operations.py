"""Operations that pyinfra does not have: whole files of ours, and our wheels.

`files.put` copies over the target in place and leaves a readable temporary copy under /tmp; these write a
root-only sibling and rename it, so that a killed run leaves the old file or the new one, never half of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from pyinfra import host
from pyinfra.api import StringCommand, operation

from tasks import drift
from tasks.facts import FileStates, Text
from tasks.files import Commands, ManagedFile


@operation()
def managed_files(files: list[ManagedFile]) -> Commands:
    """Make each file exist with exactly this content, mode and owner.

    No-op when every file already has its SHA-256, mode and owner.
    """
    found = host.get_fact(FileStates, paths=[file.path for file in files])
    for file in files:
        yield from write_unless(file, found.get(file.path))


def write_unless(file: ManagedFile, found: Mapping[str, str] | None) -> Commands:
    """Write a file unless its state `found` is the wanted one."""
    if found == file.wanted():
        host.noop(f"{file.path} is as declared")
    else:
        yield file.write()


@operation()
def wheel_installed(python: str, wheel: Path, digest: str, marker: str) -> Commands:
    """Install a wheel of ours into an environment.

    No-op when `marker` (a file in the environment) holds the digest of the wheel's sources.
    """
    if (host.get_fact(Text, path=marker) or "").strip() == digest:
        host.noop(f"{wheel.name} is installed")
        return
    drift.differs(marker, "another content of the package, or none", f"{wheel.name} of {digest}")
    target = f"{host.data.state_dir}/wheels/{wheel.name}"
    yield ManagedFile.local(target, wheel).write()
    yield StringCommand(
        f"{python} -m pip install --quiet --no-index --no-deps --force-reinstall {shlex.quote(target)}"
        f" && rm -f {shlex.quote(target)}"
    )
    yield ManagedFile.text(marker, digest + "\n").write()
