"""What a recipe expects of its benchmark, and how it is measured."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from sparkstack.schema import Strict, refusal


class Bound(Strict):
    """At least `min`, at most `max`, or both."""

    min: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _says_something(self) -> Bound:
        if self.min is None and self.max is None:
            raise refusal("min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refusal("a min that is not above max")
        return self


class Expect(Strict):
    """What a benchmark must reach, by number of streams: decode tokens/s of one stream, seconds to the
    first token, tokens/s of all streams together. What is not named is measured as a baseline.

    `categories` (decode tokens/s of one stream by kind of prompt) and `quality` (a score by test) can be
    declared; nothing measures them yet, and `check` says so.
    """

    decode_tok_s: dict[int, Bound] = Field(default_factory=dict)
    ttft_s: dict[int, Bound] = Field(default_factory=dict)
    total_tok_s: dict[int, Bound] = Field(default_factory=dict)
    categories: dict[str, Bound] = Field(default_factory=dict)
    quality: dict[str, Bound] = Field(default_factory=dict)

    def by_streams(self) -> list[tuple[str, dict[int, Bound]]]:
        """The figures that are declared by number of streams."""
        return [(name, getattr(self, name)) for name in ("decode_tok_s", "ttft_s", "total_tok_s")]

    @model_validator(mode="before")
    @classmethod
    def _streams(cls, value: Any) -> Any:
        # People write 1 and "1"; both mean one stream. Anything else is left for the type check to refuse.
        if not isinstance(value, dict):
            return value
        return {
            key: {_count(streams): bound for streams, bound in bounds.items()}
            if isinstance(bounds, dict) and str(key).endswith("_s")
            else bounds
            for key, bounds in value.items()
        }


def _count(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and int(key) > 0 else key


class Benchmark(Strict):
    """The profile of the measurement: how many streams at once, and how many requests of what length."""

    streams: list[int] = Field(default=[1], min_length=1)
    max_tokens: int = Field(default=64, ge=2)
    warmup: int = Field(default=1, ge=0)
    repeats: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _streams_count(self) -> Benchmark:
        if any(streams < 1 for streams in self.streams) or len(set(self.streams)) < len(self.streams):
            raise refusal("each number of streams once, 1 or more")
        return self
