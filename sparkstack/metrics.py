"""What two readings of an engine's `/metrics` say: its speed, how full it is, how often drafts were right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The second is its name before vLLM 0.10."""
GENERATED, PROMPT = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
FIRST_TOKEN = "vllm:time_to_first_token_seconds"


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
    that began between the readings.
    """

    generated_tok_s: float | None = None
    prompt_tok_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    acceptance: float | None = None
    ttft_s: float | None = None


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
    kv = next((last.largest[name] for name in KV_USE if name in last.largest), None)
    return Figures(
        generated_tok_s=_rate(first, last, GENERATED),
        prompt_tok_s=_rate(first, last, PROMPT),
        running=_count(last, RUNNING),
        waiting=_count(last, WAITING),
        kv_use=kv,
        acceptance=_acceptance(first, last),
        ttft_s=_mean(first, last, FIRST_TOKEN),
    )


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


def _acceptance(first: Reading | None, last: Reading) -> float | None:
    """Of the tokens drafted between the readings; of all since the engine began where there were none."""
    drafted, accepted = _grown(first, last, DRAFTED), _grown(first, last, ACCEPTED)
    if not drafted or accepted is None:
        drafted, accepted = last.values.get(DRAFTED), last.values.get(ACCEPTED)
    return accepted / drafted if drafted and accepted is not None else None


def _mean(first: Reading | None, last: Reading, name: str) -> float | None:
    total, count = _grown(first, last, f"{name}_sum"), _grown(first, last, f"{name}_count")
    return total / count if count and total is not None else None
