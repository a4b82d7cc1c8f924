"""One run at a time: the words that hold the lock, by the real shell, and what the second run is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import alone
from tasks.site import Site, SiteError

Sites = Callable[..., list[Site]]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(alone, "LOCK", str(tmp_path / "run" / "run.lock"))
    monkeypatch.setattr(alone, "WAIT_SECONDS", 0)
    monkeypatch.setattr(alone, "_kept", [])


@contextmanager
def run(who: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["bash", "-c", alone.script(who)]
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

    def exec_command(command: str, timeout: float) -> tuple[Any, Any, Any]:
        asked.append(command)
        said = SimpleNamespace(readline=lambda: f"{alone.TAKEN} ann\n", read=lambda: "")
        return SimpleNamespace(), said, said

    for host in (head, worker):
        host.connected, host.state = True, SimpleNamespace()
        host.connector = SimpleNamespace(client=SimpleNamespace(exec_command=exec_command))
        host.connector_data, host.data._sudo = {}, False
    monkeypatch.setattr(alone, "inventory", [head, worker])
    monkeypatch.setattr("sys.argv", ["pyinfra", "x", "deploy.py", "--dry"])
    alone.ensure(head)
    monkeypatch.setattr("sys.argv", ["pyinfra", "x", "deploy.py"])
    alone.ensure(worker)
    assert asked == []
    with pytest.raises(SiteError, match=r"^spark-1: found another run at work \(ann\); wanted one at a time"):
        alone.ensure(head)
    # Where the run leaves the head out, its first host has the lock.
    head.connected = False
    with pytest.raises(SiteError, match=r"^spark-2: found another run"):
        alone.ensure(worker)
