"""bench.py on serving hosts: it measures and reports; what serves stays, and all files but its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparkstack import report_files
from tests.lab.conftest import ROOT, Spark, newest_report, pyinfra
from tests.lab.test_end_to_end import differing, recipe_copy

pytestmark = pytest.mark.lab

OWN = re.compile(r"/var/lib/sparkstack/(jobs|plans)/sparkstack-bench-now-")


def test_what_serves_is_measured_and_left_alone(sparks: list[Spark], tmp_path: Path) -> None:
    before = [(spark.files(), spark.serving()) for spark in sparks]
    path = recipe_copy(tmp_path, expect__decode_tok_s={"1": {"min": 1_000_000}})
    run = pyinfra("-y", "--data", "profile=smoke", "--data", f"recipe={path}", script="bench.py")
    # A recipe that was named is what counts, and it asks for the impossible.
    assert run.code == 1, run.output
    assert re.search(r"spark-1: bench: found decode_tok_s@1 [\d.]+ .*1000000", run.output), run.output
    for spark, (files, serving) in zip(sparks, before, strict=True):
        assert spark.serving() == serving
        others = {name for name in differing(files, spark.files()) if not OWN.match(name)}
        assert others == set(), others
    told = json.loads(newest_report().read_text())
    assert (told["kind"], told["result"], told["inventory"]) == ("bench", "fail", "lab")
    assert told["measurement"]["points"][0]["decode_tok_s"]["median"] > 0
    assert told["deployed"]["checkpoint"] and told["head"] == "spark-1"
    page = (ROOT / "reports" / "latest" / report_files.PAGE).read_text()
    assert "Misses what its recipe expects" in page and told["release"] in page


def test_a_deployment_has_its_page_too() -> None:
    """Those of the files before: every run that did something has a report with a page."""
    folders = [path.parent for path in report_files.files(ROOT / "reports") if path.name == report_files.FILE]
    assert len(folders) > 1
    assert all((folder / report_files.PAGE).is_file() for folder in folders)
