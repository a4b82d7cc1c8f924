"""Root rights: without a password, with one from the environment, with one that is typed; else one line."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from pyinfra.connectors.util import CommandOutput, OutputLine

from tasks import access
from tasks.site import SiteError

ASKS = "sudo: a password is required"


class Host:
    """A host whose sudo wants `password` (None: nothing)."""

    name = "spark-1"

    def __init__(self, password: str | None = None, said: str = ASKS, sudo: bool = True) -> None:
        self.password, self.said = password, said
        self.data = {"_sudo": sudo}
        self.connector_data: dict[str, Any] = {}
        self.heard: list[str] = []

    def run_shell_command(self, command: Any, _sudo: bool) -> tuple[bool, CommandOutput]:
        self.heard.append(str(command))
        given = self.connector_data.get("prompted_sudo_password") if _sudo else None
        if self.password is None or given == self.password:
            return True, CommandOutput([])
        words = f"said {self.said}" if not _sudo else "sudo: 3 incorrect password attempts"
        return False, CommandOutput([OutputLine("stdout" if not _sudo else "stderr", words)])


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is typed, one after the other; nobody is there while it is empty."""
    typed: list[str] = []
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"isatty": lambda self: bool(typed)})())
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    monkeypatch.setattr(access, "_typed", [])
    monkeypatch.delenv(access.VARIABLE, raising=False)
    return typed


def test_sudo_that_asks_nothing() -> None:
    host = Host()
    assert access.problem(host) is None
    assert host.heard == [access.PROBE] and host.connector_data == {}


def test_a_site_without_sudo_is_not_asked() -> None:
    host = Host("secret", sudo=False)
    assert access.problem(host) is None and host.heard == []


def test_a_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.VARIABLE, "secret")
    host = Host("secret")
    assert access.problem(host) is None
    assert host.connector_data["prompted_sudo_password"] == "secret"
    assert not any("secret" in command for command in host.heard)


def test_a_password_is_typed_once_for_all_hosts(terminal: list[str]) -> None:
    terminal += ["secret", "never asked for"]
    assert access.problem(Host("secret")) is access.problem(Host("secret")) is None
    assert terminal == ["never asked for"]


def test_nobody_to_ask() -> None:
    with pytest.raises(SiteError) as caught:
        access.ensure(Host("secret"))
    assert str(caught.value) == (
        "spark-1: sudo: found that sudo asks for a password, and none; wanted root rights; add the user to "
        "sudoers with NOPASSWD, or set SPARKSTACK_SUDO_PASSWORD, or run on a terminal"
    )


def test_a_wrong_password_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.VARIABLE, "wrong")
    host = Host("secret")
    assert str(access.problem(host)) == (
        "spark-1: sudo: found that sudo refuses the password; wanted root rights; correct "
        "SPARKSTACK_SUDO_PASSWORD, or add the user to sudoers"
    )
    assert host.connector_data["prompted_sudo_password"] is None


def test_no_sudo_at_all() -> None:
    assert str(access.problem(Host("x", said="sh: 1: sudo: not found"))) == (
        "spark-1: sudo: found sh: 1: sudo: not found; wanted root rights; install sudo, and add the user to "
        "sudoers"
    )


def test_the_probe_does_not_repeat_the_words_that_make_pyinfra_ask() -> None:
    script = access.PROBE.replace("sudo -n true", "sh -c 'echo sudo: a password is required >&2; exit 1'")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "said sudo: a password is required\n")
