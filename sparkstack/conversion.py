"""From a recipe of the community to what it asks for, and to a recipe that a run can use.

Nothing is dropped in silence: what cannot be carried over is a finding with its line, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from sparkstack import flags, placeholders, schema, shell_words
from sparkstack.community import Community, ExecutorConfig, RecipeV1, RecipeV2
from sparkstack.description import (
    DEFAULT_GPU_MEMORY_UTILIZATION,
    GB,
    UNIFIED_MEMORY_GB,
    VLLM_KINDS,
    Launch,
)
from sparkstack.findings import Finding, error, in_order, unsupported, warning
from sparkstack.native import Recipe
from sparkstack.recipe_fields import DERIVED_OPTIONS, SLUG, UNVERIFIED
from sparkstack.units import GIB
from sparkstack.yamlfile import Document, Loc

MODELS: dict[str, type[RecipeV1] | type[RecipeV2]] = {"1": RecipeV1, "2": RecipeV2}
RUNTIMES = (*VLLM_KINDS, "sglang", "llama-cpp", "trtllm", "atlas")
RUNTIME_DEFAULTS = {"host": "0.0.0.0", "port": 8000, "tensor_parallel": 1, "pipeline_parallel": 1}
"""What a command's placeholders mean where neither the recipe nor the user says more."""
IMAGE_GIB = 25
"""Of the disk, for a vLLM image: 19.6 GB as downloaded, and unpacked layers."""
NO_IMAGE = f"{UNVERIFIED}@sha256:{'0' * 64}"
"""Stands in for an image whose absence is told already."""
# Keys of `defaults` that are no option of vLLM by that name.
_KEYS_OF_TOOLS = frozenset({"ep_size", "tensor_parallel", "pipeline_parallel", "data_parallel"})


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
    model = MODELS[version]
    result = Converted()
    recipe = _validated(document, model, result.findings)
    result.findings += _unknown_keys(document, model, document.value, ())
    if recipe is not None:
        reader = _Reader(document, version, recipe, nodes, dict(overrides or {}), result.findings)
        result.launch = reader.read()
    result.findings = in_order(result.findings)
    return result


def _validated(
    document: Document, model: type[RecipeV1] | type[RecipeV2], findings: list[Finding]
) -> Community | None:
    """The model's instance. A value of a wrong type is told and left out, so that the rest is checked too."""
    try:
        return model.model_validate(document.value)
    except ValidationError as first:
        mistyped = _mistyped(document.value, model)
        for problem in schema.problems(first, document, model):
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
        self.ray = False
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
        open_size = self.recipe.command is None or "{tensor_parallel}" in self.recipe.command
        values = self._values(open_size)
        words = self._words(values)
        runtime, parsed = self._runtime(words)
        options = dict(parsed.options) if parsed else self._from_defaults(values, runtime)
        model = self._model(parsed, options, words)
        served = options.pop("served_model_name", None)
        if isinstance(served, list):
            found = f"{len(served)} names in served_model_name"
            where = self.lines.get("options.served_model_name", self.lines["options"])
            self.findings.append(unsupported("served-name", where, found, "one name", "keep the first"))
            served = str(served[0])
        port = options.pop("port", values["port"])
        env = self._env()
        self._not_ours(runtime)
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
            port=port if isinstance(port, int) and not isinstance(port, bool) else 8000,
            revision=getattr(self.recipe, "model_revision", None),
            min_nodes=low,
            max_nodes=high,
            options={name: value for name, value in options.items() if name not in DERIVED_OPTIONS},
            env=env,
            command=tuple(word.text for word in words),
            metadata=dict(getattr(self.recipe, "metadata", {})),
            changes=self._changes(),
            lines=self.lines,
        )
        return replace(launch, recipe=self._native(launch, open_size))

    # How many hosts.

    def _nodes(self) -> tuple[int, int | None]:
        recipe = self.recipe
        low, high = getattr(recipe, "min_nodes", 1), getattr(recipe, "max_nodes", None)
        mode = getattr(recipe, "mode", None)
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

    # The command.

    def _values(self, open_size: bool) -> dict[str, Any]:
        values = {**RUNTIME_DEFAULTS, **self.recipe.defaults}
        if self.nodes is not None and open_size:
            others = values.get("pipeline_parallel")
            others = others if isinstance(others, int) and others > 0 else 1
            values["tensor_parallel"] = max(self.nodes // others, 1)
        values |= self.overrides
        if self.recipe.model is not None:
            values["model"] = self.recipe.model
            values.setdefault("served_model_name", self.recipe.model)
        return values

    def _words(self, values: Mapping[str, Any]) -> list[shell_words.Word]:
        """The words of the command; [] when there is none, or none that can be read."""
        if self.recipe.command is None:
            return []
        command, blanks = placeholders.repair(self.recipe.command)
        for line in blanks:
            where = self.document.where_in(("command",), line)
            found, remedy = "a blank behind the backslash", "remove the blank (it is repaired here)"
            self.findings.append(
                warning("trailing-blank", where, found, "the backslash as the line's end", remedy)
            )
        expanded = placeholders.expand(command, values)
        self._report_names(expanded, values)
        try:
            return shell_words.split(expanded.text)
        except shell_words.ShellError as mistake:
            where = self.document.where_in(("command",), mistake.line)
            self.findings.append(error("command", where, str(mistake), "a quote for each quote", "close it"))
            return []

    def _report_names(self, expanded: placeholders.Expanded, values: Mapping[str, Any]) -> None:
        for name, line in dict.fromkeys(expanded.unknown):
            where = self.document.where_in(("command",), line)
            near = get_close_matches(name, [str(key) for key in values], 1)
            remedy = f"did you mean {{{near[0]}}}?" if near else f"add {name!r} to defaults"
            self.findings.append(
                error("placeholder", where, f"{{{name}}} without a value", "a key of defaults", remedy)
            )
        for name, line in dict.fromkeys(expanded.endless):
            where = self.document.where_in(("command",), line)
            found = f"{{{name}}}, whose value holds {{{name}}} again"
            self.findings.append(error("placeholder", where, found, "values that end", "correct defaults"))

    def _runtime(self, words: list[shell_words.Word]) -> tuple[str, flags.Flags | None]:
        """The engine, and the flags that vLLM is started with in the command (None: there is none)."""
        asked = (getattr(self.recipe, "runtime", None) or "").strip().lower()
        if asked and asked not in RUNTIMES:
            near = get_close_matches(asked, RUNTIMES, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "use one of these"
            self.findings.append(
                error("runtime", self.where("runtime"), f"runtime {asked!r}", ", ".join(RUNTIMES), remedy)
            )
        backend = self.recipe.defaults.get("distributed_executor_backend")
        command = self._one_command(words)
        started = flags.runtime([word.text for word in command])
        # `runtime: vllm` is what people leave standing; the command says what is started.
        runtime = started if started and asked in ("", "vllm") else asked or "vllm"
        if command and started is None:
            where = self.document.where_in(("command",), command[0].line)
            found = f"a command that starts with {command[0].text!r}"
            self.findings.append(unsupported("command", where, found, "`vllm serve …`", "write it so"))
        parsed = None
        if started == "vllm" and runtime in VLLM_KINDS:
            skip = 2 if command[1].text == "serve" else 3
            parsed = flags.parse(command[skip:])
            self._report_flags(parsed, command[skip:])
            backend = parsed.options.get("distributed_executor_backend", backend)
            for name, line in parsed.lines.items():
                self.lines[f"options.{name}"] = self.document.where_in(("command",), line)
        self.ray = runtime in VLLM_KINDS and (backend == "ray" or runtime == "vllm-ray")
        if runtime == "vllm":
            image_is_made = self.version == "1" or self.recipe.build_args or self.recipe.mods
            runtime = "eugr-vllm" if image_is_made else "vllm-ray" if self.ray else "vllm-distributed"
        return runtime, parsed

    def _one_command(self, words: list[shell_words.Word]) -> list[shell_words.Word]:
        """The command that starts the engine, without what stands before it. Whatever else a shell would do
        is told."""
        commands: list[list[shell_words.Word]] = [[]]
        operators = []
        for word in words:
            if word.operator:
                operators.append(word)
                commands.append([])
            else:
                commands[-1].append(word)
        commands = [command for command in commands if command]
        if not commands:
            return []
        if operators:
            where = self.document.where_in(("command",), operators[0].line)
            shown = "a line's end without a backslash" if operators[0].text == "\n" else operators[0].text
            remedy = "we start the engine without a shell; put the rest into the image"
            self.findings.append(
                unsupported("shell", where, f"more than one command ({shown})", "one command", remedy)
            )
        for command in commands:
            while command and command[0].text == "exec":
                del command[0]
        chosen = next(
            (command for command in commands if flags.runtime([word.text for word in command])), commands[0]
        )
        for word in chosen:
            for name in dict.fromkeys(word.variables):
                where = self.document.where_in(("command",), word.line)
                remedy = "write the value, or a {name} from defaults"
                self.findings.append(
                    unsupported("shell", where, f"${name} in the command", "no shell variables", remedy)
                )
        return chosen

    def _report_flags(self, parsed: flags.Flags, words: Sequence[shell_words.Word]) -> None:
        def where(line: int) -> str:
            return self.document.where_in(("command",), line)

        for twice in parsed.twice:
            first = "" if twice.first == twice.again else f" (as {twice.first})"
            place = where(twice.first_line).rpartition(":")[2]
            found = f"{twice.again} again, first in line {place}{first}"
            found += "" if twice.equal else ", with another value"
            says = warning if twice.equal else error
            self.findings.append(says("twice", where(twice.line), found, "each flag once", "remove one"))
        for text, line in parsed.strange:
            if flags.is_placeholder(text):
                continue  # told as a name without a value
            found = f"{text!r} in the command"
            remedy = "write it as --flag value"
            self.findings.append(unsupported("flag", where(line), found, "a long flag or its value", remedy))
        for flag, text, line in parsed.bad_json:
            shown = text if len(text) <= 60 else text[:57] + "…"
            remedy = "put it in single quotes, with double quotes inside"
            self.findings.append(error("json", where(line), f"{flag} {shown}", "a JSON object", remedy))

    def _from_defaults(self, values: Mapping[str, Any], runtime: str) -> dict[str, Any]:
        """The options of a recipe without a command: the runtime's flags are the keys of `defaults`."""
        if self.recipe.command is not None:
            return {}
        options: dict[str, Any] = {}
        for key, value in {**self.recipe.defaults, **self.overrides}.items():
            name = flags.canonical(key) if runtime != "atlas" else key
            if key == "tensor_parallel":
                value = values["tensor_parallel"]
                name = name if runtime != "atlas" else "tp_size"
            if isinstance(value, str):
                expanded = placeholders.expand(value, {k: v for k, v in values.items() if k != key})
                self._report_names(expanded, values)
                value = flags.scalar(expanded.text)
                if name in flags.SEVERAL:
                    value = [flags.scalar(word) for word in expanded.text.split()]
            if key == "ep_size" and runtime != "atlas":
                name, value = "enable_expert_parallel", isinstance(value, int) and value > 1
                if not value:
                    continue
            if name in options and key in self.recipe.defaults:
                where, found = self.where("defaults", key), f"defaults.{key}, which is {name} again"
                self.findings.append(error("twice", where, found, "each flag once", "remove one"))
            self.lines[f"options.{name}"] = self.where("defaults", key)
            if value is not None:
                options[name] = value
        return options

    def _model(
        self, parsed: flags.Flags | None, options: dict[str, Any], words: Sequence[shell_words.Word]
    ) -> str:
        in_command = (parsed.model if parsed else None) or options.pop("model", None)
        model = self.recipe.model or in_command
        if self.recipe.model and in_command and in_command != self.recipe.model:
            found = f"the model {in_command!r} in the command and {self.recipe.model!r} as model"
            self.findings.append(
                error("model", self.where("command"), found, "one of the two", "write {model} in the command")
            )
        if model is None:
            for flag in ("--model-path", "--model", "-m"):
                for at, word in enumerate(words[:-1]):
                    model = words[at + 1].text if word.text == flag and model is None else model
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

    # What we cannot do.

    def _not_ours(self, runtime: str) -> None:
        recipe = self.recipe
        if runtime not in RUNTIMES:
            pass  # told as a mistake
        elif runtime not in VLLM_KINDS:
            key = "runtime" if getattr(recipe, "runtime", None) else "command"
            remedy = "deploy does not start it" + (" yet" if runtime == "atlas" else "")
            self.findings.append(
                unsupported("runtime", self.where(key), f"runtime {runtime}", "vllm", remedy)
            )
        elif self.ray:
            where = self.lines.get("options.distributed_executor_backend", self.where("defaults"))
            remedy = "it is left out: one process a host, without Ray"
            self.findings.append(
                warning("ray", where, "distributed_executor_backend ray", "none, or mp", remedy)
            )
        for mod in recipe.mods:
            where = self.where("mods")
            remedy = "we have none; put what it does into the image"
            self.findings.append(unsupported("mod", where, f"mod {mod!r}", "no mods", remedy))
        if recipe.build_args:
            found = f"build_args {' '.join(recipe.build_args)}"
            remedy = "name an image that is built so, by digest"
            self.findings.append(
                unsupported("build-args", self.where("build_args"), found, "a ready image", remedy)
            )
        if not recipe.container:
            remedy = "name the image that the runtime shall use"
            self.findings.append(
                unsupported("image", self.where("runtime"), "no container", "an image", remedy)
            )
        if isinstance(recipe, RecipeV2):
            self._not_ours_v2(recipe)

    def _not_ours_v2(self, recipe: RecipeV2) -> None:
        for key in ("pre_exec", "post_exec", "post_commands"):
            if hooks := getattr(recipe, key):
                first = hooks[0] if isinstance(hooks[0], str) else f"copy {hooks[0]['copy']}"
                shown = " ".join(str(first).split())
                shown = shown if len(shown) <= 50 else shown[:49] + "…"
                more = f" and {len(hooks) - 1} more" if len(hooks) > 1 else ""
                remedy = "we run no hooks; put what it does into the image"
                self.findings.append(
                    unsupported("hook", self.where(key), f"{key} ({shown}{more})", "no hooks", remedy)
                )
        if recipe.stop_after_post:
            found, remedy = "stop_after_post", "a server is kept running; remove it"
            self.findings.append(
                unsupported("hook", self.where("stop_after_post"), found, "a service", remedy)
            )
        if recipe.builder:
            remedy = "name an image that is built so, by digest"
            self.findings.append(
                unsupported(
                    "builder", self.where("builder"), f"builder {recipe.builder}", "a ready image", remedy
                )
            )
        for key, home in (
            ("runtime_version", "container"),
            ("distribution_config", "the inventory"),
            ("runtime_config", "defaults"),
        ):
            if getattr(recipe, key):
                self.findings.append(
                    warning("ignored", self.where(key), key, f"it from {home}", "it has no effect here")
                )
        self._executor(recipe)

    def _executor(self, recipe: RecipeV2) -> None:
        config = recipe.executor_config
        if config is None:
            return
        usual = {
            "auto_remove": (True,),
            "restart_policy": ("no", "always", "on-failure", "unless-stopped"),
            "gpus": ("all",),
            "ipc": ("host",),
            "network": ("host",),
            "entrypoint": ("",),
        }
        for key, fine in usual.items():
            value = getattr(config, key)
            if value is not None and value not in fine:
                where = self.where("executor_config", key)
                found = f"executor_config.{key} {value!r}"
                wanted = repr(fine[0])
                self.findings.append(
                    unsupported("executor", where, found, wanted, "containers are started so here; remove it")
                )

    # The recipe that a run gets.

    def _native(self, launch: Launch, open_size: bool) -> Recipe | None:
        if launch.runtime not in (*VLLM_KINDS, "atlas") or not launch.model:
            return None
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", launch.model):
            found = f"the model {launch.model!r}"
            remedy = "name the repository; files of a host are not staged"
            if ":" in launch.model:
                remedy = "one file of a repository (GGUF) is not staged"
            self.findings.append(
                unsupported("model", self.where("model"), found, "a hub id, ORGANISATION/NAME", remedy)
            )
            return None
        options = dict(launch.options)
        if options.get("distributed_executor_backend") == "ray":
            del options["distributed_executor_backend"]
        if open_size:
            options.pop("tensor_parallel_size", None)
        revision = launch.revision
        pinned = revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None
        value = {
            "name": launch.name,
            "description": " ".join((self.recipe.description or "").split()),
            "model": launch.model,
            "served_model_name": None if launch.served_name == launch.model else launch.served_name,
            "min_nodes": launch.min_nodes,
            "max_nodes": launch.max_nodes,
            "checkpoint": {"source": {"repo": launch.model, "revision": revision if pinned else UNVERIFIED}},
            "image": {"base": launch.image or UNVERIFIED},
            "serve": {
                "engine": "atlas" if launch.runtime == "atlas" else "vllm",
                "port": launch.port,
                "options": options,
                "env": launch.env,
                **self._container(),
            },
            "budget": self._budget(launch),
            **self._benchmark(),
            "metadata": launch.metadata,
        }
        try:
            return Recipe.model_validate(value)
        except ValidationError as mistake:
            for detail in mistake.errors():
                wanted = detail.get("ctx", {}).get("wanted") or detail["msg"]
                self._refused(detail["loc"], detail["input"], str(wanted))
            return None

    def _refused(self, loc: tuple[int | str, ...], value: Any, wanted: str) -> None:
        name = str(loc[2]) if loc[:2] in (("serve", "options"), ("serve", "env")) and len(loc) > 2 else ""
        where = self.lines.get(f"options.{name}", self.lines["options"])
        if loc[:2] == ("serve", "env"):
            where = self.where("env", name)
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
        found = f"{name or '.'.join(map(str, loc))} = {shown}"
        if loc[-1] == "[key]":
            found = f"the name {name!r}"
        self.findings.append(error("type", where, found, wanted, "correct it"))

    def _container(self) -> dict[str, Any]:
        config = getattr(self.recipe, "executor_config", None)
        if config is None:
            return {}
        extra = ["--privileged"] if config.privileged else []
        extra += ["--user", config.user] if config.user else []
        size = config.shm_size.lower().removesuffix("b") if config.shm_size else None
        return {"extra_docker_args": extra, "shm_size": size}

    def _budget(self, launch: Launch) -> dict[str, float]:
        """What the format does not say, worked out: memory from what the engine may take, disk from the size
        of the model where `metadata.model_vram` (GB) has it, else from what fits into the memory."""
        share = launch.options.get("gpu_memory_utilization")
        share = share if isinstance(share, float) and 0 < share <= 1 else DEFAULT_GPU_MEMORY_UTILIZATION
        memory = share * UNIFIED_MEMORY_GB * GB / GIB
        size = launch.metadata.get("model_vram")
        if not isinstance(size, (int, float)) or isinstance(size, bool) or size <= 0:
            size = UNIFIED_MEMORY_GB * launch.min_nodes
        return {"memory_gib": round(memory, 1), "disk_gib": round(size * GB / GIB + IMAGE_GIB, 1)}

    def _benchmark(self) -> dict[str, Any]:
        """A llama-benchy profile as far as ours has the same: streams, and the longest answer."""
        profile = getattr(self.recipe, "benchmark", None) or {}
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


def _only(options: Mapping[str, Any], low: int, high: int | None) -> tuple[int, int | None]:
    """A tensor parallel size that is written out means that many hosts, where the limits allow them."""
    size = options.get("tensor_parallel_size")
    if not isinstance(size, int) or size < 1:
        return low, high
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        other = options.get(name)
        size *= other if isinstance(other, int) and other > 0 else 1
    return (size, size) if low <= size <= (high or size) else (low, high)


def _numbers(value: Any) -> list[int]:
    found = value if isinstance(value, list) else re.split(r"[\s,]+", str(value))
    return [int(item) for item in found if re.fullmatch(r"[1-9]\d*", str(item))]


def _slug(name: str) -> str:
    """A name of ours from any text: "Qwen3 8B (FP8)" → "qwen3-8b-fp8"; from a path, its file's name."""
    last = name.rpartition("/")[2] if name.endswith((".yaml", ".yml")) else name
    last = re.sub(r"\.ya?ml$", "", last)
    slug = re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")
    return slug if re.fullmatch(SLUG, slug) else "recipe"
