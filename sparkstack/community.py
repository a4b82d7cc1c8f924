"""The community's two formats as their authors write them: `recipe_version` "1" (spark-vllm-docker) and "2"
(sparkrun). The models take what those tools take; what we make of it is `sparkstack.conversion`.

A value of a wrong type, a key that is missing and one that the format does not have are findings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from sparkstack.findings import Finding, error, warning
from sparkstack.recipe_fields import UNVERIFIED
from sparkstack.schema import Loose, problems, refusal
from sparkstack.yamlfile import Document, Loc


def _text(value: Any) -> Any:
    """Numbers stand for their digits: people write `revision: 1234` and `VLLM_X: 1`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    if isinstance(value, str):
        return value
    raise refusal("text or a number")


def _texts(value: Any) -> Any:
    """One text stands for a list of it; nothing behind a key, for an empty list."""
    if value is None:
        return []
    if isinstance(value, (str, int, float)):
        value = [value]
    if not isinstance(value, list):
        raise refusal("a list of texts")
    return [_text(item) for item in value]


def _hooks(value: Any) -> Any:
    if value is None:
        return []
    value = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) or (isinstance(item, dict) and "copy" in item) for item in value):
        raise refusal("commands, or `{copy, dest}`")
    return value


def _mapping(value: Any) -> Any:
    return {} if value is None else value


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]
Texts = Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=str | list[str | int] | None)]
Hooks = Annotated[
    list[Any], BeforeValidator(_hooks, json_schema_input_type=str | list[str | dict[str, Any]] | None)
]
FreeMap = Annotated[dict[str, Any], BeforeValidator(_mapping, json_schema_input_type=dict[str, Any] | None)]
Env = Annotated[
    dict[str, Text],
    BeforeValidator(_mapping, json_schema_input_type=dict[str, str | int | float | bool] | None),
]


class RecipeV1(Loose):
    """`recipe_version: "1"`: a container, a command with placeholders, and what is done to the image."""

    recipe_version: Text | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    model: str | None = None
    container: str = Field(min_length=1)
    command: str = Field(min_length=1)
    cluster_only: bool = False
    solo_only: bool = False
    pull_image: bool | None = None
    build_args: Texts = Field(default_factory=list)
    mods: Texts = Field(default_factory=list)
    defaults: FreeMap = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)


class ExecutorConfig(Loose):
    """How a container is started."""

    auto_remove: bool | None = None
    restart_policy: str | None = None
    privileged: bool | None = None
    gpus: Text | None = None
    ipc: str | None = None
    shm_size: Text | None = None
    network: str | None = None
    entrypoint: str | None = None
    user: Text | None = None


class RecipeV2(Loose):
    """`recipe_version: "2"`, or none: a model, a runtime, and its flags by `defaults` or by `command`."""

    recipe_version: Text | None = None
    name: str | None = None
    description: str | None = None
    model: str = Field(min_length=1)
    model_revision: Text | None = None
    runtime: str | None = None
    runtime_version: Text | None = None
    container: str | None = None
    mode: Literal["auto", "solo", "cluster"] | None = None
    min_nodes: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    solo_only: bool = False
    cluster_only: bool = False
    defaults: FreeMap = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)
    command: str | None = None
    metadata: FreeMap = Field(default_factory=dict)
    executor_config: ExecutorConfig | None = None
    pre_exec: Hooks = Field(default_factory=list)
    post_exec: Hooks = Field(default_factory=list)
    post_commands: Hooks = Field(default_factory=list)
    stop_after_post: bool = False
    builder: str | None = None
    builder_config: FreeMap = Field(default_factory=dict)
    distribution_config: FreeMap = Field(default_factory=dict)
    benchmark: FreeMap = Field(default_factory=dict)
    runtime_config: FreeMap = Field(default_factory=dict)
    mods: Texts = Field(default_factory=list)
    build_args: Texts = Field(default_factory=list)


Community = RecipeV1 | RecipeV2
MODELS: dict[str, type[RecipeV1] | type[RecipeV2]] = {"1": RecipeV1, "2": RecipeV2}


def of_format(recipe: Community, key: str, default: Any = None) -> Any:
    """The value of a key that the recipe's format has; `default` for a key of the other one. That is told as
    unknown, and nothing has looked at its type."""
    return getattr(recipe, key) if key in type(recipe).model_fields else default


NO_IMAGE = f"{UNVERIFIED}@sha256:{'0' * 64}"
"""Stands in for an image whose absence is told already."""


def validated(document: Document, version: str, findings: list[Finding]) -> Community | None:
    """The model's instance. A value of a wrong type is told and left out, so that the rest is checked too."""
    model = MODELS[version]
    try:
        return model.model_validate(document.value)
    except ValidationError as first:
        mistyped = _mistyped(document.value, model)
        for problem in problems(first, document, model):
            missing = re.fullmatch(r"no '(\w+)'", problem.found)
            if missing and missing[1] in mistyped.values():
                continue  # told as an unknown key
            code = "missing" if missing else "type"
            findings.append(Finding(problem, "error", code))
        for key, near in mistyped.items():
            where = document.where((key,))
            findings.append(
                error("unknown-key", where, f"unknown key {key!r}", f"{near!r}", "correct its name")
            )
        wrong = {str(detail["loc"][0]) for detail in first.errors() if detail["type"] != "missing"}
        renamed = {mistyped.get(key, key): value for key, value in document.value.items()}
        rest = {key: value for key, value in renamed.items() if key not in wrong}
        # Stand-ins that no check complains about again.
        if model is RecipeV1:
            rest = {"name": "x", "container": NO_IMAGE, **rest}
        try:
            return model.model_validate(rest)
        except ValidationError:
            return None


def _mistyped(value: Mapping[str, Any], model: type[BaseModel]) -> dict[str, str]:
    """Unknown keys that are a required one with a typing mistake."""
    required = [name for name, info in model.model_fields.items() if info.is_required() and name not in value]
    unknown = [key for key in value if key not in model.model_fields]
    return {key: near[0] for key in unknown if (near := get_close_matches(str(key), required, 1))}


def unknown_keys(document: Document, version: str) -> list[Finding]:
    return _unknown_keys(document, MODELS[version], document.value, ())


def _unknown_keys(
    document: Document, model: type[BaseModel], value: Mapping[str, Any], above: Loc
) -> list[Finding]:
    """Keys that the format does not have, but for those that are told as a required one mistyped."""
    known = sorted(model.model_fields)
    result = []
    mistyped = {} if above else _mistyped(value, model)
    for key in value:
        if key in known or key in mistyped:
            continue
        near = get_close_matches(str(key), known, 1)
        remedy = f"did you mean {near[0]!r}?" if near else "it has no effect; remove it"
        where = document.where((*above, key))
        dotted = ".".join(map(str, (*above, key)))
        result.append(
            warning("unknown-key", where, f"unknown key {dotted!r}", f"one of: {', '.join(known)}", remedy)
        )
    inner = value.get("executor_config")
    if not above and model is RecipeV2 and isinstance(inner, dict):
        result += _unknown_keys(document, ExecutorConfig, inner, ("executor_config",))
    return result
