"""The engine `command`: any server, started by words in which `{name}` stands for what a run works out."""

from __future__ import annotations

import functools
from difflib import get_close_matches

from sparkstack import placeholders, shell_words
from sparkstack.errors import Problem

NAMES = {
    "model_path": "the folder of the checkpoint in the container",
    "served_name": "what clients write in `model`",
    "bind": "the address on which the head answers",
    "port": "serve.port",
    "api_key_file": "a file with the endpoint's API key, empty where there is none",
    "rank": "this host's number, from 0 (the head)",
    "world": "how many hosts there are",
    "head_address": "the head's address on the fabric, 127.0.0.1 for a single Spark",
    "host_address": "this host's address on the fabric",
    "master_port": "the port at which the ranks meet; each release has its own",
}
"""The placeholders of `serve.command`, and what each stands for."""

Command = str | list[str]


@functools.lru_cache(maxsize=64)  # each host of a run asks for the command of each rank
def _read(text: str) -> tuple[shell_words.Word, ...]:
    return tuple(shell_words.split(placeholders.repair(text)[0]))


def words(command: Command) -> list[str]:
    """The words of a command, placeholders still in them. A list is words already.

    Text is read by a POSIX shell's rules for quotes; whatever would need a shell is in `mistakes`.
    Errors: shell_words.ShellError for a quote that does not end.
    """
    if isinstance(command, list):
        return list(command)
    return [word.text for word in _read(command)]


def mistakes(command: Command) -> list[tuple[int, str, str, str]]:
    """What is wrong with a command: line of the text (from 0; of a list, the item), found, wanted, remedy."""
    if isinstance(command, list):
        read = [shell_words.Word(text, at) for at, text in enumerate(command)]
    else:
        try:
            read = [*_read(command)]
        except shell_words.ShellError as mistake:
            return [(mistake.line, str(mistake), "a quote for each quote", "close it")]
    if not read or not read[0].text:
        return [(0, "no words", "a program and its arguments", "write what the container shall run")]
    result = []
    for word in read:
        if "\0" in word.text:
            result.append((word.line, "a NUL", "text", "no argument can hold one"))
        if word.operator:
            shown = "a line's end without a backslash" if word.text == "\n" else word.text
            remedy = 'end the line with \\, or run a shell: ["sh", "-c", "exec …"]'
            result.append((word.line, f"more than one command ({shown})", "one command", remedy))
        for name in word.variables:
            wanted = "no shell variables"
            result.append((word.line, f"${name}", wanted, "write the value, a {name}, or put it in '…'"))
        for name, _ in placeholders.expand(word.text, dict.fromkeys(NAMES, "")).unknown:
            near = get_close_matches(name, NAMES, 1)
            remedy = f"did you mean {{{near[0]}}}?" if near else "use one of these, or {{…}} for a brace"
            wanted = "one of: " + ", ".join(f"{{{known}}}" for known in NAMES)
            result.append((word.line, f"{{{name}}}", wanted, remedy))
    return result


def for_ranks(command: Command) -> bool:
    """Does a command tell its ranks apart? One that does not is for one host."""
    expanded = placeholders.Expanded()
    for word in words(command):
        expanded.used |= placeholders.expand(word, dict.fromkeys(NAMES, "")).used
    return "rank" in expanded.used


def filled(command: Command, values: dict[str, str | int]) -> list[str]:
    """The words for one rank. A value stays within its word, whatever is in it. `values` has all of NAMES;
    errors: ValueError for a name that is none of them, which `mistakes` tells before."""
    result = []
    for word in words(command):
        expanded = placeholders.expand(word, values)
        if expanded.unknown:
            raise ValueError(f"no value for {{{expanded.unknown[0][0]}}}")
        result.append(expanded.text)
    return result


def problems(command: Command, where: str) -> list[Problem]:
    """`mistakes` as lines, all of one place."""
    return [Problem(where, *told) for _, *told in mistakes(command)]
