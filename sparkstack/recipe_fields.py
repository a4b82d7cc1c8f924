"""The kinds of value that a recipe holds, each with what it refuses and why."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from sparkstack.schema import matching, refusal
from sparkstack.units import parse_size

_PROXY = "a reverse proxy before the endpoint: a run, its watchdog and its status ask by HTTP over TCP"
NOT_HTTP = dict.fromkeys(
    (
        *("ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_cert_reqs"),
        *("ssl_ciphers", "enable_ssl_refresh", "uds"),
    ),
    _PROXY,
)
"""Options with which an endpoint is no HTTP over TCP, and what is to be done in their place."""
DERIVED_OPTIONS = {
    "model": "the checkpoint",
    "served_model_name": "served_model_name beside model",
    "host": "the inventory",
    "port": "serve.port",
    "nnodes": "the inventory",
    "node_rank": "the inventory",
    "master_addr": "the inventory",
    "master_port": "the inventory",
    "headless": "the inventory",
    **NOT_HTTP,
}
"""Options that a recipe must not hold, and what each is worked out from: every value has one home."""

ATLAS_DERIVED = {
    "model_from_path": "the checkpoint",
    "bind": "serve_bind of group_data",
    "host": "serve_bind of group_data",
    "port": "serve.port",
    "rank": "the inventory",
    "world_size": "the inventory",
    "master_addr": "the inventory",
    "master_port": "the inventory",
}
"""The same for Atlas, whose flags have other names."""
ENGINE_DERIVED: dict[str, dict[str, str]] = {
    "vllm": DERIVED_OPTIONS,
    "atlas": ATLAS_DERIVED,
    "command": {},  # its placeholders say where what is worked out goes
}

UNVERIFIED = "unverified"
"""In place of a revision: nobody published one, and none is made up. Such a recipe is read and checked;
`deploy` refuses it until a commit stands there."""


def _pattern(pattern: str, description: str) -> WithJsonSchema:
    """What an editor is told of a text that a validator checks."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$", "description": description})


def _revision(value: Any) -> Any:
    # Forty decimal digits without quotes are a number to YAML, and its leading zeros are gone.
    if not isinstance(value, str):
        raise refusal("40 hex digits as text", "put the revision in quotes")
    if value != UNVERIFIED and not re.fullmatch(r"[0-9a-f]{40}", value):
        raise refusal("40 hex digits (a commit)", "pin the commit; branches and tags move")
    return value


def _plain_text(value: Any) -> Any:
    # YAML reads 2.10 as 2.1 and `on` as true: what a program gets as text must be written as text.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        if "\n" in value or "\r" in value or "\0" in value:
            raise refusal("one line of text", "pass longer text by a file")
        return value
    raise refusal("text", "put it in quotes")


def _scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (str, int)) and not isinstance(value, bool)


# What argparse takes for a number and not for an option.
_NEGATIVE = re.compile(r"-(\d+|\d*\.\d+)")


def _option(value: Any) -> Any:
    """What becomes words by the one rule (`sparkstack.option_words`), and nothing else."""
    if isinstance(value, list):
        if not value:
            remedy = "leave the option out for none"
            raise refusal("a list of one or more texts, numbers or JSON objects", remedy)
        for at, item in enumerate(value):
            if not (_scalar(item) or isinstance(item, dict)):
                remedy = "put it in quotes" if not isinstance(item, list) else "write one list"
                raise refusal("a text, a number or a JSON object", remedy, (at,), item)
            if str(item).startswith("-") and not _NEGATIVE.fullmatch(str(item)):
                # One of several values cannot be tied to its option by "=".
                remedy = "an engine would read it as the next option"
                raise refusal("no '-' at the beginning of one value of several", remedy, (at,), item)
            _writable(item, (at,))
    elif isinstance(value, dict) or value is None or isinstance(value, bool) or _scalar(value):
        _writable(value, ())
    else:
        raise refusal("text, a number, true, false, null, a list or a JSON object", "put it in quotes")
    return value


def _writable(value: Any, inside: tuple[str | int, ...]) -> None:
    """Errors: a refusal of the first thing in a value that cannot be written into an argument."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
        for key in value:
            if not isinstance(key, str):
                raise refusal("keys that are text, as JSON has them", "put it in quotes", inside, value)
    elif isinstance(value, list):
        items = enumerate(value)
    elif isinstance(value, str):
        # In JSON it is an escape of six characters; a word of its own cannot hold it.
        if "\0" in value and all(isinstance(part, int) for part in inside):
            raise refusal("text without a NUL", "no argument can hold one", inside, value)
    elif not (value is None or isinstance(value, bool) or _scalar(value)):
        raise refusal("what JSON has: text, a number, true, false, null", "put it in quotes", inside, value)
    for part, item in items:
        _writable(item, (*inside, part))


def _argument(text: str) -> str:
    if "\0" in text:
        raise refusal("text without a NUL", "no argument can hold one")
    return text


def _shard_bytes(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError:
            raise refusal("bytes, or a size such as 4GB or 4GiB") from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refusal("bytes, or a size such as 4GB or 4GiB")
    return value


def argument_name(option: str) -> str:
    """`max_model_len` as the command line has it: `--max-model-len`."""
    return "--" + option.replace("_", "-")


SLUG = r"[a-z0-9][a-z0-9._-]*"
_SLUG = (SLUG, "small letters, digits, '.', '_' and '-'")
_HUB_ID = (r"[\w.-]+/[\w.-]+", "a hub id, ORGANISATION/NAME")
_ENV_NAME = (r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name (letters, digits, '_')")
_OPTION = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
_OPTION_NAME = (_OPTION, "an option in snake case, as max_model_len for --max-model-len")
_VERSION = (r"\d+(\.\d+)+", "a version, as 0.20.2")
_AT_LEAST = (r"\d+(\.\d+)*", "a version, as 580 or 580.95.05")
_DOCKER_SIZE = (r"[1-9][0-9]*[bkmg]?", "a size for Docker such as 2g")

Slug = Annotated[str, matching(*_SLUG), _pattern(*_SLUG)]
HubId = Annotated[str, matching(*_HUB_ID), _pattern(*_HUB_ID)]
Revision = Annotated[
    str, BeforeValidator(_revision), _pattern(rf"[0-9a-f]{{40}}|{UNVERIFIED}", "a commit, or `unverified`")
]
EnvName = Annotated[str, matching(*_ENV_NAME)]
PlainText = Annotated[str, BeforeValidator(_plain_text, json_schema_input_type=str | int)]
Argument = Annotated[str, AfterValidator(_argument)]
OptionName = Annotated[str, matching(*_OPTION_NAME)]
Option = Annotated[Any, BeforeValidator(_option)]
DockerSize = Annotated[str, matching(*_DOCKER_SIZE), _pattern(*_DOCKER_SIZE)]
Version = Annotated[str, matching(*_VERSION), _pattern(*_VERSION)]
AtLeast = Annotated[str, matching(*_AT_LEAST), _pattern(*_AT_LEAST)]
ShardBytes = Annotated[int, BeforeValidator(_shard_bytes, json_schema_input_type=int | str)]
