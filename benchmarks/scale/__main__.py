"""How a run's time grows with the number of hosts: `python -m benchmarks.scale [N …]` (default 1 2 8 4 3).

The lab with so many virtual Sparks, each deployed with the light engine (a stand-in: no model is computed),
then run again without a change, three times as they are, and three times with an equal share of a core each
(`--share`, a fifth). As they are, all hosts share this machine's cores, so that eight are slower hosts than
two: that is no growth of ours, and Sparks have cores of their own. With equal shares a host is as fast (or
slow) whatever the number. The controller's part is real in both. Ends with status 1 where 8 hosts of equal
share take more than 1.5 times what 2 take (each by its quickest repeat: whatever else runs here only adds),
or where a repeated run changes something; the ratio without shares is told beside it. The lab keeps hosts
that stand, so fewer after more are quick. Rows of other numbers in today's result are kept. Takes the lab; a
quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 1.5
REPEATS = 3


def sparkstack(*words: str) -> str:
    code = "import sys; from sparkstack.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env=_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"scale: sparkstack {' '.join(words)}: {done.stderr.strip() or done.stdout[-500:]}")
    return done.stdout


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def deploy(count: int) -> tuple[float, dict[str, Any]]:
    """Seconds of one run, and its report."""
    kind = "single" if count == 1 else "switch"  # the lab's rails are two networks, whatever the number
    fabric = json.dumps({"kind": kind, "port": 0, "base": "192.168.96.0/19"})
    words = ["inventories/lab.py", "deploy.py", "-y", "--data", "recipe=lab-light"]
    # A host that joins gets Docker's settings, and with them a restart, while others serve.
    words += ["--data", f"fabric={fabric}", "--data", "restart_serving=yes"]
    began = time.monotonic()
    done = subprocess.run(
        [str(BIN / "pyinfra"), *words], cwd=ROOT, env=_env(), capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"scale: {count} hosts: the run failed:\n{(done.stdout + done.stderr)[-3000:]}")
    newest = ROOT / "reports/latest/report.json"
    if time.time() - newest.stat().st_mtime > seconds:
        raise SystemExit(f"scale: {count} hosts: found no report newer than the run's beginning")
    return seconds, json.loads(newest.read_text())


def changed(report: dict[str, Any]) -> list[str]:
    return [f"{one['host']}: {one['name']}" for one in report["operations"] if one["status"] == "changed"]


def repeated(count: int) -> list[float]:
    repeats = []
    for _ in range(REPEATS):
        seconds, again = deploy(count)
        if told := changed(again):
            raise SystemExit(f"scale: {count} hosts: a repeated run changed {told}")
        repeats.append(round(seconds, 2))
    return repeats


def limit_hosts(names: Iterable[str], cores: float) -> None:
    """Gives each host at most so many cores; 0: all."""
    # What a container may have is not taken back by 0, so all of them are said.
    words = ["docker", "update", "--cpus", str(cores or os.cpu_count()), *names]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


def measure(count: int, share: float) -> dict[str, Any]:
    sparkstack("lab", "up", "--nodes", str(count))
    first, report = deploy(count)
    repeats = repeated(count)
    names = [f"spark-{number}" for number in range(1, count + 1)]
    limit_hosts(names, share)
    try:
        shared = repeated(count)
    finally:
        limit_hosts(names, 0)
    status = json.loads(sparkstack("status", "inventories/lab.py", "--json"))
    serving = [host for host in status["hosts"] if host["state"] == "serves"]
    row = {
        "hosts": count,
        "first_s": round(first, 1),
        "again_s": repeats,
        "median_s": statistics.median(repeats),
        "least_s": min(repeats),
        "share": share,
        "share_again_s": shared,
        "share_least_s": min(shared),
        "serving": len(serving),
        "answers": status["endpoint"]["answers"],
        "release": report["release"],
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(row), flush=True)
    if len(serving) != count or not row["answers"]:
        raise SystemExit(f"scale: {count} hosts: {len(serving)} serve; {status['problems']}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", default=[1, 2, 8, 4, 3])
    parser.add_argument("--keep", action="store_true", help="leave the last lab standing")
    parser.add_argument("--share", type=float, default=0.2, help="cores that each host has (default 0.2)")
    given = parser.parse_args()
    counts, keep = given.counts, given.keep
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    path = ROOT / "benchmarks" / "results" / f"scale-{when}.json"
    rows = {row["hosts"]: row for row in (json.loads(path.read_text())["rows"] if path.exists() else [])}
    try:
        for count in counts:
            rows[count] = measure(count, given.share)
            plain, ratio = _write(path, when, [rows[one] for one in sorted(rows)])
    finally:
        if not keep:
            sparkstack("lab", "down")
    print(f"8 to 2 hosts, equal shares: {ratio}, wanted ≤ {LIMIT}; without: {plain}")
    print(path.relative_to(ROOT))
    if ratio is not None and ratio > LIMIT:
        raise SystemExit(1)


def _write(path: Path, when: str, rows: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Writes the result down; returns what 8 hosts take in terms of 2, as they are and with equal shares;
    None where one of them is missing, or had another share."""
    by_count = {row["hosts"]: row for row in rows}
    two, eight = by_count.get(2, {}), by_count.get(8, {})
    ratios = []
    for name in ("least_s", "share_least_s"):
        both = name in two and name in eight and two.get("share") == eight.get("share")
        ratios.append(round(eight[name] / two[name], 2) if both else None)
    found = {
        "when": when,
        "cores": os.cpu_count(),
        "rows": rows,
        "ratio_8_to_2": ratios[0],
        "ratio_8_to_2_equal_shares": ratios[1],
        "limit": LIMIT,
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    return ratios[0], ratios[1]


if __name__ == "__main__":
    main()
