"""A server with a known pace: what each tool should find is written down before it looks.

The first token comes after `FIRST` s, then a chunk every `GAP` s, of 1, 3 and 2 tokens in turn, as with
speculative decoding. Chunks are due at times counted from the request, so that a late one does not delay
the rest.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

FIRST, GAP = 1.0, 0.04
SIZES = (1, 3, 2)
MODEL = "paced"


@dataclass(frozen=True)
class Truth:
    """What answers of `tokens` tokens come to: s, tokens/s of a stream, s."""

    ttft_s: float
    decode_tok_s: float
    end_to_end_s: float

    @classmethod
    def of(cls, tokens: int) -> Truth:
        chunks = chunks_of(tokens)
        span = (len(chunks) - 1) * GAP
        return cls(FIRST, (tokens - chunks[0]) / span, FIRST + span)


def chunks_of(tokens: int) -> list[int]:
    """Tokens of each chunk; the last one has what is left."""
    sizes: list[int] = []
    while sum(sizes) < tokens:
        sizes.append(min(SIZES[len(sizes) % len(SIZES)], tokens - sum(sizes)))
    return sizes


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            method, path, body = await _request(reader)
            if method == "GET":
                data = {"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]}
                _whole(writer, 200 if path == "/v1/models" else 404, data if path == "/v1/models" else {})
            elif body.get("stream"):
                await _stream(writer, body, "chat" in path)
            else:
                _whole(writer, 200, _answer(body, "chat" in path))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, path, _ = head.split(" ", 2)
    length = 0
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
    body = await reader.readexactly(length)
    return method, path, json.loads(body) if body else {}


def _prompt_tokens(body: dict[str, Any]) -> int:
    text = json.dumps(body.get("messages") or body.get("prompt"))
    return len(text.split())


def _whole(writer: asyncio.StreamWriter, status: int, data: Any) -> None:
    text = json.dumps(data).encode()
    writer.write(
        b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (status, len(text))
    )
    writer.write(text)


def _answer(body: dict[str, Any], chat: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"message": {"role": "assistant", "content": "ok"}} if chat else {"text": "ok"}
    usage = {"prompt_tokens": _prompt_tokens(body), "completion_tokens": 1}
    return {"model": MODEL, "choices": [{"index": 0, "finish_reason": "stop", **said}], "usage": usage}


async def _stream(writer: asyncio.StreamWriter, body: dict[str, Any], chat: bool) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    sizes = chunks_of(int(body.get("max_tokens") or body.get("max_completion_tokens") or 16))
    sent = 0
    for number, size in enumerate(sizes):
        await asyncio.sleep(began + FIRST + GAP * number - loop.time())
        text = "word " * size
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "length" if size and number + 1 == len(sizes) else None,
        }
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(range(sent, sent + size))
        sent += size
        _event(writer, {"model": MODEL, "choices": [choice]})
        await writer.drain()
    usage = {"prompt_tokens": _prompt_tokens(body), "completion_tokens": sent}
    _event(writer, {"model": MODEL, "choices": [], "usage": usage | {"total_tokens": sum(usage.values())}})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + json.dumps(data).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a paced server on loopback, in a thread of its own."""
    ready, url, stop = threading.Event(), [""], asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        server = await asyncio.start_server(_serve, "127.0.0.1", 0)
        url[0] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()

    # asyncio.run also ends the connections that are open still.
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield url[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(5)
