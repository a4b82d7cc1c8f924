"""What a recipe expects of its benchmark, and how it is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sparkstack.schema import Strict, refusal

TOLERANCE_PERCENT = 10.0
"""How much worse than a `value` may be, where the recipe does not say."""

RISING = {
    "decode_tok_s": True,
    "ttft_s": False,
    "total_tok_s": True,
    "inter_token_s": False,
    "end_to_end_s": False,
    "acceptance": True,
    "accepted_length": True,
}
"""The figures that can be expected, and whether more of each is better."""


CATEGORIES = ("coding", "reasoning", "json", "html", "prose", "narrative", "summary", "format")
"""The kinds of prompts that are measured apart (onhost/bench/prompts.py)."""


QUALITY = (
    "sane",
    "exact",
    "json",
    "tool",
    "arithmetic",
    "gsm8k",
    "needle",
    "prefix_cache",
    "determinism",
    "agreement",
)
"""The tests of quality (onhost/bench/profile.py); a test holds both lists against it."""


class Bound(Strict):
    """At least `min`, at most `max`, or both; or about `value`: at most `tolerance_percent` (10) worse than
    it. Better than a `value` is never a miss."""

    min: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    value: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tolerance_percent: float | None = Field(default=None, ge=0, lt=100, allow_inf_nan=False)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        self._check()
        return self

    def _check(self) -> None:
        limits = self.min is not None or self.max is not None
        if not limits and self.value is None:
            raise refusal("min, max or both, or value")
        if limits and self.value is not None:
            raise refusal("either value or min and max")
        if self.tolerance_percent is not None and self.value is None:
            raise refusal("tolerance_percent only beside value")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refusal("a min that is not above max")

    def limits(self, rising: bool = True) -> list[tuple[Literal["≥", "≤"], float]]:
        """What must hold, in the order min, max. `rising`: more of the figure is better."""
        if self.value is not None:
            share = (TOLERANCE_PERCENT if self.tolerance_percent is None else self.tolerance_percent) / 100
            # Rounded, so that 40 − 10 % is 36 and not 36.00000000000001.
            worst = self.value * (1 - share if rising else 1 + share)
            return [("≥" if rising else "≤", round(worst, 9))]
        found: list[tuple[Literal["≥", "≤"], float]] = []
        if self.min is not None:
            found.append(("≥", self.min))
        if self.max is not None:
            found.append(("≤", self.max))
        return found

    def text(self, rising: bool = True) -> str:
        """`≥ 8.0, ≤ 12.0`, or `≥ 36.0 (40.0 − 10 %)`."""
        text = ", ".join(f"{sign} {limit}" for sign, limit in self.limits(rising))
        if self.value is None:
            return text
        share = TOLERANCE_PERCENT if self.tolerance_percent is None else self.tolerance_percent
        return f"{text} ({self.value} {'−' if rising else '+'} {share:g} %)"


class Score(Bound):
    """What a quality test must reach: a `Bound` of its score, or `passes`: that the test is passed, or
    `ignored`: nothing, of a test of which something is expected where a recipe is silent (USUAL)."""

    passes: Literal[True] | None = None
    ignored: Literal[True] | None = None

    def _check(self) -> None:
        words = [name for name in ("passes", "ignored") if getattr(self, name)]
        if not words:
            super()._check()
        elif self.model_dump(exclude={words[0]}, exclude_none=True):
            raise refusal("pass, ignore, or a bound of the score")


USUAL = {"sane": Score(min=0.5)}
"""What is expected of every model that chats where its recipe says nothing: half of the open answers end, are
in the question's language and about it. A server that talks garbage gives none such."""
WORDS: dict[object, dict[str, bool]] = {"pass": {"passes": True}, "ignore": {"ignored": True}}
WORDS[False] = WORDS["ignore"]  # as YAML reads `off`


class Figures(Strict):
    """Bounds by number of streams, of one request unless it says otherwise.

    Decode tokens/s, seconds to the first token, tokens/s of all streams together, seconds from token to
    token, seconds from request to end, share of drafted tokens that were accepted (0 to 1), and tokens per
    step of the engine.
    """

    decode_tok_s: dict[int, Bound] = Field(default_factory=dict)
    ttft_s: dict[int, Bound] = Field(default_factory=dict)
    total_tok_s: dict[int, Bound] = Field(default_factory=dict)
    inter_token_s: dict[int, Bound] = Field(default_factory=dict)
    end_to_end_s: dict[int, Bound] = Field(default_factory=dict)
    acceptance: dict[int, Bound] = Field(default_factory=dict)
    accepted_length: dict[int, Bound] = Field(default_factory=dict)

    def by_streams(self) -> list[tuple[str, dict[int, Bound]]]:
        """The figures that are declared by number of streams."""
        return [(name, getattr(self, name)) for name in RISING]

    @model_validator(mode="before")
    @classmethod
    def _streams(cls, value: Any) -> Any:
        # People write 1 and "1"; both mean one stream. Anything else is left for the type check to refuse.
        if not isinstance(value, dict):
            return value
        return {
            key: {_count(streams): bound for streams, bound in bounds.items()}
            if isinstance(bounds, dict) and key in RISING
            else bounds
            for key, bounds in value.items()
        }


class Expect(Figures):
    """What a benchmark must reach. What is not named is measured as a baseline.

    `categories` is the same by kind of prompt (a bare bound means decode tokens/s of one stream), `quality` a
    score by test (USUAL where nothing is said). The profile of the measurement says which of these are
    measured; the others are told as "not checked".
    """

    categories: dict[str, Figures] = Field(default_factory=dict)
    quality: dict[str, Score] = Field(default_factory=dict)

    @field_validator("categories", mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {"decode_tok_s": {1: one}} if _is_bound(one) else one for name, one in value.items()}

    @field_validator("quality", mode="before")
    @classmethod
    def _passes(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = {name: one for name, one in value.items() if isinstance(one, str) or one is False}
        return value | {name: WORDS.get(one, one) for name, one in known.items()}

    def all_by_streams(self) -> Iterator[tuple[tuple[str, ...], str, int, Bound]]:
        """Every bound by streams: (keys of the figure in the recipe, category or "all", streams, bound)."""
        for category, figures in [("all", self), *self.categories.items()]:
            for name, bounds in Figures.by_streams(figures):
                keys = (name,) if category == "all" else ("categories", category, name)
                for streams, bound in sorted(bounds.items()):
                    yield keys, category, streams, bound


def _is_bound(value: Any) -> bool:
    """A bound holds numbers; figures hold bounds by streams."""
    if isinstance(value, dict):
        return any(not isinstance(one, dict) for one in value.values())
    return isinstance(value, Bound)


def _count(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and int(key) > 0 else key


class Benchmark(Strict):
    """How the recipe wants to be measured, where it differs from the profile (`smoke`): how many streams at
    once, tokens of an answer, rounds before that do not count, repeats of a point, requests of a stream in
    each, above which spread ((max − min) ÷ median of the repeats) figures are noise, and which tests of
    quality are made (none where the list is empty)."""

    streams: list[int] = Field(default=[1], min_length=1)
    max_tokens: int = Field(default=64, ge=2)
    warmup: int = Field(default=1, ge=0)
    repeats: int = Field(default=3, ge=1)
    requests: int | None = Field(default=None, ge=1)
    spread_limit: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    quality: list[str] | None = None

    @field_validator("quality")
    @classmethod
    def _known(cls, names: list[str] | None) -> list[str] | None:
        for name in names or []:
            if name not in QUALITY:
                near = get_close_matches(name, QUALITY, 1)
                remedy = f"did you mean {near[0]!r}?" if near else ""
                raise refusal(f"names of tests: {', '.join(QUALITY)}", remedy)
        return names

    @model_validator(mode="after")
    def _streams_count(self) -> Benchmark:
        if any(streams < 1 for streams in self.streams) or len(set(self.streams)) < len(self.streams):
            raise refusal("each number of streams once, 1 or more")
        return self


PROFILES = ("smoke", "standard", "full")
"""The named profiles, from the smallest (onhost/bench/profile.py says what each holds)."""
STANDARD_STREAMS = (1, 2, 4, 6, 8)


def profile_of(name: str, wish: Benchmark) -> dict[str, Any]:
    """A plan's `profile` (docs/interfaces.md): the named one, with what the recipe says of its own.

    The larger profiles keep their own lengths and repeats, so that their figures compare between recipes; of
    the recipe they take numbers of streams that they lack, and what counts as noise.
    """
    said = wish.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    if name == "smoke":
        return {"name": name, **said}
    profile: dict[str, Any] = {"name": name}
    if more := set(said.get("streams", ())) - set(STANDARD_STREAMS):
        profile["streams"] = sorted({*STANDARD_STREAMS, *more})
    if "spread_limit" in said:
        profile["spread_limit"] = said["spread_limit"]
    return profile


def covers(found: Any, asked: Mapping[str, Any]) -> bool:
    """Whether a measurement's profile (all its keys) is what was asked for, or a larger one that has as many
    streams. A profile of format 1 has no name and is none of these."""
    if not isinstance(found, Mapping):
        return False
    if found.get("name") == asked["name"]:
        return all(found.get(key) == value for key, value in asked.items())
    if found.get("name") not in PROFILES or asked["name"] not in PROFILES:
        return False
    larger = PROFILES.index(found["name"]) > PROFILES.index(asked["name"])
    return larger and set(asked.get("streams", [1])) <= set(found.get("streams") or [])
