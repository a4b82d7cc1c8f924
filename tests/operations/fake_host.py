"""A host for tests of operations: it returns given facts, answers shell commands, notes what it hears.

`facts` maps a fact's class to its value, or to a function of the fact's arguments. `answers` maps a part of a
command to what the host says to it: text, (False, text) for a failure, an exception to raise, or a list of
these for one call after the other (the last one stays).
"""

from __future__ import annotations

import base64
import inspect
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host

ROOT = Path(__file__).resolve().parents[2]
GROUP_DATA = runpy.run_path(str(ROOT / "group_data" / "all.py"))


class Data(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class FakeHost:
    def __init__(self, name: str, facts: Any = None, answers: Any = None, **data: Any) -> None:
        known = {key: value for key, value in GROUP_DATA.items() if not key.startswith("__")}
        self.name, self.data = name, Data(**{**known, **data})
        self.facts, self.answers = dict(facts or {}), dict(answers or {})
        self.heard: list[str] = []  # shell commands
        self.shown: list[str] = []  # lines that the user sees
        self.noops: list[str] = []

    def get_fact(self, fact: type, **arguments: Any) -> Any:
        value = self.facts[fact]
        return value(**arguments) if callable(value) else value

    def run_shell_command(self, command: StringCommand, **arguments: Any) -> tuple[bool, CommandOutput]:
        text = command.get_raw_value()
        self.heard.append(text)
        answer = next((self.answers[part] for part in self.answers if part in text), "")
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        ok, said = answer if isinstance(answer, tuple) else (True, answer)
        lines = [OutputLine("stdout" if ok else "stderr", line) for line in said.split("\n") if said]
        return ok, CommandOutput(lines)

    def noop(self, line: str) -> None:
        self.noops.append(line)

    def log_styled(self, line: str, **style: Any) -> None:
        self.shown.append(line)


def commands_of(operation: Any, host: FakeHost, *arguments: Any) -> list[Any]:
    """What the operation would do to `host`."""
    with ctx_host.use(host):
        return list(operation._inner(*arguments))


def follow(commands: list[Any], host: FakeHost) -> bool:
    """Run the operation's functions in order, as pyinfra does, up to the first that fails the host."""
    for command in commands:
        if isinstance(command, FunctionCommand):
            names = inspect.signature(command.function).parameters
            # pyinfra hands over the state and the host only where the parameters have just these names.
            assert "state" in names and "host" in names, f"{command.function.__name__}{tuple(names)}"
            if command.execute(None, host, {}) is False:
                return False
    return True


def shell_lines(commands: list[Any]) -> list[str]:
    return [command.get_raw_value() for command in commands if isinstance(command, StringCommand)]


def written(commands: list[Any]) -> dict[str, str]:
    """`{path: text}` of the files that the commands put in place."""
    files = {}
    for command in commands:
        stdin = command.connector_arguments.get("_stdin")
        target = re.search(r"&& mv -fT \S+ (\S+)$", str(command))
        if stdin is not None and target:
            files[target[1]] = base64.b64decode(stdin).decode(errors="replace")
    return files
