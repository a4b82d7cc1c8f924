"""What can be said of a recipe's options without a host: names, values that are JSON, parallel sizes."""

from __future__ import annotations

import json
import re
from typing import Any

from sparkstack import parallel_sizes, vllm_options
from sparkstack.description import Launch
from sparkstack.findings import Finding, error, warning
from sparkstack.flags import is_placeholder
from sparkstack.recipe import NATIVE_VERSION
from sparkstack.recipe_fields import NOT_HTTP, argument_name


def options(launch: Launch) -> list[Finding]:
    """All that is wrong or doubtful among the options."""
    return [
        *_mistyped(launch),
        *_denied(launch),
        *_json_options(launch),
        *_json_lists(launch),
        *_not_http(launch),
        *_parallel(launch),
    ]


def counted(number: int, word: str) -> str:
    """"1 host", "2 hosts"."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def _mistyped(launch: Launch) -> list[Finding]:
    """Options that are nearly one of vLLM's. A warning: another version may have them."""
    return [
        warning("option", launch.where(f"options.{name}"), f"option {name}", near, f"did you mean {near!r}?")
        for name in launch.options
        if launch.is_vllm and (near := vllm_options.meant(name))
    ]


def _denied(launch: Launch) -> list[Finding]:
    """false among the options of a recipe's own command: no flag says it (`option_words`)."""
    recipe = launch.recipe
    if launch.format != NATIVE_VERSION or recipe is None or recipe.serve.engine != "command":
        return []
    result = []
    for name in [name for name, value in launch.options.items() if value is False]:
        other = name[3:] if name.startswith("no_") else f"no_{name}"
        remedy = f"write `{other}: true` if it has {argument_name(other)}"
        remedy = f"remove it, or {remedy}" if name.startswith("no_") else f"{remedy}, else remove it"
        where, found = launch.where(f"options.{name}"), f"serve.options.{name}: false, which is left out"
        result.append(warning("option", where, found, "a flag that the engine has", remedy))
    return result


def _not_http(launch: Launch) -> list[Finding]:
    """Of the community's recipes: what a native one is told as a contradiction."""
    return [
        error("endpoint", launch.where(f"options.{name}"), name, f"it only from {home}", "remove the option")
        for name, home in NOT_HTTP.items()
        if launch.format != NATIVE_VERSION and name in launch.options
    ]


# Not a chat template, which begins with {% or {{.
_OBJECT = re.compile(r"""\s*\{\s*["'}]""")


def _json_options(launch: Launch) -> list[Finding]:
    """Options of vLLM that take a JSON object, and texts of any engine's that begin as one: what else is in
    them is told by no engine before minutes of loading."""
    result = []
    for name, value in launch.options.items():
        an_object = launch.is_vllm and name in vllm_options.JSON_OBJECTS
        if isinstance(value, list) and not an_object:
            result += _json_items(launch, name, value)
            continue
        if not (an_object or (isinstance(value, str) and _OBJECT.match(value))):
            continue
        if value is None or (isinstance(value, str) and is_placeholder(value)):
            continue  # nothing, or told as a name without a value
        if isinstance(value, dict) or (name == "compilation_config" and type(value) is int):
            continue
        if launch.command and isinstance(value, str) and value.startswith("{"):
            continue  # told where the command was read
        problem = _not_json(value, an_object)
        if problem is not None:
            where, remedy = launch.where(f"options.{name}"), "write its keys below it, or one line of JSON"
            result.append(error("json", where, f"{name} = {problem}", "a JSON object", remedy))
    return result


def _json_items(launch: Launch, name: str, values: list[Any]) -> list[Finding]:
    """The same for each of several values, as `lora_modules` has them."""
    result = []
    for at, value in enumerate(values):
        if isinstance(value, str) and _OBJECT.match(value) and (problem := _not_json(value, False)):
            remedy = "write its keys below it, or one line of JSON"
            where = launch.where(f"options.{name}")
            result.append(error("json", where, f"{name}[{at}] = {problem}", "a JSON object", remedy))
    return result


def _json_lists(launch: Launch) -> list[Finding]:
    """Options of vLLM that take a JSON list of texts, as a list or as text."""
    result = []
    for name in [name for name in launch.options if name in vllm_options.JSON_LISTS and launch.is_vllm]:
        value = launch.options[name]
        if value is None or (isinstance(value, str) and is_placeholder(value)) or _texts(value):
            continue
        if launch.command and isinstance(value, str) and value.startswith("{"):
            continue  # told where the command was read
        problem = _not_json(value, False) if isinstance(value, str) else _shown(value)
        if problem is None and not _texts(json.loads(value)):
            problem = _shown(value)
        if problem is not None:
            where, remedy = launch.where(f"options.{name}"), "write a list, or one line of JSON"
            result.append(error("json", where, f"{name} = {problem}", "a JSON list of texts", remedy))
    return result


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"


def _not_json(value: Any, an_object: bool) -> str | None:
    """What a value is, where it is no JSON (object); None where it is."""
    shown = _shown(value)
    if not isinstance(value, str):
        return shown
    try:
        read = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as mistake:
        return f"{shown} ({str(mistake).lower()})"
    return None if isinstance(read, dict) or not an_object else shown


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _sizes(launch: Launch) -> list[Finding]:
    """Parallel sizes that are no counts: they would be taken for 1."""
    result = []
    for name in parallel_sizes.SIZES:
        value = launch.options.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            continue
        if isinstance(value, str) and is_placeholder(value):
            continue  # told as a name without a value
        where = launch.where(f"options.{name}")
        result.append(error("parallel", where, f"{name} {value!r}", "a number from 1", "correct it"))
    return result


def _parallel(launch: Launch) -> list[Finding]:
    """Parallel sizes against the numbers of hosts on which the recipe may run; one host is one GPU."""
    if result := _sizes(launch):
        return result
    size, others = launch.size("tensor_parallel_size"), launch.other_parallel
    low, high = launch.min_nodes, launch.max_nodes
    fixed = launch.recipe is None or "tensor_parallel_size" in launch.recipe.serve.options
    where = launch.where("options.tensor_parallel_size")
    limits = (
        counted(low, "host") if high == low else f"{low} to {high} hosts" if high else f"{low} or more hosts"
    )
    if launch.options.get("tensor_parallel_size") is not None and fixed:
        product = size * others
        if product < low or (high is not None and product > high):
            found = f"a recipe for {product} GPUs ({parallel_sizes.ALL_NAME}) on {limits}"
            remedy = "correct the size, or min_nodes and max_nodes"
            result.append(error("parallel", where, found, "one GPU a host", remedy))
        elif not low == high == product:
            found = f"tensor parallel size {size} written out on {limits}"
            remedy = "leave it out: it follows from the inventory"
            result.append(warning("parallel", where, found, f"exactly {counted(product, 'host')}", remedy))
    elif others > 1 and low % others and high == low:
        where = launch.where(f"options.{parallel_sizes.said(launch.options)}")
        found = f"{parallel_sizes.OTHERS_NAME} {others} on {limits}"
        result.append(error("parallel", where, found, f"a multiple of {others} hosts", "correct one"))
    if launch.recipe is None or launch.recipe.serve.engine != "vllm" or any(one.refused for one in result):
        return result
    # What a run gets: of a community recipe Ray and the open size are left out.
    options, world = launch.recipe.serve.options, low if high == low else max(low, 2)
    told = parallel_sizes.backends(options, launch.env, world)
    if high == low:
        told += parallel_sizes.decode_context(options, launch.metadata, world)
    for name, *words in told:
        result.append(error("parallel", launch.where(f"options.{name}"), *words))
    return result
