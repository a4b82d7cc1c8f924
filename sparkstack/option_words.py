"""Options, which are data, as words of a command: the one rule for every engine.

true is the bare flag, null nothing, text or a number one word behind its flag, an object one word of JSON, a
list as many words behind one flag. false is left out, since most engines have no flag that denies. vLLM has
such flags (`--no-…`), and lists of other kinds; which they are is data of `sparkstack.vllm_options`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkstack import vllm_options
from sparkstack.recipe_fields import argument_name


def words(options: Mapping[str, Any]) -> list[str]:
    """The flags of any engine but vLLM."""
    return [word for name, value in options.items() for word in _words(argument_name(name), value)]


def vllm_words(options: Mapping[str, Any]) -> list[str]:
    """The flags of `vllm serve`."""
    return [word for name, value in options.items() for word in _vllm_words(name, value)]


def _vllm_words(name: str, value: Any) -> list[str]:
    flag = argument_name(name)
    if value is False and name not in vllm_options.SWITCHES:
        return ["--no-" + flag.removeprefix("--")]
    if isinstance(value, list):
        if name in vllm_options.REPEATED:
            return [word for item in value for word in _words(flag, item)]
        if name in vllm_options.JSON_LISTS:
            return _words(flag, _json(value))
        if name in vllm_options.COMMA_LISTS:
            return _words(flag, ",".join(map(_text, value)))
    return _words(flag, value)


def _words(flag: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *map(_text, value)]
    text = _text(value)
    # The parser would take a value that starts with a dash for the next option.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    return _json(value) if isinstance(value, dict) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
