"""Root rights on the hosts, tried before anything else needs them.

A password comes from the environment variable SPARKSTACK_SUDO_PASSWORD or is asked for once on the terminal;
it is never an argument and never in a file. Without this pyinfra would ask in the middle of a run, or wait
for an answer where there is no terminal.
"""

from __future__ import annotations

import getpass
import os
import sys
from typing import Any

from pyinfra.api import StringCommand
from pyinfra.connectors.util import SUDO_PASSWORD_REQUIRED_LINES

from sparkstack.errors import Problem
from tasks.site import SiteError

VARIABLE = "SPARKSTACK_SUDO_PASSWORD"
NO_ANSWER = "no answer"

# Marked, for pyinfra asks for a password as soon as it reads the bare words of sudo in any output.
# In English, for that is how its words are known.
PROBE = "said=$(LC_ALL=C sudo -n true 2>&1) || { echo \"$said\" | sed 's/^/said /'; exit 1; }"

_typed: list[str] = []


def problem(host: Any) -> Problem | None:
    """What speaks against root rights on this host; None where they work (the password is then in place)."""
    if not host.data.get("_sudo"):
        return None
    ok, said = _try(host, PROBE, sudo=False)
    if ok:
        return None
    where, want = f"{host.name}: sudo", "root rights"
    if not any(line in SUDO_PASSWORD_REQUIRED_LINES for line in said):
        found = said[-1] if said else NO_ANSWER
        return Problem(where, found, want, "install sudo, and add the user to sudoers")
    password = _password()
    if password is None:
        remedy = f"add the user to sudoers with NOPASSWD, or set {VARIABLE}, or run on a terminal"
        return Problem(where, "that sudo asks for a password, and none", want, remedy)
    # Where pyinfra keeps a password that it asked for itself: all later commands find it.
    host.connector_data["prompted_sudo_password"] = password
    ok, said = _try(host, "true", sudo=True)
    if ok:
        return None
    host.connector_data["prompted_sudo_password"] = None
    found = next((line for line in said if "sudoers" in line), "that sudo refuses the password")
    return Problem(where, found, want, f"correct {VARIABLE}, or add the user to sudoers")


def ensure(host: Any) -> None:
    """Stop the run with one line where root rights do not work. Errors: SiteError."""
    found = problem(host)
    if found is not None:
        raise SiteError(str(found))


def _try(host: Any, command: str, sudo: bool) -> tuple[bool, list[str]]:
    ok, output = host.run_shell_command(StringCommand(command), _sudo=sudo)
    lines = [line.strip().removeprefix("said ") for line in [*output.stdout_lines, *output.stderr_lines]]
    return ok, [line for line in lines if line]


def _password() -> str | None:
    """One password for all hosts; None where there is none and nobody to ask."""
    if password := os.environ.get(VARIABLE):
        return password
    if not _typed and sys.stdin is not None and sys.stdin.isatty():
        _typed.append(getpass.getpass("sudo password on the Sparks: "))
    return _typed[0] if _typed and _typed[0] else None
