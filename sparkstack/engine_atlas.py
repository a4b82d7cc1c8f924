"""Atlas, an engine for GB10 alone: its flags are not vLLM's, and its image has an entry point of its own."""

from __future__ import annotations

from typing import Any

from sparkstack import option_words
from sparkstack.errors import Problem, SparkstackError
from sparkstack.launch import Rank
from sparkstack.native import Recipe
from sparkstack.recipe_fields import ATLAS_DERIVED

OOM_GUARD_MB = 1024
"""`--oom-guard-mb` as its makers set it for a model that fills a Spark."""
SEVERAL_ENV = {
    "ATLAS_SKIP_OOM_PREFLIGHT": "1",
    "NCCL_ALGO": "Ring",
    "NCCL_NET_GDR_LEVEL": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_PROTO": "Simple",
}
"""Of two ranks, as its makers run them. The preflight counts the whole model against one Spark."""


def argv(recipe: Recipe, rank: Rank, *, model_path: str, bind: str, port: int) -> list[str]:
    """The arguments of Atlas's image for one rank: `serve …`. Only the first rank answers.

    On several hosts the experts are spread over all of them unless the recipe says otherwise. Errors:
    SparkstackError for options that are worked out elsewhere, and sizes that are not the number of hosts.
    """
    options, where = recipe.serve.options, f"recipe {recipe.name}"
    problems = [
        Problem(where, f"serve.options.{name}", f"it only from {home}", "remove the option")
        for name, home in ATLAS_DERIVED.items()
        if name in options
    ]
    derived: dict[str, Any] = {"model_from_path": model_path, "port": port}
    if rank.rank == 0:
        derived["bind"] = bind
    derived["oom_guard_mb"] = OOM_GUARD_MB
    if rank.world > 1:
        derived |= {
            "rank": rank.rank,
            "world_size": rank.world,
            "master_addr": rank.head_address,
            "master_port": rank.master_port,
        }
        if options.get("ep_size") is None and options.get("tp_size") is None:
            derived["ep_size"] = rank.world
    sizes = [options.get(name, derived.get(name)) for name in ("ep_size", "tp_size")]
    told = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if told and max(told) != rank.world:
        found = f"ep_size or tp_size for {max(told)} ranks"
        problems.append(Problem(where, found, f"{rank.world}, one a host", "remove ep_size and tp_size"))
    if problems:
        raise SparkstackError(problems)
    # A size of null is one that is not said; of anything else null is nothing.
    sizes_of_ours = {name for name in ("ep_size", "tp_size") if options.get(name) is None}
    given = {name: value for name, value in options.items() if name not in sizes_of_ours}
    return ["serve", *option_words.words(derived | given)]
