"""Is a node there for a user with the lab's key? Asked with the pinned host key, as pyinfra will."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import paramiko

from lab.paths import LabError

logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def wait(
    address: str, user: str, key: Path, known_hosts: Path, seconds: float, port: int = 22
) -> None:
    """Returns when `true` ran over SSH. Raises LabError when it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _try(address, user, key, known_hosts, port)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if time.monotonic() > deadline or isinstance(error, paramiko.BadHostKeyException):
                raise LabError(f"ssh {user}@{address}: {error}; wanted a login with {key.name}") from None
            time.sleep(0.2)


def _try(address: str, user: str, key: Path, known_hosts: Path, port: int) -> None:
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(known_hosts))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.connect(
            address,
            port=port,
            username=user,
            key_filename=str(key),
            timeout=10,
            banner_timeout=60,
            auth_timeout=60,
            allow_agent=False,
            look_for_keys=False,
        )
        _, stdout, _ = client.exec_command("true", timeout=20)
        if stdout.channel.recv_exit_status() != 0:
            raise paramiko.SSHException("`true` failed")


def open_port(address: str, port: int, seconds: float) -> bool:
    """Whether a TCP port opens within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False
