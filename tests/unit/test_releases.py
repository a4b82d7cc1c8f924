"""Which release comes back, which may go, and what only an old one needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import releases
from sparkstack.errors import Problem
from sparkstack.releases import Activation, History, Kept, OnHost

CLEAN, FAILED = History(), History(failed={"reason": "gate"})


def kept(when: int = 1, previous: str | None = None, history: History = CLEAN, **about: Any) -> Kept:
    return Kept({"world": 1, **about}, when, previous, history)


ABC = {"a": kept(1), "b": kept(2, "a"), "c": kept(3, "b")}


@pytest.mark.parametrize(
    ("head", "wish", "expected"),
    [
        (OnHost(), "a", None),
        (OnHost("b", ABC), "c", "b"),
        (OnHost("b", ABC), "b", "a"),
        (OnHost("a", ABC), "a", None),
        # An activation of the same, cut off: what it left counts, wherever `current` points.
        (OnHost("c", ABC, Activation("deploy", "c", "a")), "c", "a"),
        # Of another one: what never came to its end is nothing to go back to.
        (OnHost("b", ABC, Activation("deploy", "b", "a")), "c", "a"),
        (OnHost("b", ABC, Activation("return", "a")), "c", "a"),
        (OnHost("b", {**ABC, "b": kept(2, "a", FAILED)}), "c", "a"),
        (OnHost("b", {**ABC, "a": kept(1, None, FAILED)}), "b", None),
        (OnHost("b", {"b": kept(2, "gone"), "c": kept(3)}), "b", None),
    ],
)
def test_the_release_to_go_back_to(head: OnHost, wish: str, expected: str | None) -> None:
    assert releases.before(head, wish) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (OnHost("b", ABC), "a"),
        (OnHost("b", ABC, Activation("deploy", "c", "b")), "b"),
        (OnHost("b", ABC, Activation("rollback", "a", "b")), "a"),
        (OnHost("a", ABC, Activation("rollback", "a", "b")), "a"),
        (OnHost("c", ABC, Activation("return", "b")), "b"),
        (OnHost(), "found no release on the head; wanted one to go back from; deploy first"),
        (
            OnHost("a", ABC),
            "found no release before a; wanted one to go back to; deploy another recipe instead",
        ),
        (
            OnHost("b", {"b": kept(2, "a")}),
            "found release a, the one before b, is not on the head any more; wanted its folder; "
            "deploy its recipe instead",
        ),
    ],
)  # fmt: skip
def test_where_a_rollback_goes(head: OnHost, expected: str) -> None:
    found = releases.rollback_target(head)
    assert (str(found).removeprefix("rollback: ") if isinstance(found, Problem) else found) == expected


def test_a_release_of_other_hosts_is_told() -> None:
    pair = kept(world=2, hosts=["s1", "s2"])
    assert releases.misfit("x", pair, ["s1", "s2"]) is None
    assert releases.misfit("x", kept(hosts=["s1"]), ["s1", "s2"]) is None
    assert "found release x of s1, s2; wanted one of s1;" in str(releases.misfit("x", pair, ["s1"]))
    assert releases.misfit("x", pair, ["s2", "s1"]) is not None
    assert releases.misfit("x", kept(world=2), ["s1"]) is not None


def test_the_newest_stay() -> None:
    five = {name: kept(at) for at, name in enumerate("abcde")}
    assert releases.collected([OnHost("e", five)], 3) == ["a", "b"]
    # The current one and the one before stay whatever their age, on any host, and count.
    old = {**five, "a": kept(0, "b")}
    assert releases.collected([OnHost("a", old)], 3) == ["c", "d"]
    assert releases.collected([OnHost("e", five), OnHost("b", five)], 2) == ["a", "c", "d"]
    assert releases.collected([OnHost("e", five, Activation("deploy", "a", "b"))], 2) == ["c", "d"]
    assert releases.collected([OnHost("e", five)], 2, wish="a") == ["b", "c", "d"]


NAMES = st.sampled_from("abcdefg")
HOSTS = st.builds(
    OnHost,
    st.none() | NAMES,
    st.dictionaries(NAMES, st.builds(kept, st.integers(0, 5), st.none() | NAMES)),
    st.none() | st.builds(Activation, st.just("deploy"), NAMES, st.none() | NAMES),
)


@given(st.lists(HOSTS, min_size=1, max_size=3), st.integers(2, 5), st.none() | NAMES)
def test_what_somebody_needs_never_goes(hosts: list[OnHost], keep: int, wish: str | None) -> None:
    gone = set(releases.collected(hosts, keep, wish))
    everything = {name for one in hosts for name in one.releases}
    assert len(everything - gone) >= min(keep, len(everything)) and wish not in gone
    for one in hosts:
        current = one.releases.get(one.current or "")
        way = one.under_way
        assert not gone & {one.current, current and current.previous, way and way.to, way and way.back}


def test_what_only_old_releases_needed_goes() -> None:
    def about(image: str, base: str, checkpoint: str, revision: str) -> dict[str, Any]:
        source = {"repo": "o/m", "revision": revision}
        return {"image": image, "base": base, "checkpoint": checkpoint, "source": source}

    one = OnHost(
        "new",
        {
            "old": kept(**about("i1", "b1", "c1", "r1")),
            "older": kept(**about("i2", "b1", "c2", "r1")),
            "new": kept(**about("i2", "b2", "c3", "r2")),
        },
    )
    assert releases.leftovers(one, ["old", "older"]) == releases.Leftovers(
        ["i1"], ["b1"], ["c1", "c2"], [("o/m", "r1")]
    )
    wish = about("i1", "b1", "c9", "r1")
    assert releases.leftovers(one, ["old", "older"], [wish]) == releases.Leftovers([], [], ["c1", "c2"], [])
    # What a graft took its tensors from was downloaded, too.
    donor = {"repo": "o/donor", "revision": "d"}
    grafted = OnHost("new", {**one.releases, "old": kept(**about("i1", "b1", "c1", "r2"), donors=[donor])})
    assert releases.leftovers(grafted, ["old"]).downloads == [("o/donor", "d")]
    assert releases.leftovers(grafted, ["old"], [{"donors": [donor]}]).downloads == []
    # A release.json of a first version names less; nothing of it is guessed.
    assert releases.leftovers(OnHost(None, {"x": kept()}), ["x"]) == releases.Leftovers()


@pytest.mark.parametrize("value", [None, 3, [], {}, {"to": 1}, {"served": 3, "passed": 4, "failed": "x"}])
def test_what_is_no_such_file_says_nothing(value: Any) -> None:
    assert Activation.read(value) is None and History.read(value) == History()


def test_files_are_read_as_they_were_written() -> None:
    way = Activation("rollback", "a", "b")
    history = History({"when": "x", "seconds": 3.5}, "y", {"reason": "gate"})
    assert Activation.read(way.as_dict()) == way and History.read(history.as_dict()) == history
    assert history.start_seconds == 3.5 and History({"seconds": True}).start_seconds is None


def test_a_list_of_what_is_kept() -> None:
    first = kept(5, None, History({"when": "x", "seconds": 48.0}, "2026-01-02"), recipe="tiny")
    second = kept(9, "a", History(failed={"reason": "gate", "when": "2026-02-03"}), recipe="fast")
    both = {"a": first, "b": second, "c": kept(0, recipe="new")}
    head = OnHost("b", both, Activation("return", "a"))
    assert releases.listed({"s1": head, "s2": OnHost("a", both)}) == [
        "b  recipe fast; current on s1; failed (gate, 2026-02-03)",
        "a  recipe tiny; current on s2; previous on s1; met its expectations 2026-01-02; last start 48 s",
        "c  recipe new; never activated",
        "an activation (return) of a is under way, or was cut off",
    ]
    assert releases.listed({"s1": OnHost("a", both)})[1].startswith("a  recipe tiny; current; met")
    assert releases.listed({"s1": OnHost()}) == ["no releases"]


def test_the_environment_is_told_without_its_values() -> None:
    marks = releases.env_marks({"A": "secret-a", "B": "secret-a"})
    assert "secret" not in str(marks) and marks["A"] != marks["B"]
    assert marks == releases.env_marks({"B": "secret-a", "A": "secret-a"})
