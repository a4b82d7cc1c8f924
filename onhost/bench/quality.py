"""Does it talk sense? Short tests, each with a result that says what was found and what was wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onhost.bench.client import Refused
from onhost.bench.figures import tidy
from onhost.bench.load import together
from onhost.bench.plain import Asker, Reply
from onhost.bench.sample import Failed
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
    ("Explain in three sentences why the sky is blue.", "latin", "sky|blue|light|scatter|sun"),
    ("Say in three sentences what a lighthouse is for.", "latin", "light|ship|coast|sea|sail|boat|navigat"),
    ("请用三句话说明为什么海水是咸的。", "han", "海|水|盐|鹽|咸|鹹|矿|礦|氯|钠|鈉"),
)
"""Question, script of its language, and what no answer to it is without a word of."""
BEGINNING = 48  # tokens
UNENDED = "does not end within"


@dataclass
class Asked:
    """What a test gets: how to ask, how many at once, how many problems, and what `tick` is told."""

    asker: Asker
    metrics: Metrics
    at_once: int
    arithmetic: int = 100
    agreement: int = 16  # greedy answers to compare with those of the release before
    agreement_tokens: int = 128
    tick: Callable[[], None] = lambda: None
    answers: dict[str, str] = field(default_factory=dict)
    greedy: dict[tuple[str, int], Reply] = field(default_factory=dict)  # by prompt and tokens, asked alone

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
    at_best: float | None = None  # the score, were the answers right that are missing

    def as_dict(self) -> dict[str, Any]:
        score = None if self.score is None else tidy(self.score)
        found = " ".join(self.found.split())[:400]
        missing = {} if self.at_best is None else {"at_best": tidy(self.at_best)}
        return {
            **missing,
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
    can = (sum(right) + unfinished + len(failed)) / len(right)
    at_best = can if can > score else None
    if score >= passes:
        return Result(name, "inconclusive" if failed else "pass", found, wanted, score, at_best)
    return Result(name, "inconclusive" if can >= passes else "fail", found, wanted, score, at_best)


def _example(prompts: Sequence[str], replies: Sequence[Reply | str], right: Sequence[bool]) -> str:
    for prompt, reply, good in zip(prompts, replies, right, strict=True):
        if not good and isinstance(reply, Reply):
            return f"{prompt[:60]!r} was answered by {reply.text.strip()[:60]!r}"
    return ""


async def sane(asked: Asked) -> Result:
    """All three at once, which costs a server next to nothing. A short beginning first: garbage shows in it,
    also where the time is not enough for a server that does not end. What is sound so far is asked again."""
    faults: list[str | None] = []
    replies: list[Reply | str] = []
    for tokens in (BEGINNING, 200):
        todo = [at for at in range(len(OPEN)) if not replies or _goes_on(replies[at], faults[at])]
        got = await asked.all([OPEN[at][0] for at in todo], tokens, at_once=max(asked.at_once, len(OPEN)))
        replies = replies or [""] * len(OPEN)
        faults = faults or [None] * len(OPEN)
        for at, reply in zip(todo, got, strict=True):
            replies[at] = reply
            faults[at] = None if isinstance(reply, str) else fault_of(reply, *OPEN[at][1:])
    right = [isinstance(reply, Reply) and not fault for reply, fault in zip(replies, faults, strict=True)]
    wrong = next((f"an answer that {fault}" for fault in faults if fault), "")
    wanted = "answers that end, in the question's language and about it"
    result = scored("sane", replies, right, wanted, wrong, passes=1.0)
    # One that only does not end may be thinking aloud: no pass, and no garbage.
    unended = sum((fault or "").startswith(UNENDED) for fault in faults)
    if not unended or result.score is None:
        return result
    return replace(result, at_best=(result.at_best or result.score) + unended / len(OPEN))


def _goes_on(reply: Reply | str, fault: str | None) -> bool:
    """Whether an answer was cut by its number of tokens, and nothing else is wrong with it."""
    return isinstance(reply, Reply) and (reply.unfinished or (fault or "").startswith(UNENDED))


def fault_of(reply: Reply, script: str, about: str = "") -> str | None:
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
    if not re.search(about, text, re.IGNORECASE):
        return f"says nothing of what was asked ({text[:40]!r})"
    if reply.finish == "length":
        return f"{UNENDED} {reply.tokens} tokens"
    return None


def repeats(text: str) -> bool:
    """Whether the same piece follows itself many times: a loop, not a refrain."""
    flat = " ".join(text.split())
    # One or two characters ten times, or a longer piece four times on end.
    return bool(re.search(r"(\w{1,2}|[^\w\s-])\1{9}", flat) or re.search(r"(.{8,120}?)\1{3}", flat))


async def exact(asked: Asked) -> Result:
    prompts = [prompt for prompt, _ in EXACT]
    replies = await asked.all(prompts, 24, at_once=max(asked.at_once, len(EXACT)))
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
