"""From a recipe of the community to what it asks for, and to a recipe that a run can use.

Nothing is dropped in silence: what cannot be carried over is a finding with its line, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstack import parallel_sizes
from sparkstack.community import NO_IMAGE, Community, of_format, unknown_keys, validated
from sparkstack.community_command import LaunchCommand
from sparkstack.community_unsupported import unsupported_parts
from sparkstack.description import Launch
from sparkstack.findings import Finding, error, in_order, unsupported, warning
from sparkstack.flags import is_placeholder, scalar
from sparkstack.native_from_launch import native
from sparkstack.recipe_fields import DERIVED_OPTIONS, NOT_HTTP, SLUG
from sparkstack.yamlfile import Document

__all__ = ("NO_IMAGE", "Converted", "convert")


@dataclass
class Converted:
    """`launch` is None when the file cannot be understood as a recipe at all."""

    findings: list[Finding] = field(default_factory=list)
    launch: Launch | None = None


def convert(
    document: Document, version: str, nodes: int | None = None, overrides: Mapping[str, Any] | None = None
) -> Converted:
    """The recipe of format `version` ("1" or "2") in `document`.

    `nodes` is how many hosts shall serve, where that is known: the tensor parallel size of a recipe that
    leaves it open follows. `overrides` are values that win over the recipe's `defaults`.
    """
    result = Converted()
    recipe = validated(document, version, result.findings)
    result.findings += unknown_keys(document, version)
    if recipe is not None:
        reader = _Reader(document, version, recipe, nodes, dict(overrides or {}), result.findings)
        result.launch = reader.read()
    result.findings = in_order(result.findings)
    return result


class _Reader:
    """One recipe's way to its Launch; findings are collected on the way."""

    def __init__(
        self,
        document: Document,
        version: str,
        recipe: Community,
        nodes: int | None,
        overrides: dict[str, Any],
        findings: list[Finding],
    ) -> None:
        self.document, self.version, self.recipe = document, version, recipe
        self.nodes, self.overrides, self.findings = nodes, overrides, findings
        self.lines: dict[str, str] = {}
        for key in ("model", "metadata", "env", "min_nodes", "max_nodes", "runtime"):
            self.lines[key] = document.where((key,))
        self.lines["image"] = document.where(("container",))
        self.lines["revision"] = document.where(("model_revision",))
        self.lines["options"] = document.where(("defaults",) if recipe.command is None else ("command",))
        self.lines["changes"] = document.where(("build_args",))

    def where(self, *loc: str | int) -> str:
        return self.document.where(loc)

    def read(self) -> Launch:
        low, high = self._nodes()
        command = LaunchCommand(
            self.document, self.version, self.recipe, self.nodes, self.overrides, self.findings, self.lines
        )
        options, runtime, open_size = command.options, command.runtime, command.open_size
        model = self._model(command)
        served = options.pop("served_model_name", None)
        if isinstance(served, list):
            found = f"{len(served)} names in served_model_name"
            where = self.lines.get("options.served_model_name", self.lines["options"])
            self.findings.append(unsupported("served-name", where, found, "one name", "keep the first"))
            served = str(served[0])
        port = options.pop("port", command.values["port"])
        port = 8000 if port is None else scalar(port) if isinstance(port, str) else port
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            where = self.lines.get("options.port", self.where("defaults", "port"))
            if not isinstance(port, str) or not is_placeholder(port):  # else told as a name without a value
                found, wanted = f"port {port!r}", "a number from 1 to 65535"
                self.findings.append(error("type", where, found, wanted, "correct it"))
            port = 8000
        env = self._env()
        ray = self.lines.get("options.distributed_executor_backend", self.where("defaults"))
        self.findings += unsupported_parts(self.document, self.recipe, runtime, ray if command.ray else None)
        if open_size and self.nodes is None:
            self._suggested_size(options, high)
        elif not open_size:
            low, high = _only(options, low, high)
        launch = Launch(
            format=self.version,
            path=self.document.path,
            name=_slug(self.recipe.name or self.document.path),
            runtime=runtime,
            model=model,
            image=self.recipe.container or "",
            served_name=str(served) if served is not None else model,
            port=port,
            revision=of_format(self.recipe, "model_revision"),
            min_nodes=low,
            max_nodes=high,
            options={
                name: value
                for name, value in options.items()
                if name not in DERIVED_OPTIONS or name in NOT_HTTP  # which are refused, and not left out
            },
            env=env,
            command=tuple(word.text for word in command.words),
            metadata=dict(of_format(self.recipe, "metadata", {})),
            changes=self._changes(),
            lines=self.lines,
        )
        words = [word.text for word in command.chosen]
        made = native(launch, self.document, self.recipe, open_size, words, self.findings)
        return replace(launch, recipe=made)

    # How many hosts.

    def _nodes(self) -> tuple[int, int | None]:
        recipe = self.recipe
        low, high = of_format(recipe, "min_nodes", 1), of_format(recipe, "max_nodes")
        mode = of_format(recipe, "mode")
        solo, cluster = recipe.solo_only or mode == "solo", recipe.cluster_only or mode == "cluster"
        key = "solo_only" if recipe.solo_only else "mode"
        if solo and (cluster or low > 1):
            found = f"{'cluster_only' if cluster else f'min_nodes {low}'} and solo_only"
            self.findings.append(error("nodes", self.where(key), found, "one of the two", "remove one"))
        elif high is not None and high < (2 if cluster else low):
            least = "the 2 hosts of cluster_only" if cluster else f"min_nodes {low}"
            found, wanted = f"max_nodes {high} below {least}", "max_nodes not below"
            where = self.where("max_nodes")
            self.findings.append(error("nodes", where, found, f"{wanted} it", "correct one of the two"))
            high = None
        if solo:
            return 1, 1
        return (max(low, 2), high) if cluster else (low, high)

    def _suggested_size(self, options: dict[str, Any], high: int | None) -> None:
        """A tensor parallel size in `defaults` follows from the inventory; it is only looked at."""
        size = options.get("tensor_parallel_size")
        said = "tensor_parallel" in self.recipe.defaults
        if said and high is not None and isinstance(size, int) and size > high:
            found = f"tensor_parallel {size} for at most {high} host" + ("" if high == 1 else "s")
            where = self.where("defaults", "tensor_parallel")
            self.findings.append(error("parallel", where, found, f"{high} or less", "one host is one GPU"))

    # What it serves.

    def _model(self, command: LaunchCommand) -> str:
        in_command = (command.parsed.model if command.parsed else None) or command.options.pop("model", None)
        model = self.recipe.model or in_command
        if self.recipe.model and in_command and in_command != self.recipe.model:
            found = f"the model {in_command!r} in the command and {self.recipe.model!r} as model"
            self.findings.append(
                error("model", self.where("command"), found, "one of the two", "write {model} in the command")
            )
        if model is None:
            for flag in ("--model-path", "--model", "-m"):
                for at, word in enumerate(command.words[:-1]):
                    model = command.words[at + 1].text if word.text == flag and model is None else model
        if model is None:
            found = "no model, neither as a key nor in the command"
            self.findings.append(error("missing", self.where("command"), found, "a hub id", "add 'model'"))
        return str(model or "")

    def _env(self) -> dict[str, str]:
        result = {}
        for name, value in self.recipe.env.items():
            taken = re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", value)
            if not taken:
                result[name] = value
                continue
            where = self.where("env", name)
            if name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"):
                wanted, remedy = "hub_token_file of group_data", "remove it; only downloads use the token"
                self.findings.append(warning("env", where, f"env.{name} from the shell", wanted, remedy))
            else:
                found = f"env.{name} with ${taken[0]} of the machine that starts it"
                self.findings.append(unsupported("env", where, found, "a value", "write the value"))
        return result

    def _changes(self) -> tuple[int, ...]:
        """Pull requests of vLLM for the image, as far as build flags and mods name them."""
        text = " ".join([*self.recipe.build_args, *self.recipe.mods])
        return tuple(sorted({int(number) for number in re.findall(r"(?<!\d)(\d{5,6})(?!\d)", text)}))


def _only(options: Mapping[str, Any], low: int, high: int | None) -> tuple[int, int | None]:
    """A tensor parallel size that is written out means that many hosts, where the limits allow them."""
    size = options.get("tensor_parallel_size")
    if not isinstance(size, int) or size < 1:
        return low, high
    size *= parallel_sizes.others(options)
    return (size, size) if low <= size <= (high or size) else (low, high)


def _slug(name: str) -> str:
    """A name of ours from any text: "Qwen3 8B (FP8)" → "qwen3-8b-fp8"; from a path, its file's name."""
    last = name.rpartition("/")[2] if name.endswith((".yaml", ".yml")) else name
    last = re.sub(r"\.ya?ml$", "", last)
    slug = re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")
    return slug if re.fullmatch(SLUG, slug) else "recipe"
