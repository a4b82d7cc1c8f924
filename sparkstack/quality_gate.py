"""What an answer says, beside what is expected of it: tests of quality as lines of a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkstack.expectation import USUAL, Expect, Score
from sparkstack.verdict_line import Line, LineVerdict, compared, number

FAILED = "the test failed; the recipe expects nothing of it"
IGNORED = "the recipe leaves it out of the gate: ignore"
ASKED_OF_ALL = "expected of every chat model; expect.quality in the recipe can ask for more, or say: ignore"


def _chats(measurement: Mapping[str, Any]) -> bool:
    profile = measurement.get("profile")
    return isinstance(profile, Mapping) and profile.get("endpoint", "chat") == "chat"


def lines(measurement: Mapping[str, Any], wanted: Expect, usual: bool) -> Iterator[Line]:
    """Each test is told; only those that the recipe expects something of are judged, and with `usual` those
    that every model that chats is expected to pass."""
    seen, asked = set(), USUAL if usual and _chats(measurement) else {}
    for test in measurement.get("quality") or []:
        name, status = str(test["name"]), str(test["status"])
        seen.add(name)
        score = number(test.get("score"))
        found: float | str = f"{status}: {test.get('found')}" if score is None else score
        bound = wanted.quality.get(name)
        if bound is None and name in asked:
            yield _usual(f"quality/{name}", status, score, test, asked[name])
        elif bound is None or bound.ignored:
            verdict: LineVerdict = "not checked" if status == "not checked" else "baseline"
            note = FAILED if status == "fail" else IGNORED if bound is not None else None
            yield Line(f"quality/{name}", found, None, None, verdict, note)
        else:
            yield _test(f"quality/{name}", status, score, str(test.get("found")), bound)
    for name, bound in wanted.quality.items():
        if name not in seen and bound.ignored:
            yield Line(f"quality/{name}", None, None, None, "baseline", IGNORED)
        elif name not in seen:
            why = "this measurement does not hold it"
            yield Line(f"quality/{name}", None, _score_text(bound), None, "not checked", why)
    told = measurement["profile"].get("quality") if asked else None
    for name, bound in asked.items():
        # Of one that was stopped before it, nothing that is expected is known either way.
        if name not in seen and name not in wanted.quality and told is not None:
            why = "the measurement did not come to it" if name in told else "the profile leaves it out"
            yield Line(f"quality/{name}", None, bound.text(), None, "not checked", why)


def _usual(name: str, status: str, score: float | None, test: Mapping[str, Any], bound: Score) -> Line:
    """A test that everybody is expected to pass: what it does not know speaks against nobody."""
    found, least = str(test.get("found")), bound.min or 0.0
    if score is None:  # not one answer came: because the time was over, or because the server gives none
        verdict: LineVerdict = "fail" if status == "fail" else "not checked"
        return Line(name, None, bound.text(), None, verdict, found)
    if score < least <= (number(test.get("at_best")) or 0.0):
        return Line(name, score, bound.text(), None, "not checked", found)
    line = compared(name, score, bound, True)
    note = ASKED_OF_ALL if line.verdict == "pass" else f"{found}; {ASKED_OF_ALL}"
    return Line(name, score, line.expected, line.ratio, line.verdict, note)


def _score_text(bound: Score) -> str:
    return "pass" if bound.passes else bound.text()


def _test(name: str, status: str, score: float | None, found: str, bound: Score) -> Line:
    expected = _score_text(bound)
    if status in ("not checked", "inconclusive"):
        return Line(name, score, expected, None, status, found)  # type: ignore[arg-type]
    if bound.passes:
        measured: float | str = f"{status}: {found}"
        return Line(name, measured, expected, None, "pass" if status == "pass" else "fail")
    if score is None:
        return Line(name, f"{status}: {found}", expected, None, "fail", "the test has no score")
    return compared(name, score, bound, True)
