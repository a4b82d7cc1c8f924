"""What the server says about itself: its models, its version, and the counters of its /metrics."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from onhost.bench.client import as_json
from onhost.bench.figures import tidy
from onhost.http_client import words_of
from onhost.plan import JobError
from onhost.ready import message_of

ANSWER = 30.0  # s for a question that costs the engine nothing
BESIDE = 3.0  # s for one that can go without an answer
_LINE = re.compile(r"^(vllm:[a-z0-9_]+?)(?:_total)?(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class About:
    """The server as it stands: where, which model, whose version, how many tokens of context."""

    url: str
    model: str
    version: str | None
    max_model_len: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "version": self.version,
            "max_model_len": self.max_model_len,
        }


def base_of(url: str) -> str:
    """The URL without the /v1 that people copy along; JobError where it is no URL of a server."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise JobError(f"found the URL {url!r}; wanted one of the form http://HOST:PORT; correct it")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def get(client: httpx.AsyncClient, address: str, seconds: float) -> httpx.Response:
    """One GET; httpx.HTTPError and TimeoutError are the caller's."""
    async with asyncio.timeout(seconds):
        return await client.get(address)


async def look(client: httpx.AsyncClient, url: str, model: str | None, seconds: float = ANSWER) -> About:
    """JobError unless the endpoint is there, lets us in, and lists the model (None: its only one)."""
    where = f"{url}/v1/models"
    try:
        answer = await get(client, where, seconds)
    except TimeoutError:
        raise JobError(
            f"found no answer within {seconds:g} s at {where}; wanted the serving endpoint; is the "
            "release up?"
        ) from None
    except httpx.HTTPError as error:
        raise JobError(
            f"found '{words_of(error)}' at {url}; wanted the serving endpoint; is the release up?"
        ) from None
    if answer.status_code in {401, 403}:
        raise JobError(
            f"found HTTP {answer.status_code} from {url}; wanted the API key accepted; check its file"
        )
    try:
        found = {str(entry["id"]): entry for entry in answer.json()["data"]}
    except (ValueError, TypeError, KeyError):
        # What stands in the engine's place while it starts says what it waits for.
        said = "" if answer.status_code == 200 else f" ({message_of(as_json(answer.text))})"
        raise JobError(
            f"found HTTP {answer.status_code}{said} without a list of models at {where}; "
            "wanted an OpenAI-compatible endpoint; check what listens there"
        ) from None
    names = ", ".join(found) or "none"
    if model is None and len(found) != 1:
        raise JobError(
            f"found the model names {names} at {url}; wanted one alone, or to be told which; name the model"
        )
    model = model or next(iter(found))
    if model not in found:
        raise JobError(
            f"found the model names {names} at {url}; wanted {model}; check the recipe's served name"
        )
    longest = found[model].get("max_model_len")
    return About(url, model, await _version(client, url), longest if isinstance(longest, int) else None)


async def _version(client: httpx.AsyncClient, url: str) -> str | None:
    try:
        answer = await get(client, f"{url}/version", BESIDE)
    except (httpx.HTTPError, TimeoutError):
        return None
    data = as_json(answer.text) if answer.status_code == 200 else None
    return str(data["version"])[:80] if isinstance(data, dict) and "version" in data else None


@dataclass(frozen=True)
class Counters:
    """vLLM's counters, summed over engines; empty, and not `told`, where the server did not say them."""

    values: dict[str, float]
    told: bool = True

    def since(self, before: Counters, name: str) -> float | None:
        """How much more; None where the server does not count it, did not say it before, or began anew in
        between."""
        if name not in self.values or not before.told:
            return None
        grown = self.values[name] - before.values.get(name, 0.0)
        return grown if grown >= 0 else None


class Metrics:
    """Asks for the counters. A server without them is no error, and is asked once: figures are null then. One
    that has them is asked twice; where it is too busy even so, the figures of that moment alone are null."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._where = client, f"{url}/metrics"
        self._there: bool | None = None  # nobody knows yet

    async def now(self) -> Counters:
        if self._there is False:
            return Counters({}, told=False)
        for _ in range(2 if self._there else 1):
            with suppress(httpx.HTTPError, TimeoutError):
                answer = await get(self._client, self._where, BESIDE)
                if answer.status_code == 200:
                    self._there = True
                    return Counters(_counted(answer.text))
        self._there = bool(self._there)
        return Counters({}, told=False)


def _counted(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            values[name] = values.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return values


def speculation(before: Counters, after: Counters) -> dict[str, Any] | None:
    """Drafted and accepted tokens, their ratio, and tokens a step of the engine (1 + accepted / drafts).

    None where nothing was drafted: no speculative decoding, or a server that does not say.
    """
    drafts = after.since(before, "vllm:spec_decode_num_drafts")
    drafted = after.since(before, "vllm:spec_decode_num_draft_tokens")
    accepted = after.since(before, "vllm:spec_decode_num_accepted_tokens")
    if not drafts or not drafted or accepted is None:
        return None
    return {
        "drafted": int(drafted),
        "accepted": int(accepted),
        "acceptance": tidy(accepted / drafted),
        "accepted_length": tidy(1 + accepted / drafts),
    }
