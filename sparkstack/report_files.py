"""Where reports lie: `reports/<UTC time>-<inventory>/` with `report.json` and `report.html`.

`reports/latest` leads to the newest. Nothing of ours removes a report. Those of before lie beside the folders
as `run-<time>.json`.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from sparkstack.errors import Problem, SparkstackError
from sparkstack.report import RunReport

FILE = "report.json"
PAGE = "report.html"
LATEST = "latest"
OLD = "run-*.json"


def folder_name(when: str, inventory: str) -> str:
    """The name of a report's folder: an inventory's name may hold whatever a path may."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", inventory).strip("-.")[:60]
    return f"{when}-{plain or 'inventory'}"


def new_folder(reports: Path, when: str, inventory: str) -> Path:
    """Make the folder of a new report; two runs of one second have two."""
    name = folder_name(when, inventory)
    for number in range(1, 1000):
        folder = reports / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise SparkstackError(Problem(str(reports / name), "a thousand reports of one second", "a free name"))


def files(reports: Path) -> list[Path]:
    """The reports in a folder, of either format, oldest first."""
    found = [*reports.glob(f"*/{FILE}"), *reports.glob(OLD)]
    own = [path for path in found if not path.parent.is_symlink()]  # not `latest`
    return sorted(own, key=lambda path: (path.stat().st_mtime_ns, path.parent.name, path.name))


def store(report: RunReport, reports: Path) -> Path:
    """Write a report and its page into a folder of their own; returns `report.json`.

    Errors: SparkstackError where the page could not be made, OSError where the disk refuses; the report is
    written first.
    """
    folder = new_folder(reports, report.when, report.inventory)
    report.write(folder / FILE)
    with suppress(OSError):  # a file system without symlinks
        _lead(reports / LATEST, folder.name)
    write_page(report, folder, reports)
    return folder / FILE


def _lead(link: Path, target: str) -> None:
    if link.exists() and not link.is_symlink():
        return  # somebody's own
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.symlink_to(target)
    new.replace(link)


def write_page(report: RunReport, folder: Path, reports: Path) -> Path:
    """Make the page of a report in its folder. Errors: SparkstackError."""
    from sparkstack import history, report_page  # they need a template engine, and most commands need no page

    path = folder / PAGE
    try:
        text = report_page.page(report, history.earlier(reports, report))
    except Exception as error:
        # What a measurement holds is a host's word; a report without a page is still a report.
        found = f"{type(error).__name__}: {error}"
        wanted, remedy = "figures as docs/interfaces.md describes them", "read report.json"
        raise SparkstackError(Problem(str(path), found, wanted, remedy)) from error
    path.write_text(text, encoding="utf-8", errors="replace")
    return path


def schema() -> str:
    """The JSON Schema of `report.json` as text."""
    value = RunReport.model_json_schema(mode="serialization")
    value = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "report.schema.json", **value}
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
