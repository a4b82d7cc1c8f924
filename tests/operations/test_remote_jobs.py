"""Jobs of a host are started or joined, followed, and end with a line that says what was wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_host import FakeHost
from paramiko import SSHException
from pyinfra.connectors.util import CommandOutput

from tasks import remote

JOB = "sparkstack-image-abc"
PLAN = {"job": JOB, "kind": "image", "jobs_dir": "/var/lib/sparkstack/jobs"}
LOOK, SCRIPT = "look at job", "look at script"
STEP = '{"t": 1, "stage": "build", "done": 2, "total": 5, "unit": "steps", "note": "RUN pip"}'


def start(host: FakeHost) -> bool:
    return remote.start_and_follow(None, host, PLAN, f"/var/lib/sparkstack/plans/{JOB}.json")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(remote.progress, "update", lambda *step: seen.append(step))
    return seen


def test_job_ends_well(steps: list[tuple[Any, ...]]) -> None:
    end = f'{STEP}\n\ninactive\n{{\n "ok": true,\n "seconds": 3\n}}'
    half_written = '{"t": 1, "sta\n\nactive'
    host = FakeHost("spark-1", answers={LOOK: ["active", f"{STEP}\n\nactive", half_written, end]})
    assert start(host)
    assert host.shown == []
    assert steps[0] == ("spark-1 image", "build", 2, 5, "steps", "RUN pip")
    assert host.kinds() == ["begin job", LOOK]
    assert f"systemd-run --quiet --collect --unit={JOB} " in host.heard[0]
    assert f"-m onhost job /var/lib/sparkstack/plans/{JOB}.json" in host.heard[0]


def test_job_ends_with_an_error() -> None:
    error = "found 3 GB free; wanted 40 GB; free some of it"
    end = "failed\n" + json.dumps({"ok": False, "seconds": 1, "error": error})
    host = FakeHost("spark-1", answers={LOOK: ["active", end]})
    assert not start(host)
    assert host.shown == [f"{JOB}: {error}"]


@pytest.mark.parametrize(("answer", "count"), [('{"ok": false}', 1), ('{"ok": true}', 0), ("", 0)])
def test_who_wants_to_know_hears_of_a_job_that_failed(answer: str, count: int) -> None:
    # Not of one whose host stopped answering, or that was killed: that says nothing of what it did.
    heard: list[Any] = []
    host = FakeHost("spark-1", answers={LOOK: f"failed\n{answer}", "journal of job": "Killed"})
    good = remote.start_and_follow(None, host, PLAN, "/plan.json", heard.append)
    assert (good, heard) == ("true" in answer, [host] * count)


def test_job_dies_without_a_result() -> None:
    answers = {LOOK: ["active", "failed"], "journal of job": "Starting\nKilled\nMain process exited"}
    host = FakeHost("spark-1", answers=answers)
    assert not start(host)
    assert host.shown == [
        f"{JOB}: ended without a result; its journal says: Starting / Killed / Main process exited"
    ]


def test_result_that_comes_a_moment_after_the_end() -> None:
    host = FakeHost("spark-1", answers={LOOK: ["inactive", 'inactive\n{"ok": true}']})
    assert start(host)


def test_job_that_cannot_be_started() -> None:
    host = FakeHost("spark-1", answers={"begin job": (False, "Failed to connect to bus")})
    assert not start(host)
    assert host.shown == [f"{JOB}: could not be started; found: Failed to connect to bus"]


@pytest.mark.parametrize(
    "silence", [(False, ""), OSError("Socket is closed"), EOFError(), SSHException("session not active")]
)
def test_host_stops_answering(silence: Any) -> None:
    host = FakeHost("spark-1", answers={LOOK: ["active", silence]})
    assert not start(host)
    assert host.shown == [f"{JOB}: the host stopped answering; run again to join the job"]


# Scripts that run before the package `onhost` is there.

NAME = "sparkstack-conda-abc"
FOLDER = f"/var/lib/sparkstack/jobs/{NAME}"


def run_script(host: FakeHost) -> bool:
    return remote._run_script(None, host, NAME, "conda", f"/var/lib/sparkstack/plans/{NAME}.sh")


def test_script_ends_well(steps: list[tuple[Any, ...]]) -> None:
    host = FakeHost("spark-1", answers={SCRIPT: ["active\n-", "active\n-\nUnpacking", "inactive\n0\nDone"]})
    assert run_script(host)
    assert [step[-1] for step in steps] == ["", "Unpacking"]
    assert host.kinds() == ["begin script", SCRIPT]
    assert f"{{ mkdir -p {FOLDER}; rm -f {FOLDER}/status; " in host.heard[0]
    assert f"systemd-run --quiet --collect --unit={NAME} " in host.heard[0]


@pytest.mark.parametrize(
    ("end", "word"),
    [
        ("inactive\n1\nfound another SHA-256", "found another SHA-256"),
        ("failed\n-\nUnpacking", "Unpacking"),
        ("failed\n-", "ended without a word"),
    ],
)
def test_script_fails(end: str, word: str) -> None:
    host = FakeHost("spark-1", answers={SCRIPT: ["active\n-", end]})
    assert not run_script(host)
    assert host.shown == [f"{NAME}: {word} (all of it: {FOLDER}/log)"]


def test_script_that_cannot_be_started() -> None:
    host = FakeHost("spark-1", answers={"begin script": (False, "no")})
    assert not run_script(host)
    assert host.shown == [f"{NAME}: could not be started; found: no"]


@pytest.mark.parametrize("silence", [(False, ""), EOFError()])
def test_script_whose_host_stops_answering(silence: Any) -> None:
    host = FakeHost("spark-1", answers={SCRIPT: ["active\n-", silence]})
    assert not run_script(host)
    assert host.shown == [f"{NAME}: the host stopped answering; run again to join the job"]


# The privileges of a plain command.


@pytest.mark.parametrize("sudo", [True, False])
def test_shell_has_the_sites_privileges(sudo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost("spark-1", _sudo=sudo)
    given: dict[str, Any] = {}

    def run(command: Any, **arguments: Any) -> tuple[bool, CommandOutput]:
        given.update(arguments)
        return True, CommandOutput([])

    monkeypatch.setattr(host, "run_shell_command", run)
    assert remote.shell(host, "true", stdin="x") == (True, "")
    assert given == {"_sudo": sudo, "_stdin": "x"}
