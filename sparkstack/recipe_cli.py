"""`sparkstack recipe …`: list, check, show, render, plan, schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml

from sparkstack import hosts, recipe_schema
from sparkstack.check import Checked
from sparkstack.check import check as check_file
from sparkstack.errors import Problem, SparkstackError
from sparkstack.extra_flags import with_flags
from sparkstack.flags import scalar
from sparkstack.native import Recipe
from sparkstack.recipe import recipe_file
from sparkstack.render import render as render_ranks
from sparkstack.render import text as rendered_text

FOLDER = click.option(
    "--recipes", "folder", type=click.Path(path_type=Path), default=Path("recipes"), show_default=True
)


@click.group()
def recipe() -> None:
    """Check and show recipes, ours and the community's."""


@recipe.command("list")
@FOLDER
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def list_recipes(folder: Path, as_json: bool) -> None:
    """List the recipes of a folder, with what deploy would say to each."""
    rows = [_row(checked) for checked in map(check_file, _files([folder])) if not checked.skipped]
    if not rows:
        raise SparkstackError(Problem(str(folder), "no recipes", "*.yaml", "name a folder with --recipes"))
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    titles = ("name", "format", "hosts", "engine", "tok/s", "deploy", "model")
    table = [titles, *(tuple(str(row[title]) for title in titles) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    for line in table:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _row(checked: Checked) -> dict[str, Any]:
    wish = checked.launch
    if wish is None or checked.errors:
        state = f"{checked.errors} error" + ("" if checked.errors == 1 else "s")
    else:
        state = "refused" if checked.refused > checked.pins else "unpinned" if checked.pins else "ready"
    row = {
        "name": checked.path.stem,
        "format": "?",
        "hosts": "?",
        "engine": "?",
        "tok/s": "",
        "deploy": state,
    }
    if wish is None:
        return {**row, "model": "?"}
    most = wish.max_nodes
    hosts = f"{wish.min_nodes}" + ("+" if most is None else "" if most == wish.min_nodes else f"-{most}")
    speed = wish.metadata.get("decode_tok_s", "")
    row |= {"format": wish.format, "hosts": hosts, "engine": wish.runtime, "tok/s": speed}
    return {**row, "model": wish.model}


@recipe.command("check")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="All findings as one JSON document.")
def check(files: tuple[Path, ...], as_json: bool) -> None:
    """Say everything that is wrong with recipe FILES (or all of a folder), a line a finding.

    Status 1 when there is an error; warnings alone are status 0, also those for which deploy refuses.
    """
    results = [check_file(path) for path in _files(files)]
    if empty := [path for path in files if path.is_dir() and not _files([path])]:
        raise SparkstackError(
            [Problem(str(path), "no recipes", "*.yaml", "name another folder") for path in empty]
        )
    if as_json:
        click.echo(json.dumps([_as_dict(result) for result in results], indent=2, ensure_ascii=False))
    else:
        for result in results:
            for finding in result.findings:
                click.echo(str(finding), err=True)
            click.echo(result.verdict(), err=result.errors > 0)
    if any(result.errors for result in results):
        raise SystemExit(1)


def _as_dict(result: Checked) -> dict[str, Any]:
    return {
        "file": str(result.path),
        "skipped": result.skipped,
        "format": result.launch.format if result.launch else None,
        "errors": result.errors,
        "deployable": result.launch is not None and not result.refused,
        "findings": [finding.as_dict(str(result.path)) for finding in result.findings],
    }


@recipe.command("show")
@click.argument("name")
@FOLDER
def show(name: str, folder: Path) -> None:
    """Show the recipe NAME (or a file) in our format, with every default filled in.

    Of a recipe of the community it makes one of ours.
    """
    found = _usable(name, folder, None, {})
    if found.launch is None or found.launch.recipe is None:
        raise SystemExit(1)
    click.echo(yaml.safe_dump(written(found.launch.recipe), sort_keys=False, allow_unicode=True), nl=False)


def written(shown: Recipe) -> dict[str, Any]:
    """A recipe as its file could have it."""
    value = shown.model_dump(mode="json", exclude_none=True)
    value["checkpoint"]["transforms"] = [
        {step.pop("name"): step} for step in value["checkpoint"]["transforms"]
    ]
    return value


@recipe.command("render")
@click.argument("name")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS…]")
@click.option("--nodes", type=click.IntRange(min=1), help="How many Sparks; the recipe's least if not said.")
@click.option("--rank", type=click.IntRange(min=0), help="This rank only.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Wins over `defaults`.")
@FOLDER
def render(
    name: str,
    extra: tuple[str, ...],
    nodes: int | None,
    rank: int | None,
    settings: tuple[str, ...],
    folder: Path,
) -> None:
    """Print the unit, environment and command that each rank of recipe NAME (or a file) would get.

    FLAGS are the engine's, as at the end of its command; they win over the recipe's.
    """
    found = _usable(name, folder, nodes, dict(_setting(text) for text in settings))
    assert found.launch is not None
    wish = with_flags(found.launch, extra) if extra else found.launch
    ranks = render_ranks(wish, nodes or wish.min_nodes)
    if rank is not None:
        if rank >= len(ranks):
            wanted = f"0 to {len(ranks) - 1}"
            raise SparkstackError(Problem("--rank", str(rank), wanted, "ranks count from 0"))
        ranks = ranks[rank : rank + 1]
    click.echo(rendered_text(ranks), nl=False)


@recipe.command("plan")
@click.argument("name")
@click.argument("inventory")
@click.option("--only", help="These stages, comma-separated.")
def plan(name: str, inventory: str, only: str | None) -> None:
    """Show what deploying recipe NAME (or a file) to INVENTORY would do. The hosts are asked, not touched."""
    path = recipe_file(name, hosts.ROOT / "recipes")
    if not path.is_file():
        raise SparkstackError(Problem("recipe", repr(name), "a recipe's file", "check the path"))
    words = ["--data", f"recipe={json.dumps(hosts.absolute(name))}"]
    words += ["--data", f"only={json.dumps(only)}"] if only else []
    hosts.ask(inventory, "plan.py", words)


@recipe.command("schema")
@click.option("--format", "version", type=click.Choice(sorted(recipe_schema.FILES)), default="3")
@click.option("--write", type=click.Path(path_type=Path), help="Write those of all formats into a folder.")
def schema(version: str, write: Path | None) -> None:
    """Print the JSON Schema of a format, for editors."""
    if write is None:
        click.echo(recipe_schema.schema(version), nl=False)
        return
    for each, (file, _) in recipe_schema.FILES.items():
        (write / file).write_text(recipe_schema.schema(each), encoding="utf-8")


def _files(paths: Iterable[Path]) -> list[Path]:
    """Folders as the recipes below them, files as they are."""
    result = []
    for path in paths:
        inside = sorted(file for file in path.rglob("*.y*ml") if file.is_file()) if path.is_dir() else [path]
        result += inside
    return result


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SparkstackError(Problem("--set", repr(text), "KEY=VALUE", "as in --set port=9000"))
    return key.replace("-", "_"), scalar(value)


def _usable(name: str, folder: Path, nodes: int | None, overrides: dict[str, Any]) -> Checked:
    """The recipe, its warnings told. Errors of it end here."""
    path = recipe_file(name, folder)
    found = check_file(path, nodes, overrides)
    if found.skipped:
        raise SparkstackError(Problem(str(path), found.skipped, "a recipe", "name another file"))
    for finding in found.findings:
        click.echo(str(finding), err=True)
    if found.errors or found.launch is None:
        raise SystemExit(1)
    return found
