"""The watchdog: slow is not dead, a rank that left is seen, and what is stopped stays stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from fake_openai import Server, serving
from test_onhost_group import RELEASE, served, state

from onhost import busy, group, probe_engine, watchdog
from onhost.busy import Spent, slots_of
from onhost.group import State
from onhost.plan import JobError
from onhost.probe_engine import Judge, Outcome, Seen, Verdict, work_of
from onhost.watchdog import Limits, Watch

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
        self.pings = False
        self.now = 0.0
        self.watch = Watch(
            probe=lambda served, timeout: self.seen.pop(0),
            begin_anew=lambda: self.done.append(True),
            pings=lambda: self.pings,
            say=self.said.append,
            clock=lambda: self.now,
        )

    def look(self, own: State, others: dict[int, State] | None = None, *seen: Seen) -> list[bool]:
        self.seen = list(seen)
        self.watch.look(self.served, own, {} if others is None else others, LIMITS)
        assert self.seen == [], "a probe that should have been made"
        return self.done


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
    worker.now = 159
    assert worker.look(WORKER, {0: State(said="timed out")}) == []
    worker.now = 161
    assert worker.look(WORKER, {0: State(said="timed out")}) == [True]
    assert worker.said[-1] == "starts the group anew: rank 0 (spark-1) is away for 61 s (timed out)"


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
        ("hangs", 1, None, ["llamacpp:n_decode_total 3\n"], (*[0.0] * 7, 3.0, 0.0, 0.0), False),
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
    seen = probe_engine.probe(group.Served(**about), 0.1)
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
    assert work_of(page) == (7.0, 0.0, 0.0, 0.5, *[0.0] * 6)
    assert work_of("llamacpp:n_decode_total 250\n") != work_of("llamacpp:n_decode_total 251\n")
    assert work_of("vllm:num_requests_waiting 9\n") is None
    odd = 'vllm:generation_tokens_total{model_name="a} \\"b\\" {c",engine="0"} 5.0\n'
    assert work_of(odd) == (5.0, *[0.0] * 9)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", None), ('{"misses": 0}', "misses"), ('{"interval_s": "a"}', "interval_s"), ("", "JSON")],
)
def test_limits(tmp_path: Path, text: str, said: str | None) -> None:
    path = tmp_path / "watchdog.json"
    path.write_text(text)
    if said is None:
        assert Limits.read(path) == Limits(15, 30, 4, 120, 3600)
    else:
        with pytest.raises(JobError, match=said):
            Limits.read(path)


def test_the_head_is_pinged_on_the_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def command(*words: str, seconds: float = 0) -> tuple[bool, str]:
        asked.extend(words)
        return False, ""

    monkeypatch.setattr(group, "command", command)
    config = tmp_path / "config"
    assert watchdog.head_pings(group.Peers(config))  # nothing is known of it
    config.write_text(
        "# ours\nHost rank-0\n  HostName 192.168.96.10\n  Port 22\n"
        "Host rank-0-rail-2\n  HostName 192.168.97.10\n  Port 22\nHost *\n  User x\n"
    )
    assert not watchdog.head_pings(group.Peers(config))
    assert [word for word in asked if word[0].isdigit() and "." in word] == ["192.168.96.10", "192.168.97.10"]
