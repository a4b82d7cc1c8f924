"""Does the engine still compute? One token asked for, and counters that only its work moves."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import httpx

from onhost.busy import Spent, slots_of, spent_by
from onhost.group import CONTAINER, Served
from onhost.http_client import ask
from onhost.plan import JobError, read_secret
from onhost.ready import NotInTime, message_of, wait

LEAST_PRIORITY = 1_000_000
"""vLLM serves small numbers first."""
REPLICA_HEADER = "X-data-parallel-rank"
"""By which vLLM's balancer is told the replica; without it an idle one goes to the first."""
_OWN_ENDPOINTS = {
    *("--data-parallel-rank", "-dpr", "--data-parallel-start-rank", "-dpn"),
    *("--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph"),
}
METRICS_SECONDS = 5.0
PATIENCE = 120.0
"""s that an engine without counters has for a completion, where nothing else tells a slow one from a dead."""

# Each comes from the engine's own scheduler, not from the server in front of it: a dead engine under load has
# all of them frozen. SGLang and llama.cpp's server show theirs where they were started with it. Atlas's are
# what its sampler and a stream's tokens move; its count of requests is the server's own.
COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:kv_cache_usage_perc",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:token_usage",
    "llamacpp:n_decode_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
    "atlas_decoded_tokens_total",
    "atlas_low_entropy_tokens_total",
    "atlas_token_entropy_last",
    "atlas_prompt_tokens_total",
)
# A label's value, such as a model's name, may hold any sign.
_LINE = re.compile(r'^([^\s{]+)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)')

LEAST_MISSES = 2
"""Looks at which an engine is found dead, at least: counters tell nothing before they were read twice."""


class Outcome(Enum):
    TOKEN = "a token"
    NONE = "no token"
    REFUSED = "the question refused"  # by a server that answers: of the engine that says nothing


@dataclass(frozen=True)
class Seen:
    """What a probe found; `work`: the counters, None where they cannot be read; `spent`: the processor time
    of an engine without counters, on one host, that has the question and does not answer."""

    outcome: Outcome
    said: str = ""
    work: tuple[float, ...] | None = None
    spent: Spent | None = None


class Verdict(Enum):
    ALIVE = "alive"
    SLOW = "slow"
    MISSED = "missed"
    DEAD = "dead"
    NOT_CHECKED = "not checked"


class Judge:
    """Tells a slow engine from a dead one: dead is who gives no token `misses` times in a row (at least
    LEAST_MISSES) while no counter moves, which a first reading does not tell. Processor time says "slow" for
    `busy` s and no longer: a hung engine may spin."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Another start of the engine: nothing that was seen counts."""
        self.missed = 0
        self._work: tuple[float, ...] | None = None
        self._spent: Spent | None = None
        self._since: float | None = None  # when the first reading without a token was taken

    def see(self, seen: Seen, misses: int, busy: float) -> Verdict:
        moved = seen.work is not None and self._work is not None and seen.work != self._work
        works = seen.spent is not None and seen.spent.works_since(self._spent)
        first = (seen.work is not None and self._work is None) or (
            seen.spent is not None and self._since is None
        )
        # What was read before a token is of another time: no counters are read with one.
        kept = None if seen.outcome is Outcome.TOKEN else self._work
        self._work = seen.work if seen.work is not None else kept
        self._spent = seen.spent
        if seen.outcome is not Outcome.NONE or moved:
            self.missed, self._since = 0, None
            if seen.outcome is Outcome.TOKEN:
                return Verdict.ALIVE
            return Verdict.SLOW if seen.outcome is Outcome.NONE else Verdict.NOT_CHECKED
        if seen.spent is not None:
            self._since = seen.spent.at if self._since is None else self._since
            if works and seen.spent.at - self._since <= busy:
                self.missed = 0
                return Verdict.SLOW
        self.missed += 1
        enough = self.missed >= max(misses, LEAST_MISSES) and not first
        return Verdict.DEAD if enough else Verdict.MISSED


def work_of(metrics: str, replica: int | None = None) -> tuple[float, ...] | None:
    """The counters in a /metrics page, summed over their labels; None where it has none of them. Of one
    replica alone where the page tells them apart."""
    sums: dict[str, float] = {}
    for line in metrics.splitlines():
        match = _LINE.match(line)
        if match and match[1] in COUNTERS:
            if replica is not None and not re.search(rf'[{{,]engine="{replica}"[,}}]', match[2] or ""):
                continue
            try:
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[3])
            except ValueError:
                continue
    if not sums and replica is not None:
        return work_of(metrics)
    return tuple(sums.get(name, 0.0) for name in COUNTERS) if sums else None


def replicas_of(argv: Sequence[str]) -> int:
    """How many data parallel replicas vLLM's own balancer has behind the endpoint; 1 where it is not said, or
    where each replica has an endpoint of its own."""
    words = [word for one in argv for word in one.split("=", 1)]
    if any(word in _OWN_ENDPOINTS for word in words):
        return 1
    sizes = [after for name, after in itertools.pairwise(words) if name in ("--data-parallel-size", "-dp")]
    return int(sizes[-1]) if sizes and sizes[-1].isdigit() and int(sizes[-1]) > 1 else 1


def probe(served: Served, timeout: float, replica: int | None = None) -> Seen:
    """Ask for one token, within `timeout` s, behind every request of a user where the engine knows ranks of
    requests; the counters are read afterwards. `replica`: of this one alone."""
    try:
        key = None if served.api_key_file is None else read_secret(served.api_key_file)
    except JobError as error:
        return Seen(Outcome.REFUSED, str(error))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if replica is not None:
        headers[REPLICA_HEADER] = str(replica)
    url = served.endpoint.rstrip("/")
    # More than one token: vLLM's CPU kernels for AVX-512 BF16 (0.32) end the engine at a prompt of one.
    body = {"model": served.model, "prompt": "One, two,", "max_tokens": 1, "temperature": 0}
    if served.priority:
        body["priority"] = LEAST_PRIORITY
    place = f"{url}/v1/completions"
    in_work = False
    try:
        answer = ask("POST", place, seconds=timeout, headers=headers, json=body)
        if answer.status_code == 400 and body.pop("priority", None) is not None:
            # An engine that serves in turn after all refuses a priority.
            answer = ask("POST", place, seconds=timeout, headers=headers, json=body)
        outcome, said = _read(answer)
    except httpx.TimeoutException as error:
        outcome, said = Outcome.NONE, f"no answer in {timeout:.0f} s"
        in_work = isinstance(error, httpx.ReadTimeout)
    except httpx.HTTPError as error:
        outcome, said = Outcome.NONE, str(error) or type(error).__name__
    if outcome is Outcome.TOKEN:
        return Seen(outcome, said)
    page = _metrics(headers, url)
    work = work_of(page or "", replica)
    if work is not None or page is None:
        return Seen(outcome, said, work)
    # Ranks on several hosts spin while they wait for one another, so that their time says nothing.
    spent = spent_by(CONTAINER) if in_work and served.world == 1 else None
    return Seen(outcome, said, slots_of(_slots(headers, url)), spent)


def _metrics(headers: Mapping[str, str], url: str) -> str | None:
    """The page /metrics; "" from a server that has none, None from one that does not answer."""
    try:
        page = ask("GET", f"{url}/metrics", seconds=METRICS_SECONDS, headers=headers)
    except httpx.HTTPError:
        return None
    return page.text if page.status_code == 200 else ""


def _slots(headers: Mapping[str, str], url: str) -> Any:
    """llama.cpp's slots; None of a server that has none, or shows none."""
    try:
        answer = ask("GET", f"{url}/slots", seconds=METRICS_SECONDS, headers=headers)
        return answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def serves(url: str, model: str, key: str | None, seconds: float) -> None:
    """Returns where the endpoint serves now: a completion comes within `seconds`, or the engine works and is
    slow, as one is that has much to do. An engine without counters, whose server answers other questions, has
    PATIENCE for it. Errors: JobError where it does not serve."""
    place = url.rstrip("/")
    headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
    before = work_of(_metrics(headers, place) or "")
    try:
        wait(url, model, key, None, seconds)
    except NotInTime as error:
        page = _metrics(headers, place)
        after = work_of(page or "")
        if before is not None and after is not None and after != before:
            return
        if page is None or after is not None or "no answer within" not in str(error):
            raise
        wait(url, model, key, None, max(PATIENCE - seconds, 0))


def main(url: str, model: str, key_file: Path | None, seconds: float) -> int:
    """The command `serves`: 0 where the endpoint serves, else 1 and one line on standard error."""
    try:
        serves(url, model, None if key_file is None else read_secret(key_file), seconds)
    except JobError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


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
