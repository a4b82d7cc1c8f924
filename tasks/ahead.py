"""Facts asked ahead: all that the operations of a run will ask of a host, in one command.

A command over SSH takes more of the controller's processor than most facts take of the host's, and each is
waited for. So `plan` asks for all that the first stages ask while the run is declared, and the hosts work
meanwhile; what the stages of the release ask is asked together when the first of it is wanted. Operations
ask as ever, with `host.get_fact`, and get the lines that their own command would have printed.

Honest is what is not remembered: an answer counts until anything but a fact runs on the host, whoever runs
it, and for ten seconds at most; then what is still to come of its batch is asked again, again together. A
command that failed is not remembered; it is run again when an operation asks, and says itself what is wrong.
Facts that go by the clock, or take long, are `ALONE`: never asked ahead, nor remembered. `KEPT` are not
asked ahead either, but remembered. What waits for a change must not wait by a fact that is asked ahead;
`tasks.remote.shell` is for that.
"""

from __future__ import annotations

import functools
import math
import secrets
import shlex
import time
from collections.abc import Sequence
from typing import Any

from gevent.local import local
from gevent.lock import RLock
from paramiko import SSHException
from pyinfra.api import StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.connectors.util import CommandOutput, OutputLine

from sparkstack.errors import SparkstackError
from sparkstack.stages import OF_RELEASE
from tasks import (
    benchmark,
    checkpoint,
    conda,
    docker,
    fabric,
    host,
    image,
    link_gate,
    link_nccl,
    preflight,
    quicker,
    serve,
)
from tasks.docker import Mirrors
from tasks.facts import Ask, Completes, Survey
from tasks.site import Site

MAX_AGE_SECONDS = 10.0
ALONE = (Survey, Completes)
KEPT = (Mirrors,)
STAGES = {
    "preflight": preflight.asks,
    "host": host.asks,
    "docker": docker.asks,
    "conda": conda.asks,
    "fabric": fabric.asks,
    "link": link_gate.asks,
    "image": image.asks,
    "nccl": link_nccl.asks,
    "checkpoint": checkpoint.asks,
    "serve": serve.asks,
    "benchmark": benchmark.asks,
}


def plan(site: Site, stages: list[str]) -> None:
    """Ask this host for the facts of these stages, and remember the answers for their operations."""
    me = site.host
    quicker.make_quicker(me)
    if not isinstance(me.connector, Connector):
        me.connector = Connector(me.connector)
        me.get_fact = functools.partial(me.connector.reading, me.get_fact)
    asks = [
        (stage in OF_RELEASE, fact, _text(fact().command(**words)))
        for stage in stages
        for fact, words in _asks(site, stage)
    ]
    # Two: a change in one does not ask for the other's again.
    batches = [
        [text for late, fact, text in asks if late is of_release and fact not in (*ALONE, *KEPT)]
        for of_release in (False, True)
    ]
    # As pyinfra will have them for the operations' own questions.
    globally, _ = pop_global_arguments(me.state, me, {})
    me.connector.ask_ahead(
        batches,
        {name: value for name, value in globally.items() if name in CONNECTOR_ARGUMENT_KEYS},
        [text for _, fact, text in asks if fact in KEPT],
    )


def _asks(site: Site, stage: str) -> list[Ask]:
    try:
        return STAGES[stage](site)
    except SparkstackError:
        return []  # a mistake in what is declared: the stage itself says it, in its place


class Connector:
    """A host's connector that answers what is remembered, and passes on everything else."""

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._batches: list[list[str]] = []  # what is asked together, in the order of the questions
        self._arguments: dict[str, Any] = {}  # pyinfra's (sudo…), with which they will be asked
        self._answers: dict[str, tuple[float, list[str] | None]] = {}  # when asked; None: it failed
        self._used: set[tuple[int, str]] = set()  # (batch, command)
        self._executing = False
        # A host that takes long for all is asked for each alone: else, what has aged meanwhile would be asked
        # for again with every next one.
        self._slow = False
        # How often something else began or ended here: answers that were on their way then are not kept.
        self._others = 0
        # Hosts ask one another, too: who comes while an answer is on its way waits for it.
        self._asking = RLock()
        self._reading = local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def ask_ahead(
        self, batches: list[list[str]], arguments: dict[str, Any], kept: Sequence[str] = ()
    ) -> None:
        """Ask what is planned in the first of `batches` that has anything. `kept`: each is asked when it is
        wanted, by itself."""
        with self._asking:
            self._batches, self._arguments = [*batches, *([one] for one in kept)], arguments
            if any(batches):
                first = next(batch for batch, planned in enumerate(batches) if planned)
                self._ask(first, batches[first][0], {})

    def reading(self, get_fact: Any, *words: Any, **arguments: Any) -> Any:
        """`get_fact` of pyinfra's host: what it runs, as every fact's command, changes nothing."""
        before = getattr(self._reading, "now", False)
        self._reading.now = True
        try:
            return get_fact(*words, **arguments)
        finally:
            self._reading.now = before

    def run_shell_command(
        self, command: StringCommand | str, **arguments: Any
    ) -> tuple[bool, CommandOutput]:
        """As pyinfra's connectors: (success, output)."""
        text = _text(command)
        printing = {name: arguments.pop(name) for name in [*arguments] if name.startswith("print_")}
        with self._asking:
            batch = self._batch(text)
            if batch is not None and arguments == self._arguments:
                asked_at, _ = self._answers.get(text, (-math.inf, None))
                if time.monotonic() - asked_at > MAX_AGE_SECONDS:
                    self._ask(batch, text, printing)
                _, lines = self._answers.get(text, (0.0, None))
                if lines is not None:
                    self._used.add((batch, text))
                    return True, CommandOutput([OutputLine("stdout", line) for line in lines])
        run = self._connector.run_shell_command
        if not getattr(self._reading, "now", False):
            run = functools.partial(self._other, run)
        return run(command, **printing, **arguments)  # type: ignore[no-any-return]

    def put_file(self, *words: Any, **arguments: Any) -> Any:
        return self._other(self._connector.put_file, *words, **arguments)

    def rsync(self, *words: Any, **arguments: Any) -> Any:
        return self._other(self._connector.rsync, *words, **arguments)

    def _other(self, run: Any, *words: Any, **arguments: Any) -> Any:
        """What may change the host."""
        self._forget()
        try:
            return run(*words, **arguments)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._others += 1
        self._answers = {}

    def _batch(self, text: str) -> int | None:
        """Which batch this command belongs to now: the first in which it has not been used, else the last."""
        found = [batch for batch, planned in enumerate(self._batches) if text in planned]
        unused = [batch for batch in found if (batch, text) not in self._used]
        return unused[0] if unused else found[-1] if found else None

    def _ask(self, batch: int, text: str, printing: dict[str, Any]) -> None:
        """Run, as one command, `text` and what is planned in its batch and still to be used."""
        if self._connector.state.is_executing != self._executing:
            # pyinfra's look at changes, before it executes, has used everything once.
            self._executing, self._used = not self._executing, set()
        # What an operation asked for once, the next one seldom asks for again.
        others, asked_at = self._others, time.monotonic()
        fresh = {one for one, (when, _) in self._answers.items() if asked_at - when <= MAX_AGE_SECONDS}
        rest = [one for one in self._batches[batch] if (batch, one) not in self._used and one not in fresh]
        commands = list(dict.fromkeys([text, *([] if self._slow else rest)]))
        for one in commands:
            self._answers.pop(one, None)
        word = secrets.token_hex(8)
        script = "".join(
            # A shell of its own, as far as a subshell is one: what it sets, and where it ends, is its own.
            f"(eval {shlex.quote(one)}) </dev/null\nprintf '\\n{word} %s\\n' $?\n"
            for one in commands
        )
        # On standard input, for one argument of a command is at most 128 KiB.
        try:
            ok, output = self._connector.run_shell_command(
                StringCommand("sh"), **printing, **{**self._arguments, "_stdin": script}
            )
        except (OSError, EOFError, SSHException):
            return  # the next command says it, to whoever runs it
        self._slow |= time.monotonic() - asked_at > MAX_AGE_SECONDS / 2
        if ok and others == self._others:
            found = _parts(commands, output.stdout_lines, word)
            self._answers |= {one: (asked_at, lines) for one, lines in found.items()}


def _text(command: StringCommand | str) -> str:
    return command if isinstance(command, str) else str(command.get_raw_value())


def _parts(commands: list[str], lines: list[str], word: str) -> dict[str, list[str] | None]:
    """`{command: lines}`; None for one that failed. The newline before each `word` was made for it."""
    found: dict[str, list[str] | None] = {}
    left, begin = iter(commands), 0
    for at, line in enumerate(lines):
        if line.startswith(f"{word} "):
            command = next(left)
            # Where the output ended with a newline, too, there is an empty line between.
            part = lines[begin : at - 1] if lines[begin:at][-1:] == [""] else lines[begin:at]
            found[command] = part if line == f"{word} 0" else None
            begin = at + 1
    return found
