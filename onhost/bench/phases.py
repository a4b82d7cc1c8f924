"""The parts of a measurement, one after another, each within its share of the profile's time."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from onhost.bench import forms, longer, quality
from onhost.bench.client import Refused, Target
from onhost.bench.contexts import at_length
from onhost.bench.load import ONE_PIECE, UNCOUNTED, Load, none_answered
from onhost.bench.open_loop import at_rate, saturate
from onhost.bench.plain import Asker
from onhost.bench.profile import Profile, lengths
from onhost.bench.sample import Sample
from onhost.bench.sanity import said, sanity
from onhost.bench.server import About, Metrics, speculation
from onhost.files import write_json
from onhost.jobs import Job

# By which share of the profile's time each part has ended; what one leaves goes to the next.
SHARES = {
    "warm-up": 0.15,
    "speed": 0.6,
    "categories": 0.72,
    "contexts": 0.8,
    "open loop": 0.88,
    "quality": 1.0,
}
PROBLEMS = 100  # of GSM8K
SHORT: dict[str, Callable[[quality.Asked], Awaitable[quality.Result]]] = {
    "sane": quality.sane,
    "exact": quality.exact,
    "json": forms.json_schema,
    "tool": forms.tool,
    "arithmetic": quality.arithmetic,
    "determinism": longer.determinism,
}
# Of the time that is left each test has a share: the open answers are the longest, exact ones a few tokens,
# and of its answers agreement finds some that determinism asked for.
WEIGHTS = {"sane": 5, "exact": 1, "determinism": 3}
WEIGHT = 2
BUFFERED = 8  # chunks that come together; of one step with speculative decoding they are fewer
MARGIN = 0.99  # of the model's context: the input's length is known by its words, and that to a percent


class Phases:
    """Fills `measurement` part by part, and keeps it in the job's folder as it grows."""

    def __init__(
        self,
        job: Job,
        client: httpx.AsyncClient,
        target: Target,
        profile: Profile,
        about: About,
        ends: float,
        measurement: dict[str, Any],
    ) -> None:
        self._job, self._client, self._target = job, client, target
        self._profile, self._about, self._ends = profile, about, ends
        self._out = measurement
        self._began = asyncio.get_running_loop().time()
        self._metrics = Metrics(client, target.url)
        self._load = Load(client, target, self._metrics, profile.max_tokens, job.progress.add)
        self._samples: list[Sample] = []
        self._alone: float | None = None  # s that a request takes with one stream
        self.answers: dict[str, str] = {}
        measurement |= {"warmup": {"requests": 0, "seconds": 0.0}, "points": [], "contexts": []}
        measurement |= {"open_loop": [], "saturation": None, "speculation": None, "quality": []}
        measurement |= {
            "noise": self._noise(),
            "sane": {"ok": False, "found": "not measured yet"},
            "notes": [],
        }

    def _until(self, part: str) -> float:
        if self._ends == math.inf:
            return math.inf
        return self._began + (self._ends - self._began) * SHARES[part]

    def _keep(self) -> None:
        write_json(self._job.folder / "measurement.json", self._out)

    async def all(self, previous: str | None) -> None:
        """Everything that the profile asks for."""
        await self._warm()
        before = await self._metrics.now()
        await self._speed()
        await self._categories()
        self._out["speculation"] = speculation(before, await self._metrics.now())
        await self._contexts()
        await self._open()
        await self._quality(None if previous is None else Path(previous))

    async def _warm(self) -> None:
        """Requests that nobody counts: they compile kernels, open connections and fill caches."""
        profile, loop = self._profile, asyncio.get_running_loop()
        streams = max(profile.streams)
        self._job.progress.stage("warm-up", profile.warmup * streams, "requests", f"{streams} streams")
        began = loop.time()
        for _ in range(profile.warmup):
            if loop.time() < self._until("warm-up"):
                done = await self._load.closed(streams, streams, until=self._until("warm-up"))
                self._out["warmup"]["requests"] += done.requests
        self._out["warmup"]["seconds"] = round(loop.time() - began, 3)
        if self._load.plain:
            self._note("the server refuses ignore_eos and return_token_ids: tokens are counted by usage")

    async def _speed(self) -> None:
        profile, loop = self._profile, asyncio.get_running_loop()
        total = sum(profile.streams) * profile.requests * profile.repeats
        self._job.progress.stage("speed", total, "requests", f"{profile.streams[0]} streams")
        until = self._until("speed")
        for left, streams in zip(range(len(profile.streams), 0, -1), profile.streams, strict=True):
            now = loop.time()
            point, seen = await self._load.point(
                streams,
                requests=profile.requests,
                repeats=profile.repeats,
                until=math.inf if until == math.inf else now + max(1.0, (until - now) / min(left, 2)),
                limit=profile.spread_limit,
                again=profile.max_repeated,
            )
            if not seen.samples:
                if self._samples and not seen.failures:
                    self._note(f"speed: with {streams} streams {seen.late[0]}")
                    continue
                raise none_answered(seen, streams, self._target)
            self._samples += seen.samples
            if point["total_tok_s"] is None:
                self._note(f"speed: with {streams} streams {UNCOUNTED}")
            self._out["points"].append(point)
            self._out["noise"] = self._noise()
            self._out["sane"] = sanity(self._samples, profile.max_tokens, judge=profile.judge_text)
            if streams == 1:
                self._alone = point["end_to_end_s"]["median"]
            self._job.progress.add(0, said(point))
            self._keep()
        if pieces := sum(sample.in_one_piece for sample in self._samples):
            answers = f"{pieces} of {len(self._samples)} answers"
            self._note(f"{ONE_PIECE}; how fast the tokens of {answers} came is not known")
        elif (most := statistics.median(sample.chunks_a_piece for sample in self._samples)) >= BUFFERED:
            self._note(
                f"the stream comes in pieces of about {most:.0f} chunks: something between buffers it; the "
                "first token's time is that of the first piece"
            )

    async def _categories(self) -> None:
        modes = self._profile.thinking if self._profile.endpoint == "chat" else (None,)
        if await self._kinds(modes) < set(modes) or None in modes:
            return
        # None of the ways to think can be asked for.
        self._note("categories: measured as the model has it by itself, for the server refuses the switch")
        await self._kinds((None,))

    async def _kinds(self, modes: tuple[bool | None, ...]) -> set[bool | None]:
        """A point of each kind of prompts in each mode; the modes that the server refuses."""
        profile, loop = self._profile, asyncio.get_running_loop()
        refused: set[bool | None] = set()
        points = [
            (mode, s, kind) for mode in modes for s in profile.category_streams for kind in profile.categories
        ]
        if not points:
            return refused
        # Five prompts a kind; with more streams each takes a share of them.
        each = [max(1, math.ceil(5 / streams)) for _, streams, _ in points]
        total = sum(s * n for (_, s, _), n in zip(points, each, strict=True))
        self._job.progress.stage("categories", total, "requests")
        for number, (mode, streams, kind) in enumerate(points):
            if mode in refused:
                continue
            if loop.time() >= self._until("categories"):
                self._note(f"categories: the time was over after {number} of {len(points)} points")
                return refused
            try:
                point, _ = await self._load.point(
                    streams,
                    kind,
                    mode,
                    requests=each[number],
                    repeats=1,
                    until=self._until("categories"),
                )
            except Refused as error:
                if mode is None:
                    raise
                refused.add(mode)
                self._note(f"thinking {'on' if mode else 'off'}: {error}")
                continue
            self._out["points"].append(point)
            self._job.progress.add(0, said(point))
            self._keep()
        return refused

    async def _contexts(self) -> None:
        profile, loop = self._profile, asyncio.get_running_loop()
        todo = lengths(profile.contexts, self._longest(), profile.max_tokens + 16)
        if profile.contexts and len(todo) < len(profile.contexts) and not isinstance(profile.contexts, str):
            self._note(
                f"contexts: the model's {self._about.max_model_len} tokens have room for {todo or 'none'}"
            )
        if not todo:
            return
        self._job.progress.stage("contexts", len(todo) * profile.repeats, "requests")
        asker = Asker(self._client, self._target, self._until("contexts"))
        for tokens in todo:
            if loop.time() >= self._until("contexts"):
                self._note(f"contexts: the time was over before {tokens} tokens")
                return
            self._job.progress.add(0, f"{tokens} tokens of input")
            found, refused = await at_length(
                self._load, asker, tokens, profile.repeats, self._until("contexts")
            )
            if refused:
                self._note(f"contexts: {refused}")
            elif not found["requests"]:  # the time was over before one of them had shown anything
                self._note(f"contexts: the time was over with {tokens} tokens")
                return
            self._out["contexts"].append(found)
            self._keep()

    def _longest(self) -> int | None:
        longest = self._about.max_model_len
        return None if longest is None else int(longest * MARGIN)

    async def _open(self) -> None:
        profile, loop = self._profile, asyncio.get_running_loop()
        until = self._until("open loop")
        if profile.rates:
            self._job.progress.stage("open loop", len(profile.rates) * profile.rate_requests, "requests")
        for rps in profile.rates:
            if loop.time() >= until:
                self._note(f"open loop: the time was over before {rps:g} requests/s")
                break
            self._seen_rate(await at_rate(self._load, rps, profile.rate_requests, until))
        if not profile.saturation:
            return
        if self._alone is None:
            self._note("saturation: needs a point with 1 stream whose requests came to their end")
            return
        self._job.progress.stage("saturation", None, "requests")
        self._out["saturation"] = await saturate(
            self._load, self._alone, profile.rate_requests, until, self._seen_rate
        )
        self._keep()

    def _seen_rate(self, point: dict[str, Any]) -> None:
        self._out["open_loop"].append(point)
        self._job.progress.add(0, f"{point['rate_rps']:g} requests/s: {point['output_tok_s'] or 0:g} tok/s")
        self._keep()

    async def _quality(self, previous: Path | None) -> None:
        profile, loop = self._profile, asyncio.get_running_loop()
        if not profile.quality:
            return
        ends = self._until("quality")
        asker = Asker(self._client, self._target)
        asked = quality.Asked(asker, self._metrics, min(8, max(profile.streams)), profile.arithmetic)
        asked.answers = self.answers
        asked.agreement, asked.agreement_tokens = profile.agreement, profile.agreement_tokens
        self._job.progress.stage("quality", len(profile.quality), "steps")
        weights = [WEIGHTS.get(name, WEIGHT) for name in profile.quality]
        for at, name in enumerate(profile.quality):
            self._job.progress.add(0, name)
            asker.until = loop.time() + (ends - loop.time()) * weights[at] / sum(weights[at:])
            if loop.time() >= ends:
                line = quality.Result(name, "not checked", "the profile's time was over", "an answer")
            else:
                line = await quality.checked(name, self._test(name, asked, previous))
            self._out["quality"].append(line.as_dict())
            self._job.progress.add(1, f"{name}: {line.status}")
            self._keep()

    def _test(self, name: str, asked: quality.Asked, previous: Path | None) -> Awaitable[quality.Result]:
        if name in SHORT:
            return SHORT[name](asked)
        if name == "needle":
            todo = lengths(self._profile.needle_lengths or (2048,), self._longest(), 64)
            told = self._about.max_model_len is not None
            return longer.needle(asked, todo, self._profile.needle_depths, told)
        if name == "prefix_cache":
            return longer.prefix_cache(asked, self._longest())
        if name == "gsm8k":
            return longer.gsm8k(asked, PROBLEMS)
        return longer.agreement(asked, previous)

    def _note(self, text: str) -> None:
        self._out["notes"].append(text)

    def _noise(self) -> dict[str, Any]:
        """Of the points over all kinds: the largest spread, after measuring again where it was too large."""
        spreads = [p["spread"] for p in self._out.get("points", []) if p["spread"] is not None]
        widest = max(spreads, default=None)
        limit = self._profile.spread_limit
        # Where nothing was repeated nobody knows whether the machine is quiet.
        verdict = "unknown" if widest is None else "noisy" if widest > limit else "quiet"
        return {"spread": widest, "limit": limit, "repeated": self._load.repeated, "verdict": verdict}
