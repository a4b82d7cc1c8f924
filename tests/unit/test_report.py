# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from sparkstack.errors import SparkstackError
from sparkstack.report import RunReport, curl
from sparkstack.report_text import render


def filled() -> RunReport:
    report = RunReport(when="20260101T000000Z", recipe="tiny", release="abc")
    report.add("docker", "spark-1", "daemon.json", "ok", 0.2)
    report.add("docker", "spark-2", "daemon.json", "ok", 0.3)
    report.add("fabric", "spark-1", "twins have addresses", "changed", 2.0)
    report.add("fabric", "spark-2", "twins have addresses", "changed", 3.0)
    report.add("fabric", "spark-1", "rank environment", "changed", 0.5)
    report.endpoint, report.model, report.head = "http://10.0.0.1:8000", "org/tiny", "spark-1"
    report.measurement = {
        "points": [
            {"streams": 1, "ttft_s": {"median": 0.3123}, "decode_tok_s": {"median": 7.126}},
            {"streams": 4, "ttft_s": {"median": None}, "decode_tok_s": {"median": 3.0}},
        ]
    }
    report.verdict = {
        "ok": True,
        "lines": [
            {"name": "decode_tok_s@1", "measured": 7.126, "expected": "≥ 0.5", "verdict": "pass"},
            {"name": "total_tok_s@1", "measured": None, "expected": None, "verdict": "baseline"},
        ],
    }
    return report


def shown(report: RunReport, terminal: bool = False, width: int = 80) -> str:
    stream = io.StringIO()
    render(report, Console(file=stream, force_terminal=terminal, width=width, color_system=None))
    return stream.getvalue()


def test_piped_it_is_plain_lines(tmp_path: Path) -> None:
    report = filled()
    report.path = "reports/run-x.json"
    command = curl("http://10.0.0.1:8000", "org/tiny")
    assert shown(report) == (
        "run 20260101T000000Z, recipe tiny\n"
        "docker            0.3 s  nothing to do\n"
        "fabric            3.0 s  changed: twins have addresses (spark-1, spark-2); changed: rank environment (spark-1)\n"
        "endpoint: http://10.0.0.1:8000 serves org/tiny (release abc)\n"
        f"  {command}\n"
        "with 1 stream: TTFT 0.312 s, decode 7.13 tok/s\n"
        "with 4 streams: TTFT not measured, decode 3 tok/s\n"
        "  decode_tok_s@1: 7.126, expected ≥ 0.5: pass\n"
        "  total_tok_s@1: not measured: baseline\n"
        "report: reports/run-x.json\n"
    )  # fmt: skip


def test_on_a_terminal_it_is_a_table_and_the_command_stays_one_line() -> None:
    text = shown(filled(), terminal=True)
    assert "what changed" in text and "┃" in text
    assert curl("http://10.0.0.1:8000", "org/tiny") in text


def test_failures_are_shown_and_count() -> None:
    report = RunReport(when="x", recipe="r", release="i")
    assert report.ok
    report.add("serve", "spark-1", "release serves", "failed", 61.0)
    report.failures.append("spark-1: serve: found [bold]x[/bold]; wanted y")
    assert not report.ok
    text = shown(report)
    assert "serve          1:01 min  failed: release serves (spark-1)" in text
    assert "failed: spark-1: serve: found [bold]x[/bold]; wanted y\n" in text


def test_what_was_not_measured_is_told() -> None:
    report = RunReport(when="x", recipe="r", release="i", endpoint="http://h:1", model="m")
    assert shown(report).endswith("  not measured\n")


def test_a_missed_gate_is_no_success() -> None:
    report = filled()
    assert report.ok
    report.verdict = {"ok": False, "lines": []}
    assert not report.ok


def test_links_are_counted_and_their_figures_shown() -> None:
    report = RunReport(when="x", recipe="r", release="i")
    line = {"host": "spark-1", "name": "both rails to spark-2", "found": "92 + 97 = 189 Gb/s", "remedy": ""}
    report.links = {
        "lines": [
            {**line, "wanted": "≥ 160 Gb/s", "status": "ok"},
            {**line, "name": "x carrier", "found": "carrier", "wanted": "carrier", "status": "ok"},
            {**line, "name": "y", "wanted": "≥ 80 Gb/s", "status": "not checked"},
        ]
    }
    report.collective = {"lines": [{**line, "found": "3 GB/s", "wanted": "≥ 21.8 GB/s", "status": "failed"}]}
    text = shown(report)
    assert "links: 2 ok, 1 failed, 1 not checked\n" in text
    assert "  spark-1: both rails to spark-2: 92 + 97 = 189 Gb/s, wanted ≥ 160 Gb/s: ok\n" in text
    assert "found" not in text and "y:" not in text and "3 GB/s, wanted ≥ 21.8 GB/s: failed" in text


def test_stages_sum_up_by_host() -> None:
    stages = filled().stages
    assert list(stages) == ["docker", "fabric"]
    assert stages["fabric"]["spark-1"] == {"changed": 2, "ok": 0, "failed": 0, "seconds": 2.5}


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    report = filled()
    report.write(tmp_path / "reports" / "run-1.json")
    text = (tmp_path / "reports" / "run-1.json").read_text()
    assert json.loads(text)["ok"] is True
    assert RunReport.from_json(text) == report
    assert report.path == str(tmp_path / "reports" / "run-1.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "operations": [{}]}'])
def test_what_is_no_report_is_one_line(text: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        RunReport.from_json(text, "run-1.json")
    assert caught.value.lines[0].startswith("run-1.json: found no report (")


@pytest.mark.parametrize("endpoint", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_curl_line_asks_for_a_completion(endpoint: str) -> None:
    words = shlex.split(curl(endpoint, "org/it's"))
    assert words[:3] == ["curl", "-sS", "http://h:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "org/it's"


def test_an_endpoint_on_the_head_alone_is_asked_there() -> None:
    words = shlex.split(curl("http://127.0.0.1:8000", "m", "spark-1"))
    assert words[:2] == ["ssh", "spark-1"]
    assert shlex.split(words[2])[0] == "curl"
    assert curl("http://127.0.0.1:8000", "m").startswith("curl")
