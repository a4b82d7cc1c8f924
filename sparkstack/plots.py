"""Plots for the report's page: inline SVG that takes its colours from the page's style sheet.

Nothing but text comes in from outside, and all of it is escaped. The drawing is 340 units wide, about a
phone's pixels, so that its letters stay readable there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
LETTER = 6.6
"""About how wide a letter of the labels is."""


@dataclass(frozen=True)
class Bar:
    """A labelled value; `low` and `high` are the ends of its interval, `text` the value as it is written."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of a line, by x; `ends` are the intervals of each, None where there is none."""

    name: str
    points: Sequence[tuple[float, float]]
    ends: Sequence[tuple[float, float] | None] = ()


def bars(title: str, rows: Sequence[Bar]) -> Markup:
    """Horizontal bars from zero, the label above each; "" without rows."""
    if not rows:
        return Markup("")
    most = max([row.value for row in rows] + [row.high or 0 for row in rows]) or 1
    step, room = 36, max(len(row.text) for row in rows) * LETTER + 8
    scale = (WIDTH - room) / most
    parts = []
    for at, row in enumerate(rows):
        y = at * step
        width = max(row.value * scale, 1)
        parts.append(Markup('<text class="label" x="0" y="{}">{}</text>').format(y + 12, row.label))
        parts.append(
            Markup('<rect class="bar" x="0" y="{}" width="{}" height="12" rx="2"/>').format(y + 17, _n(width))
        )
        end = width
        if row.low is not None and row.high is not None:
            parts.append(_whisker(row.low * scale, row.high * scale, y + 23))
            end = max(end, row.high * scale)
        parts.append(
            Markup('<text class="value" x="{}" y="{}">{}</text>').format(_n(end + 6), y + 27, row.text)
        )
    return _svg(title, len(rows) * step, parts)


def _whisker(low: float, high: float, y: float) -> Markup:
    path = f"M{_n(low)} {y}H{_n(high)}M{_n(low)} {y - 4}V{y + 4}M{_n(high)} {y - 4}V{y + 4}"
    return Markup('<path class="whisker" d="{}"/>').format(path)


def lines(title: str, series: Sequence[Series], x_title: str, unit: str) -> Markup:
    """Lines over x, from zero up; "" without points. Each line has its name at its end, each point its
    value for who points at it."""
    series = [one for one in series if one.points]
    if not series:
        return Markup("")
    height, left, bottom, top = 190, 44, 34, 22
    xs = sorted({x for one in series for x, _ in one.points})
    highs = [y for one in series for _, y in one.points]
    highs += [ends[1] for one in series for ends in one.ends if ends]
    ticks = ticks_to(max(highs))
    right = WIDTH - 12

    def place_x(x: float) -> float:
        if len(xs) == 1:
            return (left + right) / 2
        return left + (right - left) * (x - xs[0]) / (xs[-1] - xs[0])

    def place_y(y: float) -> float:
        return height - bottom - (height - bottom - top) * y / ticks[-1]

    parts = [Markup('<text class="unit" x="0" y="12">{}</text>').format(unit)]
    for tick in ticks:
        y = _n(place_y(tick))
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(left, y, right))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
                left - 6, _n(place_y(tick) + 4), f"{tick:g}"
            )
        )
    last = -math.inf
    for x in xs:
        if place_x(x) - last >= 24:  # numbers must not touch
            last = place_x(x)
            parts.append(
                Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                    _n(last), height - bottom + 16, f"{x:g}"
                )
            )
    parts.append(
        Markup('<text class="unit" x="{}" y="{}" text-anchor="end">{}</text>').format(
            right, height - 3, x_title
        )
    )
    for number, one in enumerate(series, 1):
        parts += _series(number, one, place_x, place_y)
    return _svg(title, height, parts) + _legend(series)


Place = Callable[[float], float]


def _series(number: int, one: Series, place_x: Place, place_y: Place) -> list[Markup]:
    parts = []
    for (x, _), ends in zip(one.points, one.ends, strict=False):
        if ends:
            at, low, high = place_x(x), place_y(ends[0]), place_y(ends[1])
            path = f"M{_n(at)} {_n(low)}V{_n(high)}M{_n(at - 4)} {_n(low)}h8M{_n(at - 4)} {_n(high)}h8"
            parts.append(Markup('<path class="whisker" d="{}"/>').format(path))
    way = "L".join(f"{_n(place_x(x))} {_n(place_y(y))}" for x, y in one.points)
    parts.append(Markup('<path class="line line{}" d="M{}"/>').format(number, way))
    for x, y in one.points:
        said = f"{one.name}, {x:g}: {y:.3g}"
        parts.append(
            Markup('<circle class="dot dot{}" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>').format(
                number, _n(place_x(x)), _n(place_y(y)), said
            )
        )
    return parts


def _legend(series: Sequence[Series]) -> Markup:
    """Names beside the colours, and beside them how a line is drawn: colours alone say nothing to some."""
    if len(series) < 2:
        return Markup("")
    items = [
        Markup(
            '<span><svg class="key" viewBox="0 0 26 8" aria-hidden="true">'
            '<path class="line line{}" d="M0 4H26"/></svg> {}</span>'
        ).format(number, one.name)
        for number, one in enumerate(series, 1)
    ]
    return Markup('<p class="legend">{}</p>').format(Markup(" ").join(items))


def ticks_to(most: float) -> list[float]:
    """0 to at least `most` in three to six round steps."""
    if not most > 0 or not math.isfinite(most):
        return [0, 1]
    power = 10 ** math.floor(math.log10(most))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1, 2) if most / (power * part) <= 5)
    return [round(step * n, 10) for n in range(math.ceil(round(most / step, 9)) + 1)]


def _svg(title: str, height: float, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>{}</svg>'
    ).format(WIDTH, _n(height), title, title, Markup("").join(parts))


def _n(value: float) -> Markup:
    return escape(f"{value:.1f}".removesuffix(".0"))
