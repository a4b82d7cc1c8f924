"""Open loop: so many requests a second, whatever becomes of them; up to where the server falls behind."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

from onhost.bench.figures import distribution, slope, tidy
from onhost.bench.load import Load, Round, together

KEEPS_UP = 0.95  # of the asked rate: below it the server falls behind
EXPLODES = 5.0  # × the first token's time at the lowest rate
STEP = 1.5  # from one rate to the next
MOST_STEPS = 14


def arrivals(rps: float, requests: int) -> list[float]:
    """Random arrivals (a Poisson process, the same at each run), stretched to `rps` exactly; s from 0.

    "Exactly" is by the same line through them that tells the rate at which they end.
    """
    chance = random.Random(1)
    times = [0.0]
    for _ in range(requests - 1):
        times.append(times[-1] + chance.expovariate(1.0))
    drawn = slope(times)
    return [at * (drawn or rps) / rps for at in times]


async def at_rate(load: Load, rps: float, requests: int, until: float = math.inf) -> dict[str, Any]:
    """`requests` arrive at random, `rps` a second on the whole, however many are still under way."""
    loop = asyncio.get_running_loop()
    result = Round()
    began = loop.time()

    async def arrive(at: float, text: str) -> None:
        await asyncio.sleep(began + at - loop.time())
        if loop.time() < until:
            await load.one(text, None, until, result)

    texts = load.texts(requests, "all")
    await together(arrive(at, text) for at, text in zip(arrivals(rps, requests), texts, strict=True))
    result.seconds = (result.ended or loop.time()) - began
    ends = sorted(sample.ended for sample in result.samples if not sample.cut)
    # By the ends alone: the time in which the first ones are under way is not the server's fault.
    achieved = slope(ends)
    return {
        "rate_rps": rps,
        "achieved_rps": None if achieved is None else tidy(achieved),
        **result.failed(),
        "ttft_s": distribution([s.ttft for s in result.samples]),
        "end_to_end_s": distribution([s.ended - s.began for s in result.samples if not s.cut]),
        "output_tok_s": None if result.lost else result.output_tok_s,
    }


def falls_behind(point: dict[str, Any], lowest: dict[str, Any]) -> str | None:
    """Why a rate is more than the server can do, or None."""
    if point["failed"]:
        return f"{point['failed']} of {point['requests']} requests failed ({point['failures'][0]})"
    achieved, asked = point["achieved_rps"], point["rate_rps"]
    if achieved is None:
        return "too few requests ended"
    if achieved < KEEPS_UP * asked:
        return f"{achieved:g} requests/s were answered"
    first, now = lowest["ttft_s"]["median"], point["ttft_s"]["median"]
    if first and now > EXPLODES * first:
        return f"the first token took {now:g} s, {now / first:.1f} × as long as at {lowest['rate_rps']:g}/s"
    return None


async def saturate(
    load: Load, alone: float, requests: int, until: float, seen: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    """Steps the rate up from half of what one stream at a time does (`alone`: s a request) until the server
    falls behind twice at the same rate. The rate that it kept up with, and why not the next; None where
    there was no time."""
    loop = asyncio.get_running_loop()
    rps = tidy(0.5 / alone)
    lowest: dict[str, Any] | None = None
    best: dict[str, Any] = {"rate_rps": None, "output_tok_s": None}
    why: str | None = None
    again = False
    for _ in range(MOST_STEPS):
        if loop.time() >= until:
            break
        point = await at_rate(load, rps, requests, until)
        if loop.time() >= until:
            break  # what the time has cut says nothing about the server
        seen(point)
        lowest = lowest or point
        why = falls_behind(point, lowest)
        if why is None:
            best, rps, again = point, tidy(rps * STEP), False
            continue
        why = f"at {rps:g} requests/s {why}"
        if again:
            break
        again = True  # the machine may have had a bad moment: a rate has two tries
    if lowest is None:
        return None
    return {
        "rate_rps": best["rate_rps"],
        "output_tok_s": best["output_tok_s"],
        "why": why or "the server kept up with every rate that was tried",
    }
