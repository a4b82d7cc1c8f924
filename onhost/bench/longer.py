"""Tests of quality that need long inputs, the same question twice, or what an earlier release said."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from onhost.bench.client import Refused
from onhost.bench.contexts import patient, too_long, untaken, words_for
from onhost.bench.plain import Reply
from onhost.bench.prompts import CATEGORIES, PROMPTS, filler
from onhost.bench.quality import PASSES, Asked, Result, scored
from onhost.bench.wordproblems import INSTRUCTION, answer_in
from onhost.http_client import words_of

GSM8K = "https://datasets-server.huggingface.co/rows?dataset=openai/gsm8k&config=main&split=test"
HUB_SECONDS = 30
SAME = 1.0
ALIKE = 0.8  # share of equal greedy answers from which two releases are called alike


def haystack(words: int, depth: float, number: int) -> tuple[str, str]:
    """A text with one sentence that matters at `depth` (0 its beginning, 1 its end), and what it says."""
    secret = str(10_000 + (number * 7919 + 31337) % 90_000)
    text = filler(words, 1000 + number)
    at = round(depth * (words // 10)) * 10  # between sentences
    needle = f"The code of the blue harbour is {secret}."
    task = "Here is a long text. Somewhere in it a code is given. Read it.\n\n"
    question = "\n\nWhat is the code of the blue harbour? Answer with the number only."
    return task + " ".join([*text[:at], needle, *text[at:]]) + question, secret


NEEDLE_ROOM = 150  # tokens for the task, the sentence, the question, the answer and the chat's template


async def needle(asked: Asked, lengths: list[int], depths: tuple[float, ...], told: bool) -> Result:
    """`told`: the server says how long its context is. Of one that does not, a length that it refuses is
    where the test ends, and what was found in shorter ones counts."""
    wanted = f"the sentence found at {len(depths)} depths of each length"
    if not lengths:
        return Result("needle", "not checked", "no length that fits the model's context", wanted)
    notes: list[str] = []
    replies: list[Reply | str] = []
    right: list[bool] = []
    for length in lengths:
        try:
            texts, got = await _needles(asked, length, depths, len(replies))
        except Refused as error:
            if told or not (replies or too_long(error)):
                raise
            notes.append(untaken(length, error))
            break
        good = [isinstance(r, Reply) and s in r.text for r, (_, s) in zip(got, texts, strict=True)]
        replies += got
        right += good
        missed = [f"{depth:.0%}" for depth, found in zip(depths, good, strict=True) if not found]
        counted = max((r.prompt_tokens for r in got if isinstance(r, Reply)), default=length)
        notes.append(f"{counted} tokens: " + (f"missed at {', '.join(missed)}" if missed else "all"))
    if not replies:
        return Result("needle", "not checked", notes[0], wanted)
    result = scored("needle", replies, right, wanted)
    return Result("needle", result.status, f"{result.found} ({'; '.join(notes)})", wanted, result.score)


async def _needles(
    asked: Asked, length: int, depths: tuple[float, ...], number: int
) -> tuple[list[tuple[str, str]], list[Reply | str]]:
    """Texts of a length with what is hidden in each, the first one `number`, and the answers to them."""
    words = await words_for(asked.asker, length - NEEDLE_ROOM)
    texts = [haystack(words, depth, number + at) for at, depth in enumerate(depths)]
    asker = replace(asked.asker, target=patient(asked.asker.target, length))
    got = await replace(asked, asker=asker).all([text for text, _ in texts], 32, at_once=1)
    return texts, got


async def prefix_cache(asked: Asked, longest: int | None) -> Result:
    """The same long prompt cold and warm: the answers must be the same, and the cache must have been used."""
    wanted = "the same answer from a cold and from a warm prefix cache"
    words = await words_for(asked.asker, min(2048, (longest or 4096) - 100))
    # The cache may know an earlier run's text: the clock makes each run's its own.
    seed = int.from_bytes(os.urandom(4), "big")
    prompt = " ".join(filler(words, seed)) + "\n\nWhich word of this text is the first? Answer with it alone."
    replies: list[Reply] = []
    hits: list[float | None] = []
    for _ in range(2):
        before = await asked.metrics.now()
        replies.append(await asked.asker.ask(prompt, 32))
        after = await asked.metrics.now()
        hits.append(after.since(before, "vllm:prefix_cache_hits"))
    asked.tick()
    cold, warm = replies
    same = cold.text == warm.text
    if not hits[1]:
        why = "the cache gave nothing: switched off?"
        if hits[1] is None:
            why = "the server does not count its hits"
        found = f"{why}; the answers were {'the same' if same else 'not the same'}"
        return Result("prefix_cache", "not checked" if same else "inconclusive", found, wanted)
    found = f"{hits[1]:g} of {warm.prompt_tokens} tokens from the cache; "
    found += "the same answer" if same else f"{cold.text[:60]!r} became {warm.text[:60]!r}"
    return Result("prefix_cache", "pass" if same else "fail", found, wanted, float(same))


def fixed_prompts(count: int) -> dict[str, str]:
    """Prompts whose greedy answers are compared, by an id that stays: one of each kind, then the next."""
    pairs = [(kind, at) for at in range(5) for kind in CATEGORIES][:count]
    return {f"{kind}-{at + 1}": PROMPTS[kind][at] for kind, at in pairs}


async def _greedy(asked: Asked, prompts: list[str], tokens: int) -> list[Reply | str]:
    """Answers of requests that were alone; other requests in the batch may change sums, and so words. What
    was asked before is not asked again."""
    new = [prompt for prompt in prompts if (prompt, tokens) not in asked.greedy]
    replies = await asked.all(new, tokens, at_once=1)
    given = {prompt: reply for prompt, reply in zip(new, replies, strict=True) if isinstance(reply, Reply)}
    asked.greedy |= {(prompt, tokens): reply for prompt, reply in given.items()}
    failed = dict(zip(new, replies, strict=True))
    return [asked.greedy.get((prompt, tokens)) or failed[prompt] for prompt in prompts]


async def determinism(asked: Asked) -> Result:
    """Two greedy runs, one request at a time."""
    wanted = "the same greedy answers twice"
    prompts, tokens = list(fixed_prompts(3).values()), min(32, asked.agreement_tokens)
    first = await _greedy(asked, prompts, tokens)
    second = await asked.all(prompts, tokens, at_once=1)
    right = [isinstance(a, Reply) and a == b for a, b in zip(first, second, strict=True)]
    differ = next((i for i, same in enumerate(right) if not same), None)
    wrong = "" if differ is None else _apart(_text(first[differ]), _text(second[differ]))
    failed: list[Reply | str] = [a if isinstance(a, str) else b for a, b in zip(first, second, strict=True)]
    return scored("determinism", failed, right, wanted, wrong, passes=SAME)


def _text(reply: Reply | str) -> str:
    return reply.text if isinstance(reply, Reply) else ""


def _apart(one: str, other: str) -> str:
    pairs = zip(one, other, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return f"equal for {at} characters, then {one[at : at + 20]!r} and {other[at : at + 20]!r}"


async def agreement(asked: Asked, previous: Path | None) -> Result:
    """Greedy answers, kept for the next release, beside those of the one before."""
    wanted = f"{ALIKE:.0%} of the greedy answers as the release before gave them"
    prompts, tokens = fixed_prompts(asked.agreement), asked.agreement_tokens
    replies = dict(zip(prompts, await _greedy(asked, list(prompts.values()), tokens), strict=True))
    got = {key: r.text for key, r in replies.items() if isinstance(r, Reply) and not r.unfinished}
    asked.answers.update(got)
    missing = f"{len(prompts) - len(got)} without an answer" if len(got) < len(prompts) else ""
    if failed := next((reply for reply in replies.values() if isinstance(reply, str)), ""):
        missing += f" ({failed})"
    if not got:
        why = missing if failed else f"{len(prompts)} were cut while still thinking"
        return Result("agreement", "not checked", why, wanted)
    if previous is None:
        return Result("agreement", "not checked", "no release before it with answers", wanted)
    try:
        kept = json.loads(previous.read_text(encoding="utf-8"))
        before: dict[str, str] = {str(key): str(text) for key, text in kept["answers"].items()}
        name, length = str(kept.get("release")), int(kept.get("tokens", 128))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not in the form of answers.json"
        return Result("agreement", "not checked", f"{previous} cannot be read ({said})", wanted)
    common = [key for key in got if key in before]
    if not common:
        return Result("agreement", "not checked", f"release {name} answered other questions", wanted)
    same = [key for key in common if _same(before[key], length, got[key], tokens)]
    score = len(same) / len(common)
    found = f"{len(same)} of {len(common)} as release {name}" + (f"; {missing}" if missing else "")
    if differ := [key for key in common if key not in same]:
        found += f"; {differ[0]}: {_apart(before[differ[0]], got[differ[0]])}"
    alike = score >= ALIKE and not missing
    # Other answers are not worse ones: this alone fails no release.
    return Result("agreement", "pass" if alike else "inconclusive", found, wanted, score)


def _same(before: str, length: int, now: str, tokens: int) -> bool:
    """Whether two greedy answers are one. Where they were given unlike numbers of tokens, the shorter is the
    beginning of the longer; half of a character at its end says nothing."""
    if length == tokens:
        return before == now
    short, long = (before, now) if length < tokens else (now, before)
    return long.startswith(short.rstrip("\N{REPLACEMENT CHARACTER}"))


async def gsm8k(
    asked: Asked, count: int, source: str = GSM8K, transport: httpx.AsyncBaseTransport | None = None
) -> Result:
    """The first `count` problems of GSM8K's test set, where the hub's data server can be reached.

    The hub has a client of its own: it must not see the serving endpoint's key.
    """
    wanted = f"{PASSES:.0%} of {count} problems of GSM8K right"
    try:
        options: dict[str, Any] = {"timeout": HUB_SECONDS, "follow_redirects": True}
        async with httpx.AsyncClient(transport=transport, **options) as client:
            tasks = await _rows(client, source, count)
    except (httpx.HTTPError, TimeoutError, ValueError, TypeError, KeyError) as error:
        found = f"no problems from {urlsplit(source).hostname} ({_why(error)})"
        return Result("gsm8k", "not checked", found, wanted)
    replies = await asked.all([f"{question} {INSTRUCTION}" for question, _ in tasks], 512)
    right = [
        isinstance(reply, Reply) and answer_in(reply.text) == answer
        for reply, (_, answer) in zip(replies, tasks, strict=True)
    ]
    return scored("gsm8k", replies, right, wanted)


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return f"no answer within {HUB_SECONDS} s"
    if isinstance(error, httpx.HTTPError):
        return words_of(error)
    if isinstance(error, KeyError | TypeError):
        return f"rows of another form: {error}"
    return str(error)


async def _rows(client: httpx.AsyncClient, source: str, count: int) -> list[tuple[str, float]]:
    tasks: list[tuple[str, float]] = []
    while len(tasks) < count:
        async with asyncio.timeout(HUB_SECONDS):
            answer = await client.get(f"{source}&offset={len(tasks)}&length={min(100, count - len(tasks))}")
        answer.raise_for_status()
        got: list[dict[str, Any]] = answer.json()["rows"]
        if any(one.get("truncated_cells") for one in got):
            raise ValueError("problems that are cut short")
        rows: list[dict[str, str]] = [one["row"] for one in got]
        if not rows:
            raise ValueError(f"{len(tasks)} problems and no more")
        for row in rows:
            number = answer_in(row["answer"].rpartition("####")[2])
            if number is None:
                raise ValueError("a problem without a number as its answer")
            tasks.append((row["question"], number))
    return tasks
