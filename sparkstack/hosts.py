"""Commands of `sparkstack` that ask the hosts of an inventory: pyinfra runs a script that prints and ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from sparkstack.errors import Problem, SparkstackError

ROOT = Path(__file__).resolve().parent.parent


def absolute(name: str) -> str:
    """A path as one that holds elsewhere; a name stays a name."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and ("/" in name or path.suffix) else name


def command(inventory: str, script: str, words: Sequence[str] = ()) -> list[str]:
    """The words that run one of our scripts on an inventory, in ROOT.

    Errors: SparkstackError for what is neither an inventory's file nor hosts as pyinfra writes them.
    """
    path = Path(inventory).expanduser()
    # What pyinfra takes beside a file: connectors (@local), and names or addresses of hosts. Of any other
    # word it makes an inventory without hosts, which would be no plan and no error.
    a_path = path.exists() or inventory.endswith(".py") or "/" in inventory
    hosts = inventory.startswith("@") or (not a_path and any(mark in inventory for mark in ",.:"))
    if not path.is_file() and not hosts:
        remedy = "see inventories/ for examples"
        raise SparkstackError(Problem("inventory", repr(inventory), "a file", remedy))
    # pyinfra looks for group_data where it runs, so it runs where that is.
    program = str(Path(sys.executable).parent / "pyinfra")
    return [program, absolute(inventory), script, "-y", *words]


def ask(inventory: str, script: str, words: Sequence[str] = ()) -> None:
    """Run one of our scripts on an inventory; its output is shown, and its status is ours. Errors: as
    `command`."""
    run = command(inventory, script, words)
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    click.echo(done.stdout, nl=False)
    if not done.stdout:  # nothing came of it: what pyinfra says is why
        click.echo(done.stderr, nl=False, err=True)
    if done.returncode:
        raise SystemExit(done.returncode)
