"""One run at a time: the words that hold the lock, by the real shell, and what the second run is told."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from tasks import alone
from tasks.site import Site, SiteError

Sites = Callable[..., list[Site]]
BEAT = alone._beat


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(alone, "LOCK", str(tmp_path / "run" / "run.lock"))
    monkeypatch.setattr(alone, "WAIT_SECONDS", 0)
    monkeypatch.setattr(alone, "_kept", [])


@contextmanager
def run(who: str, again: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["bash", "-c", alone.script(who, again)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()


def test_the_second_is_told_who_is_first_and_comes_in_after_its_end() -> None:
    with run("ann on desk, pid 7; $(x) 'y'") as (_, said):
        assert alone.refusal("spark-1", said) is None
        with run("bob") as (second, told):
            assert str(alone.refusal("spark-1", told)) == (
                "spark-1: found another run at work (ann on desk, pid 7; $(x) 'y'); wanted one at a time; "
                "wait for its end, then run again"
            )
            assert second.wait() == 3
    with run("bob") as (_, said):
        assert alone.refusal("spark-1", said) is None


def test_a_lock_is_answered_and_taken_again_by_who_had_it_last() -> None:
    with run("ann, pid 7") as (first, _):
        assert first.stdin and first.stdout
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "\n"
    with run("ann, pid 7", again=True) as (_, said):
        assert alone.loss("spark-1", said) is None
        with run("bob, pid 8", again=True) as (_, told):
            assert told == f"{alone.TAKEN} ann, pid 7\n"
    # A process whose connection hangs is ended by who had it; of another run's it is none of ours.
    with run("ann, pid 7", again=True) as (first, _), run("ann, pid 7", again=True) as (_, said):
        assert said == f"{alone.HELD}\n" and first.wait() != 0
        with run("ann, pid 9", again=True) as (_, told):
            assert told == f"{alone.TAKEN} ann, pid 7\n"
    with run("bob, pid 8"):
        pass
    with run("ann, pid 7", again=True) as (_, told):
        assert str(alone.loss("spark-1", told)) == (
            "spark-1: found that this run lost its lock, and since then: bob, pid 8; wanted to be the only "
            "run from beginning to end; this machine slept, or its network was away; nothing more was "
            "changed; run again"
        )
    Path(alone.LOCK).unlink()
    with run("ann, pid 7", again=True) as (_, told):
        assert "since then: nobody's name: the host was started anew;" in str(alone.loss("spark-1", told))
    assert "gets no other (no answer)" in str(alone.loss("spark-1", ""))


class Stream:
    """The run's end of a lock's connection, by which nothing comes."""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def slept(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> alone.Held:
    """A run that executes, whose machine sleeps for five minutes just now."""
    host = sites(1)[0].host
    host.connected, host.state = True, SimpleNamespace(is_executing=True)
    streams = (Stream(), Stream(), Stream())
    held = alone.Held(host, "ann", streams, None, 1000.0)
    monkeypatch.setattr(alone, "_kept", [held])
    monkeypatch.setattr(alone, "_clock", lambda: 1300.0)
    monkeypatch.setattr(alone, "_beat", lambda *words: None)
    return held


def executed(held: alone.Held) -> list[str]:
    """The commands that an operation of two commands runs, in a greenlet as pyinfra has it."""
    ran: list[str] = []

    def operation() -> None:
        alone._Events.operation_host_start(None, held.head, "x")
        for command in ("one", "two"):
            alone._guarded(held.head, ran.append, command)

    gevent.spawn(operation).get()
    return ran


def test_a_run_that_slept_goes_on_where_nobody_came_in_between(
    slept: alone.Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def take(head: Any, text: str) -> Any:
        asked.append(text)
        return (Stream(), Stream(), Stream()), None, alone.HELD

    monkeypatch.setattr(alone, "_take", take)
    before = slept.streams
    assert executed(slept) == ["one", "two"]
    assert asked == [alone.script("ann", again=True)] and before[0].closed and slept.heard == 1300.0
    alone._Events.operation_start(None, "x")
    alone._Events.operation_end(None, "x")
    assert len(asked) == 1


def test_a_run_that_has_the_lock_looks_before_each_command(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = sites(1)[0].host
    events: list[Any] = []
    ran: list[str] = []
    head.connected, head.run_shell_command, head.put_file = True, ran.append, ran.append
    head.state = SimpleNamespace(is_executing=True, add_callback_handler=events.append)
    streams = (Stream(), Stream(), Stream())
    monkeypatch.setattr(alone, "inventory", [head])
    monkeypatch.setattr(alone, "_beat", lambda *words: None)
    monkeypatch.setattr(alone, "_take", lambda head, text: (streams, None, f"{alone.HELD}\n"))
    monkeypatch.setattr("sys.argv", ["pyinfra", "x", "deploy.py"])
    alone.ensure(head)
    alone.ensure(head)  # deploy code runs once a host
    (held,) = alone._kept
    assert held.head is head and not held.doubtful and len(events) == 1
    monkeypatch.setattr(alone, "_take", lambda head, text: (streams, None, f"{alone.TAKEN} bob"))

    def operation() -> None:
        events[0].operation_host_start(None, head, "x")
        head.run_shell_command("one")
        held.ended = True
        head.put_file("two")
        ran.append("three")

    gevent.spawn(operation).get()
    assert ran == ["one"] and "since then: bob" in held.lost


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (f"{alone.TAKEN} bob", "found that this run lost its lock, and since then: bob; wanted to be"),
        (OSError("Socket is closed"), "gets no other (Socket is closed); wanted"),
        (AttributeError("no open_session"), "gets no other (no open_session); wanted"),
    ],
)
def test_a_run_that_lost_its_lock_changes_nothing_more(
    slept: alone.Held, answer: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(head: Any, text: str) -> Any:
        if isinstance(answer, str):
            return (Stream(), Stream(), Stream()), None, answer
        raise answer

    told: list[str] = []
    monkeypatch.setattr(alone, "_take", take)
    monkeypatch.setattr(alone.report, "note_failure", lambda host, line: told.append(line))
    assert executed(slept) == []
    for event in (alone._Events.operation_start, alone._Events.operation_end):
        with pytest.raises(SiteError, match=re.escape(line)):
            event(None, "x")
    assert len(told) == 1  # the report has it once
    assert executed(slept) == []


def test_what_does_not_look_for_the_lock(slept: alone.Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only asks, with a limit of its own; and all while the head is away: its network is tried."""
    monkeypatch.setattr(alone, "_take", None)
    ran: list[str] = []
    alone._guarded(slept.head, ran.append, "asked")
    slept.head.connected = False
    assert ran + executed(slept) == ["asked", "one", "two"]
    slept.head.connected, slept.heard = True, 1260.0  # heard 40 s ago
    assert executed(slept) == ["one", "two"]


def test_a_lock_whose_process_ended_is_looked_for_at_once(slept: alone.Held) -> None:
    slept.heard = 1300.0
    assert not slept.doubtful
    slept.streams[1].channel = SimpleNamespace(closed=True)
    assert slept.doubtful
    slept.streams[1].channel.closed, slept.process = False, SimpleNamespace(poll=lambda: 0)
    assert slept.doubtful


def test_a_beat_without_an_answer_ends_the_lock(
    slept: alone.Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "BEAT_SECONDS", 0)
    said = ["\n", "\n", ""]
    stdin = SimpleNamespace(write=lambda text: None, flush=lambda: None)
    stdout = SimpleNamespace(readline=lambda: said.pop(0))
    slept.streams = (stdin, stdout, Stream())
    BEAT(slept, slept.streams)
    assert slept.ended and slept.heard == 1300.0 and said == []


def test_a_lock_that_cannot_be_had_is_a_line() -> None:
    found = str(alone.refusal("spark-1", "bash: flock: command\nnot found"))
    assert found.startswith("spark-1: found no lock for this run (bash: flock: command not found); wanted ")
    assert "(no answer)" in str(alone.refusal("spark-1", ""))


def test_who_has_no_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller in a container whose user is in no passwd."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(alone.getpass, "getuser", nobody)
    assert alone._me() == f"uid {alone.os.getuid()}"


def test_the_heads_place_takes_it_and_a_dry_run_does_not(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, worker = (site.host for site in sites(2))
    asked: list[str] = []

    said = SimpleNamespace(readline=lambda: f"{alone.TAKEN} ann\n", read=lambda: "")
    # No makefile_stdin: what that makes writes a traceback where Python ends before it does.
    channel = SimpleNamespace(
        settimeout=lambda seconds: None,
        exec_command=asked.append,
        makefile=lambda mode: said,
        makefile_stderr=lambda mode: said,
    )
    transport = SimpleNamespace(open_session=lambda timeout: channel)

    for host in (head, worker):
        host.connected, host.state = True, SimpleNamespace()
        host.connector = SimpleNamespace(client=SimpleNamespace(get_transport=lambda: transport))
        host.connector_data, host.data._sudo = {}, False
    monkeypatch.setattr(alone, "inventory", [head, worker])
    monkeypatch.setattr("sys.argv", ["pyinfra", "x", "deploy.py", "--dry"])
    alone.ensure(head)
    monkeypatch.setattr("sys.argv", ["pyinfra", "x", "deploy.py"])
    alone.ensure(worker)
    assert asked == []
    with pytest.raises(SiteError, match=r"^spark-1: found another run at work \(ann\); wanted one at a time"):
        alone.ensure(head)
    with pytest.raises(SiteError):
        alone.ensure(head, "bench.py")
    assert " with bench.py, pid " in asked[-1] and " with " not in asked[-2]
    # Where the run leaves the head out, its first host has the lock.
    head.connected = False
    with pytest.raises(SiteError, match=r"^spark-2: found another run"):
        alone.ensure(worker)
