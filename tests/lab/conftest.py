"""The lab for end-to-end tests: brought up fresh once, looked at over SSH and never through our own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import pytest

from sparkstack import report_files

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent


# The files build on one another: from fresh hosts to serving ones, looked at, and back to fresh ones.
ORDER = (
    "test_source_build",
    "test_end_to_end",
    "test_bench",
    "test_vllm_reads",
    "test_link_gate",
    "test_releases",
    "test_doctor",
    "test_host_faults",
    "test_serving_faults",
    "test_more_hosts",
    "test_remove",
    "test_fabric",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else -1)


@dataclass
class Spark:
    """One virtual Spark, by its own SSH connection."""

    name: str
    address: str
    client: paramiko.SSHClient
    fresh: dict[str, str] = field(default_factory=dict)  # `contents()` before the first run

    def run(self, command: str, check: bool = True) -> str:
        """Standard output of a command run as root; fails the test where the command fails."""
        _, out, err = self.client.exec_command(f"sudo -n sh -c {_quote(command)}", timeout=120)
        text, errors = out.read().decode(), err.read().decode()
        status = out.channel.recv_exit_status()
        assert not check or status == 0, f"{self.name}: {command}: {errors or text}"
        return text.strip()

    def files(self) -> dict[str, str]:
        """Every file that a run could have touched: path → inode, size, time, target of a link."""
        listing = self.run(
            "find /etc /opt /usr/local /var/lib/sparkstack /root /home -xdev \\( -type f -o -type l \\)"
            " ! -path '*/__pycache__/*' -printf '%p|%i %s %T@ %l\\n' 2>/dev/null; true"
        )
        return dict(line.split("|", 1) for line in listing.splitlines())

    def contents(self) -> dict[str, str]:
        """What the managed paths hold, whenever it was written: path → kind, mode, owner, content."""
        where = "/etc /opt /usr/local /var/lib/sparkstack /root /home"
        listing = self.run(
            f"find {where} -xdev ! -path '*/__pycache__*' -printf '%p|%y %m %u:%g %l\\n' 2>/dev/null; "
            f"find {where} -xdev -type f ! -path '*/__pycache__*' -print0 2>/dev/null | xargs -0 sha256sum"
        )
        found: dict[str, str] = {}
        for line in listing.splitlines():
            if "|" in line:
                path, _, about = line.partition("|")
                found[path] = about
            else:
                sha256, _, path = line.partition("  ")
                found[path] += sha256
        return found

    def serving(self) -> str:
        """What changes when serving restarts: the container's id and start time."""
        return self.run("docker inspect -f '{{.Id}} {{.State.StartedAt}}' sparkstack-serve")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@dataclass
class Run:
    """A finished run of the controller."""

    code: int
    output: str
    seconds: float

    def changed(self) -> dict[str, list[str]]:
        """Host → operations that changed something, from the run's own report."""
        report = json.loads(newest_report().read_text())
        found: dict[str, list[str]] = {}
        for operation in report["operations"]:
            if operation["status"] == "changed":
                name = f"{operation['stage']} | {operation['name']}"
                found.setdefault(operation["host"], []).append(name)
        return found


def newest_report(root: Path = ROOT) -> Path:
    return report_files.files(root / "reports")[-1]


def pyinfra(
    *words: str, root: Path = ROOT, inventory: str = "inventories/lab.py", script: str = "deploy.py"
) -> Run:
    """Run pyinfra as a user does; the result holds both output streams."""
    began = time.monotonic()
    done = subprocess.run(
        [str(BIN / "pyinfra"), inventory, script, *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    return Run(done.returncode, done.stdout, time.monotonic() - began)


def start_pyinfra(*words: str) -> subprocess.Popen[bytes]:
    """Start pyinfra without waiting, to be killed by the test."""
    return subprocess.Popen(
        [str(BIN / "pyinfra"), "inventories/lab.py", "deploy.py", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def lab(*words: str) -> str:
    done = subprocess.run(
        [str(BIN / "sparkstack"), "lab", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def state() -> dict[str, Any]:
    """A fresh lab of two nodes; stays up after the tests (`.ci/run` takes it down)."""
    lab("down")
    lab("up", "--nodes", "2")
    found: dict[str, Any] = json.loads((ROOT / ".lab/state.json").read_text())
    return found


@pytest.fixture(scope="session")
def sparks(state: dict[str, Any]) -> Iterator[list[Spark]]:
    found = []
    for node in state["nodes"]:
        client = paramiko.SSHClient()
        client.load_host_keys(str(ROOT / state["known_hosts"]))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(
            node["address"],
            username=state["user"],
            key_filename=str(ROOT / state["key"]),
            allow_agent=False,
            look_for_keys=False,
        )
        spark = Spark(node["name"], node["address"], client)
        spark.fresh = spark.contents()
        found.append(spark)
    yield found
    for spark in found:
        spark.client.close()


def complete(endpoint: str, model: str, tokens: int = 4, prompt: str = "One", **more: Any) -> dict[str, Any]:
    """A real completion, asked for as a user would."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": tokens, **more}).encode()
    request = urllib.request.Request(f"{endpoint}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def hub_faults(state: dict[str, Any], fault: dict[str, Any] | None) -> None:
    """Ask the hub stand-in for a fault; None clears all."""
    method = "DELETE" if fault is None else "POST"
    body = None if fault is None else json.dumps(fault).encode()
    request = urllib.request.Request(f"{state['hub']}/__faults", body, method=method)
    urllib.request.urlopen(request, timeout=10).close()
