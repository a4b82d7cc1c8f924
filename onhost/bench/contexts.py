"""Speed by length of the input: how long until the first token, and how fast from there."""

from __future__ import annotations

import asyncio
import math
import os
import re
import statistics
from dataclasses import replace
from typing import Any

from onhost.bench.client import Refused, Target
from onhost.bench.figures import distribution, tidy
from onhost.bench.load import Load, Round
from onhost.bench.plain import Asker
from onhost.bench.prompts import WORDS, filler
from onhost.bench.sample import Failed, OutOfTime

TOO_LONG = re.compile(r"context|too (long|large)|longer than|exceed|max\w*.?(len|tok)", re.IGNORECASE)
"""How servers say that a prompt is too long."""
SLOWEST = 200  # tokens of input a second; a server that reads slower does not answer


async def words_for(asker: Asker, tokens: int) -> int:
    """How many words of filler make about `tokens` tokens of input, by what the server counts.

    Two lengths are asked, so that the chat's template does not count as words. The more is wanted, the longer
    the second one: which words are capitalised is chance, and some tokenizers need two tokens for those; of
    a few words that would be off by more than what is kept free at the context's end. Failed or JobError.
    """
    blocks = min(40, max(2, tokens // (8 * WORDS)))
    few = await asker.ask(" ".join(filler(WORDS, 1)), 1)
    more = await asker.ask(" ".join(filler(blocks * WORDS, 1)), 1)
    each = (more.prompt_tokens - few.prompt_tokens) / (WORDS * (blocks - 1))
    if each <= 0:
        raise Failed("the server does not say how many tokens a prompt has")
    return max(1, int((tokens - (few.prompt_tokens - WORDS * each)) / each))


def patient(target: Target, tokens: int) -> Target:
    """The same with more time for a long input: no byte comes before all of it is read."""
    return replace(target, timeout=target.timeout + tokens / SLOWEST)


def too_long(error: Refused) -> bool:
    """Does the server refuse for the length? That is a limit of it, and any other refusal a failure."""
    return TOO_LONG.search(error.words) is not None


def untaken(tokens: int, error: Refused) -> str:
    """What a note says of a length that the server refuses."""
    return f"the server takes no {tokens} tokens ({error.words})"


async def at_length(
    load: Load, asker: Asker, tokens: int, repeats: int, until: float = math.inf
) -> tuple[dict[str, Any], str]:
    """`repeats` requests, one at a time, each with a text of its own that no cache has seen.

    The entry of the measurement, and why the server does not take that many tokens ("" where it does).
    """
    loop = asyncio.get_running_loop()
    result, refused = Round(), ""
    load = replace(load, target=patient(load.target, tokens))
    try:
        words = await words_for(asker, tokens)
        for _ in range(repeats):
            if result.requests and loop.time() >= until:
                break
            seed = int.from_bytes(os.urandom(4), "big")
            await load.one(" ".join(filler(words, seed)), None, until, result)
    except OutOfTime as late:
        result.late.append(str(late))
    except (Failed, Refused) as error:
        if isinstance(error, Refused) and too_long(error):
            refused = untaken(tokens, error)
        else:
            result.failures.append(str(error))
    samples = result.samples
    counted = [s.prompt_tokens for s in samples if s.prompt_tokens]
    prefill = [
        s.prompt_tokens / s.ttft for s in samples if s.prompt_tokens and s.ttft > 0 and not s.in_one_piece
    ]
    entry = {
        "asked": tokens,
        "input_tokens": int(statistics.median(counted)) if counted else None,
        **result.failed(),
        "ttft_s": distribution([s.ttft for s in samples]),
        "prefill_tok_s": tidy(statistics.median(prefill)) if prefill else None,
        "decode_tok_s": distribution([s.decode_tok_s for s in samples if s.decode_tok_s is not None]),
    }
    return entry, refused
