"""Does the engine still compute? One token asked for, and counters that only its work moves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import httpx

from onhost.group import Served
from onhost.http_client import make_client
from onhost.plan import JobError, read_secret
from onhost.ready import message_of

LEAST_PRIORITY = 1_000_000
"""vLLM serves small numbers first."""
METRICS_SECONDS = 5.0

# Each comes from the engine's own scheduler, not from the server in front of it: a dead engine under load has
# all of them frozen.
COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:kv_cache_usage_perc",
)
_LINE = re.compile(r"^(\S+?)(?:\{[^}]*\})?\s+(\S+)")


class Outcome(Enum):
    TOKEN = "a token"
    NONE = "no token"
    REFUSED = "the question refused"  # by a server that answers: of the engine that says nothing


@dataclass(frozen=True)
class Seen:
    """What a probe found; `work`: the counters, None where they cannot be read."""

    outcome: Outcome
    said: str = ""
    work: tuple[float, ...] | None = None


class Verdict(Enum):
    ALIVE = "alive"
    SLOW = "slow"
    MISSED = "missed"
    DEAD = "dead"
    NOT_CHECKED = "not checked"


class Judge:
    """Tells a slow engine from a dead one: dead is who gives no token `misses` times in a row while no
    counter moves."""

    def __init__(self) -> None:
        self.missed = 0
        self._work: tuple[float, ...] | None = None

    def forget(self) -> None:
        """Another start of the engine: nothing that was seen counts."""
        self.missed, self._work = 0, None

    def see(self, seen: Seen, misses: int) -> Verdict:
        moved = seen.work is not None and self._work is not None and seen.work != self._work
        self._work = seen.work if seen.work is not None else self._work
        if seen.outcome is not Outcome.NONE or moved:
            self.missed = 0
            if seen.outcome is Outcome.TOKEN:
                return Verdict.ALIVE
            return Verdict.SLOW if seen.outcome is Outcome.NONE else Verdict.NOT_CHECKED
        self.missed += 1
        return Verdict.DEAD if self.missed >= misses else Verdict.MISSED


def work_of(metrics: str) -> tuple[float, ...] | None:
    """The counters in a /metrics page, summed over their labels; None where it has none of them."""
    sums: dict[str, float] = {}
    for line in metrics.splitlines():
        match = _LINE.match(line)
        if match and match[1] in COUNTERS:
            try:
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
            except ValueError:
                continue
    return tuple(sums.get(name, 0.0) for name in COUNTERS) if sums else None


def probe(served: Served, timeout: float) -> Seen:
    """Ask for one token, within `timeout` s, behind every request of a user where the engine knows ranks of
    requests; the counters are read afterwards."""
    try:
        key = None if served.api_key_file is None else read_secret(served.api_key_file)
    except JobError as error:
        return Seen(Outcome.REFUSED, str(error))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = served.endpoint.rstrip("/")
    body = {"model": served.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    if served.priority:
        body["priority"] = LEAST_PRIORITY
    with make_client(timeout=timeout, headers=headers, proxies=False) as client:
        try:
            answer = client.post(f"{url}/v1/completions", json=body)
            outcome, said = _read(answer)
        except httpx.TimeoutException:
            outcome, said = Outcome.NONE, f"no answer in {timeout:.0f} s"
        except httpx.HTTPError as error:
            outcome, said = Outcome.NONE, str(error) or type(error).__name__
        work = None
        if outcome is not Outcome.TOKEN:
            try:
                page = client.get(f"{url}/metrics", timeout=METRICS_SECONDS)
                work = work_of(page.text) if page.status_code == 200 else None
            except httpx.HTTPError:
                work = None
    return Seen(outcome, said, work)


def _read(answer: httpx.Response) -> tuple[Outcome, str]:
    try:
        data = answer.json()
    except ValueError:
        data = None
    if answer.status_code == 200:
        try:
            if data["usage"]["completion_tokens"] > 0:
                return Outcome.TOKEN, ""
        except (TypeError, KeyError):
            pass
        return Outcome.NONE, f"HTTP 200 without a token ({message_of(data)})"
    said = f"HTTP {answer.status_code} ({message_of(data)})"
    # 429 is an engine that has too much to do; its counters say whether it does it.
    refused = 400 <= answer.status_code < 500 and answer.status_code not in (408, 429)
    return (Outcome.REFUSED if refused else Outcome.NONE), said
