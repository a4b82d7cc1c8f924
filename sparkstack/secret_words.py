"""Secrets in words that are for everybody to read: command lines, scripts in them, names of variables.

A recipe's words land in `run` and `release.json`, and in the repository. Only names are told, never values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_NAME = re.compile(
    r"(?:^|[-_.])(?:api[-_.]?keys?|(?:access|secret|private)[-_.]?key|token|password|passwd|passphrase|secret"
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
# Behind a name: "=", or a colon (JSON, YAML, a header), or blanks (a line's end with its backslash among
# them), or the next word.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)"
    r"(?=(?P<between>\+?=|(?P<colon>[\\\"']*\s*:(?=[\s\\\"'\[])\s*)|(?:\s|\\\n)+|\0)"
    r"(?P<quote>(?:\[\s*(?=[\\\"']))?[\\\"']*)(?P<value>[^\s\"'\\\0]*))"
)
_BEGINS = re.compile(r"(?:^|[\n{])[ \t]*(?:-[ \t]+)?$")  # a line of YAML
_QUOTED = re.compile(r"[\"'\0=]$")  # a header's word; what is said to a user begins so, too
# A call of a script hands on its own variables: `f(api_key=key, token=self.token)`.
_IN_A_CALL, _HANDED_ON = re.compile(r"[(,]\s*$"), re.compile(r"[A-Za-z_][\w.]*[,)]+;?")
_TYPES = re.compile(
    r"str|string|bytes|int|integer|float|bool|boolean|any|object|secretstr|required|optional", re.IGNORECASE
)
_AUTHORIZATION = re.compile(
    r"(?i:authorization)[\\\"'\]]*\s*[:=,]\s*[\\\"']*(?i:bearer|basic|token)(?:\s|%20)+(?![%+])"
    r"(?P<value>[^\s\"'\\\0]+)"
)
# By their makers' beginnings and usual lengths. In a URL they are its password.
_TOKEN = re.compile(
    r"(?<![\w-])(?:(hf_)[A-Za-z0-9]{30,}+|(gh[opsur]_)[A-Za-z0-9]{36,}+|(github_pat_)\w{40,}+"
    r"|(nvapi-)[\w-]{40,}+|(AKIA|ASIA)[A-Z0-9]{16}(?!\w)|(sk-)(?:(?:[A-Za-z0-9]+-){0,3}(?=[A-Za-z_]*\d)\w{20,}+"
    r"|(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{40,}+))(?![\w-]*@)"
)
_VARIABLE = re.compile(r"-e=?(?=[A-Z_])")
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_URL_WITH_PASSWORD = re.compile(
    r"://(?:[^/\s@:\0\"']*:(?![$`{])|gh[opsur]_|github_pat_|glpat-|hf_)[^/\s@\0\"']+@"
)


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
    """The names of the secrets whose values stand in `words`, each once; of what has no name, its kind.

    A word may be a whole script, or JSON. What a shell puts in (`$KEY`, `$(cat FILE)`) and placeholders are
    no values, and so is `-e NAME`, which takes the variable from elsewhere.
    """
    result: dict[str, None] = {}
    told: list[tuple[int, int]] = []
    text = _NUL.join(words)
    for match in _NAMED.finditer(text):
        name, value, colon = match["name"], match["value"], match["colon"] is not None
        assigned, variable = "=" in match["between"] or colon, _VARIABLE.match(name)
        if not assigned and (not name.startswith("-") or variable or value.startswith("-")):
            continue
        if value[:1] in set(";|&)") and _NUL not in match["between"] and not match["quote"]:
            continue  # the command ends there
        if not match["quote"] and _HANDED_ON.fullmatch(value) and _IN_A_CALL.search(_before(match)):
            continue
        if variable:
            name = name[variable.end() :]
        if is_secret(name) and is_value(name, value) and (not colon or _is_said(match)):
            result[name] = None
            told.append(match.span("value"))
    for match in _AUTHORIZATION.finditer(text):
        if is_value("", match["value"]):
            result["Authorization"] = None
            told.append(match.span("value"))
    for match in _TOKEN.finditer(text):
        if not any(begin <= match.start() < end for begin, end in told):
            result[f"a token ({match[match.lastindex or 0]}…)"] = None
    if _URL_WITH_PASSWORD.search(text):
        result["a URL's password"] = None
    return list(result)


def _before(match: re.Match[str]) -> str:
    """The text before a name; no more than matters."""
    return match.string[max(0, match.start() - 80) : match.start()]


def _is_said(match: re.Match[str]) -> bool:
    """Is what stands behind a name's colon its value, and not a type or a sentence?"""
    value = match["value"].rstrip(",:;)}]=")
    if _TYPES.fullmatch(value):
        return False
    if match["quote"]:
        return True
    if match["colon"].lstrip()[0] != ":" or len(value) < 6:
        return False  # JSON quotes both; a script's own variable
    before = _before(match)
    if not before or _QUOTED.search(before):
        return re.search(r"[-_.]", match["name"]) is not None
    return _BEGINS.search(before) is not None


def of_options(options: dict[str, Any]) -> dict[str, str]:
    """The secrets among options, which become words: what to call each, and the option that holds it."""
    return {shown: name for name, value in options.items() for shown in _inside(name, name, value)}


def _inside(name: str, path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _inside(str(key), f"{path}.{key}", item)
    elif isinstance(value, list):
        for item in value:
            yield from _inside(name, path, item)
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        if is_secret(name) and is_value(name, text):
            yield path
            return
        header = name.lower().endswith("authorization")
        for inner in named([f"{name}: {text}" if header else text]):
            yield f"{inner} in {path}"
