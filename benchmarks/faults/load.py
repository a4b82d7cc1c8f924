"""Clients that stream from the endpoint without pause, and an account of every request that was accepted."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TOKENS = 40
LIMIT_S = 60.0
"""A client's own patience without a byte: where the head's power goes, nothing else can tell it."""

# What became of a request. Accepted is one whose answer began with HTTP 200.
WHOLE, ERROR, CUT, TIMED_OUT, SILENT, NOT_ACCEPTED = (
    "whole", "error", "cut", "timed out", "silent", "not accepted",
)  # fmt: skip
ACCEPTED = (WHOLE, ERROR, CUT, TIMED_OUT, SILENT)


def judge(said: list[str], tokens: int) -> str:
    """What a stream that came to its regular end was: whole, an error that says so, or silently short."""
    count, finished = 0, False
    for event in said:
        if event == "[DONE]":
            return WHOLE if finished and count == tokens else SILENT
        try:
            data: dict[str, Any] = json.loads(event)
        except ValueError:
            return ERROR
        if "error" in data or data.get("object") == "error":
            return ERROR
        usage = data.get("usage")
        for choice in data.get("choices") or []:
            finished = finished or choice.get("finish_reason") is not None
            count += 1
        if usage:
            count = int(usage.get("completion_tokens") or count)
    return SILENT


def events(text: str) -> list[str]:
    """The data of a stream's events. Lines end at line feeds only: a model's text has other separators."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    return [line[5:].lstrip(" ") for line in lines if line.startswith("data:")]


def request(host: str, port: int, model: str, tokens: int = TOKENS, limit: float = LIMIT_S) -> str:
    """One streamed completion, and what became of it."""
    connection = http.client.HTTPConnection(host, port, timeout=limit)
    body = json.dumps(
        {
            "model": model, "prompt": "One, two,", "max_tokens": tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True},
        }
    )  # fmt: skip
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException):
        connection.close()
        return NOT_ACCEPTED
    text = b""
    try:
        if answer.status != 200:
            return NOT_ACCEPTED
        # Not by lines: `readline` takes a body that was cut between two chunks for one that ended.
        while part := answer.read1(65536):
            text += part
        return judge(events(text.decode(errors="replace")), tokens)
    except TimeoutError:
        return TIMED_OUT
    except (OSError, http.client.HTTPException):
        return CUT
    finally:
        connection.close()


@dataclass
class Load:
    """So many clients at once, from `begin` to `end`."""

    host: str
    port: int
    model: str
    clients: int = 4
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.successes: list[float] = []

    def begin(self) -> None:
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()

    def _client(self) -> None:
        while not self._stop.is_set():
            what = request(self.host, self.port, self.model)
            with self._lock:
                self.counts[what] += 1
                if what == WHOLE:
                    self.successes.append(time.monotonic())
            if what == NOT_ACCEPTED:
                self._stop.wait(0.5)

    def end(self) -> dict[str, int]:
        """Let every open request come to its end; what became of all of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S + 30)
        found = {name: self.counts[name] for name in (*ACCEPTED, NOT_ACCEPTED)}
        return {"accepted": sum(self.counts[name] for name in ACCEPTED), **found}
