"""`{name}` in a recipe's command: what becomes of it, and of the braces that are none.

Authors write JSON options in two ways: with doubled braces, as Python's format asks, and with single ones.
Both must come out as JSON. They can be told apart, because no JSON holds `{{`: what begins with a doubled
brace is doubled up to the brace that closes it, everything else stands as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Not `${NAME}`: that is the shell's.
_NAME = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TRAILING = re.compile(r"\\[ \t]+$", re.MULTILINE)
_FOLDED = re.compile(r"\\[ \t]+(?=-)")


@dataclass
class Expanded:
    """`unknown` and `endless` hold (name, line of the text counted from 0): names that have no value and
    stand as they did, and names whose value holds themselves."""

    text: str = ""
    unknown: list[tuple[str, int]] = field(default_factory=list)
    endless: list[tuple[str, int]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


def repair(text: str) -> tuple[str, list[int]]:
    """`text` without the blanks behind a line's last backslash, and the lines (from 0) that had some.

    To a shell such a backslash escapes the blank and the command ends there, without a word.
    """
    lines = [text.count("\n", 0, match.start()) for match in _TRAILING.finditer(text)]
    return _TRAILING.sub(r"\\", text), lines


def unfolded(text: str) -> tuple[str, bool]:
    """`text`, whose lines YAML has joined (`>`), without the backslashes that stood at their ends; and
    whether there were any. To a shell they escape the blank, and it becomes part of the flag behind it."""
    found = _FOLDED.subn(" ", text)
    return found[0], found[1] > 0


def expand(text: str, values: Mapping[str, Any]) -> Expanded:
    """`text` with each `{name}` replaced by its value, whose own placeholders are replaced as well."""
    result = Expanded()
    result.text = _expand(text, values, (), None, result)
    return result


def _expand(
    text: str, values: Mapping[str, Any], above: tuple[str, ...], line: int | None, result: Expanded
) -> str:
    if "{" not in text:
        return text
    parts: list[str] = []
    at = depth = 0  # depth: how many doubled braces are open
    while at < len(text):
        match = _NAME.match(text, at)
        # `{{name}}` is an escaped placeholder where the whole text is doubled; then the brace comes first.
        if match and not (text.startswith("{{", at)):
            here = text.count("\n", 0, at) if line is None else line
            parts.append(_value(match[1], values, above, here, result))
            at = match.end()
        elif text.startswith("{{", at) or (depth and text.startswith("}}", at)):
            depth += 1 if text[at] == "{" else -1
            parts.append(text[at])
            at += 2
        else:
            parts.append(text[at])
            at += 1
    return "".join(parts)


def _value(name: str, values: Mapping[str, Any], above: tuple[str, ...], line: int, result: Expanded) -> str:
    if name in above:
        result.endless.append((name, line))
        return "{" + name + "}"
    if name not in values:
        result.unknown.append((name, line))
        return "{" + name + "}"
    result.used.add(name)
    return _expand(as_text(values[name]), values, (*above, name), line, result)


def as_text(value: Any) -> str:
    """A value of YAML as it stands in a command: lists as several words, objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)
