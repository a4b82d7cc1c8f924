"""What went over the wire: the times of each streamed answer, taken between a tool and the server.

A server's own speed drifts by more than tools differ (two cores, other machines beside them), so tools that
ask one after the other cannot be told apart by their figures alone. The tap stands between them and the
server, passes bytes on as they come and keeps the times. Each tool is then held against what passed while
*it* asked, and the drift is out of the comparison.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PIECE = 65536  # bytes read at once


@dataclass
class Exchange:
    """One request and its answer. Times in s of one clock."""

    asked: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def stream(self, tokens: int) -> dict[str, float] | None:
        """The answer's figures; None where it is not a whole stream of `tokens` tokens.

        The first token's time is that of the first event with text: a role alone is not a token.
        """
        texts: list[float] = []
        told: int | None = None
        rest = b""
        for at, data in self.pieces:
            *lines, rest = (rest + data).split(b"\n")
            for event in filter(None, map(_event, lines)):
                told = (event.get("usage") or {}).get("completion_tokens", told)
                if any(_text(choice) for choice in event.get("choices", ())):
                    texts.append(at)
        if len(texts) < 2 or told not in (None, tokens) or texts[-1] <= texts[0]:
            return None
        return {
            "ttft_s": texts[0] - self.asked,
            # A text of each event: the first one has one token where there are as many events as tokens.
            "decode_tok_s": (tokens - tokens / len(texts)) / (texts[-1] - texts[0]),
            "end_to_end_s": texts[-1] - self.asked,
        }


def _event(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"data: {"):
        return None
    try:
        found = json.loads(line[6:])
    except ValueError:
        return None  # a line that the answer's framing cuts; its stream then lacks a text, not a token
    return found if isinstance(found, dict) else None


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning") or ""


class Tap:
    """A server at `url` that passes all to another one and keeps the times."""

    def __init__(self, upstream: str) -> None:
        place = urlsplit(upstream)
        self.host, self.port = place.hostname or "127.0.0.1", place.port or 80
        self.url = ""
        self.exchanges: list[Exchange] = []

    def figures(self, requests: int, tokens: int) -> dict[str, float] | None:
        """Medians of the last `requests` whole streams, so that a tool's warm-up is out; then forgets all.

        None where there were fewer.
        """
        done, self.exchanges = sorted(self.exchanges, key=lambda one: one.asked), []
        streams = [one for one in (exchange.stream(tokens) for exchange in done) if one][-requests:]
        if len(streams) < requests:
            return None
        return {key: statistics.median(one[key] for one in streams) for key in streams[0]}

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        now: list[Exchange] = []  # the connection's last exchange

        async def asks() -> None:
            while data := await reader.read(PIECE):
                if not now or now[0].pieces:
                    now[:] = [Exchange(0.0)]
                    self.exchanges.append(now[0])
                now[0].asked = time.monotonic()
                back.write(data)
                await back.drain()
            back.close()  # a client that closes has had its answer

        async def answers() -> None:
            while data := await there.read(PIECE):
                writer.write(data)
                if now:
                    now[0].pieces.append((time.monotonic(), data))
                await writer.drain()
            writer.close()

        with suppress(OSError):
            await asyncio.gather(asks(), answers())
        for end in (writer, back):
            end.close()


@contextmanager
def tapped(upstream: str) -> Iterator[Tap]:
    """A tap before the server at `upstream` (http), on loopback, in a thread of its own."""
    tap, ready, stop = Tap(upstream), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with await asyncio.start_server(tap.pass_on, "127.0.0.1", 0) as server:
            tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await stop.wait()

    # asyncio.run also ends the connections that are open still.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not ready.wait(10):
        raise RuntimeError("the tap did not start in 10 s")
    try:
        yield tap
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(10)
