"""Whole answers, for tests of quality: what was said counts, not when."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import httpx

from onhost.bench.client import Refused, Target, as_json, broken, refused
from onhost.bench.sample import Failed, OutOfTime
from onhost.ready import message_of


@dataclass(frozen=True)
class Reply:
    """One answer: its text without the thinking, whether there was thinking, and how it ended."""

    text: str
    thought: bool
    finish: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def unfinished(self) -> bool:
        """Nothing was said because the thinking took all tokens: that tells nothing about the answer."""
        return self.thought and not self.text.strip() and self.finish == "length"


@dataclass
class Asker:
    """Asks for whole answers, greedily, without thinking where the server can leave it out."""

    client: httpx.AsyncClient
    target: Target
    until: float = math.inf
    thinking: bool | None = False

    async def ask(self, prompt: str, max_tokens: int, **more: Any) -> Reply:
        """Failed for what may pass (the time is over, too); JobError for what will not."""
        sent = self.thinking  # others may be under way, and refused, at the same time
        try:
            return await self._post(prompt, max_tokens, sent, more)
        except Refused:
            if sent is None or self.target.endpoint != "chat":
                raise
        # A server that does not know the switch? If it is not that, it refuses again, and the switch stays.
        reply = await self._post(prompt, max_tokens, None, more)
        self.thinking = None
        return reply

    async def _post(self, prompt: str, max_tokens: int, thinking: bool | None, more: dict[str, Any]) -> Reply:
        body = self.target.body(prompt, max_tokens, thinking) | more
        loop = asyncio.get_running_loop()
        limit = min(loop.time() + self.target.timeout, self.until)
        try:
            async with asyncio.timeout_at(limit):
                answer = await self.client.post(self.target.path, json=body)
        except TimeoutError:
            if limit == self.until:
                raise OutOfTime("the profile's time was over") from None
            raise Failed(f"no answer in {self.target.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise broken(error) from None
        if answer.status_code != 200:
            raise refused(answer, self.target)
        return _reply(answer)


def _reply(answer: httpx.Response) -> Reply:
    data = as_json(answer.text)
    try:
        choice, usage = data["choices"][0], data.get("usage") or {}
        message = choice.get("message")
        if not isinstance(message, dict):
            message = {"content": choice["text"]}
        text = message.get("content") or ""
        thought = bool(message.get("reasoning_content") or message.get("reasoning"))
        if "</think>" in text:  # a server without a parser for it
            thought, text = True, text.rpartition("</think>")[2]
        elif text.lstrip().startswith("<think>"):
            thought, text = True, ""
        return Reply(
            text,
            thought,
            str(choice.get("finish_reason") or ""),
            list(message.get("tool_calls") or []),
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (TypeError, KeyError, IndexError, AttributeError, ValueError):
        raise Failed(f"HTTP 200 without an answer ({message_of(data)})") from None
