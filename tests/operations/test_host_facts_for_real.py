"""The facts of the host and of Docker, asked by a real shell; stand-ins for nvidia-smi and docker."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstack.daemon_json import merge
from sparkstack.docker_settings import DaemonFile
from sparkstack.errors import SparkstackError
from tasks import docker
from tasks.docker import DaemonJson, DaemonState, Mirrors, Others, Validates
from tasks.host import Account
from tasks.machine import MachineState
from tasks.remove_facts import DataRoots

Ask = Callable[..., Any]

SYSTEMCTL = """cat <<'UNITS'
Id=ssh.service
ActiveState=active
UnitFileState=enabled
NeedDaemonReload=yes
OOMScoreAdjust=-1000

Id=earlyoom.service
ActiveState=inactive
UnitFileState=
NeedDaemonReload=no
UNITS"""

DOCKER = """case $1 in
info) echo systemd ;;
ps) echo 1; echo 2; echo 3; echo 4 ;;
inspect)
echo '/gpus-all runc [{"Driver":"","Count":-1,"Capabilities":[["gpu"]]}]'
echo '/by-runtime nvidia null'
echo '/plain runc null'
echo '/cdi-empty runc []' ;;
esac"""


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """`ask(FACT, {tool: script}, **arguments)`; a tool of the machine with that name is hidden."""

    def make(fact: Any, tools: dict[str, str] | None = None, **arguments: Any) -> Any:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, body in (tools or {}).items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        done = subprocess.run(
            ["sh", "-c", fact().command(**arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [line.rstrip("\n") for line in done.stdout.splitlines()]
        return fact().process(lines) if lines else fact.default()

    return make


def test_a_gpu_and_who_uses_it(ask: Ask) -> None:
    tools = {
        "systemctl": SYSTEMCTL,
        "docker": DOCKER,
        "nvidia-smi": "true",
        "dpkg-query": "printf 'install installed curl\\n'; "
        "printf 'deinstall config-files vim\\nhold installed linux-image-6.17\\n'",
        "systemd-detect-virt": "echo none; exit 1",
        # Nothing of our own in /etc: the distribution's.
        "readlink": "case $2 in /etc/*) exit 1 ;; *) echo /usr/lib/systemd/system/graphical.target ;; esac",
    }
    state = ask(MachineState, tools, packages=["curl", "linux-image-*"])
    assert state.gpu and not state.container
    assert (state.cgroup_driver, state.gpu_containers) == ("systemd", ("gpus-all", "by-runtime"))
    assert (state.installed, state.held) == ({"curl", "linux-image-6.17"}, {"linux-image-6.17"})
    ssh, earlyoom = state.unit("ssh.service"), state.unit("earlyoom.service")
    assert (ssh.enabled, ssh.active, ssh.stale, ssh.oom_score) == ("enabled", "active", True, "-1000")
    assert (earlyoom.enabled, earlyoom.runs) == ("", False)
    assert state.target == "graphical.target"


def test_no_packages_are_asked_for_where_none_matter(ask: Ask) -> None:
    state = ask(
        MachineState, {"dpkg-query": "exit 9"}, packages=[], units=["a.service"]
    )
    assert (state.installed, state.held) == (frozenset(), frozenset())


@pytest.mark.parametrize("help_text", ["--validate  Validate", "--version"])
def test_whether_dockerd_can_judge(ask: Ask, help_text: str) -> None:
    assert ask(Validates, {"dockerd": f"echo '      {help_text}'"}) is ("validate" in help_text)


@pytest.mark.parametrize("text", ['{"a": 1}\n', "", "\n\n", "{}"])
def test_daemon_json_as_it_is(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(docker, "DUE", str(tmp_path / "due"))
    path = tmp_path / "daemon.json"
    path.write_text(text)
    path.chmod(0o640)
    found = ask(DaemonJson, {}, path=str(path))
    assert (found.kind, found.text, found.mode) == ("file", text, "640")
    # By number: an owner that has no name keeps the file, too.
    assert found.owner == f"{os.getuid()}:{os.getgid()}"
    assert not found.restart_due


def test_bytes_that_are_no_text_are_told_with_their_place(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "DUE", str(tmp_path / "due"))
    path = tmp_path / "daemon.json"
    path.write_bytes(b'{\r\n  "a": "gr\xfcn"\r\n}\r\n')
    found = ask(DaemonJson, {}, path=str(path))
    with pytest.raises(SparkstackError) as caught:
        merge(found.text, {})
    assert str(caught.value) == (
        "/etc/docker/daemon.json:2:11: found a byte that is not UTF-8 (0xfc); wanted UTF-8; correct or "
        "remove the file"
    )
    path.write_bytes(b'{\r\n"a": 1\r\n}\r\n')
    assert ask(DaemonJson, {}, path=str(path)).text == '{\r\n"a": 1\r\n}\r\n'


def test_what_is_no_file(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "DUE", str(tmp_path / "due"))
    (tmp_path / "due").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dead").symlink_to("/nowhere/d.json")
    kinds = {}
    for name in ("none", "folder", "dead"):
        found: DaemonFile = ask(DaemonJson, {"dockerd": "true"}, path=str(tmp_path / name))
        kinds[name] = (found.kind, found.text, found.links_to)
        assert found.restart_due
    assert kinds == {
        "none": ("absent", None, ""),
        "folder": ("directory", None, ""),
        "dead": ("symlink", None, "/nowhere/d.json"),
    }


def test_accounts(ask: Ask) -> None:
    known = ask(Account, user="root")
    assert known["exists"] and "root" in known["groups"]
    assert ask(Account, user="no-such-user") == {"exists": False, "groups": [], "docker": known["docker"]}


@pytest.fixture
def registry() -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401 if self.path == "/v2/" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_mirrors_are_asked_at_v2(ask: Ask, registry: str) -> None:
    mirrors = [registry, f"{registry}/", f"{registry}/other", "http://127.0.0.1:9"]
    statuses = ask(Mirrors, mirrors=mirrors)
    assert statuses == dict(zip(mirrors, ["401", "401", "404", "000"], strict=True))


def test_without_curl_no_mirror_answers(ask: Ask) -> None:
    mirrors = ["http://127.0.0.1:9", "http://127.0.0.1:10"]
    assert ask(Mirrors, {"curl": "exit 127"}, mirrors=mirrors) == dict.fromkeys(mirrors, "000")


RUNNING = """case $1 in
info) echo {live} ;;
ps) echo 1; echo 2; echo 3; echo 4 ;;
inspect) printf '/webui unless-stopped\\n/training no\\n/sparkstack-serve no\\n/flaky on-failure\\n' ;;
esac"""


@pytest.mark.parametrize(
    ("live", "found"), [("false", {"webui": True, "training": False, "flaky": False}), ("true", {})]
)
def test_what_a_restart_of_docker_would_stop(ask: Ask, live: str, found: dict[str, bool]) -> None:
    assert ask(Others, {"docker": RUNNING.format(live=live)}) == found


@pytest.mark.parametrize("docker", ["exit 1", "true"])
def test_where_nothing_runs_nothing_would_stop(ask: Ask, docker: str) -> None:
    assert ask(Others, {"docker": docker}) == {}


def test_how_dockers_unit_stands(ask: Ask) -> None:
    assert ask(DaemonState, {"systemctl": "echo ActiveState=active; echo UnitFileState=disabled"}) == (
        "disabled active"
    )
    assert ask(DaemonState, {"systemctl": "echo ActiveState=inactive; echo UnitFileState="}) == (
        "not-found inactive"
    )


def test_what_is_left_where_docker_had_its_data(ask: Ask, tmp_path: Path) -> None:
    """Only where all of Docker's own lists are there and empty nothing of anybody is left."""
    roots = {}
    for name in ("bare", "tagged", "untagged", "volume", "container", "unknown", "now"):
        root = roots[name] = tmp_path / name
        for folder in ("containers", "volumes", "image/overlay2/imagedb/content/sha256"):
            (root / folder).mkdir(parents=True)
        (root / "volumes/metadata.db").touch()
        (root / "image/overlay2/repositories.json").write_text('{"Repositories":{}}')
    named = '{"Repositories":{"a":{"a:1":"sha256:0"}}}'
    (roots["tagged"] / "image/overlay2/repositories.json").write_text(named)
    (roots["untagged"] / "image/overlay2/imagedb/content/sha256/0a").touch()
    (roots["volume"] / "volumes/mine").mkdir()
    (roots["container"] / "containers/0a").mkdir()
    (roots["unknown"] / "image/overlay2/repositories.json").unlink()
    paths = [str(root) for root in roots.values()]
    found = ask(DataRoots, {"docker": f"echo {roots['now']}"}, paths=[*paths, str(tmp_path / "gone")])
    assert {Path(path).name: about["state"] for path, about in found.items()} == {
        name: "bare" if name == "bare" else "used" for name in roots if name != "now"
    }
