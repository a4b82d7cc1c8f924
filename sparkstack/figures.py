"""The figures of a measurement as people read them: while it runs, and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEADINGS = ("streams", "prompts", "TTFT", "decode", "all streams", "accepted", "requests")


@dataclass(frozen=True)
class Figures:
    """One point: `streams` requests at a time, `category` of prompts, `thinking` on, off or (None) as the
    model has it by itself; medians in s and tokens/s, None where there is no figure."""

    streams: int
    category: str
    thinking: bool | None
    ttft_s: float | None
    decode_tok_s: float | None
    total_tok_s: float | None
    acceptance: float | None
    requests: int
    failed: int

    @property
    def prompts(self) -> str:
        name = "all kinds" if self.category == "all" else self.category
        thinking = {None: "", True: ", thinking", False: ", not thinking"}[self.thinking]
        return f"{name}{thinking}"

    @property
    def row(self) -> tuple[str, ...]:
        """One text for each of HEADINGS."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return (
            str(self.streams),
            self.prompts,
            with_unit(self.ttft_s, "s"),
            with_unit(self.decode_tok_s, "tok/s"),
            with_unit(self.total_tok_s, "tok/s"),
            "" if self.acceptance is None else percent(self.acceptance),
            f"{self.requests}{failed}",
        )

    @property
    def line(self) -> str:
        """`with 4 streams: TTFT 0.31 s, decode 7.1 tok/s`, and the kind of prompts where it is not all."""
        streams = f"{self.streams} stream" + ("s" if self.streams != 1 else "")
        kind = "" if self.category == "all" and self.thinking is None else f", {self.prompts}"
        ttft, decode = with_unit(self.ttft_s, "s"), with_unit(self.decode_tok_s, "tok/s")
        return f"with {streams}{kind}: TTFT {ttft}, decode {decode}"


def with_unit(value: float | None, unit: str) -> str:
    return "not measured" if value is None else f"{value:.3g} {unit}"


def percent(share: float) -> str:
    """0.031 as 3.1 %, 20.0 as 2000 %."""
    value = share * 100
    return f"{value:.0f} %" if value >= 1000 else f"{value:.3g} %"


def points_of(measurement: Mapping[str, Any] | None) -> list[Figures]:
    """The points of a measurement of either format, in its order; what is no point is left out, for a report
    is shown whatever a host wrote."""
    points = (measurement or {}).get("points")
    return [one for one in map(point_of, points if isinstance(points, list) else []) if one is not None]


def point_of(point: Any) -> Figures | None:
    """One point's figures; None for what is no point."""
    try:
        return Figures(
            int(point["streams"]),
            str(point.get("category", "all")),
            point.get("thinking") if isinstance(point.get("thinking"), bool) else None,
            middle(point.get("ttft_s")),
            middle(point.get("decode_tok_s")),
            middle(point.get("total_tok_s")),
            middle(point.get("acceptance")),
            int(point.get("requests", 0)),
            int(point.get("failed", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def middle(value: Any) -> float | None:
    """The median of a distribution, or the number itself; None for anything else."""
    if isinstance(value, Mapping):
        value = value.get("median")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def interval(value: Any) -> tuple[float, float] | None:
    """The confidence interval of a distribution's median, None where there is none."""
    ends = value.get("ci") if isinstance(value, Mapping) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    low, high = middle(ends[0]), middle(ends[1])
    return None if low is None or high is None else (low, high)


def table_of(measurement: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows for HEADINGS, a point each."""
    return [point.row for point in points_of(measurement)]


def notes_of(measurement: Mapping[str, Any] | None) -> list[str]:
    """What the measurement left out, and why."""
    notes = (measurement or {}).get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []
