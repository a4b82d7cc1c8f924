"""`status.py`: who is asked, again and again, and what comes of a host that does not answer at first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_host import FakeHost
from gevent import sleep as pause

from sparkstack.errors import Problem
from tasks import status

URL = "http://127.0.0.1:2"
SAID = json.dumps({
    "release": {
        "release": "r1", "recipe": "x", "rank": 0, "model": "m",
        "endpoint": "http://127.0.0.1:8000", "bind": "0.0.0.0",
    },
    "unit": {"ActiveState": "active"},
    "endpoint": {"health": 200, "said": "", "readings": []},
})  # fmt: skip
OTHER = SAID.replace('"rank": 0', '"rank": 1')


class Enough(BaseException):
    """Ctrl-C."""


class Watch:
    """`rounds` is what changes between one look and the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.slept = capsys, 0.0
        self.rounds: Iterator[Callable[[], None]] = iter(())
        monkeypatch.setattr(status.gevent, "sleep", self.sleep)
        monkeypatch.setattr(status.access, "problem", lambda one: None)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        try:
            change = next(self.rounds)
        except StopIteration:
            raise Enough from None
        change()

    def __call__(self, hosts: list[FakeHost], *rounds: Callable[[], None]) -> list[dict[str, Any]]:
        self.rounds = iter(rounds)
        with pytest.raises(Enough):
            status.nobody_answers(hosts)
        return self.documents()

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Watch:
    return Watch(monkeypatch, capsys)


def off(name: str, said: Any = SAID, **data: Any) -> FakeHost:
    """A host that is not reached until its `connect` is that of every fake host again."""
    one = FakeHost(name, answers={"ask status": said}, _sudo=False, ssh_hostname="192.0.2.1", **data)
    one.connected = False
    one.connect = lambda **how: None  # type: ignore[method-assign]
    return one


def on(one: FakeHost) -> Callable[[], None]:
    return lambda: setattr(one, "connect", lambda **how: setattr(one, "connected", True))


def states(documents: list[dict[str, Any]]) -> list[str]:
    return [" ".join(row["state"] for row in found["hosts"]) for found in documents]


def test_once_where_nobody_answers(watch: Watch) -> None:
    assert status.nobody_answers([off("a"), off("b")]) == 1
    (found,) = watch.documents()
    assert (found["ok"], found["endpoint"], states([found])) == (False, None, ["down down"])
    assert found["problems"][0] == "a: found no connection; wanted an answer; check power, cable and ssh"


def test_the_endpoint_is_read_where_nobody_answers(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"url": URL, "health": 200, "said": "", "readings": []}
    monkeypatch.setattr(status, "_read", lambda url: good | {"url": url})
    assert status.nobody_answers([off("a", status_endpoint=f"{URL}/")]) == 1  # a host is down all the same
    (found,) = watch.documents()
    assert (found["endpoint"]["url"], found["endpoint"]["answers"], found["ok"]) == (URL, True, False)
    monkeypatch.undo()
    assert status.nobody_answers([off("a", status_endpoint=URL)]) == 1
    (found,) = watch.documents()
    assert found["endpoint"]["answers"] is False
    assert found["problems"][1].startswith(f"{URL}: found no answer (")


def test_a_watch_with_nobody_at_first_sees_who_comes(watch: Watch) -> None:
    head, rank = off("a", status_interval=3.0), off("b", OTHER, status_interval=3.0)
    found = watch([head, rank], lambda: None, on(rank), on(head), lambda: None)
    # A host is connected between two looks, so it is seen in the one after that.
    assert states(found) == ["down down", "down down", "down down", "down serves", "serves serves"]
    assert [one["ok"] for one in found] == [False] * 4 + [True]
    assert found[-1]["endpoint"]["url"] == "http://192.0.2.1:8000"  # where it listens on all interfaces
    assert 5 * 2.9 < watch.slept <= 5 * 3.0


def test_a_watch_goes_on_through_a_reboot(watch: Watch) -> None:
    """The only host is there, breaks off in several ways, is away, and comes back."""
    said = [SAID, EOFError(), AttributeError("no open_session"), (False, ""), "half a li", SAID]
    head = off("a", said, status_interval=3.0)
    head.connected = True
    on(head)()
    found = watch([head], *[lambda: None] * 5)
    assert states(found) == ["serves", "down", "down", "down", "down", "serves"]
    assert [one["hosts"][0]["problem"].split("; ")[0] for one in found[1:4]] == [
        "a: found no answer (EOFError)", "a: found no answer (no open_session)", "a: found no answer",
    ]  # fmt: skip


def test_hosts_that_are_away_are_tried_side_by_side(watch: Watch) -> None:
    begun: list[str] = []
    met: list[bool] = []
    hosts = [off(name, status_interval=3.0) for name in "abc"]

    def connect(one: FakeHost) -> None:
        begun.append(one.name)
        pause(0)  # the others' turn
        met.append(len(begun) == 3)

    for one in hosts:
        one.connect = lambda one=one, **how: connect(one)  # type: ignore[method-assign,misc]
    watch(hosts)
    assert met == [True] * 3


def test_root_rights_are_looked_at_when_a_host_comes_and_once(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def problem(one: FakeHost) -> Problem | None:
        asked.append(one.name)
        if len(asked) == 1:
            raise EOFError
        found = {"a": "no answer", "b": "none"}.get(one.name)
        return Problem(f"{one.name}: sudo", found, "x", "y") if found else None

    monkeypatch.setattr(status.access, "problem", problem)
    hosts = [off(name, SAID, status_interval=3.0) for name in "abc"]
    for one in hosts[1:]:
        on(one)()
    on(hosts[0])()
    hosts[0].answers["ask status"] = [(False, ""), SAID]
    found = watch(hosts, lambda: None, lambda: None)
    assert states(found) == ["down down down", "down down serves", "serves down serves"]
    assert found[2]["hosts"][1]["problem"].startswith("b: found none (b: sudo); wanted")
    # Of the rights of "a" the first two tries told nothing.
    assert sorted(asked) == ["a", "a", "b", "c"]
    assert not hosts[1].heard  # without rights it is not asked


def test_the_end_of_a_dead_connection_holds_nothing_up(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyinfra removes the password helper over the connection, which a host that is away never answers."""
    monkeypatch.setattr(status, "END_SECONDS", 0.01)
    one = off("a", status_interval=3.0)
    one.connector_data = {"sudo_askpass_path__/tmp": "/tmp/askpass", "other": 1}
    one.disconnect = lambda: pause(60)  # type: ignore[method-assign]
    found = watch([one], on(one), lambda: None)
    assert states(found)[-1] == "serves" and one.connector_data == {"other": 1}
