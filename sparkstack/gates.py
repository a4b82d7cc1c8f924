"""Was it fast enough, and did it talk sense? A measurement beside what the recipe expects of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import ValidationError

from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import Bound, Expect

FIGURES = ("decode_tok_s", "ttft_s", "total_tok_s")


@dataclass(frozen=True)
class Line:
    """One figure. `ratio` is measured ÷ expected (the limit that was missed, else the first of min, max):
    from 1.0 up passes a min, up to 1.0 passes a max."""

    name: str
    measured: float | str | None
    expected: str | None
    ratio: float | None
    verdict: Literal["pass", "fail", "baseline"]


@dataclass(frozen=True)
class Verdict:
    """`verdict.json` (docs/interfaces.md): ok when no line fails."""

    release: str
    measured_at: str
    ok: bool
    lines: tuple[Line, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self), "lines": [asdict(line) for line in self.lines]}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"


def judge(measurement: Mapping[str, Any], expect: Expect | Mapping[str, Any] | None) -> Verdict:
    """Compare `measurement.json` with `expect` (None: nothing is expected, everything is a baseline).

    Failed requests, output that makes no sense, and an expected number of streams that was not measured
    fail whatever the speed. Errors: SparkstackError when either does not have the contract's form.
    """
    wanted = _expect(expect)
    try:
        points = {int(point["streams"]): point for point in measurement["points"]}
        lines = [line for streams in sorted(points) for line in _point(streams, points[streams], wanted)]
        lines += _not_measured(points, wanted)
        lines.append(_sane(measurement["sane"]))
        release, when = str(measurement["release"]), str(measurement["when"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__} {error}"
        raise SparkstackError(
            Problem("measurement", found, "the form of format 1", "measure again, with the same version")
        ) from error
    return Verdict(release, when, all(line.verdict != "fail" for line in lines), tuple(lines))


def _expect(expect: Expect | Mapping[str, Any] | None) -> Expect:
    if isinstance(expect, Expect):
        return expect
    try:
        return Expect.model_validate(dict(expect or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("expect", *first["loc"])))
        raise SparkstackError(Problem(where, repr(first["input"]), first["msg"], "correct it")) from error


def _point(streams: int, point: Mapping[str, Any], wanted: Expect) -> list[Line]:
    lines = []
    for figure in FIGURES:
        value = point.get(figure)
        if isinstance(value, Mapping):
            value = value["median"]
        measured = None if value is None else float(value)
        lines.append(_line(f"{figure}@{streams}", measured, getattr(wanted, figure).get(streams)))
    failed = int(point["failed"])
    if failed or not int(point["requests"]):
        found = f"{failed} of {point['requests']}"
        lines.append(Line(f"failed_requests@{streams}", found, "none of at least 1", None, "fail"))
    return lines


def _line(name: str, measured: float | None, bound: Bound | None) -> Line:
    if measured is not None and not math.isfinite(measured):
        measured = None  # JSON has no such number, and no gate may pass on one
    if bound is None:
        return Line(name, measured, None, None, "baseline")
    limits = [(sign, limit) for sign, limit in (("≥", bound.min), ("≤", bound.max)) if limit is not None]
    expected = ", ".join(f"{sign} {limit}" for sign, limit in limits)
    if measured is None:
        return Line(name, None, expected, None, "fail")
    missed = [limit for sign, limit in limits if (measured < limit if sign == "≥" else measured > limit)]
    ratio = round(measured / (missed[0] if missed else limits[0][1]), 4)
    return Line(name, measured, expected, ratio, "fail" if missed else "pass")


def _not_measured(points: Mapping[int, Any], wanted: Expect) -> list[Line]:
    return [
        _line(f"{figure}@{streams}", None, bound)
        for figure in FIGURES
        for streams, bound in sorted(getattr(wanted, figure).items())
        if streams not in points
    ]


def _sane(sane: Mapping[str, Any]) -> Line:
    good = sane["ok"] is True
    return Line("sane", str(sane["found"]), "output that makes sense", None, "pass" if good else "fail")
