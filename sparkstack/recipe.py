"""The native recipe: what to serve, and what is expected of it. Fields and examples: docs/recipes.md."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from sparkstack import schema, yamlfile
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import Benchmark, Expect
from sparkstack.recipe_fields import (
    DERIVED_OPTIONS,
    DockerSize,
    EnvName,
    HubId,
    Option,
    OptionName,
    PlainText,
    Revision,
    Slug,
    Transform,
)
from sparkstack.schema import Strict

NATIVE_VERSION = "3"
"""Our number in `recipe_version`; the community's formats are "1" and "2"."""
NATIVE_KEYS = frozenset({"checkpoint", "serve"})
"""Without `recipe_version`, a file with one of these keys is ours: the other formats have neither."""
FOREIGN_KEYS = frozenset({"container", "command", "defaults", "runtime"})


class Source(Strict):
    """Files of one revision of a hub repository; `allow` holds glob patterns, None takes all files."""

    repo: HubId
    revision: Revision
    allow: list[str] | None = Field(default=None, min_length=1)


class Checkpoint(Strict):
    """Where the weights come from, and what is done to them, in order."""

    source: Source
    transforms: list[Transform] = Field(default_factory=list)

    def plan(self) -> list[dict[str, Any]]:
        """The transforms as a job's plan has them: `{"name": …}` with the arguments beside it."""
        return [transform.model_dump(mode="json") for transform in self.transforms]


class Image(Strict):
    """What our image is built on, and the build's arguments."""

    base: str = Field(min_length=1)
    build_args: dict[EnvName, PlainText] = Field(default_factory=dict)


class Serve(Strict):
    """How the engine is started. `options` are its flags in snake case; `ready_timeout_s` is in seconds."""

    engine: Literal["vllm"] = "vllm"
    port: int = Field(default=8000, ge=1, le=65535)
    options: dict[OptionName, Option] = Field(default_factory=dict)
    env: dict[EnvName, PlainText] = Field(default_factory=dict)
    shm_size: DockerSize | None = None
    ready_timeout_s: int = Field(default=1800, ge=1)
    extra_docker_args: list[str] = Field(default_factory=list)


class Budget(Strict):
    """What one Spark must have free: memory while serving, disk, and of that what is downloaded (GiB)."""

    memory_gib: float = Field(gt=0, allow_inf_nan=False)
    disk_gib: float = Field(gt=0, allow_inf_nan=False)
    download_gib: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Recipe(Strict):
    """All of it. `served_model_name` is the model's name in the API, the hub id when absent."""

    recipe_version: Literal["3"] | None = None
    name: Slug
    description: str = ""
    model: HubId
    served_model_name: str | None = Field(default=None, min_length=1)
    min_nodes: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    checkpoint: Checkpoint
    image: Image
    serve: Serve
    budget: Budget
    expect: Expect = Expect()
    benchmark: Benchmark = Benchmark()
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def served_name(self) -> str:
        """What clients write in `model`."""
        return self.served_model_name or self.model

    def check_nodes(self, count: int) -> list[Problem]:
        """What speaks against running this recipe on `count` hosts; [] when nothing does."""
        most = self.max_nodes if self.max_nodes is not None else count
        if self.min_nodes <= count <= max(most, self.min_nodes):
            return []
        wanted = f"{self.min_nodes}" if most == self.min_nodes else f"{self.min_nodes} or more"
        if self.max_nodes is not None and self.max_nodes != self.min_nodes:
            wanted = f"{self.min_nodes} to {self.max_nodes}"
        return [
            Problem(f"recipe {self.name}", f"{count} hosts", wanted, "change the inventory or the recipe")
        ]


def find_recipe(name: str, folder: Path) -> Path:
    """The file of the recipe called `name` in `folder`. Errors: SparkstackError with the names there are."""
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        near = get_close_matches(name, known, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"add {name}.yaml to {folder}"
        wanted = "one of: " + ", ".join(known) if known else "a recipe"
        raise SparkstackError(Problem("recipe", repr(name), wanted, remedy))
    return folder / f"{name}.yaml"


def detect_format(value: dict[str, Any]) -> str:
    """ "1", "2" or "3" (ours). Whatever cannot be told is ours, so that its mistakes are explained."""
    version = value.get("recipe_version")
    if version is not None:
        return str(version)
    if NATIVE_KEYS & value.keys():
        return NATIVE_VERSION
    return "2" if FOREIGN_KEYS & value.keys() else NATIVE_VERSION


def load_recipe(path: Path) -> Recipe:
    """The recipe in the file at `path`.

    Errors: SparkstackError with every problem of the file, each with its line.
    """
    document = yamlfile.read(path)
    version = detect_format(document.value)
    if version != NATIVE_VERSION:
        where = document.where(("recipe_version",))
        remedy = f"write it with checkpoint and serve, or take one from {path.parent}"
        raise SparkstackError(Problem(where, f"recipe format {version!r}", f"{NATIVE_VERSION!r}", remedy))
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        raise SparkstackError(schema.problems(error, document, Recipe)) from error
    if problems := _contradictions(recipe, document):
        raise SparkstackError(problems)
    return recipe


def _contradictions(recipe: Recipe, document: yamlfile.Document) -> list[Problem]:
    """What is well-formed by itself and does not fit together."""
    result = []
    if recipe.max_nodes is not None and recipe.max_nodes < recipe.min_nodes:
        found = f"max_nodes {recipe.max_nodes} below min_nodes {recipe.min_nodes}"
        where = document.where(("max_nodes",))
        result.append(Problem(where, found, "max_nodes not below min_nodes", "correct one of the two"))
    for name, bounds in recipe.expect:
        for streams in bounds:
            if streams not in recipe.benchmark.streams:
                where = document.where(("expect", name, streams))
                found = f"expect.{name} for {streams} streams"
                wanted = f"one of benchmark.streams {recipe.benchmark.streams}"
                result.append(Problem(where, found, wanted, f"add {streams} to benchmark.streams"))
    for option in recipe.serve.options:
        if home := DERIVED_OPTIONS.get(option):
            where = document.where(("serve", "options", option))
            found = f"serve.options.{option}"
            result.append(Problem(where, found, f"it only from {home}", "remove the option"))
    return result


__all__ = ["Benchmark", "Expect", "Recipe", "detect_format", "find_recipe", "load_recipe"]
