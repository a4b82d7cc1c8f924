"""From what a community recipe asks for to a recipe in our format, the one that a run uses."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkstack import native_command
from sparkstack.community import Community, of_format
from sparkstack.description import (
    DEFAULT_GPU_MEMORY_UTILIZATION,
    GB,
    UNIFIED_MEMORY_GB,
    VLLM_KINDS,
    Launch,
)
from sparkstack.findings import Finding, error, unsupported, warning
from sparkstack.native import Recipe
from sparkstack.recipe_fields import UNVERIFIED
from sparkstack.schema import at_fault, dotted
from sparkstack.units import GIB
from sparkstack.yamlfile import Document

IMAGE_GIB = 25
"""Of the disk, for a vLLM image: 19.6 GB as downloaded, and unpacked layers."""


def native(
    launch: Launch,
    document: Document,
    recipe: Community,
    open_size: bool,
    words: list[str],
    findings: list[Finding],
) -> Recipe | None:
    """None when there is none; why is told in `findings`. `open_size`: the tensor parallel size follows from
    the number of hosts. `words` are the one command that starts the engine."""
    foreign = launch.runtime in native_command.ENGINES
    if not (foreign or launch.runtime in (*VLLM_KINDS, "atlas")) or not launch.model:
        return None
    if foreign:
        return _foreign(launch, document, recipe, words, findings)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", launch.model):
        found = f"the model {launch.model!r}"
        remedy = "name the repository; files of a host are not staged"
        if ":" in launch.model:
            remedy = "one file of a repository (GGUF) is not staged"
        findings.append(
            unsupported("model", document.where(("model",)), found, "a hub id, ORGANISATION/NAME", remedy)
        )
        return None
    options = dict(launch.options)
    if options.get("distributed_executor_backend") == "ray":
        del options["distributed_executor_backend"]
    if options.get("data_parallel_backend") == "ray":
        del options["data_parallel_backend"]
    if open_size:
        options.pop("tensor_parallel_size", None)
    engine = "atlas" if launch.runtime == "atlas" else "vllm"
    value = _value(launch, recipe, launch.model, launch.served_name, {"engine": engine, "options": options})
    return _validated(value, launch, document, findings)


def _foreign(
    launch: Launch, document: Document, recipe: Community, words: list[str], findings: list[Finding]
) -> Recipe | None:
    """As the engine `command`, on one host."""
    repo, files = native_command.weights(launch.runtime, launch.model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        found, remedy = f"the model {launch.model!r}", "name the repository; files of a host are not staged"
        where = document.where(("model",))
        findings.append(unsupported("model", where, found, "a hub id, ORGANISATION/NAME", remedy))
        return None
    if launch.min_nodes > 1:
        found = f"runtime {launch.runtime} on {launch.min_nodes} hosts"
        remedy = "several hosts take a native recipe, whose command tells its ranks apart by {rank}"
        where = launch.where("min_nodes")
        findings.append(unsupported("runtime", where, found, "one host", remedy))
        return None
    if recipe.command is not None and not words:
        return None  # told as a command that cannot be read
    if not words and not native_command.ENGINES[launch.runtime].plain:
        found = f"runtime {launch.runtime} without a command"
        findings.append(
            unsupported("command", document.where(("runtime",)), found, "its command", "add `command`")
        )
        return None
    command, named = native_command.command(launch.runtime, words, launch.model)
    options, without = native_command.options(launch.runtime, launch.options)
    for name in without:
        where, found = launch.where(f"options.{name}"), f"{name} with runtime {launch.runtime}"
        findings.append(warning("ignored", where, found, "an option that it has", "it has no effect here"))
    serve = {"engine": "command", "command": command, "options": options}
    value = _value(launch, recipe, repo, named or launch.served_name, serve)
    value |= {"min_nodes": 1, "max_nodes": 1}
    value["checkpoint"]["source"]["allow"] = files
    return _validated(value, launch, document, findings)


def _value(
    launch: Launch, recipe: Community, repo: str, served: str | None, serve: dict[str, Any]
) -> dict[str, Any]:
    """The keys of a native recipe for the weights of `repo`; `serve` has the engine and what is its own."""
    revision = launch.revision
    pinned = revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None
    return {
        "name": launch.name,
        "description": " ".join((recipe.description or "").split()),
        "model": repo,
        "served_model_name": None if served == repo else served,
        "min_nodes": launch.min_nodes,
        "max_nodes": launch.max_nodes,
        "checkpoint": {"source": {"repo": repo, "revision": revision if pinned else UNVERIFIED}},
        "image": {"base": launch.image or UNVERIFIED},
        "serve": {**serve, "port": launch.port, "env": launch.env, **_container(recipe)},
        "budget": _budget(launch),
        **_benchmark(recipe),
        "metadata": launch.metadata,
    }


def _validated(
    value: dict[str, Any], launch: Launch, document: Document, findings: list[Finding]
) -> Recipe | None:
    try:
        return Recipe.model_validate(value)
    except ValidationError as mistake:
        for detail in mistake.errors():
            wanted = detail.get("ctx", {}).get("wanted") or detail["msg"]
            findings.append(_refused(launch, document, detail, str(wanted)))
        return None


def _refused(launch: Launch, document: Document, detail: ErrorDetails, wanted: str) -> Finding:
    loc, value = at_fault(detail)
    name = str(loc[2]) if loc[:2] in (("serve", "options"), ("serve", "env")) and len(loc) > 2 else ""
    where = launch.lines.get(f"options.{name}", launch.lines["options"])
    if loc[:2] == ("serve", "env"):
        where = document.where(("env", name))
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
    found = f"{dotted(loc[2:] if name else loc)} = {shown}"
    if detail["loc"][-1] == "[key]":
        found = f"the name {name!r}"
    return error("type", where, found, wanted, "correct it")


def _container(recipe: Community) -> dict[str, Any]:
    config = of_format(recipe, "executor_config")
    if config is None:
        return {}
    extra = ["--privileged"] if config.privileged else []
    extra += ["--user", config.user] if config.user else []
    size = config.shm_size.lower().removesuffix("b") if config.shm_size else None
    return {"extra_docker_args": extra, "shm_size": size}


def _budget(launch: Launch) -> dict[str, float]:
    """What the format does not say, worked out: memory from what the engine may take, disk from the size
    of the model where `metadata.model_vram` (GB) has it, else from what fits into the memory."""
    share = launch.options.get("gpu_memory_utilization")
    share = share if isinstance(share, float) and 0 < share <= 1 else DEFAULT_GPU_MEMORY_UTILIZATION
    memory = share * UNIFIED_MEMORY_GB * GB / GIB
    size = launch.metadata.get("model_vram")
    if not isinstance(size, (int, float)) or isinstance(size, bool) or size <= 0:
        size = UNIFIED_MEMORY_GB * launch.min_nodes
    return {"memory_gib": round(memory, 1), "disk_gib": round(size * GB / GIB + IMAGE_GIB, 1)}


def _benchmark(recipe: Community) -> dict[str, Any]:
    """A llama-benchy profile as far as ours has the same: streams, and the longest answer."""
    profile = of_format(recipe, "benchmark") or {}
    arguments = profile.get("args")
    if not isinstance(arguments, dict):
        return {}
    streams, lengths = _numbers(arguments.get("concurrency")), _numbers(arguments.get("tg"))
    result: dict[str, Any] = {}
    if streams:
        result["streams"] = sorted(set(streams))
    if lengths:
        result["max_tokens"] = max(*lengths, 2)
    return {"benchmark": result}


def _numbers(value: Any) -> list[int]:
    found = value if isinstance(value, list) else re.split(r"[\s,]+", str(value))
    return [int(item) for item in found if re.fullmatch(r"[1-9]\d*", str(item))]
