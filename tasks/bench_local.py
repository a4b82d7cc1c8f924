"""The benchmark as a process of this machine: for an endpoint that is reached from here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstack.figures import table_of
from tasks import interrupts
from tasks.remote import POLL_SECONDS, WATCH_SECONDS, progress, show
from tasks.site import ROOT

FOLDER = ROOT / ".cache" / "bench"
LABEL = "bench"
WITH_PARENT = Path(__file__).with_name("with_parent.py")


@dataclass(frozen=True)
class End:
    """How it ended: what was measured (a part of it, where there was an error, Ctrl-C or a signal), and why
    not all; `by` says what interrupted it."""

    measurement: dict[str, Any] | None
    error: str = ""
    interrupted: bool = False
    by: str = ""


def run(plan: dict[str, Any], key: str | None, folder: Path = FOLDER) -> End:
    """Run a plan to its end and show how far it is. The key never is in a file that has a name.

    All of it lies in a folder of this run's own: of two endpoints that are measured at the same time none may
    be told the other's figures. What the process said stays as `<job>.log`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as name, ExitStack() as stack:
        jobs = Path(name)
        job, descriptors = jobs / str(plan["job"]), []
        job.mkdir()
        if key:
            # Gone with the two processes, whatever ends them.
            file = stack.enter_context(tempfile.TemporaryFile(dir=jobs))
            file.write(f"{key}\n".encode())
            file.seek(0)
            descriptors.append(file.fileno())
        whole = {
            **plan,
            "jobs_dir": str(jobs),
            "result": str(job / "measurement.json"),
            "api_key_file": f"/dev/fd/{descriptors[0]}" if descriptors else None,
        }
        plan_file = job / "plan.json"
        plan_file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        try:
            return _followed(plan_file, job, descriptors)
        finally:
            with suppress(OSError):
                shutil.copyfile(job / "log", folder / f"{plan['job']}.log")


def _followed(plan_file: Path, job: Path, descriptors: list[int]) -> End:
    # However this process ends, the other one ends with it: by -P no module of tasks/ is in its way.
    words = [sys.executable, "-P", str(WITH_PARENT), "onhost", "job", str(plan_file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    looked_at, interrupted = time.monotonic(), False
    # A session of its own: Ctrl-C is for us to hear, and ends the job in good order.
    with (
        (job / "log").open("w", encoding="utf-8") as log,
        interrupts.heard() as interrupt,
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            start_new_session=True,
        ) as process,
    ):
        try:
            while process.poll() is None:
                if interrupt.once():
                    interrupted = True
                    process.send_signal(signal.SIGTERM)
                _show(job / "progress.jsonl")
                if time.monotonic() - looked_at >= WATCH_SECONDS:
                    looked_at = time.monotonic()
                    if (found := _json(job / "measurement.json")) is not None:
                        progress.show(LABEL, table_of(found))
                time.sleep(POLL_SECONDS / 4)
        finally:
            if process.poll() is None:  # a second Ctrl-C, or an error of ours
                process.kill()
                process.wait()
            progress.finish(LABEL)
    end, measurement = _json(job / "result.json"), _json(job / "measurement.json")
    if end is not None and end.get("ok"):
        return End(measurement, "" if measurement else "found no measurement; wanted one; run again")
    said = (job / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    error = str((end or {}).get("error") or (said[-1] if said else "that it ended without a word"))
    return End(measurement, error, interrupted, interrupt.name)


def _show(path: Path) -> None:
    with suppress(OSError, IndexError):  # nothing yet
        show(LABEL, path.read_text(encoding="utf-8").splitlines()[-1])


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
