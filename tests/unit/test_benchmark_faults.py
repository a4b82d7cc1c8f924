"""The account of requests: what ended as if all were well, and was not, is told from an honest error."""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CompletedProcess
from typing import cast

import pytest

from benchmarks.faults import cases
from benchmarks.faults.__main__ import good, markdown, minutes
from benchmarks.faults.cluster import Cluster, Failed
from benchmarks.faults.load import CUT, ERROR, NOT_ACCEPTED, SILENT, TIMED_OUT, WHOLE, Load, request

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    data = f"data: {text}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


TOKEN = chunk({"choices": [{"text": "a", "finish_reason": None}]})
LAST = chunk({"choices": [{"text": "b", "finish_reason": "length"}]})
# A line separator of Unicode, which is no line's end in an event stream.
ODD = chunk('{"choices": [{"text": "a\u2028b\x85", "finish_reason": null}]}')
# Tokens that come several a chunk are told by the usage.
USAGE = chunk({"choices": [], "usage": {"completion_tokens": 3}})
DONE = chunk("[DONE]")


@contextmanager
def answering(*parts: bytes, hold: bool = False) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(b"".join(parts))
                while hold and client.recv(65536):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([HEAD, TOKEN, TOKEN, LAST, DONE, END], WHOLE),
        ([HEAD, TOKEN, LAST, USAGE, DONE, END], WHOLE),
        ([HEAD, ODD, TOKEN, LAST, DONE, END], WHOLE),
        ([HEAD, TOKEN, LAST, DONE, END], SILENT),  # one is missing
        ([HEAD, TOKEN, TOKEN, TOKEN, DONE, END], SILENT),  # nothing says why it ended
        ([HEAD, TOKEN, END], SILENT),
        ([HEAD, END], SILENT),
        ([HEAD, TOKEN, chunk({"error": {"message": "EngineDeadError"}}), DONE, END], ERROR),
        ([HEAD, TOKEN], CUT),  # between two chunks
        ([HEAD, TOKEN[:9]], CUT),
        ([HEAD], CUT),
        ([b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n{}"], NOT_ACCEPTED),
        ([b"HTTP/1.1 500 x\r\nContent-Length: 2\r\n\r\n{}"], NOT_ACCEPTED),
        ([], NOT_ACCEPTED),
    ],
)
def test_what_became_of_a_request(parts: list[bytes], what: str) -> None:
    with answering(*parts) as port:
        assert request("127.0.0.1", port, "m", tokens=3, limit=5) == what


def test_a_client_has_its_own_patience() -> None:
    with answering(HEAD, TOKEN, hold=True) as port:
        assert request("127.0.0.1", port, "m", tokens=3, limit=0.2) == TIMED_OUT


def test_every_request_is_in_the_account() -> None:
    load = Load("127.0.0.1", 1, "m")
    load.counts.update({WHOLE: 3, CUT: 1, NOT_ACCEPTED: 7})
    counts = load.end()
    assert (counts["accepted"], counts[WHOLE], counts[SILENT], counts[NOT_ACCEPTED]) == (4, 3, 0, 7)


def test_every_fault_is_listed_for_each_rank() -> None:
    names = [case.name for case in cases.cases(3)]
    assert len(names) == len(set(names))
    for rank in ("head", "rank 1", "rank 2"):
        for fault in (
            "SIGKILL of the engine",
            "container killed",
            "SIGKILL of dockerd",
            "engine wedged (SIGSTOP)",
            "reboot",
            "power cut during a start",
            "network cut for 10 s",
        ):
            assert f"{fault}, {rank}" in names
    for fault in ("engine out of memory", "disk of the journal full", "port taken for 20 s"):
        assert f"{fault}, head" in names
    assert "network cut for 300 s, rank 1" in names
    assert not any("rank" in case.name for case in cases.cases(1))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((0, ""), (1, "spark-1: found another run at work (ann); wanted one at a time"), None),
        ((0, ""), (0, ""), "the second deploy was not refused"),
        ((0, ""), (1, "Traceback"), "the second deploy was not refused: Traceback"),
        ((1, "no disk"), (1, "found another run at work (ann)"), "the first deploy failed: no disk"),
    ],
)
def test_the_second_of_two_deploys_is_judged_by_its_refusal(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, str], second: tuple[int, str], said: str | None
) -> None:
    class Head:
        def run(self, command: str) -> str:
            return "ann on desk"

    class Standing:
        head = Head()

    runs = iter([first, second])
    monkeypatch.setattr(cases, "begin_deploy", lambda *words: next(runs))
    monkeypatch.setattr(cases, "ended", lambda run: CompletedProcess([], run[0], run[1]))
    case = cases.two_deploys(lambda: ["other"])
    if said is None:
        assert case.do(cast(Cluster, Standing())) is not None
    else:
        with pytest.raises(Failed, match=said):
            case.do(cast(Cluster, Standing()))


LINE = {"fault": "a", "recovery_s": 3.0, "outage": True, "said": ""}


@pytest.mark.parametrize(
    ("found", "well"),
    [
        ({}, True),
        ({"lines": [LINE, {**LINE, "recovery_s": None}]}, False),
        ({"requests": {SILENT: 1}}, False),
        ({"deploy_under_load": {"ok": True, SILENT: 0}, "second_deploy": {"ok": True, "changed": []}}, True),
        ({"deploy_under_load": {"ok": True, SILENT: 1}}, False),
        ({"deploy_under_load": {"ok": False, SILENT: 0}}, False),
        ({"second_deploy": {"ok": True, "changed": ["spark-1: serve | unit file"]}}, False),
        ({"second_deploy": {"ok": False, "changed": []}}, False),
    ],
)
def test_what_the_command_ends_with(found: dict[str, object], well: bool) -> None:
    assert good({"lines": [LINE], **found}) is well


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("90s", 90), ("1.5h", 5400)])
def test_times(text: str, seconds: float) -> None:
    assert minutes(text) == seconds


def test_a_wrong_time_is_a_line() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="found '30'; wanted a time such as 30m or 90s"):
        minutes("30")


def test_the_table_says_what_did_not_come_and_what_was_not_checked() -> None:
    lines = [
        {"fault": "a", "recovery_s": 3.0, "outage": True, "said": ""},
        {"fault": "b", "recovery_s": None, "outage": True, "said": "no tokens in 300 s"},
    ]
    found = {"kind": "soak", "engine": "light", "hosts": 2, "when": "now", "lines": lines}
    second = {"ok": True, "changed": []}
    text = markdown({**found, "requests": {"accepted": 4, "silent": 0}, "second_deploy": second})
    assert "The deploy after all this changed: nothing." in text
    assert "| a | 3.0 | yes |" in text and "| b | none came: no tokens in 300 s | yes |" in text
    assert "| the kernel's own clock set | not checked: " in text
    assert "Requests: accepted 4, silent 0." in text
