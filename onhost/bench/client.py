"""One streamed request to an OpenAI-compatible endpoint, timed at the client.

A chunk of the stream is a step of the engine, not a token: with speculative decoding it holds several. Tokens
are therefore what `usage` says at the end; where the server also gives token ids, both counts must agree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from onhost.plan import JobError
from onhost.ready import message_of


class Failed(Exception):
    """A request without a usable measurement; the text says why in a few words."""


@dataclass(frozen=True)
class Target:
    """What to ask: base URL, model, "chat" or "completions", tokens to write, s without a byte."""

    url: str
    model: str
    endpoint: str
    max_tokens: int
    timeout: float


@dataclass(frozen=True)
class Sample:
    """One answer: s to the first token, s from first to last, tokens by usage, ids (None: not given)."""

    ttft: float
    span: float
    tokens: int
    ids: int | None
    text: str
    longest_run: int  # of one token id, or of one chunk's text where there are no ids

    @property
    def decode_tok_s(self) -> float | None:
        """(tokens − 1) / (t_last − t_first); None where all tokens came at once."""
        return (self.tokens - 1) / self.span if self.span > 0 and self.tokens > 1 else None


def ask(client: httpx.Client, target: Target, prompt: str) -> Sample:
    """Sends one request and reads its stream. Failed for what may pass; JobError for what will not."""
    path = "/v1/chat/completions" if target.endpoint == "chat" else "/v1/completions"
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": target.max_tokens,
        "temperature": 0,
        "ignore_eos": True,  # vLLM's: the number of tokens is then fixed and speeds compare
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    began = time.perf_counter()
    try:
        with client.stream(
            "POST", target.url.rstrip("/") + path, json=body, timeout=target.timeout
        ) as answer:
            if answer.status_code != 200:
                answer.read()
                raise _refused(answer, target)
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
                raise Failed(f"HTTP 200 without a stream ({message_of(_json(answer.text))})")
            return _read(_events(answer), began)
    except httpx.TimeoutException:
        raise Failed(f"no byte for {target.timeout:g} s") from None
    except httpx.RemoteProtocolError:
        raise Failed("a stream that was cut") from None
    except httpx.HTTPError as error:
        raise Failed(f"'{error or type(error).__name__}'") from None


def _refused(answer: httpx.Response, target: Target) -> Exception:
    words = message_of(_json(answer.text))
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
        return JobError(
            f"found HTTP {answer.status_code} from {target.url} ({words}); wanted the request accepted; "
            "check the context length and the benchmark's profile"
        )
    return Failed(f"HTTP {answer.status_code} ({words})")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The stream's JSON events up to [DONE]; Failed where it ends without."""
    for line in answer.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = _json(data)
        if not isinstance(event, dict):
            raise Failed("an event that is no JSON object")
        if "error" in event:
            raise Failed(f"an error in the stream ({message_of(event)})")
        yield event
    raise Failed("a stream that was cut")


def _read(events: Iterator[dict[str, Any]], began: float) -> Sample:
    first = last = 0.0
    usage = None
    ids: list[object] | None = None
    texts: list[str] = []
    for event in events:
        now = time.perf_counter()
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            text, new = _piece(choice)
            if not text and not new:
                continue  # the role, or the reason of the end
            first = first or now
            last = now
            texts.append(text)
            if new is not None:
                ids = (ids or []) + new
    if usage is None:
        raise Failed("no usage at the end of the stream")
    tokens = int(usage.get("completion_tokens") or 0)
    if not tokens or not first:
        raise Failed("no token")
    units: list[object] = list(texts) if ids is None else ids
    return Sample(
        first - began, last - first, tokens, None if ids is None else len(ids), "".join(texts), _run(units)
    )


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
