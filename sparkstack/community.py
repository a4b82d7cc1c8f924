"""The community's two formats as their authors write them: `recipe_version` "1" (spark-vllm-docker) and "2"
(sparkrun). The models take what those tools take; what we make of it is `sparkstack.conversion`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparkstack.schema import Loose, refusal


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
