"""Flags behind `--` on the command line, which people append to what a recipe starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparkstack import engine_command, flags, native_command
from sparkstack.description import Launch
from sparkstack.errors import Problem, SparkstackError
from sparkstack.native import Recipe
from sparkstack.recipe_fields import DERIVED_OPTIONS, argument_name
from sparkstack.shell_words import Word


def with_flags(wish: Launch, extra: Sequence[str]) -> Launch:
    """What `wish` starts with these flags at the end: they win over the recipe's own.

    Errors: SparkstackError for what is no flag, and for one that is worked out elsewhere.
    """
    if wish.recipe is None:  # an engine that we do not start: the author's command, and more of it
        return replace(wish, command=(*wish.command, *extra))
    if wish.recipe.serve.engine == "command":
        return _behind_command(wish, wish.recipe, extra)
    parsed = flags.parse([Word(text, 0) for text in extra])
    problems = [
        Problem("--", repr(text), "the engine's flags", "write --flag value")
        for text in [*([parsed.model] if parsed.model else []), *(text for text, _ in parsed.strange)]
    ]
    options = dict(parsed.options)
    port = options.pop("port", wish.recipe.serve.port)
    served = options.pop("served_model_name", wish.recipe.served_model_name)
    problems += [
        Problem("--", f"the flag {argument_name(name)}", f"it only from {DERIVED_OPTIONS[name]}", "remove it")
        for name in options
        if name in DERIVED_OPTIONS
    ]
    if not isinstance(port, int) or not 1 <= port <= 65535:
        problems.append(Problem("--", f"port {port!r}", "1 to 65535", "correct it"))
    if problems:
        raise SparkstackError(problems)
    merged = {**wish.recipe.serve.options, **options}
    serve = wish.recipe.serve.model_copy(update={"options": merged, "port": port})
    recipe = wish.recipe.model_copy(update={"serve": serve, "served_model_name": served})
    return replace(wish, recipe=recipe, options={**wish.options, **options}, port=port)


def _behind_command(wish: Launch, recipe: Recipe, extra: Sequence[str]) -> Launch:
    """Whatever an engine takes: the words stand behind those of its command."""
    command = recipe.serve.command
    fixed = [word for word in extra if word.partition("=")[0] in (*native_command.HOST, *native_command.PORT)]
    if fixed or command is None:
        raise SparkstackError(
            [Problem("--", f"the flag {word}", "it only from the recipe and group_data", "remove it")
             for word in fixed]
        )  # fmt: skip
    words = [*engine_command.words(command), *map(native_command.escaped, extra)]
    serve = recipe.serve.model_copy(update={"command": words})
    return replace(wish, recipe=recipe.model_copy(update={"serve": serve}))
