"""What `sparkstack.vllm_options` and `sparkstack.flags` say of vLLM's flags, against vLLM's own parser of one
version: `./test --vllm` runs this file once a version, as test_dispatch.py."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
from typing import Any

import pytest

TREE = os.environ.get("VLLM_TREE")
if TREE is None:
    pytest.skip("VLLM_TREE is not set: ./test --vllm", allow_module_level=True)
sys.path.insert(0, TREE)

from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

from sparkstack import flags, launch, vllm_options  # noqa: E402


@pytest.fixture(scope="module")
def parser() -> Any:
    newer = importlib.util.find_spec("vllm.entrypoints.launchers")
    name = "vllm.entrypoints.launchers.cli_args" if newer else "vllm.entrypoints.openai.cli_args"
    return importlib.import_module(name).make_arg_parser(FlexibleArgumentParser())


def of_kind(parser: Any, kind: str) -> set[str]:
    return {action.dest for action in parser._actions if type(action).__name__ == kind}


def test_which_flags_only_switch_on_and_which_are_given_again(parser: Any) -> None:
    known = {action.dest for action in parser._actions}
    assert of_kind(parser, "_StoreTrueAction") == vllm_options.SWITCHES & known
    assert of_kind(parser, "_AppendAction") == vllm_options.REPEATED
    denied = of_kind(parser, "BooleanOptionalAction")
    assert {"enable_prefix_caching", "enforce_eager"} <= denied


def test_which_lists_are_one_word(parser: Any) -> None:
    known = {action.dest: action for action in parser._actions}
    assert {name for name, action in known.items() if action.type is json.loads} - {
        "default_chat_template_kwargs"
    } == vllm_options.JSON_LISTS
    for name in vllm_options.COMMA_LISTS & known.keys():
        assert known[name].nargs is None, name
    behind_one = {name for name, action in known.items() if action.nargs == "+"}
    ours = vllm_options.REPEATED | vllm_options.JSON_LISTS | vllm_options.COMMA_LISTS
    assert {"cudagraph_capture_sizes", "lora_modules", "served_model_name"} <= behind_one
    assert not behind_one & ours


def test_every_short_flag_is_known_by_its_long_name(parser: Any) -> None:
    short = {
        text[1:]: action.dest
        for action in parser._actions
        for text in action.option_strings
        if not text.startswith("--") and text != "-h"
    }
    assert {name: flags.ALIASES.get(name) for name in short} == short


def test_vllm_reads_what_we_write(parser: Any) -> None:
    options: dict[str, Any] = {
        "middleware": ["a.B", "c.D"],
        "allowed_origins": ["http://ui", "-"],
        "cudagraph_capture_sizes": [1, 2],
        "logits_processors": ["x", "y"],
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "hf_overrides": {"a": {"b": [1]}},
    }
    words = launch.words_of("m", options)[2:]
    got: argparse.Namespace = parser.parse_args(words)
    assert {name: getattr(got, name) for name in options} == options
