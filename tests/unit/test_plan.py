"""What a run would do, in words that are true."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from sparkstack import plan
from sparkstack.doctor import Line
from sparkstack.plan import Plan, Step
from sparkstack.releases import History, Kept, OnHost

ARGV = ["docker", "run", "--rm", "--shm-size", "2g", "img:1", "serve", "/model", "--max-model-len", "1024",
        "--master-port", "25001"]  # fmt: skip
NOW: dict[str, Any] = {
    "release": "aa",
    "recipe": "tiny",
    "image": "img:1",
    "checkpoint": "c1",
    "argv": ARGV,
    "env": {"A": "m1", "B": "m2"},
    "source": {"repo": "o/m", "revision": "r1"},
}


def test_what_differs_is_said_from_to() -> None:
    words = [word.replace("1024", "512").replace("img:1", "img:2").replace("25001", "25002") for word in ARGV]
    wish = {
        **NOW,
        "release": "bb",
        "image": "img:2",
        "argv": [*words, "--enforce-eager"],
        "env": {"A": "m9", "C": "m3"},
        "source": {"repo": "o/m", "revision": "r2"},
    }
    assert plan.differences(NOW, wish) == [
        "image from img:1 to img:2",
        "revision from o/m@r1 to o/m@r2",
        "--max-model-len from 1024 to 512",
        "--enforce-eager is new",
        "env A has another value",
        "env B goes",
        "env C is new",
    ]
    assert plan.differences(NOW, {**NOW, "release": "cc", "argv": ARGV[:-2]}) == []


def line(host: str, check: str, status: Any, found: str = "x", wanted: str = "y") -> Line:
    return Line(host, "docker", check, status, found, wanted)


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([], Step("docker", "keeps")),
        ([line("a", "f", "ok")], Step("docker", "keeps")),
        (
            [line("a", "f", "drift", "one", "two"), line("b", "f", "ok")],
            Step("docker", "changes", "f from one to two (a)"),
        ),
        (
            [line("a", "f", "drift", "no file"), line("b", "f", "drift", "no file")],
            Step("docker", "new", "f from no file to y"),
        ),
        (
            [line("a", f"f{n}", "drift") for n in range(5)],
            Step("docker", "changes", "f0 from x to y; f1 from x to y; f2 from x to y; and 2 more"),
        ),
        (
            [line("a", "f", "drift", "that `x` would run", "nothing to do")],
            Step("docker", "changes", "f"),
        ),
        (
            [line("a", "f", "failed", "one", "two"), line("a", "g", "drift")],
            Step("docker", "fails", "a: docker: f: failed: found one; wanted two"),
        ),
    ],
)
def test_a_stage_by_what_the_hosts_say(lines: list[Line], step: Step) -> None:
    assert plan.of_lines("docker", lines) == step


def test_what_is_fetched_is_not_made_up() -> None:
    package = Line("a", "host", "package ethtool", "drift", "not installed", "installed")
    assert plan.of_lines("host", [package]) == Step(
        "host", "new", "package ethtool from not installed to installed", None
    )
    either = Line("a", "conda", "/env", "drift", "no environment, or from another definition", "7516")
    found = plan.of_lines("conda", [either])
    assert (found.verdict, found.fetch) == ("changes", None)
    assert plan.of_lines("image", [line("a", "f", "failed")]).fetch is None


@pytest.mark.parametrize(
    ("step", "wish", "expected"),
    [
        (Step("image", "new", "img:2, on b", 7), "img:2", ("changes", "image from img:1 to img:2, on b")),
        (Step("image", "new", ""), "img:2", ("changes", "image from img:1 to img:2")),
        (Step("checkpoint", "new", "c2 of o/m", 7), "c2", ("changes", "checkpoint from c1 to c2 of o/m")),
        # The one that serves is to be fetched again.
        (Step("checkpoint", "new", "c1 of o/m at r", 7), "c1", ("new", "c1 of o/m at r")),
        (Step("image", "keeps", "img:2"), "img:2", ("keeps", "img:2")),
    ],
)  # fmt: skip
def test_what_takes_the_place_of_another_is_a_change(
    step: Step, wish: str, expected: tuple[str, str]
) -> None:
    found = plan.in_place_of(step, OnHost("aa", {"aa": Kept(NOW)}), wish)
    assert (found.verdict, found.text) == expected and found.fetch == step.fetch
    for nothing in (OnHost(), OnHost("aa"), OnHost("aa", {"aa": Kept({})})):
        assert plan.in_place_of(step, nothing, wish) == step


def test_what_serving_does() -> None:
    there = OnHost("aa", {"aa": Kept(NOW)})
    wish = {**NOW, "release": "bb", "recipe": "tiny2"}
    assert plan.serve_step(NOW, OnHost(), False, None, False).verdict == "new"
    assert plan.serve_step(NOW, there, True, None, False) == Step("serve", "keeps", "release aa")
    assert plan.serve_step(NOW, there, True, None, True).text.endswith("again: the fabric's names change")
    assert "does not serve on every rank" in plan.serve_step(NOW, there, False, None, False).text
    changed = plan.serve_step(wish, there, False, None, False)
    assert changed == Step("serve", "changes", "release from aa to bb: recipe from tiny to tiny2")
    assert plan.serve_step(wish, there, False, "it failed", False) == Step("serve", "fails", "it failed")


def test_how_long_by_past_starts() -> None:
    def started(when: str, seconds: Any) -> Kept:
        return Kept({}, history=History({"when": when, "seconds": seconds}))

    assert plan.interruption(OnHost("a", {"a": Kept({})}), "b") == (None, "")
    two = OnHost("b", {"a": started("2026-01-01", 70), "b": started("2026-02-01", 48.0), "c": Kept({})})
    assert plan.interruption(two, "a") == (70, "the last start of this release")
    assert plan.interruption(two, "c") == (48.0, "as the last start of release b")


def shown(made: Plan, terminal: bool = False) -> str:
    stream = io.StringIO()
    made.render(Console(file=stream, force_terminal=terminal, width=100, color_system=None))
    return stream.getvalue()


def test_a_plan_says_bytes_and_interruption() -> None:
    steps = [
        Step("docker", "keeps"),
        Step("image", "new", "built on x", None),
        Step("checkpoint", "new", "c2", 4_200_000_000),
        Step("serve", "changes", "release from aa to bb: --x from 1 to 2"),
    ]
    text = shown(Plan("tiny", "bb", steps, True, 48.0, "the last start of this release"))
    assert text == (
        "plan, recipe tiny, release bb\n"
        "docker       keeps\n"
        "image        new      built on x; bytes to fetch: not known\n"
        "checkpoint   new      c2; fetches about 4.20 GB\n"
        "serve        changes  release from aa to bb: --x from 1 to 2\n"
        "to fetch from outside: about 4.20 GB, for image not known\n"
        "serving: interrupted; for how long: about 48 s (the last start of this release)\n"
    )
    assert "changes" in shown(Plan("tiny", "bb", steps), terminal=True)
    assert shown(Plan("tiny", "bb", steps[:1])).endswith(
        "to fetch from outside: nothing\nserving: not interrupted\n"
    )
    assert "for how long: not known\n" in shown(Plan("tiny", "bb", [], True))
    assert Plan("t", "b", [Step("serve", "fails")]).fails
