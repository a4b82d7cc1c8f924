"""The benchmark's figures against a server whose timing is known: within 1 % of the truth, on any machine.

Server and client share a simulated clock (`simulated.py`); a minute of measuring takes milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from simulated import Loop, Scripted, Timing, event

from onhost.bench.client import Refused
from onhost.bench.contexts import too_long
from onhost.bench.figures import MANY, distribution, interval, slope, spread
from onhost.bench.load import Load
from onhost.bench.open_loop import arrivals
from onhost.bench.prompts import WORDS, filler
from onhost.bench.run import measure
from onhost.bench.server import Metrics, look
from onhost.jobs import Job, Progress
from onhost.plan import JobError, Plan
from sparkstack import gates

QUICK: dict[str, Any] = {"warmup": 0, "repeats": 1, "max_tokens": 31}


def job_of(tmp_path: Path, profile: dict[str, Any], **keys: Any) -> Job:
    plan = {"url": "http://server:8000", "model": "tiny", "api_key_file": None, "release": "r1"}
    plan |= {"result": str(tmp_path / "results/measurement.json"), "profile": profile} | keys
    return Job("bench", Plan(plan), tmp_path, Progress(StringIO()), Event())


def measured(tmp_path: Path, server: Scripted, profile: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return measure(job_of(tmp_path, profile, **keys), server, Loop)


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.01)


# name: (timing, tokens, TTFT, decode tok/s, end to end, median wait for a token)
TIMINGS = {
    "a token a chunk": (Timing(0.5, 0.1), 31, 0.5, 10, 3.5, 0.1),
    "five tokens a chunk": (Timing(0.3, 0.1, (5,)), 40, 0.3, 50, 1.0, 0.02),
    "several in the first chunk alone": (Timing(0.3, 0.1, (4, 1)), 24, 0.3, 10, 2.3, 0.1),
    "chunks of many sizes": (Timing(0.2, 0.06, (1, 3, 2, 4, 1, 2)), 13, 0.2, 40, 0.5, 0.02),
    "a slow first token": (Timing(42, 0.02), 51, 42, 50, 43, 0.02),
    "a stall": (Timing(0.5, 0.1, stall={7: 6.0}), 31, 0.5, 30 / 9, 9.5, 0.1),
    "very fast": (Timing(0.004, 0.0005), 201, 0.004, 2000, 0.104, 0.0005),
}


@pytest.mark.parametrize(
    ("name", "streams"), [(name, 3) for name in TIMINGS] + [("chunks of many sizes", 1)], ids=str
)
def test_every_figure_is_the_truth(tmp_path: Path, name: str, streams: int) -> None:
    timing, tokens, ttft, decode, end_to_end, wait = TIMINGS[name]
    server = Scripted(timing=lambda _n, _body: timing)
    profile = {**QUICK, "streams": [streams], "max_tokens": tokens, "repeats": 2, "requests": 2}
    found = measured(tmp_path, server, profile)
    (point,) = found["points"]
    assert (point["requests"], point["failed"], point["cut"], point["repeats"]) == (4 * streams, 0, 0, 2)
    for figure, truth in (("ttft_s", ttft), ("decode_tok_s", decode), ("end_to_end_s", end_to_end)):
        assert point[figure]["median"] == near(truth), figure
        assert point[figure]["ci"] == [near(truth), near(truth)]
        assert point[figure]["n"] == 4 * streams
    assert point["inter_token_s"]["median"] == near(wait)
    asked = sum(server.tokens_of(body) for body in server.asked) / len(server.asked)
    assert point["output_tok_s"] == near(streams * tokens / end_to_end)
    assert point["total_tok_s"] == near(streams * tokens / end_to_end)
    assert point["input_tok_s"] == near(streams * asked / end_to_end)
    assert point["spread"] == near(0)
    assert found["sane"]["ok"] and found["complete"] and found["noise"]["verdict"] == "quiet"


def test_chunks_without_ids_count_as_usage_says(tmp_path: Path) -> None:
    server = Scripted(timing=lambda _n, _body: Timing(0.3, 0.1, (3,)), ids=False)
    (point,) = measured(tmp_path, server, {**QUICK, "max_tokens": 30})["points"]
    assert point["decode_tok_s"]["median"] == near(30)
    assert point["inter_token_s"]["median"] == near(0.1 / 3)


@pytest.mark.parametrize("splits", ["after", "before"])
@pytest.mark.parametrize("name", TIMINGS)
def test_text_that_comes_apart_from_its_ids_is_no_wait(tmp_path: Path, name: str, splits: str) -> None:
    timing, tokens, ttft, decode, end_to_end, wait = TIMINGS[name]
    server = Scripted(timing=lambda _n, _body: timing, splits=splits)
    (point,) = measured(tmp_path, server, {**QUICK, "max_tokens": tokens})["points"]
    for figure, truth in (("ttft_s", ttft), ("decode_tok_s", decode), ("end_to_end_s", end_to_end)):
        assert point[figure]["median"] == near(truth), figure
    after = tokens - timing.chunks[0]
    assert (point["inter_token_s"]["median"], point["inter_token_s"]["n"]) == (near(wait), after)
    most = max(timing.gap + more for more in (0.0, *timing.stall.values()))
    assert point["inter_token_s"]["max"] <= most * 1.01
    assert point["unmeasured"] is None


@pytest.mark.parametrize(("chunks", "ids", "took"), [(4, True, 0.0), (31, True, 1.7e-5), (31, False, 1.7e-5)])
def test_a_stream_that_comes_in_one_piece_has_no_speed(
    tmp_path: Path, chunks: int, ids: bool, took: float
) -> None:
    """Something between buffers it: what is measured is how fast it is read. One hiccup of ours changes
    nothing."""
    timing = Timing(0.739, took, (8,) if chunks == 4 else (1,), stall={2: 0.004 if took else 0.0})
    server = Scripted(timing=lambda _n, _body: timing, ids=ids)
    found = measured(tmp_path, server, {**QUICK, "max_tokens": 32, "contexts": [100], "repeats": 2})
    (point,) = found["points"]
    assert (point["requests"], point["failed"], point["ttft_s"]["median"]) == (2, 0, near(0.739))
    assert point["decode_tok_s"]["n"] == point["inter_token_s"]["n"] == 0
    assert point["total_tok_s"] == near(32 / point["end_to_end_s"]["median"])
    (context,) = found["contexts"]
    assert (context["failed"], context["decode_tok_s"]["n"], context["prefill_tok_s"]) == (0, 0, None)
    (note,) = found["notes"]
    assert note.startswith(point["unmeasured"])
    assert point["unmeasured"] == "the stream comes in one piece: something between buffers it"
    # A gate that expects a speed of it is told so, and neither passes nor fails.
    speed = gates.judge(found, {"decode_tok_s": {1: {"min": 1}}}).lines[0]
    assert (speed.verdict, speed.note) == ("inconclusive", point["unmeasured"])


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("piece", [3, 8, 48])
def test_a_stream_that_comes_in_pieces_has_the_speed_of_the_server(
    tmp_path: Path, piece: int, ids: bool
) -> None:
    """A server that sends each token of a step by itself, or a buffer of some chunks: 50 tokens/s."""
    stall = {at: 0.02 * piece for at in range(piece, 144, piece)}
    server = Scripted(timing=lambda _n, _body: Timing(0.5, 1.7e-5, stall=stall), ids=ids)
    found = measured(tmp_path, server, {**QUICK, "max_tokens": 144})
    (point,) = found["points"]
    assert point["decode_tok_s"]["median"] == near(50) and point["inter_token_s"]["median"] == near(0.02)
    assert point["inter_token_s"]["n"] == 144 - piece
    assert len(found["notes"]) == (piece >= 8)
    assert all(n.startswith(f"the stream comes in pieces of about {piece} chunks") for n in found["notes"])


def test_a_long_wait_before_a_fast_answer_is_no_piece(tmp_path: Path) -> None:
    server = Scripted(timing=lambda _n, _body: Timing(400, 0.02))
    found = measured(tmp_path, server, {**QUICK, "timeout_s": 900})
    assert found["points"][0]["decode_tok_s"]["median"] == near(50) and found["notes"] == []


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("speed", [60, 22, 15, 8, 5.2, 3])
def test_smoke_on_a_steady_server_without_ids(tmp_path: Path, speed: float, streams: int) -> None:
    """Only the end of an answer says how many tokens it has: none is cut while there is time for it."""
    server = Scripted(timing=lambda _n, _body: Timing(0.1, 1 / speed), ids=False)
    server.says = lambda prompt, _n: prompt[:20]
    found = measured(tmp_path, server, {"name": "smoke", "streams": [streams], "quality": []})
    (point,) = found["points"]
    whole = 0.1 + 63 / speed
    assert point["failed"] == point["cut"] == 0 and point["requests"] >= streams
    assert point["ttft_s"]["median"] == near(0.1) and point["decode_tok_s"]["median"] == near(speed)
    assert point["end_to_end_s"]["median"] == near(whole)
    assert point["total_tok_s"] == point["output_tok_s"] == near(streams * 64 / whole)
    assert point["spread"] in (None, near(0)) and (point["spread"] is None) == (speed == 3)


@pytest.mark.parametrize("speed", [60, 15, 1])
def test_smoke_on_a_server_that_counts_by_usage_with_each_chunk(tmp_path: Path, speed: float) -> None:
    """It is asked for where no ids come; then an answer that is cut counts as far as it went."""
    server = Scripted(timing=lambda _n, _body: Timing(0.1, 3 / speed, (1, 3)), ids=False, runs=True)
    found = measured(
        tmp_path, server, {"name": "smoke", "quality": [], "max_tokens": 64 if speed > 1 else 900}
    )
    (point,) = found["points"]
    assert (point["failed"], found["notes"]) == (0, []) and point["requests"] >= (8 if speed == 1 else 9)
    assert point["cut"] == (0 if speed == 60 else point["requests"]) and point["decode_tok_s"][
        "median"
    ] == near(speed)
    assert point["inter_token_s"]["median"] == near(1 / speed)
    # vLLM and others with ids are not asked: it is work for them.
    server = Scripted(runs=True)
    measured(tmp_path, server, {**QUICK, "repeats": 2})
    assert [body["stream_options"] for body in server.asked] == [{"include_usage": True}] * 2


def test_a_server_that_refuses_or_miscounts_usage_with_each_chunk(tmp_path: Path) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return "unknown" if "continuous_usage_stats" in body["stream_options"] else None

    server = Scripted(timing=lambda _n, _body: Timing(0.3, 0.1, (3,)), ids=False, refuses=refuses)
    found = measured(tmp_path, server, {**QUICK, "max_tokens": 30, "repeats": 4})
    assert found["points"][0]["decode_tok_s"]["median"] == near(30) and found["points"][0]["failed"] == 0
    assert len(server.asked) == 5 and all(body["ignore_eos"] for body in server.asked) and not found["notes"]

    stuck = {"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": 1}}
    events = (*[stuck] * 30, {"choices": [], "usage": {"completion_tokens": 30}}, "[DONE]")
    found = measured(tmp_path, Odd(events=events), {**QUICK, "repeats": 3, "seconds": 20})
    assert found["points"][0]["decode_tok_s"]["median"] == near(10) and found["points"][0]["cut"] == 0


@pytest.mark.parametrize("speed", [22, 15, 8])
def test_kinds_that_are_unlike_in_speed_are_no_noise_without_ids(tmp_path: Path, speed: float) -> None:
    def timing(n: int, _body: dict[str, Any]) -> Timing:
        kind = server.text_of(server.asked[n]).partition(") ")[2]
        return Timing(0.1, 1 / speed, (1 + len(kind) % 3,))

    server = Scripted(timing=timing, ids=False)
    found = measured(tmp_path, server, {"name": "smoke", "quality": []})
    assert (found["points"][0]["spread"], found["noise"]["verdict"]) == (near(0), "quiet")


@pytest.mark.parametrize("streams", [1, 2])
def test_what_came_too_late_takes_no_time_from_what_was_measured(tmp_path: Path, streams: int) -> None:
    """A server without ids that stalls: the answers that the time cut off have no count, and no seconds."""
    first = 3 * streams + 1  # of the answers that stall
    server = Scripted(ids=False)
    server.timing = lambda n, _body: Timing(0.1, 0.05, stall={9: 500.0} if n >= first else {})
    found = measured(
        tmp_path, server, {**QUICK, "streams": [streams], "requests": 3, "repeats": 3, "seconds": 100}
    )
    (point,) = found["points"]
    assert point["failed"] == 0 and point["requests"] < 9 * streams
    assert point["total_tok_s"] == point["output_tok_s"] == near(streams * 31 / 1.6)


def test_stalls_show_in_the_tail(tmp_path: Path) -> None:
    server = Scripted(timing=lambda n, _body: Timing(0.5, 0.1, stall={3: 5.0} if n % 2 else {}))
    (point,) = measured(tmp_path, server, {**QUICK, "repeats": 10, "max_repeated": 0})["points"]
    assert point["inter_token_s"]["median"] == near(0.1) and point["inter_token_s"]["max"] == near(5.1)
    assert point["inter_token_s"]["p99"] == near(5.1)
    assert point["end_to_end_s"]["min"] == near(3.5) and point["end_to_end_s"]["p90"] == near(8.5)


def test_warm_up_is_told_and_not_counted(tmp_path: Path) -> None:
    server = Scripted(timing=lambda n, _body: Timing(30.0 if n < 4 else 0.5))
    found = measured(tmp_path, server, {**QUICK, "streams": [2], "warmup": 2})
    assert found["warmup"] == {"requests": 4, "seconds": near(66)}
    assert found["points"][0]["ttft_s"]["max"] == near(0.5)


def test_counters_that_are_missed_once_cost_one_point_its_acceptance(tmp_path: Path) -> None:
    class Busy(Scripted):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            # Twice before the first point, once after; the first time of all is before the whole speed part.
            self.hangs = ("/metrics",) if self.paths.count("/metrics") in (1, 2, 3) else ()
            return await super().handle_async_request(request)

    server = Busy(timing=lambda _n, _body: Timing(chunks=(1, 3, 2) * 30), drafted=2)
    server._draft(1)  # there was a time before
    found = measured(tmp_path, server, {**QUICK, "streams": [1, 2], "max_tokens": 60})
    assert [point["acceptance"] for point in found["points"]] == [None, 0.5]
    assert found["speculation"]["acceptance"] == 0.5


def test_acceptance_and_accepted_length(tmp_path: Path) -> None:
    # Two drafted for each step; steps of 1, 3 and 2 tokens in turn: accepted 0, 2 and 1 of 2.
    chunks = (1, 3, 2) * 10
    server = Scripted(timing=lambda _n, _body: Timing(chunks=chunks), drafted=2)
    found = measured(tmp_path, server, {**QUICK, "max_tokens": 60, "warmup": 1})
    assert found["points"][0]["acceptance"] == near(0.5)
    assert found["points"][0]["accepted_length"] == near(2.0)
    assert found["speculation"] == {"drafted": 60, "accepted": 30, "acceptance": 0.5, "accepted_length": 2.0}
    plain = measured(tmp_path, Scripted(), QUICK)
    assert plain["speculation"] is None and plain["points"][0]["acceptance"] is None


def test_failures_are_counted_and_leave_the_rest_alone(tmp_path: Path) -> None:
    faults = {1: "cut", 3: "odd"}
    server = Scripted(fault=lambda n: faults.get(n, ""))
    (point,) = measured(tmp_path, server, {**QUICK, "repeats": 6, "max_repeated": 0})["points"]
    assert (point["requests"], point["failed"]) == (6, 2)
    assert point["failures"] == ["31 token ids and 32 tokens by usage", "a stream that was cut"]
    assert point["decode_tok_s"]["median"] == near(10) and point["decode_tok_s"]["n"] == 5


def test_a_server_that_knows_no_field_of_vllms(tmp_path: Path) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return "unknown field ignore_eos" if "ignore_eos" in body else None

    server = Scripted(timing=lambda _n, _body: Timing(0.3, 0.1, (3,)), refuses=refuses, ids=False, ends_at=12)
    found = measured(tmp_path, server, {**QUICK, "max_tokens": 30, "warmup": 1})
    assert found["points"][0]["decode_tok_s"]["median"] == near(30) and found["points"][0]["failed"] == 0
    assert found["notes"] == [
        "the server refuses ignore_eos and return_token_ids: tokens are counted by usage"
    ]
    assert found["sane"]["ok"] and "1 ended by themselves" in found["sane"]["found"]
    assert len(server.asked) == 3  # it is tried once with them
    server.refuses = lambda _body: "no"
    with pytest.raises(JobError, match=r"found HTTP 400 from http://server:8000 \(no\); wanted"):
        measured(tmp_path, server, QUICK)


def test_a_server_that_says_nothing_for_too_long(tmp_path: Path) -> None:
    def timing(n: int, _body: dict[str, Any]) -> Timing:
        return Timing(70.0 if n == 1 else 59.0, stall={4: 70.0 if n == 2 else 0.0})

    server = Scripted(timing=timing)
    (point,) = measured(tmp_path, server, {**QUICK, "repeats": 4, "timeout_s": 60})["points"]
    assert (point["requests"], point["failed"], point["failures"]) == (4, 2, ["no byte for 60 s"])
    assert point["ttft_s"]["max"] == near(59)
    with pytest.raises(JobError, match="found all 4 requests with 1 streams failing: no byte for 5 s;"):
        measured(tmp_path, server, {**QUICK, "repeats": 4, "timeout_s": 5})


def test_categories_with_thinking_on_and_off(tmp_path: Path) -> None:
    def timing(_n: int, body: dict[str, Any]) -> Timing:
        slow = body.get("chat_template_kwargs", {}).get("enable_thinking")
        return Timing(0.1, 0.2 if slow else 0.1, (4,) if "JSON" in server.text_of(body) else (1,))

    server = Scripted(timing=timing)
    kinds = {"categories": ["json", "prose"], "thinking": [True, False], "category_streams": [1]}
    profile = {**QUICK, "max_tokens": 32, **kinds}
    found = measured(tmp_path, server, profile)
    rates = {(p["category"], p["thinking"]): p["decode_tok_s"]["median"] for p in found["points"]}
    assert rates[("prose", True)] == near(5) and rates[("prose", False)] == near(10)
    assert rates[("json", True)] == near(20) and rates[("json", False)] == near(40)
    assert [p["requests"] for p in found["points"]] == [1, 5, 5, 5, 5]
    # A server that does not know the switch is no failed benchmark.
    server.refuses = lambda body: "unknown field" if "chat_template_kwargs" in body else None
    # Its kinds are then measured as the model has it by itself, once.
    for asked in ([True, False], [False], [True, None, False]):
        found = measured(tmp_path, server, {**profile, "thinking": asked})
        kinds_of = [(p["category"], p["thinking"], p["failed"]) for p in found["points"][1:]]
        assert kinds_of == [("json", None, 0), ("prose", None, 0)]
        assert found["points"][1]["decode_tok_s"]["median"] == near(40)
    assert "thinking on: found HTTP 400 from http://server:8000 (unknown field)" in found["notes"][0]
    found = measured(tmp_path, server, profile)
    assert len(found["notes"]) == 3 and found["notes"][2].startswith("categories: measured as the model has")
    # One that takes the switch in one way alone is measured in that way.
    server.refuses = lambda body: (
        "no" if body.get("chat_template_kwargs", {}).get("enable_thinking") else None
    )
    found = measured(tmp_path, server, profile)
    assert {p["thinking"] for p in found["points"][1:]} == {False} and len(found["notes"]) == 1


def test_a_line_ends_where_the_stream_says_so(tmp_path: Path) -> None:
    # Characters that Python and others take for the end of a line, as models write them now and then.
    server = Scripted(word="a\u2028b\u0085c\x0c\u2029 \u00e9")
    (point,) = measured(tmp_path, server, {**QUICK})["points"]
    assert (point["failures"], point["decode_tok_s"]["median"]) == ([], near(10))


def test_contexts(tmp_path: Path) -> None:
    def timing(_n: int, body: dict[str, Any]) -> Timing:
        return Timing(server.tokens_of(body) / 2000, 0.05)

    server = Scripted(timing=timing, max_model_len=5000)
    profile = {**QUICK, "contexts": [1000, 4000, 9000], "repeats": 2, "max_repeated": 0, "spread_limit": 9}
    found = measured(tmp_path, server, profile)
    assert [c["asked"] for c in found["contexts"]] == [1000, 4000]
    for context in found["contexts"]:
        assert context["input_tokens"] == near(context["asked"])
        assert context["ttft_s"]["median"] == near(context["asked"] / 2000)
        assert context["prefill_tok_s"] == near(2000) and context["decode_tok_s"]["median"] == near(20)
    assert found["notes"] == ["contexts: the model's 5000 tokens have room for [1000, 4000]"]
    texts = {server.text_of(body) for body in server.asked if body["max_tokens"] == 31}
    assert len(texts) == 2 + 4  # no text twice: a prefix cache would answer for the engine
    found = measured(tmp_path, server, {**profile, "contexts": "auto"})
    assert [c["asked"] for c in found["contexts"]] == [1024, 4096, int(5000 * 0.99) - 47]


@pytest.mark.parametrize(
    ("words", "long"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 8192", True),
        ("the request exceeds the available context size", True),
        ("The input (8192 tokens) is longer than the model's context length (4096 tokens).", True),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8192", True),
        ("prompt is too long: 8192 tokens", True),
        ("The model `m` does not exist", False),
        ("unknown field ignore_eos", False),
    ],
)
def test_how_servers_say_that_an_input_is_too_long(words: str, long: bool) -> None:
    assert too_long(Refused("", words)) is long


@pytest.mark.parametrize("longest", [None, 10_000])
def test_a_length_that_the_server_refuses_is_no_failure(tmp_path: Path, longest: int | None) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return "the context is 3000 tokens" if server.tokens_of(body) > 3000 else None

    server = Scripted(refuses=refuses, max_model_len=longest)
    found = measured(tmp_path, server, {**QUICK, "contexts": [1000, 4000, 9000], "repeats": 2})
    shown = [(c["asked"], c["requests"], c["failed"], c["failures"]) for c in found["contexts"]]
    assert shown == [(1000, 2, 0, []), (4000, 0, 0, []), (9000, 0, 0, [])]
    assert found["contexts"][1]["ttft_s"]["n"] == 0 and found["contexts"][1]["prefill_tok_s"] is None
    assert found["notes"] == [
        f"contexts: the server takes no {n} tokens (the context is 3000 tokens)" for n in (4000, 9000)
    ]
    # A server that refuses it for something else has failed.
    server.refuses = lambda body: "unknown field" if server.tokens_of(body) > 3000 else None
    found = measured(tmp_path, server, {**QUICK, "contexts": [1000, 4000], "repeats": 1})
    assert [(c["requests"], c["failed"]) for c in found["contexts"]] == [(1, 0), (1, 1)]
    # So has one that breaks down over it.
    server.refuses = lambda _body: None
    server.fault = lambda n: "cut" if n and server.tokens_of(server.asked[n]) > 3000 else ""
    found = measured(tmp_path, server, {**QUICK, "contexts": [1000, 4000], "repeats": 1})
    assert [(c["requests"], c["failed"]) for c in found["contexts"]] == [(1, 0), (1, 1)]


def test_contexts_that_the_time_does_not_reach_are_no_failures(tmp_path: Path) -> None:
    def timing(_n: int, body: dict[str, Any]) -> Timing:
        return Timing(1000.0 if len(Scripted.text_of(body)) > (200 if slow else 5000) else 0.1, 0.01)

    for slow in (False, True):  # while it is measured, and while the words are counted
        profile = {**QUICK, "contexts": [100, 4000, 5000], "seconds": 60, "quality": []}
        found = measured(tmp_path, Scripted(timing=timing), profile)
        assert [c["asked"] for c in found["contexts"]] == ([] if slow else [100])
        assert found["notes"] == [f"contexts: the time was over with {100 if slow else 4000} tokens"]


def test_contexts_of_a_tokenizer_that_minds_capitals(tmp_path: Path) -> None:
    light = {word.strip(".") for word in filler(2 * WORDS, 1)[WORDS::10]}

    class Capitals(Scripted):
        def tokens_of(self, body: dict[str, Any]) -> int:
            # All but those that a short sample would happen to have are two tokens.
            words = self.text_of(body).split()
            return 20 + len(words) + sum(word[0].isupper() and word not in light for word in words)

    # A first token that takes longer than a byte may: the long input has time of its own.
    server = Capitals(max_model_len=40_000)
    server.timing = lambda _n, body: Timing(server.tokens_of(body) / 250)
    profile = {**QUICK, "contexts": "auto", "timeout_s": 100, "repeats": 1}
    longest = measured(tmp_path, server, profile)["contexts"][-1]
    most = int(40_000 * 0.99) - 47
    assert (longest["asked"], longest["failed"]) == (most, 0)
    assert longest["input_tokens"] == pytest.approx(most, rel=0.005)  # 1 % is kept free


def test_open_loop_and_saturation(tmp_path: Path) -> None:
    # Four requests at once, 3.5 s each: 1.143 requests/s is all there is.
    server = Scripted(timing=lambda _n, _body: Timing(0.5, 0.6), slots=4)
    profile = {**QUICK, "max_tokens": 6, "rates": [0.3, 5.0], "rate_requests": 40, "saturation": True}
    found = measured(tmp_path, server, profile)
    slow, fast, *stepped = found["open_loop"]
    assert slow["achieved_rps"] == near(0.3) and slow["failed"] == 0
    assert slow["end_to_end_s"]["median"] == near(3.5)
    assert fast["achieved_rps"] == near(4 / 3.5)
    limit = found["saturation"]
    assert 4 / 3.5 / 1.6 < limit["rate_rps"] < 4 / 3.5 * 1.05
    assert limit["rate_rps"] in [point["rate_rps"] for point in stepped]
    assert limit["why"].startswith("at ") and "requests/s" in limit["why"]
    times = arrivals(2.0, 101)
    assert slope(times) == pytest.approx(2.0) and times == sorted(times)


def test_noise_is_measured_again_and_then_told(tmp_path: Path) -> None:
    noisy = Scripted(timing=lambda n, _body: Timing(0.5, 0.1 if n % 2 else 0.2))
    found = measured(tmp_path, noisy, {**QUICK, "repeats": 2, "spread_limit": 0.2, "max_repeated": 2})
    assert found["noise"] == {"spread": near(0.6), "limit": 0.2, "repeated": 2, "verdict": "noisy"}
    assert len(noisy.asked) == 6
    job, file = job_of(tmp_path, {**QUICK, "repeats": 2, "spread_limit": 0.2}), StringIO()
    job.progress = Progress(file)
    measure(job, noisy, Loop)
    job.progress.close()
    last = json.loads(file.getvalue().splitlines()[-1])
    assert last["done"] == last["total"] == 2  # what is measured again is not done twice
    passing = Scripted(timing=lambda n, _body: Timing(0.5, 0.3 if n == 0 else 0.1))
    found = measured(tmp_path, passing, {**QUICK, "repeats": 2, "spread_limit": 0.2, "max_repeated": 2})
    assert found["noise"]["verdict"] == "quiet" and found["noise"]["repeated"] == 1
    assert found["points"][0]["decode_tok_s"]["min"] == near(10) and found["points"][0]["requests"] == 2


def test_of_one_repeat_the_noise_is_not_known(tmp_path: Path) -> None:
    server = Scripted(timing=lambda _n, _body: Timing(0.5, 0.1))
    found = measured(tmp_path, server, {**QUICK, "spread_limit": 0.2})
    assert found["noise"] == {"spread": None, "limit": 0.2, "repeated": 0, "verdict": "unknown"}


@pytest.mark.parametrize(
    ("gap", "streams"),
    [(0.0005, [1]), (0.05, [1, 2, 4]), (0.7, [1]), (9.0, [1]), (9.0, [1, 2, 8]), (25.0, [1])],
)
def test_smoke_ends_within_a_minute_on_any_server(tmp_path: Path, gap: float, streams: list[int]) -> None:
    server = Scripted(timing=lambda _n, _body: Timing(gap, gap), says=lambda prompt, _n: prompt[:20])
    server.hangs = ("/metrics", "/version") if streams == [1] else ()
    loops: list[Loop] = []

    def loop() -> Loop:
        loops.append(Loop())
        return loops[0]

    profile = {"name": "smoke", "streams": streams, "max_tokens": 900 if gap > 0.1 else 32}
    try:
        found = measure(job_of(tmp_path, profile), server, loop)
    except JobError as error:
        assert gap == 25.0 and str(error).startswith("found all ")
        assert "that the profile's time left; wanted completions of tiny" in str(error)
    else:
        point = found["points"][0]
        assert found["complete"] and point["requests"] and not point["failed"], point
        assert point["ttft_s"]["median"] == near(gap)
        measured_streams = [p["streams"] for p in found["points"]]
        late = [s for s in streams if f"speed: with {s} streams no token" in " ".join(found["notes"])]
        assert measured_streams + late == streams and (gap > 0.1) >= bool(late)
        assert point["decode_tok_s"]["median"] in (None, near(1 / gap))
    assert loops[0].now - 1000 <= 57


def test_time_that_is_short_is_shared_by_the_kinds_of_prompts(tmp_path: Path) -> None:
    server = Scripted(timing=lambda _n, _body: Timing(0.1, 0.05))
    found = measured(tmp_path, server, {"name": "smoke", "max_tokens": 900, "quality": [], "warmup": 0})
    (point,) = found["points"]
    assert (point["requests"], point["cut"], point["failed"]) == (9, 9, 0)
    assert point["decode_tok_s"]["median"] == near(20) and point["spread"] < 0.05
    kinds = [server.text_of(body).partition(") ")[2] for body in server.asked]
    assert kinds == kinds[:3] * 3 and len(set(kinds)) == 3


def test_a_stopped_job_leaves_what_it_has(tmp_path: Path) -> None:
    def timing(n: int, _body: dict[str, Any]) -> Timing:
        if n == 2:  # in the middle of the second point
            signal.raise_signal(signal.SIGTERM)
        return Timing()

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(JobError, match=r"^found SIGTERM in the middle; wanted"):
        measured(tmp_path, Scripted(timing=timing), {**QUICK, "streams": [1, 2]})
    assert signal.getsignal(signal.SIGTERM) is before
    found = json.loads((tmp_path / "results/measurement.json").read_text())
    assert found["complete"] is False and [p["streams"] for p in found["points"]] == [1]
    assert found["points"] == json.loads((tmp_path / "measurement.json").read_text())["points"]


TOKEN = {"choices": [{"delta": {"content": "x"}, "token_ids": [1]}]}


@dataclass
class Odd(Scripted):
    """A stream of these events, the last one `again` and again."""

    events: tuple[Any, ...] = ()
    again: int = 1

    async def _answer(self, number: int, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for sent in (*self.events, *self.events[-1:] * (self.again - 1)):
            await asyncio.sleep(0.1)
            yield b"data: [DONE]\n\n" if sent == "[DONE]" else event(sent)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (({"choices": "x"},), "an event of another form ('str' object has no attribute 'get')"),
        (({"choices": [None]},), "an event of another form ('NoneType' object has no attribute 'get')"),
        (({"choices": [{"delta": {"content": ["a"]}}]},), "an event of another form (sequence item 2: "),
        ((TOKEN, {"usage": {"completion_tokens": "many"}}), "a stream that was cut"),
        ((TOKEN, {"error": "boom"}), "an error in the stream (boom)"),
        (([1],), "an event that is no JSON object"),
    ],
)
def test_streams_of_another_form_are_failures(tmp_path: Path, events: tuple[Any, ...], why: str) -> None:
    with pytest.raises(JobError, match=f"^found all 1 requests with 1 streams failing: {re.escape(why)}"):
        measured(tmp_path, Odd(events=events), QUICK)


def test_a_server_that_does_not_end_at_what_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no end after twice the 31 tokens that were asked for"):
        measured(tmp_path, Odd(events=(TOKEN,), again=1000), QUICK)


def test_what_stands_in_the_engine_s_place_says_why() -> None:
    async def main() -> None:
        said = {"error": {"message": "waiting for rank 1", "code": 503}}
        transport = httpx.MockTransport(lambda request: httpx.Response(503, json=said))
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(JobError, match=r"^found HTTP 503 \(waiting for rank 1\) without a list of"):
                await look(client, "http://server", "tiny")

    asyncio.run(main())


def test_distribution() -> None:
    assert distribution([3.0, 1.0, 2.0]) | {"ci": 0} == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "n": 3,
        "p90": 2.8,
        "p99": 2.98,
        "ci": 0,
    }
    assert distribution([]) == dict.fromkeys(("median", "min", "max", "p90", "p99", "ci")) | {"n": 0}
    assert distribution([5.0])["ci"] is None
    values = sorted(float((n * 7919) % 1009) for n in range(MANY))
    low, high = interval(values) or (0.0, 0.0)
    # What the bootstrap finds is what its limit says, from where on the limit is taken.
    near_limit = interval([*values, values[-1]]) or (0.0, 0.0)
    assert low == pytest.approx(near_limit[0], abs=15) and high == pytest.approx(near_limit[1], abs=15)
    assert interval(values) == (low, high)
    assert spread([10.0, 11.0, 9.0]) == 0.2 and spread([1.0]) is None


def test_a_connection_that_breaks_ends_all_streams_of_a_round() -> None:
    """JobError of one stream must not leave the others running behind it."""

    class Gone(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(401)

    async def main() -> None:
        from onhost.bench.client import Target

        async with httpx.AsyncClient(transport=Gone()) as client:
            target = Target("http://server", "tiny", "chat", 5)
            load = Load(client, target, Metrics(client, target.url), 8, lambda _: None)
            with pytest.raises(JobError, match="found HTTP 401"):
                await load.closed(4, 8)
            assert len(asyncio.all_tasks()) == 1

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
