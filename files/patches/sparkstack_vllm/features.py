"""What the plugin can do. A feature is one module of this package and one line in `FEATURES`.

A feature's module has three functions:

- `apply()` changes vLLM in this process; called at most once, and only when the feature is switched on.
- `self_check()` proves the feature's arithmetic with torch alone (no GPU, no vLLM); it raises
  `AssertionError`. The image build runs it for every feature, so a broken one never gets into an image.
- `loaded(model)` is asked in each worker once the model and its drafter are loaded, and gives the words for
  what was done since it was last asked, or `loading.Nothing`.

The module is imported only then, so it may import torch at its top; vLLM it imports inside `apply()`.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """vLLM versions from `first` up to but not including `end`, as (major, minor)."""

    first: tuple[int, int]
    end: tuple[int, int]

    def __contains__(self, version: object) -> bool:
        return isinstance(version, tuple) and self.first <= version[:2] < self.end

    def __str__(self) -> str:
        return ">={}.{},<{}.{}".format(*self.first, *self.end)


class Feature(NamedTuple):
    name: str  # also the module's name
    does: str
    supported: Range
    default: bool = False
    knobs: tuple[str, ...] = ()  # what else of the environment it reads
    instead: str = ""  # what vLLM versions after `supported` do themselves

    @property
    def switch(self) -> str:
        """The environment variable that turns the feature on (1) or off (0)."""
        return f"SPARKSTACK_{self.name.upper()}"


# The one place that says which vLLM versions the plugin as a whole has been read against.
SUPPORTED = Range((0, 19), (0, 34))

FEATURES: tuple[Feature, ...] = (
    Feature("int8_lm_head", "hold the LM head in INT8, one scale a row", supported=SUPPORTED),
    Feature("hybrid", "AutoRound checkpoints in which some layers are FP8", supported=SUPPORTED),
    Feature("draft_head", "draft with the checkpoint's pruned head", supported=SUPPORTED),
    Feature(
        "ngram_table",
        "read rows of Qwen3.8-Flash-Next's n-gram table from disk",
        supported=Range((0, 30), (0, 34)),
        knobs=("SPARKSTACK_NGRAM_TABLE_IO", "SPARKSTACK_NGRAM_TABLE_THREADS"),
    ),
    Feature(
        "fp8_dense_at_load",
        "turn BF16 linears of a quantised checkpoint into FP8",
        supported=Range((0, 19), (0, 30)),
        knobs=("SPARKSTACK_FP8_DENSE_AT_LOAD_LAYERS",),
        instead='the option quantization_config: {targets: {"re:PATTERN": fp8_per_block}} does it there',
    ),
)
