"""Secrets in words that are for everybody to read: command lines, scripts in them, names of variables.

A recipe's words land in `run` and `release.json`, and in the repository. Only names are told, never values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_NAME = re.compile(
    r"(?:^|[-_.])(?:api[-_.]?key|(?:access|secret|private)[-_.]?key|token|password|passwd|passphrase|secret"
    r"|hft)$",  # -hft is llama.cpp's --hf-token
    re.IGNORECASE,
)
_CAMEL = re.compile(r"[a-z0-9](?:Api|API|Access|Secret|Private)?(?:Key|Token|Password|Passphrase|Secret)$")
_OF_A_KEY = re.compile(r"(?:Api|API|Access|Secret|Private)Key$|(?<!Key)$")
# A model's tokens, and counts of them: `--eos-token </s>`, `tokenizer.ggml.add_bos_token=bool:false`.
_OF_A_MODEL = re.compile(
    r"(?:^|[-_.])(?:bos|eos|eot|eom|eod|eog|boi|eoi|boa|eoa|soi|pad|unk|sep|cls|mask|fim|nl|newline|prefix"
    r"|suffix|middle|stop|start|begin|end|image|img|video|vision|audio|speech|special|think|thinking|reasoning"
    r"|tool|call|tool[-_.]response|system|assistant|draft|speculative|prompt|completion|input|output|new|cached"
    r"|max|min|num|per|first|next|last|(?:max|min|num|n)[-_.][\w.-]+)[-_.]token$",
    re.IGNORECASE,
)
# Switches, behind which something else may stand: `--require-api-key MODEL`.
_SWITCH = re.compile(
    r"(?:requires?|need|no|without|enable|disable|allow|skip|check|verify|validate|ignore)[-_.]",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"\d{1,8}[km]?|true|false|yes|no|on|off|auto|null|none"
    r"|(?:~|\.{0,2})/[\w./@%{}$-]*"  # a path
    r"|[\w.]*[(\[].*",  # an expression of a script: os.environ["K"], getpass()
    re.IGNORECASE,
)
_MOUNTED = re.compile(r"(?:id|type|src|source|env|target)=")  # `docker run --secret id=x,src=/y`
_NUL = "\0"  # between two words: no word can hold one
# Behind a name: "=", or blanks (a line's end with its backslash among them), or the next word.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)"
    r"(?=(?P<between>\+?=|(?:\s|\\\n)+|\0)(?P<quote>[\\\"']*)(?P<value>[^\s\"'\\\0]*))"
)
_VARIABLE = re.compile(r"-e=?(?=[A-Z_])")
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@:]*:(?![$`{])[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Does an option or a variable of this name hold a secret, as most programs name theirs?"""
    name = name.strip("-")
    if _OF_A_MODEL.search(name) or _SWITCH.match(name):
        return False
    return bool(_NAME.search(name) or (_CAMEL.search(name) and _OF_A_KEY.search(name)))


def is_value(name: str, value: str) -> bool:
    """Is `value` itself what the secret `name` holds, and not where it comes from, or a number of tokens?"""
    if not value or value[0] in "$`<=" or _PLACEHOLDER.search(value):
        return False
    value = value.rstrip(",:;)}]")  # of a script
    if not value or _NO_SECRET.fullmatch(value):
        return False
    return not (name.lower().endswith("secret") and _MOUNTED.match(value))


def named(words: Sequence[str]) -> list[str]:
    """The names of the secrets whose values stand in `words`, each once, in order.

    A word may be a whole script. What a shell puts in (`$KEY`, `$(cat FILE)`) and placeholders are no values,
    and so is `-e NAME`, which takes the variable from elsewhere.
    """
    result: dict[str, None] = {}
    text = _NUL.join(words)
    for match in _NAMED.finditer(text):
        name, value = match["name"], match["value"]
        assigned, variable = "=" in match["between"], _VARIABLE.match(name)
        if not assigned and (not name.startswith("-") or variable or value.startswith("-")):
            continue
        if value[:1] in set(";|&)") and _NUL not in match["between"] and not match["quote"]:
            continue  # the command ends there
        if variable:
            name = name[variable.end() :]
        if is_secret(name) and is_value(name, value):
            result[name] = None
    if _URL_WITH_PASSWORD.search(text):
        result["a URL's password"] = None
    return list(result)


def of_options(options: dict[str, Any]) -> list[str]:
    """The names of the options that hold a secret: they become words."""
    return [
        name
        for name, value in options.items()
        if value is not None
        and not isinstance(value, (bool, dict))
        and is_secret(name)
        and any(is_value(name, str(item)) for item in (value if isinstance(value, list) else [value]))
    ]
