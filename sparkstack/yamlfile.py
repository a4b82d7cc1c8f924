"""YAML files that remember their lines, so that a complaint about a value can say where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparkstack.errors import Problem, SparkstackError

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A file's value, and the line (from 1) of every key and list item by its path from the root.

    `blocks` has the first line of each text that is written as a block (`|`): the lines of such a text are
    lines of the file.
    """

    path: str
    value: dict[str, Any]
    lines: dict[tuple[str, ...], int]
    blocks: dict[tuple[str, ...], int] = field(default_factory=dict)

    def where(self, loc: Loc) -> str:
        """`file:line` of the deepest part of `loc` that is in the file (a missing key: its parent)."""
        # Keys are looked up by their text: the key 1 and an index 1 never stand in the same place.
        path = tuple(map(str, loc))
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines.get(path, 1)}"

    def where_in(self, loc: Loc, line: int) -> str:
        """`file:line` of line `line` (from 0) of the text at `loc`; the key's line when it is no block."""
        first = self.blocks.get(tuple(map(str, loc)))
        return self.where(loc) if first is None else f"{self.path}:{first + line}"


def read(path: Path) -> Document:
    """The one mapping that the YAML file at `path` holds.

    Errors: SparkstackError for a file that cannot be read, wrong syntax, a key given twice, an alias that
    contains itself, or a file whose top is not a mapping.
    """
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise SparkstackError(Problem(name, found, "a readable YAML file", "check the path")) from error
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at offset {error.start}"
        raise SparkstackError(Problem(name, found, "UTF-8 text", "save the file as UTF-8")) from error
    return parse(text, name)


def parse(text: str, name: str) -> Document:
    """`read` for text that is at hand; `name` stands in the messages. Errors: as `read`."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[tuple[str, ...], int] = {}
        blocks: dict[tuple[str, ...], int] = {}
        problems: list[Problem] = []
        if node is not None:
            _walk(node, (), (), name, lines, blocks, problems)
        if problems:
            raise SparkstackError(problems)
        value = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise SparkstackError(_syntax(error, name)) from error
    except ValueError as error:  # a scalar that looks like a date or number and is none, as 2026-99-99
        raise SparkstackError(Problem(name, str(error), "a valid value", "put it in quotes")) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(value, dict):
        found = "an empty file" if value is None else f"a {type(value).__name__} at the top"
        raise SparkstackError(Problem(f"{name}:1", found, "keys with values", "see recipes/ for examples"))
    return Document(name, value, lines, blocks)


def _walk(
    node: yaml.Node,
    loc: tuple[str, ...],
    above: tuple[int, ...],
    name: str,
    lines: dict[tuple[str, ...], int],
    blocks: dict[tuple[str, ...], int],
    problems: list[Problem],
) -> None:
    if id(node) in above:
        where = f"{name}:{node.start_mark.line + 1}"
        problems.append(Problem(where, "an alias inside of what it names", "values that end", "remove it"))
        return
    above = (*above, id(node))
    if isinstance(node, yaml.ScalarNode):
        _encodable(node, name, problems)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the constructor complains about it, with its line
            _encodable(key, name, problems)
            line = key.start_mark.line + 1
            text = str(key.value)
            if text in seen:
                found = f"key {text!r} again (first in line {seen[text]})"
                problems.append(Problem(f"{name}:{line}", found, "each key once", "remove one"))
            seen[text] = line
            lines[(*loc, text)] = line
            _walk(value, (*loc, text), above, name, lines, blocks, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*loc, str(index))] = item.start_mark.line + 1
            _walk(item, (*loc, str(index)), above, name, lines, blocks, problems)
    elif isinstance(node, yaml.ScalarNode) and node.style == "|":
        blocks[loc] = node.start_mark.line + 2  # the line behind the bar


def _encodable(node: yaml.ScalarNode, name: str, problems: list[Problem]) -> None:
    r"""An escape can say half of a character ("\ud800"), which no file and no argument can hold."""
    try:
        str(node.value).encode()
    except UnicodeEncodeError:
        where, remedy = f"{name}:{node.start_mark.line + 1}", "write the character itself"
        problems.append(Problem(where, f"{node.value!a}, half of a character", "UTF-8 text", remedy))


def _syntax(error: yaml.YAMLError, name: str) -> Problem:
    where, found = name, str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        found = ", ".join(part for part in (error.context, error.problem) if part)
    return Problem(where, f"YAML that cannot be read ({found})", "valid YAML", "correct this line")
