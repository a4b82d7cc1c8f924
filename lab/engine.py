"""The Docker daemon of this machine: found running, or started by the lab and then remembered."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import docker
from docker.errors import DockerException

from lab.paths import LAB, LabError, Progress

PIDFILE = LAB / "dockerd.pid"
LOG = LAB / "dockerd.log"
START_S = 60.0


def connect(timeout: int = 600) -> docker.DockerClient | None:
    """A client of the running daemon (DOCKER_HOST counts), or None where none answers."""
    try:
        client = docker.from_env(timeout=timeout)
        client.ping()
    except DockerException as error:
        if "Permission denied" in str(error):
            raise LabError("no permission to use Docker: run as root or join the group docker") from None
        return None
    return client


def ensure(progress: Progress) -> docker.DockerClient:
    """A client; starts dockerd where none runs."""
    if client := connect():
        return client
    start(progress)
    client = connect()
    if client is None:
        raise LabError(f"dockerd answers no more; see {LOG}")
    return client


def start(progress: Progress, *options: str) -> int:
    """Starts dockerd in a session of its own and waits until it answers; returns its pid.

    Raises LabError with the last line of its log where it ends instead.
    """
    if shutil.which("dockerd") is None:
        raise LabError("the lab needs Docker Engine: apt install docker.io")
    if os.geteuid() != 0:
        raise LabError("no Docker daemon runs, and starting one needs root: use ./try")
    LAB.mkdir(exist_ok=True)
    progress("docker", 0, None, "starting dockerd")
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            ["dockerd", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    PIDFILE.write_text(f"{process.pid}\n")
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            PIDFILE.unlink()
            raise LabError(f"dockerd ended with {process.returncode}: {_last_line(LOG)}")
        if connect(timeout=5):
            progress("docker", 1, 1, f"dockerd started, pid {process.pid}")
            return process.pid
        time.sleep(0.2)
    raise LabError(f"dockerd does not answer after {START_S:.0f} s; see {LOG}")


def ours() -> int | None:
    """The pid of the dockerd that the lab started and that still runs, else None."""
    try:
        pid = int(PIDFILE.read_text())
        program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]  # empty once it has ended
    except (OSError, ValueError):
        return None
    return pid if program.rpartition(b"/")[2] == b"dockerd" else None


def stop() -> bool:
    """Ends the dockerd that the lab started; False where there is none."""
    pid = ours()
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while ours() is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    PIDFILE.unlink(missing_ok=True)
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "no word in the log"
