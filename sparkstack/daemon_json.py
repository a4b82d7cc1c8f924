"""Docker's daemon.json is shared property: say what we want in it, leave what others put there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
    return _written(merged)


def unmerge(current: str | None, ours: Mapping[str, Any], before: str | None) -> str | None:
    """The text that daemon.json shall have once our settings are taken back; None: no file.

    `ours` is what `merge` put in (of several runs: `combined`), `before` the text from before the first of
    them. A value that is still ours becomes what it was, or goes where there was none; of a list that others
    changed since, our members go and those that we had displaced come back; any other value that others
    changed since stays theirs. `before` comes back byte for byte where that makes it the same, and `current`
    where nothing of ours is in it. A file that others removed stays away.
    Errors: SparkstackError for text that is no JSON object.
    """
    if current is None:
        return None
    found = _parse(current) if current.strip() else {}
    old = _parse(before) if before is not None and before.strip() else {}
    rest = _unmerged(found, ours, old)
    if before is not None and _same(rest, old):
        return before
    if before is None and not rest:
        return None
    return current if _same(rest, found) else _written(rest)


def dropped(ours: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What we had put in (`ours`) and do not want any more: keys, and keys inside of objects."""
    gone: dict[str, Any] = {}
    for key, value in ours.items():
        if key not in wanted:
            gone[key] = value
        elif (
            isinstance(value, Mapping)
            and isinstance(wanted[key], Mapping)
            and (inner := dropped(value, wanted[key]))
        ):
            gone[key] = inner
    return gone


def combined(settings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All that several runs put in, in their order: what a later one does not name stayed from an earlier."""
    ours: dict[str, Any] = {}
    for one in settings:
        ours = _merged(ours, one)
    return ours


def _unmerged(found: Mapping[str, Any], ours: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(found)
    for key, value in ours.items():
        if key not in found:
            continue
        there, was = found[key], old.get(key)
        if _same(there, value):
            back: Any = was
        elif isinstance(value, Mapping) and isinstance(there, Mapping):
            back = _unmerged(there, value, was if isinstance(was, Mapping) else {})
            if not back and key in old and not isinstance(was, Mapping):
                back = was  # an object of ours had displaced a plain value
        elif isinstance(value, list | tuple) and isinstance(there, list):
            before = was if isinstance(was, list) else []
            displaced = [x for x in before if not _within(x, value) and not _within(x, there)]
            back = displaced + [x for x in there if _within(x, before) or not _within(x, value)]
        else:
            continue
        result[key] = back
        if key not in old and back in (None, {}, []):
            del result[key]
    return result


def _within(value: Any, values: Sequence[Any]) -> bool:
    return any(_same(value, other) for other in values)


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


def _written(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, indent=4, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may name halves of characters ("\\ud800") that UTF-8 cannot write
        text = json.dumps(value, indent=4) + "\n"
    return text


def _parse(text: str) -> dict[str, Any]:
    remedy = "correct or remove the file"
    if text.startswith("\ufeff"):
        found = "a byte order mark before the JSON"
        raise SparkstackError(Problem(f"{PATH}:1:1", found, "UTF-8 without one", "save the file without it"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line, column = _place(text, error.start)
        found = f"a byte that is not UTF-8 (0x{ord(text[error.start]) & 0xFF:02x})"
        raise SparkstackError(Problem(f"{PATH}:{line}:{column}", found, "UTF-8", remedy)) from error
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"{PATH}:{error.lineno}:{error.colno}"
        found = f"invalid JSON ({error.msg})"
        raise SparkstackError(Problem(where, found, "valid JSON", remedy)) from error
    except (RecursionError, ValueError) as error:  # more brackets, or a longer number, than anybody means
        found = "JSON that is nested too deep, or a number that is too long"
        raise SparkstackError(Problem(PATH, found, "settings of Docker", remedy)) from error
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), f"{value}")
        raise SparkstackError(Problem(PATH, kind, "a JSON object", "correct or remove the file"))
    return value


def _place(text: str, at: int) -> tuple[int, int]:
    """Line and column of a character, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


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
