"""What earlier runs of an inventory brought: a line each, from the reports that lie there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparkstack.errors import SparkstackError
from sparkstack.figures import points_of
from sparkstack.report import Result, RunReport
from sparkstack.report_files import PAGE, files, folder_name

MOST = 50
"""So many runs are looked at: a page is read, and reading them all would take longer every time."""


@dataclass(frozen=True)
class Entry:
    """A run and its figures (None: not measured): one stream, and the most tokens/s of all streams."""

    when: str
    kind: str
    recipe: str
    release: str
    ok: bool
    result: Result
    ttft_s: float | None
    decode_tok_s: float | None
    total_tok_s: float | None
    complete: bool = True
    page: str | None = None

    @classmethod
    def of(cls, report: RunReport, page: str | None = None) -> Entry:
        points = [point for point in points_of(report.measurement) if point.category == "all"]
        single = next((point for point in points if point.streams == 1), None)
        totals = [point.total_tok_s for point in points if point.total_tok_s is not None]
        return cls(
            report.when,
            report.kind,
            report.recipe,
            report.release,
            report.ok,
            report.result,
            single.ttft_s if single else None,
            single.decode_tok_s if single else None,
            max(totals, default=None),
            (report.measurement or {}).get("complete") is not False,
            page,
        )


def earlier(reports: Path, now: RunReport) -> list[Entry]:
    """The runs of `now`'s inventory before it, oldest first; what cannot be read is left out."""
    found: list[Entry] = []
    name = folder_name("", now.inventory)
    mine = [path for path in files(reports) if path.parent.name[len(now.when) :].startswith(name)]
    for path in reversed(mine):
        if len(found) >= MOST:
            break
        report = _read(path)
        if report is None or report.inventory != now.inventory or report.when >= now.when:
            continue
        if report.endpoint != now.endpoint and not (report.release and now.release):
            continue  # somebody's endpoints, measured from one place
        page = path.with_name(PAGE)
        found.append(Entry.of(report, f"../{path.parent.name}/{PAGE}" if page.exists() else None))
    return sorted(found, key=lambda entry: entry.when)


def _read(path: Path) -> RunReport | None:
    try:
        return RunReport.from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, SparkstackError):
        return None


def measured(entries: Iterable[Entry]) -> list[Entry]:
    """Those that have a figure to plot; a measurement that was cut off has none that compares."""
    return [entry for entry in entries if entry.decode_tok_s is not None and entry.complete]
