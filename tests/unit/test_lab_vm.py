"""The virtual machines without QEMU: whose process it is, what it is told, and what a user reads."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyinfra.api.exceptions import PyinfraError

from lab import qemu, vm, vm_image
from lab.paths import ROOT, LabError
from sparkstack import knobs, lab_cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(vm, "VM", tmp_path)
    for name in ("STATE", "KEY", "KNOWN_HOSTS"):
        monkeypatch.setattr(vm, name, tmp_path / getattr(vm, name).name)
    monkeypatch.setattr("lab.lab.LAB", tmp_path)
    return tmp_path


def stand(folder: Path, count: int = 2) -> dict[str, Any]:
    nodes = [
        {"name": f"spark-{n}", "number": n, "address": "127.0.0.1", "port": 2200 + n}
        for n in range(1, count + 1)
    ]
    state = {
        "format": 1,
        "accelerator": "tcg",
        "user": "nvidia",
        "rail_ports": [20000, 20001],
        "nodes": nodes,
    }
    (folder / "state.json").write_text(json.dumps(state))
    return state


def test_a_process_is_ours_by_its_disk(folder: Path) -> None:
    machine = vm.machine_of("spark-1")
    assert machine.pid() is None
    machine.pidfile.write_text(f"{os.getpid()}\n")
    assert machine.pid() is None, "a number that is somebody else's by now"
    words = [sys.executable, "-c", "import time; time.sleep(60)", f"file={machine.disk},format=raw"]
    with subprocess.Popen(words) as process:
        machine.pidfile.write_text(f"{process.pid}\n")
        while machine.pid() is None:  # until it has become what it is called
            pass
        # Reaped elsewhere: QEMU is nobody's child.
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        machine.stop()
        reaper.join()
    assert process.returncode == -15 and not machine.pidfile.exists()
    machine.stop()


def test_qemus_words_when_it_does_not_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[list[str]] = []

    def run(words: list[str], **more: Any) -> Any:
        heard.append(words)
        return subprocess.CompletedProcess(words, 1, "", "qemu: Could not set up host forwarding rule\n")

    monkeypatch.setattr(qemu.subprocess, "run", run)
    state = stand(folder)
    nics = list(vm._nics(state, state["nodes"][1]).values())
    with pytest.raises(LabError, match="spark-2: QEMU did not start: qemu: Could not set up host forwarding"):
        vm.machine_of("spark-2").start("tcg", Path("vmlinuz"), Path("initrd"), nics)
    line = " ".join(heard[0])
    assert "hostfwd=tcp:127.0.0.1:2202-:22" in line and "-accel tcg" in line
    assert line.count("localaddr=127.0.0.1") == 2 and "mcast=239.193.77.1:20001" in line
    assert line.count("speed=200000") == 2 and "mac=52:54:00:5a:02:02" in line


def test_a_cable_is_pulled_by_the_monitor(folder: Path) -> None:
    stand(folder)
    heard: list[dict[str, Any]] = []

    def monitor(server: socket.socket) -> None:
        connection, _ = server.accept()
        stream = connection.makefile("rw")
        stream.write('{"QMP": {}}\n')
        stream.flush()
        for line in stream:
            heard.append(json.loads(line))
            answer = '{"event": "x"}\n{"return": {}}\n' if len(heard) < 3 else '{"error": {"desc": "no"}}\n'
            stream.write(answer)
            stream.flush()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "spark-2.qmp"))
        server.listen()
        thread = threading.Thread(target=monitor, args=(server,), daemon=True)
        thread.start()
        vm.cable("spark-2", "enP2p1s0f0np0", on=False)
    assert heard[1] == {"execute": "set_link", "arguments": {"name": "rail1", "up": False}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cable", "spark-1", "enP7s7", "out"], "found enP7s7; wanted one of enp1s0f0np0, enP2p1s0f0np0"),
        (["cable", "spark-1", "enp1s0f0np0", "out"], "spark-1: no monitor"),
        (["cable", "spark-9", "enp1s0f0np0", "out"], "the lab has no machine spark-9"),
        (["restart", "--vm", "spark-9"], "the lab has no machine spark-9"),
        (["ssh", "--vm", "spark-9"], "the lab has no node spark-9; it has spark-1, spark-2"),
        (["up", "--vm", "--nodes", "9"], "found 9 nodes; wanted at most 4 virtual machines"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: list[str], said: str) -> None:
    stand(folder)
    result = CliRunner().invoke(lab_cli.lab, words)
    assert result.exit_code == 1 and said in result.output and "Traceback" not in result.output


def test_without_machines(folder: Path) -> None:
    for words in (["restart", "--vm", "spark-1"], ["ssh", "--vm", "spark-1"]):
        result = CliRunner().invoke(lab_cli.lab, words)
        assert result.exit_code == 1 and "sparkstack lab up --vm" in result.output
    assert CliRunner().invoke(lab_cli.lab, ["status", "--vm"]).exit_code == 1


def test_status_and_down(folder: Path) -> None:
    stand(folder)
    result = CliRunner().invoke(lab_cli.lab, ["status", "--vm"])
    assert "lab: not up; under tcg\n  spark-1: off, 127.0.0.1:2201" in result.output
    for name in ("spark-1.img", "spark-2.console", "known_hosts"):
        (folder / name).touch()
    (folder / "root-x").mkdir()
    vm.down()
    assert sorted(path.name for path in folder.iterdir()) == ["root-x", "vm.lock"]
    vm.down(everything=True)
    assert not folder.exists()


def test_nothing_is_removed_below_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    table = f"29 1 0:5 / {tmp_path.resolve()}/dev rw - devtmpfs udev rw\n"
    monkeypatch.setattr(Path, "read_text", lambda path: table)
    with pytest.raises(LabError, match="/dev mounted; wanted nothing mounted there; umount it first"):
        vm_image.drop(tmp_path)
    assert (tmp_path / "dev").exists()


def test_another_architecture_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm.platform, "machine", lambda: "aarch64")
    with pytest.raises(LabError, match="found aarch64; wanted x86_64"):
        vm.up(2)


@pytest.mark.parametrize(
    ("words", "ended"),
    [([], ["containers"]), (["--vm"], ["machines"]), (["--all"], ["machines", "containers"])],
)
def test_down_ends_what_was_asked(
    words: list[str], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(lab_cli.machines, "down", lambda everything: heard.append("machines"))
    monkeypatch.setattr(lab_cli.virtual, "down", lambda everything, report: heard.append("containers"))
    assert CliRunner().invoke(lab_cli.lab, ["down", *words]).exit_code == 0
    assert heard == ended


def test_no_qemu_and_no_kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LabError, match="apt install qemu-system-x86"):
        qemu.probe(Path("vmlinuz"), tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert qemu.probe(Path("vmlinuz"), tmp_path) == "tcg"


@pytest.mark.parametrize(
    ("said", "accelerator"), [("Kernel panic - not syncing", "kvm"), ("Probing EDD", "tcg")]
)
def test_kvm_is_what_boots_the_kernel(
    said: str, accelerator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Qemu:
        def __init__(self, words: list[str], **more: Any) -> None:
            console = next(word for word in words if word.startswith("file:")).removeprefix("file:")
            Path(console).write_text(said)

        def __enter__(self) -> Qemu:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def poll(self) -> int:
            return 0

        def kill(self) -> None:
            pass

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    monkeypatch.setattr(qemu.subprocess, "Popen", Qemu)
    assert qemu.probe(Path("vmlinuz"), tmp_path) == accelerator


def test_the_inventory_is_the_state(tmp_path: Path) -> None:
    (tmp_path / "inventories").mkdir()
    shutil.copy(ROOT / "inventories/lab_vm.py", tmp_path / "inventories")
    path = str(tmp_path / "inventories/lab_vm.py")
    with pytest.raises(PyinfraError, match="sparkstack lab up --vm"):
        runpy.run_path(path)
    (tmp_path / ".lab/vm").mkdir(parents=True)
    state = {**stand(tmp_path), "key": ".lab/vm/id", "known_hosts": ".lab/vm/known"}
    (tmp_path / ".lab/vm/state.json").write_text(json.dumps(state))
    name, data = runpy.run_path(path)["sparks"][1]
    assert (name, data["ssh_port"], data["ssh_key"]) == ("spark-2", 2202, str(tmp_path / ".lab/vm/id"))


def test_the_site_values_are_right() -> None:
    def values(name: str) -> dict[str, Any]:
        return {k: v for k, v in runpy.run_path(str(ROOT / name)).items() if not k.startswith("__")}

    assert (
        knobs.problems({**values("group_data/all.py"), **values("group_data/lab_vm.py")}, {}, ["_sudo"]) == []
    )
    assert set(values("group_data/lab_vm.py")["packages"]) <= set(vm_image.PACKAGES)
