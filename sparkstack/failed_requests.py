"""Requests that failed, wherever in a measurement: a server that refuses some is not as it should be, however
fast it answers the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkstack.verdict_line import Line, figure_name

WANTED = "none of at least 1"
BEYOND = "above the saturation point, which such a rate ends"
UNTAKEN = "the server takes no input of that length; the notes have its words"


def lines(measurement: Mapping[str, Any]) -> Iterator[Line]:
    """A line for each point, length of input and rate with failures, and for each point without requests."""
    for point in measurement["points"]:
        if int(point["failed"]) or not int(point["requests"]):
            yield _line(_point_name(point), point, "fail")
    for one in measurement.get("contexts") or []:
        name = f"failed_requests@context/{one.get('asked', one['input_tokens'])}"
        if int(one.get("failed") or 0):
            yield _line(name, one, "fail")
        elif one.get("requests") == 0:
            yield Line(name, None, WANTED, None, "not checked", UNTAKEN)
    limit = _kept_up(measurement)
    for one in measurement.get("open_loop") or []:
        if int(one.get("failed") or 0):
            rate = float(one["rate_rps"])
            name = f"failed_requests@open loop/{rate:g}"
            if rate > limit and rate not in _asked_rates(measurement):
                yield Line(name, _found(one), None, None, "baseline", f"{_why(one)}; {BEYOND}")
            else:
                yield _line(name, one, "fail")


def _point_name(point: Mapping[str, Any]) -> str:
    thinking = {None: "", True: "/thinking", False: "/not thinking"}[point.get("thinking")]
    return figure_name("failed_requests", str(point.get("category", "all")), int(point["streams"])) + thinking


def _line(name: str, one: Mapping[str, Any], verdict: Any) -> Line:
    return Line(name, _found(one), WANTED, None, verdict, _why(one) or None)


def _found(one: Mapping[str, Any]) -> str:
    failed, requests = int(one.get("failed") or 0), one.get("requests")
    return str(failed) if requests is None else f"{failed} of {requests}"


def _why(one: Mapping[str, Any]) -> str:
    return "; ".join(str(why) for why in (one.get("failures") or [])[:3])


def _asked_rates(measurement: Mapping[str, Any]) -> list[float]:
    return [float(rate) for rate in (measurement.get("profile") or {}).get("rates") or []]


def _kept_up(measurement: Mapping[str, Any]) -> float:
    """The rate up to which a server has to answer all: the saturation point. A search for it goes on until
    something breaks, so above it failures are what was looked for; the lowest rate is always answered for."""
    if not (measurement.get("profile") or {}).get("saturation"):
        return float("inf")
    reached = (measurement.get("saturation") or {}).get("rate_rps")
    if reached is not None:
        return float(reached)
    asked = _asked_rates(measurement)
    rates = [float(one["rate_rps"]) for one in measurement.get("open_loop") or []]
    return min((rate for rate in rates if rate not in asked), default=float("inf"))
