"""The command ready: a completion, the end of patience, or the end of the container."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from fake_openai import Server, serving

from onhost import __main__ as command
from onhost import probe_engine, ready


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "PAUSE", 0.02)
    monkeypatch.setattr(ready, "unit_state", lambda: "active")


def run(capsys: pytest.CaptureFixture[str], url: str, timeout: float = 0.3, *more: str) -> tuple[int, str]:
    status = command.main(["ready", "--url", url, "--model", "tiny", "--timeout", str(timeout), *more])
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if status else 0)
    return status, said


def test_a_completion_is_ready(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, server.url + "/") == (0, "")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("error 500", "found HTTP 500 (EngineCore failed) after 0 s; wanted a completion"),
        ("error 200", "found HTTP 200 without a completion (engine is dead) after"),
        ("no json", "found HTTP 200 without a completion (no JSON) after"),
        ("odd usage 200", "found HTTP 200 without a completion ("),
        ("empty", "found HTTP 200 with an empty completion after"),
    ],
)
def test_what_is_not_a_completion(
    server: Server, capsys: pytest.CaptureFixture[str], fault: str, found: str
) -> None:
    server.fault = fault
    status, said = run(capsys, server.url)
    assert status == 1 and said.startswith(found)
    server.faults = 2
    assert run(capsys, server.url, 5)[0] == 0


def test_nobody_listens_yet(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = run(capsys, "http://127.0.0.1:9")
    assert status == 1 and said.startswith(
        "found a closed port after 0 s; wanted a completion from http://127"
    )


def test_what_waiting_cannot_mend(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server.model = "another"
    began = time.monotonic()
    status, said = run(capsys, server.url, 60)
    assert status == 1 and said.startswith("found HTTP 404 for model 'tiny'") and "does not exist" in said
    server.key = "sk"
    status, said = run(capsys, server.url, 60)
    assert status == 1 and said.startswith("found HTTP 401 from")
    (tmp_path / "key").write_text("sk\n")
    server.model = "tiny"
    assert run(capsys, server.url, 60, "--api-key-file", str(tmp_path / "key"))[0] == 0
    assert run(capsys, server.url, 60, "--api-key-file", str(tmp_path / "no"))[0] == 1
    assert time.monotonic() - began < 5


def test_an_engine_that_knows_of_no_key_is_not_ready(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It answers everybody, where the site asked for a key."""
    (tmp_path / "key").write_text("sk\n")
    status, said = run(capsys, server.url, 60, "--api-key-file", str(tmp_path / "key"))
    found = f"found HTTP 200 from {server.url} without the API key; wanted 401; "
    assert status == 1 and said.startswith(found)


def test_an_engine_that_lists_its_models_for_everybody_has_a_key_all_the_same(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """llama.cpp's server asks nobody for a key there."""
    (tmp_path / "key").write_text("sk\n")
    server.key, server.open_list = "sk", True
    assert run(capsys, server.url, 60, "--api-key-file", str(tmp_path / "key"))[0] == 0


TOKENS = "vllm:generation_tokens_total"


@pytest.mark.parametrize(
    ("fault", "metrics", "serving_now"),
    [
        ("", [], True),
        ("hangs", [f"{TOKENS} 1", f"{TOKENS} 2"], True),  # it has much to do
        ("hangs", [f"{TOKENS} 1"], False),  # a head that waits for a dead rank
        ("hangs", [], False),  # nothing but its answer tells, and patience ends
        ("error 500", [f"{TOKENS} 1"], False),
        ("error 500", [], False),
    ],
)
def test_what_is_slow_serves_all_the_same(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    metrics: list[str],
    serving_now: bool,
) -> None:
    monkeypatch.setattr(ready, "LEAST", 0.4)
    monkeypatch.setattr(probe_engine, "PATIENCE", 0.15)
    server.fault, server.metrics = fault, metrics
    asked = ["serves", "--url", server.url, "--model", "tiny", "--timeout", "0.05"]
    assert command.main(asked) == (0 if serving_now else 1)
    assert capsys.readouterr().err.startswith("" if serving_now else "found ")


def test_an_engine_without_counters_that_is_busy_is_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "LEAST", 0.4)
    server.fault, server.faults = "hangs", 1
    assert command.main(["serves", "--url", server.url, "--model", "tiny", "--timeout", "0.05"]) == 0


def test_what_does_not_serve_says_so_at_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A closed port and another model are no matter of patience."""
    assert command.main(["serves", "--url", "http://127.0.0.1:9", "--model", "tiny", "--timeout", "0"]) == 1
    assert capsys.readouterr().err.startswith("found a closed port after")
    assert command.main(["serves", "--url", server.url, "--model", "other", "--timeout", "60"]) == 1
    assert capsys.readouterr().err.startswith("found HTTP 404")


class Docker:
    """Stands for the docker command: `states` is what inspect says one call after the other (None: gone)."""

    def __init__(self, *states: dict[str, Any] | None) -> None:
        self.states = list(states)

    def __call__(self, *arguments: str) -> CompletedProcess[str]:
        if arguments[0] == "logs":
            return CompletedProcess([], 0, "INFO start\nRuntimeError: no KV cache\nINFO bye\n", "")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            return CompletedProcess([], 1, "[]", "Error: No such container: serve")
        state = {"Status": "running", "Running": True, "ExitCode": 0, "StartedAt": "1", **state}
        return CompletedProcess([], 0, json.dumps([{"Id": "c1", "State": state}]), "")


RUNNING: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([{"Status": "exited", "Running": False, "ExitCode": 1}], "container serve exited with code 1"),
        ([RUNNING, {"Status": "restarting", "ExitCode": 137}], "container serve restarting with code 137"),
        ([None, RUNNING, None], "container serve gone"),
        ([RUNNING, {"StartedAt": "2"}], "container serve started anew"),
    ],
)
def test_a_container_that_ended_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], states: list[Any], found: str
) -> None:
    monkeypatch.setattr(ready, "docker", Docker(*states))
    began = time.monotonic()
    status, said = run(capsys, "http://127.0.0.1:9", 60, "--container", "serve")
    assert status == 1 and said.startswith(f"found {found}")
    assert "gone" in found or "(RuntimeError: no KV cache)" in said
    assert time.monotonic() - began < 5


def test_the_key_is_in_no_line_of_a_container_that_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("KV\n")
    monkeypatch.setattr(ready, "docker", Docker({"Status": "exited", "Running": False}))
    more = ("--container", "serve", "--api-key-file", str(tmp_path / "key"))
    assert "(RuntimeError: no … cache)" in run(capsys, "http://127.0.0.1:9", 60, *more)[1]


@pytest.mark.parametrize("state", ["inactive", "deactivating", "failed"])
def test_a_docker_that_was_stopped_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    """Its socket would start it again."""
    monkeypatch.setattr(ready, "unit_state", lambda: state)
    monkeypatch.setattr(ready, "docker", None)
    status, said = run(capsys, "http://127.0.0.1:9", 60, "--container", "serve")
    assert status == 1 and said.startswith(f"found Docker {state}; wanted a completion")


def test_a_container_that_is_not_made_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Server
) -> None:
    monkeypatch.setattr(ready, "docker", Docker(None))
    server.fault = "error 500"
    threading.Timer(0.2, lambda: setattr(server, "fault", "")).start()
    assert run(capsys, server.url, 10, "--container", "serve") == (0, "")
