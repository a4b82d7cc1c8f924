"""The runner: one result whatever happens, one run at a time, progress that can be followed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from spark import Host

from onhost import jobs
from onhost.jobs import Job, Progress, Stopped
from onhost.plan import JobError


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a function the kind "probe"."""
    import sys
    import types

    def make(function: Any) -> None:
        module = types.ModuleType("probe_module")
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_module", module)
        monkeypatch.setitem(jobs.KINDS, "probe", "probe_module:run")

    return make


def test_a_job_that_ends_well(host: Host, kind: Any) -> None:
    def work(job: Job) -> dict[str, int]:
        assert not (job.folder / "result.json").exists()  # an old result must not be read as this run's
        job.progress.stage("work", 3, "steps", "three")
        for _ in range(3):
            job.progress.add(1)
        return {"answer": 42}

    kind(work)
    plan = host.write_plan("probe")
    host.folder(plan).mkdir(parents=True)
    (host.folder(plan) / "result.json").write_text('{"ok": true}')
    result = host.run(plan)
    assert result["ok"] and result["value"] == {"answer": 42} and result["seconds"] >= 0
    lines = host.progress(plan)
    assert lines[0].keys() == {"t", "stage", "done", "total", "unit", "note"}
    assert [line["done"] for line in lines] == [0, 3]
    assert sorted(path.name for path in host.folder(plan).iterdir()) == [
        "lock",
        "progress.jsonl",
        "result.json",
    ]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (JobError("found a; wanted b;\n c"), "found a; wanted b; c"),
        (ValueError("two\nlines"), "found an unexpected ValueError: two lines; wanted none; see the journal"),
        (OSError(errno.ENOSPC, "No space left", "/data/x"), "found no space left at /data/x; wanted room"),
        (OSError(errno.EDQUOT, "Quota"), "found no space left at the disk; wanted room"),
        (OSError(errno.EIO, "Input/output error", "/data/x"), "found 'Input/output error' at /data/x"),
    ],
)
def test_a_job_that_fails(
    host: Host, kind: Any, error: Exception, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: Job) -> None:
        raise error

    kind(work)
    result = host.run(host.write_plan("probe"))
    assert not result["ok"] and found in result["error"]
    said = capsys.readouterr().err
    assert result["error"] in said
    assert ("Traceback" in said) == (not isinstance(error, JobError))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_disk_that_is_full_of_others_files(
    host: Host, kind: Any, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job's own notes find no room (`left` pages of 4 KiB): one line says where."""
    kind(lambda job: [job.progress.stage(f"{number}" * 3000, 1, "steps") for number in range(9)])
    plan = host.write_plan("probe")
    folder = host.folder(plan)
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={4 * max(left, 1)}k", "none", str(folder)], check=True
    )
    try:
        if not left:
            (folder / "of somebody").write_bytes(bytes(4096))
        assert jobs.main(str(plan)) == 1
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"found no space left at {folder}/"), said
    assert said.endswith("free some space and run again")


def test_sigterm_is_a_result(host: Host, kind: Any) -> None:
    def work(job: Job) -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            time.sleep(5)
        except Exception:  # as careless code would
            pytest.fail("a handler swallowed the signal")

    kind(work)
    before = signal.getsignal(signal.SIGTERM)
    result = host.run(host.write_plan("probe"))
    assert result["error"].startswith("found SIGTERM before the end; wanted to finish; start the job again")
    assert signal.getsignal(signal.SIGTERM) is before
    assert not issubclass(Stopped, Exception)


def test_two_runs_of_one_job(host: Host, kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    inner: list[int] = []
    plan = host.write_plan("probe")

    def work(job: Job) -> None:
        if not inner:
            inner.append(jobs.main(str(plan)))
            assert not (job.folder / "result.json").exists()

    kind(work)
    assert host.run(plan)["ok"]
    assert inner == [1]
    assert "found sparkstack-probe-1 running already; wanted one at a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (None, "found no plan at"),
        ("{", "that is not JSON"),
        ("[]", "found list in"),
        ({"kind": "bench"}, "found nothing for the plan's key job; wanted a string"),
        (
            {"job": "a", "kind": "dance", "jobs_dir": "/x"},
            "found the job kind 'dance'; wanted one of checkpoint,",
        ),
        (
            {"job": "a", "kind": "bench", "jobs_dir": "x"},
            "found 'x' for the plan's key jobs_dir; wanted an absolute",
        ),
        ({"job": "../a", "kind": "bench", "jobs_dir": "/x"}, "found the job name '../a'"),
    ],
)
def test_bad_plans(tmp_path: Path, plan: Any, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    if plan is not None:
        path.write_text(plan if isinstance(plan, str) else json.dumps(plan))
    assert jobs.main(str(path)) == 1
    said = capsys.readouterr().err
    assert found in said and said.count("\n") == 1


def test_progress_is_limited_but_complete() -> None:
    now = [0.0]
    file = StringIO()
    progress = Progress(file, clock=lambda: now[0])
    progress.stage("a", 1000, "B")
    for _ in range(1000):
        progress.add(1)
        now[0] += 0.001
    progress.stage("b", None, "steps")
    progress.set(3, 7, "third")
    progress.close()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(line["stage"], line["done"]) for line in lines if line["done"] in {0, 1000, 3}] == [
        ("a", 0), ("a", 1000), ("b", 0), ("b", 3),
    ]  # fmt: skip
    assert len(lines) <= 7
    assert lines[-1]["total"] == 7 and lines[-1]["note"] == "third"


def test_a_long_error_is_cut() -> None:
    assert jobs.one_line("a \n b") == "a b"
    assert len(jobs.one_line("x" * 5000)) == jobs.LONGEST_ERROR
