"""`sparkstack`: what a user does beside `pyinfra INVENTORY deploy.py`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sparkstack import hosts, report_files
from sparkstack.errors import Problem, SparkstackError
from sparkstack.recipe_cli import recipe
from sparkstack.report import RunReport
from sparkstack.report_text import render
from sparkstack.status_cli import monitoring, status


class Main(click.Group):
    """Errors of ours are lines on stderr and exit status 1. The lab's commands are loaded when they are
    asked for: they bring Docker's library along, which nobody needs for reading a report."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "lab"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "lab":
            lab: click.Command = importlib.import_module("sparkstack.lab_cli").lab
            return lab
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SparkstackError as error:
            _complain(error)
            ctx.exit(1)


def _complain(error: SparkstackError) -> None:
    for line in error.lines:
        click.echo(line, err=True)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """DGX Sparks become a vLLM serving cluster that has proved its speed."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The file as it is.")
@click.option("--page", is_flag=True, help="Write report.html anew from report.json, and say where it is.")
@click.option("--schema", is_flag=True, help="The JSON Schema of report.json.")
@click.option(
    "--reports", "folder", type=click.Path(path_type=Path), default=Path("reports"), show_default=True
)
def report(as_json: bool, page: bool, schema: bool, folder: Path) -> None:
    """Show the newest report."""
    if schema:
        click.echo(report_files.schema(), nl=False)
        return
    files = report_files.files(folder)
    if not files:
        remedy = "run `pyinfra INVENTORY deploy.py` first"
        raise SparkstackError(Problem(str(folder), "no report", "the report of a run", remedy))
    text = files[-1].read_text(encoding="utf-8")
    shown = RunReport.from_json(text, str(files[-1]))
    if as_json:
        click.echo(text, nl=False)
    elif page:
        click.echo(report_files.write_page(shown, files[-1].parent, folder))
    else:
        shown.path = str(files[-1])
        render(shown, Console())


@main.group()
def release() -> None:
    """The releases that hosts keep."""


@release.command("list")
@click.argument("inventory")
def list_releases(inventory: str) -> None:
    """List the releases on the hosts of INVENTORY: which is current, which the one before, which failed."""
    hosts.ask(inventory, "releases.py")


main.add_command(recipe)
main.add_command(status)
main.add_command(monitoring)
