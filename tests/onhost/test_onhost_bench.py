"""Job bench against a server of our own: what it counts, what it calls a failure, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Server, serving
from spark import Host

from onhost.bench.prompts import PROMPTS, prompt
from onhost.bench.run import distribution


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def plan_of(host: Host, server: Server, profile: dict[str, Any] | None = None, **keys: Any) -> Path:
    return host.write_plan(
        "bench",
        **{"url": server.url, "model": "tiny", "api_key_file": None, "release": "r1"}
        | {"result": str(host.root / "results/r1/measurement.json")}
        | {"profile": {"streams": [1, 2], "max_tokens": 6, "warmup": 1, "repeats": 2, **(profile or {})}}
        | keys,
    )


def test_a_measurement(host: Host, server: Server) -> None:
    server.pause = 0.004
    plan = plan_of(host, server)
    result = host.run(plan)
    measurement = json.loads((host.root / "results/r1/measurement.json").read_text())
    assert result["value"] == measurement
    assert list(measurement) == ["format", "release", "when", "profile", "points", "sane"]
    assert measurement["format"] == 1 and measurement["release"] == "r1"
    assert measurement["profile"]["streams"] == [1, 2] and measurement["profile"]["endpoint"] == "chat"
    one, two = measurement["points"]
    assert (one["streams"], one["requests"], one["failed"]) == (1, 2, 0)
    assert (two["streams"], two["requests"], two["failed"]) == (2, 4, 0)
    for point in (one, two):
        assert point["ttft_s"]["min"] >= 0.004
        assert point["decode_tok_s"]["n"] == point["requests"]
        assert point["decode_tok_s"]["min"] > 0
        assert point["total_tok_s"] > 0
    assert measurement["sane"] == {
        "ok": True,
        "found": "6 answers: 0 empty, 0 not of 6 tokens; 0 of 6 with ids unlike usage; "
        "0 repeating one token, 0 with undecodable text; language not judged",
    }
    lines = host.progress(plan)
    assert lines[-1]["done"] == lines[-1]["total"] == len(server.requests) == 2 + 6
    asked = server.requests[0]
    assert (
        asked["ignore_eos"]
        and asked["stream_options"] == {"include_usage": True}
        and asked["return_token_ids"]
    )
    texts = [request["messages"][0]["content"] for request in server.requests]
    assert len(set(texts)) == len(texts)


def test_tokens_are_counted_by_usage_and_not_by_chunks(host: Host, server: Server) -> None:
    server.pause, server.chunk = 0.03, 3
    rates = []
    for ids in (True, False):
        server.ids = ids
        profile = {"streams": [1], "max_tokens": 9, "endpoint": "completions", "warmup": 0}
        point = host.run(plan_of(host, server, profile))["value"]["points"][0]
        rates.append(point["decode_tok_s"]["max"])
    # Three chunks 30 ms apart: 8 tokens in about 60 ms; counting chunks would give 2 in 60 ms, 33 a second.
    assert all(rate > 60 for rate in rates), rates
    assert "prompt" in server.requests[0]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", "a stream that was cut"),
        ("no done", "a stream that was cut"),
        ("error 200", "HTTP 200 without a stream (engine is dead)"),
        ("error 500", "HTTP 500 (EngineCore failed)"),
        ("no json", "HTTP 200 without a stream (no JSON)"),
        ("no usage", "no usage at the end of the stream"),
        ("error event", "an error in the stream (out of memory)"),
        ("stall", "no byte for 0.2 s"),
    ],
)
def test_failures_are_counted(host: Host, server: Server, fault: str, reason: str) -> None:
    server.fault, server.faults = fault, 1
    profile = {"streams": [1], "warmup": 0, "repeats": 2, "timeout_s": 0.2}
    point = host.run(plan_of(host, server, profile))["value"]["points"][0]
    assert (point["requests"], point["failed"], point["failures"]) == (2, 1, [reason])
    assert point["decode_tok_s"]["n"] == 1
    server.faults = None
    error = host.run(plan_of(host, server, profile))["error"]
    assert error.startswith(
        f"found all 2 requests with 1 streams failing: {reason}; wanted completions of tiny at"
    )


def test_sanity(host: Host, server: Server) -> None:
    profile: dict[str, Any] = {"streams": [1], "warmup": 0, "repeats": 1, "max_tokens": 20}

    def sane(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = host.run(plan_of(host, server, {**profile, **more}))["value"]["sane"]
        return found

    server.text = "!"
    assert sane()["ok"] and "1 repeating one token" in sane()["found"]
    assert not sane(judge_text=True)["ok"]
    server.text = None
    assert sane(judge_text=True)["ok"]
    server.fault = "short"
    assert not sane()["ok"] and "1 not of 20 tokens" in sane()["found"]
    server.fault = "odd usage"
    assert not sane()["ok"] and "1 of 1 with ids unlike usage" in sane()["found"]
    server.ids = False
    assert "no token ids given" in sane()["found"]


def test_what_ends_the_job_at_once(host: Host, server: Server, tmp_path: Path) -> None:
    error = host.run(plan_of(host, server, model="other"))["error"]
    assert error.startswith(f"found the model names tiny at {server.url}; wanted other; check the recipe's")
    server.fault = "error 400"
    assert "HTTP 400" in host.run(plan_of(host, server))["error"]
    server.fault, server.key = "", "sk-right"
    (tmp_path / "key").write_text("sk-wrong\n")
    plan = plan_of(host, server, api_key_file=str(tmp_path / "key"))
    assert "found HTTP 401" in host.run(plan)["error"]
    assert "sk-wrong" not in (host.folder(plan) / "result.json").read_text()
    (tmp_path / "key").write_text("sk-right\n")
    assert host.run(plan)["ok"]
    error = host.run(plan_of(host, server, url="http://127.0.0.1:9"))["error"]
    assert "Connection refused' at http://127.0.0.1:9; wanted the serving endpoint" in error


@pytest.mark.parametrize(
    ("profile", "found"),
    [
        ({"streams": []}, "found [] for the profile's streams"),
        ({"streams": [0]}, "found [0] for the profile's streams"),
        ({"streams": 4}, "found 4 for the profile's streams"),
        (
            {"max_tokens": 1},
            "found 1 for the plan's key profile.max_tokens; wanted a whole number of at least 2",
        ),
        ({"endpoint": "embeddings"}, "found the endpoint 'embeddings' in the profile"),
    ],
)
def test_profiles_are_checked(host: Host, server: Server, profile: dict[str, Any], found: str) -> None:
    assert host.run(plan_of(host, server, profile))["error"].startswith(found)
    assert not (host.root / "results").exists()


def test_distribution_and_prompts() -> None:
    assert distribution([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}
    assert distribution([]) == {"median": None, "min": None, "max": None, "n": 0}
    assert len({prompt(n) for n in range(200)}) == 200
    assert {kind for kind, _ in PROMPTS} == {"code", "json", "reasoning", "prose", "summary"}
