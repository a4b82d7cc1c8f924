"""The command line of `vllm serve` as options that are data, and the engine that a command starts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkstack.shell_words import Word
from sparkstack.vllm_options import REPEATED

ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "cc": "compilation_config",
    "sc": "speculative_config",
    "q": "quantization",
    "O": "optimization_level",
    "ac": "attention_config",
    "asc": "api_server_count",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb",
    "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local",
    "dpm": "data_parallel_multi_port_external_lb",
    "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port",
    "dpr": "data_parallel_start_rank",
    "ep": "enable_expert_parallel",
    "n": "nnodes",
    "pcp": "prefill_context_parallel_size",
    "r": "node_rank",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "data_parallel": "data_parallel_size",
}
"""Other spellings: vLLM's short flags, and the keys that recipes have in `defaults`."""
SEVERAL = frozenset({"cudagraph_capture_sizes", "cuda_graph_sizes"})
"""Options of several values; `defaults` hold those as one text, "1 2 4 8"."""

_OPTION = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def canonical(name: str) -> str:
    """`tp`, `tensor-parallel-size` and `tensor_parallel` are all `tensor_parallel_size`."""
    name = name.replace("-", "_")
    return ALIASES.get(name, name)


@dataclass(frozen=True)
class Twice:
    """A flag that is given again: both spellings, the lines (from 0), and whether the values are equal."""

    first: str
    again: str
    first_line: int
    line: int
    equal: bool


@dataclass
class Flags:
    """What stands behind `vllm serve`. `lines` (from 0) is where each option is first given."""

    options: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    lines: dict[str, int] = field(default_factory=dict)
    twice: list[Twice] = field(default_factory=list)
    strange: list[tuple[str, int]] = field(default_factory=list)
    bad_json: list[tuple[str, str, int]] = field(default_factory=list)


def scalar(text: str) -> Any:
    """A number where the text is one in its usual form, an object where it is JSON, else the text."""
    if _NUMBER.fullmatch(text):
        number: int | float = float(text) if "." in text else int(text)
        # 007 may be a name: a number is what comes back as it was, but for zeros behind the point.
        return number if str(number) == text or text.rstrip("0") == str(number) else text
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _json(text: str) -> Any:
    """The value of a dotted option: vLLM reads it as JSON where it is some, else as text."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # NaN and infinities could not be written again
    except (ValueError, RecursionError):
        return text
    return value


def parse(words: Sequence[Word]) -> Flags:
    """The options among `words`, which follow `vllm serve`."""
    flags = Flags()
    spelled: dict[str, tuple[str, Any]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--":  # what follows is read all the same, so that none of it is lost in silence
            flags.strange.append((word.text, word.line))
            continue
        if not _is_flag(word.text):
            if flags.model is None and not flags.options:
                flags.model = word.text
            else:
                flags.strange.append((word.text, word.line))
            continue
        spelling, equals, value_text = word.text.partition("=")
        values = [(value_text, word.bare_json)] if equals else []
        while not equals and at < len(words) and not _is_flag(words[at].text):
            values.append((words[at].text, words[at].bare_json))
            at += 1
        _add(flags, spelled, spelling, values, word.line)
    return flags


def is_placeholder(text: str) -> bool:
    """Is it a `{name}` that no value was found for?"""
    return _PLACEHOLDER.fullmatch(text) is not None


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text)


def _add(
    flags: Flags,
    spelled: dict[str, tuple[str, Any]],
    spelling: str,
    values: list[tuple[str, bool]],
    line: int,
) -> None:
    name = spelling.lstrip("-")
    path: tuple[str, ...] = ()
    more = False  # `-cc.custom_ops+=+a,+b` adds to a list
    if match := re.fullmatch(r"O(\d)", name):
        name, values = "O", [(match[1], False)]
    if "." in name:
        name, *inner = name.split(".")
        if more := inner[-1].endswith("+"):
            inner[-1] = inner[-1].removesuffix("+")
        path = tuple(inner)
    name = canonical(name)
    value: Any = [(_json if path else scalar)(text) for text, _ in values]
    if len(value) == 1 and name not in SEVERAL:
        value = value[0]
    elif not value:
        value = True
    if value is True and name.startswith("no_"):
        name, value = name.removeprefix("no_"), False
    if not _OPTION.fullmatch(name):
        flags.strange.append((spelling, line))
        return
    for text, bare in values:
        if is_placeholder(text):
            continue  # told as a name without a value
        if bare or (text.startswith("{") and not isinstance(scalar(text), dict)):
            flags.bad_json.append((spelling, text, line))
    key = ".".join((name, *path))
    if more:
        value = [item for text, _ in values for item in text.split(",")]
    if key in spelled and name not in REPEATED and not more:
        first, before = spelled[key]
        flags.twice.append(Twice(first, spelling, flags.lines[key], line, before == value))
    spelled.setdefault(key, (spelling, value))
    flags.lines.setdefault(name, line)
    flags.lines.setdefault(key, line)
    if name in REPEATED and name in flags.options:
        there = flags.options[name]
        flags.options[name] = [*_listed(there), *_listed(value)]
    elif path:
        _put(flags.options, (name, *path), value, more)
    elif isinstance(value, dict) and isinstance(flags.options.get(name), dict):
        flags.options[name] = flags.options[name] | value
    else:
        flags.options[name] = value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _put(options: dict[str, Any], path: tuple[str, ...], value: Any, more: bool) -> None:
    *above, last = path
    here = options
    for part in above:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    if more and isinstance(here.get(last), list):
        value = [*here[last], *value]
    here[last] = value


def runtime(texts: Sequence[str]) -> str | None:
    """The engine that a command of these words starts; None when it is none that we know."""
    if not texts:
        return None
    program = texts[0].rpartition("/")[2]
    rest = list(texts[1:3])
    if program in ("python", "python3") and rest[:1] == ["-m"] and len(rest) == 2:
        module = rest[1]
        if module.startswith("sglang."):
            return "sglang"
        return "vllm" if module.startswith("vllm.entrypoints") else None
    if program in ("llama-server", "llama-cli"):
        return "llama-cpp"
    if program in ("trtllm-serve", "mpirun"):
        return "trtllm"
    if program == "sglang" and rest[:1] == ["serve"]:
        return "sglang"
    if program == "vllm" and rest[:1] == ["serve"]:
        return "vllm"
    return "atlas" if program in ("atlas", "spark") and rest[:1] == ["serve"] else None
