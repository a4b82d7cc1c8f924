"""The page without a browser (tests/browser has one): its words, its plots, where it lies, what came before."""

# ruff: noqa: E501 -- tables of cases

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from onhost.files import write_json
from sparkstack import gates, history, plots, report_files
from sparkstack.cli import main
from sparkstack.errors import SparkstackError
from sparkstack.report import RunReport
from sparkstack.report_page import page, time_text
from sparkstack.report_text import render
from tests.browser import sample

ROOT = Path(__file__).resolve().parents[2]


def test_what_comes_from_outside_is_text() -> None:
    text = page(sample.hostile())
    assert "<script" not in text and "<img" not in text and "onerror=alert(1)>" not in text
    assert "&lt;script&gt;" in text and "{{7*7}}" in text
    assert text.count("Content-Security-Policy") == 1


@pytest.mark.parametrize(
    ("changes", "expect", "headline"),
    [
        ({}, None, "Meets what its recipe expects"),
        ({}, {}, "Measured; nothing to compare it with"),
        ({"complete": False}, None, "Measured, and no result to rely on"),
        ({}, {"decode_tok_s": {1: {"min": 99}}}, "Misses what its recipe expects"),
    ],
)
def test_the_headline_is_the_verdict(
    changes: dict[str, bool], expect: dict[str, object], headline: str
) -> None:
    run = sample.report(expect, **changes)
    assert f"</span> {headline}</h1>" in page(run)
    run.failures.append("spark-1: serve: found x; wanted y")
    # A failure of the run is above a pass, and is what a miss or a doubt brings about.
    met = headline.startswith("Me") and not headline.endswith("rely on")
    assert (f"</span> {'The run failed' if met else headline}</h1>") in page(run)


def test_a_measurement_of_format_1_has_a_page() -> None:
    run = sample.report()
    spread = {"median": 7.0, "min": 7.0, "max": 7.0, "n": 3}
    point = {
        "streams": 1,
        "requests": 3,
        "failed": 0,
        "ttft_s": spread,
        "decode_tok_s": spread,
        "total_tok_s": 6.0,
    }
    run.measurement = {"format": 1, "release": "x", "when": "2026-01-02T03:04:05Z", "points": [point]}
    run.verdict = {"format": 1, "ok": True, "lines": [
        {"name": "decode_tok_s@1", "measured": 7.0, "expected": "≥ 0.5", "ratio": 14.0, "verdict": "pass"}
    ]}  # fmt: skip
    text = page(run)
    assert "7 tok/s" in text and "Meets what its recipe expects" in text


def broken_report() -> RunReport:
    """Requests failed in each part of the measurement, and of an input that nobody could count."""
    run = sample.report()
    assert run.measurement is not None

    def bad(name: str) -> dict[str, object]:
        return {"requests": 5, "failed": 2, "failures": [f"HTTP 500 ({name})", "other"]}

    run.measurement["points"] += [sample.point(1, 20, category="prose", thinking=True, **bad("thinks"))]
    none = {"median": None}
    run.measurement["contexts"] += [
        {
            "asked": 8192,
            "input_tokens": None,
            "ttft_s": none,
            "prefill_tok_s": None,
            "decode_tok_s": none,
            **bad("long"),
        }
    ]
    run.measurement["open_loop"] += [
        {"rate_rps": 4.0, "achieved_rps": None, "ttft_s": none, "output_tok_s": None, **bad("late")}
    ]
    run.measurement["noise"] = {"spread": None, "limit": 0.1, "repeated": 0, "verdict": "unknown"}
    run.verdict = gates.judge(run.measurement, sample.EXPECT).as_dict()
    return run


def test_requests_that_failed_stand_in_their_rows_with_the_reason() -> None:
    text = page(broken_report())
    for reason in ("thinks", "long", "late"):
        assert (
            f'data-name="Requests" class=""><span class="failed">5 (2 failed): HTTP 500 ({reason})</span>'
            in text
        )
    assert "<span>8192 (asked)</span>" in text and ">None<" not in text
    assert "nothing was repeated, so the spread is not known" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_requests_that_failed_are_told_in_the_text(terminal: bool) -> None:
    stream = io.StringIO()
    render(broken_report(), Console(file=stream, force_terminal=terminal, width=200, color_system=None))
    text = stream.getvalue()
    for line in (
        "with 512 tokens of input: TTFT 0.569 s, decode 20 tok/s\n",
        "with 8192 (asked) tokens of input: TTFT not measured, decode not measured; 2 of 5 requests failed: HTTP 500 (long)\n",
        "with requests at 2 /s: reached 1.7 /s, TTFT 2 s, output 2 tok/s\n",
        "with requests at 4 /s: reached not measured, TTFT not measured, output not measured; 2 of 5 requests failed: HTTP 500 (late)\n",
    ):  # fmt: skip
        assert line in text
    if not terminal:
        assert (
            "with 1 stream, prose, thinking: TTFT 0.31 s, decode 20 tok/s; 2 of 5 requests failed: HTTP 500 (thinks)\n"
            in text
        )


@pytest.mark.parametrize(
    "measurement",
    [
        {},
        {"points": 5},
        {"points": [None, {}]},
        {"quality": 1, "noise": []},
        {"contexts": [{}, 5], "open_loop": [{"failed": "x"}]},
    ],
)
def test_whatever_a_host_wrote_there_is_a_page(measurement: dict[str, object]) -> None:
    run = sample.report()
    run.measurement, run.verdict = measurement, None
    assert "Runs of this inventory before" in page(run)


def test_half_a_character_of_an_answer_is_no_reason_for_no_report(tmp_path: Path) -> None:
    run = sample.report()
    half = {"name": "exact", "status": "fail", "found": "answered by '\ud83d'", "wanted": "42", "score": 0.0}
    assert run.measurement is not None
    run.measurement["quality"] = [half]
    path = report_files.store(run, tmp_path)
    assert "answered by" in path.with_name(report_files.PAGE).read_text(encoding="utf-8")
    read = RunReport.from_json(path.read_text(encoding="utf-8"))
    assert read.measurement is not None and read.measurement["quality"] == [half]
    write_json(tmp_path / "measurement.json", run.measurement)  # as the host does before
    assert json.loads((tmp_path / "measurement.json").read_text(encoding="utf-8")) == run.measurement


def test_plots_are_well_formed_and_stay_in_their_frame() -> None:
    bars = plots.bars("a & b", [plots.Bar("<x>", 4.0, "4 s", 3.0, 9.0), plots.Bar("y", 0.0, "0 s")])
    series = [
        plots.Series("s & t", [(1, 5.0), (8, 40.0)], [None, (30.0, 50.0)]),
        plots.Series("one", [(1, 1.0)]),
    ]
    lines = plots.lines("title", series, "streams", "tok/s")
    for svg in (str(bars), str(lines).partition('<p class="legend')[0]):
        root = ElementTree.fromstring(svg)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for one in root.iter():
            assert 0 <= float(one.attrib.get("x", 0)) <= width
            assert 0 <= float(one.attrib.get("cy", 0)) <= height
        numbers = [float(n) for one in root.iter() for n in re.findall(r"[-\d.]+", one.attrib.get("d", ""))]
        assert all(-8 <= n <= width for n in numbers)
    assert plots.bars("t", []) == plots.lines("t", [], "x", "y") == ""


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0.36, [0, 0.1, 0.2, 0.3, 0.4]), (77.0, [0, 20, 40, 60, 80]), (1000.0, [0, 200, 400, 600, 800, 1000]), (0, [0, 1])],
)  # fmt: skip
def test_ticks_are_round(most: float, ticks: list[float]) -> None:
    assert plots.ticks_to(most) == ticks


def test_times_are_readable() -> None:
    assert time_text("20260102T030405Z") == time_text("2026-01-02T03:04:05Z") == "2026-01-02 03:04:05 UTC"
    assert time_text("yesterday") == "yesterday"


def test_every_run_has_a_folder_and_latest_leads_to_it(tmp_path: Path) -> None:
    first, second = sample.report(), sample.report()
    paths = [report_files.store(one, tmp_path) for one in (first, second)]
    assert [path.parent.name for path in paths] == ["20261129T231000Z-lab", "20261129T231000Z-lab-2"]
    assert (tmp_path / "latest").resolve() == paths[1].parent
    assert (tmp_path / "latest" / "report.html").is_file()
    (tmp_path / "run-20260101T000000Z.json").write_text("{}")
    os.utime(tmp_path / "run-20260101T000000Z.json", (1, 1))
    for number, path in enumerate(paths, 2):
        os.utime(path, (number, number))
    assert [path.parent.name for path in report_files.files(tmp_path)][1:] == [
        path.parent.name for path in paths
    ]
    assert RunReport.from_json(paths[0].read_text()) == first


@pytest.mark.parametrize(
    ("inventory", "name"),
    [
        ("lab", "T-lab"),
        ("../../etc", "T-etc"),
        ("a b/ü", "T-a-b"),
        ("", "T-inventory"),
        ("x" * 300, "T-" + "x" * 60),
    ],
)
def test_an_inventory_s_name_is_no_path(inventory: str, name: str) -> None:
    assert report_files.folder_name("T", inventory) == name


def test_history_is_of_this_inventory_and_before(tmp_path: Path) -> None:
    for when, inventory, tokens in (
        ("1", "lab", 10.0),
        ("2", "labs", 20.0),
        ("3", "lab", 30.0),
        ("9", "lab", 90.0),
    ):
        run = sample.report()
        run.when, run.inventory = f"2026112{when}T000000Z", inventory
        assert run.measurement is not None
        run.measurement["points"] = [sample.point(1, tokens)]
        report_files.store(run, tmp_path)
    (tmp_path / "20261120T000000Z-lab").mkdir()
    (tmp_path / "20261120T000000Z-lab" / "report.json").write_text('{"format": 2, "when": 5}')
    now = sample.report()
    now.when = "20261125T000000Z"
    found = history.earlier(tmp_path, now)
    assert [entry.decode_tok_s for entry in found] == [10.0, 30.0]
    assert found[0].page == "../20261121T000000Z-lab/report.html"


def test_a_page_that_cannot_be_made_is_one_line_and_the_report_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "bars", lambda *given: 1 / 0)
    with pytest.raises(SparkstackError, match=r"report\.html: found ZeroDivisionError: .*read report\.json$"):
        report_files.store(sample.report(), tmp_path)
    assert json.loads((tmp_path / "latest" / "report.json").read_text())["recipe"] == "lab-tiny"


def test_the_page_is_made_anew_by_a_command(tmp_path: Path) -> None:
    made = report_files.store(sample.report(), tmp_path).with_name("report.html")
    made.unlink()
    result = CliRunner().invoke(main, ["report", "--page", "--reports", str(tmp_path)])
    assert (result.output, made.is_file()) == (f"{made}\n", True)


def test_the_schema_in_docs_is_up_to_date() -> None:
    """`sparkstack report --schema > docs/report.schema.json` makes it."""
    assert (ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8") == report_files.schema()
