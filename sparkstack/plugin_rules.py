"""What a feature of our vLLM plugin needs beside itself, and options of drafting that a vLLM must know."""

from __future__ import annotations

from typing import NamedTuple

from sparkstack.description import Launch


class Needs(NamedTuple):
    """What a feature of the plugin goes with. Versions are (major, minor): the first, the first without."""

    transform: str | None
    first: tuple[int, int]
    end: tuple[int, int] | None


FEATURES = {
    "draft_head": Needs("draft_vocab", (0, 19), None),
    "ngram_table": Needs("ngram_table", (0, 30), None),
    "fp8_dense_at_load": Needs(None, (0, 19), (0, 30)),
}

# Since which version `speculative_config` of vLLM has what a drafter may be told (the published wheels).
DRAFTING = {
    "num_speculative_tokens_per_batch_size": (0, 24),
    "kv_cache_dtype": (0, 26),
    "draft_lm_head_quantization": (0, 33),
}

Match = tuple[str, str]


def without_its_transform(launch: Launch) -> Match | None:
    for name, needs in FEATURES.items():
        if launch.plugin.get(name) and needs.transform and needs.transform not in launch.transforms:
            return f"plugin.{name}", f"the plugin's {name} without the transform {needs.transform}"
    return None


def with_another_version(launch: Launch) -> Match | None:
    for name, needs in FEATURES.items():
        if not launch.plugin.get(name) or not launch.version:
            continue
        found = f"the plugin's {name} with vLLM {'.'.join(map(str, launch.version))}"
        if launch.version[:2] < needs.first:
            return f"plugin.{name}", f"{found}, which it is not made for (from {_text(needs.first)} on)"
        if needs.end is not None and launch.version[:2] >= needs.end:
            return f"plugin.{name}", f"{found}, which does that by its own option quantization_config"
    return None


def draft_head_without_drafting(launch: Launch) -> Match | None:
    if launch.plugin.get("draft_head") and not launch.options.get("speculative_config"):
        return "plugin.draft_head", "the plugin's draft_head without speculative_config"
    return None


def drafting_option(launch: Launch) -> Match | None:
    config = launch.options.get("speculative_config")
    if not launch.is_vllm or not isinstance(config, dict) or not launch.version:
        return None
    for name, first in DRAFTING.items():
        if config.get(name) is not None and launch.version[:2] < first:
            version = ".".join(map(str, launch.version))
            found = f"speculative_config.{name} with vLLM {version}, which does not know it"
            return "options.speculative_config", f"{found} (it is there from {_text(first)} on)"
    return None


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
