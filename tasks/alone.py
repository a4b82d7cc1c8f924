"""One run at a time: what changes a cluster holds a lock on its head, and who comes second is told by whom.

The lock is a process on the head that reads from this run's connection. It ends with the connection, so a run
that was killed leaves nothing behind; where the controller's power went, it ends when nothing was heard for
a minute. A dry run changes nothing and asks for no lock.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import gevent
from pyinfra import inventory
from pyinfra.api import StringCommand
from pyinfra.connectors.util import make_unix_command_for_host

from sparkstack.errors import Problem
from tasks.site import SiteError

LOCK = "/run/sparkstack/run.lock"
WAIT_SECONDS = 5  # the lock of a run that was killed is free as soon as its connection is seen to have ended
ANSWER_SECONDS = 60
# Shorter than a run waits for a host that lost its network (tasks/fabric_try.py): the next run finds no lock.
BEAT_SECONDS, SILENT_SECONDS = 10, 55
HELD, TAKEN = "sparkstack-run-held", "sparkstack-run-taken"

# What keeps the lock's process alive: the run's end of its standard input.
_kept: list[Any] = []


def script(who: str) -> str:
    """Bash words that take the lock, say so, and hold it while lines come; or say who holds it."""
    return (
        f"umask 022; mkdir -p {PurePosixPath(LOCK).parent} && exec 9<>{LOCK} || exit 4; "
        f'flock -w {WAIT_SECONDS} 9 || {{ echo {TAKEN} "$(head -c 300 {LOCK})"; exit 3; }}; '
        f"printf '%s\\n' {shlex.quote(who)} > {LOCK}; echo {HELD}; "
        f"while read -r -t {SILENT_SECONDS} beat; do :; done"
    )


def refusal(host: str, said: str) -> Problem | None:
    """What the lock's first words mean; None where it is ours."""
    if said.startswith(HELD):
        return None
    if said.startswith(TAKEN):
        who = said.removeprefix(TAKEN).strip() or "one that has not said its name"
        found = f"another run at work ({who})"
        return Problem(host, found, "one at a time", "wait for its end, then run again")
    found = f"no lock for this run ({' '.join(said.split())[:200] or 'no answer'})"
    return Problem(host, found, f"{LOCK}, to be the only run", "see that bash and flock are there")


def ensure(host: Any) -> None:
    """Hold the head's lock from here to the end of this run; done in the head's place (where the run leaves
    the head out, that of the first host that it has). Errors: SiteError naming the run that has the lock.
    """
    head = next((one for one in inventory if one.connected), None)
    if head is None or host.name != head.name or _kept or "--dry" in sys.argv:
        return
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    who = f"{_me()} on {socket.gethostname()}, pid {os.getpid()}, since {since}"
    words = StringCommand(f"bash -c {shlex.quote(script(who))}")
    command = make_unix_command_for_host(
        head.state, head, words, _sudo=bool(head.data.get("_sudo"))
    ).get_raw_value()
    client = getattr(head.connector, "client", None)
    if client is not None:
        stdin, stdout, stderr = client.exec_command(command, timeout=ANSWER_SECONDS)
    elif head.name == "@local":
        process = subprocess.Popen(
            command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    else:
        return  # a connector that keeps no process of ours: nothing can hold a lock there
    try:
        said = stdout.readline() or stderr.read()
    except OSError as error:  # among them the end of patience
        said = str(error) or type(error).__name__
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    if problem := refusal(head.name, said):
        raise SiteError(str(problem))
    _kept.append((stdin, stdout, stderr, gevent.spawn(_beat, stdin)))


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in a container
        return f"uid {os.getuid()}"


def _beat(stdin: Any) -> None:
    while True:
        gevent.sleep(BEAT_SECONDS)
        try:
            stdin.write("\n")
            stdin.flush()
        except (OSError, EOFError):
            return  # the connection is gone, and with it the run
