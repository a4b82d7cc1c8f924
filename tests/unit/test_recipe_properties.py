"""What holds for all recipes: written out and read again they are the same, in each of the formats."""

from __future__ import annotations

import json
import shlex
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import conversion, flags, launch, placeholders, shell_words, yamlfile
from sparkstack.native import Recipe
from sparkstack.recipe_cli import written
from sparkstack.recipe_fields import DERIVED_OPTIONS

CHARS = "ab Z9_.,/=-\"'\\{}$&#ü模"
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(_[a-z0-9]{1,5}){0,2}", fullmatch=True).filter(
    lambda name: (
        name not in DERIVED_OPTIONS
        and name not in flags.ALIASES
        and name not in flags.SEVERAL | flags.REPEATABLE
        and not name.startswith("no_")
        and name not in ("api_key", "hf_token", "ep_size")
    )
)
TEXTS = st.text(CHARS, min_size=1, max_size=8).filter(lambda text: text.strip() == text)
NUMBERS = st.integers(-(10**6), 10**6) | st.floats(0.001, 1000, allow_nan=False).map(lambda x: round(x, 3))
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(CHARS, max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text("abc_", min_size=1, max_size=4), JSON, min_size=1, max_size=3)


def survives(text: str) -> bool:
    """Can a command line hold this text so that it comes back as text?"""
    return isinstance(flags.scalar(text), str) and not text.startswith(("-", "{"))


VALUES = (
    st.booleans()
    | NUMBERS
    | TEXTS.filter(survives)
    | OBJECTS
    | st.lists(TEXTS.filter(survives), min_size=2, max_size=3)
)
OPTIONS = st.dictionaries(NAMES, VALUES, max_size=5)
ENV = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True), st.text(CHARS, max_size=8), max_size=3
)
REVISIONS = st.text("0123456789abcdef", min_size=40, max_size=40) | st.just("unverified")
TRANSFORMS = st.lists(
    st.sampled_from(
        [
            {"register_mtp": {}},
            {"reshard": {"max_shard_bytes": "4GB"}},
            {"draft_vocab": {"output": "nvfp4"}},
            {"turboquant_metadata": {"recipe": "turboquant35"}},
            {"fp8_dense": {"tensors": ["*.weight"], "expect_tensors": 300}},
            {"ngram_table": {}},
            {
                "graft_fp8": {
                    "donor": {"repo": "a/b", "revision": "unverified"},
                    "tensors": ["*"],
                    "expect_tensors": 1,
                }
            },
        ]
    ),
    max_size=3,
)


@st.composite
def natives(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.integers(1, 4))
    return {
        "name": draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True)),
        "description": draw(st.text(CHARS, max_size=10)),
        "model": "org/model",
        "min_nodes": low,
        "max_nodes": draw(st.none() | st.integers(low, 8)),
        "checkpoint": {
            "source": {"repo": "org/model", "revision": draw(REVISIONS)},
            "transforms": draw(TRANSFORMS),
        },
        "image": {
            "base": draw(TEXTS),
            "plugin": draw(st.dictionaries(st.sampled_from(["int8_lm_head", "hybrid"]), st.booleans())),
        },
        "serve": {"options": draw(OPTIONS), "env": draw(ENV), "port": draw(st.integers(1, 65535))},
        "budget": {"memory_gib": draw(st.floats(0.5, 128)), "disk_gib": draw(st.floats(0.5, 4000))},
        "expect": {"decode_tok_s": draw(st.dictionaries(st.just(1), st.just({"min": 1.5}), max_size=1))},
        "accept": draw(st.dictionaries(st.just("mtp-nvfp4"), TEXTS, max_size=1)),
        "metadata": draw(OBJECTS),
    }  # fmt: skip


@given(natives())
def test_a_native_recipe_written_out_is_the_same(value: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(value)
    text = yaml.safe_dump(written(recipe), allow_unicode=True, sort_keys=False)
    again = Recipe.model_validate(yamlfile.parse(text, "r.yaml").value)
    assert again == recipe


def read(value: dict[str, Any], version: str) -> conversion.Converted:
    text = yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=10**6)
    return conversion.convert(yamlfile.parse(text, "r.yaml"), version)


def told(found: conversion.Converted) -> list[str]:
    return [str(finding) for finding in found.findings]


def braceless(value: Any) -> bool:
    """Has no text a brace? Those of JSON objects are in pairs; a brace alone cannot be told from half of a
    doubled one, nor `{name}` in a text from a placeholder."""
    return not any(mark in text for text in _texts(value) for mark in "{}")


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


@given(OPTIONS.filter(braceless), st.sampled_from(["1", "2"]), st.booleans())
def test_a_command_says_what_its_options_said(options: dict[str, Any], version: str, doubled: bool) -> None:
    words = [shlex.quote(word) for word in launch.words_of("org/model", options)]
    command = " \\\n  ".join(words)
    if doubled:
        command = command.replace("{", "{{").replace("}", "}}")
    value = {
        "recipe_version": version,
        "name": "x",
        "model": "org/model",
        "container": "c",
        "command": command,
    }
    found = read(value, version)
    assert found.launch is not None and not told(found), told(found)
    assert found.launch.options == options
    assert found.launch.recipe is not None
    assert found.launch.recipe.serve.options == options


@given(OBJECTS)
def test_json_is_the_same_with_single_and_doubled_braces(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    if braceless(value):
        assert json.loads(placeholders.expand(text, {}).text) == value
        doubled = text.replace("{", "{{").replace("}", "}}")
        assert json.loads(placeholders.expand(doubled, {}).text) == value


@given(OPTIONS.filter(braceless))
def test_defaults_without_a_command_are_the_options(options: dict[str, Any]) -> None:
    found = read({"model": "org/model", "container": "c", "defaults": options}, "2")
    assert found.launch is not None and not told(found), told(found)
    assert found.launch.options == options


@given(st.lists(st.text(CHARS + "\n\t", max_size=8), max_size=6))
def test_shell_words_are_what_was_quoted(words: list[str]) -> None:
    text = " ".join(shlex.quote(word) for word in words)
    found = shell_words.split(text)
    assert [word.text for word in found] == words
    assert not any(word.operator or word.variables for word in found)


@given(st.text("ab {}$'\"\\\n#&|-=", max_size=30))
def test_no_text_breaks_the_reading_of_a_command(command: str) -> None:
    value = {"recipe_version": "1", "name": "x", "model": "a/b", "container": "c", "command": command or " "}
    found = read(value, "1")
    assert found.launch is not None
    read({**value, "command": f"vllm serve a/b {command}"}, "1")


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "model",
                "command",
                "defaults",
                "env",
                "mods",
                "min_nodes",
                "metadata",
                "container",
                "executor_config",
                "pre_exec",
                "benchmark",
                "runtime",
                "name",
            ]
        ),
        JSON,
        max_size=6,
    ),
    st.sampled_from(["1", "2"]),
)
def test_no_values_break_the_reading_of_a_recipe(value: dict[str, Any], version: str) -> None:
    found = read(value, version)
    assert found.launch is not None or found.findings
