"""`sparkstack lab …`: virtual Sparks on this machine."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lab import lab as virtual
from lab import vm as machines
from lab.paths import KEY, KNOWN_HOSTS, LabError

Report = Callable[[str, int, int | None, str], None]
Command = TypeVar("Command", bound=Callable[..., Any])

LINE_EVERY_S = 5.0
"""Piped: within a stage, a line at most this often."""


@click.group()
def lab() -> None:
    """Virtual Sparks in containers (or machines: --vm), and what stands in for the outside."""


VM = click.option("--vm", is_flag=True, help="The virtual machines, instead of the containers.")


def _place(node: dict[str, Any]) -> str:
    """Where a node is reached."""
    if not node["address"]:
        return "no address known"
    return f"{node['address']}:{node['port']}" if "port" in node else str(node["address"])


def _one_line(command: Command) -> Command:
    """A LabError ends the command with its one line and status 1."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except LabError as error:
            raise click.ClickException(str(error)) from None

    return wrapped  # type: ignore[return-value]


@lab.command()
@click.option(
    "--nodes", type=click.IntRange(1, 16), help="How many Sparks. Default: as many as stand, else 2."
)
@VM
@_one_line
def up(nodes: int | None, vm: bool) -> None:
    """Make the lab stand; quick where it does."""
    began = time.monotonic()
    with _reporting() as report:
        state = machines.up(nodes, report) if vm else virtual.up(nodes, report)
    names = ", ".join(f"{node['name']} ({_place(node)})" for node in state["nodes"])
    click.echo(f"lab up in {time.monotonic() - began:.1f} s: {names}")


@lab.command()
@click.option("--all", "everything", is_flag=True, help="Images, caches and every file of the lab as well.")
@VM
@_one_line
def down(everything: bool, vm: bool) -> None:
    """Remove the Sparks and their networks; with --vm the virtual machines; with --all alone both."""
    if vm or everything:
        machines.down(everything)
    if not vm:
        with _reporting() as report:
            virtual.down(everything, report)


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@VM
@_one_line
def status(as_json: bool, vm: bool) -> None:
    """What stands; exit status 1 where the lab is not (wholly) up."""
    found = machines.status() if vm else virtual.status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        more = f"under {found['accelerator']}" if vm else f"outside: {found['outside']}"
        click.echo(f"lab: {'up' if found['up'] else 'not up'}; {more}")
        for node in found["nodes"]:
            click.echo(f"  {node['name']}: {node['status']}, {_place(node)}")
        for name in ("registry", "hub", "files"):
            if name in found:
                click.echo(f"  {name}: {found[name]}")
    sys.exit(0 if found["up"] else 1)


@lab.command()
@click.argument("name")
@VM
@_one_line
def restart(name: str, vm: bool) -> None:
    """Restart a Spark, as a reboot would; a virtual machine, as a power cut does."""
    with _reporting() as report:
        if vm:
            machines.power_cut(name, report)
        else:
            virtual.restart(name, report)


@lab.command()
@click.argument("name")
@click.argument("interface")
@click.argument("state", type=click.Choice(["in", "out"]))
@_one_line
def cable(name: str, interface: str, state: str) -> None:
    """Pull the cable of a virtual machine's interface (out), or put it back (in)."""
    machines.cable(name, interface, state == "in")


@lab.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@VM
@_one_line
def ssh(name: str, command: tuple[str, ...], vm: bool) -> None:
    """Log in to a Spark, or run a command there (`--vm` before its name)."""
    state = machines.read_state() if vm else virtual.read_state()
    if state is None:
        raise LabError(f"the lab is not up; start it with: sparkstack lab up{' --vm' if vm else ''}")
    nodes = {node["name"]: node for node in state["nodes"]}
    if name not in nodes:
        raise LabError(f"the lab has no node {name}; it has {', '.join(nodes)}")
    known, key = (machines.KNOWN_HOSTS, machines.KEY) if vm else (KNOWN_HOSTS, KEY)
    options = ["IdentitiesOnly=yes", f'UserKnownHostsFile="{known}"', "StrictHostKeyChecking=yes"]
    line = ["ssh", "-i", str(key), *(word for option in options for word in ("-o", option))]
    line += ["-p", str(nodes[name].get("port", 22))]
    try:
        os.execvp("ssh", [*line, f"{state['user']}@{nodes[name]['address']}", *command])
    except FileNotFoundError:
        raise LabError("ssh is missing: apt install openssh-client") from None


@contextlib.contextmanager
def _reporting() -> Iterator[Report]:
    """Progress bars on a terminal; plain lines, one a stage and then one every few seconds, elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


class _Bars:
    """One bar a stage; a stage that another follows is done."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None, note: str) -> None:
        if stage not in self.tasks:
            self._finish()
            self.tasks[stage] = self.bars.add_task(stage, total=total, note=note)
        self.bars.update(self.tasks[stage], completed=done, total=total, note=note)

    def _finish(self) -> None:
        for task in self.bars.tasks:
            if not task.finished:
                self.bars.update(task.id, completed=1, total=1)


class _Lines:
    def __init__(self) -> None:
        self.stage, self.line, self.last = "", "", 0.0

    def __call__(self, stage: str, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if stage == self.stage and now - self.last < LINE_EVERY_S and done != total:
            return
        share = f" {100 * done // total}%" if total else ""
        line = f"{stage}:{share} {note}".rstrip()
        if line != self.line:
            click.echo(line, err=True)
        self.stage, self.line, self.last = stage, line, now
