"""Runs fixtures/: one folder an operation (does it change, is there nothing to do, does it fail) or a fact.

Three of our commands are shown as what they mean: `[write, PATH, MODE OWNER, TEXT]` and `[sets, PATH, JSON]`
(their shell is tried for real in test_files_for_real.py and test_undo_for_real.py), and `[fail, LINE]` (what
the user reads; the host fails).
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fake_host import FakeHost
from pyinfra.api import FunctionCommand, StringCommand

# The harness imports pyinfra_cli, which would replace the standard library's threads and sockets by gevent's
# for every other test of the same run.
with patch("gevent.monkey.patch_all"):
    import pyinfra_testing.operations as harness
    from pyinfra_testing.facts import make_fact_tests

pytestmark = pytest.mark.filterwarnings("ignore:No command set")  # of Survey

FIXTURES = Path(__file__).resolve().parent / "fixtures"
SETS = re.compile(r"^\( u=\S+; .* f=\"\$u\"/settings(\S+); .* >> \"\$f\"; \} && sync \"\$f\" \)$")
WRITE = re.compile(r"chmod (\S+) .* && chown (\S+) .* && mv -fT \S+ (\S+); ")

create_host, parse_commands = harness.create_host, harness.parse_commands


def _host(*arguments: Any, **named: Any) -> Any:
    host = create_host(*arguments, **named)
    host.data = FakeHost("spark-1").data
    return host


def _readable(commands: list[Any]) -> list[Any]:
    return [_one(command) for command in commands]


def _one(command: Any) -> Any:
    stdin = command.connector_arguments.get("_stdin")
    if isinstance(command, StringCommand) and stdin is not None:
        found = WRITE.search(command.get_raw_value())
        assert found is not None, command
        return ["write", found[3], f"{found[1]} {found[2]}", base64.b64decode(stdin).decode()]
    if isinstance(command, StringCommand) and (found := SETS.search(command.get_raw_value())):
        return ["sets", found[1], re.findall(r"'(\{.*?\})'", command.get_raw_value())[0]]
    if isinstance(command, FunctionCommand) and command.function.__name__ == "say":
        listener = FakeHost("spark-1")
        assert command.execute(None, listener, {}) is False
        return ["fail", *listener.shown]
    return parse_commands([command])[0]


harness.create_host, harness.parse_commands = _host, _readable

for folder in sorted((FIXTURES / "operations").iterdir()):
    globals()[f"Operation_{folder.name}"] = harness.make_operation_tests("tasks", folder.name, folder)

for folder in sorted((FIXTURES / "facts").iterdir()):
    globals()[f"Fact_{folder.name}"] = make_fact_tests("tasks", f"facts.{folder.name}", folder)
