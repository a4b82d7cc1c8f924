"""Closed loop: so many requests at once, each stream starting its next one as its last one ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from onhost.bench.client import Refused, Target, ask
from onhost.bench.figures import distribution, rate, spread
from onhost.bench.prompts import prompt
from onhost.bench.sample import Failed, OutOfTime, Sample, Uncounted
from onhost.bench.server import Counters, Metrics, speculation
from onhost.plan import JobError

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first error ends the others and is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


UNCOUNTED = "answers were cut, and no token ids count them"
ONE_PIECE = "the stream comes in one piece: something between buffers it"
"""Why a speed of requests that ended well is not known."""


@dataclass
class Round:
    """What some requests came to, and the s from the first one's start to the last one's end.

    `late` are those that the profile's time ended before they showed anything: they are left out, and so is
    the time that they alone took. `lost`: some of those had tokens that nobody counted while others of the
    round were under way, so that its tokens a second are not known.
    """

    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended: float = 0.0  # when the last one ended that is not late
    lost: bool = False

    @property
    def requests(self) -> int:
        """Answers whose ids and usage differ are measured and failed, and are one request each."""
        return len(self.samples) + len(self.failures) - sum(s.odd is not None for s in self.samples)

    @property
    def output_tok_s(self) -> float | None:
        return rate(sum(s.tokens for s in self.samples), self.seconds)

    def __add__(self, other: Round) -> Round:
        return Round(
            self.samples + other.samples,
            self.failures + other.failures,
            self.late + other.late,
            self.seconds + other.seconds,
            max(self.ended, other.ended),
            self.lost or other.lost,
        )

    def failed(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "failed": len(self.failures),
            "failures": sorted(set(self.failures))[:5],
        }


@dataclass
class Load:
    """Sends requests, each with a mark of its own; `tick` is told how many more have ended."""

    client: httpx.AsyncClient
    target: Target
    metrics: Metrics
    max_tokens: int
    tick: Callable[[int], None]
    mark: int = 0
    plain: bool = False  # the server refused vLLM's own fields
    uncounted: bool = False  # the last answer's tokens were counted at its end alone: a cut one has no count
    running: bool | None = False  # usage with each chunk, for servers without token ids; None: it is refused
    repeated: int = 0

    async def one(
        self, text: str, thinking: bool | None, until: float, into: Round, enough: float = math.inf
    ) -> None:
        """One request; its answer, or why there is none, goes into the round."""
        try:
            sample = await self._asked(text, thinking, until, enough)
        except OutOfTime as late:
            into.late.append(str(late))
            if isinstance(late, Uncounted):
                into.lost = True
                self._without_ids()
        except Failed as failed:
            into.failures.append(str(failed))
            into.ended = asyncio.get_running_loop().time()
        else:
            into.ended = sample.ended
            into.samples.append(sample)
            self.uncounted = not sample.exact
            if sample.ids is None:
                self._without_ids()
            if sample.odd:
                into.failures.append(sample.odd)
        finally:
            self.tick(1)

    async def _asked(self, text: str, thinking: bool | None, until: float, enough: float) -> Sample:
        """A 400 may be about fields that other servers do not know: from then on they are left out."""

        async def send(plain: bool = False, running: bool = False) -> Sample:
            size = self.max_tokens
            return await ask(self.client, self.target, text, size, thinking, until, enough, plain, running)

        if self.plain:
            return await send(plain=True)
        if self.running:
            try:
                return await send(running=True)
            except Refused:
                sample = await send()
                self.running = None
                return sample
        try:
            return await send()
        except Refused:
            sample = await send(plain=True)
            self.plain = True
            return sample

    def _without_ids(self) -> None:
        if self.running is False:
            self.running = True

    def texts(self, count: int, category: str) -> list[str]:
        """The first `count` prompts of a kind, the same ones each time but for their marks."""
        first, self.mark = self.mark + 1, self.mark + count
        return [prompt(number, category, first + number) for number in range(count)]

    async def closed(
        self,
        streams: int,
        requests: int,
        category: str = "all",
        thinking: bool | None = None,
        until: float = math.inf,
        enough: float = math.inf,
    ) -> Round:
        """`streams` at once, each starting its next request as its last one ends, until `requests` were sent
        or it is `enough` (what is under way then ends as soon as it has shown anything, at the latest
        `until`); at least one each is sent. Where an answer that is cut has no count, none is begun that
        would not end by then."""
        loop = asyncio.get_running_loop()
        result = Round()
        waiting = iter(self.texts(requests, category))
        each = math.ceil(requests / streams)

        async def stream() -> None:
            for done, text in enumerate(waiting):
                # Each of a stream's prompts has an equal part of the time: kinds are unlike in speed.
                now = loop.time()
                part = now + (enough - now) / max(1, each - done)
                await self.one(text, thinking, until, result, part)
                took = loop.time() - now if self.uncounted else 0.0
                if loop.time() + took >= min(until, enough):
                    return

        began = loop.time()
        await together(stream() for _ in range(min(streams, requests)))
        result.seconds = (result.ended or loop.time()) - began
        result.lost = result.lost and streams > 1  # of one stream all that was before is known
        return result

    async def point(
        self,
        streams: int,
        category: str = "all",
        thinking: bool | None = None,
        *,
        requests: int,
        repeats: int,
        until: float = math.inf,
        limit: float = math.inf,
        again: int = 0,
    ) -> tuple[dict[str, Any], Round]:
        """One point of the measurement, and all that was seen for it. A repeat has the same prompts as the
        others, and an equal part of the time. Where they differ by more than `limit` they are measured anew,
        at most `again` times, and the quietest set counts; a set with a failure always does."""
        loop = asyncio.get_running_loop()
        tries: list[tuple[float, dict[str, Any], Round]] = []
        for attempt in range(again + 1):
            if attempt:
                self.repeated += 1
                thrown = tries[-1][2]
                self.tick(-thrown.requests - len(thrown.late))  # that work has to be done again
            before = await self.metrics.now()
            rounds: list[Round] = []
            count, longest = streams * requests, 0.0
            for left in range(repeats, 0, -1):
                now = loop.time()
                if rounds and now + longest >= until:
                    break
                part = now + (until - now) / left
                rounds.append(done := await self.closed(streams, count, category, thinking, until, part))
                if self.uncounted and done.samples:  # whole answers only: as many, and the same, each time
                    count = max(streams, min(count, done.requests))
                    longest = max(sample.ended - sample.began for sample in done.samples)
            after = await self.metrics.now()
            whole = sum(rounds, Round())
            figures = _point(whole, rounds, before, after)
            about = {"streams": streams, "category": category, "thinking": thinking}
            unlike = math.inf if figures["spread"] is None else float(figures["spread"])
            tries.append((unlike, {**about, **figures}, whole))
            if whole.failures:
                del tries[:-1]
                break
            if unlike <= limit or figures["spread"] is None or loop.time() >= until:
                break
        # A set that the time cut short is taken only where no other is there.
        best = min(tries, key=lambda one: (one[1]["cut"] > 0, one[0]))
        return best[1], best[2]


def _point(whole: Round, rounds: list[Round], before: Counters, after: Counters) -> dict[str, Any]:
    samples = whole.samples
    done = [s for s in samples if not s.cut]
    drafts = speculation(before, after) or {}
    known = [r for r in rounds if r.samples and not r.lost]
    told = sum(known, Round())
    rates = [r.output_tok_s for r in known if r.output_tok_s is not None]
    speeds = [s.decode_tok_s for s in samples if s.decode_tok_s is not None]
    unmeasured = UNCOUNTED if samples and not known else None
    if not speeds and any(s.in_one_piece for s in samples):
        unmeasured = ONE_PIECE
    asked = rate(sum(s.prompt_tokens for s in told.samples), told.seconds)
    return {
        **whole.failed(),
        "cut": len(samples) - len(done),
        "repeats": len(rounds),
        "ttft_s": distribution([s.ttft for s in samples]),
        "inter_token_s": distribution([wait for s in samples for wait in s.inter_token()]),
        "decode_tok_s": distribution(speeds),
        "end_to_end_s": distribution([s.ended - s.began for s in done]),
        "input_tok_s": asked if len(done) == len(samples) and known else None,
        "output_tok_s": distribution(rates)["median"],
        "total_tok_s": told.output_tok_s,
        "spread": spread(rates),
        "unmeasured": unmeasured,
        "acceptance": drafts.get("acceptance"),
        "accepted_length": drafts.get("accepted_length"),
    }


def none_answered(seen: Round, streams: int, target: Target) -> JobError:
    """Every request of a point failed: the job ends, for every other figure would be of the same kind."""
    reasons = seen.failures + seen.late
    return JobError(
        f"found all {len(reasons)} requests with {streams} streams failing: {reasons[0]}; wanted completions "
        f"of {target.model} at {target.url}; see the serving unit's journal"
    )
