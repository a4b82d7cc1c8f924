"""Recipes of the community for engines that we do not know by their options, as the engine `command`.

What a run works out takes the place of what the author wrote: address, port, folder of the weights, name.
They run on one host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkstack import engine_command, placeholders


@dataclass(frozen=True)
class _Engine:
    """Flags by what they say. `plain` starts an engine whose recipe has no command; `renamed` are the names
    that its options have in place of those in `defaults` (None: it has no such option)."""

    model: tuple[str, ...]
    name: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    renamed: Mapping[str, str | None] = field(default_factory=dict)


HOST, PORT = ("--host",), ("--port",)
GGUF = ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file")
DEFAULT_QUANT = "Q4_K_M"
"""What llama.cpp takes of a repository where nothing is said."""
ENGINES = {
    "sglang": _Engine(
        ("--model-path", "--model"),
        ("--served-model-name",),
        ("python3", "-m", "sglang.launch_server"),
        {
            "tensor_parallel_size": "tp_size",
            "pipeline_parallel_size": "pp_size",
            "data_parallel_size": "dp_size",
            "max_model_len": "context_length",
            "gpu_memory_utilization": "mem_fraction_static",
            "max_num_seqs": "max_running_requests",
        },
    ),
    "llama-cpp": _Engine(
        ("-m", "--model", *GGUF),
        ("-a", "--alias"),
        ("llama-server",),
        {
            "tensor_parallel_size": None,
            "pipeline_parallel_size": None,
            "gpu_memory_utilization": None,
            "max_model_len": "ctx_size",
            "max_num_seqs": "parallel",
        },
    ),
    "trtllm": _Engine(("--model", "--model_path")),
}
# The weights are one file, or several that are numbered, under a name that only the repository knows.
_WITH_FILE = (
    'PATH="$PATH:/app"; file=$(find "$0" -name "*.gguf" ! -name "mmproj*" | sort | head -n 1); '
    'exec "$@" --model "$file"'
)


def command(
    runtime: str, words: Sequence[str], model: str
) -> tuple[list[str], str | None]:
    """The words for `serve.command`, and the name that the author's command serves, where it says one.

    `words` are the author's ([] for a recipe without a command), `model` is what stands for the weights.
    """
    engine = ENGINES[runtime]
    files = runtime == "llama-cpp"
    result: list[str] = []
    seen: set[str] = set()
    served = None
    rest = iter(words or engine.plain)
    for word in rest:
        flag, equals, value = word.partition("=")
        kind = next(
            (
                kind
                for kind, flags in (
                    ("{bind}", HOST),
                    ("{port}", PORT),
                    ("{model_path}", engine.model),
                    ("{served_name}", engine.name),
                )
                if flag in flags
            ),
            None,
        )
        if kind is None:
            if word == model and word:
                seen.add("{model_path}")
                result.append("{model_path}")
            else:
                result.append(escaped(word))
            continue
        value = value if equals else next(rest, "")
        seen.add(kind)
        if kind == "{served_name}":
            served = value
        if not (kind == "{model_path}" and files):
            result += [flag, kind]
    for flags, kind in ((HOST, "{bind}"), (PORT, "{port}"), (engine.name, "{served_name}")):
        if kind not in seen and flags:
            result += [flags[-1], kind]
    if files:
        result = ["sh", "-c", _WITH_FILE, "{model_path}", *result]
    elif "{model_path}" not in seen:
        result += [engine.model[0], "{model_path}"]
    return result, served


def options(runtime: str, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of a recipe without a command as the engine calls them, and those that it does not have."""
    renamed = ENGINES[runtime].renamed
    kept, without = {}, []
    for name, value in found.items():
        theirs = renamed.get(name, name)
        if value is None or value is False or name in ("host", "port", "served_model_name"):
            continue  # they have flags that switch on, and none that deny
        if theirs is None:
            if value != 1:
                without.append(name)
        else:
            kept[theirs] = value
    return kept, without


def weights(runtime: str, model: str) -> tuple[str, list[str] | None]:
    """Repository and files of what a recipe calls its model; llama.cpp's may have its quantization behind a
    colon, and a repository holds many."""
    repo, _, quant = model.partition(":")
    if runtime != "llama-cpp":
        return model, None
    quant = quant or DEFAULT_QUANT
    return repo, [f"*{word}*.gguf" for word in dict.fromkeys((quant, quant.upper(), quant.lower()))]


def escaped(word: str) -> str:
    """A word that comes out of `engine_command.filled` as it is."""
    expanded = placeholders.expand(word, dict.fromkeys(engine_command.NAMES, "?"))
    if expanded.text == word and not expanded.unknown:
        return word
    return word.replace("{", "{{").replace("}", "}}")
