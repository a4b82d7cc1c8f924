"""One streamed answer: from its events and their times to tokens, waits and a speed.

A chunk of the stream is a step of the engine, not a token: with speculative decoding it holds several.
Tokens are therefore the ids that the server gives, else what `usage` says with each chunk, else what it says
at the end; where ids and usage differ the request counts as failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onhost.bench.figures import tidy

FEW = 4  # chunks; of fewer nobody can say that they came in one piece
PIECE = 0.02  # share of a request's time in which all chunks came; of the mean gap, what is no gap
STEP = 0.0003  # s; no engine's step is shorter, and reading an event takes a tenth of it


class Failed(Exception):
    """A request without a usable measurement; the text says why in a few words."""


class OutOfTime(Failed):
    """The profile's time ended the request before it showed anything: no fault of the server's."""


class Uncounted(OutOfTime):
    """The profile's time ended the request in the middle, and nobody knows how many tokens it had by then."""


@dataclass
class Sample:
    """One answer. Times in s of one clock; `steps`, after the first chunk: (s since the chunk before, its
    tokens).

    `exact`: the server counts the tokens of each chunk, by ids or by usage. Else `tokens` is what usage says
    at the end, and each chunk is taken to hold as many as a chunk holds on average.
    """

    began: float
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0
    chunks: int = 0
    tokens: int = 0
    first_tokens: float = 0.0
    prompt_tokens: int = 0
    ids: int | None = None
    exact: bool = False
    text: str = ""
    longest_run: int = 0  # of one token id, or of one chunk's text where there are no ids
    steps: list[tuple[float, int]] = field(default_factory=list)
    cut: bool = False  # ended by the profile's time, and counted as far as it went
    odd: str | None = None  # ids and usage that differ
    finish: str = ""  # the server's reason for the end

    @property
    def ttft(self) -> float:
        return self.first - self.began

    @property
    def in_one_piece(self) -> bool:
        """Whether the chunks came faster than any engine makes them, after nearly all of the time: something
        between held them back, and how fast they came says nothing of the server. One gap may be long,
        for the reader may have a hiccup; with more of them there are steps of an engine."""
        if self.chunks < FEW or self.last - self.first >= PIECE * (self.last - self.began):
            return False
        return sorted(gap for gap, _ in self.steps)[-2] < STEP

    @property
    def decode_tok_s(self) -> float | None:
        """(tokens − those of the first piece) / (last − first); None where all tokens came at once."""
        if self.in_one_piece:
            return None
        waits = self._waits()
        after, span = sum(tokens for _, tokens in waits), sum(gap for gap, _ in waits)
        return after / span if span > 0 and after > 0 else None

    def inter_token(self) -> list[float]:
        """A wait for each token after the first piece: those of one piece share the wait for it evenly."""
        waits: list[float] = []
        if not self.in_one_piece:
            for gap, tokens in self._waits():
                waits += [gap / tokens] * max(1, round(tokens))
        return waits

    @property
    def chunks_a_piece(self) -> float:
        """How many chunks come together, on average: 1 for most servers."""
        return self.chunks / (1 + len(self._waits()))

    def _waits(self) -> list[tuple[float, float]]:
        """(s, tokens) from one piece with tokens to the next, where a piece is what comes together.

        Text may come apart from its ids: where the server counts, a chunk without tokens is no wait, and its
        gap is a part of the next one's. Chunks come together where a server sends each token of a step
        by itself, or something between holds them back: then their gaps are next to none of the mean.
        """
        mean = self.tokens / max(1, self.chunks)
        together = min(STEP, PIECE * (self.last - self.first) / max(1, len(self.steps)))
        waits: list[tuple[float, float]] = []
        waited, first, begun = 0.0, 0.0, self.first_tokens > 0
        for gap, counted in self.steps:
            waited += gap
            tokens = counted if self.exact else mean
            if not tokens:
                continue
            if waited >= together and begun:
                waits.append((first + waited, tokens))
                first = 0.0
            elif waits:
                waits[-1] = (waits[-1][0] + waited, waits[-1][1] + tokens)
            elif begun:
                first += waited  # how long the first piece took counts as it does for the others
            waited, begun = 0.0, True
        return waits


class Reader:
    """Turns events and their times into a Sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._texts: list[str] = []
        self._ids: list[object] | None = None
        self._usage: dict[str, Any] | None = None
        self._running = 0  # tokens up to the last chunk, by a usage that came with it
        self._fresh = False  # the last chunk had such a usage
        self._known = 0  # chunks whose tokens are known

    @property
    def ids(self) -> int:
        return len(self._ids or ())

    @property
    def shows_a_rate(self) -> bool:
        """Whether a request that ends here has a speed: two chunks, and all tokens counted."""
        return self._known > 1 and self._exact

    @property
    def _exact(self) -> bool:
        """A usage that does not grow with the chunks counts something else."""
        return self._ids is not None or (self._fresh and self._running >= self._sample.chunks)

    def _tokens(self, ids: list[object] | None, usage: object) -> int:
        if ids is not None or self._ids is not None:
            return len(ids or ())
        self._fresh = isinstance(usage, dict)
        said = int(usage.get("completion_tokens") or 0) if isinstance(usage, dict) else 0
        before, self._running = self._running, max(self._running, said)
        return self._running - before

    def take(self, event: dict[str, Any], now: float) -> None:
        sample = self._sample
        usage = event.get("usage")
        self._usage = usage if isinstance(usage, dict) else self._usage
        texts: list[str] = []
        ids: list[object] | None = None
        for choice in event.get("choices") or []:
            text, new = _piece(choice)
            texts.append(text)
            ids = ids if new is None else (ids or []) + new
            sample.finish = str(choice.get("finish_reason") or sample.finish)
        if not any(texts) and not ids:
            return  # the role, or the reason of the end
        tokens = self._tokens(ids, usage)
        self._known += tokens > 0
        if not sample.chunks:
            sample.first = now
            sample.first_tokens = tokens
        else:
            sample.steps.append((now - sample.last, tokens))
        sample.chunks += 1
        sample.last = now
        self._texts += texts
        self._ids = self._ids if ids is None else (self._ids or []) + ids

    def end(self, now: float) -> Sample:
        if self._usage is None:
            raise Failed("no usage at the end of the stream")
        said = int(self._usage.get("completion_tokens") or 0)
        if not said or not self._sample.chunks:
            raise Failed("no token")
        self._sample.prompt_tokens = int(self._usage.get("prompt_tokens") or 0)
        if self._ids is not None and len(self._ids) != said:
            self._sample.odd = f"{len(self._ids)} token ids and {said} tokens by usage"
        # The last token may have no text, and so no chunk.
        return self._close(
            said, now, self._exact and (self._ids is not None or 0 <= said - self._running < 3)
        )

    def cut(self, now: float) -> Sample:
        """What is known of a request that the profile's time has ended; only a count of each
        chunk's tokens says how far it went."""
        waited = tidy(now - self._sample.began)
        if not self._sample.chunks:
            raise OutOfTime(f"no token in the {waited:g} s that the profile's time left")
        if not self._exact:
            raise Uncounted(f"no end in the {waited:g} s that the profile's time left, and no token ids")
        self._sample.cut = True
        return self._close(self._running, now, True)

    def _close(self, said: int, now: float, exact: bool) -> Sample:
        sample = self._sample
        sample.ended = now
        sample.ids = None if self._ids is None else len(self._ids)
        sample.tokens = said if sample.ids is None else sample.ids
        sample.exact = exact
        if not exact:
            sample.first_tokens = sample.tokens / sample.chunks
        sample.text = "".join(self._texts)
        sample.longest_run = _run(list(self._texts) if self._ids is None else self._ids)
        return sample


def _piece(choice: dict[str, Any]) -> tuple[str, list[object] | None]:
    """Text (reasoning counts: it is decoded like any other) and token ids of one choice in one event."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        text = "".join(delta.get(key) or "" for key in ("reasoning_content", "reasoning", "content"))
    else:
        text = choice.get("text") or ""
    ids = choice.get("token_ids")
    return text, list(ids) if isinstance(ids, list) else None


def _run(units: list[object]) -> int:
    longest = run = 0
    before: object = None
    for unit in units:
        run = run + 1 if unit == before else 1
        before = unit
        longest = max(longest, run)
    return longest
