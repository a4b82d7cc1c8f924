"""Tests of quality against a server that answers as a test says, on a simulated clock."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from simulated import Loop, Scripted, Timing
from test_onhost_bench_figures import QUICK, measured

from onhost.bench import longer
from onhost.bench.forms import json_fault, tool_fault
from onhost.bench.longer import GSM8K, gsm8k, haystack
from onhost.bench.plain import Asker, Reply
from onhost.bench.quality import EXACT, OPEN, Asked, fault_of, repeats
from onhost.bench.server import Metrics
from onhost.bench.wordproblems import answer_in, problems

SENSE = "The sky is blue because air scatters short waves of light more than long ones. Blue is all around."


def quality(tmp_path: Path, server: Scripted, *names: str, **keys: Any) -> dict[str, dict[str, Any]]:
    more = keys.pop("profile", {})
    found = measured(tmp_path, server, {**QUICK, "quality": list(names), **more}, **keys)
    assert [line["name"] for line in found["quality"]] == list(names)
    return {line["name"]: line for line in found["quality"]}


def clever(prompt: str, _number: int) -> str:
    """A model that is right every time."""
    for question, answer in EXACT:
        if prompt == question:
            return f"**{answer.upper()}**."
    for task in problems(100):
        if prompt.startswith(task.text):
            return f"First 3, then 4.\nAnswer: {task.answer:,}"
    if "blue harbour" in prompt:
        return re.search(r"harbour is (\d+)", prompt)[1]  # type: ignore[index]
    if "海水" in prompt:
        return "因为河流把岩石里的盐带进海里。水蒸发以后盐留下来。时间很长，所以海水很咸。"
    if "invented person" in prompt:
        return '```json\n{"name": "Ida", "age": 4, "languages": ["en"]}\n```'
    if "Lisbon" in prompt:
        return '{"city": "Lisbon", "population": 545000, "coastal": true}'
    if '"steps"' in prompt:
        return json.dumps({"steps": [{"number": n, "text": "boil"} for n in (1, 2, 3)]})
    return SENSE


def test_a_model_that_is_right(tmp_path: Path) -> None:
    server = Scripted(says=clever, cached=960, counts={"vllm:prefix_cache_hits": 0.0})
    names = ("sane", "exact", "json", "arithmetic", "needle", "prefix_cache", "determinism", "agreement")
    profile = {"needle_lengths": [500, 4000, 99999], "needle_depths": [0, 0.5, 1]}
    lines = quality(tmp_path, server, *names, profile=profile)
    assert {name: line["status"] for name, line in lines.items()} == {
        **dict.fromkeys(names, "pass"),
        "agreement": "not checked",
    }
    assert lines["arithmetic"] == {
        "name": "arithmetic",
        "status": "pass",
        "found": "100 of 100 right",
        "wanted": "80% of 100 word problems right",
        "score": 1.0,
    }
    assert lines["needle"]["found"].startswith("6 of 6 right (") and "99999" not in lines["needle"]["found"]
    counted = [int(n) for n in re.findall(r"(\d+) tokens: all", lines["needle"]["found"])]
    assert counted == [pytest.approx(500, abs=150), pytest.approx(4000, abs=150)]
    assert lines["prefix_cache"]["found"].startswith("960 of ")
    assert lines["agreement"]["found"] == "no release before it with answers"
    answers = json.loads((tmp_path / "results/answers.json").read_text())
    assert (answers["release"], answers["model"], len(answers["answers"])) == ("r1", "tiny", 16)
    assert all(body["temperature"] == 0 for body in server.asked)


def test_a_model_that_talks_nonsense(tmp_path: Path) -> None:
    names = ("sane", "exact", "json", "tool", "arithmetic", "needle", "prefix_cache", "determinism")
    lines = quality(tmp_path, Scripted(says=lambda _p, n: f"{n}!! ??"), *names, profile={"arithmetic": 10})
    expected = {**dict.fromkeys(names, "fail"), "prefix_cache": "inconclusive"}
    assert {name: line["status"] for name, line in lines.items()} == expected
    assert lines["exact"]["score"] == 0 and "'What is 17 + 25?" in lines["exact"]["found"]
    assert "no JSON (" in lines["json"]["found"] and "no call, but " in lines["tool"]["found"]
    assert "equal for 1 characters, then" in lines["determinism"]["found"]
    said = lines["prefix_cache"]["found"]
    assert said == "the server does not count its hits; the answers were not the same"


def test_the_prefix_cache_that_changes_an_answer(tmp_path: Path) -> None:
    server = Scripted(says=lambda _p, n: f"word {n}", cached=960, counts={"vllm:prefix_cache_hits": 0.0})
    line = quality(tmp_path, server, "prefix_cache")["prefix_cache"]
    assert line["status"] == "fail" and re.search(r"'word \d' became 'word \d'", line["found"])
    server = Scripted(counts={"vllm:prefix_cache_hits": 0.0})
    assert "switched off?" in quality(tmp_path, server, "prefix_cache")["prefix_cache"]["found"]


def test_agreement_with_the_release_before(tmp_path: Path) -> None:
    kept = tmp_path / "before.json"

    def compared(says: Callable[[str, int], str]) -> dict[str, Any]:
        return quality(tmp_path, Scripted(says=says), "agreement", previous=str(kept))["agreement"]

    line = compared(clever)
    assert line["status"] == "not checked" and "before.json cannot be read (No such file" in line["found"]
    kept.write_bytes((tmp_path / "results/answers.json").read_bytes())
    line = compared(clever)
    assert (line["status"], line["score"], line["found"]) == ("pass", 1.0, "16 of 16 as release r1")
    line = compared(lambda p, n: clever(p, n).replace("short", "long") if "Markdown" in p else clever(p, n))
    assert line["score"] == 0.9375 and "format-1: equal for 37 characters, then 'short waves" in line["found"]
    line = compared(lambda _p, n: f"another {n}")
    assert (line["status"], line["score"]) == ("inconclusive", 0.0)
    kept.write_text("{}")
    assert "not in the form of answers.json" in compared(clever)["found"]


def test_the_gate_s_profile_looks_for_garbage_and_keeps_a_handful_of_answers(tmp_path: Path) -> None:
    """On a server that is slow, too (see its figures): 8 greedy answers of 16 tokens, some of which the test
    of determinism has asked for already."""
    kept = tmp_path / "before.json"
    server = Scripted(says=clever)
    found = measured(tmp_path, server, {"name": "smoke"})
    lines = {line["name"]: line for line in found["quality"]}
    assert [*lines] == ["sane", "exact", "determinism", "agreement"]
    assert {line["status"] for line in lines.values()} == {"pass", "not checked"}
    whole = [body["max_tokens"] for body in server.asked if not body.get("stream")]
    assert whole.count(16) == 3 + 3 + 5 and len(whole) == 3 + 5 + 11
    answers = json.loads((tmp_path / "results/answers.json").read_text())
    assert (answers["tokens"], len(answers["answers"])) == (16, 8)
    kept.write_text(json.dumps(answers))
    again = measured(tmp_path, Scripted(says=clever), {"name": "smoke"}, previous=str(kept))["quality"][-1]
    assert (again["status"], again["found"]) == ("pass", "8 of 8 as release r1")
    salad = Scripted(says=lambda _p, n: f"kumquat {n} of the marshal " * 3)
    garbage = measured(tmp_path, salad, {"name": "smoke"}, previous=str(kept))["quality"]
    assert garbage[0]["status"] == "fail" and garbage[0]["score"] == 0
    assert "says nothing of what was asked ('kumquat" in garbage[0]["found"]
    assert (garbage[-1]["score"], garbage[-1]["found"][:18]) == (0, "0 of 8 as release ")


def test_answers_of_unlike_lengths_are_compared_as_far_as_both_go() -> None:
    same = longer._same
    assert same("a b", 16, "a b c", 128) and same("a b c", 128, "a b", 16) and same("a\ufffd", 16, "a€", 128)
    assert not same("a b", 16, "a b c", 16) and not same("a x", 16, "a b c", 128)
    assert same("a b", 16, "a b", 16)


def test_open_answers_that_take_longer_than_their_beginning(tmp_path: Path) -> None:
    class Longer(Scripted):
        async def _whole(self, number: int, body: dict[str, Any]) -> httpx.Response:
            answer = await super()._whole(number, body)
            data = json.loads(answer.content)
            if body["max_tokens"] < 200:
                data["choices"][0]["finish_reason"] = "length"
            elif "lighthouse" in self.text_of(body):
                await asyncio.sleep(1000)
            return httpx.Response(200, json=data)

    server = Longer(says=clever)
    line = quality(tmp_path, server, "sane", profile={"seconds": 50})["sane"]
    assert (line["status"], line["score"], line["at_best"]) == ("inconclusive", 0.66667, 1.0)
    asked = [body["max_tokens"] for body in server.asked if not body.get("stream")]
    assert asked == [48, 48, 48, 200, 200, 200]


def test_answers_that_only_do_not_end_are_no_pass_and_no_garbage(tmp_path: Path) -> None:
    class Endless(Scripted):
        async def _whole(self, number: int, body: dict[str, Any]) -> httpx.Response:
            data = json.loads((await super()._whole(number, body)).content)
            data["choices"][0]["finish_reason"] = "length"
            return httpx.Response(200, json=data)

    line = quality(tmp_path, Endless(says=clever), "sane")["sane"]
    assert (line["status"], line["score"], line["at_best"]) == ("fail", 0, 1)
    assert line["found"] == "0 of 3 right; e.g. an answer that does not end within 8 tokens"
    line = quality(tmp_path, Endless(says=lambda _p, _n: "la " * 40), "sane")["sane"]
    assert (line["status"], line["score"], line.get("at_best")) == ("fail", 0, None)


def test_an_answer_that_was_cut_while_thinking_agrees_with_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "before.json"
    kept.write_text(json.dumps({"release": "r0", "answers": {"coding-1": "<think> so"}}))

    class Thinks(Scripted):
        async def _whole(self, number: int, body: dict[str, Any]) -> httpx.Response:
            choice = {"message": {"content": "<think> so"}, "finish_reason": "length"}
            return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 9}})

    line = quality(tmp_path, Thinks(), "agreement", previous=str(kept))["agreement"]
    assert (line["status"], line["found"]) == ("not checked", "16 were cut while still thinking")


def test_what_the_server_refuses_is_a_result(tmp_path: Path) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return '"auto" tool choice requires a parser' if "tools" in body else None

    line = quality(tmp_path, Scripted(says=clever, refuses=refuses), "tool")["tool"]
    assert line["status"] == "not checked" and '("auto" tool choice requires a parser)' in line["found"]

    def no_switch(body: dict[str, Any]) -> str | None:
        return "unknown chat_template_kwargs" if "chat_template_kwargs" in body else None

    assert quality(tmp_path, Scripted(says=clever, refuses=no_switch), "exact")["exact"]["status"] == "pass"
    too_long = Scripted(says=clever, refuses=lambda body: None if body.get("stream") else "too long")
    line = quality(tmp_path, too_long, "needle")["needle"]
    assert line["status"] == "fail" and "(too long)" in line["found"]


def test_a_server_that_refuses_the_switch_for_thinking(tmp_path: Path) -> None:
    """Also where several requests are refused at the same time."""

    def no_switch(body: dict[str, Any]) -> str | None:
        return "unknown chat_template_kwargs" if "chat_template_kwargs" in body else None

    names = ("sane", "exact", "json", "tool", "arithmetic", "determinism")
    for waits in (0.0, 0.02):
        server = Scripted(says=clever, refuses=no_switch, waits=waits)
        lines = quality(tmp_path, server, *names, profile={"arithmetic": 10})
        assert {line["status"] for name, line in lines.items() if name != "tool"} == {"pass"}
        refused = [body for body in server.asked if "chat_template_kwargs" in body]
        assert len(refused) == 3  # those of `sane`, together; then it is known


def test_a_refusal_for_another_reason_leaves_thinking_off(tmp_path: Path) -> None:
    server = Scripted(says=clever, refuses=lambda body: "no tools here" if "tools" in body else None)
    lines = quality(tmp_path, server, "tool", "exact", "determinism")
    assert [line["status"] for line in lines.values()] == ["not checked", "pass", "pass"]
    assert "(no tools here)" in lines["tool"]["found"]
    later = [body for body in server.asked if not body.get("stream") and "tools" not in body]
    assert later and all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in later)


def test_a_needle_longer_than_a_server_takes_that_did_not_say(tmp_path: Path) -> None:
    def takes(most: int, words: str, said: int | None = None) -> dict[str, Any]:
        server = Scripted(says=clever, max_model_len=said)
        server.refuses = lambda body: (
            words if server.tokens_of(body) > most and not body.get("stream") else None
        )
        profile = {"needle_lengths": [500, 4000, 9000], "needle_depths": [0, 1]}
        return quality(tmp_path, server, "needle", profile=profile)["needle"]

    line = takes(3000, "bad request")
    assert (line["status"], line["score"]) == ("pass", 1.0)
    assert line["found"].startswith("2 of 2 right (") and line["found"].endswith(
        "; the server takes no 4000 tokens (bad request))"
    )
    line = takes(200, "maximum context length is 200 tokens")
    assert (line["status"], line["score"]) == ("not checked", None)
    assert line["found"] == "the server takes no 500 tokens (maximum context length is 200 tokens)"
    # It says it takes them, or nothing points to the length: a fault.
    assert takes(3000, "too long", said=20_000)["status"] == "fail"
    assert takes(10, "no")["status"] == "fail"


def test_time_that_is_over_is_not_a_failure(tmp_path: Path) -> None:
    slow = Scripted(timing=lambda _n, body: Timing(0.5, 0.01) if body.get("stream") else Timing(100.0))
    names = ("exact", "arithmetic", "needle", "prefix_cache", "determinism", "agreement")
    lines = quality(tmp_path, slow, *names, profile={"seconds": 20})
    assert {line["status"] for line in lines.values()} == {"not checked"}
    assert all("time was over" in line["found"] for line in lines.values())


def asked(server: httpx.AsyncBaseTransport) -> Asked:
    from onhost.bench.client import Target

    client = httpx.AsyncClient(transport=server)
    return Asked(Asker(client, Target("http://s", "tiny", "chat", 60)), Metrics(client, "http://s"), 8)


def gsm8k_row(number: int, question: str, answer: str) -> dict[str, Any]:
    """As the hub's data server has a row of GSM8K's test set, with its marks of what was worked out."""
    steps = f"First it is 2 * 3 = <<2*3=6>>6.\nThen it is that.\n#### {answer}"
    return {"row_idx": number, "row": {"question": question, "answer": steps}, "truncated_cells": []}


def gsm8k_page(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = [
        {"feature_idx": at, "name": name, "type": {"dtype": "string", "_type": "Value"}}
        for at, name in enumerate(("question", "answer"))
    ]
    counts = {"num_rows_total": 1319, "num_rows_per_page": 100, "partial": False}
    return {"features": columns, "rows": rows, **counts}


def test_gsm8k_from_the_hub_or_not_at_all() -> None:
    rows = [gsm8k_row(number, task.text, f"{task.answer:,}") for number, task in enumerate(problems(100))]
    seen: list[httpx.Request] = []

    def hub(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        offset, length = (int(request.url.params[name]) for name in ("offset", "length"))
        return httpx.Response(200, json=gsm8k_page(rows[offset : offset + min(length, 64)]))

    async def ask(handler: Callable[[httpx.Request], httpx.Response]) -> dict[str, Any]:
        server = Scripted(says=clever)
        return (await gsm8k(asked(server), 100, GSM8K, httpx.MockTransport(handler))).as_dict()

    def away(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    def slow(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("")

    cut = gsm8k_row(0, "x", "1") | {"truncated_cells": ["question"]}

    with asyncio.Runner(loop_factory=Loop) as runner:
        line = runner.run(ask(hub))
        assert (line["status"], line["found"]) == ("pass", "100 of 100 right")
        assert "authorization" not in seen[0].headers and len(seen) == 2  # where a page has fewer than asked
        assert [dict(one.url.params) for one in seen] == [
            {"dataset": "openai/gsm8k", "config": "main", "split": "test", "offset": offset, "length": length}
            for offset, length in (("0", "100"), ("64", "36"))
        ]
        for handler, why in (
            (away, "no route"),
            (slow, "no answer within 30 s"),
            (lambda _r: httpx.Response(503), "HTTP 503"),
            (lambda _r: httpx.Response(200, text="<html>"), "Expecting value"),
            (lambda _r: httpx.Response(200, json={"error": "busy"}), "rows of another form: 'rows'"),
            (lambda _r: httpx.Response(200, json=gsm8k_page([])), "0 problems and no more"),
            (lambda _r: httpx.Response(200, json=gsm8k_page([cut])), "problems that are cut short"),
        ):
            line = runner.run(ask(handler))
            assert line["status"] == "not checked", line
            assert line["found"].startswith(f"no problems from datasets-server.huggingface.co ({why}"), line


def test_answers_that_are_not_sane() -> None:
    def fault(text: str, script: str = "latin", finish: str = "stop", thought: bool = False) -> str | None:
        return fault_of(Reply(text, thought, finish, tokens=400), script)

    assert fault(SENSE) is None
    elsewhere = fault_of(Reply("Cats sleep most of the day.", False, "stop", tokens=9), "latin", OPEN[0][2])
    assert elsewhere == "says nothing of what was asked ('Cats sleep most of the day.')"
    assert fault("  ") == "is empty" and fault("", finish="length", thought=True) is None
    assert str(fault("la " * 40)).startswith("repeats itself")
    assert str(fault("It is so, and that is why it is. " * 6)).startswith("repeats itself")
    assert str(fault("!" * 30)).startswith("repeats itself")
    assert "question's language" in str(fault(SENSE, "han")) and "language" in str(fault("这是中文的回答。"))
    assert fault(SENSE, finish="length") == "does not end within 400 tokens"
    assert "undecodable" in str(fault("a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"))
    assert not repeats("no no no, she said; never, never, never. ---- 1000000")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1, "b": ["x"]}', None),
        ('```json\n{"a": 1, "b": ["x"], "more": 0}\n```', None),
        ('{"a": true, "b": ["x"]}', "a is no int"),
        ('{"a": 1}', "the value has no b"),
        ('{"a": 1, "b": []}', "b is no array with something in it"),
        ('{"a": 1, "b": [2]}', "b is no str"),
        ("[]", "the value is no object"),
        ("Here you are", "no JSON (Expecting value: line 1 column 1 (char 0)): 'Here you are'"),
    ],
)
def test_json_of_a_form(text: str, fault: str | None) -> None:
    assert json_fault(text, {"a": int, "b": [str]}) == fault


def test_calls_of_a_tool() -> None:
    def fault(name: str, arguments: str) -> str | None:
        return tool_fault(
            Reply("", False, "tool_calls", [{"function": {"name": name, "arguments": arguments}}])
        )

    assert fault("get_weather", '{"city": "Oslo", "unit": "celsius"}') is None
    assert fault("get_time", "{}") == "a call of 'get_time'"
    assert "that does not parse" in str(fault("get_weather", '{"city"'))
    assert "with the arguments" in str(fault("get_weather", '{"city": "Oslo", "unit": "kelvin"}'))
    assert "with the arguments" in str(fault("get_weather", "[]"))
    assert "no call, but 'Cold.'" in str(tool_fault(Reply("Cold.", False, "stop")))


def test_word_problems_are_the_same_everywhere() -> None:
    tasks = problems(100)
    assert len({task.text for task in tasks}) == 100 and problems(30) == tasks[:30]
    assert all(task.answer > 0 for task in problems(1000))
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "549cfaf56c1aa1aa09eb0b02dedb832fcb14c7404953242b92ca5a1efbce5d12"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 2 = 4.\n**Answer: 1,234**", 1234),
        ("The answer is $15$.", 15),
        ("Answer: \\boxed{5}", 5),
        ("Answer: 3 first, no.\nAnswer: -4.", -4),
        ("It makes 7.50 euros", 7.5),
        ("I do not know.", None),
    ],
)
def test_the_number_of_an_answer(text: str, number: float | None) -> None:
    assert answer_in(text) == number


def test_the_needle_lies_where_it_should() -> None:
    for depth in (0.0, 0.25, 0.5, 1.0):
        text, secret = haystack(1000, depth, 3)
        body = text.partition("Read it.\n\n")[2].partition("\n\nWhat")[0]
        place = body.index(f"is {secret}.") / len(body)
        assert place == pytest.approx(depth, abs=0.05) and text.count(secret) == 1
