"""The watchdog: slow is not dead, a rank that left is seen, and what is stopped stays stopped."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest
from fake_openai import Server, serving
from test_onhost_group import RELEASE, release_json, served, state

from onhost import busy, group, probe_engine, ready, watchdog
from onhost.busy import Spent, slots_of
from onhost.group import State
from onhost.http_client import ask
from onhost.limits import Limits
from onhost.plan import JobError
from onhost.probe_engine import Judge, Outcome, Seen, Verdict, replicas_of, work_of
from onhost.watchdog import Last, Watch
from sparkstack import launch

LIMITS = Limits(interval=1, timeout=1, misses=3, away=60)
TOKEN, NONE = Seen(Outcome.TOKEN), Seen(Outcome.NONE, "no answer in 1 s", (5.0, 1.0, 1.0, 0.0))
MEMBERS = {"members": {0: "hh", 1: "aa"}, "members_release": RELEASE}
HEAD = state(active="active", sub="running", invocation="hh", note="started", **MEMBERS)
WORKER = state(active="active", sub="running", note="started")


class Rank:
    """A watch whose deeds are noted."""

    def __init__(self, rank: int = 0, world: int = 2) -> None:
        self.served = served(rank, world)
        self.seen: list[Seen] = []
        self.done: list[bool] = []
        self.said: list[str] = []
        self.asked: list[int | None] = []  # the replicas
        self.pings = False
        self.ways = {0: {"10.0.0.1", "10.0.1.1"}, 1: {"10.0.0.2", "10.0.1.2"}}
        self.now, self.limits = 0.0, LIMITS
        self.watch = Watch(
            probe=self.probe,
            begin_anew=lambda invocation, why: self.done.append(True),
            pings=lambda rank: self.pings,
            ways=lambda rank: self.ways.get(rank, set()),
            say=self.said.append,
            clock=lambda: self.now,
        )

    def probe(self, served: group.Served, timeout: float, replica: int | None) -> Seen:
        self.asked.append(replica)
        return self.seen.pop(0)

    def look(self, own: State, others: dict[int, State] | None = None, *seen: Seen) -> list[bool]:
        self.seen = list(seen)
        self.watch.look(self.served, own, {} if others is None else others, self.limits)
        assert self.seen == [], "a probe that should have been made"
        return self.done

    def looks(self, seconds: float, own: State, other: State, *seen: Seen) -> list[float]:
        """Look every 15 s for so long; when the group was started anew, counted from the first look."""
        began, found = self.now, []
        while self.now - began <= seconds:
            self.done.clear()
            if self.look(own, {1 - self.served.rank: other}, *seen):
                found.append(self.now - began)
            self.now += 15
        self.done.clear()
        return found


def test_dead_is_no_token_and_no_work_several_times() -> None:
    head = Rank()
    for _ in range(2):
        assert head.look(HEAD, {1: WORKER}, NONE) == []
    assert head.look(HEAD, {1: WORKER}, NONE) == [True]
    assert head.said[-1] == (
        "starts the group anew: no token 3 times in a row (no answer in 1 s), and no counter moved"
    )
    # It begins to count anew.
    assert head.look(HEAD, {1: WORKER}, NONE) == [True]
    assert head.look(HEAD, {1: WORKER}, TOKEN) == [True]
    assert head.said[-1] == "tokens come"


def test_slow_is_not_dead() -> None:
    judge = Judge()
    for count in range(20):
        seen = Seen(Outcome.NONE, "no answer", (float(count), 0.0, 0.0, 0.0))
        assert judge.see(seen, 2, 60) is (Verdict.MISSED if count == 0 else Verdict.SLOW)
    assert judge.see(seen, 2, 60) is Verdict.MISSED
    assert judge.see(TOKEN, 2, 60) is Verdict.ALIVE
    # A server that refuses the question says nothing of the engine.
    assert judge.see(Seen(Outcome.REFUSED, "HTTP 401"), 1, 60) is Verdict.NOT_CHECKED
    # Without counters only tokens tell.
    assert [judge.see(Seen(Outcome.NONE), 2, 60) for _ in range(2)] == [Verdict.MISSED, Verdict.DEAD]


@pytest.mark.parametrize("misses", [1, 2, 4])
@pytest.mark.parametrize(
    "reading",
    [
        lambda at: Seen(Outcome.NONE, "", (5.0 + at,)),
        lambda at: Seen(Outcome.NONE, "", None, Spent(9.0 + at, at)),
    ],
)
def test_nothing_is_dead_before_two_readings_were_compared(misses: int, reading: Any) -> None:
    """Of counters as of processor time; what was read before a token is too old to compare with."""
    judge = Judge()
    for _ in range(3):
        assert judge.see(reading(0.0), misses, 60) is Verdict.MISSED
        assert judge.see(reading(9.0), misses, 60) is Verdict.SLOW
        assert judge.see(TOKEN, misses, 60) is Verdict.ALIVE
    # A first reading after misses without one says nothing either.
    found = [judge.see(Seen(Outcome.NONE), misses, 60) for _ in range(max(misses, 2) - 1)]
    assert found == [Verdict.MISSED] * len(found)
    assert judge.see(reading(9.0), misses, 60) is Verdict.MISSED
    still = Seen(Outcome.NONE, "", reading(9.0).work, reading(9.0).spent)
    assert judge.see(still, misses, 60) is Verdict.DEAD


def test_busy_is_not_dead_without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time tells, but not for ever: a hung engine may spin."""

    def verdicts(*spent: tuple[float, float]) -> list[Verdict]:
        judge = Judge()
        return [judge.see(Seen(Outcome.NONE, "", None, Spent(*one)), 2, 60) for one in spent]

    miss, slow, dead = Verdict.MISSED, Verdict.SLOW, Verdict.DEAD
    assert verdicts((1, 0), (10, 10), (11, 30), (20, 60)) == [miss, slow, slow, slow]
    assert verdicts((1, 0), (1.1, 10)) == [miss, dead]  # a server that answers questions, and no more
    assert verdicts((1, 0), (10, 30), (40, 61), (70, 91)) == [miss, slow, miss, dead]
    assert verdicts((9, 0), (1, 10)) == [miss, dead]  # another container
    # A token, and a counter, say that all begins anew.
    judge = Judge()
    for at in range(0, 600, 50):
        assert judge.see(Seen(Outcome.NONE, "", (float(at),), Spent(at, at)), 2, 60) in (miss, slow)


@pytest.mark.parametrize("changes", [{"invocation": "bb"}, {"sub": "auto-restart"}, {"active": "failed"}])
@pytest.mark.parametrize("of_the_head", [{}, {"active": "activating", "sub": "start-post"}])
def test_a_rank_that_left_takes_the_group_along(changes: dict[str, Any], of_the_head: dict[str, Any]) -> None:
    """Also while the engine still loads: the rank that is new is in no group and waits."""
    own = state(**{"active": "active", "sub": "running", "invocation": "hh", **MEMBERS, **of_the_head})
    other = state(**{"active": "activating", **changes})
    head = Rank()
    assert head.look(own, {1: other}) == [True]
    assert head.said[0].startswith("starts the group anew: rank 1 (spark-2) ")


def test_a_rank_that_cannot_be_asked_is_judged_by_tokens() -> None:
    head = Rank()
    assert head.look(HEAD, {1: State(said="timed out")}, TOKEN) == []
    assert head.said == []


@pytest.mark.parametrize(
    "own",
    [
        state(active="inactive", sub="dead"),
        state(active="deactivating", sub="stop-sigterm"),
        state(sub="start-pre", invocation="hh"),
        state(sub="auto-restart", invocation="hh", **MEMBERS),
    ],
)
def test_what_is_stopped_or_waits_is_left_alone(own: State) -> None:
    for rank in (0, 1):
        one = Rank(rank)
        for _ in range(5):
            one.now += 1000
            assert one.look(own, {1 - rank: State(said="gone")}) == []


def test_the_group_before_says_nothing_of_this_start() -> None:
    """The head's engine began again and its new group is not written, or no rank could be asked."""
    for members in ({}, {"members": {0: "old", 1: "zz"}, "members_release": RELEASE}):
        own = state(active="active", sub="running", invocation="hh", **members)
        assert Rank().look(own, {1: WORKER}, TOKEN) == []


def test_misses_of_one_start_do_not_count_for_the_next() -> None:
    head = Rank(world=1)
    for invocation in ("a", "b", "c"):
        own = state(active="active", sub="running", invocation=invocation)
        head.look(own, {}, NONE)
        assert head.look(own, {}, NONE) == []


def test_a_worker_gives_up_a_head_that_is_away() -> None:
    worker = Rank(1)
    for now in (0, 50, 59):
        worker.now = now
        assert worker.look(WORKER, {0: State(said="timed out")}) == []
    worker.pings = True  # only its sshd is gone
    worker.now = 100
    assert worker.look(WORKER, {0: State(said="refused")}) == []
    worker.pings = False
    for now in (110, 159, 169):
        worker.now = now
        assert worker.look(WORKER, {0: State(said="timed out")}) == []
    worker.now = 171
    assert worker.look(WORKER, {0: State(said="timed out")}) == [True]
    assert worker.said[-1] == (
        "starts the group anew: rank 0 (spark-1) is gone for 61 s: it does not answer (timed out)"
    )


GROUP = {"members": {0: "hh", 1: "aa"}, "members_release": RELEASE}
LOADS = state(sub="start-post", invocation="hh", note="started", **GROUP)
AWAY = State(said="timed out")


def test_a_worker_that_is_away_while_the_engine_loads_takes_the_group_along() -> None:
    """No token is asked for yet, so nothing else would tell."""
    head = Rank()
    assert head.looks(1485, LOADS, AWAY)[0] == 60
    assert head.said[:2] == [
        "rank 1 (spark-2) does not answer (timed out)",
        "starts the group anew: rank 1 (spark-2) is gone for 60 s: it does not answer (timed out)",
    ]


def test_a_worker_that_comes_back_in_time_takes_nothing_along() -> None:
    """What counts is an absence without a break, of one start, at looks that were made."""
    head = Rank()
    loading = state(sub="start-post", note="started")
    for _ in range(20):
        assert head.looks(45, LOADS, AWAY) == []
        assert head.looks(0, LOADS, loading) == []
    head.looks(45, LOADS, AWAY)
    assert head.looks(45, state(sub="start-post", invocation="h2", members={0: "h2", 1: "aa"},
                                members_release=RELEASE), AWAY) == []  # fmt: skip
    head.looks(45, LOADS, AWAY)
    head.watch.forget()  # the release could not be read
    assert head.looks(45, LOADS, AWAY) == []


def test_a_worker_is_not_away_where_it_may_be_there() -> None:
    head = Rank()
    head.pings = True  # only its sshd is gone
    assert head.looks(3000, LOADS, AWAY) == []
    head.pings = False
    # Not formed: the head waits, or the line is of a start before.
    assert head.looks(3000, state(sub="start-post", invocation="hh"), AWAY) == []
    assert head.looks(3000, state(sub="start-post", invocation="h3", **GROUP), AWAY) == []
    assert head.looks(3000, HEAD, AWAY, TOKEN) == []  # it has served: tokens tell


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (state(active="inactive", sub="dead", invocation="hh", **GROUP), "is inactive"),  # stopped by hand
        (state(active="failed", sub="failed", invocation="hh", **GROUP), "is failed"),
        (state(active="deactivating", sub="stop", invocation="hh", **GROUP), "is deactivating"),
        (state(sub="auto-restart", invocation="hh", **GROUP), "has ended"),
        (state(invocation="h2", note="waiting for Docker"), "waits (waiting for Docker)"),
        (state(invocation="h2", note="waiting for Docker", **GROUP), "waits (waiting for Docker)"),
        (
            state(active="active", sub="running", invocation="h2", release="ffff", members={0: "h2"},
                  members_release="ffff"),
            "runs a group without this rank",
        ),
        (
            state(sub="start-post", invocation="h2", members={0: "h2", 1: "b"}, members_release=RELEASE),
            "runs a group without this rank",
        ),
    ],
)  # fmt: skip
def test_a_worker_leaves_a_group_that_the_head_does_not_run(head: State, why: str) -> None:
    worker = Rank(1)
    assert group.apart(head, "aa") == why
    assert worker.looks(1500, WORKER, head)[0] == 60
    assert worker.said[0] == f"rank 0 (spark-1) {why}"
    assert worker.said[1] == f"starts the group anew: rank 0 (spark-1) is gone for 60 s: it {why}"


HEALTHY = [
    HEAD,
    LOADS,
    state(active="active", sub="running", invocation="hh", release="ffff", **GROUP),  # a link switched early
    state(active="active", sub="running", invocation="hh"),  # a head that formed no group: it cannot ask
    state(active="active", sub="running", invocation="h2", **GROUP),  # the line is of a start before
    state(sub="start-pre", invocation="hh", **GROUP),  # formed at this moment
    state(active="reloading", sub="reload", invocation="hh", **GROUP),
]


@pytest.mark.parametrize("head", HEALTHY)
def test_a_worker_stays_in_a_group_that_may_run(head: State) -> None:
    worker = Rank(1)
    assert group.apart(head, "aa") is None
    assert worker.looks(3000, WORKER, head) == []
    # Nor do short times of another kind add up.
    for _ in range(20):
        assert worker.looks(45, WORKER, state(invocation="h2")) == []
        assert worker.looks(0, WORKER, head) == []


def test_a_worker_that_waits_or_was_started_anew_is_left_alone() -> None:
    """The head that forms a new group starts it anew itself."""
    worker, forming = Rank(1), state(invocation="h2")
    assert worker.looks(45, WORKER, forming) == []
    again = state(invocation="bb")  # in start-pre
    assert worker.looks(3000, again, forming) == []
    started = state(active="active", sub="running", invocation="bb")
    formed = state(sub="start", invocation="h2", members={0: "h2", 1: "bb"}, members_release=RELEASE)
    assert worker.looks(3000, started, formed) == []


def test_a_deploy_stops_and_starts_a_group_without_the_watchdogs() -> None:
    """The head's unit is stopped first, then the workers'; these start first. `current` changes between."""
    worker, head = Rank(1), Rank()
    stopping = state(active="deactivating", sub="stop", invocation="hh", **GROUP)
    stopped = state(active="inactive", sub="dead", invocation="hh", **GROUP)
    assert worker.looks(30, WORKER, stopping) == [] == worker.looks(0, WORKER, stopped)
    for own in (state(active="deactivating", sub="stop"), state(active="inactive", sub="dead")):
        assert worker.looks(600, own, stopped) == [] == head.looks(600, stopped, own)
    forming, waiting = state(invocation="h2"), state(invocation="bb")
    assert worker.looks(600, waiting, stopped) == [] == worker.looks(600, waiting, forming)
    assert head.looks(600, forming, waiting) == [] == head.looks(600, forming, AWAY)


def test_open_requests_may_end_however_short_the_limit() -> None:
    worker = Rank(1)
    worker.limits = Limits(interval=1, timeout=1, misses=3, away=1)
    stopping = state(active="deactivating", sub="stop", invocation="hh", **GROUP)
    assert worker.looks(59, WORKER, stopping) == []


@pytest.mark.parametrize("words", [("--stop-timeout", "305"), ("--stop-timeout=305", "--stop-timeout", "x")])
def test_a_release_may_stop_by_its_own_limit_when_a_deploy_lowers_it(words: tuple[str, ...]) -> None:
    """The limits are written before the release that serves is stopped."""
    worker = Rank(1)
    worker.served = served(1, argv=("docker", "run", *words, "image"))
    stopping = state(active="deactivating", sub="stop", invocation="hh", **GROUP)
    assert worker.looks(1500, WORKER, stopping)[0] == 345  # the first look after 305 s and 30 s
    assert launch.unit_stop_seconds(300) + launch.UNIT_SECONDS == 305 + watchdog.STOP_SECONDS


def test_other_hosts_that_answer_for_a_rank_say_nothing_of_this_group() -> None:
    """A deploy makes known which host is which rank long before it stops what serves."""
    fresh = state(active="inactive", sub="dead", invocation="")
    for rank, own in ((0, HEAD), (0, LOADS), (1, WORKER)):
        seen = [TOKEN] if own is HEAD else []
        one = Rank(rank)
        assert (
            one.looks(0, own, state(active="active", invocation="aa", members={0: "aa", 1: "aa"}), *seen)
            == []
        )
        one.ways = {0: {"10.0.0.7"}, 1: {"10.0.0.8"}}
        for other in (fresh, AWAY):
            assert one.looks(3000, own, other, *seen) == []
        # One address that is the same is the same host, and a new start asks anew.
        one.ways = {0: {"10.0.0.1", "10.0.0.7"}, 1: {"10.0.0.8", "10.0.1.2"}}
        assert one.looks(3000, own, fresh) != []


def test_an_absence_does_not_outlast_a_time_in_which_nobody_could_be_asked() -> None:
    for rank, own in ((0, LOADS), (1, WORKER)):
        one = Rank(rank)
        assert one.looks(45, own, AWAY) == []
        before, one.ways = one.ways, {0: {"10.0.0.7"}, 1: {"10.0.0.8"}}
        assert one.looks(300, own, AWAY) == []
        one.ways = before
        assert one.looks(45, own, AWAY) == []
        for _ in range(20):
            one.look(own, {})  # no way to ask is known at all
            assert one.done == []


def test_only_the_start_that_was_looked_at_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    now = ["activating", "start-post", "aa"]

    def command(*words: str, seconds: float = 0) -> tuple[bool, str]:
        if words[:2] == ("systemctl", "show"):
            return True, "ActiveState={}\nSubState={}\nInvocationID={}\n".format(*now)
        done.append(" ".join(words))
        return True, ""

    monkeypatch.setattr(group, "command", command)
    monkeypatch.setattr(group, "RUN", tmp_path)
    for now[:] in (
        ["active", "running", "bb"],  # a new start, perhaps of a new group
        ["activating", "start-pre", "aa"],
        ["deactivating", "stop", "aa"],  # somebody stops it: open requests may end
        ["inactive", "dead", "aa"],
    ):
        watchdog.begin_anew("aa", "why")
    assert done == [] and not list(tmp_path.iterdir())
    now[:] = ["active", "running", "aa"]
    watchdog.begin_anew("aa", "rank 1 is gone")
    assert done == ["docker kill sparkstack-serve", f"systemctl try-restart --no-block {group.UNIT}"]
    assert group.read_line("anew") == "rank 1 is gone"


# ── Replicas ──


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        ("vllm serve m --data-parallel-size 2", 2),
        ("serve m --data-parallel-size=4 --port 8000", 4),
        ("serve m -dp 2", 2),
        ("serve m --data-parallel-size 1", 1),
        ("serve m --data-parallel-size", 1),
        ("serve m --data-parallel-size x", 1),
        ("serve m --data-parallel-size 2 --data-parallel-external-lb", 1),
        ("serve m --data-parallel-size 2 --data-parallel-hybrid-lb", 1),
        ("serve m --data-parallel-size=2 --data-parallel-rank=0", 1),
        ("", 1),
    ],
)
def test_how_many_replicas_there_are(argv: str, count: int) -> None:
    assert replicas_of(argv.split()) == count


def test_each_replica_is_asked_and_judged_by_itself() -> None:
    head = Rank()
    head.served = served(argv=("serve", "m", "--data-parallel-size", "2"))
    for seen in (TOKEN, TOKEN, TOKEN, NONE, NONE):
        assert head.look(HEAD, {1: WORKER}, seen) == []
    assert head.said[-1] == "missed a token from replica 1 (2 of 3): no answer in 1 s"
    assert head.look(HEAD, {1: WORKER}, NONE) == [True]
    assert head.asked == [0, 1, 0, 1, 1, 1]
    assert head.said[-1].startswith("starts the group anew: no token from replica 1 3 times in a row (no ")


def test_a_server_that_does_not_know_replicas_has_no_dead_ones() -> None:
    """What it answers to the number says nothing of an engine that gives tokens without it."""
    head, error = Rank(), Seen(Outcome.NONE, "HTTP 500 (list index out of range)", (5.0,))
    head.served = served(argv=("serve", "m", "-dp", "2"))
    for _ in range(9):
        assert head.look(HEAD, {1: WORKER}, error, TOKEN) == []
    assert head.asked == [0, None, 1, None, 0, None, *head.asked[6:]]
    assert head.said[-1] == "not checked: replica 0: HTTP 500 (list index out of range)"
    # And where nothing gives tokens, the engine is dead.
    head = Rank()
    head.served = served(argv=("serve", "m", "-dp", "2"))
    assert [len(head.look(HEAD, {1: WORKER}, error, error)) for _ in range(3)] == [0, 0, 1]


def test_a_replica_that_was_known_and_fails_is_dead() -> None:
    head, error = Rank(), Seen(Outcome.NONE, "HTTP 500 (gone)", (5.0,))
    head.served = served(argv=("serve", "m", "-dp", "2"))
    for seen in (TOKEN, TOKEN, TOKEN, error, error):
        assert head.look(HEAD, {1: WORKER}, seen) == []
    assert head.look(HEAD, {1: WORKER}, error) == [True]
    # Of another start, perhaps of another image, it is not known yet.
    again = state(active="active", invocation="h2", members={0: "h2", 1: "aa"}, members_release=RELEASE)
    head.look(again, {1: WORKER}, error, TOKEN)
    assert head.said[-1] == "not checked: replica 0: HTTP 500 (gone)"


def test_a_slow_replica_does_not_keep_the_others_from_being_asked() -> None:
    head = Rank()
    head.served = served(argv=("serve", "m", "-dp", "2"))
    works = [Seen(Outcome.NONE, "no answer", (float(count),)) for count in range(9)]
    for seen in (works[0], works[1], TOKEN, works[2], NONE, TOKEN, works[3], TOKEN):
        assert head.look(HEAD, {1: WORKER}, seen) == []
    assert head.asked == [0, 0, 1, 0, 1, 1, 0, 1]


PAGE = (
    'vllm:generation_tokens_total{engine="0",model_name="x,engine=\\"1\\""} 5\n'
    'vllm:generation_tokens_total{model_name="a",engine="1"} 2\n'
    'vllm:generation_tokens_total{engine="11",model_name="a"} 9\n'
)


def test_the_counters_of_one_replica() -> None:
    assert [(work_of(PAGE, replica) or (None,))[0] for replica in (0, 1, 11, 2, None)] == [5, 2, 9, 16, 16]


@pytest.mark.parametrize(
    ("fault", "outcome", "work"),
    [("", Outcome.TOKEN, None), ("hangs", Outcome.NONE, 2), ("error 500", Outcome.NONE, 2)],
)
def test_a_probe_of_one_replica(server: Server, fault: str, outcome: Outcome, work: float | None) -> None:
    server.fault, server.metrics = fault, [PAGE]
    about = {**vars(served()), "model": "tiny", "endpoint": server.url}
    seen = probe_engine.probe(group.Served(**about), 1, 1)
    assert (seen.outcome, server.replicas) == (outcome, ["1"])
    assert (seen.work and seen.work[0]) == work


def test_what_the_last_look_found_is_kept() -> None:
    """For `sparkstack status`: the verdict, how many were missed, and how long the last token took."""
    head = Rank()
    assert head.watch.last.word == "not checked"
    loading = state(active="activating", sub="start-post", invocation="hh", **MEMBERS)
    head.look(loading, {1: WORKER})
    assert head.watch.last == Last("loads")
    took = [0.5]
    ask = head.watch._probe

    def slowly(*words: Any) -> Seen:
        head.now += took[0]
        return ask(*words)

    head.watch._probe = slowly
    head.look(HEAD, {1: WORKER}, TOKEN)
    assert head.watch.last == Last("alive", "", 0, 3, 0.5)
    took[0] = 9.0
    head.look(HEAD, {1: WORKER}, NONE)
    assert head.watch.last == Last("missed", NONE.said, 1, 3, 0.5, True)
    head.look(HEAD, {1: WORKER}, Seen(Outcome.NONE, "no answer in 1 s", (6.0, 1.0, 1.0, 0.0)))
    assert head.watch.last == Last("slow", "no answer in 1 s", 0, 3, 0.5, True)
    head.look(HEAD, {1: WORKER}, Seen(Outcome.REFUSED, "HTTP 401"))
    assert head.watch.last == Last("not checked", "HTTP 401", 0, 3, 0.5)
    for _ in range(4):  # the counters moved before the first
        head.look(HEAD, {1: WORKER}, NONE)
    assert head.watch.last == Last("dead", NONE.said, 3, 3, 0.5, True) and head.done == [True]
    head.look(state(active="activating", sub="start-pre", invocation="h2"))
    assert head.watch.last == Last("waits", "the unit is activating")
    head.look(state(active="active", sub="running", invocation="h2", **MEMBERS), {}, NONE)
    assert head.watch.last == Last("missed", NONE.said, 1, 3, None, True)  # no token of this start yet
    for told in (False, True):
        head.look(HEAD, {}, Seen(Outcome.NONE, "no answer", None, Spent(1, 1) if told else None))
        assert head.watch.last.counters is told


def test_what_a_worker_s_last_look_found() -> None:
    worker = Rank(1)
    there = state(active="active", sub="running", invocation="hh", members={0: "hh", 1: "aa"})
    worker.look(WORKER, {0: there})
    assert worker.watch.last == Last("watches")
    worker.look(WORKER, {0: State(said="timed out")})
    worker.now = 30
    worker.look(WORKER, {0: State(said="timed out")})
    assert worker.watch.last == Last("gone", "rank 0 (spark-1) does not answer (timed out)")


@pytest.mark.parametrize("broken", ["watchdog.json", "release.json"])
def test_a_look_that_cannot_be_made_is_told_of_this_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """So that `sparkstack status` does not take it for the word of an earlier one."""
    folder, noted = release_json(tmp_path, rank=0), []
    (folder / "watchdog.json").write_text("{}")
    (folder / ("current/release.json" if broken == "release.json" else broken)).write_text("{")
    looks = iter(["code", "code", "other"])
    monkeypatch.setattr(watchdog, "_text", lambda path: next(looks))
    monkeypatch.setattr(group, "own_state", lambda config_dir: HEAD)
    monkeypatch.setattr(watchdog, "note", lambda last, own, *more: noted.append((last, own)))
    monkeypatch.setattr(watchdog.time, "sleep", lambda seconds: None)
    assert watchdog.main(folder) == 0
    ((last, own),) = noted
    assert (last.word, last.broken, own) == ("not checked", True, HEAD) and broken in last.said


# ── The probe ──


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ("", Outcome.TOKEN, ""),
        ("error 500", Outcome.NONE, "HTTP 500 (EngineCore failed)"),
        ("error 200", Outcome.NONE, "HTTP 200 without a token (engine is dead)"),
        ("error 400", Outcome.REFUSED, "HTTP 400"),
    ],
)
def test_what_a_probe_finds(server: Server, fault: str, outcome: Outcome, said: str) -> None:
    server.fault = fault
    about = served(port=server.server_address[1])
    seen = probe_engine.probe(
        group.Served(**{**vars(about), "model": "tiny", "endpoint": server.url, "priority": True}), 5
    )
    assert seen.outcome is outcome and seen.said.startswith(said)
    asked = server.requests[0]
    assert (asked["max_tokens"], asked["priority"]) == (1, probe_engine.LEAST_PRIORITY)


@contextmanager
def trickling(text: bytes) -> Iterator[str]:
    """A server that sends these bytes, and after them one more byte again and again, none of them late."""

    def answer(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            one.recv(65536)
            for byte in itertools.chain(text, itertools.repeat(ord("x"), 400)):
                one.sendall(bytes([byte]))
                time.sleep(0.02)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nX: ",  # its headers never end
        b"HTTP/1.1 200 OK\r\n\r\n",  # its body never ends
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    ],
)
def test_an_answer_that_trickles_is_none_in_time(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of a question has its limit, and not each byte of the answer."""
    monkeypatch.setattr(probe_engine, "METRICS_SECONDS", 0.3)
    monkeypatch.setattr(ready, "LEAST", 0.1)
    with trickling(text) as url:
        about = {**vars(served(world=2)), "model": "tiny", "endpoint": url}
        began = time.monotonic()
        seen = probe_engine.probe(group.Served(**about), 0.4)
        assert 0.7 <= time.monotonic() - began < 2
        assert (seen.outcome, seen.said, seen.work) == (Outcome.NONE, "no answer in 0 s", None)
        began = time.monotonic()
        with pytest.raises(JobError, match="no answer within"):
            probe_engine.serves(url, "tiny", None, 0.2)
        assert time.monotonic() - began < 3


def test_who_does_not_take_the_question_is_told_from_who_works_on_it(server: Server) -> None:
    """Only the second may be busy."""
    server.fault = "hangs"
    with pytest.raises(httpx.ReadTimeout):
        ask("POST", f"{server.url}/v1/completions", seconds=0.2, json={"model": "tiny"})
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        with pytest.raises(httpx.ConnectTimeout):
            ask("GET", f"http://127.0.0.1:{full.getsockname()[1]}", seconds=0.2)
        for other in others:
            other.close()
    with pytest.raises(httpx.ConnectError):
        ask("GET", "http://127.0.0.1:9", seconds=5)


def test_an_engine_that_refuses_a_priority_is_asked_without_it(server: Server) -> None:
    """A policy from elsewhere (a file of the image's) is not in its command."""
    server.fault, server.faults = "error 400", 1
    about = {**vars(served()), "model": "tiny", "endpoint": server.url, "priority": True}
    assert probe_engine.probe(group.Served(**about), 5).outcome is Outcome.TOKEN
    assert ["priority" in asked for asked in server.requests] == [True, False]


SLOT = {"id": 0, "id_task": 7, "is_processing": True, "n_ctx": 4096, "params": {"n_predict": -1}}


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        ([{**SLOT, "next_token": {"n_decoded": 5, "n_remain": 9}}], (5.0,)),
        ([{**SLOT, "next_token": [{"n_decoded": 5}], "n_prompt_tokens_processed": 3}], (3.0, 5.0)),
        ([{**SLOT, "n_past": 4}, {**SLOT, "n_past": 2}], (4.0, 2.0)),
        ([SLOT], None),
        ({"data": []}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_llama_cpps_slots_say(page: Any, counts: tuple[float, ...] | None) -> None:
    assert slots_of(page) == counts


@pytest.mark.parametrize(
    ("fault", "world", "slots", "metrics", "work", "spent"),
    [
        ("hangs", 1, None, [], None, True),
        ("hangs", 1, [{**SLOT, "n_past": 4}], [], (4.0,), True),
        ("hangs", 2, None, [], None, False),  # ranks spin while they wait for one another
        ("error 500", 1, None, [], None, False),  # an engine that fails at once is not busy
        ("hangs", 1, None, ["llamacpp:n_decode_total 3\n"], (*[0.0] * 7, 3.0, *[0.0] * 6), False),
        ("hangs", 2, None, ["atlas_decoded_tokens_total 3\n"], (*[0.0] * 10, 3.0, *[0.0] * 3), False),
        ("hangs", 2, None, ["atlas_requests_total 3\n"], None, False),  # the server counts them
        ("", 1, None, [], None, False),
    ],
)
def test_what_is_looked_at_where_there_are_no_counters(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    world: int,
    slots: list[Any] | None,
    metrics: list[str],
    work: tuple[float, ...] | None,
    spent: bool,
) -> None:
    monkeypatch.setattr(probe_engine, "spent_by", lambda name: Spent(1, 1))
    server.fault, server.slots, server.metrics = fault, slots, metrics
    about = {**vars(served(world=world)), "model": "tiny", "endpoint": server.url}
    seen = probe_engine.probe(group.Served(**about), 0.5)
    assert (seen.work, seen.spent is not None) == (work, spent)


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "seconds"),
    [
        ("0::/a/docker-1.scope\n", "a/docker-1.scope/cpu.stat", "usage_usec 2500000\nuser_usec 1\n", 2.5),
        ("3:cpu,cpuacct:/docker/1\n0::/x\n", "cpu,cpuacct/docker/1/cpuacct.usage", "1500000000\n", 1.5),
        ("0::/a\n", "a/other", "", None),
        ("nothing", "a/other", "", None),
    ],
)
def test_the_processor_time_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, file: str, text: str, seconds: float | None
) -> None:
    """By either version of control groups."""
    for path, words in ((tmp_path / "proc" / "77" / "cgroup", cgroup), (tmp_path / "groups" / file, text)):
        path.parent.mkdir(parents=True)
        path.write_text(words)
    monkeypatch.setattr(busy, "docker", lambda *words: CompletedProcess(words, 0, "77\n", ""))
    found = busy.spent_by("x", tmp_path / "proc", tmp_path / "groups")
    assert (found and found.seconds) == seconds
    monkeypatch.setattr(busy, "docker", lambda *words: CompletedProcess(words, 1, "", "no such container"))
    assert busy.spent_by("x", tmp_path / "proc", tmp_path / "groups") is None


def test_a_closed_port_is_no_token() -> None:
    assert probe_engine.probe(served(port=1), 5).outcome is Outcome.NONE


def test_the_key_is_read_and_never_shown(tmp_path: Path) -> None:
    seen = probe_engine.probe(served(port=1, api_key_file=tmp_path / "none"), 5)
    assert seen.outcome is Outcome.REFUSED and "no readable secret" in seen.said


def test_counters_are_summed_over_labels() -> None:
    page = (
        "# HELP vllm:generation_tokens_total x\n"
        'vllm:generation_tokens_total{engine="0",model_name="a b"} 5.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="a b"} 2.0\n'
        "vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 9\nbroken\n"
    )
    assert work_of(page) == (7.0, 0.0, 0.0, 0.5, *[0.0] * 10)
    assert work_of("llamacpp:n_decode_total 250\n") != work_of("llamacpp:n_decode_total 251\n")
    assert work_of("vllm:num_requests_waiting 9\n") is None
    odd = 'vllm:generation_tokens_total{model_name="a} \\"b\\" {c",engine="0"} 5.0\n'
    assert work_of(odd) == (5.0, *[0.0] * 13)
    # Of Atlas of any version, the entropy of the last token moves with every one.
    assert work_of("atlas_token_entropy_last 0.1\n") != work_of("atlas_token_entropy_last 0.2\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", None),
        ('{"misses": 0}', "misses"),
        ('{"interval_s": "a"}', "interval_s"),
        ('{"port_s": -1}', "port_s"),
        ('{"back_off_s": true}', "back_off_s"),
        ("", "JSON"),
        ("[" * 100_000, "JSON"),
        ("\0", "JSON"),
        (f'{{"away_s": {"9" * 400}}}', "away_s; wanted a number above zero, at most 1000000000"),
        (f'{{"away_s": {"9" * 5000}}}', "JSON"),
        ('{"interval_s": NaN}', "found nan for the plan's key interval_s"),
        ('{"interval_s": Infinity}', "found inf for"),
        ('{"interval_s": 1e999}', "found inf for"),
        ('{"interval_s": 1e300}', "interval_s"),
        ('{"interval_s": [' + "1," * 1000 + "1]}", "interval_s"),
        (None, r"watchdog\.json that cannot be read \(Is a directory\)"),
    ],
)
def test_limits(tmp_path: Path, text: str | None, said: str | None) -> None:
    """Whatever stands in the file: a start does without it, and the watchdog says that it cannot look."""
    path = tmp_path / "watchdog.json"
    path.mkdir() if text is None else path.write_text(text)
    if said is None:
        assert Limits.read(path) == Limits(15, 30, 4, 120, 3600, 60, 120, 60, 180, 300, 60)
        # What an older version wrote.
        path.write_text('{"away_s": 60, "busy_s": 9, "interval_s": 5, "misses": 3, "timeout_s": 30}')
        assert Limits.read(path) == Limits(5, 30, 3, 60, 9)
        path.write_text('{"head_stops_s": 90, "docker_s": 1, "port_s": 2, "memory_s": 3, "again_s": 4.5}')
        assert Limits.read(path) == Limits(head_stops=90, docker=1, port=2, memory=3, again=4.5)
    else:
        with pytest.raises(JobError, match=said) as raised:
            Limits.read(path)
        assert len(str(raised.value)) < 500


def test_a_rank_is_pinged_on_the_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def command(*words: str, seconds: float = 0) -> tuple[bool, str]:
        asked.extend(words)
        return False, ""

    monkeypatch.setattr(group, "command", command)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    config = tmp_path / "config"
    assert watchdog.pings(group.Peers(config), 0)  # nothing is known of it
    config.write_text(
        "# ours\nHost rank-0\n  HostName 192.168.96.10\n  Port 22\n"
        "Host rank-0-rail-2\n  HostName 192.168.97.10\n  Port 22\nHost *\n  User x\n"
    )
    assert not watchdog.pings(group.Peers(config), 0)
    assert watchdog.pings(group.Peers(config), 1)
    assert [word for word in asked if word[0].isdigit() and "." in word] == ["192.168.96.10", "192.168.97.10"]
    # Without a ping to send, silence is no sign.
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert watchdog.pings(group.Peers(config), 0)
