"""One line of a verdict: a figure beside what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkstack.expectation import Bound

LineVerdict = Literal["pass", "fail", "baseline", "inconclusive", "not checked"]


@dataclass(frozen=True)
class Line:
    """One figure: `decode_tok_s@4` is that of four streams, `decode_tok_s@1/coding` of a kind of prompt,
    `quality/NAME` a test, `failed_requests@…` a point, length of input or rate with failures. `ratio` is
    measured ÷ expected (the limit that was missed, else `value`, else the first of min, max): from 1.0 up
    passes a min, up to 1.0 passes a max. `note` says why a line is neither pass nor fail."""

    name: str
    measured: float | str | None
    expected: str | None
    ratio: float | None
    verdict: LineVerdict
    note: str | None = None


def figure_name(figure: str, category: str, streams: int) -> str:
    """What a point's line is called."""
    return f"{figure}@{streams}" + ("" if category == "all" else f"/{category}")


def number(value: Any) -> float | None:
    """A figure of a point: the median of many, or one number; None for what is no number."""
    if isinstance(value, Mapping):
        value = value["median"]
    found = None if value is None else float(value)
    # JSON has no such number, and no gate may pass on one.
    return found if found is not None and math.isfinite(found) else None


def compared(name: str, measured: float | None, bound: Bound, rising: bool) -> Line:
    """A figure beside its bound; `rising`: more of it is better. What was not measured is a miss."""
    limits, expected = bound.limits(rising), bound.text(rising)
    if measured is None:
        return Line(name, None, expected, None, "fail")
    missed = [limit for sign, limit in limits if (measured < limit if sign == "≥" else measured > limit)]
    beside = missed[0] if missed else bound.value or limits[0][1]
    return Line(name, measured, expected, round(measured / beside, 4), "fail" if missed else "pass")
