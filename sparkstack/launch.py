"""From a recipe and a place in the cluster to the command that a rank runs, and the files that hold it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkstack import engine_cache, option_words, parallel_sizes
from sparkstack.errors import Problem, SparkstackError
from sparkstack.image_source import ENCODER_BACKEND
from sparkstack.recipe import Recipe
from sparkstack.recipe_fields import DERIVED_OPTIONS

Accelerator = Literal["gpu", "cpu"]

CONTAINER = "sparkstack-serve"
DRAIN_SECONDS = 25
"""How long vLLM lets open requests end when it is stopped, where the site's `drain_s` says nothing else.
Without a word it cuts them off."""
END_SECONDS = 5
"""How long a server may take beyond that to end, when its unit or Docker stops."""
UNIT_SECONDS = 15
"""How long the unit lets Docker take beyond that."""
DRAINS_FROM = (0, 18)
"""The first vLLM that knows it."""
PRIORITY_FROM = (0, 13)
"""The first vLLM that takes requests by priority without ending at one with `n` above 1 (vllm#29764)."""
MASTER_PORT, MASTER_PORTS = 25000, 5000
"""Where the ranks meet on the head's address: one of so many ports from this one on (below those that the
kernel gives away by itself)."""
DATA_PARALLEL_PORT = 13345
"""Where data parallel replicas meet, on the head's address."""
FABRIC_ENV = "/etc/sparkstack/fabric.env"
SERVE_ENV = "/etc/sparkstack/current/serve.env"
"""By way of `current`: the release's own folder is named by a hash over this very command line."""
ENV_LINE_LIMIT = 65536
"""Docker reads an env file with a line buffer of this many bytes."""


@dataclass(frozen=True)
class Rank:
    """One host's part. `head_address` is the head's on the fabric, 127.0.0.1 for a single Spark;
    `env` is what this rank's interfaces ask for (sparkstack.nccl)."""

    rank: int
    world: int
    head_address: str
    host_address: str
    master_port: int | str = MASTER_PORT
    env: dict[str, str] = field(default_factory=dict)


def rendezvous_port(release: str, serve_port: int) -> int:
    """The port at which the ranks of a release meet; `serve_port` is taken on the head.

    Each release has its own, so that hosts of which some were switched to another release before the power
    went never form a group: they wait for each other until one release is current on all.
    """
    port = MASTER_PORT + int(release, 16) % MASTER_PORTS
    return port if port != serve_port else MASTER_PORT + (port + 1 - MASTER_PORT) % MASTER_PORTS


def serve_argv(
    recipe: Recipe,
    rank: Rank,
    *,
    model_path: str = "/model",
    bind: str,
    port: int,
    accelerator: Accelerator = "gpu",
    drain: int = DRAIN_SECONDS,
) -> list[str]:
    """`vllm serve …` for one rank: what follows from the cluster first, then the recipe's options in order.

    `bind` and `port` are where the head answers; other ranks answer nowhere. `drain`: s for open requests
    when it is stopped.
    Errors: SparkstackError naming options that are worked out elsewhere, and parallel sizes that are not
    the number of hosts.
    """
    options = recipe.serve.options
    problems = [
        Problem(f"recipe {recipe.name}", f"serve.options.{name}", f"it only from {home}", "remove the option")
        for name, home in DERIVED_OPTIONS.items()
        if name in options
    ]
    derived: dict[str, Any] = {"served_model_name": recipe.served_name}
    if rank.rank == 0:
        derived |= {"host": bind, "port": port}
        if "shutdown_timeout" not in options and _has(recipe, rank.world, DRAINS_FROM):
            derived["shutdown_timeout"] = drain
    # So that the watchdog's token comes after users' requests. Not over several hosts: a pair of Sparks hung
    # under it and not without (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#184).
    if rank.world == 1 and "scheduling_policy" not in options and _has(recipe, rank.world, PRIORITY_FROM):
        derived["scheduling_policy"] = "priority"
    if recipe.image.build == "source" and accelerator == "gpu" and "mm_encoder_attn_backend" not in options:
        derived["mm_encoder_attn_backend"] = ENCODER_BACKEND
    derived |= parallel_sizes.derived(options, recipe.metadata, rank.world)
    told = parallel_sizes.backends(options, recipe.serve.env, rank.world)
    if accelerator == "gpu" or options.get("tensor_parallel_size") is None:
        told += parallel_sizes.mistakes(options, recipe.metadata, rank.world)
    problems += [Problem(f"recipe {recipe.name}", *words) for _, *words in told]
    if over_ray(recipe, rank.world):
        # Ray knows the hosts; `sparkstack.engine_ray` tells it.
        derived |= parallel_sizes.over_ray_options(options, rank.head_address)
    elif rank.world > 1:
        derived |= {
            "nnodes": rank.world,
            "node_rank": rank.rank,
            "master_addr": rank.head_address,
            "master_port": rank.master_port,
        }
        if rank.rank > 0:
            derived["headless"] = True
        if parallel_sizes.size(options, "data_parallel_size") > 1:
            # Which replica a host holds follows from its rank; where they meet is said, for a vLLM that
            # does not take the master's address for it.
            derived["data_parallel_address"] = rank.head_address
            derived["data_parallel_rpc_port"] = DATA_PARALLEL_PORT
        # With GPUs vLLM picks mp by itself; its CPU platform does not.
        if accelerator == "cpu" and options.get("distributed_executor_backend") is None:
            derived["distributed_executor_backend"] = "mp"
    if problems:
        raise SparkstackError(problems)
    given = {name: value for name, value in options.items() if value is not None}
    return words_of(model_path, derived | given)


def _has(recipe: Recipe, world: int, first: tuple[int, int]) -> bool:
    """Is the image's vLLM `first` or newer? An older one would end at once for a flag that it does not know.

    Where neither the recipe nor the tag of vLLM's own image says the version, an image that needs Ray is an
    older one, and any other one knows it.
    """
    named = re.search(r"vllm-openai:v(\d+\.\d+)", recipe.image.base)
    said = recipe.image.version or (named[1] if named else "")
    numbers = tuple(int(part) for part in re.findall(r"\d+", said)[:2])
    return numbers >= first if numbers else not over_ray(recipe, world)


def stop_seconds(drain: int) -> int:
    """How long a server may take to end, when its unit or Docker stops; then it is killed."""
    return drain + END_SECONDS


def unit_stop_seconds(drain: int) -> int:
    """How long systemd lets that take."""
    return stop_seconds(drain) + UNIT_SECONDS


def drain_problems(recipe: Recipe, drain: int) -> list[Problem]:
    """A `shutdown_timeout` of the recipe that its unit would cut off."""
    value = recipe.serve.options.get("shutdown_timeout") if recipe.serve.engine == "vllm" else None
    try:
        seconds = float(str(value))
    except ValueError:  # nothing, or what vLLM refuses itself
        return []
    if seconds <= drain:
        return []
    found = f"serve.options.shutdown_timeout {value}"
    wanted = f"at most {drain}, the site's drain_s, after which the engine is killed"
    return [Problem(f"recipe {recipe.name}", found, wanted, "raise drain_s in group_data, or lower it")]


def over_ray(recipe: Recipe, world: int) -> bool:
    """Do the hosts meet over Ray?"""
    return parallel_sizes.over_ray(recipe.serve.options, world)


def words_of(model: str, options: Mapping[str, Any]) -> list[str]:
    """`vllm serve MODEL …` with nothing but these options."""
    return ["vllm", "serve", model, *option_words.vllm_words(options)]


def docker_argv(
    serve: Sequence[str],
    *,
    image: str,
    checkpoint_dir: str,
    accelerator: Accelerator,
    env_files: Sequence[str] = (FABRIC_ENV, SERVE_ENV),
    shm_size: str | None = None,
    extra: Sequence[str] = (),
    model_path: str = "/model",
    name: str = CONTAINER,
    entrypoint: bool = True,
    cache: bool = False,
    stop_signal: str | None = None,
    drain: int = DRAIN_SECONDS,
) -> list[str]:
    """`docker run …` around the command `serve` (its first word becomes the entry point; with `entrypoint`
    false the image keeps its own, and all of `serve` are its arguments).

    Of a variable in several `env_files` the last one counts. `extra` are a recipe's own `docker run`
    arguments; they come last so that they win. vLLM is the container's main process, without an init
    before it: the unit must see it end. With `cache` what it compiles outlives the container: a first
    start may compile for half an hour, and would do so at each start again.
    """
    # An image that is gone is an error and no download: a start asks nobody outside.
    words = ["docker", "run", "--rm", "--pull", "never", "--name", name]
    # For a Docker that is stopped itself, which gives a container 10 s otherwise.
    words += ["--stop-timeout", str(stop_seconds(drain))]
    if stop_signal is not None:
        words += ["--stop-signal", stop_signal]
    words += ["--network", "host", "--ipc", "host"]
    if shm_size is not None:
        words += ["--shm-size", shm_size]
    # Unlike --volume, --mount refuses a folder that is not there instead of creating an empty one.
    words += ["--mount", f"type=bind,src={checkpoint_dir},dst={model_path},readonly"]
    if cache:
        words += ["--mount", engine_cache.mount(image)]
    for path in env_files:
        words += ["--env-file", path]
    if accelerator == "gpu":
        words += ["--gpus", "all", "--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
        words += ["--ulimit", "memlock=-1"]  # RDMA registers (pins) what it sends
    else:
        words += ["--cap-add", "SYS_NICE"]  # set_mempolicy, which the CPU build calls
    if not entrypoint:
        return [*words, *extra, image, *serve]
    return [*words, "--entrypoint", serve[0], *extra, image, *serve[1:]]


def journaled(rank: int, release: str, argv: Sequence[str]) -> list[str]:
    """`argv` with its output in the journal under rank and release (`journalctl -t`)."""
    return ["systemd-cat", f"--identifier=sparkstack-rank{rank}-{release}", *argv]


def run_script(argv: Sequence[str]) -> str:
    """A shell script that becomes `argv`: one quoted word a line, so that two releases can be compared."""
    if not argv or any("\0" in word for word in argv):
        raise ValueError("a command has words, and none of them holds a NUL")
    return "#!/bin/sh\nexec " + " \\\n  ".join(shlex.quote(word) for word in argv) + "\n"


def env_file(env: Mapping[str, str]) -> str:
    """`env` as a file for `docker run --env-file`, sorted by name.

    Docker takes each value as it stands, quotes included, and knows no escapes: a line break cannot be
    written. Errors: SparkstackError with every name and value that the format cannot hold.
    """
    problems = []
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.append(
                Problem("env", f"name {name!r}", "letters, digits and '_'", "rename the variable")
            )
        if any(mark in value for mark in "\n\r\0"):
            problems.append(Problem(f"env {name}", "a line break", "one line", "pass longer text by a file"))
        if len(f"{name}={value}".encode()) >= ENV_LINE_LIMIT:
            wanted = f"less than {ENV_LINE_LIMIT} bytes"
            problems.append(Problem(f"env {name}", "a longer value", wanted, "pass longer text by a file"))
    if problems:
        raise SparkstackError(problems)
    return "".join(f"{name}={env[name]}\n" for name in sorted(env))
