"""What two readings of an engine's `/metrics` say: its speed, how full it is, how often drafts were right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from sparkstack import engine_metrics
from sparkstack.engine_metrics import Names


@dataclass(frozen=True)
class Reading:
    """`values` by name: every engine's and model's added up, but for `largest`. `at` is a time in s."""

    at: float
    values: Mapping[str, float]
    largest: Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """None is "not measured": the engine has no such figure, or there is no second reading of it.

    Rates are tokens a second; `kv_use` and `acceptance` are parts of 1; `ttft_s` is the mean of the requests
    that began between the readings. `engine` is whose names they were under, and `not_told` the figures that
    this engine has no name for.
    """

    generated_tok_s: float | None = None
    prompt_tok_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    acceptance: float | None = None
    ttft_s: float | None = None
    engine: str | None = None
    not_told: list[str] = field(default_factory=list)


def read(text: str, at: float) -> Reading:
    """A reading from Prometheus's text format. Errors: ValueError for what is none."""
    total: dict[str, float] = {}
    largest: dict[str, float] = {}
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                total[sample.name] = total.get(sample.name, 0.0) + sample.value
                largest[sample.name] = max(largest.get(sample.name, sample.value), sample.value)
    return Reading(at, total, largest)


def figures(first: Reading | None, last: Reading) -> Figures:
    """What the engine did between two readings, and what it is at in the last one."""
    names = engine_metrics.of(last.values)
    if names is None:
        return Figures()
    return Figures(
        generated_tok_s=_rate(first, last, _there(last, names.generated))
        if names.generated
        else _speed(first, last, names),
        prompt_tok_s=_rate(first, last, _there(last, names.prompt)),
        running=_count(last, _there(last, names.running)),
        waiting=_count(last, _there(last, names.waiting)),
        kv_use=last.largest.get(_there(last, names.kv_use)),
        acceptance=_acceptance(first, last, names),
        ttft_s=_mean(first, last, (*names.first_token, "")[0]),
        engine=names.engine,
        not_told=[*names.not_told, *_missing(last, names)],
    )


def _missing(last: Reading, names: Names) -> list[str]:
    """Gauges that other versions of this engine have."""
    gauges = {"running": names.running, "waiting": names.waiting, "kv_use": names.kv_use}
    return [figure for figure, several in gauges.items() if several and not _there(last, several)]


def _there(last: Reading, names: Sequence[str]) -> str:
    """The first of the names that the reading has; "" for none."""
    return next((name for name in names if name in last.values), "")


def _speed(first: Reading | None, last: Reading, names: Names) -> float | None:
    """What the engine says of its speed. It may be of what happened since somebody asked last (llama.cpp), so
    the first reading counts where the second has none; none in both, while requests run, says nothing."""
    name = _there(last, names.speed)
    readings = [last] if first is None else [last, first]
    said = [reading.values[name] for reading in readings if name in reading.values]
    speed = next((value for value in said if value > 0), 0.0 if said else None)
    return None if speed == 0 and _count(last, _there(last, names.running)) else speed


def _grown(first: Reading | None, last: Reading, name: str) -> float | None:
    """By how much a counter grew; None where it was begun anew in between (the engine was restarted)."""
    if first is None or name not in first.values or name not in last.values:
        return None
    grown = last.values[name] - first.values[name]
    return grown if grown >= 0 else None


def _rate(first: Reading | None, last: Reading, name: str) -> float | None:
    grown = _grown(first, last, name)
    return None if grown is None or first is None or last.at <= first.at else grown / (last.at - first.at)


def _count(last: Reading, name: str) -> int | None:
    return round(last.values[name]) if name in last.values else None


def _acceptance(first: Reading | None, last: Reading, names: Names) -> float | None:
    """Of the tokens drafted between the readings; of all since the engine began where there were none. A
    gauge of the engine's own, 0 where it drafts nothing, is taken where there is one."""
    if gauge := _there(last, names.acceptance):
        return last.largest[gauge] or None
    whole, part = _there(last, names.drafted), _there(last, names.accepted)
    drafted, accepted = _grown(first, last, whole), _grown(first, last, part)
    if not drafted or accepted is None:
        drafted, accepted = last.values.get(whole), last.values.get(part)
    return accepted / drafted if drafted and accepted is not None else None


def _mean(first: Reading | None, last: Reading, name: str) -> float | None:
    total, count = _grown(first, last, f"{name}_sum"), _grown(first, last, f"{name}_count")
    return total / count if count and total is not None else None
