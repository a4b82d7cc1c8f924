"""What many values come to: median, tail, and how sure the median is."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

RESAMPLES = 1000
MANY = 200  # values; from here on the bootstrap's limit is taken, which costs nothing and is as good
SEED = 20261129


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, greatest, number, 90th and 99th percentile, and a 95 % interval of the median.

    Nulls where there is no value. The interval is null for one value: that says nothing about the next.
    """
    if not values:
        return {"median": None, "min": None, "max": None, "n": 0, "p90": None, "p99": None, "ci": None}
    ordered = sorted(values)
    low_high = interval(ordered)
    return {
        "median": tidy(statistics.median(ordered)),
        "min": tidy(ordered[0]),
        "max": tidy(ordered[-1]),
        "n": len(ordered),
        "p90": tidy(percentile(ordered, 0.90)),
        "p99": tidy(percentile(ordered, 0.99)),
        "ci": None if low_high is None else [tidy(value) for value in low_high],
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two values around the place, as most tools do; of ascending values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median of ascending values: the bootstrap's percentiles, always the same ones.

    For many values the resampled median's place is normal, √n/2 wide, and so the interval's ends are values.
    """
    count = len(ordered)
    if count < 2:
        return None
    if count > MANY:
        reach = 1.96 * math.sqrt(count) / 2
        return ordered[math.floor(count / 2 - reach)], ordered[min(count - 1, math.ceil(count / 2 + reach))]
    chance = random.Random(SEED)
    medians = sorted(statistics.median(chance.choices(ordered, k=count)) for _ in range(RESAMPLES))
    return percentile(medians, 0.025), percentile(medians, 0.975)


def spread(values: Sequence[float]) -> float | None:
    """(greatest − least) / median of what should be the same; None for less than two values."""
    if len(values) < 2 or statistics.median(values) <= 0:
        return None
    return tidy((max(values) - min(values)) / statistics.median(values))


def tidy(value: float) -> float:
    """Five digits that count: more is noise, and a fixed number of decimals would lose short times."""
    return float(f"{value:.5g}")


def slope(times: Sequence[float]) -> float | None:
    """How many a second, of ascending times: the line through them, which a bunch at an end does not bend."""
    if len(times) < 3:
        return None
    middle, half = statistics.fmean(times), (len(times) - 1) / 2
    spread_of_times = sum((at - middle) ** 2 for at in times)
    if not spread_of_times:
        return None
    return sum((at - middle) * (number - half) for number, at in enumerate(times)) / spread_of_times


def rate(amount: float, seconds: float) -> float | None:
    """A second's amount; None where no time passed."""
    return tidy(amount / seconds) if seconds > 0 else None
