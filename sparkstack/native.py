"""The native recipe: what to serve, and what is expected of it. Fields and examples: docs/recipes.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparkstack import engine_command, secret_words, shell_words
from sparkstack.errors import Problem
from sparkstack.expectation import Benchmark, Expect
from sparkstack.image_source import Build, SourceBuild
from sparkstack.recipe_fields import (
    ENGINE_DERIVED,
    UNVERIFIED,
    Argument,
    AtLeast,
    DockerSize,
    EnvName,
    HubId,
    Option,
    OptionName,
    PlainText,
    Revision,
    Slug,
    Version,
)
from sparkstack.release import TRANSFORM_VERSIONS
from sparkstack.schema import Strict, refusal
from sparkstack.transforms import Transform
from sparkstack.yamlfile import Document

PLUGIN_FEATURES = frozenset({"int8_lm_head", "hybrid", "draft_head", "ngram_table", "fp8_dense_at_load"})
"""Features of files/patches/ that there are; a test compares."""
PLUGIN_KNOBS = frozenset(
    {
        "SPARKSTACK_NGRAM_TABLE_IO",
        "SPARKSTACK_NGRAM_TABLE_THREADS",
        "SPARKSTACK_FP8_DENSE_AT_LOAD_LAYERS",
    }
)
"""What else the plugin reads of the environment."""


class Source(Strict):
    """Files of one revision of a hub repository; `allow` holds glob patterns, None takes all files.

    `revision` is a commit, or the word `unverified`.
    """

    repo: HubId
    revision: Revision
    allow: list[str] | None = Field(default=None, min_length=1)


class Checkpoint(Strict):
    """Where the weights come from, and what is done to them, in order.

    `keep_source: false` removes what was downloaded as soon as all that is made from it is made: the disk
    then holds the output and about two source files at a time. It is no part of the checkpoint's id.
    """

    source: Source
    transforms: list[Transform] = Field(default_factory=list)
    keep_source: bool = True

    def plan(self) -> list[dict[str, Any]]:
        """The transforms as a job's plan has them: `{"name": …}` with the arguments beside it."""
        return [transform.model_dump(mode="json") for transform in self.transforms]


class Image(Strict):
    """What our image is built on, and how (see sparkstack.image_source); the build's arguments.

    `version` is the engine's in the image, and `upstream_changes` are pull requests of vLLM that the base
    must hold: both only inform `check`, but that a build from source is marked with `version`. `source` is
    what is built, with `build: source` alone. `plugin` switches features of our vLLM plugin on or off.
    """

    base: str = Field(min_length=1)
    build: Build = "layer"
    source: SourceBuild | None = None
    version: Version | None = None
    upstream_changes: list[int] = Field(default_factory=list)
    plugin: dict[OptionName, bool] = Field(default_factory=dict)
    build_args: dict[EnvName, PlainText] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> Image:
        if (self.build == "source") != (self.source is not None):
            raise refusal("`build: source` and `source` together, or neither")
        if self.build == "source" and self.version is None:
            raise refusal("`version` beside `build: source`, which the wheel is marked with")
        if self.build == "pull" and self.build_args:
            raise refusal("no build_args with `build: pull`, which builds nothing")
        return self

    @property
    def changes_of_base(self) -> list[int]:
        """Pull requests of vLLM that the base must hold: those that its build does not bring."""
        built = {change.pull for change in self.source.changes} if self.source else set()
        return [pull for pull in self.upstream_changes if pull not in built]


def _command(value: Any) -> Any:
    if isinstance(value, list):
        # YAML reads `[server, --port, 8000]` as two texts and a number; to a program it is all text.
        return [str(word) if isinstance(word, int) and not isinstance(word, bool) else word for word in value]
    if value is None or isinstance(value, str):
        return value
    raise refusal("a command as text, or a list of its words")


class Serve(Strict):
    """How the engine is started. `options` are its flags in snake case; `command` is what the engine
    `command` runs, with placeholders; `ready_timeout_s` is in seconds."""

    engine: Literal["vllm", "atlas", "command"] = "vllm"
    command: Annotated[str | list[str] | None, BeforeValidator(_command)] = None
    port: int = Field(default=8000, ge=1, le=65535)
    options: dict[OptionName, Option] = Field(default_factory=dict)
    env: dict[EnvName, PlainText] = Field(default_factory=dict)
    shm_size: DockerSize | None = None
    ready_timeout_s: int = Field(default=3600, ge=1)
    extra_docker_args: list[Argument] = Field(default_factory=list)


class Budget(Strict):
    """What one Spark must have free: memory while serving, disk, and of that what is downloaded (GiB)."""

    memory_gib: float = Field(gt=0, allow_inf_nan=False)
    disk_gib: float = Field(gt=0, allow_inf_nan=False)
    download_gib: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Host(Strict):
    """What a Spark itself must have at least, where the recipe needs more than the image's usual: versions
    such as driver "580.95" and cuda "13.0" (what the driver can, as nvidia-smi says it)."""

    driver: AtLeast | None = None
    cuda: AtLeast | None = None


class Recipe(Strict):
    """All of it. `served_model_name` is the model's name in the API, the hub id when absent. `accept` holds
    rules of `check` that the recipe breaks knowingly, each with the reason."""

    recipe_version: Literal["3"] | None = None
    name: Slug
    description: str = ""
    model: HubId
    served_model_name: Argument | None = Field(default=None, min_length=1)
    min_nodes: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    checkpoint: Checkpoint
    image: Image
    serve: Serve
    budget: Budget
    host: Host = Host()
    expect: Expect = Expect()
    benchmark: Benchmark = Benchmark()
    accept: dict[Slug, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _plugin_switches(cls, value: Any) -> Any:
        """What `image.plugin` says becomes variables of the serving process, where the plugin reads it."""
        try:
            switches = {plugin_switch(name): on for name, on in value["image"]["plugin"].items()}
            serve = dict(value["serve"])
            env = dict(serve.get("env") or {})
        except (KeyError, TypeError, AttributeError, ValueError):
            return value  # the types are wrong, and are complained about where they are declared
        for name, on in switches.items():
            env.setdefault(name, "1" if on is True else "0")
        return {**value, "serve": {**serve, "env": env}} if switches else value

    @property
    def served_name(self) -> str:
        """What clients write in `model`."""
        return self.served_model_name or self.model

    @property
    def several_hosts(self) -> bool:
        """May it run on more than one host, as far as its engine goes?"""
        command = self.serve.command
        return self.serve.engine != "command" or command is None or engine_command.for_ranks(command)

    def check_nodes(self, count: int) -> list[Problem]:
        """What speaks against running this recipe on `count` hosts; [] when nothing does."""
        most = self.max_nodes if self.max_nodes is not None else count
        if count > 1 and not self.several_hosts:
            found = f"a command without {{rank}} on {count} hosts"
            remedy = "tell its ranks apart by {rank}, {world}, {head_address}, or take one host"
            return [Problem(f"recipe {self.name}", found, "1 host", remedy)]
        if self.min_nodes <= count <= max(most, self.min_nodes):
            return []
        wanted = f"{self.min_nodes}" if most == self.min_nodes else f"{self.min_nodes} or more"
        if self.max_nodes is not None and self.max_nodes != self.min_nodes:
            wanted = f"{self.min_nodes} to {self.max_nodes}"
        return [
            Problem(f"recipe {self.name}", f"{count} hosts", wanted, "change the inventory or the recipe")
        ]


def plugin_switch(feature: str) -> str:
    """The variable that turns a feature of our plugin on (1) or off (0)."""
    return f"SPARKSTACK_{feature.upper()}"


def is_pinned_image(name: str) -> bool:
    """Does the name hold the digest, so that it means one image for ever?"""
    return re.search(r"@sha256:[0-9a-f]{64}$", name) is not None


def pins_missing(recipe: Recipe, image_bases: Mapping[str, str] | None = None) -> list[Problem]:
    """What is not pinned to one content, and so must not be deployed; [] when all is.

    `image_bases` is the site's table from a base's name to its name with the digest (group_data).
    """
    missing = missing_pins(recipe, image_bases)
    return [Problem(f"recipe {recipe.name}", *words) for _, *words in missing]


def missing_pins(
    recipe: Recipe, image_bases: Mapping[str, str] | None = None
) -> list[tuple[tuple[str | int, ...], str, str, str]]:
    """As `pins_missing`: where in the recipe, found, wanted, remedy."""
    pin = "pin the commit that you have checked; deploy refuses the recipe until then"
    result: list[tuple[tuple[str | int, ...], str, str, str]] = []
    if recipe.checkpoint.source.revision == UNVERIFIED:
        repo = recipe.checkpoint.source.repo
        loc = ("checkpoint", "source", "revision")
        result.append((loc, f"no pinned revision of {repo}", "a commit (40 hex digits)", pin))
    for at, step in enumerate(recipe.checkpoint.transforms):
        donor = getattr(step, "donor", None)
        if donor is not None and donor.revision == UNVERIFIED:
            place: tuple[str | int, ...] = ("checkpoint", "transforms", at, step.name, "donor", "revision")
            found = f"no pinned revision of {donor.repo} (donor of {step.name})"
            result.append((place, found, "a commit (40 hex digits)", pin))
    base = recipe.image.base
    if not is_pinned_image((image_bases or {}).get(base, base)):
        remedy = "add the digest that you have checked, here or in image_bases of group_data; deploy refuses"
        found = "no image" if base == UNVERIFIED else f"image {base} without a digest"
        result.append((("image", "base"), found, "NAME@sha256:…", f"{remedy} the recipe until then"))
    return result


SECRET_OPTIONS = ("api_key", "hf_token")
URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")
SECRET_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def secret_options(options: dict[str, Any]) -> dict[str, str]:
    """The secrets among the options, by what to call them, and the option that holds each: vLLM's, whatever
    their value, and any engine's by name or inside of a value."""
    known = {name: name for name in SECRET_OPTIONS if options.get(name) is not None}
    others = secret_words.of_options({name: value for name, value in options.items() if name not in known})
    return known | others


def secrets_in(recipe: Recipe) -> list[Problem]:
    """What would put a secret where users of a host, or of the repository, can read it; [] when there is
    nothing. The values are never told."""
    return [Problem(f"recipe {recipe.name}", *words) for _, *words in secrets_at(recipe)]


def secrets_at(recipe: Recipe) -> list[tuple[tuple[str | int, ...], str, str, str]]:
    """As `secrets_in`: where in the recipe, found, wanted, remedy."""
    serve, wanted = recipe.serve, "no secrets in a recipe"
    remedy = "remove it; arguments can be read by every user of a host"
    home = "remove it; see api_key_file and hub_token_file of group_data"
    elsewhere = "remove it; name a file that root alone reads: extra_docker_args [--env-file, FILE]"
    result: list[tuple[tuple[str | int, ...], str, str, str]] = [
        (("serve", "options", name), f"{shown} among the options", wanted, remedy)
        for shown, name in secret_options(serve.options).items()
    ]
    for name, value in serve.env.items():
        if value and (name in SECRET_VARIABLES or _is_secret(name, value)):
            where = ("serve", "env", name)
            result.append((where, f"env.{name}", wanted, home if name in SECRET_VARIABLES else elsewhere))
    for place, words in (("command", _command_words(recipe)), ("extra_docker_args", serve.extra_docker_args)):
        shown = "serve.command" if place == "command" else place
        for name in secret_words.named(words):
            ours = name in SECRET_VARIABLES or name.strip("-").replace("-", "_") in SECRET_OPTIONS
            result.append((("serve", place), f"{name} in {shown}", wanted, home if ours else elsewhere))
    # They are arguments of the build, and stay in the image's history.
    result += [
        (
            ("image", "build_args", name),
            f"a secret in image.build_args.{name}",
            wanted,
            "remove it; see docs/recipes.md",
        )
        for name, value in recipe.image.build_args.items()
        if name in SECRET_VARIABLES or _is_secret(name, str(value)) or URL_WITH_PASSWORD.search(str(value))
    ]
    return result


def _is_secret(name: str, value: str) -> bool:
    """By the variable's name, or inside of its value."""
    return (secret_words.is_secret(name) and secret_words.is_value(name, value)) or bool(
        secret_words.named([value])
    )


def _command_words(recipe: Recipe) -> list[str]:
    command = recipe.serve.command
    try:
        return [] if command is None else engine_command.words(command)
    except shell_words.ShellError:  # told by `contradictions`
        return str(command).split()


def unsupported(recipe: Recipe) -> list[Problem]:
    """What the recipe asks and is not made yet, so that `deploy` refuses it; [] when it can all be done."""
    return [Problem(f"recipe {recipe.name}", *words) for _, *words in not_made(recipe)]


def not_made(recipe: Recipe) -> list[tuple[tuple[str | int, ...], str, str, str]]:
    """As `unsupported`: where in the recipe, found, wanted, remedy."""
    result: list[tuple[tuple[str | int, ...], str, str, str]] = []
    for at, step in enumerate(recipe.checkpoint.transforms):
        if step.name not in TRANSFORM_VERSIONS:
            known = ", ".join(sorted(TRANSFORM_VERSIONS))
            where: tuple[str | int, ...] = ("checkpoint", "transforms", at, step.name)
            result.append((where, f"transform {step.name}", f"one of: {known}", "it is not made yet"))
    for feature in recipe.image.plugin:
        if feature not in PLUGIN_FEATURES:
            known = ", ".join(sorted(PLUGIN_FEATURES))
            near = get_close_matches(feature, PLUGIN_FEATURES, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "it is not made yet"
            where = ("image", "plugin", feature)
            result.append((where, f"feature {feature} of the vLLM plugin", f"one of: {known}", remedy))
    return result


def contradictions(recipe: Recipe, document: Document) -> list[Problem]:
    """What is well-formed by itself and does not fit together."""
    result = []
    if recipe.max_nodes is not None and recipe.max_nodes < recipe.min_nodes:
        found = f"max_nodes {recipe.max_nodes} below min_nodes {recipe.min_nodes}"
        where = document.where(("max_nodes",))
        result.append(Problem(where, found, "max_nodes not below min_nodes", "correct one of the two"))
    for keys, category, streams, _ in recipe.expect.all_by_streams():
        # Of categories a larger profile measures its own numbers of streams.
        if category == "all" and streams not in recipe.benchmark.streams:
            where = document.where(("expect", *keys, streams))
            found = f"expect.{'.'.join(keys)} for {streams} streams"
            wanted = f"one of benchmark.streams {recipe.benchmark.streams}"
            result.append(Problem(where, found, wanted, f"add {streams} to benchmark.streams"))
    if recipe.image.build == "source" and recipe.serve.engine != "vllm":
        where = document.where(("image", "build"))
        found = f"image.build: source with engine {recipe.serve.engine}"
        result.append(Problem(where, found, "engine vllm, which is what is built", "correct one of the two"))
    loads = recipe.serve.env.get("VLLM_PLUGINS")
    if any(recipe.image.plugin.values()) and loads is not None and "sparkstack" not in loads.split(","):
        where = document.where(("serve", "env", "VLLM_PLUGINS"))
        found = f"serve.env.VLLM_PLUGINS = {loads!r}, which leaves our plugin out, and features of it"
        result.append(Problem(where, found, "sparkstack among them", "add it, or remove the variable"))
    for feature, on in recipe.image.plugin.items():
        name = plugin_switch(feature)
        if recipe.serve.engine != "vllm":
            where, wanted = document.where(("image", "plugin", feature)), "no features"
            found = f"image.plugin.{feature} with engine {recipe.serve.engine}"
            result.append(Problem(where, found, wanted, "the plugin is vLLM's; remove it"))
        if recipe.serve.env.get(name) != ("1" if on else "0"):
            where = document.where(("serve", "env", name))
            found = f"serve.env.{name} = {recipe.serve.env.get(name)!r} against image.plugin.{feature}"
            result.append(Problem(where, found, "it only from image.plugin", "remove the variable"))
    result += _command_problems(recipe, document)
    for option in recipe.serve.options:
        if home := ENGINE_DERIVED[recipe.serve.engine].get(option):
            where = document.where(("serve", "options", option))
            found = f"serve.options.{option}"
            result.append(Problem(where, found, f"it only from {home}", "remove the option"))
    return result


def _command_problems(recipe: Recipe, document: Document) -> list[Problem]:
    """Of `serve.command`: that the engine and it go together, and what is wrong with its words."""
    command, engine = recipe.serve.command, recipe.serve.engine
    if engine != "command":
        if command is None:
            return []
        where, wanted = document.where(("serve", "command")), "it only with engine: command"
        return [Problem(where, f"serve.command with engine {engine}", wanted, "correct one of the two")]
    if command is None:
        where = document.where(("serve", "engine"))
        wanted = "what the container shall run"
        return [Problem(where, "engine command without serve.command", wanted, "add serve.command")]
    result = []
    for line, found, wanted, remedy in engine_command.mistakes(command):
        loc = ("serve", "command")
        where = document.where((*loc, line)) if isinstance(command, list) else document.where_in(loc, line)
        result.append(Problem(where, f"serve.command: {found}", wanted, remedy))
    if not result and recipe.min_nodes > 1 and not recipe.several_hosts:
        where = document.where(("min_nodes",))
        found = f"min_nodes {recipe.min_nodes} and a command without {{rank}}"
        result.append(Problem(where, found, "1 host, or a command that tells its ranks apart", "correct one"))
    return result
