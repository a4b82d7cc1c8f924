"""The shell of facts and file operations, run by a real sh on this machine: fixtures never execute it."""

from __future__ import annotations

import grp
import hashlib
import itertools
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, commands_of
from pyinfra.api import StringCommand
from pyinfra.connectors.util import CommandOutput, OutputLine

from sparkstack import releases, topology
from sparkstack.recipe import load_recipe
from tasks import activation, remote, serve, share
from tasks.facts import CheckpointFaults, Completes, FileStates, Json, Survey, Text
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


def listener(*processes: str) -> str:
    users = ",".join(f'("{process}",pid={pid},fd=6)' for pid, process in enumerate(processes, 8))
    return f"LISTEN 0 511 0.0.0.0:8000 0.0.0.0:* users:({users})"


ID = "0a1b" * 16
OURS = f"""case "$*" in "ps -q "*) echo 0a1b ;; inspect*{ID}) echo /sparkstack-serve ;; esac"""
WEBUI = f"""case "$*" in inspect*{ID}) echo /webui ;; *publish=8000*) echo webui ;; esac"""


@pytest.mark.parametrize(
    ("ss", "docker", "group", "port", "serving"),
    [
        ([], "exit 1", "", "free", None),
        ([listener("nginx")], "exit 1", "/system.slice/nginx.service", "nginx (pid 8, nginx.service)", None),
        ([listener("node")], "exit 1", "/user.slice/user-0.slice/session-1.scope", "node (pid 8)", None),
        (["LISTEN 0 511 0.0.0.0:8000"], "exit 1", "", "another process", None),
        ([listener("python3")], WEBUI, f"/docker/{ID}", "python3 (pid 8, container webui)", None),
        # Docker's proxy is a process of docker.service, whoever has the port behind it.
        (
            [listener("docker-proxy")],
            WEBUI,
            "/system.slice/docker.service",
            "docker-proxy (pid 8, container webui)",
            None,
        ),
        ([listener("vllm", "vllm")], OURS, f"/system.slice/docker-{ID}.scope", "sparkstack", "yes"),
        ([listener("vllm")], "exit 1", "/system.slice/sparkstack-serve.service", "sparkstack", None),
        # A worker of a cluster serves without listening; its memory comes back like the head's.
        ([], OURS, "", "free", "yes"),
        # Ours runs, and the port is somebody else's: on this rank, or on another address.
        ([listener("nginx")], OURS, "/system.slice/nginx.service", "nginx (pid 8, nginx.service)", "yes"),
        (["LISTEN 0 1 [::]:8000", listener("vllm")], OURS, f"/docker/{ID}", "another process", "yes"),
        # Without an answer the port is not called free.
        (None, "exit 1", "", None, None),
    ],
)
def test_survey(
    tools: Callable[..., str],
    tmp_path: Path,
    ss: list[str] | None,
    docker: str,
    group: str,
    port: str | None,
    serving: str | None,
) -> None:
    lines = "exit 1" if ss is None else "\n".join(f"echo '{line}'" for line in ss)
    cat = f"""case $1 in /proc/*/cgroup) echo '0::{group}' ;; *) exec /bin/cat "$@" ;; esac"""
    path = tools(ss=lines, docker=docker, cat=cat, nvidia_smi="echo NVIDIA GB10, 12.1, 580.95.05")
    deep = str(tmp_path / "not" / "yet there")
    command = Survey().command(paths=[deep, "/"], port=8000, account="root" if ss else "nobody-such")
    found = Survey().process(sh(command, PATH=path))
    assert (found.get("port"), found.get("serving")) == (port, serving)
    assert found["account"] == ("0" if ss else "none")
    assert found["gpu"] == "NVIDIA GB10, 12.1, 580.95.05"
    assert found["disk"][deep] > 0 and found["disk"]["/"] > 0
    assert int(found["memory_total"]) >= int(found["memory_available"]) > 0
    assert float(found["clock"]) > 1.7e9
    assert found["system"].count(":") == 1


@pytest.mark.parametrize(
    ("said", "root", "store"),
    [
        ("29.1.3|/data/my docker|[[Backing Filesystem extfs]]", "/data/my docker", ""),
        ("29.1.3|/data|[[driver-type io.containerd.snapshotter.v1]]", "/var/lib/containerd", "containerd"),
        ("", "/var/lib/docker", ""),
    ],
)
def test_where_images_land(tools: Callable[..., str], said: str, root: str, store: str) -> None:
    path = tools(docker=f"[ $1 != info ] || echo '{said}'", ss="echo nginx")
    found = Survey().process(sh(Survey().command(paths=[], port=None), PATH=path))
    assert (found["docker_root"], found["image_store"]) == (root, store)
    assert found["docker"] == said.partition("|")[0]  # "": a daemon that does not answer
    assert "port" not in found  # nobody is asked who listens where nothing of ours will
    assert float(found["clock_last"]) >= float(found["clock"])


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


# A share that counts as running while `begun` is there.
SHARE = {
    "systemctl": "sleep 0.05; [ -e {begun} ]",
    "systemd_run": "sleep 0.2; {end}; echo $* >> {begun}",
}


@dataclass
class Share:
    """What `share._open` does to a head that has a real shell and a worker that only listens."""

    folder: Path
    path: str

    @property
    def begun(self) -> Path:
        return self.folder / "begun"

    @property
    def token(self) -> Path:
        return self.folder / "secrets" / "share.token"

    def open(self) -> tuple[bool, FakeHost]:
        folder, path = self.folder, self.path

        class Head(Local):
            def run_shell_command(self, command: Any, **arguments: Any) -> tuple[bool, CommandOutput]:
                text = command.get_raw_value().replace("flock /run/", f"flock {folder}/")
                assert text != command.get_raw_value()
                return super().run_shell_command(StringCommand(text), **arguments)

        data = {"config_dir": str(folder), "ssh_hostname": "10.0.0.1"}
        head, worker = Head("spark-1", **data), FakeHost("spark-2", **data)
        head.path = path
        plan = topology.plan("pair", [head.name, worker.name])
        site = Site(worker, 1, [head, worker], load_recipe(HERE / "recipe.yaml"), plan)
        return share._open(None, worker, site), worker


@pytest.fixture
def the_share(tools: Callable[..., str], tmp_path: Path) -> Callable[..., Share]:
    def make(end: str = ":") -> Share:
        begun = tmp_path / "begun"
        bodies = {name: body.format(begun=begun, end=end) for name, body in SHARE.items()}
        return Share(tmp_path, tools(**bodies))

    return make


@pytest.mark.parametrize("left_over", [None, "token of a share that has ended"])
def test_a_share_starts_with_the_token_of_this_run(
    the_share: Callable[..., Share], left_over: str | None
) -> None:
    here = the_share()
    if left_over:
        here.token.parent.mkdir()
        here.token.write_text(left_over)
    ok, worker = here.open()
    assert ok and worker.shown == []
    assert worker.fed == [here.token.read_text()] == [share.TOKEN]
    assert stat.S_IMODE(here.token.stat().st_mode) == 0o600
    (words,) = here.begun.read_text().splitlines()
    assert words.startswith("--quiet --collect --unit=sparkstack-share --property=RuntimeMaxSec=12h ")
    assert f" -m onhost share --bind 192.168.96.10 --port 18090 --token-file {here.token} " in words
    assert share.TOKEN not in words


def test_the_token_of_a_running_share_is_kept(
    the_share: Callable[..., Share], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = the_share()
    first = here.open()[1].fed
    monkeypatch.setattr(share, "TOKEN", "token-of-a-later-run")
    ok, worker = here.open()
    assert ok and worker.fed == first != [share.TOKEN]
    assert [here.token.read_text()] == first
    assert len(here.begun.read_text().splitlines()) == 1


@pytest.mark.parametrize("content", [None, ""])
def test_a_running_share_without_a_token_gets_one(
    the_share: Callable[..., Share], content: str | None
) -> None:
    """It reads the file anew for each request, so it need not start again."""
    here = the_share()
    here.begun.write_text("before\n")
    if content is not None:
        here.token.parent.mkdir()
        here.token.write_text(content)
    ok, worker = here.open()
    assert ok and worker.fed == [here.token.read_text()] == [share.TOKEN]
    assert here.begun.read_text() == "before\n"


def test_workers_that_open_the_share_at_once_get_one_token(
    the_share: Callable[..., Share], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = the_share()
    tokens = itertools.count()
    shell = share.shell

    def one_each(host: Any, command: str, stdin: str | None = None) -> tuple[bool, str]:
        return shell(host, command, f"token-{next(tokens)}" if stdin == share.TOKEN else stdin)

    monkeypatch.setattr(share, "shell", one_each)
    with ThreadPoolExecutor(3) as pool:
        done = [task.result() for task in [pool.submit(here.open) for _ in range(3)]]
    assert all(ok for ok, _ in done)
    assert next(tokens) == 3
    assert [worker.fed for _, worker in done] == 3 * [[here.token.read_text()]]
    assert len(here.begun.read_text().splitlines()) == 1


def test_a_share_that_does_not_start_hands_out_nothing(the_share: Callable[..., Share]) -> None:
    here = the_share(end="echo Failed to start transient service unit >&2; exit 1")
    ok, worker = here.open()
    assert not ok and worker.heard == []
    assert worker.shown == ["spark-1: the share did not start; found: Failed to start transient service unit"]


@pytest.mark.parametrize(
    "absent", [[], ["run"], ["fabric.env"], ["manifest.json"], ["image"], ["run", "image"]]
)
def test_what_a_rank_lacks(
    tools: Callable[..., str], sites: Callable[..., list[Site]], tmp_path: Path, absent: list[str]
) -> None:
    site = sites(1, config_dir=str(tmp_path), state_dir=str(tmp_path / "state"))[0]
    run = tmp_path / "releases" / site.release_id / "run"
    places = {
        "run": run,
        "fabric.env": tmp_path / "fabric.env",
        "manifest.json": Path(site.checkpoint_dir) / "manifest.json",
    }
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in absent:
            path.touch(0o755)
    rank = Local("spark-1", config_dir=str(tmp_path), state_dir=str(tmp_path / "state"))
    images = "none" if "image" in absent else site.image_tag
    rank.path = tools(docker=f'[ "$*" = "image inspect {images}" ] && echo [] || {{ echo no >&2; exit 1; }}')
    says = {
        "run": str(run),
        "fabric.env": f"{tmp_path}/fabric.env",
        "manifest.json": f"checkpoint {site.checkpoint_id}",
        "image": f"image {site.image_tag}",
    }
    assert activation.missing(rank, serve.target_of(site)) == ", ".join(says[name] for name in absent)
    run.parent.mkdir(exist_ok=True)
    run.touch()
    run.chmod(0o644)
    # It must be one that systemd can execute.
    assert activation.missing(rank, serve.target_of(site)).startswith(str(run))


@pytest.mark.parametrize(("body", "answer"), [("exit 0", True), ("echo found no answer >&2; exit 1", False)])
def test_an_endpoint_that_completes(
    tools: Callable[..., str], tmp_path: Path, body: str, answer: bool
) -> None:
    tools(python=f'echo "$*" > {tmp_path}/words; {body}')
    asked = {"url": "http://10.0.0.1:8000", "model": "org/a model", "seconds": 10}
    assert ask(Completes, python=f"{tmp_path}/bin/python", **asked) is answer
    assert (tmp_path / "words").read_text() == (
        "-m onhost serves --url http://10.0.0.1:8000 --model org/a model --timeout 10\n"
    )


def test_a_host_without_our_python_completes_nothing(tmp_path: Path) -> None:
    assert ask(Completes, python=f"{tmp_path}/no", url="http://x", model="m", seconds=1) is False
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


def test_what_switches_a_release_and_what_reads_it(sites: Callable[..., list[Site]], tmp_path: Path) -> None:
    """One rename moves `current` and `previous`; the fact reads what is there, a broken file included."""
    rank = Local("spark-1", config_dir=str(tmp_path))
    (tmp_path / "fabric.env").write_text("A=1\n")
    for name in ("aa", "bb"):
        (tmp_path / "releases" / name).mkdir(parents=True)
        about = tmp_path / "releases" / name / "release.json"
        about.write_text('{\n "format": 2,\n "recipe": "a b|c"\n}\n')

    def switch(name: str, kind: Any, back: str | None) -> None:
        target = activation.Target(name, [rank], 1, "i", "c", 9)
        systemctl = "systemctl() { :; }\n"
        sh(systemctl + activation._switch(rank, target, kind, back))

    def found() -> releases.OnHost:
        kept: releases.OnHost = ask(activation.Releases, config_dir=str(tmp_path))
        return kept

    assert ask(activation.Releases, config_dir=f"{tmp_path}/none") == releases.OnHost()
    switch("aa", "deploy", None)
    assert found().current == "aa" and found().releases["aa"].previous is None
    assert not (tmp_path / "previous").is_symlink()
    switch("bb", "deploy", "aa")
    assert [(tmp_path / name).resolve().name for name in ("current", "previous")] == ["bb", "aa"]
    # A return leaves everything as it was before, and a release that comes back has what it ran with.
    (tmp_path / "fabric.env").write_text("A=2\n")
    (tmp_path / "releases/bb/history.json").write_text('{"failed": {"reason": "gate"},\n "passed": "x"}')
    (tmp_path / "activation.json").write_text('{"kind": "return", "to": "aa", "back": null}')
    os.utime(tmp_path / "releases/aa/fabric.env", (5, 5))
    # A copy that somebody put beside it is none of ours.
    shutil.copytree(tmp_path / "releases/bb", tmp_path / "releases/bb old", symlinks=True)
    switch("aa", "return", None)
    assert (tmp_path / "releases/aa/fabric.env").read_text() == "A=1\n"
    assert not (tmp_path / "previous").exists()
    kept = found()
    assert kept.current == "aa" and kept.under_way == releases.Activation("return", "aa", None)
    assert kept.releases["bb"].previous == "aa" and kept.releases["bb"].about["recipe"] == "a b|c"
    assert kept.releases["bb"].history == releases.History(None, "x", {"reason": "gate"})
    assert set(kept.releases) == {"aa", "bb"}
    # The newest are those that served last, also by coming back.
    assert kept.releases["aa"].activated > 10**9
    (tmp_path / "releases/aa/previous").symlink_to("../gone")
    switch("aa", "return", None)
    assert found().releases["aa"].previous == "gone"
    switch("aa", "rollback", "bb")
    assert (tmp_path / "previous").resolve().name == "bb"
    switch("aa", "deploy", None)
    assert (tmp_path / "releases/aa/fabric.env").read_text() == "A=2\n"
    # A rank that is no part of a release has no current one.
    alone = activation.Target("aa", [Local("spark-0"), rank], 1, "i", "c", 9)
    sh("systemctl() { :; }\n" + activation._switch(rank, alone, "deploy", None))
    (tmp_path / "releases/bb/release.json").write_text("{")
    (tmp_path / "activation.json").write_text("{")
    assert found().current is None and set(found().releases) == {"aa"} and found().under_way is None


def test_whether_a_share_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "START_SECONDS", 0)
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = Local("spark-2", install_dir=str(tmp_path), share_port=port)
        plan = topology.plan("pair", ["spark-1", "spark-2"])
        site = Site(host, 1, [host, host], load_recipe(HERE / "recipe.yaml"), plan)
        assert share._reaches(host, site, "127.0.0.1")
    assert not share._reaches(host, site, "127.0.0.1")


def test_what_a_checkpoint_that_stands_looks_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent.parent))
    folder, python = tmp_path / "abc", sys.executable
    assert ask(CheckpointFaults, python=f"{tmp_path}/no", folder=str(folder), hashes=False) is None
    folder.mkdir()
    files = {"a.json": {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}
    manifest = {"format": 1, "id": "abc", "files": {**files, "b.json": {"size": 1, "sha256": ""}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "a.json").write_text("{}")
    assert ask(CheckpointFaults, python=python, folder=str(folder), hashes=False) == ["b.json: missing"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
    assert ask(CheckpointFaults, python=python, folder=str(folder), hashes=True) == []
