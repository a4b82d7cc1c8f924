"""What holds for all recipes: written out and read again they are the same, in each of the formats."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstack import conversion, flags, launch, placeholders, shell_words, vllm_options, yamlfile
from sparkstack.check import check
from sparkstack.community import ExecutorConfig, RecipeV1, RecipeV2
from sparkstack.native import Recipe
from sparkstack.recipe_cli import written
from sparkstack.recipe_fields import DERIVED_OPTIONS

CHARS = "ab Z9_.,/=-\"'\\{}$&#ü模"
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(_[a-z0-9]{1,5}){0,2}", fullmatch=True).filter(
    lambda name: (
        name not in DERIVED_OPTIONS
        and name not in flags.ALIASES
        and name not in flags.SEVERAL | vllm_options.REPEATED | vllm_options.SWITCHES
        and name not in vllm_options.JSON_LISTS | vllm_options.COMMA_LISTS
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


def parser_of_vllm() -> argparse.ArgumentParser:
    """Its lists, declared as vLLM declares them (see `sparkstack.vllm_options`)."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--middleware", action="append", default=[])
    for name in ("origins", "methods", "headers"):
        parser.add_argument(f"--allowed-{name}", type=json.loads)
    parser.add_argument("--lora-modules", nargs="+")
    parser.add_argument("--cudagraph-capture-sizes", nargs="+", type=int)
    parser.add_argument("--device-ids", type=lambda text: text.split(","))
    parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
    parser.add_argument("--disable-log-stats", action="store_true")
    return parser


PLAIN = st.from_regex(r"[a-z][a-zA-Z0-9_.:/=*]{0,6}", fullmatch=True)
LISTS = {
    "middleware": st.lists(PLAIN, min_size=1, max_size=3),
    "allowed_origins": st.lists(TEXTS.filter(survives), min_size=1, max_size=3),
    "allowed_methods": st.lists(TEXTS.filter(survives), min_size=1, max_size=3),
    "allowed_headers": st.lists(TEXTS.filter(survives), min_size=1, max_size=3),
    "lora_modules": st.lists(PLAIN, min_size=1, max_size=3),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 512), min_size=1, max_size=3),
    "device_ids": st.lists(st.sampled_from("0123"), min_size=1, max_size=2),
    "enable_lora": st.booleans(),
    "disable_log_stats": st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=LISTS))
def test_vllm_gets_the_lists_that_a_recipe_has(options: dict[str, Any]) -> None:
    Recipe.model_validate({**BASES["3"], "serve": {"options": options}})
    got = vars(parser_of_vllm().parse_args(launch.words_of("m", options)[3:]))
    assert {name: got[name] for name in options} == options
    assert all(not value for name, value in got.items() if name not in options)


@given(
    st.fixed_dictionaries({}, optional=LISTS).filter(braceless), st.sampled_from(["1", "2"]), st.booleans()
)
def test_a_command_s_lists_reach_vllm_as_its_author_wrote_them(
    options: dict[str, Any], version: str, equals: bool
) -> None:
    """Community command → options → words: vLLM reads the same from the author's words and from ours."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "middleware":
            words += [word for item in value for word in ([f"{flag}={item}"] if equals else [flag, item])]
        elif name.startswith("allowed_"):
            words += [f"{flag}={json.dumps(value)}"] if equals else [flag, json.dumps(value)]
        elif name == "device_ids":
            words += [flag, ",".join(value)]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value or name == "enable_lora":
            words += [flag if value else "--no-enable-lora"]
    command = shlex.join(["vllm", "serve", "a/b", *words])
    value = {"recipe_version": version, "name": "x", "model": "a/b", "container": "c", "command": command}
    found = read(value, version)
    assert found.launch is not None and found.launch.recipe is not None and not told(found), told(found)
    ours = launch.words_of("m", found.launch.recipe.serve.options)[3:]
    assert parser_of_vllm().parse_args(ours) == parser_of_vllm().parse_args(words)


def test_short_flags_are_vllm_s_long_ones_and_ray_is_left_out() -> None:
    command = "vllm serve a/b -dp 2 -dpb ray -dpl 1 -ep -pcp 2 -dcp 2 -asc 2 -n 2 -r 0 -ac.backend FLASHINFER"
    found = read({"model": "a/b", "container": "c", "command": command}, "2")
    assert found.launch is not None and found.launch.recipe is not None
    assert found.launch.recipe.serve.options == {
        "data_parallel_size": 2,
        "data_parallel_size_local": 1,
        "enable_expert_parallel": True,
        "prefill_context_parallel_size": 2,
        "decode_context_parallel_size": 2,
        "api_server_count": 2,
        "attention_config": {"backend": "FLASHINFER"},
    }


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


# Whatever stands in a file, `check` has findings, never a traceback.

BASES: dict[str, dict[str, Any]] = {
    "1": {"name": "x", "model": "a/b", "container": "c:1", "command": "vllm serve {model} --port {port}"},
    "2": {"model": "a/b", "container": "c:1"},
    "3": {
        "name": "x",
        "model": "a/b",
        "checkpoint": {"source": {"repo": "a/b", "revision": "0" * 40}},
        "image": {"base": "c"},
        "serve": {},
        "budget": {"memory_gib": 1, "disk_gib": 1},
    },
}
KEYS = sorted({*RecipeV1.model_fields, *RecipeV2.model_fields, *Recipe.model_fields})
INNER = sorted(
    {"tensor_parallel", "port", "source", "options", "env", "plugin", "reshard", "model_vram", "streams"}
    | set(ExecutorConfig.model_fields)
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**19) | st.floats() | st.dates() | st.sampled_from(
        ["", "two", "8B", "vllm serve 'x", "vllm serve m -- a --tp 2 -O3", "{a} $B {{x}}", "--", "auto"]
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(INNER), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from("123"),
    st.dictionaries(st.sampled_from(KEYS), ANY, max_size=6),
    st.sampled_from([0, 2]),
)
def test_check_never_raises(tmp_path: Path, version: str, value: dict[str, Any], nodes: int) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**BASES[version], **value, "recipe_version": version}))
    found = check(path, nodes or None)
    assert found.verdict() and all(str(finding) for finding in found.findings)


@pytest.mark.parametrize(
    "foreign",
    [
        {"executor_config": {"privileged": True}},
        {"min_nodes": "two"},
        {"max_nodes": [1]},
        {"benchmark": 3},
        {"metadata": 1},
        {"model_revision": 5},
        {"mode": 7},
        {"runtime": 3},
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_key_of_the_other_format_is_told_and_has_no_effect(tmp_path: Path, foreign: dict[str, Any]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**BASES["1"], "recipe_version": "1"}))
    plain = check(path)
    path.write_text(yaml.safe_dump({**BASES["1"], "recipe_version": "1", **foreign}))
    found = check(path)
    (key,) = foreign
    assert [one.code for one in found.findings].count("unknown-key") == 1
    assert plain.launch is not None and found.launch is not None
    assert found.launch.recipe == plain.launch.recipe
    assert any(f"unknown key {key!r}" in str(one) for one in found.findings)
