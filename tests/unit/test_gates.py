# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
import json
from typing import Any

import pytest

from sparkstack.errors import SparkstackError
from sparkstack.expectation import Benchmark, Expect, covers, profile_of
from sparkstack.gates import judge, missed


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
        "format": 2,
        "release": "abc",
        "measured_at": "2026-01-01T00:00:00Z",
        "ok": True,
        "result": "pass",
        "why": "2 of 2 expected figures met",
        "lines": [
            {"name": "decode_tok_s@1", "measured": 10.0, "expected": "≥ 8.0", "ratio": 1.25, "verdict": "pass", "note": None},
            {"name": "ttft_s@1", "measured": 0.5, "expected": "≤ 1.0", "ratio": 0.5, "verdict": "pass", "note": None},
            {"name": "total_tok_s@1", "measured": 9.0, "expected": None, "ratio": None, "verdict": "baseline", "note": None},
            {"name": "sane", "measured": "4", "expected": "output that makes sense", "ratio": None, "verdict": "pass", "note": None},
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


@pytest.mark.parametrize(
    ("cut", "seconds", "verdict"),
    [
        (0, 9.0, "pass"),
        (1, 9.0, "inconclusive"),  # the ones that ended are the quickest
        (3, None, "inconclusive"),
        (1, 40.0, "fail"),  # not even those
        (0, None, "fail"),
    ],
)
def test_requests_that_were_cut_count_in_how_long_they_take(
    cut: int, seconds: float | None, verdict: str
) -> None:
    found = measurement(point() | {"end_to_end_s": spread(seconds), "cut": cut, "spread": 0.01})
    judged = judge(found, {"end_to_end_s": {1: {"max": 10}}})
    [line] = [line for line in judged.lines if line.name == "end_to_end_s@1"]
    assert line.verdict == verdict
    assert line.note == (f"{cut} of 3 requests were cut by the profile's time" if verdict == "inconclusive" else None)


@pytest.mark.parametrize(
    ("why", "failed", "verdict"),
    [
        ("the stream comes in one piece: something between buffers it", 0, "inconclusive"),
        ("the stream comes in one piece: something between buffers it", 3, "fail"),  # none answered
        (None, 0, "fail"),
    ],
)
def test_a_speed_that_nobody_can_tell_is_inconclusive(why: str | None, failed: int, verdict: str) -> None:
    found = measurement(point(decode=None, failed=failed) | {"unmeasured": why})
    judged = judge(found, {"decode_tok_s": {1: {"min": 1}}})
    assert judged.lines[0].verdict == verdict
    assert judged.lines[0].note == (why if verdict == "inconclusive" else None)


@pytest.mark.parametrize("broken", [{}, {"points": 1}, {"points": [{"streams": 1}]}, {"points": [None]}])
def test_a_broken_measurement_is_one_line(broken: dict[str, Any]) -> None:
    with pytest.raises(SparkstackError) as caught:
        judge(broken, None)
    assert caught.value.lines[0].startswith("measurement: found ")


def test_a_broken_expectation_is_one_line() -> None:
    with pytest.raises(SparkstackError, match=r"^expect\.decode_tok_s\.1: found "):
        judge(measurement(), {"decode_tok_s": {1: {}}})


# Format 2: noise, measurements that were cut off, categories and quality.

NOISY = {"spread": 0.31, "limit": 0.1, "repeated": 2, "verdict": "noisy"}
WHY = "the machine is noisy: spread 31 % over 10 % after 2 more tries"


def full(*points: dict[str, Any], **changes: Any) -> dict[str, Any]:
    quiet = {"spread": 0.02, "limit": 0.1, "repeated": 0, "verdict": "quiet"}
    profile = {"name": "standard", "streams": [1, 2], "category_streams": [1], "categories": "all"}
    extra = {"format": 2, "complete": True, "noise": quiet, "quality": [], "profile": profile}
    return {**measurement(*points), **extra, **changes}


def sample(low: float, median: float, high: float, ci: tuple[float, float] | None = None) -> dict[str, Any]:
    return {"median": median, "min": low, "max": high, "n": 9, "ci": list(ci or (low, high))}


def line(verdict: Any, name: str) -> Any:
    [found] = [one for one in verdict.lines if one.name == name]
    return found


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        ({"min": 8}, "inconclusive"),  # met, but by a machine that is not to be trusted
        ({"min": 11}, "inconclusive"),  # missed, and the best sample meets it
        ({"min": 13}, "fail"),  # not even the best sample
        ({"max": 9}, "inconclusive"),
        ({"max": 7.5}, "fail"),
        ({"min": 5, "max": 7.5}, "fail"),  # one of two limits is out of reach
        ({"value": 10}, "inconclusive"),
    ],
)
def test_a_noisy_machine_passes_nothing(bound: dict[str, float], verdict: str) -> None:
    noisy = full({**point(), "decode_tok_s": sample(8, 10, 12)}, noise=NOISY)
    result = judge(noisy, {"decode_tok_s": {1: bound}})
    assert line(result, "decode_tok_s@1").verdict == verdict
    assert result.result == verdict and not result.ok
    if verdict == "inconclusive":
        assert (result.why, line(result, "decode_tok_s@1").note) == (WHY, WHY)


def test_of_one_number_the_best_is_what_its_spread_allows() -> None:
    noisy = full({**point(), "spread": 0.31}, noise=NOISY)  # 9 tokens/s in all
    assert judge(noisy, {"total_tok_s": {1: {"min": 11}}}).result == "inconclusive"
    assert judge(noisy, {"total_tok_s": {1: {"min": 12}}}).result == "fail"


def test_noise_has_no_say_in_acceptance_and_quality() -> None:
    test = {"name": "json", "status": "pass", "found": "all of 5", "score": 1.0}
    noisy = full({**point(), "acceptance": 0.7}, noise=NOISY, quality=[test])
    result = judge(noisy, {"acceptance": {1: {"min": 0.6}}, "quality": {"json": "pass"}})
    assert [line(result, name).verdict for name in ("acceptance@1", "quality/json")] == ["pass", "pass"]


def test_noise_without_an_expectation_is_a_baseline_that_says_so() -> None:
    result = judge(full(noise=NOISY), None)
    assert result.ok and result.why == f"nothing is expected: these figures are a baseline; {WHY}"


@pytest.mark.parametrize(
    ("limit", "spread", "verdict"),
    [(9.5, 0.2, "inconclusive"), (9.5, 0.05, "pass"), (10.5, 0.2, "inconclusive"), (8.5, 0.2, "pass"), (12, 0.2, "fail")],
)  # fmt: skip
def test_a_limit_inside_the_interval_of_a_wide_point_decides_nothing(
    limit: float, spread: float, verdict: str
) -> None:
    wide = full({**point(), "decode_tok_s": sample(8, 10, 12, (9, 11)), "spread": spread})
    found = line(judge(wide, {"decode_tok_s": {1: {"min": limit}}}), "decode_tok_s@1")
    assert found.verdict == verdict
    if verdict == "inconclusive":
        assert found.note == (
            f"the limit {limit} lies inside the median's interval 9 to 11, and the spread is 20 %, over 10 %"
        )


def test_what_was_cut_off_never_passes() -> None:
    expect = {"decode_tok_s": {1: {"min": 8}, 2: {"min": 8}}, "ttft_s": {1: {"max": 0.1}}}
    cut = judge(full(point(1), complete=False), {"decode_tok_s": expect["decode_tok_s"]})
    assert (cut.result, cut.why) == (
        "inconclusive",
        "the measurement was stopped before its end; 1 not checked",
    )
    assert [line(cut, f"decode_tok_s@{n}").verdict for n in (1, 2)] == ["inconclusive", "not checked"]
    assert line(cut, "sane").verdict == "inconclusive"
    assert judge(full(complete=False), expect).result == "fail"  # a miss is a miss
    assert judge(full(complete=False), None).result == "inconclusive"


@pytest.mark.parametrize(
    ("figure", "bound", "verdict", "expected", "ratio"),
    [
        ("decode_tok_s", {"value": 11}, "pass", "≥ 9.9 (11.0 − 10 %)", 0.9091),
        ("decode_tok_s", {"value": 12}, "fail", "≥ 10.8 (12.0 − 10 %)", 0.9259),
        ("decode_tok_s", {"value": 4, "tolerance_percent": 0}, "pass", "≥ 4.0 (4.0 − 0 %)", 2.5),
        ("ttft_s", {"value": 0.45, "tolerance_percent": 12}, "pass", "≤ 0.504 (0.45 + 12 %)", 1.1111),
        ("ttft_s", {"value": 0.45}, "fail", "≤ 0.495 (0.45 + 10 %)", 1.0101),
        ("ttft_s", {"value": 9}, "pass", "≤ 9.9 (9.0 + 10 %)", 0.0556),
    ],
)
def test_a_value_has_a_tolerance_on_its_bad_side(
    figure: str, bound: dict[str, float], verdict: str, expected: str, ratio: float
) -> None:
    found = line(judge(measurement(), {figure: {1: bound}}), f"{figure}@1")
    assert (found.verdict, found.expected, found.ratio) == (verdict, expected, ratio)


@pytest.mark.parametrize(
    ("bound", "wanted"),
    [
        ({}, "min, max or both, or value"),
        ({"value": 1, "min": 1}, "either value or min and max"),
        ({"min": 1, "tolerance_percent": 5}, "tolerance_percent only beside value"),
        ({"min": 2, "max": 1}, "a min that is not above max"),
    ],
)
def test_a_bound_that_says_two_things_is_refused(bound: dict[str, float], wanted: str) -> None:
    with pytest.raises(SparkstackError, match=f"wanted {wanted}; correct it$"):
        judge(measurement(), {"decode_tok_s": {1: bound}})


def test_categories_are_judged_where_they_were_measured() -> None:
    coding = {**point(decode=20.0), "category": "coding", "thinking": True, "acceptance": 0.8}
    other = {**coding, "thinking": False, "decode_tok_s": spread(30.0)}
    expect = {
        "categories": {
            "coding": {"min": 25},
            "json": {"decode_tok_s": {1: {"min": 1}}, "acceptance": {4: {"min": 0.5}}},
        }
    }
    result = judge(full(point(), coding, other), expect)
    found = line(result, "decode_tok_s@1/coding")  # without thinking before with it
    assert (found.verdict, found.measured) == ("pass", 30.0)
    assert line(result, "decode_tok_s@1/json").verdict == "fail"  # the profile has it, the figures do not
    assert line(result, "acceptance@4/json").note == "the profile standard does not measure it"
    smoke = judge(full(profile={"name": "smoke", "streams": [1]}), expect)
    assert (smoke.result, smoke.ok) == ("baseline", True)
    assert smoke.why == "nothing that is expected was measured: these figures are a baseline; 3 not checked"


@pytest.mark.parametrize(
    ("status", "score", "bound", "verdict"),
    [
        ("pass", 97.0, {"min": 97}, "pass"),
        ("pass", 96.0, {"min": 97}, "fail"),
        ("fail", None, {"min": 97}, "fail"),
        ("pass", None, "pass", "pass"),
        ("fail", 80.0, "pass", "fail"),
        ("not checked", None, {"min": 97}, "not checked"),
        ("inconclusive", 97.0, "pass", "inconclusive"),
        ("fail", 1.0, None, "baseline"),
    ],
)
def test_of_quality_only_what_is_expected_is_judged(
    status: str, score: float | None, bound: Any, verdict: str
) -> None:
    test = {"name": "arithmetic", "status": status, "found": "x", "wanted": "y", "score": score}
    expect = {"quality": {"arithmetic": bound}} if bound else None
    result = judge(full(quality=[test]), expect)
    assert line(result, "quality/arithmetic").verdict == verdict
    unexpected = bound is None and status == "fail"
    assert ("of which nothing is expected: arithmetic" in result.why) is unexpected


def sane(status: str, score: float | None, **more: Any) -> dict[str, Any]:
    test = {"name": "sane", "status": status, "found": "x of 3 right", "wanted": "w", "score": score, **more}
    return full(quality=[test], profile={"name": "smoke", "streams": [1], "quality": ["sane"]})


@pytest.mark.parametrize(
    ("status", "score", "more", "verdict"),
    [
        ("fail", 0.0, {}, "fail"),
        ("fail", 0.33333, {}, "fail"),
        ("fail", 0.66667, {}, "pass"),  # a model that knows one language alone talks no garbage
        ("pass", 1.0, {}, "pass"),
        (
            "inconclusive",
            0.0,
            {"at_best": 1.0},
            "not checked",
        ),  # cut by the profile's time, or still thinking
        ("fail", 0.0, {"at_best": 0.33333}, "fail"),
        ("inconclusive", 0.66667, {"at_best": 1.0}, "pass"),
        ("not checked", None, {}, "not checked"),
        ("fail", None, {}, "fail"),  # not one of them was answered
    ],
)
def test_garbage_fails_where_a_recipe_is_silent(
    status: str, score: float | None, more: dict[str, float], verdict: str
) -> None:
    measured = sane(status, score, **more)
    result = judge(measured, {"decode_tok_s": {1: {"min": 1}}})
    found = line(result, "quality/sane")
    assert (found.verdict, found.expected) == (verdict, "≥ 0.5")
    assert result.result == ("fail" if verdict == "fail" else "pass")
    if verdict == "fail":
        assert result.why == "missed: quality/sane"
        assert missed(result.as_dict()).startswith(f"quality/sane {score} (expected ≥ 0.5: x of 3 right")
    elif verdict == "not checked":
        assert result.why == "1 of 1 expected figures met; 1 not checked"
    # That it talks sense is no figure that somebody expected; and nothing is expected of a stranger's URL.
    assert judge(measured, {}).result == ("fail" if verdict == "fail" else "baseline")
    assert judge(measured, None).ok
    completions = {**measured, "profile": {**measured["profile"], "endpoint": "completions"}}
    assert judge(completions, {}).ok


@pytest.mark.parametrize("word", ["ignore", False])
def test_a_recipe_can_leave_garbage_out_and_the_verdict_says_so(word: Any) -> None:
    expect = {"quality": {"sane": word}}
    garbage = judge(sane("fail", 0.0), expect)
    assert garbage.ok and garbage.why.endswith("tests that failed and of which nothing is expected: sane")
    assert judge(sane("pass", 1.0), expect).why.endswith("left out of the gate by the recipe: sane")
    unasked = judge(full(profile={"quality": []}), expect)
    assert unasked.why.endswith("left out of the gate by the recipe: sane")
    assert line(unasked, "quality/sane").verdict == "baseline"
    silent = judge(full(profile={"quality": []}), {})
    assert line(silent, "quality/sane").note == "the profile leaves it out" and "1 not checked" in silent.why
    strict = judge(sane("fail", 0.66667), {"quality": {"sane": "pass"}})
    assert strict.result == "fail"


def test_what_is_ignored_has_no_bound_beside_it() -> None:
    with pytest.raises(SparkstackError, match=r"wanted pass, ignore, or a bound of the score; correct it$"):
        judge(measurement(), {"quality": {"sane": {"ignored": True, "min": 0.5}}})


def test_a_test_that_is_not_there_was_not_checked() -> None:
    found = line(judge(measurement(), {"quality": {"needle": "pass"}}), "quality/needle")
    assert (found.verdict, found.expected) == ("not checked", "pass")


def test_why_requests_failed_is_told() -> None:
    broken = {**point(failed=2), "failures": ["HTTP 500 (out of memory)", "a stream that was cut"]}
    found = line(judge(full(broken), None), "failed_requests@1")
    assert (found.verdict, found.note) == ("fail", "HTTP 500 (out of memory); a stream that was cut")


def test_a_profile_is_the_named_one_with_the_recipe_s_own() -> None:
    wish = Benchmark(streams=[1, 3], max_tokens=900, spread_limit=2)
    assert profile_of("smoke", Benchmark()) == {"name": "smoke"}
    assert profile_of("smoke", wish) == {
        "name": "smoke",
        "streams": [1, 3],
        "max_tokens": 900,
        "spread_limit": 2.0,
    }
    assert profile_of("full", wish) == {"name": "full", "streams": [1, 2, 3, 4, 6, 8], "spread_limit": 2.0}
    assert profile_of("standard", Benchmark(streams=[4])) == {"name": "standard"}
    assert profile_of("smoke", Benchmark(quality=[])) == {"name": "smoke", "quality": []}


@pytest.mark.parametrize(
    ("found", "asked", "same"),
    [
        ({"name": "smoke", "streams": [1], "repeats": 3}, {"name": "smoke", "streams": [1]}, True),
        ({"name": "smoke", "streams": [1]}, {"name": "smoke", "streams": [1, 4]}, False),
        ({"name": "standard", "streams": [1, 2, 4]}, {"name": "smoke", "streams": [1, 4]}, True),
        ({"name": "standard", "streams": [1, 2, 4]}, {"name": "smoke", "streams": [3]}, False),
        ({"name": "smoke", "streams": [1]}, {"name": "standard"}, False),
        ({"name": "custom", "streams": [1]}, {"name": "smoke"}, False),
        ({"streams": [1]}, {"name": "smoke"}, False),
        (None, {"name": "smoke"}, False),
    ],
)
def test_a_larger_measurement_is_as_good(found: Any, asked: dict[str, Any], same: bool) -> None:
    assert covers(found, asked) is same


def test_what_there_was_no_time_for_is_no_miss() -> None:
    late = "speed: with 2 streams no answer in its share of the time"
    expect = {"decode_tok_s": {1: {"min": 8}, 2: {"min": 8}}, "categories": {"coding": {"min": 1}}}
    result = judge(full(notes=[late, "categories: the time was over after 3 of 16 points"]), expect)
    assert (result.result, line(result, "decode_tok_s@2").note) == ("inconclusive", late)
    assert line(result, "decode_tok_s@1/coding").verdict == "inconclusive"
    assert judge(full(notes=["thinking on: refused"]), expect).result == "fail"


# A request that failed is no pass, wherever it was: each part of a measurement, and each of its entries.

BROKEN = {"requests": 5, "failed": 5, "failures": ["HTTP 500 (out of memory)"]}
MET = {"decode_tok_s": {1: {"min": 1}}}
SEARCHED = {"name": "full", "saturation": True, "streams": [1], "rates": [2.0]}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({"points": [{**point(), "category": "coding", "thinking": True, **BROKEN}]}, "1/coding/thinking"),
        ({"points": [{**point(), "category": "coding", "thinking": False, **BROKEN}]}, "1/coding/not thinking"),
        ({"points": [{**point(4), "category": "json", **BROKEN}]}, "4/json"),
        ({"points": [{**point(4), **BROKEN}]}, "4"),
        ({"contexts": [{"asked": 8192, "input_tokens": None, **BROKEN}]}, "context/8192"),
        ({"contexts": [{"asked": 8192, "input_tokens": 8190, **BROKEN}]}, "context/8192"),
        ({"open_loop": [{"rate_rps": 2.5, **BROKEN}]}, "open loop/2.5"),
        ({"open_loop": [{"rate_rps": 2.0, **BROKEN}], "profile": SEARCHED, "saturation": {"rate_rps": 1.0}}, "open loop/2"),
        ({"open_loop": [{"rate_rps": 1.0, **BROKEN}], "profile": SEARCHED, "saturation": {"rate_rps": 1.0}}, "open loop/1"),
        ({"open_loop": [{"rate_rps": 1.0, **BROKEN}], "profile": SEARCHED, "saturation": {"rate_rps": None}}, "open loop/1"),
    ],
)  # fmt: skip
def test_a_request_that_failed_is_no_pass_wherever_it_was(found: dict[str, Any], name: str) -> None:
    good = {**point(), "category": "coding", "thinking": False}
    points = [point(), *([good] if name.endswith("/thinking") else []), *found.pop("points", [])]
    result = judge(full(*points, **found), MET)
    [failed] = [one for one in result.lines if one.verdict == "fail"]
    assert (failed.name, failed.measured) == (f"failed_requests@{name}", "5 of 5")
    assert failed.note == "HTTP 500 (out of memory)"
    assert (result.result, result.why) == ("fail", f"missed: failed_requests@{name}")
    assert missed(result.as_dict()).endswith("5 of 5 (expected none of at least 1: HTTP 500 (out of memory))")


def test_of_many_points_that_failed_a_message_names_a_few() -> None:
    points = [{**point(streams), **BROKEN} for streams in (1, 2, 4, 6, 8)]
    words = missed(judge(full(*points), {"decode_tok_s": {8: {"min": 99}}}).as_dict())
    assert words.startswith("decode_tok_s@8 10.0 (expected ≥ 99.0), failed_requests@1 5 of 5 (expected none")
    assert words.endswith(", 2 more with failed requests") and words.count("out of memory") == 3


def test_the_rate_at_which_a_server_gave_up_is_what_was_looked_for() -> None:
    beyond = {
        "open_loop": [{"rate_rps": 3.0, **BROKEN}],
        "profile": SEARCHED,
        "saturation": {"rate_rps": 1.0},
    }
    result = judge(full(point(), **beyond), MET)
    told = line(result, "failed_requests@open loop/3")
    assert (result.result, told.verdict, told.expected) == ("pass", "baseline", None)
    assert told.note == "HTTP 500 (out of memory); above the saturation point, which such a rate ends"


def test_an_input_that_the_server_does_not_take_was_not_checked() -> None:
    one = {"asked": 8192, "input_tokens": None, "requests": 0, "failed": 0, "failures": []}
    result = judge(full(contexts=[one]), MET)
    assert line(result, "failed_requests@context/8192").verdict == "not checked"
    assert result.result == "pass" and "1 not checked" in result.why


@pytest.mark.parametrize("broken", [{"contexts": [None]}, {"open_loop": [{"failed": 1}]}, {"contexts": 5}])
def test_a_part_of_another_form_is_one_line(broken: dict[str, Any]) -> None:
    with pytest.raises(SparkstackError) as caught:
        judge(full(**broken), None)
    assert caught.value.lines[0].startswith("measurement: found ")


# A spread that is not known is not a small one.

UNKNOWN = {"spread": None, "limit": 0.1, "repeated": 0, "verdict": "unknown"}
SINGLE = "one sample: its spread is not known"
CUT = "its requests were cut short, and its spread is not known"


def alone(value: float, n: int = 1) -> dict[str, Any]:
    return {"median": value, "min": value, "max": value, "n": n, "ci": None}


@pytest.mark.parametrize(
    ("figure", "changes", "bound", "verdict", "note"),
    [
        ("decode_tok_s", {"decode_tok_s": alone(10)}, {"min": 1}, "inconclusive", SINGLE),
        ("decode_tok_s", {"decode_tok_s": alone(10)}, {"min": 15}, "inconclusive", SINGLE),
        ("decode_tok_s", {"decode_tok_s": alone(10)}, {"min": 21}, "fail", None),  # not even twice as good
        ("ttft_s", {"ttft_s": alone(20)}, {"max": 30}, "inconclusive", SINGLE),
        ("ttft_s", {"ttft_s": alone(20)}, {"max": 0.5}, "fail", None),
        ("end_to_end_s", {"end_to_end_s": alone(6)}, {"max": 9}, "inconclusive", SINGLE),
        ("inter_token_s", {"inter_token_s": alone(0.1, 63), "requests": 1}, {"max": 1}, "inconclusive", SINGLE),
        ("total_tok_s", {"requests": 1}, {"min": 1}, "inconclusive", SINGLE),
        ("total_tok_s", {}, {"min": 1}, "pass", None),
        ("decode_tok_s", {"cut": 1}, {"min": 1}, "inconclusive", CUT),
        ("decode_tok_s", {"cut": 1, "spread": 0.01}, {"min": 1}, "pass", None),
        ("decode_tok_s", {"decode_tok_s": alone(10), "spread": 0.01}, {"min": 1}, "pass", None),
        ("acceptance", {"requests": 1, "acceptance": 0.7}, {"min": 0.6}, "pass", None),  # no clock in it
        ("decode_tok_s", {"decode_tok_s": sample(8, 10, 12, (9, 11))}, {"min": 8.5}, "pass", None),
        ("decode_tok_s", {"decode_tok_s": sample(8, 10, 12, (9, 11))}, {"min": 12}, "fail", None),
        (
            "decode_tok_s", {"decode_tok_s": sample(8, 10, 12, (9, 11))}, {"min": 9.5}, "inconclusive",
            "the limit 9.5 lies inside the median's interval 9 to 11, and without repeats the spread is not known",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("category", ["all", "coding"])
def test_a_spread_that_is_not_known_passes_nothing_by_itself(
    category: str,
    figure: str,
    changes: dict[str, Any],
    bound: dict[str, float],
    verdict: str,
    note: str | None,
) -> None:
    measured = full({**point(), "spread": None, "category": category, **changes}, noise=UNKNOWN)
    bounds = {figure: {1: bound}}
    result = judge(measured, bounds if category == "all" else {"categories": {category: bounds}})
    name = f"{figure}@1" + ("" if category == "all" else f"/{category}")
    found = line(result, name)
    assert (found.verdict, found.note) == (verdict, note)
    if category == "all":
        assert result.result == verdict
    assert judge(measured, None).ok  # nothing is expected: the figure is kept
