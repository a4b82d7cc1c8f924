"""What each engine is started with, on one rank, as a container's command."""

from __future__ import annotations

from dataclasses import dataclass

from sparkstack import engine_atlas, engine_cache, engine_command, engine_ray, launch, option_words
from sparkstack.api_key import INSIDE
from sparkstack.errors import Problem, SparkstackError
from sparkstack.launch import Accelerator, Rank
from sparkstack.native import Recipe

MODEL_PATH = "/model"
"""Where the checkpoint is in the container."""
REPOSITORY = "sparkstack"
STOP_SIGNALS = {"atlas": "SIGINT"}
"""Where an engine hears another signal than Docker's SIGTERM, which older Atlas, as main process, ignores."""


@dataclass(frozen=True)
class Started:
    """`words` are what the container runs; with `entrypoint` false they are arguments of the image's own."""

    words: list[str]
    entrypoint: bool = True


def started(
    recipe: Recipe,
    rank: Rank,
    *,
    bind: str,
    port: int,
    accelerator: Accelerator = "gpu",
    api_key: bool = False,
    drain: int = launch.DRAIN_SECONDS,
) -> Started:
    """What `recipe` starts on one rank. `api_key`: the endpoint asks for a key. `drain`: s that open requests
    have when it is stopped, where the engine is told.

    Errors: SparkstackError for options that are worked out elsewhere, parallel sizes that are not the number
    of hosts, and a command that cannot be filled in.
    """
    match recipe.serve.engine:
        case "atlas":
            words = engine_atlas.argv(recipe, rank, model_path=MODEL_PATH, bind=bind, port=port)
            words += ["--require-auth", "--auth-tokens-file", INSIDE] if api_key and rank.rank == 0 else []
            return Started(words, entrypoint=False)
        case "command":
            return Started(command_argv(recipe, rank, bind=bind, port=port, api_key=api_key))
        case _:
            words = launch.serve_argv(
                recipe,
                rank,
                model_path=MODEL_PATH,
                bind=bind,
                port=port,
                accelerator=accelerator,
                drain=drain,
            )
            if launch.over_ray(recipe, rank.world):
                words = engine_ray.argv(rank, words, accelerator)
            return Started(words)


def env(recipe: Recipe, world: int) -> dict[str, str]:
    """The variables of every rank: what its engine needs on so many hosts, and the recipe's, which win."""
    if world > 1 and recipe.serve.engine == "atlas":
        return engine_atlas.SEVERAL_ENV | recipe.serve.env
    ray = engine_ray.ENV if launch.over_ray(recipe, world) else {}
    return engine_cache.env(recipe) | ray | recipe.serve.env


def command_argv(
    recipe: Recipe, rank: Rank, *, bind: str, port: int, api_key: bool = False
) -> list[str]:
    """The recipe's own command, with its options behind it as flags."""
    command, where = recipe.serve.command, f"recipe {recipe.name}"
    if command is None:
        found = "engine command without serve.command"
        raise SparkstackError(Problem(where, found, "what the container shall run", "add serve.command"))
    if told := engine_command.problems(command, f"{where}: serve.command"):
        raise SparkstackError(told)
    values: dict[str, str | int] = {
        "model_path": MODEL_PATH,
        "served_name": recipe.served_name,
        "bind": bind,
        "port": port,
        "api_key_file": INSIDE if api_key else "/dev/null",
        "rank": rank.rank,
        "world": rank.world,
        "head_address": rank.head_address,
        "host_address": rank.host_address,
        "master_port": rank.master_port,
    }
    return [*engine_command.filled(command, values), *option_words.words(recipe.serve.options)]


def reads_key_file(engine: str) -> bool:
    """Does this engine get the API key as a file, too? vLLM reads a variable."""
    return engine != "vllm"


def has_plugin(engine: str) -> bool:
    """Does the image of this engine get our vLLM plugin, and is it proved by it?"""
    return engine == "vllm"


def image_name(engine: str, image_id: str) -> str:
    """The tag of an image for this engine."""
    return f"{REPOSITORY}/{engine}:{image_id}"
