"""Does it talk sense? Short tests, each with a result that says what was found and what was wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onhost.bench.client import Failed, Refused
from onhost.bench.figures import tidy
from onhost.bench.load import together
from onhost.bench.plain import Asker, Reply
from onhost.bench.server import Metrics
from onhost.bench.wordproblems import INSTRUCTION, answer_in, problems

PASSES = 0.8  # share of right answers from which a test passes by itself; recipes may ask for more

EXACT = (
    ("What is 17 + 25? Answer with the number only.", "42"),
    ("What is the chemical symbol of gold? Answer with the symbol only.", "au"),
    ("How many days has a leap year? Answer with the number only.", "366"),
    ("Which colour do you get from mixing blue and yellow paint? Answer with one word.", "green"),
    ("Repeat this word and nothing else: harbour", "harbour"),
)
OPEN = (
    ("Explain in three sentences why the sky is blue.", "latin"),
    ("Say in three sentences what a lighthouse is for.", "latin"),
    ("请用三句话说明为什么海水是咸的。", "han"),
)


@dataclass
class Asked:
    """What a test gets: how to ask, how many at once, how many problems, and what `tick` is told."""

    asker: Asker
    metrics: Metrics
    at_once: int
    arithmetic: int = 100
    tick: Callable[[], None] = lambda: None
    answers: dict[str, str] = field(default_factory=dict)

    async def all(
        self, prompts: Sequence[str], max_tokens: int, at_once: int = 0, **more: Any
    ) -> list[Reply | str]:
        """A reply to each, or why there is none; few at a time."""
        turn = asyncio.Semaphore(at_once or self.at_once)

        async def one(prompt: str) -> Reply | str:
            async with turn:
                try:
                    return await self.asker.ask(prompt, max_tokens, **more)
                except Failed as failed:
                    return str(failed)
                finally:
                    self.tick()

        return await together(one(prompt) for prompt in prompts)


@dataclass(frozen=True)
class Result:
    """A line of `quality` in the measurement."""

    name: str
    status: str
    found: str
    wanted: str
    score: float | None = None

    def as_dict(self) -> dict[str, Any]:
        score = None if self.score is None else tidy(self.score)
        found = " ".join(self.found.split())[:400]
        return {
            "name": self.name,
            "status": self.status,
            "found": found,
            "wanted": self.wanted,
            "score": score,
        }


def scored(
    name: str,
    replies: Sequence[Reply | str],
    right: Sequence[bool],
    wanted: str,
    wrong: str = "",
    passes: float = PASSES,
) -> Result:
    """The share that is right. Requests that failed say nothing: for a pass none may be missing."""
    failed = [reply for reply in replies if isinstance(reply, str)]
    if failed and len(failed) == len(replies):
        over = "time was over" in failed[0]
        return Result(name, "not checked" if over else "fail", f"no answer: {failed[0]}", wanted)
    unfinished = sum(isinstance(reply, Reply) and reply.unfinished for reply in replies)
    score = sum(right) / len(right)
    found = f"{sum(right)} of {len(right)} right"
    if failed:
        found += f"; {len(failed)} without an answer ({failed[0]})"
    if unfinished:
        found += f"; {unfinished} were cut while still thinking"
    if wrong and score < 1:
        found += f"; e.g. {wrong}"
    if score >= passes:
        return Result(name, "inconclusive" if failed else "pass", found, wanted, score)
    can = (sum(right) + unfinished + len(failed)) / len(right)
    return Result(name, "inconclusive" if can >= passes else "fail", found, wanted, score)


def _example(prompts: Sequence[str], replies: Sequence[Reply | str], right: Sequence[bool]) -> str:
    for prompt, reply, good in zip(prompts, replies, right, strict=True):
        if not good and isinstance(reply, Reply):
            return f"{prompt[:60]!r} was answered by {reply.text.strip()[:60]!r}"
    return ""


async def sane(asked: Asked) -> Result:
    prompts = [prompt for prompt, _ in OPEN]
    replies = await asked.all(prompts, 200)
    faults = [
        None if isinstance(reply, str) else fault_of(reply, script)
        for reply, (_, script) in zip(replies, OPEN, strict=True)
    ]
    right = [isinstance(reply, Reply) and not fault for reply, fault in zip(replies, faults, strict=True)]
    wrong = next((f"an answer that {fault}" for fault in faults if fault), "")
    return scored("sane", replies, right, "answers that end, in the question's language", wrong, passes=1.0)


def fault_of(reply: Reply, script: str) -> str | None:
    """What is wrong with an open answer, in words that follow "an answer that"; None where nothing is."""
    text = reply.text.strip()
    if not text:
        return None if reply.unfinished else "is empty"
    if "\N{REPLACEMENT CHARACTER}" * 2 in text:
        return "has undecodable text"
    if repeats(text):
        return f"repeats itself ({text[-40:]!r})"
    letters = [c for c in text if c.isalpha()]
    han = sum("一" <= c <= "鿿" for c in letters)
    latin = sum(c.isascii() or c in "áéíóúäöüñçàèêô" for c in letters)
    share = (han if script == "han" else latin) / max(1, len(letters))
    if share < 0.7:
        return f"is not in the question's language ({text[:40]!r})"
    if reply.finish == "length":
        return f"does not end within {reply.tokens} tokens"
    return None


def repeats(text: str) -> bool:
    """Whether the same piece follows itself many times: a loop, not a refrain."""
    flat = " ".join(text.split())
    # One or two characters ten times, or a longer piece four times on end.
    return bool(re.search(r"(\w{1,2}|[^\w\s-])\1{9}", flat) or re.search(r"(.{8,120}?)\1{3}", flat))


async def exact(asked: Asked) -> Result:
    prompts = [prompt for prompt, _ in EXACT]
    replies = await asked.all(prompts, 24)
    right = [
        isinstance(reply, Reply) and bare(reply.text) == wanted
        for reply, (_, wanted) in zip(replies, EXACT, strict=True)
    ]
    wrong = _example(prompts, replies, right)
    return scored("exact", replies, right, "the one right answer at temperature 0", wrong)


def bare(text: str) -> str:
    """An answer without what models put around it: blanks, quotes, bold, a full stop."""
    return text.strip().strip("*_`\"' .!\n").lower()


async def arithmetic(asked: Asked) -> Result:
    tasks = problems(asked.arithmetic)
    prompts = [f"{task.text} {INSTRUCTION}" for task in tasks]
    replies = await asked.all(prompts, 400)
    right = [
        isinstance(reply, Reply) and answer_in(reply.text) == task.answer
        for reply, task in zip(replies, tasks, strict=True)
    ]
    return scored("arithmetic", replies, right, f"{PASSES:.0%} of {len(tasks)} word problems right")


async def checked(name: str, test: Awaitable[Result]) -> Result:
    """A test's result; what the server refuses is a result of this test, not the end of the job."""
    try:
        return await test
    except Refused as error:
        return Result(name, "fail", str(error), "the request accepted")
    except Failed as error:
        over = "time was over" in str(error)
        return Result(name, "not checked" if over else "fail", str(error), "an answer")
