"""One streamed request to an OpenAI-compatible endpoint, timed at the client.

A chunk of the stream is a step of the engine, not a token: with speculative decoding it holds several.
Tokens are therefore the ids that the server gives, else what `usage` says at the end; where both are there
and differ the request counts as failed. The clock is the event loop's, so that a test can bring its own.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from onhost.bench.figures import tidy
from onhost.http_client import words_of
from onhost.plan import JobError
from onhost.ready import message_of


class Failed(Exception):
    """A request without a usable measurement; the text says why in a few words."""


class OutOfTime(Failed):
    """The profile's time ended the request before it showed anything: no fault of the server's."""


class Refused(JobError):
    """The server does not take the request as it is: asking again cannot help. `words` are its own."""

    def __init__(self, text: str, words: str) -> None:
        super().__init__(text)
        self.words = words


@dataclass(frozen=True)
class Target:
    """What to ask: base URL, model, "chat" or "completions", s without a byte."""

    url: str
    model: str
    endpoint: str
    timeout: float

    @property
    def path(self) -> str:
        return self.url + ("/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions")

    def body(self, prompt: str, max_tokens: int, thinking: bool | None) -> dict[str, Any]:
        """What every request has: greedy, one user's message or a prompt."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0}
        if self.endpoint != "chat":
            return {**body, "prompt": prompt}
        body["messages"] = [{"role": "user", "content": prompt}]
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        return body


@dataclass
class Sample:
    """One answer. Times in s of one clock; `steps` are (s since the chunk before, ids in it) after the first.

    `tokens` and `first_tokens` are exact where ids are given; else `tokens` is what usage says, and the first
    chunk is taken to hold as many as a chunk holds on average.
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
    def decode_tok_s(self) -> float | None:
        """(tokens − those of the first chunk) / (last − first); None where all tokens came at once."""
        after, span = self.tokens - self.first_tokens, self.last - self.first
        return after / span if span > 0 and after > 0 else None

    def inter_token(self) -> list[float]:
        """A wait for each token after the first chunk: those of one chunk share the wait for it evenly."""
        mean = self.tokens / max(1, self.chunks)
        waits = []
        for gap, ids in self.steps:
            waits += [gap / (ids or mean)] * (ids or max(1, round(mean)))
        return waits


async def ask(
    client: httpx.AsyncClient,
    target: Target,
    prompt: str,
    max_tokens: int,
    thinking: bool | None = None,
    until: float = math.inf,
    enough: float = math.inf,
    plain: bool = False,
) -> Sample:
    """Sends one request and reads its stream, at most until the loop's time `until`, and only until `enough`
    where it has two chunks by then: a rate can be told from those.

    `plain` leaves out what only vLLM and its like know. Failed for what may pass; JobError for what will not.
    """
    body = target.body(prompt, max_tokens, thinking)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if not plain:  # the number of tokens is then fixed, so that speeds compare, and each token is counted
        body |= {"ignore_eos": True, "return_token_ids": True}
    loop = asyncio.get_running_loop()
    reader = _Reader(sample := Sample(loop.time()))
    last = until
    try:
        async with asyncio.timeout_at(min(loop.time() + target.timeout, until)) as guard:
            async with client.stream("POST", target.path, json=body) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise refused(answer, target)
                if "text/event-stream" not in answer.headers.get("content-type", ""):
                    await answer.aread()
                    raise Failed(f"HTTP 200 without a stream ({message_of(as_json(answer.text))})")
                async for event in _events(answer):
                    now = loop.time()
                    reader.take(event, now)
                    if max(sample.chunks, reader.ids) > 2 * max_tokens + 16:
                        raise Failed(f"no end after twice the {max_tokens} tokens that were asked for")
                    if sample.chunks > 1:
                        last = min(until, max(now, enough))
                    guard.reschedule(min(now + target.timeout, last))
            return reader.end(loop.time())
    except (TypeError, ValueError, AttributeError) as error:
        raise Failed(f"an event of another form ({error})") from None
    except TimeoutError:
        if guard.when() != last:
            raise Failed(f"no byte for {target.timeout:g} s") from None
        return reader.cut(loop.time())
    except httpx.HTTPError as error:
        raise broken(error) from None


def broken(error: httpx.HTTPError) -> Failed:
    """What an exchange that did not come to its end is called."""
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return Failed("a stream that was cut")
    return Failed(f"'{words_of(error)}'")


def refused(answer: httpx.Response, target: Target) -> Exception:
    """What a status other than 200 means for the rest of the job."""
    words = message_of(as_json(answer.text))
    if answer.status_code in {401, 403}:
        return JobError(
            f"found HTTP {answer.status_code} from {target.url}; wanted the API key accepted; check its file"
        )
    if answer.status_code == 404:
        return JobError(
            f"found HTTP 404 for model {target.model!r} at {target.url} ({words}); wanted it served; "
            "check the recipe's served name"
        )
    if answer.status_code in {400, 422}:
        return Refused(
            f"found HTTP {answer.status_code} from {target.url} ({words}); wanted the request accepted; "
            "check the context length and the benchmark's profile",
            words,
        )
    return Failed(f"HTTP {answer.status_code} ({words})")


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The stream's JSON events up to [DONE]; Failed where it ends without."""
    async for line in _lines(answer):
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = as_json(data)
        if not isinstance(event, dict):
            raise Failed("an event that is no JSON object")
        if event.get("error"):  # some servers send it as null with each chunk
            raise Failed(f"an error in the stream ({message_of(event)})")
        yield event
    raise Failed("a stream that was cut")


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """The stream's lines. httpx's own end at each character that Python takes for the end of a line (U+2028,
    U+0085, …), and servers leave those in their JSON as they are."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class _Reader:
    """Turns events and their times into a Sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._texts: list[str] = []
        self._ids: list[object] | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def ids(self) -> int:
        return len(self._ids or ())

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
        if not sample.chunks:
            sample.first = now
            sample.first_tokens = len(ids or ())
        else:
            sample.steps.append((now - sample.last, len(ids or ())))
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
        return self._close(said, now)

    def cut(self, now: float) -> Sample:
        """What is known of a request that the profile's time has ended; ids alone say how far it went."""
        waited = tidy(now - self._sample.began)
        if not self._sample.chunks:
            raise OutOfTime(f"no token in the {waited:g} s that the profile's time left")
        if self._ids is None:
            raise OutOfTime(f"no end in the {waited:g} s that the profile's time left, and no token ids")
        self._sample.cut = True
        return self._close(len(self._ids), now)

    def _close(self, said: int, now: float) -> Sample:
        sample = self._sample
        sample.ended = now
        sample.ids = None if self._ids is None else len(self._ids)
        sample.tokens = said if sample.ids is None else sample.ids
        if not sample.first_tokens:
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
