"""Recipes as files: which format one has, where it is, and what it means for a run.

Our own format is `sparkstack.native`; the community's are `sparkstack.community`. Whatever a file is written
in, a run gets a `Recipe`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkstack import conversion, schema, yamlfile
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import Benchmark, Expect
from sparkstack.native import Recipe, contradictions, pins_missing, secrets_in, unsupported

NATIVE_VERSION = "3"
"""Our number in `recipe_version`; the community's formats are "1" and "2"."""
FORMATS = ("1", "2", NATIVE_VERSION)
NATIVE_KEYS = frozenset({"checkpoint", "serve"})
"""Without `recipe_version`, a file with one of these keys is ours: the other formats have neither."""
FOREIGN_KEYS = frozenset({"container", "command", "defaults", "runtime"})
OTHER_FILES = {
    "registry.yaml": "the list of a registry",
    "registries.yaml": "a list of registries",
    "models.yaml": "a list of models",
}
"""What else lies beside recipes, by name."""
RECIPE_KEYS = NATIVE_KEYS | FOREIGN_KEYS | {"recipe_version", "model"}


def find_recipe(name: str, folder: Path) -> Path:
    """The file of the recipe called `name` (a file's name without its ending) in `folder` or below it.

    Errors: SparkstackError with the names there are, or with the files where two have the name.
    """
    files = [path for path in sorted(folder.rglob("*.y*ml")) if path.suffix in (".yaml", ".yml")]
    found = [path for path in files if path.stem == name]
    if len(found) == 1:
        return found[0]
    if found:
        several = " and ".join(str(path) for path in found)
        raise SparkstackError(Problem("recipe", several, f"one recipe {name!r}", "name the file's path"))
    known = sorted({path.stem for path in files})
    near = get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"add {name}.yaml to {folder}"
    wanted = "one of: " + ", ".join(known) if known else "a recipe"
    raise SparkstackError(Problem("recipe", repr(name), wanted, remedy))


def recipe_file(name: str, folder: Path) -> Path:
    """A recipe's file: `name` itself where it is a path (a slash, or the ending of one), which need not be
    there; else the recipe called so in `folder`. Errors: SparkstackError for a name."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    return Path(name).expanduser() if is_path else find_recipe(name, folder)


def not_a_recipe(path: Path, value: Any = None) -> str | None:
    """What the file is instead, when it is known to be something else; None for what may be a recipe.

    `value` is what the file holds, None when only the name is known.
    """
    if path.suffix not in (".yaml", ".yml"):
        return "a file that does not end in .yaml or .yml"
    if ".sparkrun" in path.parts[:-1]:
        return "a file of the registry itself"
    if path.name in OTHER_FILES:
        return OTHER_FILES[path.name]
    if not isinstance(value, dict) or RECIPE_KEYS & value.keys():
        return None
    if {"framework", "args"} & value.keys() or isinstance(value.get("benchmark"), dict):
        return "a benchmark's profile"
    if {"models", "registries", "recipes"} & value.keys():
        return "a list"
    return None


def detect_format(value: dict[str, Any]) -> str:
    """ "1", "2" or "3" (ours). Whatever cannot be told is ours, so that its mistakes are explained."""
    version = value.get("recipe_version")
    if version is not None:
        # YAML reads an unquoted 2.0 as a number; both communities write one.
        return re.sub(r"\.0$", "", str(version))
    if NATIVE_KEYS & value.keys():
        return NATIVE_VERSION
    if "model" not in value and {"container", "command"} <= value.keys():
        return "1"
    return "2" if FOREIGN_KEYS & value.keys() else NATIVE_VERSION


def load_recipe(path: Path) -> Recipe:
    """The recipe in the file at `path`, whichever of the formats it has.

    What a native recipe asks and is not made yet, or not pinned, is in it all the same: see `unsupported` and
    `pins_missing`. A foreign one is refused for what cannot be carried over.
    Errors: SparkstackError with every problem of the file, each with its line.
    """
    document = yamlfile.read(path)
    version = detect_format(document.value)
    if version not in FORMATS:
        where = document.where(("recipe_version",))
        remedy = f"write it with checkpoint and serve, or take one from {path.parent}"
        raise SparkstackError(Problem(where, f"recipe format {version!r}", '"1", "2" or "3" (ours)', remedy))
    if version != NATIVE_VERSION:
        converted = conversion.convert(document, version)
        if refused := [finding.problem for finding in converted.findings if finding.refused]:
            raise SparkstackError(refused)
        assert converted.launch is not None and converted.launch.recipe is not None
        return converted.launch.recipe
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        raise SparkstackError(schema.problems(error, document, Recipe)) from error
    if problems := contradictions(recipe, document):
        raise SparkstackError(problems)
    return recipe


__all__ = [
    "Benchmark",
    "Expect",
    "Recipe",
    "detect_format",
    "find_recipe",
    "load_recipe",
    "not_a_recipe",
    "pins_missing",
    "recipe_file",
    "secrets_in",
    "unsupported",
]
