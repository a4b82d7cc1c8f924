"""A measured point in words, and whether the answers of the speed part look like an engine in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onhost.bench.sample import Sample


def said(point: dict[str, Any]) -> str:
    """A point in a few words, for who watches."""
    streams, kind = point["streams"], point["category"]
    name = f"{streams} stream{'s' if streams > 1 else ''}" + ("" if kind == "all" else f", {kind}")
    first = point["ttft_s"]["median"]
    figures = f"{point['total_tok_s'] or 0:g} tok/s"
    return f"{name}: {figures}" + ("" if first is None else f", first token {first:g} s")


def sanity(samples: Sequence[Sample], max_tokens: int, *, judge: bool) -> dict[str, Any]:
    """Whether the answers are what an engine in order writes, and in words what was checked.

    Always: text in every answer, as many tokens as were asked for (or an end that the model chose, on a
    server that cannot be told to go on), token ids that agree with usage. Only
    where the profile says `judge_text` (a model with random weights writes nonsense): no answer that is one
    token over and over, which is what broken scales of a quantised layer look like.
    """
    empty = sum(not s.text for s in samples)
    early = sum(s.tokens < max_tokens and s.finish == "stop" for s in samples)
    short = sum(s.tokens != max_tokens and not s.cut for s in samples) - early
    differ = sum(s.odd is not None for s in samples)
    stuck = sum(s.longest_run > max(8, s.tokens // 2) for s in samples)
    broken = sum("\N{REPLACEMENT CHARACTER}" * 4 in s.text for s in samples)
    found = [f"{len(samples)} answers: {empty} empty, {short} not of {max_tokens} tokens"]
    if early:
        found.append(f"{early} ended by themselves: the server does not know ignore_eos")
    if cut := sum(s.cut for s in samples):
        found.append(f"{cut} cut by the profile's time")
    with_ids = sum(s.ids is not None for s in samples)
    found.append(f"{differ} of {with_ids} with ids unlike usage" if with_ids else "no token ids given")
    found.append(f"{stuck} repeating one token, {broken} with undecodable text")
    found.append("repetition judged" if judge else "language not judged")
    ok = bool(samples) and not (empty or short or differ) and not (judge and (stuck or broken))
    return {"ok": ok, "found": "; ".join(found)}
