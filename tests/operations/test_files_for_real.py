"""The shell of facts and file operations, run by a real sh on this machine: fixtures never execute it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, commands_of
from pyinfra.api import StringCommand

from tasks.facts import FileStates, Hcas, Json, Survey, Text
from tasks.files import ManagedFile
from tasks.operations import managed_files

ME = f"{pwd.getpwuid(os.getuid()).pw_name}:{grp.getgrgid(os.getgid()).gr_name}"


def sh(command: Any, stdin: str | None = None, **env: str) -> list[str]:
    text = command if isinstance(command, str) else command.get_raw_value()
    done = subprocess.run(
        ["sh", "-c", text],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.rstrip("\n") for line in done.stdout.splitlines()]


def ask(fact: type, **arguments: Any) -> Any:
    """A fact as pyinfra reads it: no output means the default."""
    lines = sh(fact().command(**arguments))
    return fact().process(lines) if lines else fact.default()


class Local(FakeHost):
    def get_fact(self, fact: type, **arguments: Any) -> Any:
        return ask(fact, **arguments)


def apply(files: list[ManagedFile]) -> int:
    commands: list[StringCommand] = commands_of(managed_files, Local("here"), files)
    for command in commands:
        sh(command, stdin=str(command.connector_arguments["_stdin"]))
    return len(commands)


def test_files_are_written_once(tmp_path: Path) -> None:
    plain = ManagedFile(str(tmp_path / "new folder" / "a.env"), "ü = 'x'\n".encode(), owner=ME)
    secret = ManagedFile(str(tmp_path / "s" / "token"), os.urandom(200_000), "600", ME)
    empty = ManagedFile(str(tmp_path / "empty"), b"", "755", ME)
    files = [plain, secret, empty]
    assert apply(files) == 3
    for file in files:
        path = Path(file.path)
        assert path.read_bytes() == file.content
        assert f"{stat.S_IMODE(path.stat().st_mode):o}" == file.mode
    assert apply(files) == 0
    Path(plain.path).chmod(0o600)
    assert apply(files) == 1
    assert not list(tmp_path.rglob("*.sparkstack-new"))


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "theirs", tmp_path / "ours"
    target.write_text("theirs\n")
    link.symlink_to(target)
    assert apply([ManagedFile(str(link), b"ours\n", owner=ME)]) == 1
    assert (target.read_text(), link.is_symlink(), link.read_text()) == ("theirs\n", False, "ours\n")


@pytest.mark.parametrize("text", ["", "x", "x\n", "\n\nx\n\n", " x \t\n"])
def test_text_keeps_every_byte(tmp_path: Path, text: str) -> None:
    path = tmp_path / "daemon 'a'.json"
    assert ask(Text, path=str(path)) is None
    path.write_text(text)
    assert ask(Text, path=str(path)) == text


def test_json_that_is_not_there(tmp_path: Path) -> None:
    assert ask(Json, path=str(tmp_path / "no.json")) is None


def test_file_states_of_what_is_not_there(tmp_path: Path) -> None:
    assert ask(FileStates, paths=[str(tmp_path / "no"), str(tmp_path)]) == {}


def test_hcas_of_a_machine_without_any() -> None:
    assert isinstance(ask(Hcas), list)


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., str]:
    """A PATH on which programs are replaced by scripts with the given bodies."""

    def make(**bodies: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, body in bodies.items():
            program = folder / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


LISTENER = """echo 'LISTEN 0 511 0.0.0.0:8000 0.0.0.0:* users:(("nginx",pid=8,fd=6))'"""


@pytest.mark.parametrize(
    ("ss", "docker", "port"),
    [
        ("true", "exit 1", "free"),
        (LISTENER, "exit 1", "nginx"),
        ("echo LISTEN 0 511 0.0.0.0:8000", "exit 1", "another process"),
        (LISTENER, "echo 0a1b", "sparkstack"),
        # A worker of a cluster serves without listening; its memory comes back like the head's.
        ("true", "echo 0a1b", "sparkstack"),
    ],
)
def test_survey(tools: Callable[..., str], tmp_path: Path, ss: str, docker: str, port: str) -> None:
    path = tools(ss=ss, docker=docker, nvidia_smi="echo NVIDIA GB10, 12.1, 580.95.05")
    deep = str(tmp_path / "not" / "yet there")
    found = Survey().process(sh(Survey().command(paths=[deep, "/"], port=8000), PATH=path))
    assert found["port"] == port
    assert found["gpu"] == "NVIDIA GB10, 12.1, 580.95.05"
    assert found["disk"][deep] > 0 and found["disk"]["/"] > 0
    assert int(found["memory_total"]) >= int(found["memory_available"]) > 0
    assert float(found["clock"]) > 1.7e9
    assert found["system"].count(":") == 1
