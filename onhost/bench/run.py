"""Job bench: rounds of simultaneous streamed requests, and one `measurement.json` of what they showed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx

from onhost.bench.client import Failed, Sample, Target, ask
from onhost.bench.prompts import prompt
from onhost.files import write_json
from onhost.http_client import make_client
from onhost.jobs import Job
from onhost.plan import JobError, Plan

TIMEOUT = 300.0  # s without a byte; a long prompt on a cold engine takes its time
ENDPOINTS = ("chat", "completions")


def bench(job: Job) -> dict[str, Any]:
    """The job's function: measures by the plan's profile, writes the measurement, and returns it."""
    plan, profile = job.plan, job.plan.sub("profile")
    streams = _streams(profile)
    repeats, warmup = profile.integer("repeats", 3), profile.integer("warmup", 1, least=0)
    endpoint = profile.maybe_text("endpoint") or "chat"
    if endpoint not in ENDPOINTS:
        raise JobError(
            f"found the endpoint {endpoint!r} in the profile; wanted {' or '.join(ENDPOINTS)}; correct it"
        )
    target = Target(
        plan.text("url"),
        plan.text("model"),
        endpoint,
        profile.integer("max_tokens", 64, least=2),
        profile.number("timeout_s", TIMEOUT),
    )
    result = plan.path("result")
    key = plan.secret("api_key_file")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with make_client(
        timeout=target.timeout, connections=max(streams), headers=headers, proxies=False
    ) as client:
        check_model(client, target)
        total = warmup * max(streams) + repeats * sum(streams)
        job.progress.stage("bench", total, "requests", f"warm-up, {max(streams)} streams")
        runner = _Runner(job, client, target)
        for _ in range(warmup):
            runner.round(max(streams))
        points = []
        samples: list[Sample] = []
        for count in streams:
            job.progress.add(0, f"{count} streams")
            point, seen = runner.point(count, repeats)
            points.append(point)
            samples += seen
    measurement = {
        "format": 1,
        "release": plan.text("release"),
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "profile": {"endpoint": endpoint, **profile.data},
        "points": points,
        "sane": sanity(samples, target, judge=bool(profile.data.get("judge_text", False))),
    }
    write_json(result, measurement)
    return measurement


def _streams(profile: Plan) -> list[int]:
    streams = profile.data.get("streams", [1])
    good = isinstance(streams, list) and streams and all(type(n) is int and 0 < n <= 1024 for n in streams)
    if not good:
        raise JobError(
            f"found {streams!r} for the profile's streams; wanted a list of counts; correct the recipe"
        )
    return list(streams)


def check_model(client: httpx.Client, target: Target) -> None:
    """JobError unless the endpoint is there, lets us in, and lists the model."""
    where = f"{target.url.rstrip('/')}/v1/models"
    try:
        answer = client.get(where, timeout=30)
    except httpx.HTTPError as error:
        raise JobError(
            f"found '{error or type(error).__name__}' at {target.url}; wanted the serving endpoint; is the "
            "release up?"
        ) from None
    if answer.status_code in {401, 403}:
        raise JobError(
            f"found HTTP {answer.status_code} from {target.url}; wanted the API key accepted; check its file"
        )
    try:
        data = answer.json()
        names = [str(model["id"]) for model in data["data"]]
    except (ValueError, TypeError, KeyError):
        raise JobError(
            f"found HTTP {answer.status_code} without a list of models at {where}; "
            "wanted an OpenAI-compatible endpoint; check what listens there"
        ) from None
    if target.model not in names:
        raise JobError(
            f"found the model names {', '.join(names) or 'none'} at {target.url}; wanted {target.model}; "
            "check the recipe's served name"
        )


class _Runner:
    """Sends rounds of requests, each with a prompt of its own number."""

    def __init__(self, job: Job, client: httpx.Client, target: Target) -> None:
        self._job, self._client, self._target = job, client, target
        self._number = 0

    def round(self, count: int) -> tuple[list[Sample], list[str], float]:
        """`count` requests at once: samples, reasons of failures, s the round took."""
        numbers = range(self._number, self._number + count)
        self._number += count
        began = time.perf_counter()
        pool = ThreadPoolExecutor(count, thread_name_prefix="bench")
        try:
            ended = [future.result() for future in [pool.submit(self._one, number) for number in numbers]]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        wall = time.perf_counter() - began
        pool.shutdown()
        return [s for s in ended if isinstance(s, Sample)], [f for f in ended if isinstance(f, str)], wall

    def _one(self, number: int) -> Sample | str:
        try:
            return ask(self._client, self._target, prompt(number))
        except Failed as failed:
            return str(failed)
        finally:
            self._job.progress.add(1)

    def point(self, streams: int, repeats: int) -> tuple[dict[str, Any], list[Sample]]:
        """One point of the measurement; JobError where every request failed."""
        samples: list[Sample] = []
        reasons: list[str] = []
        seconds = 0.0
        for _ in range(repeats):
            got, failed, wall = self.round(streams)
            samples += got
            reasons += failed
            seconds += wall
        if not samples:
            raise JobError(
                f"found all {len(reasons)} requests with {streams} streams failing: {reasons[0]}; "
                f"wanted completions of {self._target.model} at {self._target.url}; see the serving unit's "
                "journal"
            )
        point: dict[str, Any] = {
            "streams": streams,
            "requests": len(samples) + len(reasons),
            "failed": len(reasons),
            "ttft_s": distribution([s.ttft for s in samples]),
            "decode_tok_s": distribution([s.decode_tok_s for s in samples if s.decode_tok_s is not None]),
            "total_tok_s": round(sum(s.tokens for s in samples) / seconds, 3),
        }
        if reasons:
            point["failures"] = sorted(set(reasons))[:5]
        return point, samples


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, greatest and number; nulls where there is no value."""
    if not values:
        return {"median": None, "min": None, "max": None, "n": 0}
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {**{name: round(value, 4) for name, value in figures.items()}, "n": len(values)}


def sanity(samples: Sequence[Sample], target: Target, *, judge: bool) -> dict[str, Any]:
    """Whether the answers are what an engine in order writes, and in words what was checked.

    Always: text in every answer, as many tokens as were asked for, token ids that agree with usage. Only
    where the profile says `judge_text` (a model with random weights writes nonsense): no answer that is one
    token over and over, which is what broken scales of a quantised layer look like.
    """
    empty = sum(not s.text for s in samples)
    short = sum(s.tokens != target.max_tokens for s in samples)
    differ = sum(s.ids is not None and s.ids != s.tokens for s in samples)
    stuck = sum(s.longest_run > max(8, s.tokens // 2) for s in samples)
    broken = sum("\N{REPLACEMENT CHARACTER}" * 4 in s.text for s in samples)
    found = [f"{len(samples)} answers: {empty} empty, {short} not of {target.max_tokens} tokens"]
    with_ids = sum(s.ids is not None for s in samples)
    found.append(f"{differ} of {with_ids} with ids unlike usage" if with_ids else "no token ids given")
    found.append(f"{stuck} repeating one token, {broken} with undecodable text")
    found.append("repetition judged" if judge else "language not judged")
    ok = bool(samples) and not (empty or short or differ) and not (judge and (stuck or broken))
    return {"ok": ok, "found": "; ".join(found)}
