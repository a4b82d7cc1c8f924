"""Measuring on a host: what tools say is read right, and whatever hangs, is refused or dropped has an end."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onhost import allgather, linkgate

REPORT = """\
 local address: LID 0000 QPN 0x0011 PSN 0x12509c RKey 0x000200 VAddr 0x007fbec7edf000
 remote address: LID 0000 QPN 0x0011 PSN 0xb70d8e RKey 0x0002ac VAddr 0x007fb99fbbf000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000           97.31              97.28                0.185547
---------------------------------------------------------------------------------------
"""
PLAN = {"tool": "ib_write_bw", "port": 18515, "seconds": 3, "device": "rocep1s0f0", "target": "192.0.2.1"}
Says = Callable[..., list[list[str]]]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """`says((status, text), …)`: what commands answer, in turn; returns the list of their words."""

    def script(*answers: tuple[int | None, str]) -> list[list[str]]:
        left, heard = list(answers), []

        def run(words: list[str], seconds: float) -> tuple[int | None, str]:
            assert 0 < seconds < 240
            heard.append(words)
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(linkgate, "_run", run)
        return heard

    return script


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((0, REPORT), {"gbps": 97.28, "problem": ""}),
        ((None, REPORT.partition("-----")[0]), {"gbps": None, "problem": "stalled"}),
        ((0, REPORT.replace("97.28", "0.000000")), {"gbps": None, "problem": "stalled"}),
        ((None, ""), {"gbps": None, "problem": "filtered"}),
        ((1, " Couldn't connect to 192.0.2.1:18515\n"), {"gbps": None, "problem": "refused"}),
        (
            (1, "----\n Unable to open device\n"),
            {"gbps": None, "problem": "ib_write_bw: Unable to open device"},
        ),
        ((0, "BW average[Gb/sec]\n"), {"gbps": None, "problem": "ib_write_bw: BW average[Gb/sec]"}),
        ((139, ""), {"gbps": None, "problem": "ib_write_bw: 139"}),
    ],
)
def test_ib_write_bw(says: Says, answer: Any, expected: dict[str, Any]) -> None:
    heard = says(answer)
    assert linkgate.send([PLAN]) == [expected]
    assert heard[0][2:6] == ["ib_write_bw", "-d", "rocep1s0f0", "-i"] and heard[0][-1] == "192.0.2.1"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(0, ""), (0, "3 packets transmitted, 3 received")], {"received": 3, "small": True, "said": ""}),
        (
            [
                (0, ""),
                (1, "ping: local error: message too long, mtu=1500\n3 packets transmitted, 0 received"),
            ],
            {"received": 0, "small": True, "said": "ping: local error: message too long, mtu=1500"},
        ),
        ([(1, ""), (None, "")], {"received": 0, "small": False, "said": ""}),
        (
            [(2, ""), (2, "ping: unknown iface enp9")],
            {"received": 0, "small": False, "said": "ping: unknown iface enp9"},
        ),
    ],
)
def test_ping(says: Says, answers: Any, expected: dict[str, Any]) -> None:
    heard = says(*answers)
    assert linkgate.ping([{"interface": "enp1", "target": "192.0.2.1", "bytes": 9000}]) == [expected]
    assert heard[1][-5:] == ["-M", "do", "-s", "8972", "192.0.2.1"]


def test_a_server_that_listens(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = says((0, ""))
    monkeypatch.setattr(linkgate, "_listens", lambda port: len(heard) > 1)
    assert linkgate.serve([PLAN]) == [{"said": ""}]
    assert heard[1][:4] == ["systemd-run", "--quiet", "--collect", "--unit=sparkstack-link-18515"]
    assert any(word.startswith("--property=RuntimeMaxSec=") for word in heard[1])


def test_a_server_that_ends_at_once_says_why(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    says((0, ""), (0, ""), (0, ""), (0, "Started\n Unable to find the Infiniband/RoCE device\n"))
    monkeypatch.setattr(linkgate, "_listens", lambda port: False)
    (answer,) = linkgate.serve([PLAN])
    assert answer["said"].startswith("the server does not listen: Started / ") and "RoCE" in answer["said"]


def test_a_port_that_is_taken(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    says((0, ""))
    monkeypatch.setattr(linkgate, "_listens", lambda port: True)
    assert linkgate.serve([PLAN])[0]["said"].startswith("port 18515 is somebody else's")


def test_a_unit_that_systemd_refuses(says: Says) -> None:
    says((0, ""), (1, "Failed to start transient service unit: Unit already exists\n"))
    assert "already exists" in linkgate.serve([PLAN])[0]["said"]


def test_another_measurement_is_waited_for(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("onhost.linkgate.time.sleep", slept.append)
    heard = says((0, "sparkstack-link-18515.service loaded active running x"), (0, ""))
    monkeypatch.setattr(linkgate, "_listens", lambda port: len(heard) > 2)
    assert linkgate.serve([PLAN]) == [{"said": ""}] and slept == [0.5]


def test_stop_ends_our_units_alone(says: Says) -> None:
    heard = says((0, "sparkstack-link-18515.service loaded active\nother.service loaded active"), (0, ""))
    assert linkgate.stop() == []
    assert heard[1] == ["systemctl", "stop", "sparkstack-link-18515.service"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def tcp(port: int, **more: Any) -> dict[str, Any]:
    plan = {"tool": "tcp", "port": port, "address": "127.0.0.1", "target": "127.0.0.1", "seconds": 0.05}
    (answer,) = linkgate.send([{**plan, **more}])
    return dict(answer)


def test_tcp_counts_what_arrived() -> None:
    port = free_port()
    thread = threading.Thread(target=linkgate.sink, args=("127.0.0.1", port, 20.0))
    thread.start()
    while not linkgate._listens(port):
        pass
    answer = tcp(port)
    thread.join()
    assert answer["problem"] == "" and answer["gbps"] > 0.01


def test_tcp_that_is_refused() -> None:
    assert tcp(free_port()) == {"gbps": None, "problem": "refused"}


def test_tcp_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(*words: Any, **more: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", dropped)
    assert tcp(1)["problem"] == "filtered"


def test_tcp_whose_other_side_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linkgate, "GRACE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert tcp(deaf.getsockname()[1], seconds=20)["problem"] == "stalled"


def test_the_command_line(says: Says, capsys: pytest.CaptureFixture[str]) -> None:
    says((0, REPORT))
    assert linkgate.main(["send", json.dumps([PLAN])]) == 0
    assert json.loads(capsys.readouterr().out) == [{"gbps": 97.28, "problem": ""}]
    assert linkgate.main(["measure"]) == 2
    assert "wanted ping, serve, send or stop" in capsys.readouterr().err


def test_a_command_that_is_not_there() -> None:
    status, said = linkgate._run(["sparkstack-no-such-tool"], 5)
    assert status == 127 and said.startswith("sparkstack-no-such-tool: No such file")


def test_a_tool_that_hangs_is_ended_with_its_children_and_what_it_said_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ib_write_bw"
    tool.write_text("#!/bin/sh\necho ' remote address: LID 0000'\nsleep 600 & sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(linkgate, "GRACE_S", 1.0)
    assert linkgate.send([{**PLAN, "seconds": 0}]) == [{"gbps": None, "problem": "stalled"}]
    tool.write_text("#!/bin/sh\nsleep 600\n")
    monkeypatch.setattr(linkgate, "GRACE_S", 0.05)
    assert linkgate.send([{**PLAN, "seconds": 0}]) == [{"gbps": None, "problem": "filtered"}]


def test_all_gather_says_in_one_line_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert allgather.main(["0", "2", "192.0.2.1", "1", "1", "1"]) == 1
    assert json.loads(capsys.readouterr().out)["problem"]
