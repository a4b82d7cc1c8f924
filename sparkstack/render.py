"""`sparkstack recipe render`: the unit, environment and command of a rank, before there are hosts.

What only an inventory or a build knows stands as `<PLACEHOLDER>`, and `placeholders` explains each.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from sparkstack import engine_cache, engines, launch, nccl, topology
from sparkstack.description import Launch
from sparkstack.errors import Problem, SparkstackError
from sparkstack.native import Recipe, missing_pins, not_made
from sparkstack.release import TRANSFORM_VERSIONS, checkpoint_id

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
UNIT = "sparkstack-serve.service"
CONFIG_DIR = "/etc/sparkstack"
STATE_DIR = "/var/lib/sparkstack"
PYTHON = "/opt/sparkstack/env/bin/python"
EXPLAINED = {
    "<BIND_ADDRESS>": "serve_bind of group_data",
    "<HEAD_ADDRESS>": "the head's address on the fabric, from the inventory",
    "<HOST_ADDRESS>": "this host's address on the fabric, from the inventory",
    "<MASTER_PORT>": "worked out of the release's id: ranks of two releases never meet",
    "<FABRIC_INTERFACE>": "this host's first interface of the fabric",
    "<RDMA_DEVICES>": "this host's active RDMA devices, asked at deployment",
    "<RELEASE_ID>": "hash over all that is deployed, when it is deployed",
    "<IMAGE_ID>": "hash over base image, plugin and Dockerfile, when the image is built",
    "<CHECKPOINT_ID>": "hash over revision and transforms, once all are pinned and made",
}


@dataclass(frozen=True)
class Rendered:
    """Files by path, in the order in which they are read, for one rank."""

    rank: int
    world: int
    files: dict[str, str]

    @property
    def placeholders(self) -> dict[str, str]:
        """Those that occur in the files, with what they stand for."""
        text = "".join(self.files.values())
        return {name: meaning for name, meaning in EXPLAINED.items() if name in text}

    def __str__(self) -> str:
        lines = [f"# rank {self.rank} of {self.world}" + (" (the head)" if self.rank == 0 else "")]
        lines += [f"#   {name}: {meaning}" for name, meaning in self.placeholders.items()]
        for path, text in self.files.items():
            lines += ["", f"# --- {path}", text.rstrip("\n")]
        return "\n".join(lines) + "\n"


def render(wish: Launch, nodes: int) -> list[Rendered]:
    """What each of `nodes` ranks would get.

    For an engine that we do not start, it is the author's own command. Errors: SparkstackError for a number
    of hosts that the recipe does not allow, or parallel sizes that do not fit it.
    """
    recipe = wish.recipe
    if recipe is None:
        command = wish.command or (launch.words_of(wish.model, wish.options) if wish.is_vllm else ())
        if not command:
            found = f"runtime {wish.runtime} without a command"
            raise SparkstackError(Problem(wish.where("runtime"), found, "a command", "nothing can be shown"))
        text = shlex.join(command) + "\n"
        return [Rendered(0, 1, {f"the recipe's own command (runtime {wish.runtime})": text})]
    if problems := recipe.check_nodes(nodes):
        raise SparkstackError(problems)
    return [_rank(recipe, rank, nodes) for rank in range(nodes)]


def _rank(recipe: Recipe, rank: int, world: int) -> Rendered:
    head = nccl.LOOPBACK if world == 1 else "<HEAD_ADDRESS>"
    host = head if rank == 0 else "<HOST_ADDRESS>"
    place = launch.Rank(rank, world, head, host, "<MASTER_PORT>")
    engine = engines.started(recipe, place, bind="<BIND_ADDRESS>", port=recipe.serve.port)
    argv = launch.docker_argv(
        engine.words,
        image=engines.image_name(recipe.serve.engine, "<IMAGE_ID>"),
        checkpoint_dir=f"{STATE_DIR}/checkpoints/{_checkpoint(recipe)}",
        accelerator="gpu",
        env_files=[f"{CONFIG_DIR}/current/fabric.env", f"{CONFIG_DIR}/current/serve.env"],
        shm_size=recipe.serve.shm_size,
        cache=engine_cache.keeps(recipe),
        stop_signal=engines.STOP_SIGNALS.get(recipe.serve.engine),
        extra=recipe.serve.extra_docker_args,
        entrypoint=engine.entrypoint,
    )
    return Rendered(
        rank,
        world,
        {
            f"/etc/systemd/system/{UNIT}": _unit(recipe),
            f"{CONFIG_DIR}/current/fabric.env": launch.env_file(_fabric_env(host, world)),
            f"{CONFIG_DIR}/current/serve.env": launch.env_file(engines.env(recipe, world)),
            f"{CONFIG_DIR}/current/run": launch.run_script(launch.journaled(rank, "<RELEASE_ID>", argv)),
        },
    )


def _checkpoint(recipe: Recipe) -> str:
    open_pins = [loc for loc, *_ in missing_pins(recipe) if loc[0] == "checkpoint"]
    if open_pins or any(loc[0] == "checkpoint" for loc, *_ in not_made(recipe)):
        return "<CHECKPOINT_ID>"
    source = recipe.checkpoint.source
    return checkpoint_id(
        source.repo, source.revision, recipe.checkpoint.plan(), TRANSFORM_VERSIONS, source.allow
    )


def _fabric_env(host: str, world: int) -> dict[str, str]:
    if world == 1:
        alone = topology.plan("single", ["spark"])
        return nccl.rank_env("single", alone, "spark", management="", active_hcas=[], accelerator="gpu")
    pair = topology.plan("pair" if world == 2 else "switch", [f"spark-{n}" for n in range(world)])
    env = nccl.rank_env(
        pair.kind, pair, "spark-0", management="", active_hcas=["<RDMA_DEVICES>"], accelerator="gpu"
    )
    # The names of the variables are those of a pair or a switch; what they hold is the inventory's.
    known = pair.of("spark-0")[0]
    swapped = {known.address: host, known.name: "<FABRIC_INTERFACE>"}
    return {name: swapped.get(value, value) for name, value in env.items()}


def _unit(recipe: Recipe) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{UNIT}.j2").render(
        config_dir=CONFIG_DIR,
        state_dir=STATE_DIR,
        python=PYTHON,
        stop_seconds=launch.stop_seconds(launch.DRAIN_SECONDS),
        unit_stop_seconds=launch.unit_stop_seconds(launch.DRAIN_SECONDS),
        drop_caches=True,
    )


def text(ranks: Sequence[Rendered]) -> str:
    return "\n".join(map(str, ranks))
