"""Was it fast enough, and did it talk sense? A measurement beside what the recipe expects of it.

A miss fails. A figure of a measurement that is noisy, or was cut off, or of one sample alone, is never a
pass: it is inconclusive, unless even its best sample (of one sample: twice as good a one) is a miss. What
this measurement did not look at is told as not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import ValidationError

from sparkstack import failed_requests, quality_gate
from sparkstack.errors import Problem, SparkstackError
from sparkstack.expectation import RISING, Bound, Expect
from sparkstack.figures import percent
from sparkstack.quality_gate import ASKED_OF_ALL, FAILED, IGNORED
from sparkstack.verdict_line import Line, LineVerdict, compared, figure_name, number

ALWAYS = ("decode_tok_s", "ttft_s", "total_tok_s")
"""Figures of which every point has a line; the others have one where they are expected, or (acceptance and
accepted length) where there is something to tell."""
TIMED = ("decode_tok_s", "ttft_s", "total_tok_s", "inter_token_s", "end_to_end_s")
"""Figures that a busy machine makes worse. What share of a draft is accepted does not hang on the clock."""
SPREAD_LIMIT = 0.1
"""Where a measurement does not say which spread it takes for noise."""
UNKNOWN_SPREAD = 1.0
"""What is allowed for where nobody knows the spread: only what misses its limit twice over is a miss."""

REQUESTS = "failed_requests@"
MOST_TOLD = 3
"""So many lines of failed requests are told in one line of a message."""

Result = Literal["pass", "fail", "baseline", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """`verdict.json` (docs/interfaces.md). `result` is "fail" where a line fails, else "inconclusive" where
    one is, or where the measurement was cut off, else "pass" where something that was expected was met, else
    "baseline". `why` says it in words; ok is a pass or a baseline."""

    release: str
    measured_at: str
    result: Result
    why: str
    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        return self.result in ("pass", "baseline")

    def as_dict(self) -> dict[str, Any]:
        value = {"format": 2, **asdict(self), "ok": self.ok}
        return {**value, "lines": [asdict(line) for line in self.lines]}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class _Doubt:
    """What speaks against believing the figures of a whole measurement; "" for nothing."""

    noisy: str
    cut: str
    spread_limit: float


Points = dict[tuple[str, int], Mapping[str, Any]]


def judge(measurement: Mapping[str, Any], expect: Expect | Mapping[str, Any] | None) -> Verdict:
    """Compare `measurement.json` (format 1 or 2) with `expect` (None: nothing is expected).

    Failed requests, output that makes no sense, and an expected number of streams that should have been
    measured and was not fail whatever the speed. So does garbage of a model that chats, where there is an
    `expect`, and it does not say otherwise.
    Errors: SparkstackError when either does not have the contract's form.
    """
    wanted = _expect(expect)
    try:
        points = _points(measurement["points"])
        doubt = _doubt(measurement)
        lines = [line for key, point in points.items() for line in _of_point(key, point, wanted, doubt)]
        lines += failed_requests.lines(measurement)
        lines += _not_measured(points, wanted, measurement, doubt)
        quality = quality_gate.lines(measurement, wanted, usual=expect is not None)
        lines += [_cut(line, doubt) for line in quality]
        lines.append(_sane(measurement["sane"], doubt))
        release, when = str(measurement["release"]), str(measurement["when"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__} {error}"
        raise SparkstackError(
            Problem("measurement", found, "the form of format 1 or 2", "measure again, with the same version")
        ) from error
    return Verdict(release, when, *_result(lines, doubt), tuple(lines))


def missed(verdict: Mapping[str, Any]) -> str:
    """What a verdict (`as_dict`) holds against a release, in one line; of a test what it found, of requests
    that failed why, too. Of those the first few stand for all: one cause is in many points."""

    def said(line: Mapping[str, Any]) -> str:
        told = line["name"].startswith(("quality/", REQUESTS))
        why = f": {line['note']}" if told and line["note"] else ""
        return f"{line['name']} {line['measured']} (expected {line['expected']}{why})"

    lines = [line for line in verdict["lines"] if line["verdict"] == "fail"]
    refused = [line for line in lines if line["name"].startswith(REQUESTS)]
    left_out = refused[MOST_TOLD:]
    rest = [f"{len(left_out)} more with failed requests"] if left_out else []
    return ", ".join([*(said(line) for line in lines if line not in left_out), *rest])


def remedy(measurement: Mapping[str, Any], option: str) -> str:
    """What to do about a verdict that is inconclusive; `option` names the profile of a run."""
    noise, profile = measurement.get("noise") or {}, measurement.get("profile") or {}
    if noise.get("verdict") == "unknown" and profile.get("name") == "smoke":
        return f"give it more time: --data {option}=standard"
    return "run again when nothing else runs there"


def _expect(expect: Expect | Mapping[str, Any] | None) -> Expect:
    if isinstance(expect, Expect):
        return expect
    try:
        return Expect.model_validate(dict(expect or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("expect", *first["loc"])))
        raise SparkstackError(Problem(where, repr(first["input"]), first["msg"], "correct it")) from error


def _points(found: list[Mapping[str, Any]]) -> Points:
    """The points by category and streams, those of all categories first. Where one was measured with and
    without thinking, the one as the model has it by itself counts, then the one without."""
    points: Points = {}
    order = {None: 0, False: 1, True: 2}
    for point in sorted(found, key=lambda one: order[one.get("thinking")]):
        points.setdefault((str(point.get("category", "all")), int(point["streams"])), point)
    return dict(sorted(points.items(), key=lambda item: (item[0][0] != "all", item[0])))


def _doubt(measurement: Mapping[str, Any]) -> _Doubt:
    noise = measurement.get("noise") or {}
    limit = float(noise.get("limit") or SPREAD_LIMIT)
    noisy = ""
    if noise.get("verdict") == "noisy":
        repeated = int(noise.get("repeated") or 0)
        again = f" after {repeated} more tries" if repeated > 1 else " after one more try" if repeated else ""
        spread = noise.get("spread")
        what = "not known" if spread is None else percent(float(spread))
        noisy = f"the machine is noisy: spread {what} over {percent(limit)}{again}"
    cut = "" if measurement.get("complete", True) else "the measurement was stopped before its end"
    return _Doubt(noisy, cut, limit)


def _bound(wanted: Expect, figure: str, category: str, streams: int) -> Bound | None:
    figures = wanted if category == "all" else wanted.categories.get(category)
    bound: Bound | None = getattr(figures, figure).get(streams) if figures is not None else None
    return bound


def _of_point(
    key: tuple[str, int], point: Mapping[str, Any], wanted: Expect, doubt: _Doubt
) -> Iterator[Line]:
    category, streams = key
    for figure in RISING:
        bound = _bound(wanted, figure, category, streams)
        value = number(point.get(figure))
        told = figure in ALWAYS or (figure in ("acceptance", "accepted_length") and value is not None)
        if bound is not None or (told and category == "all"):
            yield _figure(figure_name(figure, category, streams), figure, point, bound, doubt)


def _figure(name: str, figure: str, point: Mapping[str, Any], bound: Bound | None, doubt: _Doubt) -> Line:
    measured = number(point.get(figure))
    if bound is None:
        return Line(name, measured, None, None, "baseline")
    rising = RISING[figure]
    line = compared(name, measured, bound, rising)
    cut = int(point.get("cut") or 0) if figure == "end_to_end_s" else 0
    if cut and (measured is None or line.verdict != "fail"):
        # The requests that were not cut are the quickest: they may miss a limit for all, and not meet it.
        return _unsure(line, f"{cut} of {point['requests']} requests were cut by the profile's time")
    if measured is None:
        why = str(point.get("unmeasured") or "")
        if why and figure in TIMED and int(point["requests"]) > int(point["failed"]):
            return _unsure(line, why)
        return line if not doubt.cut else Line(name, None, line.expected, None, "not checked", doubt.cut)
    limits = bound.limits(rising)
    value, spread = point.get(figure), number(point.get("spread"))
    if figure not in TIMED:
        return _cut(line, doubt)
    if doubt.noisy:
        best = [_best_meets(sign, limit, value, measured, spread or 0.0) for sign, limit in limits]
        return line if line.verdict == "fail" and not all(best) else _unsure(line, doubt.noisy)
    if spread is None and (unknown := _no_spread(point, value)):
        best = [_best_meets(sign, limit, measured, measured, UNKNOWN_SPREAD) for sign, limit in limits]
        return line if line.verdict == "fail" and not all(best) else _unsure(line, unknown)
    if (spread is None or spread > doubt.spread_limit) and (inside := _inside(limits, value)):
        if spread is None:
            return _unsure(line, f"{inside}, and without repeats the spread is not known")
        why = f"{inside}, and the spread is {percent(spread)}, over {percent(doubt.spread_limit)}"
        return _unsure(line, why)
    return _cut(line, doubt)


def _no_spread(point: Mapping[str, Any], value: Any) -> str:
    """Why the samples of a point without repeats do not tell how far they are apart; "" where they do."""
    requests = int(point["requests"])
    # The waits between one request's tokens are many, and still one sample.
    samples = min(requests, int(value.get("n") or requests)) if isinstance(value, Mapping) else requests
    if samples < 2:
        return "one sample: its spread is not known"
    return "its requests were cut short, and its spread is not known" if int(point.get("cut") or 0) else ""


def _cut(line: Line, doubt: _Doubt) -> Line:
    """Of a measurement that was stopped nothing is a pass."""
    return _unsure(line, doubt.cut) if doubt.cut and line.verdict == "pass" else line


def _unsure(line: Line, why: str) -> Line:
    return Line(line.name, line.measured, line.expected, line.ratio, "inconclusive", why)


def _best_meets(sign: str, limit: float, value: Any, median: float, spread: float) -> bool:
    """Whether the best of the samples meets the limit. Of one number the best is what its spread allows."""
    if isinstance(value, Mapping):
        best = value.get("max" if sign == "≥" else "min")
        best = median if best is None else float(best)
    else:
        best = median * (1 + spread) if sign == "≥" else median / (1 + spread)
    return best >= limit if sign == "≥" else best <= limit


def _inside(limits: list[tuple[Literal["≥", "≤"], float]], value: Any) -> str:
    """Which limit lies inside the confidence interval of the median; "" where none does."""
    interval = value.get("ci") if isinstance(value, Mapping) else None
    if not interval or interval[0] is None or interval[1] is None:
        return ""
    low, high = float(interval[0]), float(interval[1])
    for _, limit in limits:
        if low < limit < high:
            return f"the limit {limit:g} lies inside the median's interval {low:.4g} to {high:.4g}"
    return ""


def _not_measured(
    points: Points, wanted: Expect, measurement: Mapping[str, Any], doubt: _Doubt
) -> Iterator[Line]:
    """What is expected of a point that is not there. A profile says what it is to measure: within that a
    missing point is a miss; outside nobody looked."""
    profile = measurement.get("profile") or {}
    name = profile.get("name")
    for keys, category, streams, bound in wanted.all_by_streams():
        if (category, streams) in points:
            continue
        if category == "all":
            due = "streams" not in profile or streams in profile["streams"]
        else:
            named = profile.get("categories") or []
            due = streams in (profile.get("category_streams") or [])
            due = due and (named == "all" or category in named)
        why = doubt.cut or ("" if due else f"the profile {name or 'custom'} does not measure it")
        verdict: LineVerdict = "not checked" if why else "fail"
        if not why and (note := _left_out(measurement, category, streams)):
            verdict, why = "inconclusive", note
        figure = keys[-1]
        text = bound.text(RISING[figure])
        yield Line(figure_name(figure, category, streams), None, text, None, verdict, why or None)


def _left_out(measurement: Mapping[str, Any], category: str, streams: int) -> str:
    """What the measurement says of a point that it had no time for; "" for nothing."""
    start = f"speed: with {streams} streams " if category == "all" else ("categories: ", "thinking ")
    return next((str(one) for one in measurement.get("notes") or [] if str(one).startswith(start)), "")


def _sane(sane: Mapping[str, Any], doubt: _Doubt) -> Line:
    good = sane["ok"] is True
    line = Line("sane", str(sane["found"]), "output that makes sense", None, "pass" if good else "fail")
    return _cut(line, doubt)


def _result(lines: list[Line], doubt: _Doubt) -> tuple[Result, str]:
    def named(verdict: LineVerdict) -> list[Line]:
        return [line for line in lines if line.verdict == verdict]

    failed, unsure = named("fail"), named("inconclusive")
    skipped = [line for line in named("not checked") if line.expected is not None]
    met = [line for line in named("pass") if line.name != "sane" and line.note != ASKED_OF_ALL]
    rest = [f"{len(skipped)} not checked"] if skipped else []
    if nonsense := [line.name.removeprefix("quality/") for line in lines if line.note == FAILED]:
        # A model with random weights fails them rightly, so that only a recipe makes them count; but who
        # reads "pass" shall not have to look for this.
        rest.append(f"tests that failed and of which nothing is expected: {', '.join(nonsense)}")
    if ignored := [line.name.removeprefix("quality/") for line in lines if line.note == IGNORED]:
        rest.append(f"left out of the gate by the recipe: {', '.join(ignored)}")
    if failed:
        return "fail", "; ".join([f"missed: {', '.join(line.name for line in failed)}", *rest])
    if doubt.cut or unsure:
        why = doubt.cut or doubt.noisy or f"{unsure[0].name}: {unsure[0].note}"
        return "inconclusive", "; ".join([why, *rest])
    if met:
        return "pass", "; ".join([f"{len(met)} of {len(met)} expected figures met", *rest])
    noise = [doubt.noisy] if doubt.noisy else []
    why = "nothing that is expected was measured" if skipped else "nothing is expected"
    return "baseline", "; ".join([f"{why}: these figures are a baseline", *noise, *rest])
