"""A shell command as its words, each with its line, and with what only a shell could do to it.

Recipes of the community hold commands that a shell would run. We start the engine without one, so quotes are
taken off here, and whatever needs a shell (several commands, pipes, variables) is told to the caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_OPERATORS = ";&|<>()"


@dataclass(frozen=True)
class Word:
    """`line` counts from 0. `variables` are those that a shell would put in; `operator` is true for `&&`,
    `|` and the like and for a command's end; `bare_json` for a JSON object whose quotes a shell drops."""

    text: str
    line: int
    variables: tuple[str, ...] = ()
    operator: bool = False
    bare_json: bool = False


class ShellError(ValueError):
    """A quote that does not end; `line` (from 0) is where it begins."""

    def __init__(self, found: str, line: int) -> None:
        super().__init__(found)
        self.line = line


@dataclass
class _Open:
    """The word that is being read."""

    text: str
    line: int
    variables: list[str]
    json: bool


def split(text: str) -> list[Word]:
    """The words of `text` by the rules of a POSIX shell. Errors: ShellError."""
    words: list[Word] = []
    word: _Open | None = None
    at = line = 0

    def opened() -> _Open:
        nonlocal word
        if word is None:
            word = _Open("", line, [], text.startswith(('{"', '{ "'), at))
        return word

    def close() -> None:
        nonlocal word
        if word is not None:
            words.append(Word(word.text, word.line, tuple(word.variables), bare_json=word.json))
        word = None

    while at < len(text):
        mark = text[at]
        if mark == "\\":
            following = text[at + 1 : at + 2]
            if following == "\n" or not following:
                line += following == "\n"
            else:
                opened().text += following
            at += 2
        elif mark == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise ShellError("a ' that does not end", line)
            opened().text += text[at + 1 : end]
            line += text.count("\n", at, end)
            at = end + 1
        elif mark == '"':
            begin, first = opened(), line
            at += 1
            while at < len(text) and text[at] != '"':
                if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                    begin.text += "" if text[at + 1] == "\n" else text[at + 1]
                    line += text[at + 1] == "\n"
                    at += 2
                else:
                    taken = _variable(text, at, begin)
                    line += text.count("\n", at, at + taken)
                    at += taken
            if at >= len(text):
                raise ShellError('a " that does not end', first)
            at += 1
        elif mark in " \t":
            close()
            at += 1
        elif mark == "\n":
            close()
            if words and not words[-1].operator:
                words.append(Word("\n", line, operator=True))
            line += 1
            at += 1
        elif mark == "#" and word is None:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif mark in _OPERATORS:
            close()
            end = at
            while end < len(text) and text[end] in _OPERATORS:
                end += 1
            words.append(Word(text[at:end], line, operator=True))
            at = end
        else:
            at += _variable(text, at, opened())
    close()
    while words and words[-1].text == "\n" and words[-1].operator:
        words.pop()
    return words


def _variable(text: str, at: int, word: _Open) -> int:
    """Takes one character, or the variable that begins here, into `word`; how many characters that was."""
    if text[at] == "`" or text.startswith("$(", at):
        word.variables.append("a command's output")
    match = _VARIABLE.match(text, at)
    if match:
        word.variables.append(match[1] or match[2])
        word.text += match[0]
        return len(match[0])
    word.text += text[at]
    return 1
