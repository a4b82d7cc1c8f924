"""The report of a run: pyinfra's own events become stages with what changed and how long each took.

Written as `reports/run-<time>.json` and printed when the run ends, however it ends.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyinfra import state as current_state
from pyinfra.api.state import BaseStateCallback
from rich.console import Console

from sparkstack import api_key
from sparkstack.report import RunReport

REPORTS = Path(__file__).resolve().parent.parent / "reports"

_report: RunReport | None = None
_started: dict[str, float] = {}


class _Events(BaseStateCallback):
    """pyinfra's callbacks are static; what they collect is the module's."""

    @staticmethod
    def operation_start(state: Any, op_hash: str) -> None:
        _started[op_hash] = time.monotonic()

    @staticmethod
    def operation_host_error(
        state: Any, host: Any, op_hash: str, retry_count: int = 0, max_retries: int = 0
    ) -> None:
        _record(state, op_hash, failed=host)

    @staticmethod
    def operation_end(state: Any, op_hash: str) -> None:
        _record(state, op_hash)


def _record(state: Any, op_hash: str, failed: Any = None) -> None:
    assert _report is not None
    name = next(iter(state.get_op_meta(op_hash).names))
    stage, _, operation = name.partition(" | ")
    seconds = time.monotonic() - _started.get(op_hash, time.monotonic())
    if failed is not None:
        _report.add(stage, failed.name, operation, "failed", seconds)
        return
    for host, operations in state.ops.items():
        if op_hash in operations and operations[op_hash].operation_meta.is_complete():
            meta = operations[op_hash].operation_meta
            if meta.did_succeed():
                _report.add(stage, host.name, operation, "changed" if meta.did_change() else "ok", seconds)


def begin(release: str, recipe: str) -> None:
    """Start listening to this run; later calls (deploy code runs once a host) change nothing."""
    global _report
    if _report is not None:
        return
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    _report = RunReport(when=stamp, recipe=recipe, release=release)
    current_state.add_callback_handler(_Events())  # type: ignore[no-untyped-call]
    atexit.register(_end, REPORTS / f"run-{stamp}.json")


def note_failure(host: str, line: str) -> None:
    """A failure's line, as it was shown."""
    if _report is not None:
        _report.failures.append(line)


def note_not_ready() -> None:
    """This run's release does not serve, and so far nothing else does."""
    if _report is not None:
        _report.endpoint = None


def note_serving(
    head: Any,
    release: str,
    about: Mapping[str, Any],
    measurement: dict[str, Any] | None = None,
    verdict: dict[str, Any] | None = None,
) -> None:
    """Another release than this run's serves: its release.json, and what was measured of it."""
    if _report is not None:
        _report.serving = release
        _report.endpoint, _report.model = about.get("endpoint"), about.get("model")
        _report.head = None if head.name == "@local" else head.name
        _report.api_key = api_key.VARIABLES[0] in (about.get("env") or {})
        _report.serving_measurement, _report.serving_verdict = measurement, verdict


def note_links(result: dict[str, Any]) -> None:
    """What was measured on the links, now or in a run before."""
    if _report is not None:
        _report.links = result


def note_collective(result: dict[str, Any]) -> None:
    """What NCCL's all_gather brought."""
    if _report is not None:
        _report.collective = result


def note_benchmark(site: Any, measurement: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Where the endpoint is, what was measured there, and how it was judged."""
    if _report is not None:
        _report.endpoint = site.endpoint
        # This machine needs no ssh to ask itself.
        _report.head = None if site.head.name == "@local" else site.head.name
        _report.model, _report.api_key = site.served_model, site.api_key is not None
        _report.measurement = measurement
        _report.verdict = verdict


def _end(path: Path) -> None:
    if _report is None or not _report.operations:
        return  # a dry run, or nothing was reached
    _report.write(path)
    _report.render(Console(stderr=True))
