"""The launch command of a community recipe: placeholders, words of the shell, which engine, its flags.

A recipe without a command has its flags as keys of `defaults`; they are read here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from sparkstack import flags, placeholders, shell_words
from sparkstack.community import Community, of_format
from sparkstack.description import VLLM_KINDS
from sparkstack.findings import Finding, error, unsupported, warning
from sparkstack.yamlfile import Document, Loc

RUNTIMES = (*VLLM_KINDS, "sglang", "llama-cpp", "trtllm", "atlas")
RUNTIME_DEFAULTS = {"host": "0.0.0.0", "port": 8000, "tensor_parallel": 1, "pipeline_parallel": 1}
"""What a command's placeholders mean where neither the recipe nor the user says more."""


class LaunchCommand:
    """What one recipe starts. `words` are the command's ([] when there is none, or none that can be read),
    `parsed` the flags that vLLM is started with in it (None: it is not), `options` the flags as data."""

    def __init__(
        self,
        document: Document,
        version: str,
        recipe: Community,
        nodes: int | None,
        overrides: Mapping[str, Any],
        findings: list[Finding],
        lines: dict[str, str],
    ) -> None:
        """`findings` and `lines` (where each option stands) are added to."""
        self.document, self.version, self.recipe = document, version, recipe
        self.nodes, self.overrides, self.findings, self.lines = nodes, overrides, findings, lines
        self.open_size = recipe.command is None or "{tensor_parallel}" in recipe.command
        """Does the tensor parallel size follow from the number of hosts?"""
        self.ray = False
        self.chosen: list[shell_words.Word] = []
        """The words of the one command that starts the engine."""
        self.values = self._values()
        self.words = self._words(self.values)
        self.runtime, self.parsed = self._runtime(self.words)
        self.options = (
            dict(self.parsed.options) if self.parsed else self._from_defaults(self.values, self.runtime)
        )

    def where(self, *loc: str | int) -> str:
        return self.document.where(loc)

    def _values(self) -> dict[str, Any]:
        values = {**RUNTIME_DEFAULTS, **self.recipe.defaults}
        if self.nodes is not None and self.open_size:
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
        if ("command",) not in self.document.blocks:
            command, folded = placeholders.unfolded(command)
            if folded:
                found, wanted = "backslashes in a command whose lines are joined (>)", "`command: |`"
                remedy = "write it so, or leave them out (it is repaired here)"
                self.findings.append(warning("folded", self.where("command"), found, wanted, remedy))
        expanded = placeholders.expand(command, values)
        self._report_names(expanded, values)
        try:
            return shell_words.split(expanded.text)
        except shell_words.ShellError as mistake:
            where = self.document.where_in(("command",), mistake.line)
            self.findings.append(error("command", where, str(mistake), "a quote for each quote", "close it"))
            return []

    def _report_names(
        self, expanded: placeholders.Expanded, values: Mapping[str, Any], loc: Loc = ("command",)
    ) -> None:
        for name, line in dict.fromkeys(expanded.unknown):
            where = self.document.where_in(loc, line)
            near = get_close_matches(name, [str(key) for key in values], 1)
            remedy = f"did you mean {{{near[0]}}}?" if near else f"add {name!r} to defaults"
            self.findings.append(
                error("placeholder", where, f"{{{name}}} without a value", "a key of defaults", remedy)
            )
        for name, line in dict.fromkeys(expanded.endless):
            where = self.document.where_in(loc, line)
            found = f"{{{name}}}, whose value holds {{{name}}} again"
            self.findings.append(error("placeholder", where, found, "values that end", "correct defaults"))

    def _runtime(self, words: list[shell_words.Word]) -> tuple[str, flags.Flags | None]:
        """The engine, and the flags that vLLM is started with in the command (None: there is none)."""
        asked = (of_format(self.recipe, "runtime") or "").strip().lower()
        if asked and asked not in RUNTIMES:
            near = get_close_matches(asked, RUNTIMES, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "use one of these"
            self.findings.append(
                error("runtime", self.where("runtime"), f"runtime {asked!r}", ", ".join(RUNTIMES), remedy)
            )
        backend = self.recipe.defaults.get("distributed_executor_backend")
        command = self.chosen = self._one_command(words)
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
                expanded = placeholders.expand(value, values)
                self._report_names(expanded, values, ("defaults", key))
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
