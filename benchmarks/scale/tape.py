"""A run as if each host had cores of its own: `python -m benchmarks.scale.tape record|put|replay FILE …`.

All virtual Sparks share this machine's cores, so what hosts do side by side takes here as long as one after
another. `record` runs pyinfra (by the words behind FILE) with one command on one host at a time, and notes
what each took and said; what is asked together is noted part by part. `replay` runs it again: connections,
SSH, sudo and all of the controller are real, and each command, a stand-in for the real one, sleeps on its
host for what the real one took, and sends what that had said from the host's file in FOLDER (`put` lays them
there).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# First: it makes sockets gevent's.
from pyinfra_cli.main import main as pyinfra  # type: ignore[import-untyped]

# isort: split
from gevent.lock import RLock
from pyinfra.api import StringCommand
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import CommandOutput, OutputLine

FOLDER = "/var/tmp/sparkstack-tape"
WORD = "0123456789abcdef"  # tasks.ahead's mark between answers is the same in both runs
PART = re.compile(rf"\(eval .*?\) </dev/null\nprintf '\\n{WORD} %s\\n' \$\?\n", re.DOTALL)
PROBES = 5

run = SSHConnector.run_shell_command
alone = RLock()


def parts(host: str, command: Any, arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What a command is on the tape: `[(key, arguments)]`, one for each question that is asked together."""
    text = command if isinstance(command, str) else str(command.get_raw_value())
    stdin = arguments.get("_stdin")
    asked = PART.findall(stdin) if text == "sh" and isinstance(stdin, str) else []
    found = [{**arguments, "_stdin": one} for one in asked] or [arguments]
    words = [f"{host}\0{text}\0{one.get('_stdin')}\0{one.get('_sudo')}" for one in found]
    return [(hashlib.sha256(key.encode()).hexdigest(), one) for key, one in zip(words, found, strict=True)]


def record(path: Path) -> None:
    """Note what every command takes and says, one at a time."""
    tape: dict[str, Any] = {}
    path.write_text("{}")

    def recording(self: Any, command: Any, **arguments: Any) -> tuple[bool, CommandOutput]:
        ok, lines = True, []
        with alone:
            if self.host.name not in tape:
                # What SSH and sudo take of each: that is real in the replay.
                tape[self.host.name] = {"own_s": min(_took(self, arguments) for _ in range(PROBES))}
            for key, one in parts(self.host.name, command, arguments):
                began = time.monotonic()
                ok, output = run(self, command, **one)
                seconds = time.monotonic() - began - tape[self.host.name]["own_s"]
                said = [[line.buffer_name, line.line] for line in output.combined_lines]
                tape[key] = {"host": self.host.name, "s": max(seconds, 0.0), "ok": ok, "said": said}
                lines += output.combined_lines
            path.write_text(json.dumps(tape))
        return ok, CommandOutput(lines)

    SSHConnector.run_shell_command = recording  # type: ignore[method-assign, assignment]


def _took(connector: Any, arguments: dict[str, Any]) -> float:
    began = time.monotonic()
    run(connector, StringCommand("true"), **{**arguments, "_stdin": None})
    return time.monotonic() - began


def put(path: Path) -> None:
    """Lay the tape's answers on the hosts. They go with the lab."""
    tape = json.loads(path.read_text())
    for key, one in tape.items():
        if "said" not in one:
            continue
        text = "".join(line + "\n" for buffer, line in one["said"] if buffer == "stdout")
        words = ["docker", "exec", "-i", one["host"], "sh", "-c", f"mkdir -p {FOLDER}; cat > {FOLDER}/{key}"]
        subprocess.run(words, input=text, text=True, check=True)


def replay(path: Path) -> None:
    """Answer from the tape, after as long as the host took."""
    tape = json.loads(path.read_text())

    def replaying(self: Any, command: Any, **arguments: Any) -> tuple[bool, CommandOutput]:
        keys = [key for key, _ in parts(self.host.name, command, arguments)]
        if missing := [key for key in keys if key not in tape]:
            raise SystemExit(f"tape: found no answer to {missing} ({command}); wanted the recorded run again")
        answers = [tape[key] for key in keys]
        files = " ".join(f"{FOLDER}/{key}" for key in keys)
        seconds = sum(one["s"] for one in answers)
        run(self, StringCommand(f"sleep {seconds:.3f}; cat {files}"), **arguments)
        said = [OutputLine(*line) for one in answers for line in one["said"]]
        return answers[-1]["ok"], CommandOutput(said)

    SSHConnector.run_shell_command = replaying  # type: ignore[method-assign, assignment]


def main() -> None:
    how, path, *words = sys.argv[1:]
    secrets.token_hex = lambda nbytes=None: WORD
    {"record": record, "put": put, "replay": replay}[how](Path(path))
    if how != "put":
        sys.argv = ["pyinfra", *words]
        pyinfra()


if __name__ == "__main__":
    main()
