# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
import json
from typing import Any

import pytest

from sparkstack.errors import SparkstackError
from sparkstack.expectation import Expect
from sparkstack.gates import judge


def spread(value: float | None) -> dict[str, Any]:
    return {"median": value, "min": value, "max": value, "n": 3}


def point(
    streams: int = 1, decode: float | None = 10.0, ttft: float = 0.5, failed: int = 0
) -> dict[str, Any]:
    return {
        "streams": streams,
        "requests": 3,
        "failed": failed,
        "ttft_s": spread(ttft),
        "decode_tok_s": spread(decode),
        "total_tok_s": 9.0,
    }


def measurement(*points: dict[str, Any], sane: bool = True) -> dict[str, Any]:
    return {
        "format": 1,
        "release": "abc",
        "when": "2026-01-01T00:00:00Z",
        "profile": {},
        "points": list(points) or [point()],
        "sane": {"ok": sane, "found": "4"},
    }


def test_the_verdict_has_the_contract_s_form() -> None:
    verdict = judge(measurement(), {"decode_tok_s": {"1": {"min": 8}}, "ttft_s": {"1": {"max": 1}}})
    assert json.loads(verdict.to_json()) == {
        "format": 1,
        "release": "abc",
        "measured_at": "2026-01-01T00:00:00Z",
        "ok": True,
        "lines": [
            {"name": "decode_tok_s@1", "measured": 10.0, "expected": "≥ 8.0", "ratio": 1.25, "verdict": "pass"},
            {"name": "ttft_s@1", "measured": 0.5, "expected": "≤ 1.0", "ratio": 0.5, "verdict": "pass"},
            {"name": "total_tok_s@1", "measured": 9.0, "expected": None, "ratio": None, "verdict": "baseline"},
            {"name": "sane", "measured": "4", "expected": "output that makes sense", "ratio": None, "verdict": "pass"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "verdict", "ratio"),
    [
        ({"min": 10}, "pass", 1.0),
        ({"min": 10.01}, "fail", 0.999),
        ({"max": 10}, "pass", 1.0),
        ({"max": 8}, "fail", 1.25),
        ({"min": 5, "max": 20}, "pass", 2.0),
        ({"min": 5, "max": 8}, "fail", 1.25),
        ({"min": 20, "max": 30}, "fail", 0.5),
    ],
)
def test_bounds_include_their_limit(bound: dict[str, float], verdict: str, ratio: float) -> None:
    result = judge(measurement(), {"decode_tok_s": {1: bound}})
    assert (result.lines[0].verdict, result.lines[0].ratio) == (verdict, ratio)
    assert result.ok == (verdict == "pass")


@pytest.mark.parametrize("expect", [None, {}, Expect()])
def test_where_nothing_is_expected_all_is_a_baseline(expect: Any) -> None:
    verdict = judge(measurement(point(1), point(4)), expect)
    assert verdict.ok
    assert [line.name for line in verdict.lines if line.verdict == "baseline"] == [
        "decode_tok_s@1", "ttft_s@1", "total_tok_s@1", "decode_tok_s@4", "ttft_s@4", "total_tok_s@4"
    ]  # fmt: skip


def test_output_without_sense_fails_at_any_speed() -> None:
    verdict = judge(measurement(sane=False), None)
    assert not verdict.ok
    assert [line.name for line in verdict.lines if line.verdict == "fail"] == ["sane"]


def test_failed_requests_fail() -> None:
    verdict = judge(measurement(point(failed=1)), None)
    [line] = [line for line in verdict.lines if line.verdict == "fail"]
    assert (line.name, line.measured) == ("failed_requests@1", "1 of 3")


def test_an_expectation_that_was_not_measured_fails() -> None:
    verdict = judge(measurement(), {"decode_tok_s": {8: {"min": 1}}})
    [line] = [line for line in verdict.lines if line.verdict == "fail"]
    assert (line.name, line.measured, line.expected, line.ratio) == ("decode_tok_s@8", None, "≥ 1.0", None)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_figure_that_is_no_number_passes_no_gate(value: float | None) -> None:
    verdict = judge(measurement(point(decode=value)), {"decode_tok_s": {1: {"min": 1}}})
    assert verdict.lines[0].verdict == "fail"
    json.loads(verdict.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("broken", [{}, {"points": 1}, {"points": [{"streams": 1}]}, {"points": [None]}])
def test_a_broken_measurement_is_one_line(broken: dict[str, Any]) -> None:
    with pytest.raises(SparkstackError) as caught:
        judge(broken, None)
    assert caught.value.lines[0].startswith("measurement: found ")


def test_a_broken_expectation_is_one_line() -> None:
    with pytest.raises(SparkstackError, match=r"^expect\.decode_tok_s\.1: found "):
        judge(measurement(), {"decode_tok_s": {1: {}}})
