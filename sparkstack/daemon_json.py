"""Docker's daemon.json is shared property: say what we want in it, leave what others put there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from sparkstack.errors import Problem, SparkstackError

PATH = "/etc/docker/daemon.json"


def merge(current: str | None, wanted: Mapping[str, Any]) -> str:
    """The text that daemon.json shall have.

    `current` is the file's text, None when there is no file. Keys that `wanted` does not name stay, in their
    order; objects are merged key by key; everything else, lists included, becomes exactly what is declared.
    When the file says all that already, it is returned as it is, byte for byte, so nothing is restarted for
    a blank. Errors: SparkstackError for text that is no JSON object, with line and column where it breaks.
    """
    found: dict[str, Any] = {}
    if current is not None and current.strip():
        found = _parse(current)
    merged = _merged(found, wanted)
    if current is not None and current.strip() and _same(found, merged):
        return current
    return json.dumps(merged, indent=4, ensure_ascii=False) + "\n"


def _merged(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(found)
    for key, value in wanted.items():
        there = result.get(key)
        if isinstance(value, Mapping):
            value = _merged(there if isinstance(there, Mapping) else {}, value)
        elif isinstance(value, tuple):
            value = list(value)
        result[key] = value
    return result


def _same(one: Any, other: Any) -> bool:
    # Not `==`: Python holds True and 1 for equal, Docker does not.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"{PATH}:{error.lineno}:{error.colno}"
        found = f"invalid JSON ({error.msg})"
        raise SparkstackError(Problem(where, found, "valid JSON", "correct or remove the file")) from error
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), f"{value}")
        raise SparkstackError(Problem(PATH, kind, "a JSON object", "correct or remove the file"))
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        # Rewriting the file would drop one of the two without a word.
        raise SparkstackError(Problem(PATH, f"key {twice!r} twice", "each key once", "remove one of them"))
    return value


def _constant(name: str) -> NoReturn:
    raise SparkstackError(Problem(PATH, name, "a number that JSON has", "correct or remove the file"))
