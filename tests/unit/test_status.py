# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""What `sparkstack status` makes of what hosts say, and what watches the endpoint from elsewhere."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from lab.light_engine import Counters
from onhost import group, watchdog
from onhost import status as probe
from onhost.limits import Limits
from sparkstack import engine_metrics, metrics, monitoring, serving_status, status_cli
from sparkstack.cli import main
from sparkstack.endpoint import own_url
from sparkstack.errors import SparkstackError
from sparkstack.metrics import Figures

NAMES = Path(__file__).parent / "data" / "vllm-0.32-metrics.txt"
"""The metrics in the source of the lab's vLLM (a counter's name goes on with _total, a histogram's with _bucket)."""


def reading(at: float, **amounts: int) -> metrics.Reading:
    """What the lab's engine says, with vLLM's names."""
    counters = Counters("m")
    counters.add(**amounts)
    counters.first += [0.1, 0.3]
    counters.used = amounts.get("num_requests_running", 0)
    return metrics.read(counters.text(16, speculation=True), at)


def test_two_readings_make_figures() -> None:
    first = reading(10.0, generation_tokens_total=100, spec_decode_num_draft_tokens_total=10)
    last = reading(
        12.0,
        generation_tokens_total=150,
        prompt_tokens_total=8,
        num_requests_running=4,
        spec_decode_num_draft_tokens_total=30,
        spec_decode_num_accepted_tokens_total=15,
    )
    found = metrics.figures(first, last)
    assert (found.generated_tok_s, found.prompt_tok_s, found.running, found.waiting) == (25.0, 4.0, 4, 0)
    assert (found.kv_use, found.acceptance, found.ttft_s) == (0.25, 0.75, None)


def test_what_cannot_be_known_is_not_measured() -> None:
    more, less = reading(1.0, generation_tokens_total=9), reading(2.0, generation_tokens_total=3)
    assert metrics.figures(more, less).generated_tok_s is None  # it was restarted in between
    assert metrics.figures(None, more).generated_tok_s is None
    assert metrics.figures(more, more).generated_tok_s is None  # no time went by
    assert metrics.figures(None, more).acceptance is None  # nothing was drafted
    assert metrics.figures(None, metrics.read("", 1.0)) == Figures()
    since = reading(1.0, spec_decode_num_draft_tokens_total=4, spec_decode_num_accepted_tokens_total=1)
    assert metrics.figures(since, since).acceptance == 0.25  # of all so far


def test_engines_and_labels_are_added_up() -> None:
    text = """\
# HELP vllm:generation_tokens Number of generation tokens.
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="a \\"b\\" {c}"} 1.5e+03
vllm:generation_tokens_total{engine="1",model_name="a \\"b\\" {c}"} 500
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:num_requests_running{engine="1"} NaN
"""
    found = metrics.read(text, 0.0)
    assert found.values["vllm:generation_tokens_total"] == 2000
    assert metrics.figures(None, found).kv_use == 0.5
    assert metrics.figures(None, found).running is None
    with pytest.raises(ValueError):
        metrics.read("<html>", 0.0)


def said(rank: int = 0, active: str = "active", **more: Any) -> dict[str, Any]:
    counters = Counters("m")
    texts = []
    for amount in (0, 40):
        counters.add(generation_tokens_total=amount)
        texts.append(counters.text(16, speculation=False))
    readings = [{"status": 200, "t": 5.0 + at, "text": text} for at, text in enumerate(texts)]
    return {
        "release": {"release": "r1", "recipe": "x", "rank": rank, "world": 2, "endpoint": "http://h:8000", "model": "m"},
        "unit": {
            "ActiveState": active,
            "SubState": "running",
            "Result": "success",
            "NRestarts": "2",
            "ActiveEnterTimestampMonotonic": "1000000",
        },
        "now_s": 61.0,
        "memory": {"total": 4 * 2**30, "available": 2**30},
        "gpus": [{"temperature.gpu": 61.0, "power.draw": 30.5, "utilization.gpu": 90.0}] if rank == 0 else None,
        "endpoint": {"health": 200, "said": "", "readings": readings} if rank == 0 else None,
        **more,
    }  # fmt: skip


def test_a_cluster_that_serves() -> None:
    found = serving_status.document("now", {"a": said(), "b": said(1)})
    assert (found["ok"], found["problems"], found["release"]) == (True, [], "r1")
    assert found["endpoint"]["url"] == "http://h:8000" and found["endpoint"]["generated_tok_s"] == 40.0
    assert found["endpoint"]["acceptance"] is None
    assert found["hosts"][0]["gpus"] == [
        {"temperature_c": 61.0, "power_w": 30.5, "utilization_percent": 90.0}
    ]
    lines = serving_status.lines(found)
    assert lines[1] == "endpoint: http://h:8000 answers for m"
    assert "decode 40.0 tok/s now" in lines[2] and "drafts accepted not measured" in lines[2]
    assert re.split(r"  +", lines[4]) == [
        "a", "0", "serves", "1:00 min", "2", "r1", "3.0 of 4.0 GiB", "61 °C",
    ]  # fmt: skip
    assert lines[5].endswith("3.0 of 4.0 GiB  not checked")
    console = Console(width=160, record=True, force_terminal=True)
    console.print(serving_status.table(found))
    assert "61 °C" in console.export_text()
    json.dumps(found)


@pytest.mark.parametrize(
    ("hosts", "problems"),
    [
        (
            {"a": said(), "b": "no connection"},
            ["b: found no connection; wanted an answer; check power, cable and ssh"],
        ),
        (
            {"a": said(), "b": said(1, "failed")},
            ["b: found unit failed (running, last result success); wanted active; "
             "see journalctl -u sparkstack-serve there"],
        ),
        (
            {"a": said(), "b": said(1, release={"release": "r0", "rank": 1})},
            ["b: found release r0; wanted r1, the head's; run deploy.py again"],
        ),
        ({"a": said(), "b": said(1, release=None)}, ["b: found no release; wanted one; run deploy.py"]),
        ({"a": said(endpoint={"health": 503, "said": "rank 1 is away", "readings": []})},
         ["http://h:8000: found HTTP 503 (rank 1 is away); wanted HTTP 200 of /health; "
          "see journalctl -u sparkstack-serve on the head"]),
        ({"a": said(endpoint={"health": 0, "said": "refused", "readings": []})},
         ["http://h:8000: found no answer (refused); wanted HTTP 200 of /health; "
          "see journalctl -u sparkstack-serve on the head"]),
        ({"a": said(endpoint={"health": 200, "readings": [{"status": 200, "t": 1, "text": "<html>"}]})},
         ["http://h:8000: found /metrics that cannot be read; wanted Prometheus's text format; "
          "check what listens there"]),
        ({"b": said(1)}, ["endpoint: found no head that serves; wanted one; run deploy.py"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_line_and_status_1(hosts: dict[str, Any], problems: list[str]) -> None:
    found = serving_status.document("now", hosts)
    assert (found["problems"], found["ok"]) == (problems, False)
    assert serving_status.lines(found)[-len(problems) :] == problems


@pytest.mark.parametrize(
    ("sub", "note", "rank", "last", "waits"),
    [
        ("start-pre", "waiting for rank 1 (b): no answer (timed out)", 0, "", "waiting for rank 1 (b): no answer (timed out); for 42 s"),
        ("start-pre", "ready", 1, "", "its checks are done; waiting for the head to form the group; for 42 s"),
        ("start-pre", "", 1, "", "it begins; for 42 s"),
        ("start-post", "started", 0, "", "the engine starts: no completion yet; for 42 s"),
        ("start-post", "started", 1, "", "its container starts; for 42 s"),
        ("auto-restart", "", 0, "rank 0: found x; wanted y", "the next start, which comes by itself; the last one ended: rank 0: found x; wanted y"),
        ("auto-restart-queued", "", 0, "", "the next start, which comes by itself"),
    ],
)
def test_what_a_rank_waits_for(sub: str, note: str, rank: int, last: str, waits: str) -> None:
    unit = {"ActiveState": "activating", "SubState": sub, "Result": "success", "StatusText": "", "InactiveExitTimestampMonotonic": "19000000"}
    row = said(rank, unit=unit, note=note, last_error=last)
    found = serving_status.document("now", {"a": row, "b": said(1 - rank)})
    assert (found["hosts"][0]["state"], found["hosts"][0]["waits_for"]) == ("starts", waits)
    assert found["hosts"][1]["waits_for"] is None
    lines = serving_status.lines(found)
    assert lines[3].endswith("  waits for") and lines[4].endswith(f"  {waits}") and lines[5].endswith("  -")
    assert f"a: found unit activating ({sub}, last result success): {waits}; wanted active; see journalctl -u sparkstack-serve there" in found["problems"]
    console = Console(width=250, record=True, force_terminal=True)
    console.print(serving_status.table(found))
    assert "waits for" in console.export_text()


def test_a_unit_with_a_status_text_says_that() -> None:
    unit = {"ActiveState": "activating", "SubState": "start", "StatusText": "loading shard 3 of 9"}
    assert serving_status.document("now", {"a": said(unit=unit)})["hosts"][0]["waits_for"] == "loading shard 3 of 9"
    stopped = serving_status.document("now", {"a": said(unit={"ActiveState": "inactive", "SubState": "dead"})})
    assert stopped["hosts"][0]["waits_for"] is None and stopped["hosts"][0]["state"] == "does not serve"


def test_the_words_of_a_rank_and_of_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reason in (probe.reason, serving_status.reason):
        assert reason('{"error": {"message": "waiting for\\nrank 1", "code": 503}}') == "waiting for rank 1"
        assert [reason(text) for text in ("[1]", '{"error": "x"}', "plain\n words")] == ["[1]", '{"error": "x"}', "plain words"]
    monkeypatch.setattr(probe, "RANK", tmp_path / "rank")
    assert probe.note("i1") == ""
    (tmp_path / "rank").write_text("i1 waiting for Docker\n")
    assert (probe.note("i1"), probe.note("i2"), probe.note("")) == ("waiting for Docker", "", "")
    journal = "rank 0, release r: found a; wanted b; c\nStarted it.\nrank 0, release r: found d; wanted e\nMain process exited\n"
    monkeypatch.setattr(probe, "output", lambda *words: journal)
    assert probe.last_error("u") == "rank 0, release r: found d; wanted e"
    assert serving_status.READY == group.READY


LAST = {"verdict": "alive", "said": "", "missed": 0, "misses": 4, "answer_s": 0.25, "at_s": 56.0, "next_within_s": 195, "invocation": "i1", "counters": True}


def watched(active: str = "active", **last: Any) -> dict[str, Any]:
    about = said()
    last_look = {**LAST, **last} if last.pop("wrote", True) else None
    watchdog = {"active": active, "enabled": "enabled", "since": "1000000", "last": last_look}
    return said(unit={**about["unit"], "InvocationID": "i1"}, watchdog=watchdog)


def day_old(active: str = "active", since: float = 1.0, **last: Any) -> dict[str, Any]:
    """A host up for 27 h; `since`: s, when its watchdog began."""
    row = watched(active, **last) | {"now_s": 97201.0}
    row["watchdog"]["since"] = str(int(since * 1e6))
    return row


SEE = "journalctl -u sparkstack-watchdog there"


@pytest.mark.parametrize(
    ("row", "shown", "state", "problem"),
    [
        (watched(), "alive, a token in 0.2 s; 5 s ago", "serves", None),
        (watched(answer_s=None, verdict="loads"), "loads; 5 s ago", "serves", None),
        (watched(verdict="slow", said="no answer"), "slow, a token in 0.2 s; 5 s ago", "serves", None),
        (watched(verdict="missed", missed=1, said="no answer in 30 s"), "missed 1 of 4; 5 s ago", "serves", None),
        (
            watched(verdict="missed", missed=3, said="no answer in 30 s"), "missed 3 of 4; 5 s ago", "wedged",
            f"a: found no token 3 times in a row (no answer in 30 s); wanted tokens; the watchdog starts the group again at 4; see {SEE}",
        ),
        (
            watched(verdict="dead", missed=4, said="HTTP 500"), "dead, a token in 0.2 s; 5 s ago", "wedged",
            f"a: found no token 4 times in a row (HTTP 500); wanted tokens; the watchdog starts the group again at 4; see {SEE}",
        ),
        # Nothing but the site's patience tells a slow one from a dead one.
        (watched(verdict="missed", missed=3, counters=False, said="no answer"), "missed 3 of 4; 5 s ago", "serves", None),
        (
            watched(verdict="missed", missed=4, counters=False, said="no answer"), "missed 4 of 4; 5 s ago", "wedged",
            f"a: found no token 4 times in a row (no answer); wanted tokens; the watchdog starts the group again at 4; see {SEE}",
        ),
        # Of an earlier start; not written yet; of a version that wrote something else.
        (watched(verdict="missed", missed=3, invocation="i0"), "no look yet", "serves", None),
        (watched(wrote=False), "no look yet", "serves", None),
        (watched() | {"now_s": 317.0}, "alive, a token in 0.2 s; 261 s ago", "serves", f"a: found the watchdog's last look 261 s ago; wanted one within 195 s; see {SEE}"),
        # A watchdog that looks no more is seen whichever start it saw last, and also where it never wrote.
        (day_old(), "alive, a token in 0.2 s; 97145 s ago", "serves", f"a: found the watchdog's last look 97145 s ago; wanted one within 195 s; see {SEE}"),
        (day_old(verdict="missed", missed=3), "missed 3 of 4; 97145 s ago", "serves", f"a: found the watchdog's last look 97145 s ago; wanted one within 195 s; see {SEE}"),
        (day_old(invocation="i0"), "no look yet", "serves", f"a: found the watchdog's last look 97145 s ago; wanted one within 195 s; see {SEE}"),
        (day_old(wrote=False), "no look yet", "serves", f"a: found no look of the watchdog for 97200 s; wanted one within 600 s; see {SEE}"),
        (day_old("activating"), "activating", "serves", f"a: found the watchdog's last look 97145 s ago; wanted one within 195 s; see {SEE}"),
        # It has just begun: a deploy that has just ended.
        (day_old(since=97190.0, invocation="i0"), "no look yet", "serves", None),
        (day_old(since=97190.0, wrote=False), "no look yet", "serves", None),
        (watched(wrote=False) | {"now_s": 590.0}, "no look yet", "serves", None),
        # It looks, and cannot: by its own files; a server that refuses the question is none of it.
        (watched(verdict="not checked", broken=True, said="found no plan", answer_s=None), "not checked; 5 s ago", "serves", f"a: found a watchdog that cannot look (found no plan); wanted a look; see {SEE}"),
        (watched(verdict="not checked", said="HTTP 401", answer_s=None), "not checked; 5 s ago", "serves", None),
        (watched(verdict="gone", said="rank 1 (b) is inactive", answer_s=None), "gone; 5 s ago", "serves", f"a: found rank 1 (b) is inactive, says the watchdog; wanted the group whole; the watchdog starts it again where that lasts; see {SEE}"),
        (watched("inactive"), "inactive", "serves", f"a: found watchdog inactive; wanted active, as declared; run deploy.py, or see {SEE}"),
        (watched("failed"), "failed", "serves", f"a: found watchdog failed; wanted active, as declared; run deploy.py, or see {SEE}"),
        (watched("activating"), "activating", "serves", None),
    ],
)  # fmt: skip
def test_what_the_watchdog_says(row: dict[str, Any], shown: str, state: str, problem: str | None) -> None:
    found = serving_status.document("now", {"a": row, "b": said(1)}, watched={"a": True, "b": True})
    assert (found["problems"], found["ok"]) == ([problem] if problem else [], problem is None)
    assert found["hosts"][0]["state"] == state and found["hosts"][1]["watchdog"] is None
    lines = serving_status.lines(found)
    assert lines[3].endswith("  watchdog") and lines[4].endswith(f"  {shown}") and lines[5].endswith("  not checked")
    json.dumps(found)


def test_a_watchdog_that_is_not_declared_may_be_away() -> None:
    found = serving_status.document("now", {"a": watched("inactive")}, watched={"a": False})
    assert (found["ok"], found["hosts"][0]["watchdog"]["state"]) == (True, "inactive")


@pytest.mark.parametrize(("health", "completes", "ok"), [(404, True, True), (404, False, False), (503, None, False)])
def test_an_engine_without_health_that_completes_serves(health: int, completes: bool | None, ok: bool) -> None:
    seen = {"health": health, "said": "", "readings": [], "completes": completes}
    found = serving_status.document("now", {"a": said(endpoint=seen)})
    assert (found["ok"], found["endpoint"]["answers"]) == (ok, ok)
    # Also where it is read through a tunnel, without the key.
    other = {"url": "http://tunnel:1", "health": health, "said": "", "readings": []}
    assert serving_status.document("now", {"a": said(endpoint=seen)}, other)["ok"] is ok


def test_the_watchdog_s_note_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "output", lambda *words: "ActiveState=active\nUnitFileState=enabled\nActiveEnterTimestampMonotonic=7\n")
    monkeypatch.setattr(probe, "LOOK", tmp_path / "watchdog")
    assert probe.watchdog() == {"active": "active", "enabled": "enabled", "since": "7", "last": None}
    monkeypatch.setattr(group, "RUN", tmp_path)
    own, last = group.State(invocation="i1"), watchdog.Last("missed", "no\nanswer of hf_abcdefghij", 2, 4, 0.5)
    watchdog.note(last, own, Limits())
    found = probe.watchdog()["last"]
    assert found.pop("at_s") > 0 and re.fullmatch(r"\d{4}-\d\d-\d\dT.{8}Z", found.pop("when"))
    assert found == {"format": 1, "verdict": "missed", "said": "no answer of …", "missed": 2, "misses": 4, "answer_s": 0.5, "next_within_s": 195, "invocation": "i1", "counters": False, "broken": False}
    assert (tmp_path / "watchdog").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["watchdog"]
    for broken in ("", "[1]", "{"):
        (tmp_path / "watchdog").write_text(broken)
        assert probe.watchdog()["last"] is None
    monkeypatch.setattr(group, "RUN", tmp_path / "watchdog" / "no folder")
    watchdog.note(last, own, Limits())  # where it cannot be written it watches all the same


ODD = ["x", None, [], {}, True, float("nan"), float("inf"), 10**400, -1]


@pytest.mark.parametrize("name", ["at_s", "missed", "misses", "next_within_s", "answer_s", "said", "verdict", "invocation", "broken"])
@pytest.mark.parametrize("odd", ODD)
def test_whatever_a_watchdog_s_note_says_there_is_a_status(name: str, odd: Any) -> None:
    for verdict in ("alive", "missed", "dead", "gone"):
        found = serving_status.document("now", {"a": watched(**{"verdict": verdict, name: odd})}, watched={"a": True})
        assert serving_status.lines(found) and found["hosts"][0]["watchdog"]["state"] == "active"
        serving_status.table(found)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("code", [200, 401, 500, 503])
def test_an_answer_that_is_cut_off_is_one(monkeypatch: pytest.MonkeyPatch, code: int, hangs: bool) -> None:
    """What the host says of itself must not go with it."""
    monkeypatch.setattr(probe, "ANSWER_S", 0.3)
    done = threading.Event()

    def answer(server: socket.socket) -> None:
        one, _ = server.accept()
        with one:
            one.recv(65536)
            one.sendall(f"HTTP/1.1 {code} X\r\nContent-Length: 100\r\n\r\nhalf".encode())
            done.wait(5 if hangs else 0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        status, text = probe.get(f"http://127.0.0.1:{server.getsockname()[1]}/health")
        done.set()
        thread.join()
    assert status == (0 if code == 200 else code) and isinstance(text, str)


def test_an_endpoint_that_is_read_from_here() -> None:
    other = {"url": "http://tunnel:1", "health": 200, "said": "", "readings": []}
    about = said()["release"] | {"bind": "0.0.0.0"}
    found = serving_status.document("now", {"a": said(release=about)}, other, {"a": "192.0.2.1"})["endpoint"]
    assert found["bind"] is None
    assert (found["url"], found["model"], found["answers"]) == ("http://tunnel:1", "m", True)
    assert found["generated_tok_s"] is None


# The probe.


class Engine(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        code = {"/sick/health": 503, "/plain/health": 404}.get(self.path, 200)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b"rank 1\nis away" if code == 503 else b"vllm:a_total 1\nvllm:b_bucket{le=\"1\"} 1\nother 2\n")


    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        good = body["model"] == "m" and self.headers.get("Authorization") in (None, "Bearer k")
        self.send_response(200 if good else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"usage": {"completion_tokens": body["max_tokens"]}}).encode())


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_an_engine_without_health_is_asked_for_a_token(engine: str) -> None:
    assert "completes" not in probe.endpoint(engine, 0, "", "m")
    for model, key, comes in (("m", "", True), ("m", "k", True), ("x", "", False), ("m", "other", False)):
        found = probe.endpoint(f"{engine}/plain", 0, key, model)
        assert (found["health"], found["completes"]) == (404, comes)


def test_the_probe_s_words(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said_by = {"systemctl": "ActiveState=active\nNRestarts=0\n", "nvidia-smi": "50, 12.5, 3, [N/A]\n"}
    monkeypatch.setattr(probe, "output", lambda *words: said_by.get(words[0]))
    monkeypatch.setattr(probe.shutil, "which", lambda name: name)
    (tmp_path / "current").mkdir()
    about = {"release": "r", "rank": 0, "endpoint": f"{engine}/", "bind": "0.0.0.0", "model": "m", "argv": ["secret"]}
    (tmp_path / "current/release.json").write_text(json.dumps(about))
    probe.main(str(tmp_path), "unit", "0")
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == {"ActiveState": "active", "NRestarts": "0"}
    assert found["gpus"] == [
        {"temperature.gpu": 50.0, "power.draw": 12.5, "utilization.gpu": 3.0, "memory.used": None}
    ]
    assert found["endpoint"]["health"] == 200
    assert [one["text"] for one in found["endpoint"]["readings"]] == ["vllm:a_total 1"] * 2
    assert "argv" not in found["release"] and found["release"]["bind"] == "0.0.0.0"
    assert found["memory"]["total"] > found["memory"]["available"]
    sick = probe.endpoint(f"{engine}/sick", 0)
    assert (sick["health"], sick["said"]) == (503, "rank 1 is away")


def test_the_probe_on_a_bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.shutil, "which", lambda name: None)
    assert probe.release(tmp_path) is None and probe.gpus() is None
    assert probe.endpoint("http://127.0.0.1:1", 0)["health"] == 0


# The command.


def run(monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], *words: str) -> Result:
    asked: list[list[str]] = []

    def told(command: list[str], endless: bool = False) -> Iterator[dict[str, Any]]:
        asked.append(command)
        yield document

    monkeypatch.setattr(status_cli, "_documents", told)
    result = CliRunner().invoke(main, [*words])
    result.asked = asked  # type: ignore[attr-defined]
    return result


INVENTORY = str(Path(__file__).resolve().parents[2] / "inventories" / "single.py")


def test_status_for_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    good = serving_status.document("now", {"a": said()})
    bad = serving_status.document("now", {"a": "no connection"})
    shown = run(monkeypatch, good, "status", INVENTORY)
    assert (shown.exit_code, shown.output.splitlines()[0]) == (0, "release r1, recipe x, now")
    shown = run(monkeypatch, bad, "status", INVENTORY, "--json")
    assert shown.exit_code == 1 and json.loads(shown.output)["endpoint"] is None
    shown = run(monkeypatch, good, "status", INVENTORY, "--endpoint", "http://h:1/v1", "--watch")
    assert 'status_endpoint="http://h:1"' in shown.asked[0][-3] and shown.asked[0][-1] == "status_interval=3.0"  # type: ignore[attr-defined]


def test_what_the_script_prints_is_read_as_it_comes() -> None:
    documents = status_cli._documents(["sh", "-c", "echo '{\"a\": 1}'; echo noise; echo '{\"a\": 2}'"])
    assert list(documents) == [{"a": 1}, {"a": 2}]
    with pytest.raises(SparkstackError, match="status: found no word; wanted what the hosts say"):
        list(status_cli._documents(["true"]))


ENDED = "status: found that status.py ended"


@pytest.mark.parametrize(
    ("script", "endless", "come", "error"),
    [
        ("exit 1", False, 1, None),
        ("exit 0", True, 1, f"{ENDED} with status 0; wanted it to go on until Ctrl-C; start it again"),
        ("echo 'ValueError: x' >&2; exit 1", True, 1,
         f"{ENDED} with status 1 (ValueError: x); wanted it to go on until Ctrl-C; start it again"),
        ("exit 7", False, 1, f"{ENDED} with status 7; wanted its whole answer; start it again"),
        ("kill -9 $$", True, 1, f"{ENDED} by signal 9; wanted it to go on until Ctrl-C; start it again"),
        ("kill -9 $$", False, 1, f"{ENDED} by signal 9; wanted its whole answer; start it again"),
        ("printf '{\"a\": '; exit 1", False, 1, f"{ENDED} with status 1; wanted its whole answer; start it again"),
        ("printf '{noise\n-->noise'", False, 1, None),
    ],
)  # fmt: skip
def test_a_script_that_dies_in_the_middle(script: str, endless: bool, come: int, error: str | None) -> None:
    documents = status_cli._documents(["sh", "-c", "echo '{}'; " + script], endless)
    assert [next(documents) for _ in range(come)] == [{}]
    if error is None:
        assert list(documents) == []
        return
    with pytest.raises(SparkstackError) as told:
        next(documents)
    assert str(told.value) == error


def test_who_watches_is_told_of_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(serving_status.document("now", {"a": said()}))
    monkeypatch.setattr(status_cli.hosts, "command", lambda *words: ["sh", "-c", f"echo '{good}'; kill -9 $$"])
    shown = CliRunner().invoke(main, ["status", INVENTORY, "--watch", "--json"])
    assert (shown.exit_code, shown.output.splitlines()) == (
        1, [good, f"{ENDED} by signal 9; wanted it to go on until Ctrl-C; start it again"]
    )  # fmt: skip


def test_why_the_script_said_nothing() -> None:
    told = "-->Loading\n  File x, line 1\nSyntaxError: '(' was never closed\n\n--> The full traceback has been written\n"
    assert status_cli._last(told) == "SyntaxError: '(' was never closed"
    assert status_cli._last("something else\n--> more\n") == "something else"


@pytest.mark.parametrize("url", ["h:1", "ftp://h", "http://", "http://h:99999"])
def test_what_is_no_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    shown = run(monkeypatch, {}, "status", INVENTORY, "--endpoint", url)
    assert shown.exit_code == 1
    assert shown.output == f"--endpoint: found {url!r}; wanted http://HOST:PORT; correct it\n"


def test_monitoring_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = serving_status.document("now", {"a": said(), "b": said(1)})
    shown = run(monkeypatch, good, "monitoring", INVENTORY, "--out", str(tmp_path / "new"))
    assert shown.exit_code == 0, shown.output
    scrape = yaml.safe_load((tmp_path / "new" / monitoring.SCRAPE).read_text())
    [job] = scrape["scrape_configs"]
    assert job["static_configs"] == [
        {"targets": ["h:8000"], "labels": {"recipe": "x", "hosts": "2", "head": "a"}}
    ]
    assert json.loads((tmp_path / "new" / monitoring.DASHBOARD).read_text())["uid"] == "sparkstack-serving"
    bad = run(monkeypatch, serving_status.document("now", {"a": "no connection"}), "monitoring", INVENTORY, "--out", "x")
    assert bad.output == (
        "monitoring: found no endpoint (a: found no connection; wanted an answer; check power, cable and ssh); "
        "wanted one; run deploy.py first\n"
    )
    file = tmp_path / "file"
    file.touch()
    told = run(monkeypatch, good, "monitoring", INVENTORY, "--out", str(file))
    assert (told.exit_code, told.output) == (1, f"{file}: found file exists; wanted a folder to write to; name another\n")


ALONE = "# The endpoint listens on a alone: Prometheus has to run there."
UNREACHED = [
    "# The endpoint listens on all interfaces of a; the inventory names none that",
    "# others reach: set `address` there, or write one in place of {}.",
]


@pytest.mark.parametrize(
    ("bind", "address", "target", "remarks"),
    [
        ("127.0.0.1", "192.0.2.1", "127.0.0.1:8000", [ALONE]),
        ("127.0.0.2", "192.0.2.1", "127.0.0.2:8000", [ALONE]),
        ("::1", "192.0.2.1", "[::1]:8000", [ALONE]),
        (None, "192.0.2.1", "127.0.0.1:8000", [ALONE]),  # of before it was noted
        ("192.0.2.7", "192.0.2.1", "192.0.2.7:8000", []),
        ("fd00::7", "192.0.2.1", "[fd00::7]:8000", []),
        ("0.0.0.0", "192.0.2.1", "192.0.2.1:8000", []),
        ("0.0.0.0", "spark-1.example", "spark-1.example:8000", []),
        ("::", "192.0.2.1", "192.0.2.1:8000", []),
        ("::", "fd00::1", "[fd00::1]:8000", []),
        ("::ffff:0.0.0.0", "192.0.2.1", "192.0.2.1:8000", []),
        ("::ffff:127.0.0.1", "192.0.2.1", "[::ffff:127.0.0.1]:8000", [ALONE]),
        ("0:0::0", "fd00::1", "[fd00::1]:8000", []),
        # All interfaces, and none that is known: this machine itself, a tunnel, IPv6 where it listens on IPv4.
        ("0.0.0.0", "127.0.0.1", "127.0.0.1:8000", [UNREACHED[0], UNREACHED[1].format("127.0.0.1")]),
        ("0.0.0.0", "localhost", "127.0.0.1:8000", [UNREACHED[0], UNREACHED[1].format("127.0.0.1")]),
        ("0.0.0.0", "fd00::1", "127.0.0.1:8000", [UNREACHED[0], UNREACHED[1].format("127.0.0.1")]),
        ("::", "::1", "[::1]:8000", [UNREACHED[0], UNREACHED[1].format("::1")]),
        ("0.0.0.0", None, "127.0.0.1:8000", [UNREACHED[0], UNREACHED[1].format("127.0.0.1")]),
    ],
)
def test_where_prometheus_and_programs_find_the_endpoint(
    bind: str | None, address: str | None, target: str, remarks: list[str]
) -> None:
    own = own_url(bind or "127.0.0.1", 8000)
    about = said()["release"] | {"endpoint": own, "bind": bind}
    addresses = {"b": "192.0.2.99"} | ({} if address is None else {"a": address})
    found = serving_status.document("now", {"b": said(1), "a": said(release=about)}, None, addresses)["endpoint"]
    assert (found["url"], found["bind"]) == (f"http://{target}", bind)
    text = monitoring.scrape(found["url"], "r", "x", ["a"], found["bind"])
    assert [line for line in text.splitlines() if line.startswith("#")][2:] == remarks
    assert yaml.safe_load(text)["scrape_configs"][0]["static_configs"][0]["targets"] == [target]


def test_the_dashboard_asks_for_what_vllm_says() -> None:
    known = set(NAMES.read_text().split())
    board = json.loads(monitoring.dashboard())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"vllm:\w+", target["expr"])
    }
    assert len(asked) >= 12
    for name in asked:
        assert re.sub(r"_(total|bucket)$", "", name) in known, name
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    vllm = engine_metrics.VLLM
    figures = [*vllm.generated, *vllm.prompt, *vllm.drafted, *vllm.accepted, vllm.kv_use[0]]
    for name in (*figures, *vllm.running, *vllm.waiting, *vllm.first_token):
        assert name.removesuffix("_total") in known, name
