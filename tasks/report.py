"""The report of a run: pyinfra's own events become stages with what changed and how long each took.

Written to `reports/<time>-<inventory>/` and printed when the run ends, however it ends.
"""

from __future__ import annotations

import atexit
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pyinfra import state as current_state
from pyinfra.api.state import BaseStateCallback
from rich.console import Console

from sparkstack import api_key, report_files
from sparkstack.errors import SparkstackError
from sparkstack.report import HostSeen, RunReport
from sparkstack.report_text import render

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


def begin(
    release: str,
    recipe: str,
    kind: Literal["deploy", "rollback", "bench"] = "deploy",
    deployed: dict[str, Any] | None = None,
) -> None:
    """Start listening to this run; later calls (deploy code runs once a host) change nothing."""
    global _report
    if _report is not None:
        return
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    _report = RunReport(
        kind=kind,
        when=stamp,
        inventory=inventory_name(current_state.inventory),
        recipe=recipe,
        release=release,
        hosts=[HostSeen(name=host.name, address=_address(host)) for host in current_state.inventory],
        versions=_versions(),
        deployed=deployed,
    )
    current_state.add_callback_handler(_Events())  # type: ignore[no-untyped-call]
    atexit.register(_end, time.monotonic())


def inventory_name(inventory: Any) -> str:
    """The name of the inventory's file, which pyinfra makes a group of all hosts; without a file the hosts'
    names."""
    names = [host.name for host in inventory]
    whole = [
        group
        for group, hosts in inventory.groups.items()
        if len(hosts) == len(names) and group != "all" and not group.startswith("@")
    ]
    # The file's group comes last.
    return str(whole[-1]) if whole else ",".join(name.lstrip("@") for name in names)


def _address(host: Any) -> str:
    address = host.data.get("address") or host.data.get("ssh_hostname") or ""
    return str(address)


def _versions() -> dict[str, str]:
    """What ran here."""
    found = {"Python": platform.python_version()}
    for name in ("sparkstack", "pyinfra"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def note_host(host: Any, versions: Mapping[str, str]) -> None:
    """What a host said of itself; what it did not say is left out."""
    for seen in _report.hosts if _report is not None else []:
        if seen.name == host.name:
            seen.versions = {name: version for name, version in versions.items() if version}


def note_failure(host: str, line: str) -> None:
    """A failure's line, as it was shown."""
    if _report is not None:
        _report.failures.append(line)


def note_not_ready() -> None:
    """This run's release does not serve, and so far nothing else does."""
    if _report is not None:
        _report.endpoint = None


def note_release(release: str, about: Mapping[str, Any]) -> None:
    """The release that is measured, where the run learns of it on the way: its release.json."""
    if _report is not None:
        _report.release, _report.recipe = release, str(about.get("recipe"))
        _report.deployed = made_of(about)


def made_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """Of a release.json what a report says: what it is made of, and not what each rank runs."""
    left_out = ("format", "rank", "argv", "env", "ready_timeout_s", "hosts")
    return {key: value for key, value in about.items() if key not in left_out}


def note_bench(
    recipe: str | None,
    endpoint: str,
    head: str | None,
    model: str,
    measurement: dict[str, Any],
    verdict: dict[str, Any],
    asks_key: bool = False,
) -> None:
    """What was measured at an endpoint, and the recipe that it was compared with; whether a key was sent."""
    if _report is not None:
        _report.recipe = recipe or _report.recipe
        _report.endpoint, _report.head, _report.model = endpoint, head, model
        _report.api_key = asks_key
        _report.measurement, _report.verdict = measurement, verdict


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


def note_endpoint(site: Any) -> None:
    """Where this run's release answers."""
    if _report is not None:
        _report.endpoint = site.endpoint
        # This machine needs no ssh to ask itself.
        _report.head = None if site.head.name == "@local" else site.head.name
        _report.model, _report.api_key = site.served_model, site.api_key is not None


def note_benchmark(site: Any, measurement: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Where the endpoint is, what was measured there, and how it was judged."""
    note_endpoint(site)
    if _report is not None:
        _report.measurement = measurement
        _report.verdict = verdict


def _end(began: float) -> None:
    if _report is None or not _report.operations:
        return  # a dry run, or nothing was reached
    _report.seconds = round(time.monotonic() - began, 1)
    try:
        report_files.store(_report, REPORTS)
    except (SparkstackError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
    render(_report, Console(stderr=True))
