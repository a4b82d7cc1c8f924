"""Virtual machines for end-to-end tests: made fresh once, ended whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
import pytest

from sparkstack import report_files

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
BOOT_S = 900


@dataclass
class Machine:
    """One virtual Spark, asked by an SSH connection of its own each time: it may have been restarted."""

    name: str
    state: dict[str, Any]
    port: int

    def run(self, command: str, check: bool = True) -> str:
        """Standard output of a command run as root."""
        with paramiko.SSHClient() as client:
            client.load_host_keys(str(ROOT / self.state["known_hosts"]))
            client.set_missing_host_key_policy(paramiko.RejectPolicy())
            client.connect(
                "127.0.0.1",
                self.port,
                self.state["user"],
                key_filename=str(ROOT / self.state["key"]),
                timeout=60,
                banner_timeout=120,
                auth_timeout=120,
                allow_agent=False,
                look_for_keys=False,
            )
            quoted = "'" + command.replace("'", "'\\''") + "'"
            _, out, err = client.exec_command(f"sudo -n sh -c {quoted}", timeout=300)
            text, errors = out.read().decode(), err.read().decode()
            status = out.channel.recv_exit_status()
        assert not check or status == 0, f"{self.name}: {command}: {errors or text}"
        return text.strip()

    def boot(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id")

    def fabric(self) -> dict[str, Any]:
        """Addresses and RDMA devices of the rails."""
        found = {}
        for nic in ("enp1s0f0np0", "enP2p1s0f0np0"):
            (link,) = json.loads(self.run(f"ip -j -4 address show dev {nic}"))
            found[nic] = (link["mtu"], link["operstate"], [one["local"] for one in link["addr_info"]])
        devices = json.loads(self.run("rdma -j link"))
        found["rdma"] = sorted((one["ifname"], one["netdev"], one["state"]) for one in devices)
        return found

    def wait_for_boot_after(self, boot: str) -> None:
        """Returns when the machine answers with another boot."""
        until = time.monotonic() + BOOT_S
        while True:
            try:
                if self.boot() != boot:
                    return
            except (OSError, EOFError, paramiko.SSHException):
                pass
            assert time.monotonic() < until, f"{self.name}: no other boot within {BOOT_S} s"
            time.sleep(2)


@dataclass
class Run:
    """A finished run of the controller, and its report."""

    code: int
    output: str
    report: dict[str, Any]

    def changed(self) -> list[str]:
        return [
            f"{one['stage']} | {one['name']}"
            for one in self.report["operations"]
            if one["status"] == "changed"
        ]

    def links(self, status: str) -> dict[str, str]:
        """`{"spark-1: check": found}` of the links' lines with this status."""
        lines = self.report["links"]["lines"]
        return {f"{one['host']}: {one['name']}": one["found"] for one in lines if one["status"] == status}


def deploy(*words: str) -> Run:
    """Run pyinfra as a user does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The script of this environment may be another checkout's; the package is this one's by the path.
    done = subprocess.run(
        [sys.executable, str(BIN / "pyinfra"), "inventories/lab_vm.py", "deploy.py", "-y", *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    newest = report_files.files(ROOT / "reports")[-1]
    return Run(done.returncode, done.stdout, json.loads(newest.read_text()))


def lab(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from sparkstack.cli import main; main()", "lab", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def machines() -> Iterator[list[Machine]]:
    lab("down", "--vm")
    try:
        lab("up", "--vm", "--nodes", "2")
        state = json.loads((ROOT / ".lab/vm/state.json").read_text())
        yield [Machine(node["name"], state, node["port"]) for node in state["nodes"]]
    finally:
        lab("down", "--vm")
