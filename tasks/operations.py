"""Operations that pyinfra does not have: whole files of ours, merged JSON, and host jobs.

`files.put` copies over the target in place and leaves a readable temporary copy under /tmp; these write a
root-only sibling and rename it, so that a killed run leaves the old file or the new one, never half of it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import StringCommand, operation

from sparkstack import daemon_json
from sparkstack.errors import SparkstackError
from tasks import undo
from tasks.facts import FileStates, Text
from tasks.files import Commands, ManagedFile
from tasks.remote import fail


@operation()
def managed_files(files: list[ManagedFile]) -> Commands:
    """Make each file exist with exactly this content, mode and owner.

    No-op when every file already has its SHA-256, mode and owner.
    """
    found = host.get_fact(FileStates, paths=[file.path for file in files])
    for file in files:
        if found.get(file.path) == file.wanted():
            host.noop(f"{file.path} is as declared")
        else:
            yield file.write()


@operation()
def merged_daemon_json(path: str, settings: dict[str, Any]) -> Commands:
    """Merge `settings` into Docker's daemon.json; keys of others stay, lists become exactly ours.

    No-op when the file already says so. The file as it was before our first change stays beside it
    as `<path>.before-sparkstack`. A file that is not JSON fails the host and is left alone.
    """
    current = host.get_fact(Text, path=path)
    try:
        wanted = daemon_json.merge(current, settings)
    except SparkstackError as error:
        yield fail(str(error))
        return
    if wanted == current:
        host.noop(f"{path} has the declared settings")
        return
    quoted, backup = shlex.quote(path), shlex.quote(path + ".before-sparkstack")
    if current is not None:
        yield StringCommand(f"test -e {backup} || cp -p {quoted} {backup}")
    yield StringCommand(undo.sets(path, settings))
    yield ManagedFile.text(path, wanted).write()


@operation()
def wheel_installed(python: str, wheel: Path, digest: str, marker: str) -> Commands:
    """Install a wheel of ours into an environment.

    No-op when `marker` (a file in the environment) holds the digest of the wheel's sources.
    """
    if (host.get_fact(Text, path=marker) or "").strip() == digest:
        host.noop(f"{wheel.name} is installed")
        return
    target = f"{host.data.state_dir}/wheels/{wheel.name}"
    yield ManagedFile.local(target, wheel).write()
    yield StringCommand(
        f"{python} -m pip install --quiet --no-index --no-deps --force-reinstall {shlex.quote(target)}"
        f" && rm -f {shlex.quote(target)}"
    )
    yield ManagedFile.text(marker, digest + "\n").write()
