"""One run at a time: what changes a cluster holds a lock on its head, and who comes second is told by whom.

The lock is a process on the head that reads from this run's connection. It ends with the connection, so a run
that was killed leaves nothing behind; where the controller's power went, it ends when nothing was heard for
a minute. So it does where the controller slept, or its network was away: before each operation, and before
each command of one, a run that may have lost the lock takes it again if nobody had it since, else it ends
with one line. A dry run changes nothing and asks for no lock.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import gevent
from gevent.lock import RLock
from paramiko import SSHException
from pyinfra import inventory
from pyinfra.api import StringCommand
from pyinfra.api.state import BaseStateCallback
from pyinfra.connectors.util import make_unix_command_for_host

from sparkstack.errors import Problem
from tasks import report
from tasks.site import SiteError

LOCK = "/run/sparkstack/run.lock"
WAIT_SECONDS = 5  # the lock of a run that was killed is free as soon as its connection is seen to have ended
ENDS_SECONDS = 5  # for a process of our own that was told to end
ANSWER_SECONDS = 60
# Shorter than a run waits for a host that lost its network (tasks/fabric_try.py): the next run finds no lock.
BEAT_SECONDS, SILENT_SECONDS = 10, 55
HELD, TAKEN = "sparkstack-run-held", "sparkstack-run-taken"


@dataclass
class Held:
    """The lock of this run: the connection that keeps its process on `head` alive, and when that process was
    last known to hear us (s of a clock that goes on while this machine sleeps)."""

    head: Any
    who: str
    streams: tuple[Any, Any, Any]
    process: Any  # of a lock on this machine; None over ssh
    heard: float
    ended: bool = False
    lost: str = ""  # the line with which the run ends

    @property
    def doubtful(self) -> bool:
        """Has the lock's process ended, or may it end before it hears of us?"""
        channel = getattr(self.streams[1], "channel", None)
        closed = channel is not None and channel.closed
        gone = self.process is not None and self.process.poll() is not None
        return self.ended or closed or gone or _clock() - self.heard > SILENT_SECONDS - BEAT_SECONDS

    def close(self) -> None:
        """End the lock's process, where it still hears us."""
        self.ended = True
        for stream in self.streams:
            with suppress(OSError, EOFError):
                getattr(stream, "channel", stream).close()


# The one lock of this run, its operations' greenlets, and who of them looks after it just now.
_kept: list[Held] = []
_working: weakref.WeakSet[Any] = weakref.WeakSet()
_looking = RLock()


def _clock() -> float:
    # Python's monotonic clock stands still while a laptop sleeps.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def script(who: str, again: bool = False) -> str:
    """Bash words that take the lock, say so, and hold it while lines come, each of which is answered; or say
    who holds it. `again`: only where nobody had it since `who`, whose last process may still wait for a
    connection that is gone, and is ended."""
    taken = f'{{ echo {TAKEN} "$(head -n 1 {LOCK} | head -c 300)"; exit 3; }}'
    mine = f'[ "$(head -n 1 {LOCK})" = {shlex.quote(who)} ] || {taken}; '
    # Its number is in the file; that it is still the same process, its open file says.
    old = f'old=$(sed -n 2p {LOCK}); [ "$(readlink /proc/$old/fd/9)" = {LOCK} ] && kill $old; '
    return (
        f"umask 022; mkdir -p {PurePosixPath(LOCK).parent} && exec 9<>{LOCK} || exit 4; "
        + (mine + old if again else "")
        + f"flock -w {ENDS_SECONDS if again else WAIT_SECONDS} 9 || {taken}; "
        + (mine if again else "")
        + f"printf '%s\\n%s\\n' {shlex.quote(who)} $$ > {LOCK}; "
        f"echo {HELD}; while read -r -t {SILENT_SECONDS} beat; do echo; done"
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


def loss(host: str, said: str) -> Problem | None:
    """As `refusal`, for a run that had the lock before and asks for it again."""
    if said.startswith(HELD):
        return None
    if said.startswith(TAKEN):
        who = said.removeprefix(TAKEN).strip() or "nobody's name: the host was started anew"
        found = f"that this run lost its lock, and since then: {who}"
        remedy = "this machine slept, or its network was away; nothing more was changed; run again"
        return Problem(host, found, "to be the only run from beginning to end", remedy)
    found = f"that this run lost its lock and gets no other ({' '.join(said.split())[:200] or 'no answer'})"
    return Problem(host, found, f"{LOCK}, to be the only run", "nothing more was changed; run again")


def ensure(host: Any, script_name: str = "") -> None:
    """Hold the head's lock from here to the end of this run; done in the head's place (where the run leaves
    the head out, that of the first host that it has). `script_name` is told to who comes meanwhile, where it
    is not a deployment. Errors: SiteError naming the run that has the lock.
    """
    head = next((one for one in inventory if one.connected), None)
    if head is None or host.name != head.name or _kept or "--dry" in sys.argv:
        return
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    doing = f" with {script_name}" if script_name else ""
    who = f"{_me()} on {socket.gethostname()}{doing}, pid {os.getpid()}, since {since}"
    began = _clock()
    taken = _take(head, script(who))
    if taken is None:
        return  # a connector that keeps no process of ours: nothing can hold a lock there
    streams, process, said = taken
    if problem := refusal(head.name, said):
        raise SiteError(str(problem))
    held = Held(head, who, streams, process, began)
    _kept.append(held)
    gevent.spawn(_beat, held, streams)
    head.state.add_callback_handler(_Events())  # type: ignore[no-untyped-call]
    for one in inventory:
        for name in ("run_shell_command", "put_file"):
            setattr(one, name, partial(_guarded, one, getattr(one, name)))


def _take(head: Any, text: str) -> tuple[tuple[Any, Any, Any], Any, str] | None:
    """Run the words of `script` on the head: its streams, its process where it is one of this machine's, and
    its first line (or what came in its place)."""
    words = StringCommand(f"bash -c {shlex.quote(text)}")
    command = make_unix_command_for_host(
        head.state, head, words, _sudo=bool(head.data.get("_sudo"))
    ).get_raw_value()
    client, process = getattr(head.connector, "client", None), None
    if client is not None:
        # Not by the client's exec_command: its standard input shuts the channel down when Python takes it
        # away, at the end of a run even after gevent, whose lock it needs, and that is a traceback.
        channel = client.get_transport().open_session(timeout=ANSWER_SECONDS)
        channel.settimeout(ANSWER_SECONDS)
        channel.exec_command(command)
        stdin, stdout, stderr = channel.makefile("w"), channel.makefile("r"), channel.makefile_stderr("r")
    elif head.name == "@local":
        process = subprocess.Popen(
            command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    else:
        return None
    try:
        said = stdout.readline() or stderr.read()
    except OSError as error:  # among them the end of patience
        said = str(error) or type(error).__name__
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    return (stdin, stdout, stderr), process, said


def _keep(held: Held) -> bool:
    """See to it that the run still has its lock: False, and a line once, where it has not."""
    with _looking:  # several hosts come here at the same time
        if held.doubtful and not held.lost:
            held.close()
            began = _clock()
            try:
                with gevent.Timeout(ANSWER_SECONDS, TimeoutError("no answer")):
                    taken = _take(held.head, script(held.who, again=True))
                said = taken[2] if taken is not None else ""
            except (OSError, EOFError, SSHException, AttributeError) as error:  # the last: of a closed client
                taken, said = None, str(error) or type(error).__name__
            if problem := loss(held.head.name, said):
                held.lost = str(problem)
                report.note_failure(held.head.name, held.lost)
            elif taken is not None:
                held.streams, held.process, _ = taken
                held.heard, held.ended = began, False
                gevent.spawn(_beat, held, held.streams)
    return not held.lost


class _Events(BaseStateCallback):
    """Looks before each operation, and ends the run behind one in which the lock was found lost."""

    @staticmethod
    def operation_start(state: Any, op_hash: str) -> None:
        if not all(map(_keep, _kept)):
            raise SiteError(_kept[0].lost)

    @staticmethod
    def operation_host_start(state: Any, host: Any, op_hash: str) -> None:
        _working.add(gevent.getcurrent())

    @staticmethod
    def operation_end(state: Any, op_hash: str) -> None:
        if _kept and _kept[0].lost:
            raise SiteError(_kept[0].lost)


def _guarded(host: Any, run: Callable[..., Any], *words: Any, **arguments: Any) -> Any:
    """What runs a command on a host, for a command of an operation: not without the lock.

    Greenlets that an operation has of its own ask with a limit in time (a host whose network is tried, say):
    those are not held up here. While the head itself cannot be asked, the next operation is the one that
    waits for it.
    """
    if host.state.is_executing and gevent.getcurrent() in _working and _kept:
        held = _kept[0]
        if (held.lost or (held.doubtful and held.head.connected)) and not _keep(held):
            raise gevent.GreenletExit  # silent; `operation_end` says it once for all hosts
    return run(*words, **arguments)


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in a container
        return f"uid {os.getuid()}"


def _beat(held: Held, streams: tuple[Any, Any, Any]) -> None:
    stdin, stdout, _ = streams
    while held.streams is streams and not held.ended:
        gevent.sleep(BEAT_SECONDS)
        began = _clock()
        try:
            stdin.write("\n")
            stdin.flush()
            answered = bool(stdout.readline())
        except (OSError, EOFError, ValueError):
            answered = False
        if held.streams is not streams:
            return
        if not answered:
            held.ended = True  # the connection is gone, and with it the lock
        else:
            held.heard = began
