"""Facts asked ahead: all that the operations of a run will ask of a host, in one command.

A command over SSH takes more of the controller's processor than most facts take of the host's, and each is
waited for. So `plan` asks for all of them while the run is declared, and the hosts work meanwhile. Operations
ask as ever, with `host.get_fact`, and get the lines that their own command would have printed.

Honest is what is not remembered: an answer counts until anything but a fact runs on the host, whoever runs
it, and for ten seconds at most; then all that is still to come is asked again, again together. A command that
failed is not remembered; it is run again when an operation asks, and says itself what is wrong. Facts that go
by the clock, or take long, are `ALONE`: never asked ahead. What waits for a change must not wait by a fact
that is asked ahead; `tasks.remote.shell` is for that.
"""

from __future__ import annotations

import functools
import secrets
import shlex
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from gevent.local import local
from gevent.lock import RLock
from paramiko import SSHException
from pyinfra.api import StringCommand, arguments
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.connectors.util import CommandOutput, OutputLine

from tasks import conda, docker, fabric, host, link_gate, preflight
from tasks.docker import Mirrors
from tasks.facts import Survey
from tasks.site import Site

MAX_AGE_SECONDS = 10.0
ALONE = (Survey, Mirrors)
STAGES = {
    "preflight": preflight.asks,
    "host": host.asks,
    "docker": docker.asks,
    "conda": conda.asks,
    "fabric": fabric.asks,
    "link": link_gate.asks,
}


def plan(site: Site, stages: list[str]) -> None:
    """Ask this host for the facts of these stages, and remember the answers for their operations."""
    me = site.host
    if not isinstance(me.connector, Connector):
        me.connector = Connector(me.connector)
        me.get_fact = functools.partial(me.connector.reading, me.get_fact)
    asks = [ask for stage in stages if stage in STAGES for ask in STAGES[stage](site)]
    # As pyinfra will have them for the operations' own questions.
    globally, _ = pop_global_arguments(me.state, me, {})
    me.connector.ask_ahead(
        [_text(fact().command(**words)) for fact, words in asks if fact not in ALONE],
        {name: value for name, value in globally.items() if name in CONNECTOR_ARGUMENT_KEYS},
    )
    if file := me.state.current_exec_filename:
        register(file)
    remember_arguments()


def remember_arguments() -> None:
    """At each fact and operation pyinfra works out anew, from annotations that are text, which global
    arguments there are (`_sudo`…) and of which types. They are the same at any time; that is 1 ms of each."""
    if not hasattr(arguments.all_global_arguments, "cache_info"):
        arguments.all_global_arguments = functools.cache(arguments.all_global_arguments)


def register(file: str) -> None:
    """Make a deploy file the file of a module.

    At each operation pyinfra looks up the source of every frame on the stack; for a file of no module Python
    goes through all modules, and pyinfra runs deploy files without one. That is 5 ms an operation and host.
    """
    path = str(Path(file).absolute())
    if path not in sys.modules:  # by its path, so that no import finds it
        module = ModuleType(path)
        module.__file__ = path
        sys.modules[path] = module


class Connector:
    """A host's connector that answers what is remembered, and passes on everything else."""

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._planned: list[str] = []  # in the order in which they will be asked
        self._arguments: dict[str, Any] = {}  # pyinfra's (sudo…), with which they will be asked
        self._answers: dict[str, list[str] | None] = {}  # None: it failed
        self._used: set[str] = set()
        self._asked_at = 0.0
        self._executing = False
        # How often something else began or ended here: answers that were on their way then are not kept.
        self._others = 0
        # Hosts ask one another, too: who comes while an answer is on its way waits for it.
        self._asking = RLock()
        self._reading = local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def ask_ahead(self, planned: list[str], arguments: dict[str, Any]) -> None:
        """Ask what is `planned`."""
        with self._asking:
            self._planned, self._arguments = planned, arguments
            if planned:
                self._ask(planned[0], {})

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
            if text in self._planned and arguments == self._arguments:
                if text not in self._answers or time.monotonic() - self._asked_at > MAX_AGE_SECONDS:
                    self._ask(text, printing)
                lines = self._answers.get(text)
                if lines is not None:
                    self._used.add(text)
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

    def _ask(self, text: str, printing: dict[str, Any]) -> None:
        """Run, as one command, `text` and what is planned and still to be used."""
        if self._connector.state.is_executing != self._executing:
            # pyinfra's look at changes, before it executes, has used everything once.
            self._executing, self._used = not self._executing, set()
        # What an operation asked for once, the next one seldom asks for again.
        rest = [one for one in self._planned if one not in self._used]
        commands = list(dict.fromkeys([text, *rest]))
        self._answers = {}
        others, self._asked_at = self._others, time.monotonic()
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
        if ok and others == self._others:
            self._answers = _parts(commands, output.stdout_lines, word)


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
