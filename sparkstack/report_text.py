"""The report on a terminal: tables there, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkstack.figures import HEADINGS, contexts_of, notes_of, open_loop_of, points_of, table_of
from sparkstack.progress import clean
from sparkstack.report import RunReport, changes, curl, link_lines, seconds_of
from sparkstack.units import seconds_text

STYLES = {
    "changed": "yellow",
    "ok": "green",
    "failed": "bold red",
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "magenta",
    "baseline": "cyan",
    "not checked": "dim",
}
LINK_STATUSES = ("ok", "failed", "not checked")


def render(report: RunReport, console: Console) -> None:
    """Show the report: tables on a terminal, plain lines elsewhere."""
    title = f"{'run' if report.kind != 'bench' else 'benchmark'} {report.when}, recipe {report.recipe}"
    if console.is_terminal:
        if report.stages:
            table = Table("stage", "time", "what changed", title=title)
            for stage in report.stages:
                table.add_row(*_row(report, stage))
            console.print(table)
        for measurement, verdict in _measured(report):
            _tables(console, measurement, verdict)
    else:
        _say(console, title)
        for stage in report.stages:
            name, seconds, what = _row(report, stage)
            _say(console, f"{name:<12} {seconds:>10}  {what.plain}")
    for line in _lines(report, figures=not console.is_terminal):
        _say(console, line)


def _row(report: RunReport, stage: str) -> tuple[str, str, Text]:
    what = Text()
    for status, name, hosts in changes(report, stage):
        what.append("; " if what else "")
        what.append(status, STYLES[status])
        what.append(f": {name} ({', '.join(hosts)})")
    return stage, seconds_text(seconds_of(report, stage)), what or Text("nothing to do", STYLES["ok"])


def _measured(report: RunReport) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    yield report.measurement, report.verdict
    if report.serving is not None:
        yield report.serving_measurement, report.serving_verdict


def _tables(
    console: Console, measurement: dict[str, Any] | None, verdict: dict[str, Any] | None
) -> None:
    if not measurement:
        return
    title = f"release {measurement.get('release')}, measured {measurement.get('when')}"
    table = Table(*HEADINGS, title=clean(title))
    for row in table_of(measurement):
        table.add_row(*(Text(clean(cell)) for cell in row))
    console.print(table)
    if not verdict:
        return
    table = Table("figure", "measured", "expected", "ratio", "verdict")
    for line in verdict["lines"]:
        ratio = line.get("ratio")
        cells = [line["name"], measured_text(line["measured"]), line["expected"] or ""]
        cells.append("" if ratio is None else f"{ratio:.3g}")
        table.add_row(
            *(Text(clean(cell)) for cell in cells), Text(line["verdict"], STYLES.get(line["verdict"], ""))
        )
    console.print(table)


def _lines(report: RunReport, figures: bool) -> Iterator[str]:
    for failure in report.failures:
        yield f"failed: {failure}"
    yield from _links(link_lines(report))
    if report.endpoint:
        serves = f"serves {report.model} (release {report.serving or report.release or 'not known'})"
        yield f"endpoint: {report.endpoint} {serves}"
        yield f"  {curl(report.endpoint, report.model or '', report.head, report.api_key)}"
        if not report.measurement and report.serving is None:
            yield "  not measured"
    if report.serving is not None and report.measurement:
        yield f"release {report.release} of this run, which does not serve:"
    yield from _figures(report.measurement, report.verdict, figures)
    if report.serving is not None:
        yield f"release {report.serving}, which serves:"
        yield from _figures(report.serving_measurement, report.serving_verdict, figures)
        if not report.serving_measurement:
            yield "  not measured"
    if report.path:
        yield f"report: {report.path}"


def _figures(
    measurement: dict[str, Any] | None, verdict: dict[str, Any] | None, each: bool
) -> Iterator[str]:
    """`each`: every figure, where no table shows them."""
    if each:
        for point in points_of(measurement):
            yield point.line
    for one in (*contexts_of(measurement), *open_loop_of(measurement)):
        yield one.text
    if each:
        for line in (verdict or {}).get("lines", []):
            expected = f", expected {line['expected']}" if line["expected"] else ""
            note = f" ({line['note']})" if line.get("note") else ""
            yield f"  {line['name']}: {measured_text(line['measured'])}{expected}: {line['verdict']}{note}"
    elif verdict:
        for line in verdict["lines"]:
            if line.get("note"):
                yield f"  {line['name']}: {line['verdict']}: {line['note']}"
    for note in notes_of(measurement):
        yield f"  {note}"
    if verdict and verdict.get("result"):
        yield f"verdict: {verdict['result']}: {verdict['why']}"


def _links(lines: list[dict[str, Any]]) -> Iterator[str]:
    """How many checks of the links passed, and the figures; what failed has been said by then."""
    if not lines:
        return
    counts = {status: sum(line["status"] == status for line in lines) for status in LINK_STATUSES}
    yield "links: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    for line in lines:
        if line["status"] != "not checked" and line["wanted"].startswith("≥"):
            text = f"{line['host']}: {line['name']}: {line['found']}, wanted {line['wanted']}"
            yield f"  {text}: {line['status']}"


def measured_text(value: Any) -> str:
    """A verdict's measured value; numbers with four digits."""
    return "not measured" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(console: Console, line: str) -> None:
    # A line stays a line whatever the width: people copy the command out of it.
    console.print(Text(clean_line(line)), soft_wrap=True, highlight=False)


def clean_line(line: str) -> str:
    """As `clean`, with the blanks at its beginning."""
    text = line.lstrip(" ")
    return " " * (len(line) - len(text)) + "".join(c if c.isprintable() else " " for c in text)
