"""Removal: from the notes on the host, in an order that can be cut off anywhere, and nothing of others."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, commands_of, follow, shell_lines
from pyinfra.context import ctx_host

from sparkstack import daemon_json, netplan, topology
from sparkstack.machine import Machine
from tasks import put_back, remove, remove_docker, undo
from tasks.docker import Others
from tasks.facts import Addresses, Text, UnitState, decoded
from tasks.machine import MachineState
from tasks.remove import Jobs, Leavings, Removal, take_back
from tasks.remove_facts import DataRoots, DockerThings, is_ours
from tasks.site import SiteError
from tasks.undo import Undo

NETPLAN = netplan.render(topology.plan("pair", ["spark-1", "spark-2"]).of("spark-1"))
TWINS = {"enp1s0f0np0": ["192.168.96.10/24"], "enP2p1s0f0np0": ["192.168.97.10/24"], "eth0": ["10.0.0.1/8"]}


def notes(**parts: Any) -> dict[str, Any]:
    return {"files": {}, "absent": {}, "did": {}, **parts}


def fresh(host: FakeHost) -> None:
    """What a host says that we never touched."""
    host.facts = {
        Undo: notes(),
        UnitState: "inactive",
        Jobs: [],
        DockerThings: {"docker": "answers", "containers": [], "images": [], "volumes": []},
        Text: None,
        Addresses: TWINS,
        Leavings: {"entries": [], "data": {}},
    }


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setattr(put_back, "SAID", set())
    one = FakeHost("spark-1", _sudo=True)
    fresh(one)
    return one


def removal(host: FakeHost, is_head: bool = True, checkpoints: bool = False) -> Removal:
    return Removal(host.data, is_head, checkpoints)


def all_operations(host: FakeHost, asked: Removal) -> list[tuple[Any, tuple[Any, ...]]]:
    """The operations of a removal with their arguments, as the deploy declares them."""
    declared: list[tuple[Any, tuple[Any, ...]]] = []
    with pytest.MonkeyPatch.context() as patch, ctx_host.use(host):
        for name, one in list(vars(remove).items()):
            if hasattr(one, "_inner") and name != "deploy_remove":

                def declare(one: Any = one, **arguments: Any) -> None:
                    arguments.pop("name")
                    declared.append((one, tuple(arguments.values())))

                patch.setattr(remove, name, declare)
        remove.deploy_remove._inner(asked)
    return declared


def test_on_a_host_that_we_never_touched_nothing_is_done(host: FakeHost) -> None:
    for operation, arguments in all_operations(host, removal(host)):
        assert commands_of(operation, host, *arguments) == [], operation


def test_every_host_has_the_same_operations(host: FakeHost) -> None:
    head, worker = (all_operations(host, removal(host, is_head)) for is_head in (True, False))
    assert [one for one, _ in head] == [one for one, _ in worker]
    assert len(head) == 12


def test_the_head_stops_before_the_other_ranks(host: FakeHost) -> None:
    host.facts[UnitState] = "activating"
    for is_head in (True, False):
        asked = removal(host, is_head)
        first, second = (commands_of(remove.serving_stopped, host, asked, head) for head in (True, False))
        assert [bool(first), bool(second)] == [is_head, not is_head]
        assert follow(first + second, host)
    assert host.kinds() == ["end serving"]


def test_jobs_that_are_under_way_end(host: FakeHost) -> None:
    host.facts[Jobs] = ["sparkstack-image-0a.service", "sparkstack-share.service"]
    assert follow(commands_of(remove.jobs_ended, host), host)
    assert host.heard == ["systemctl stop sparkstack-image-0a.service sparkstack-share.service"]


def things(**parts: Any) -> dict[str, Any]:
    return {"docker": "answers", "containers": [], "images": [], "volumes": [], **parts}


def test_containers_go_before_images(host: FakeHost) -> None:
    images = ["sparkstack/vllm:0a", "vllm@sha256:1"]
    volumes = ["sparkstack-cache-0a"]
    host.facts[DockerThings] = things(containers=["sparkstack-serve"], images=images, volumes=volumes)
    assert follow(commands_of(remove.images_gone, host, False), host)
    gone = ["docker rm -f sparkstack-serve", "docker volume rm -f sparkstack-cache-0a"]
    assert host.heard == [*gone, *(f"docker image rm {image}" for image in images)]


def test_which_images_we_pulled_is_noted(host: FakeHost) -> None:
    asked: list[list[str]] = []
    host.facts[Undo] = notes(did={"image": {"vllm@sha256:1": ""}})
    host.facts[DockerThings] = lambda pulled: asked.append(pulled) or things()
    commands_of(remove.images_gone, host, False)
    assert asked == [["vllm@sha256:1"]]


def test_an_image_that_somebody_uses_stays_and_is_named(host: FakeHost) -> None:
    host.facts[DockerThings] = things(images=["vllm@sha256:1"])
    host.answers = {"remove image": (False, "Error: image is being used by container 0a")}
    assert follow(commands_of(remove.images_gone, host, False), host)
    assert host.shown == [
        "spark-1: remove: image vllm@sha256:1 stays; Docker says: Error: image is being used by container 0a"
    ]


def test_a_silent_daemon_is_asked_again_and_then_fails_the_host(host: FakeHost) -> None:
    host.facts[DockerThings] = things(docker="silent")
    assert commands_of(remove.images_gone, host, False) == []
    assert not follow(commands_of(remove.images_gone, host, True), host)
    (line,) = host.shown
    assert line.startswith("spark-1: remove: found a Docker daemon that does not answer; wanted it running")


def test_a_host_without_docker_has_no_images(host: FakeHost) -> None:
    host.facts[DockerThings] = DockerThings.default()
    assert commands_of(remove.images_gone, host, True) == []


def test_a_dry_run_announces_images_once(host: FakeHost) -> None:
    host.facts[DockerThings] = things(images=["sparkstack/vllm:0a"])
    host.state.is_executing = False
    assert commands_of(remove.images_gone, host, False) != []
    assert commands_of(remove.images_gone, host, True) == []


BEFORE = '{"mtu":9000 }\n'
OURS = {"registry-mirrors": ["http://m"], "mtu": 1450}


def texts(host: FakeHost, current: str | None, before: str | None, ours: Any = OURS) -> None:
    known = {
        daemon_json.PATH: current,
        f"{undo.ROOT}/files{daemon_json.PATH}": before,
        f"{undo.ROOT}/settings{daemon_json.PATH}": json.dumps(ours) + "\n" if ours else None,
    }
    host.facts[Text] = lambda path: known.get(path)


def test_daemon_json_is_put_back_and_docker_restarted(host: FakeHost) -> None:
    texts(host, daemon_json.merge(BEFORE, OURS), BEFORE)
    host.facts[Undo] = notes(files={daemon_json.PATH: False})
    assert follow(commands_of(remove.daemon_json_back, host), host)
    assert host.kinds() == ["note restart", "put back", "restart docker unless off"]


def test_daemon_json_that_was_not_there_goes(host: FakeHost) -> None:
    texts(host, daemon_json.merge(None, OURS), None)
    assert follow(commands_of(remove.daemon_json_back, host), host)
    assert host.kinds() == ["note restart", "drop", "restart docker unless off"]


def test_what_others_set_since_stays(host: FakeHost) -> None:
    current = json.dumps({**json.loads(daemon_json.merge(BEFORE, OURS)), "dns": ["10.0.0.1"]})
    texts(host, current, BEFORE)
    host.facts[Undo] = notes(files={daemon_json.PATH: False})
    commands = commands_of(remove.daemon_json_back, host)
    assert follow(commands, host)
    assert host.kinds() == ["note restart", "write others' settings", "restart docker unless off"]
    assert json.loads(base64.b64decode(host.fed[0])) == {"mtu": 9000, "dns": ["10.0.0.1"]}


def test_daemon_json_with_nothing_of_ours_does_not_restart_docker(host: FakeHost) -> None:
    texts(host, BEFORE, BEFORE)
    host.facts[Undo] = notes(files={daemon_json.PATH: True})
    assert commands_of(remove.daemon_json_back, host) == []


def test_a_restart_that_was_cut_off_is_made_up_for(host: FakeHost) -> None:
    host.facts[Text] = lambda path: "" if path == remove_docker.DUE else None
    assert follow(commands_of(remove.daemon_json_back, host), host)
    assert host.kinds() == ["restart docker unless off"]


def test_the_same_text_with_another_mode_is_put_back_without_a_restart(host: FakeHost) -> None:
    texts(host, BEFORE, BEFORE)
    host.facts[Undo] = notes(files={daemon_json.PATH: False})
    assert follow(commands_of(remove.daemon_json_back, host), host)
    assert host.kinds() == ["put back"]


def test_a_daemon_json_that_is_broken_is_left_alone(host: FakeHost) -> None:
    texts(host, "{", BEFORE)
    left_alone(host, "/etc/docker/daemon.json:1:2: found invalid JSON (")


def test_a_daemon_json_that_is_no_text_is_left_alone(host: FakeHost) -> None:
    texts(host, decoded(base64.b64encode(b'{"a": "gr\xfcn"}').decode()), BEFORE)
    left_alone(host, "/etc/docker/daemon.json:1:10: found a byte that is not UTF-8 (0xfc); wanted UTF-8; ")


def left_alone(host: FakeHost, said: str) -> None:
    commands = commands_of(remove.daemon_json_back, host)
    assert shell_lines(commands) == [] and not follow(commands, host)
    (line,) = host.shown
    assert line.startswith(f"spark-1: remove: {said}")


def test_our_addresses_go_and_those_of_others_stay(host: FakeHost) -> None:
    host.facts[Text] = lambda path: NETPLAN if path == netplan.PATH else None
    host.facts[Undo] = notes(absent={netplan.PATH: False}, did={"mtu": {"enp1s0f0np0": "1500"}})
    assert follow(commands_of(remove.fabric_back, host), host)
    assert host.kinds() == ["take addresses off", "put mtu back"]
    words = host.heard[0]
    assert words.count("ip address del 192.168.96.10/24 dev enp1s0f0np0 ") == 2
    assert "10.0.0.1" not in words
    assert words.index("address del") < words.index("rm -f") < words.index("netplan apply")


def test_network_files_of_others_come_back_before_the_network_is_applied(host: FakeHost) -> None:
    theirs, profile = "/etc/netplan/40-cx7.yaml", "/etc/NetworkManager/system-connections/a port.nmconnection"
    host.facts[Text] = lambda path: NETPLAN if path == netplan.PATH else None
    files = {theirs: False, profile: False, "/etc/netplan/same.yaml": True}
    host.facts[Undo] = notes(files=files, absent={netplan.PATH: False})
    assert follow(commands_of(remove.fabric_back, host), host)
    words = host.heard[0]
    assert words.index(theirs) < words.index("netplan apply")
    assert f"'{profile}'" in words and "nmcli connection reload" in words and "same.yaml" not in words
    host.facts[Text] = lambda path: None  # ours is gone; a removal that was cut off goes on with theirs
    assert len(commands_of(remove.fabric_back, host)) == 1
    assert commands_of(remove.files_back, host) == []


@pytest.mark.parametrize("absent", [{}, {netplan.PATH: False}])
def test_without_notes_only_a_file_with_our_header_is_ours(host: FakeHost, absent: dict[str, bool]) -> None:
    host.facts[Text] = lambda path: "network: {}\n" if path == netplan.PATH else None
    host.facts[Undo] = notes(absent=absent)
    assert bool(commands_of(remove.fabric_back, host)) == bool(absent)


def test_files_go_back_after_their_units_ended(host: FakeHost) -> None:
    host.facts[Undo] = notes(
        files={"/etc/a.conf": False, "/etc/same.conf": True, daemon_json.PATH: False},
        absent={
            "/etc/systemd/system/sparkstack-serve.service": False,
            "/etc/systemd/system/ssh.service.d/sparkstack.conf": False,
            "/etc/gone.conf": True,
            netplan.PATH: False,
        },
        did={"restarted": {"ssh.service": ""}},
    )
    assert follow(commands_of(remove.files_back, host), host)
    assert host.kinds() == ["end unit", "put back", "drop", "systemd reads again", "restart reader"]
    assert host.heard[0].startswith("systemctl disable --now --quiet sparkstack-serve.service; ")
    assert len(host.heard) == 6


def test_a_unit_of_before_there_were_notes_goes(host: FakeHost) -> None:
    host.facts[Text] = lambda path: "[Unit]\n" if path == remove.UNIT_PATH else None
    assert follow(commands_of(remove.files_back, host), host)
    assert host.kinds() == ["end unit", "drop", "systemd reads again"]


def test_deeds_are_taken_back_in_an_order_that_works(host: FakeHost) -> None:
    did = {
        "group": {"docker": ""},
        "member": {"nvidia:docker": ""},
        "package": {"earlyoom": "", "libx": ""},
        "hold": {"linux-image": ""},
        "image": {"a": ""},
        "target": {"default": "graphical.target"},
    }
    host.facts[Undo] = notes(did=did)
    assert follow(commands_of(remove.settings_back, host), host)
    assert host.kinds() == ["undo deed", "purge", "undo deed"]
    words = ("unhold", "earlyoom libx", "gpasswd", "groupdel", "set-default")
    assert [word for line in host.heard for word in words if word in line] == list(words)


def test_a_deed_that_does_not_go_back_fails_the_host_and_stays_noted(host: FakeHost) -> None:
    host.facts[Undo] = notes(did={"swap": {"/swap.img": ""}})
    host.answers = {"undo deed": (False, "swapon: /swap.img: read failed")}
    assert not follow(commands_of(remove.settings_back, host), host)
    assert host.shown == [
        "spark-1: remove: found swap /swap.img not going back: swapon: /swap.img: read failed; wanted it as "
        "before; mend that, then run again"
    ]


@pytest.mark.parametrize(
    ("said", "ends_well"),
    [
        ("dpkg: error: dpkg frontend lock was locked by another process with pid 7", False),
        ("dpkg: dependency problems prevent removal of libx: other depends on libx.", True),
    ],
)
def test_packages_that_do_not_go(host: FakeHost, said: str, ends_well: bool) -> None:
    host.facts[Undo] = notes(did={"package": {"libx": ""}})
    host.answers = {"purge": (False, said)}
    assert follow(commands_of(remove.settings_back, host), host) is ends_well
    (line,) = host.shown
    assert line.startswith("spark-1: remove: ") and said in line


STATE = "/var/lib/sparkstack"
FOUND = {
    "entries": [
        "/opt/sparkstack/conda",
        f"{STATE}/checkpoints",
        f"{STATE}/jobs",
        f"{STATE}/downloads",
        "/etc/sparkstack/undo",
        "/etc/sparkstack/releases",
    ],
    "data": {f"{STATE}/checkpoints": 3_000_000, f"{STATE}/downloads": 1_000_000},
}


@pytest.mark.parametrize("checkpoints", [False, True])
def test_checkpoints_go_only_where_the_user_said_so(
    host: FakeHost, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "ROOT", "/etc/sparkstack/undo")
    host.facts[Leavings] = FOUND
    for _ in range(2):  # prepared, then executed: said once
        commands = commands_of(remove.folders_gone, host, removal(host, checkpoints=checkpoints))
    assert follow(commands, host)
    assert (f"rm -rf --one-file-system {STATE}/downloads" in host.heard) is checkpoints
    assert f"rm -rf --one-file-system {STATE}/jobs" in host.heard
    assert host.kinds() == ["remove folder", "remove notes"]
    kept = (
        f"spark-1: remove: kept {STATE}/checkpoints and {STATE}/downloads (4.0 MB); to remove them too: "
        "--data checkpoints=yes"
    )
    assert host.shown == ([] if checkpoints else [kept])


def test_what_stays_is_nothing_to_do(host: FakeHost) -> None:
    data = FOUND["data"]
    host.facts[Leavings] = {"entries": list(data), "data": data}
    assert commands_of(remove.folders_gone, host, removal(host)) == []


def test_of_a_folder_with_another_name_only_our_parts_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.undo.OWN", (f"{tmp_path}/opt-sparkstack", f"{tmp_path}/etc-sparkstack"))
    for name in (
        "data/jobs/x",
        "data/theirs",
        "data/checkpoints/0a",
        "opt-sparkstack/any",
        "etc-sparkstack/.x",
    ):
        (tmp_path / name).mkdir(parents=True)
    folders = [
        ["install_dir", f"{tmp_path}/opt-sparkstack"],
        ["state_dir", f"{tmp_path}/data"],
        ["config_dir", f"{tmp_path}/etc-sparkstack"],
    ]
    done = subprocess.run(
        ["sh", "-c", Leavings().command(folders)], capture_output=True, text=True, check=True
    )
    found = Leavings().process(done.stdout.splitlines())
    wanted = ["opt-sparkstack/any", "data/jobs", "data/checkpoints", "etc-sparkstack/.x"]
    assert found["entries"] == [f"{tmp_path}/{name}" for name in wanted]
    assert list(found["data"]) == [f"{tmp_path}/data/checkpoints"]


def test_a_folder_is_ours_as_a_whole_only_by_its_very_path() -> None:
    assert is_ours("/var/lib/sparkstack") and is_ours("/opt/sparkstack/")
    assert not is_ours("/home/me/sparkstack") and not is_ours("/data/sparkstack-models")


def test_a_container_of_others_that_uses_the_gpu_stops_all_before_a_change(host: FakeHost) -> None:
    host.facts[MachineState] = Machine(gpu_containers=("jupyter", "sparkstack-serve"))
    assert not follow(commands_of(remove.others_asked, host, removal(host)), host)
    assert host.shown == [
        "spark-1: remove: found container jupyter using the GPU; wanted none of others while Docker "
        "restarts; stop it and run again"
    ]


def test_no_containers_of_others(host: FakeHost) -> None:
    host.facts[MachineState] = Machine(gpu_containers=("sparkstack-serve",))
    assert commands_of(remove.others_asked, host, removal(host)) == []


@pytest.mark.parametrize(
    ("value", "checkpoints"), [("yes", True), (True, True), ("no", False), (False, False), (None, False)]
)
def test_the_word_for_checkpoints(
    host: FakeHost, value: Any, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "inventory", [host])
    if value is not None:
        host.data.checkpoints = value
    with ctx_host.use(host):
        asked = remove.load()
    assert (asked.checkpoints, asked.is_head) == (checkpoints, True)


def test_another_word_for_checkpoints_is_a_mistake(host: FakeHost) -> None:
    host.data.checkpoints = "maybe"
    with (
        ctx_host.use(host),
        pytest.raises(SiteError, match="--data checkpoints: found 'maybe'; wanted yes or no"),
    ):
        remove.load()


# The shell of it, for real.


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., list[str]]:
    """`tools("group", "docker", "", getent="echo docker:x:1:")`: what a deed's undoing calls, in order."""

    def called(kind: str, name: str, before: str, **bodies: str) -> list[str]:
        folder, log = tmp_path / "bin", tmp_path / "called"
        folder.mkdir(exist_ok=True)
        for tool in ("gpasswd", "groupdel", "getent", "id", "apt-mark", "sysctl", "swapon", "systemctl"):
            body = bodies.get(tool.replace("-", "_"), "")
            (folder / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {log}\n{body}\n')
            (folder / tool).chmod(0o755)
        log.write_text("")
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", take_back(kind, name, before)], env=env, check=True)
        return log.read_text().splitlines()

    return called


@pytest.mark.parametrize(
    ("deed", "bodies", "last"),
    [
        (("member", "nvidia:docker", ""), {"id": "echo nvidia docker"}, "gpasswd -d nvidia docker"),
        (("member", "nvidia:docker", ""), {"id": "echo nvidia docker-users"}, "id -nG nvidia"),
        (("group", "docker", ""), {"getent": "echo docker:x:103:"}, "groupdel docker"),
        (("group", "docker", ""), {"getent": "echo docker:x:103:other"}, "getent group docker"),
        (("group", "docker", ""), {"getent": "exit 2"}, "getent group docker"),
        (("hold", "linux", ""), {"apt_mark": "[ $1 = unhold ] || echo linux"}, "apt-mark unhold linux"),
        (("hold", "linux", ""), {}, "apt-mark showhold linux"),
        (("sysctl", "vm.swappiness", "60"), {}, "sysctl -q -w vm.swappiness=60"),
        (("swap", "/no such", ""), {}, "swapon /no such"),
        (("target", "default", "graphical.target"), {}, "systemctl set-default --quiet graphical.target"),
        (("unit", "x.service", "disabled inactive"), {}, "systemctl stop --quiet x.service"),
        (("unit", "x.service", "enabled active"), {}, "systemctl start --quiet x.service"),
        (("unit", "x.service", "masked inactive"), {}, "systemctl stop --quiet x.service"),
        (("unit", "x.service", ""), {}, "systemctl cat x.service"),
        (("unit", "x.service", "enabled active"), {"systemctl": "exit 1"}, "systemctl cat x.service"),
    ],
)
def test_a_deed_is_undone_where_it_still_holds(
    tools: Any, deed: tuple[str, str, str], bodies: dict[str, str], last: str
) -> None:
    assert tools(*deed, **bodies)[-1] == last


def sh(text: str) -> None:
    subprocess.run(["sh", "-c", text], check=True)


def test_a_file_is_put_back_with_all_that_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.conf"
    path.parent.mkdir()
    path.write_text("theirs\n")
    path.chmod(0o640)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    sh(undo.keep(str(path)))
    path.unlink()
    path.parent.rmdir()
    for _ in range(2):
        sh(put_back.restore(str(path)))
        assert path.read_text() == "theirs\n"
        assert (path.stat().st_mode & 0o777, path.stat().st_mtime) == (0o640, 1_000_000_000)


def test_a_file_of_ours_goes_with_the_folders_that_came_with_it(tmp_path: Path) -> None:
    one, two = tmp_path / "x.service.d" / "deep" / "ours", tmp_path / "x.service.d" / "ours"
    for path in (one, two):
        sh(undo.keep(str(path)))
    one.parent.mkdir(parents=True)
    for path in (one, two):
        path.write_text("")
    sh(put_back.drop(str(one)))
    assert [path.name for path in tmp_path.rglob("*")] == ["x.service.d", "ours"]
    sh(put_back.drop(str(two)))
    sh(put_back.drop(str(two)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_note_takes_no_folder_along(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x"
    path.parent.mkdir()
    path.write_text("")
    sh(put_back.drop(str(path)))
    assert list(tmp_path.iterdir()) == [path.parent]


SETTINGS = f"settings{daemon_json.PATH}"


@pytest.mark.parametrize("asked", [True, False])
def test_containers_that_dockers_restart_would_stop_are_named_before_a_change(
    host: FakeHost, asked: bool
) -> None:
    host.facts[Others] = {"webui": True}
    host.facts[Text] = lambda path: "{}" if path.endswith(SETTINGS) else None
    host.data.restart_serving = asked
    assert follow(commands_of(remove.others_asked, host, removal(host)), host) is asked
    assert ["which would stop on spark-1 the container webui" in line for line in host.shown] == (
        [] if asked else [True]
    )


def test_where_no_settings_are_ours_docker_does_not_restart(host: FakeHost) -> None:
    host.facts[Others] = {"webui": True}
    assert commands_of(remove.others_asked, host, removal(host)) == []


def test_the_folders_are_those_that_a_deployment_used(host: FakeHost) -> None:
    """Not those that are declared now: what is in them was never ours."""
    host.data.state_dir = "/srv/others"
    noted = {"/data/ss": "state_dir /data", "/data/opt": "install_dir /data/opt"}
    host.facts[Undo] = notes(did={"folder": noted}, files={"/etc/x": True})
    asked: list[list[list[str]]] = []
    leavings = {"entries": ["/data/ss/jobs", undo.ROOT], "data": {}}
    host.facts[Leavings] = lambda folders: asked.append(folders) or leavings
    assert follow(commands_of(remove.folders_gone, host, removal(host)), host)
    assert asked == [
        [
            ["state_dir", "/data/ss"],
            ["install_dir", "/data/opt"],
            ["config_dir", "/etc/sparkstack"],
            ["state_dir", "/var/lib/sparkstack"],
            ["install_dir", "/opt/sparkstack"],
        ]
    ]
    assert host.kinds() == ["remove folder", "remove site's folder", "remove notes"]
    assert "rm -rf --one-file-system /data/ss/jobs" in host.heard


def test_what_stays_in_a_named_folder_is_found_by_a_later_removal(host: FakeHost) -> None:
    host.facts[Undo] = notes(did={"folder": {"/data/ss": "state_dir /data"}}, files={"/etc/x": True})
    data = {"/data/ss/checkpoints": 5}
    host.facts[Leavings] = {"entries": [*data, undo.ROOT], "data": data}
    assert follow(commands_of(remove.folders_gone, host, removal(host)), host)
    assert host.kinds() == ["remove notes"]
    assert f"find {undo.ROOT} -type f ! -path '{undo.ROOT}/did/folder/*' -delete" in host.heard[0]
    host.facts[Undo] = notes(did={"folder": {"/data/ss": "state_dir /data"}})
    assert commands_of(remove.folders_gone, host, removal(host)) == []
    host.heard.clear()
    assert follow(commands_of(remove.folders_gone, host, removal(host, checkpoints=True)), host)
    assert host.heard[0] == "rm -rf --one-file-system /data/ss/checkpoints"
    assert f"rm -rf {undo.ROOT}" in host.heard[-1]


@pytest.mark.parametrize(
    ("state", "before", "kinds"),
    [("bare", "/data", ["remove folder"]), ("used", "/data", []), ("bare", "/data/docker", [])],
)
def test_dockers_data_goes_where_it_is_nobodys(
    host: FakeHost, state: str, before: str, kinds: list[str]
) -> None:
    host.facts[Undo] = notes(did={"data-root": {"/data/docker": before}})
    host.facts[DataRoots] = {"/data/docker": {"bytes": "4000000", "state": state}}
    assert follow(commands_of(remove.data_roots_gone, host), host)
    assert host.kinds() == kinds
    kept = (
        "spark-1: remove: kept /data/docker (4.0 MB), where Docker had its data: there may be more in it "
        "than ours; look, and remove it by hand"
    )
    assert host.shown == ([] if kinds else [kept])
