"""Job bench over a real connection: what it calls a failure, what it says, and what it leaves.

How exact its figures are: test_onhost_bench_figures.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Server, serving
from spark import Host

from onhost.bench.prompts import CATEGORIES, PROMPTS, filler, prompt


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def plan_of(host: Host, server: Server, profile: dict[str, Any] | None = None, **keys: Any) -> Path:
    return host.write_plan(
        "bench",
        **{"url": server.url, "model": "tiny", "api_key_file": None, "release": "r1"}
        | {"result": str(host.root / "results/r1/measurement.json")}
        | {
            "profile": {
                "streams": [1, 2],
                "max_tokens": 6,
                "warmup": 1,
                "repeats": 2,
                "max_repeated": 0,
                **(profile or {}),
            }
        }
        | keys,
    )


def test_a_measurement(host: Host, server: Server) -> None:
    server.pause = 0.004
    plan = plan_of(host, server)
    result = host.run(plan)
    measurement = json.loads((host.root / "results/r1/measurement.json").read_text())
    assert result["value"] == measurement
    assert measurement["format"] == 2 and measurement["release"] == "r1" and measurement["complete"]
    assert measurement["profile"]["name"] == "custom" and measurement["profile"]["endpoint"] == "chat"
    assert measurement["profile"]["streams"] == [1, 2] and measurement["warmup"]["requests"] == 2
    assert measurement["server"] == {
        "url": server.url,
        "model": "tiny",
        "version": None,
        "max_model_len": None,
    }
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
    assert [line["stage"] for line in lines if line["done"] == line["total"]] == ["warm-up", "speed"]
    assert lines[-1]["done"] == lines[-1]["total"] == 6 and len(server.requests) == 2 + 6
    assert lines[-1]["note"].startswith("2 streams: ") and "first token" in lines[-1]["note"]
    asked = server.requests[0]
    assert (
        asked["ignore_eos"]
        and asked["stream_options"] == {"include_usage": True}
        and asked["return_token_ids"]
    )
    texts = [request["messages"][0]["content"] for request in server.requests]
    assert len(set(texts)) == len(texts)


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
    ],
)
def test_failures_are_counted(host: Host, server: Server, fault: str, reason: str) -> None:
    server.fault, server.faults = fault, 1
    profile = {"streams": [1], "warmup": 0, "repeats": 2}
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
    # An HTTP client's words about such a header hold all of it.
    (tmp_path / "key").write_text("sk-wrong\nsecond\n")
    assert host.run(plan)["error"].startswith(f"found no secret of one line at {tmp_path / 'key'}; wanted")
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
        ({"name": "huge"}, "found 'huge' for the profile's name; wanted one of custom, smoke,"),
        ({"quality": ["sene"]}, "found ['sene'] for the profile's quality; wanted 'all' or a list of sane,"),
        ({"categories": "code"}, "found 'code' for the profile's categories; wanted 'all' or"),
        ({"contexts": [-1]}, "found [-1] for the profile's contexts; wanted 'auto' or a list of lengths"),
        ({"thinking": [1]}, "found [1] for the profile's thinking; wanted a list of null, true and false"),
        ({"rates": [0]}, "found [0] for the profile's rates; wanted a list of numbers from 0.001"),
        ({"seconds": 0}, "found 0 for the plan's key profile.seconds; wanted a number above zero"),
    ],
)
def test_profiles_are_checked(host: Host, server: Server, profile: dict[str, Any], found: str) -> None:
    assert host.run(plan_of(host, server, profile))["error"].startswith(found)
    assert not (host.root / "results").exists()


def test_a_url_as_people_copy_it_and_no_model(host: Host, server: Server) -> None:
    plan = plan_of(
        host, server, url=f"{server.url}/v1/", model=None, profile={"streams": [1], "max_tokens": 4}
    )
    assert host.run(plan)["value"]["server"]["model"] == "tiny"
    for url in ("http://[oops", "spark-1:8000", "http://spark-1:99999", "http:///v1"):
        error = host.run(plan_of(host, server, url=url))["error"]
        assert error == f"found the URL {url!r}; wanted one of the form http://HOST:PORT; correct it"


def test_a_failure_in_the_middle_keeps_what_was_measured(host: Host, server: Server) -> None:
    server.fault, server.fault_from = "error 400", 5
    assert "HTTP 400" in host.run(plan_of(host, server))["error"]
    found = json.loads((host.root / "results/r1/measurement.json").read_text())
    assert found["complete"] is False and len(found["points"]) == 1


def test_prompts() -> None:
    assert len({prompt(n, "all", n) for n in range(200)}) == 200
    assert " ".join(CATEGORIES) == "coding reasoning json html prose narrative summary format"
    assert all(len(set(texts)) == 5 for texts in PROMPTS.values())
    assert len({prompt(n) for n in range(40)}) == 40 == len({prompt(n, c) for c in PROMPTS for n in range(5)})
    assert filler(100, 1) != filler(100, 2) and len(filler(1234, 3)) == 1234
