"""The watchdog of a rank: what serves is watched by tokens, and a broken group begins anew.

Restarting the head's unit is the only way in which a group is restarted: its pre-start brings the other ranks
along (onhost/prestart.py). The head's watchdog does that when a rank has left the group, when the host of one
is away while the engine loads, or when the engine gives no token and does nothing else either. A worker's
watchdog ends an engine whose head is gone, or runs no group with it, so that it waits for the next group
instead of holding memory in a dead one. A unit that somebody stopped, or that a deploy has stopped, is never
started from here.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from onhost import group
from onhost.files import write_atomic
from onhost.group import CONTAINER, UNIT, Peers, Served, State
from onhost.last_words import secrets_of, without_secrets
from onhost.limits import Limits
from onhost.plan import JobError
from onhost.probe_engine import LEAST_MISSES, Judge, Outcome, Seen, Verdict, probe, replicas_of

MARKER = ".sparkstack-onhost"
NOTE = "watchdog"
STOP_SECONDS = 30.0  # for Docker and systemd to end what is left of a head that stops (sparkstack/launch.py)
NEXT_SECONDS = 60.0  # for the questions to the other ranks, and for a host that is short of time


@dataclass(frozen=True)
class Last:
    """What the last look found, for `sparkstack status`. `word`: a Verdict's, or "watches" (a worker, whose
    head is there), "loads", "waits" (no engine was started), "gone" (a rank is away); `answer`: s that the
    last token of this start took."""

    word: str
    said: str = ""
    missed: int = 0
    misses: int = 0  # so many, and the group is started again
    answer: float | None = None
    counters: bool = False  # was there anything that tells a slow engine from a dead one?
    broken: bool = False  # the look could not be made: the watchdog's own files are at fault


class Watch:
    """One rank's watch over time; what it does to the host is given to it, so that a test can play it."""

    def __init__(
        self,
        *,
        probe: Callable[[Served, float, int | None], Seen],
        begin_anew: Callable[[str, str], None],
        pings: Callable[[int], bool],
        ways: Callable[[int], Collection[str]],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe, self._begin_anew, self._pings, self._ways = probe, begin_anew, pings, ways
        self._say_line, self._clock = say, clock
        self._said = ""
        self._judges: dict[int, Judge] = {}  # one a replica
        self._replica = 0  # whose turn it is
        self._answered: set[int] = set()  # replicas that gave a token when they were asked by number
        self._start = ""  # the start of the engine that the judges have seen
        self._places: dict[int, frozenset[str]] = {}  # where each rank was asked at first in this start
        self._gone: dict[int, float] = {}  # since when a rank has been found gone, at each look
        self.last = Last(Verdict.NOT_CHECKED.value)
        self._answer: float | None = None

    def look(self, served: Served, own: State, others: dict[int, State], limits: Limits) -> None:
        """One look at a rank's own state and what the others said."""
        if own.invocation != self._start:
            self.forget()
            self._start, self._places, self._answer = own.invocation, {}, None
        if not _computes(own):
            self.forget()
            self.last = Last("waits", f"the unit is {own.active}")
            return
        loads = served.rank == 0 and own.active != "active"
        self.last = Last("loads" if loads else "watches", answer=self._answer)
        others = {rank: state for rank, state in others.items() if self._same_host(rank)}
        self._gone = {rank: since for rank, since in self._gone.items() if rank in others}
        if served.rank > 0:
            self._look_at_head(served, own, others.get(0), limits)
        elif not self._look_at_workers(served, own, others, limits) and own.active == "active":
            self._look_at_engine(served, limits)

    def forget(self) -> None:
        """Nothing that was seen before counts: not of another start, nor where a look could not be made."""
        self._judges.clear()
        self._answered.clear()
        self._gone.clear()

    def _same_host(self, rank: int) -> bool:
        """Is a rank asked where it was at the first look at this start? A deploy that changes which host is
        which rank changes the addresses long before it stops what serves: others would answer."""
        now = frozenset(self._ways(rank))
        before = self._places.setdefault(rank, now)
        return now == before or bool(now & before)

    def _look_at_workers(self, served: Served, own: State, others: dict[int, State], limits: Limits) -> bool:
        """Does the head's group begin anew for one of them?"""
        formed = own.members_release == served.release and own.members.get(0) == own.invocation
        for rank, state in others.items() if formed else ():
            if rank not in own.members:
                continue
            if why := group.lost(state, own.members[rank]):
                self._restart(f"{served.name(rank)} {why}")
                return True
            # Of an engine that has served, tokens tell whether all of its ranks are there.
            loads = own.active != "active"
            if loads and self._for_long(served, rank, self._silence(rank, state), limits.away):
                return True
        return False

    def _look_at_engine(self, served: Served, limits: Limits) -> None:
        replicas = replicas_of(served.argv)
        replica = self._replica % replicas
        judge = self._judges.setdefault(replica, Judge())
        several = replicas > 1
        began = self._clock()
        seen = self._ask(served, limits, replica) if several else self._probe(served, limits.timeout, None)
        if seen.outcome is Outcome.TOKEN:
            self._answer = self._clock() - began
        verdict = judge.see(seen, limits.misses, limits.busy)
        misses = max(limits.misses, LEAST_MISSES)
        counters = seen.work is not None or seen.spent is not None
        self.last = Last(verdict.value, seen.said, judge.missed, misses, self._answer, counters)
        # One that missed is asked again first, so that a dead one is found as soon as an engine alone.
        self._replica = replica if verdict is Verdict.MISSED else replica + 1
        whose = f" from replica {replica}" if several else ""
        if verdict is Verdict.DEAD:
            why = f"no token{whose} {judge.missed} times in a row ({seen.said}), and no counter moved"
            self._judges.clear()
            self._restart(why)
        elif verdict is Verdict.ALIVE:
            self._say("tokens come", quiet=not self._said)
        elif verdict is Verdict.MISSED:
            self._say(f"missed a token{whose} ({judge.missed} of {misses}): {seen.said}")
        elif verdict is Verdict.SLOW:
            self._say(f"the engine is slow: it works, and a token{whose} takes longer than the limit")
        else:
            self._say(f"not checked: {seen.said}")

    def _ask(self, served: Served, limits: Limits, replica: int) -> Seen:
        """A probe of one replica. One that never gave a token by its number, of a server that answers, may be
        there and the server not know how to reach it so."""
        seen = self._probe(served, limits.timeout, replica)
        if seen.outcome is Outcome.TOKEN:
            self._answered.add(replica)
        elif replica not in self._answered and seen.said.startswith("HTTP"):
            plain = self._probe(served, limits.timeout, None)
            if plain.outcome is Outcome.TOKEN:
                return Seen(Outcome.REFUSED, f"replica {replica}: {seen.said}")
            # What it did is told by its own counters, as in every other look at it.
            return replace(plain, work=seen.work, spent=seen.spent)
        return seen

    def _look_at_head(self, served: Served, own: State, head: State | None, limits: Limits) -> None:
        if head is None:
            return
        if head.answered:
            # A deploy writes its limit before it stops a release that may take longer by its own.
            own_stop = group.stops_within(served.argv) + STOP_SECONDS
            away = max(limits.away, limits.head_stops, own_stop)
            self._for_long(served, 0, group.apart(head, own.invocation), away)
        else:
            self._for_long(served, 0, self._silence(0, head), limits.away)

    def _silence(self, rank: int, state: State) -> str | None:
        """What is said of a rank whose host is away. Its sshd may be gone while it serves: a host that
        answers a ping is there."""
        return None if state.answered or self._pings(rank) else f"does not answer ({state.said})"

    def _for_long(self, served: Served, rank: int, why: str | None, away: float) -> bool:
        """Begin anew where a rank has been gone at each look for `away` s; `why`: what it is now, None where
        it is not gone."""
        if why is None:
            self._gone.pop(rank, None)
            return False
        now = self._clock()
        if rank not in self._gone:
            self._gone[rank] = now
            self._say(f"{served.name(rank)} {why}")
        self.last = Last("gone", f"{served.name(rank)} {why}", answer=self._answer)
        if (seconds := now - self._gone[rank]) < away:
            return False
        self._gone.clear()
        self._restart(f"{served.name(rank)} is gone for {seconds:.0f} s: it {why}")
        return True

    def _restart(self, why: str) -> None:
        self._say(f"starts the group anew: {why}")
        if self.last.word != Verdict.DEAD.value:
            self.last = Last("gone", why, answer=self._answer)
        self._said = "started anew"  # so that the next token is told, and the same reason once more
        self._begin_anew(self._start, why)

    def _say(self, line: str, quiet: bool = False) -> None:
        if line != self._said and not quiet:
            self._say_line(line)
        self._said = line


def _computes(own: State) -> bool:
    """Has this rank's engine been started, so that it may be dead?"""
    return own.active == "active" or (own.active == "activating" and own.sub in ("start", "start-post"))


def begin_anew(invocation: str, why: str) -> None:
    """Start this host's unit anew where it still runs that start, and note why. The engine is killed: in a
    broken group no request can end, and one that hangs would not stop by asking.

    Nothing happens where the unit stops at this moment, or began anew since it was looked at: somebody else
    is at work.
    """
    now = group.read_state(group.command("systemctl", "show", "-p", group.PROPERTIES, UNIT)[1])
    if now.invocation != invocation or not _computes(now):
        return
    # Before the kill, so that who looks why the engine ended does not take it for the kernel's.
    with contextlib.suppress(OSError):
        group.write_line("anew", why)
    group.command("docker", "kill", CONTAINER)
    group.command("systemctl", "try-restart", "--no-block", UNIT)


def pings(peers: Peers, rank: int) -> bool:
    """Does a rank's host answer on the fabric, at any of its addresses? True where that cannot be asked."""
    ways = peers.ways(rank)
    if not ways or shutil.which("ping") is None:
        return True
    return any(group.command("ping", "-c", "1", "-W", "2", way, seconds=5)[0] for way in ways)


def note(last: Last, own: State, limits: Limits, secrets: Sequence[str] = ()) -> None:
    """Put what the last look found where `sparkstack status` reads it; everybody on this host may."""
    found = {
        "format": 1,
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "at_s": round(time.monotonic(), 3),
        # Until then another look has been made, or the watchdog hangs.
        "next_within_s": limits.interval + 4 * limits.timeout + NEXT_SECONDS,
        "invocation": own.invocation,
        "verdict": last.word,
        "said": without_secrets(" ".join(last.said.split()), secrets),
        "missed": last.missed,
        "misses": last.misses,
        "answer_s": None if last.answer is None else round(last.answer, 3),
        "counters": last.counters,
        "broken": last.broken,
    }
    # A disk that is full is told by others.
    with contextlib.suppress(OSError):
        group.RUN.mkdir(mode=0o755, exist_ok=True)
        write_atomic(group.RUN / NOTE, (json.dumps(found) + "\n").encode())


def main(config_dir: Path) -> int:
    """The command: runs until its own code is replaced; systemd starts it again with the new one."""
    marker = Path(sys.prefix) / MARKER
    code = _text(marker)
    broken = ""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    peers = Peers(
        config_dir / "ssh" / "config",
        lambda rank, words: say(f"rank {rank}: {words}"),
        group.RUN / "ssh",
    )
    watch = Watch(
        probe=probe,
        begin_anew=begin_anew,
        pings=lambda rank: pings(peers, rank),
        ways=peers.ways,
        say=say,
    )
    while _text(marker) == code:
        # First, so that a look that cannot be made is told of this start.
        limits, own, last = Limits(), group.own_state(config_dir), None
        secrets: list[str] = []
        try:
            limits = Limits.read(config_dir / "watchdog.json")
            served = group.read_release(config_dir)
            secrets = secrets_of(served)
            asked = (served.workers if served.rank == 0 else range(1)) if served.world > 1 else range(0)
            others = peers.states(asked) if peers.known and _computes(own) else {}
            watch.look(served, own, others, limits)
            broken, last = "", watch.last
        except JobError as error:
            watch.forget()
            if str(error) != broken:
                broken = str(error)
                say(f"not checked: {broken}")
        note(last or Last(Verdict.NOT_CHECKED.value, broken, broken=True), own, limits, secrets)
        time.sleep(limits.interval)
    say("the package onhost was replaced")
    return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
