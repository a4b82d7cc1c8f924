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
    model has it by itself; medians in s and tokens/s, None where there is no figure; `failure` is the first
    reason of requests that failed."""

    streams: int
    category: str
    thinking: bool | None
    ttft_s: float | None
    decode_tok_s: float | None
    total_tok_s: float | None
    acceptance: float | None
    requests: int
    failed: int
    failure: str = ""

    @property
    def prompts(self) -> str:
        name = "all kinds" if self.category == "all" else self.category
        thinking = {None: "", True: ", thinking", False: ", not thinking"}[self.thinking]
        return f"{name}{thinking}"

    @property
    def row(self) -> tuple[str, ...]:
        """One text for each of HEADINGS."""
        return (
            str(self.streams),
            self.prompts,
            with_unit(self.ttft_s, "s"),
            with_unit(self.decode_tok_s, "tok/s"),
            with_unit(self.total_tok_s, "tok/s"),
            "" if self.acceptance is None else percent(self.acceptance),
            f"{self.requests}" + (f" ({self.failed} failed)" if self.failed else ""),
        )

    @property
    def line(self) -> str:
        """`with 4 streams: TTFT 0.31 s, decode 7.1 tok/s`, and the kind of prompts where it is not all."""
        streams = f"{self.streams} stream" + ("s" if self.streams != 1 else "")
        kind = "" if self.category == "all" and self.thinking is None else f", {self.prompts}"
        ttft, decode = with_unit(self.ttft_s, "s"), with_unit(self.decode_tok_s, "tok/s")
        failed = f"; {failed_text(self.requests, self.failed, self.failure)}" if self.failed else ""
        return f"with {streams}{kind}: TTFT {ttft}, decode {decode}{failed}"


@dataclass(frozen=True)
class Answered:
    """A length of input or a rate of the open loop: its row of texts without the requests, and how many of
    them failed, with the first reason; `requests` None where a measurement does not tell."""

    row: tuple[str, ...]
    line: str
    requests: int | None
    failed: int
    failure: str

    @property
    def asked(self) -> str:
        """`5 (2 failed)`, or nothing where nobody counted."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{'' if self.requests is None else self.requests}{failed}".strip()

    @property
    def text(self) -> str:
        """Its line, with the requests that failed."""
        failed = f"; {failed_text(self.requests, self.failed, self.failure)}" if self.failed else ""
        return f"{self.line}{failed}"


def failed_text(requests: int | None, failed: int, failure: str) -> str:
    """`2 of 5 requests failed: HTTP 500`"""
    of = "" if requests is None else f" of {requests}"
    return f"{failed}{of} requests failed" + (f": {failure}" if failure else "")


def contexts_of(measurement: Mapping[str, Any] | None) -> list[Answered]:
    """The lengths of input that were measured; the row is length, TTFT, prefill, decode."""
    return [_context(one) for one in _maps((measurement or {}).get("contexts"))]


def open_loop_of(measurement: Mapping[str, Any] | None) -> list[Answered]:
    """The rates that were measured; the row is what was asked, what was reached, TTFT, output."""
    return [_rate(one) for one in _maps((measurement or {}).get("open_loop"))]


def _context(one: Mapping[str, Any]) -> Answered:
    tokens = one.get("input_tokens")
    # Where all of them failed nobody counted the input: what it was to be is known.
    asked = one.get("asked") if tokens is None else tokens
    length = "not known" if asked is None else f"{asked}" if tokens is not None else f"{asked} (asked)"
    ttft, decode = _text(one, "ttft_s", "s"), _text(one, "decode_tok_s", "tok/s")
    line = f"with {length} tokens of input: TTFT {ttft}, decode {decode}"
    return Answered((length, ttft, _text(one, "prefill_tok_s", "tok/s"), decode), line, *_requests(one))


def _rate(one: Mapping[str, Any]) -> Answered:
    rate, achieved = _text(one, "rate_rps", "/s"), _text(one, "achieved_rps", "/s")
    ttft, output = _text(one, "ttft_s", "s"), _text(one, "output_tok_s", "tok/s")
    line = f"with requests at {rate}: reached {achieved}, TTFT {ttft}, output {output}"
    return Answered((rate, achieved, ttft, output), line, *_requests(one))


def _text(one: Mapping[str, Any], figure: str, unit: str) -> str:
    return with_unit(middle(one.get(figure)), unit)


def _requests(one: Mapping[str, Any]) -> tuple[int | None, int, str]:
    requests, failed = middle(one.get("requests")), middle(one.get("failed"))
    return None if requests is None else int(requests), int(failed or 0), _first(one.get("failures"))


def _first(failures: Any) -> str:
    return str(failures[0]) if isinstance(failures, list) and failures else ""


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


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
            _first(point.get("failures")),
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
