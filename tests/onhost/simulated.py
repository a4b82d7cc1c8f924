"""A server and a clock that a test scripts: no socket, no waiting, the same figures on every machine.

The event loop's time jumps to the next timer as soon as nothing else is to do. What is asked and answered
passes through httpx as always, by a transport of our own.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose seconds cost nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        assert timeout is not None, "everything waits for something that never comes"
        self._loop.now += timeout
        return []


@dataclass
class Timing:
    """How one answer comes: s to the first chunk, then s between chunks; tokens of each chunk in turn."""

    first: float = 0.5
    gap: float = 0.1
    chunks: tuple[int, ...] = (1,)  # the last one goes on
    stall: dict[int, float] = field(default_factory=dict)  # number of the chunk → s more before it


@dataclass
class Scripted(httpx.AsyncBaseTransport):
    """`timing` by number of the request (from 0) and its body; `says` the text of whole answers."""

    timing: Callable[[int, dict[str, Any]], Timing] = lambda _n, _body: Timing()
    says: Callable[[str, int], str] = lambda _prompt, _n: "fine"
    refuses: Callable[[dict[str, Any]], str | None] = lambda _body: None
    fault: Callable[[int], str] = lambda _n: ""
    ids: bool = True
    runs: bool = False  # usage with each chunk, where it is asked for
    splits: str = ""  # "after" or "before": each chunk's text comes in two, its ids with one of them
    waits: float = 0.0  # s that a refusal takes, so that several requests are refused at once
    word: str = "word "  # the text of a token in streams
    max_model_len: int | None = 8192
    slots: int = 1000  # requests that are worked on at once
    drafted: int = 0  # tokens drafted for each chunk; 0: no speculative decoding
    ends_at: int | None = None  # tokens after which the model ends by itself
    hangs: tuple[str, ...] = ()  # paths that are never answered
    cached: int = 0  # tokens from the prefix cache when a prompt is asked again
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    _slots: asyncio.Semaphore | None = None

    def tokens_of(self, body: dict[str, Any]) -> int:
        return 20 + len(self.text_of(body).split())

    @staticmethod
    def text_of(body: dict[str, Any]) -> str:
        return str(body["messages"][0]["content"] if "messages" in body else body["prompt"])

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(path)
        if path in self.hangs:
            await asyncio.sleep(3600)
        if path == "/v1/models":
            model = {"id": "tiny", "max_model_len": self.max_model_len}
            return httpx.Response(200, json={"data": [model]})
        if path == "/version":
            return httpx.Response(200, json={"version": "0.33.0"})
        if path == "/metrics":
            lines = [f'{name}_total{{engine="0"}} {value}' for name, value in self.counts.items()]
            return httpx.Response(200, text="# HELP x\n" + "\n".join(lines) + "\n")
        body = json.loads(request.content)
        number = len(self.asked)
        self.asked.append(body)
        if why := self.refuses(body):
            await asyncio.sleep(self.waits)
            return httpx.Response(400, json={"error": {"message": why}})
        if body.get("stream"):
            kind = {"content-type": "text/event-stream"}
            return httpx.Response(200, headers=kind, stream=_Stream(self._answer(number, body)))
        return await self._whole(number, body)

    async def _whole(self, number: int, body: dict[str, Any]) -> httpx.Response:
        timing, text = self.timing(number, body), self.says(self.text_of(body), number)
        await asyncio.sleep(timing.first + timing.gap * min(8, body["max_tokens"] - 1))
        again = [self.text_of(one) for one in self.asked].count(self.text_of(body)) > 1
        hits = self.counts.get("vllm:prefix_cache_hits")
        if hits is not None and again:
            self.counts["vllm:prefix_cache_hits"] = hits + self.cached
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": self.tokens_of(body), "completion_tokens": 8}
        return httpx.Response(
            200, json={"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        )

    async def _answer(self, number: int, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self._slots = self._slots or asyncio.Semaphore(self.slots)
        timing, fault, wanted = self.timing(number, body), self.fault(number), body["max_tokens"]
        wanted = min(wanted, self.ends_at or wanted)
        async with self._slots:
            # Some servers send a null for what others leave out.
            yield event({"error": None, "choices": [{"delta": {"role": "assistant", "content": ""}}]})
            sent = at = 0
            while sent < wanted:
                await asyncio.sleep((timing.gap if at else timing.first) + timing.stall.get(at, 0.0))
                count = min(timing.chunks[min(at, len(timing.chunks) - 1)], wanted - sent)
                choice: dict[str, Any] = {"delta": {"content": self.word * count}}
                if self.ids:
                    choice["token_ids"] = list(range(sent, sent + count))
                rest: dict[str, Any] = {"delta": {"content": "."}, "token_ids": []}
                running: dict[str, Any] = {}
                if self.runs and body["stream_options"].get("continuous_usage_stats"):
                    running = {"usage": {"prompt_tokens": 9, "completion_tokens": sent + count}}
                for one in {"after": (choice, rest), "before": (rest, choice)}.get(self.splits, (choice,)):
                    yield event({"choices": [one], **running})
                sent, at = sent + count, at + 1
                self._draft(count)
                if fault == "cut" and at == 2:
                    raise httpx.RemoteProtocolError("peer closed connection")
        yield event({"choices": [{"delta": {}, "finish_reason": "stop" if self.ends_at else "length"}]})
        usage = {"prompt_tokens": self.tokens_of(body), "completion_tokens": sent + (fault == "odd")}
        yield event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _draft(self, count: int) -> None:
        if self.drafted:
            for name, more in (("drafts", 1), ("draft_tokens", self.drafted), ("accepted_tokens", count - 1)):
                key = f"vllm:spec_decode_num_{name}"
                self.counts[key] = self.counts.get(key, 0.0) + more


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"  # as vLLM writes it


class _Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._pieces.aclose()  # type: ignore[attr-defined]
