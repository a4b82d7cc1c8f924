"""One streamed request to an OpenAI-compatible endpoint, timed at the client.

What its events come to is in sample.py. The clock is the event loop's, so that a test can bring its own.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from onhost.bench.sample import Failed, Reader, Sample
from onhost.http_client import words_of
from onhost.plan import JobError
from onhost.ready import message_of


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


async def ask(
    client: httpx.AsyncClient,
    target: Target,
    prompt: str,
    max_tokens: int,
    thinking: bool | None = None,
    until: float = math.inf,
    enough: float = math.inf,
    plain: bool = False,
    running: bool = False,
) -> Sample:
    """Sends one request and reads its stream, at most until the loop's time `until`, and only until `enough`
    where it has two chunks by then whose tokens are counted: a rate can be told from those. Where nothing is
    counted before the end, `until` alone counts.

    `plain` leaves out what only vLLM and its like know; `running` asks for usage with each chunk.
    Failed for what may pass; JobError for what will not.
    """
    body = target.body(prompt, max_tokens, thinking)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if not plain:  # the number of tokens is then fixed, so that speeds compare, and each token is counted
        body |= {"ignore_eos": True, "return_token_ids": True}
        if running:
            body["stream_options"]["continuous_usage_stats"] = True
    loop = asyncio.get_running_loop()
    reader = Reader(sample := Sample(loop.time()))
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
                    if reader.shows_a_rate:
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
