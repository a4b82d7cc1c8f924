"""What was there before us is remembered once, and read back as it was: by a real sh on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from pyinfra.context import ctx_host

from tasks import undo
from tasks.files import ManagedFile
from tasks.undo import Undo


def sh(command: Any, stdin: str | None = None, **env: str) -> str:
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
    return done.stdout


def notes() -> Any:
    fact = Undo()
    lines = sh(fact.command()).splitlines()
    return fact.process(lines)


def test_nothing_is_noted_on_a_fresh_host() -> None:
    assert notes() == {"files": {}, "absent": {}, "did": {}}


def test_the_first_state_of_a_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a file.conf"
    path.write_text("theirs\n")
    path.chmod(0o640)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    sh(undo.keep(str(path)))
    assert notes()["files"] == {str(path): True}
    path.write_text("ours\n")
    sh(undo.keep(str(path)))
    assert notes()["files"] == {str(path): False}
    kept = Path(undo.ROOT + "/files" + str(path))
    assert kept.read_text() == "theirs\n"
    assert (kept.stat().st_mode & 0o777, kept.stat().st_mtime) == (0o640, 1_000_000_000)
    assert Path(undo.ROOT).stat().st_mode & 0o777 == 0o700
    assert Path(undo.ROOT).parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("target", ["/dev/null", "nowhere", "."])
def test_a_link_is_kept_as_a_link(tmp_path: Path, target: str) -> None:
    path = tmp_path / "link"
    path.symlink_to(target)
    sh(undo.keep(str(path)))
    assert notes()["files"] == {str(path): True}
    path.unlink()
    path.write_text("ours")
    sh(undo.keep(str(path)))
    assert notes()["files"] == {str(path): False}
    assert (Path(undo.ROOT + "/files" + str(path))).readlink() == Path(target)


def test_what_was_not_there_is_noted_with_the_folder_that_was(tmp_path: Path) -> None:
    path = tmp_path / "x.service.d" / "deep" / "ours.conf"
    file = ManagedFile(str(path), b"ours\n", owner=f"{os.getuid()}:{os.getgid()}")
    for _ in range(2):
        command = file.write()
        sh(command, stdin=str(command.connector_arguments["_stdin"]))
    assert notes() == {"files": {}, "absent": {str(path): False}, "did": {}}
    assert Path(undo.ROOT + "/absent" + str(path)).read_text() == f"{tmp_path}\n"
    path.unlink()
    assert notes()["absent"] == {str(path): True}


def test_a_folder_and_our_own_folders_are_not_kept(tmp_path: Path) -> None:
    sh(undo.keep(str(tmp_path)))
    assert undo.keep("/etc/sparkstack/fabric.env") == "true"
    assert "sparkstack-lab" in undo.keep("/etc/sparkstack-lab/nics")
    assert notes()["files"] == {}


def test_where_nothing_can_be_kept_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "ROOT", "/proc/none/undo")
    command = ManagedFile(str(tmp_path / "x"), b"ours\n").write()
    done = subprocess.run(["sh", "-c", command.get_raw_value()], input="", capture_output=True, text=True)
    assert done.returncode != 0 and not (tmp_path / "x").exists()


def test_deeds_are_noted_once() -> None:
    sh(undo.did("target", "default", "graphical.target"))
    sh(undo.did("target", "default", "multi-user.target"))
    sh(undo.did("member", "nvidia:docker"))
    sh(undo.did("image", "a/b@sha256:1"))
    sh(undo.did("sysctl", "vm.swappiness", ask="echo 60; false"))
    assert notes()["did"] == {
        "target": {"default": "graphical.target"},
        "member": {"nvidia:docker": ""},
        "image": {"a/b@sha256:1": ""},
        "sysctl": {"vm.swappiness": "60"},
    }


def test_a_kind_that_nobody_could_take_back_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="'packages' is none of package,"):
        undo.did("packages", "x")


def test_all_packages_that_would_come_are_noted(tmp_path: Path) -> None:
    tool = tmp_path / "apt-get"
    tool.write_text(
        "#!/bin/sh\nprintf '%s\\n' 'NOTE: simulated' 'Inst libx:arm64 (1 Debian [all])' "
        "'Inst bash [5.1] (5.2 Debian [all])' 'Inst earlyoom (1.7 Debian [all])' 'Conf earlyoom (1.7 D)'\n"
    )
    tool.chmod(0o755)
    sh(undo.installing(["earlyoom"]), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert notes()["did"] == {"package": {"libx:arm64": "", "earlyoom": ""}}


def test_settings_are_noted_in_order_and_not_twice_in_a_row() -> None:
    path = "/etc/docker/daemon.json"
    for settings in ({"mtu": 1}, {"mtu": 1}, {"mtu": 2, "a": "it's"}, {"mtu": 1}):
        sh(undo.sets(path, settings))
    lines = Path(undo.ROOT + "/settings" + path).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"mtu": 1}, {"a": "it's", "mtu": 2}, {"mtu": 1}]


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_settings_are_noted_with_what_was_there_or_not_at_all(tmp_path: Path, killed_at: int) -> None:
    """Wherever a run is killed: ours must not pass for theirs, nor theirs for ours."""
    shared = tmp_path / "daemon.json"
    shared.write_text('{"mtu": 1}')
    tool = tmp_path / "mv"
    count = f"echo >> {tmp_path}/count; [ $(wc -l < {tmp_path}/count) != {killed_at} ] || kill -9 $PPID"
    tool.write_text(f'#!/bin/sh\n{count}\nexec /bin/mv "$@"\n')
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", undo.sets(str(shared), {"mtu": 1, "b": 2})], env=env, check=False)
    noted = Path(undo.ROOT + "/settings" + str(shared))
    assert not noted.exists() or notes()["files"] == {str(shared): True}
    if killed_at > 1 and noted.exists():
        assert json.loads(noted.read_text()) == {"mtu": 1, "b": 2}
    sh(undo.sets(str(shared), {"mtu": 1, "b": 2}))
    assert notes()["files"] == {str(shared): True}
    assert json.loads(noted.read_text()) == {"mtu": 1, "b": 2}


def test_folders_that_a_site_named_are_noted_at_the_first_write(tmp_path: Path) -> None:
    named = {"state_dir": f"{tmp_path}/data/state", "install_dir": f"{tmp_path}"}
    file = ManagedFile(f"{named['state_dir']}/plans/a.json", b"{}", owner=f"{os.getuid()}:{os.getgid()}")
    with ctx_host.use(FakeHost("spark-1", **named)):  # type: ignore[arg-type]
        for _ in range(2):
            command = file.write()
            sh(command, stdin=str(command.connector_arguments["_stdin"]))
    assert notes()["did"] == {
        "folder": {
            named["state_dir"]: f"state_dir {tmp_path}",
            named["install_dir"]: f"install_dir {tmp_path}",
        }
    }
    assert Path(file.path).read_text() == "{}"


def test_the_folders_of_our_name_need_no_note() -> None:
    with ctx_host.use(FakeHost("spark-1")):  # type: ignore[arg-type]
        assert undo.keep("/var/lib/sparkstack/plans/a.json") == "true"
