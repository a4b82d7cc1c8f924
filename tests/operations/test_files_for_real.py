"""The shell of facts and file operations, run by a real sh on this machine: fixtures never execute it."""

from __future__ import annotations

import grp
import json
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
from pyinfra.connectors.util import CommandOutput, OutputLine

from sparkstack import netplan, topology
from sparkstack.recipe import load_recipe
from tasks import fabric, remote
from tasks.facts import Addresses, FileStates, Hcas, Json, Routes, Survey, Text
from tasks.files import ManagedFile
from tasks.operations import managed_files
from tasks.site import Site

HERE = Path(__file__).resolve().parent
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
    path = os.environ["PATH"]

    def get_fact(self, fact: type, **arguments: Any) -> Any:
        return ask(fact, **arguments)

    def run_shell_command(self, command: StringCommand, **arguments: Any) -> tuple[bool, CommandOutput]:
        self.heard.append(command.get_raw_value())
        done = subprocess.run(
            ["sh", "-c", self.heard[-1]],
            input=arguments.get("_stdin", ""),
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": self.path},
            check=False,
            timeout=10,
        )
        lines = [OutputLine("stdout", line) for line in done.stdout.splitlines()]
        lines += [OutputLine("stderr", line) for line in done.stderr.splitlines()]
        assert len(self.heard) < 20, self.heard
        return done.returncode == 0, CommandOutput(lines)


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


# A systemctl whose unit goes through the states in a file, one at each `show`; the last one stays.
SYSTEMCTL = """states={}
case $1 in
show) head -n 1 $states; [ $(wc -l < $states) = 1 ] || sed -i 1d $states ;;
is-active) [ "$(head -n 1 $states)" = active ] ;;
*) exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("states", "begins"),
    [
        (["inactive"], True),
        (["failed"], True),
        # Its result is there, but it is about to go: no new unit can have its name yet.
        (["deactivating", "deactivating", "inactive"], True),
        (["active", "active", "active", "inactive"], False),
        (["activating", "active", "inactive"], False),
    ],
)
def test_a_job_begins_where_none_is_under_way(
    tools: Callable[..., str], tmp_path: Path, states: list[str], begins: bool
) -> None:
    plan = {"job": "sparkstack-image-abc", "kind": "image", "jobs_dir": str(tmp_path)}
    folder = tmp_path / "sparkstack-image-abc"
    folder.mkdir()
    result, begun = folder / "result.json", tmp_path / "begun"
    result.write_text(json.dumps({"ok": not begins, "error": "of the job before"}))
    (tmp_path / "states").write_text("\n".join(states) + "\n")
    host = Local("spark-1")
    host.path = tools(
        systemctl=SYSTEMCTL.format(tmp_path / "states"),
        systemd_run=f"""[ "$(head -n 1 {tmp_path}/states)" != deactivating ] || exit 1
            [ ! -e {result} ] && echo "$@" >> {begun} && echo '{{"ok": true}}' > {result}""",
        sleep="true",
    )
    assert remote.start_and_follow(None, host, plan, "/plans/a plan.json"), host.shown
    words = begun.read_text().splitlines() if begun.exists() else []
    assert len(words) == begins
    assert all(line.endswith(" -m onhost job /plans/a plan.json") for line in words)


@pytest.mark.parametrize("before", [None, "network: {}\n"])
def test_netplan_that_refuses_gets_the_file_before_back(
    tools: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    ours, kept = tmp_path / "90-ours.yaml", tmp_path / "kept"
    monkeypatch.setattr(netplan, "PATH", str(ours))
    monkeypatch.setattr(fabric, "BEFORE", str(kept))
    if before is not None:
        ours.write_text(before)
        ours.chmod(0o600)
    plan = topology.plan("pair", ["spark-1", "spark-2"])
    host = Local("spark-1")
    host.path = tools(netplan=f"[ $1 = generate ] || touch {tmp_path}/applied; echo bad file >&2; exit 1")
    host.facts = {Addresses: {i.name: [] for i in plan.of("spark-1")}, Routes: [], FileStates: {}}
    monkeypatch.setattr(Local, "get_fact", FakeHost.get_fact)
    site = Site(host, 0, [host], load_recipe(HERE / "recipe.yaml"), plan)
    *_, keep, write, apply_it = commands_of(fabric.addressed, host, site)
    sh(keep)
    assert f" {ours}" in write.get_raw_value()
    ours.write_text("ours\n")  # `write` gives the file to root
    assert apply_it.execute(None, host, {}) is False
    (line,) = host.shown
    assert line.startswith("spark-1: fabric: found netplan refusing: bad file; wanted ")
    assert (ours.read_text() if ours.exists() else None) == before
    assert before is None or stat.S_IMODE(ours.stat().st_mode) == 0o600
    assert not kept.exists() and not (tmp_path / "applied").exists()


def attempt(file: ManagedFile, limit: str = "", stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = file.write()
    given = str(command.connector_arguments["_stdin"]) if stdin is None else stdin
    text = f"{limit}{command.get_raw_value()}"
    return subprocess.run(["sh", "-c", text], input=given, capture_output=True, text=True, check=False)


@pytest.fixture
def no_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes for remove.py go to /etc, which is not a test's to write to."""
    monkeypatch.setattr("tasks.undo.own", lambda path: True)


@pytest.mark.usefixtures("no_undo")
def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old\n")
    # The shell's limit on file sizes stops a write in the middle, as a full disk does.
    done = attempt(ManagedFile(str(path), b"x" * 100_000, owner=ME), "trap '' XFSZ; ulimit -f 8; ")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{path}: found base64: ") and line.endswith(
        "; wanted to write it; make room there, or mend its folder; the file is as it was"
    )
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("no_undo")
def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder is wanted\n")
    path = tmp_path / "file" / "a.conf"
    done = attempt(ManagedFile(str(path), b"x", owner=ME))
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith(f"{path}: found mkdir: ")
    assert (tmp_path / "file").read_text() == "a file where a folder is wanted\n"


@pytest.mark.usefixtures("no_undo")
def test_an_owner_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    done = attempt(ManagedFile(str(path), b"x", owner="nobdy:nobdy"))
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith(f"{path}: found chown: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_undo")
def test_what_a_killed_run_left_is_written_over(tmp_path: Path) -> None:
    path, half = tmp_path / "a.conf", tmp_path / "a.conf.sparkstack-new"
    path.write_text("old\n")
    half.write_text("ne" * 100)
    half.chmod(0o777)
    assert apply([ManagedFile(str(path), b"new\n", "640", ME)]) == 1
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("no_undo")
@pytest.mark.parametrize("came", [0, 4, 6])  # 4 characters are whole bytes to base64
def test_a_connection_that_ends_while_writing_lands_nothing(tmp_path: Path, came: int) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old\n")
    whole = ManagedFile(str(path), b"new content\n", owner=ME)
    done = attempt(whole, stdin=str(whole.write().connector_arguments["_stdin"])[:came])
    assert (done.returncode, path.read_text()) == (1, "old\n")
    assert came == 6 or done.stderr.startswith(f"{path}: found a part of it only; wanted to write it; ")
    assert list(tmp_path.iterdir()) == [path]
