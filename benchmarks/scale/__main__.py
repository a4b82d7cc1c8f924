"""How a run's time grows with the number of hosts: `python -m benchmarks.scale [N …]` (default 1 2 8 4 3).

The lab with so many virtual Sparks, each deployed with the light engine (a stand-in: no model is computed),
then run again without a change, five times. All hosts share this machine's cores: the controller's part is
real, the hosts' own is slower than on as many Sparks; the processor time of each stands beside the run's.
So the same is then run five times as if each host had cores of its own (`tape`: every command takes what it
took alone on this machine; a stand-in for the hosts' work, not for the controller's nor for SSH's).

Ends with status 1 where 8 hosts take more than 1.5 times what 2 take, on the shared cores or with their own
(each by its quickest repeat: whatever else runs here only adds), or where a repeated run changes something.
The lab keeps hosts that stand, so fewer after more are quick. Rows of other
numbers in today's result are kept. Takes the lab; a quarter of an hour.

`--engine vllm`: vLLM's CPU build with the tiny model in place of the light engine, tensor parallel where its
heads divide, else a pipeline; some 2 GB of memory a host. Nothing is said of ratios then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lab import tiny_qwen

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 1.5
REPEATS = 5


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


def recipe_of(engine: str, folder: Path) -> str:
    """A recipe of the lab for any number of hosts."""
    if engine == "light":
        return "lab-light"
    recipe = yaml.safe_load((ROOT / "recipes" / "lab-tiny.yaml").read_text()) | {"max_nodes": 8}
    recipe["metadata"] = {"num_attention_heads": tiny_qwen.HEADS, "num_kv_heads": tiny_qwen.KV_HEADS}
    path = folder / "lab-tiny.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return str(path)


def deploy(
    count: int, recipe: str, by: tuple[str, ...] = (str(BIN / "pyinfra"),)
) -> tuple[float, dict[str, Any]]:
    """Seconds of one run, and its report. `by`: the words that run pyinfra."""
    kind = "single" if count == 1 else "switch"  # the lab's rails are two networks, whatever the number
    fabric = json.dumps({"kind": kind, "port": 0, "base": "192.168.96.0/19"})
    words = ["inventories/lab.py", "deploy.py", "-y", "--data", f"recipe={recipe}"]
    # A host that joins gets Docker's settings, and with them a restart, while others serve.
    words += ["--data", f"fabric={fabric}", "--data", "restart_serving=yes"]
    began = time.monotonic()
    done = subprocess.run(
        [*by, *words], cwd=ROOT, env=_env(), capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"scale: {count} hosts: the run failed:\n{(done.stdout + done.stderr)[-3000:]}")
    newest = ROOT / "reports/latest/report.json"
    if time.time() - newest.stat().st_mtime > seconds:
        raise SystemExit(f"scale: {count} hosts: found no report newer than the run's beginning")
    return seconds, json.loads(newest.read_text())


def all_cpu() -> float:
    """Processor time, s, that everything on this machine has taken."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    """Processor time, s, of the controllers that this process has run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def changed(report: dict[str, Any]) -> list[str]:
    return [f"{one['host']}: {one['name']}" for one in report["operations"] if one["status"] == "changed"]


def own_cores(count: int, recipe: str) -> list[float]:
    """Seconds of each run as if each host had cores of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tape.json"
        by = (sys.executable, "-m", "benchmarks.scale.tape")
        _, report = deploy(count, recipe, (*by, "record", str(path)))
        if told := changed(report):
            raise SystemExit(f"scale: {count} hosts: a repeated run changed {told}")
        subprocess.run([*by, "put", str(path)], cwd=ROOT, env=_env(), check=True)
        runs = [deploy(count, recipe, (*by, "replay", str(path))) for _ in range(REPEATS)]
    if told := [one for _, report in runs for one in changed(report)]:
        raise SystemExit(f"scale: {count} hosts: a run from the tape changed {told}")
    return [round(seconds, 2) for seconds, _ in runs]


def measure(count: int, recipe: str) -> dict[str, Any]:
    sparkstack("lab", "up", "--nodes", str(count))
    first, report = deploy(count, recipe)
    repeats = []
    processor: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        everything, own = all_cpu(), own_cpu()
        seconds, again = deploy(count, recipe)
        own = own_cpu() - own
        processor.append((round(own, 2), round(all_cpu() - everything - own, 2)))
        if told := changed(again):
            raise SystemExit(f"scale: {count} hosts: a repeated run changed {told}")
        repeats.append(round(seconds, 2))
    alone = own_cores(count, recipe)
    status = json.loads(sparkstack("status", "inventories/lab.py", "--json"))
    serving = [host for host in status["hosts"] if host["state"] == "serves"]
    row = {
        "hosts": count,
        "first_s": round(first, 1),
        "again_s": repeats,
        "median_s": statistics.median(repeats),
        "least_s": min(repeats),
        "own_cores_s": alone,
        "own_cores_least_s": min(alone),
        "controller_cpu_s": min(own for own, _ in processor),
        "hosts_cpu_s": min(hosts for _, hosts in processor),  # what else ran on this machine
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
    parser.add_argument("--engine", choices=["light", "vllm"], default="light")
    given = parser.parse_args()
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    name = "scale" if given.engine == "light" else f"scale-{given.engine}"
    path = ROOT / "benchmarks" / "results" / f"{name}-{when}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {row["hosts"]: row for row in before if "own_cores_s" in row}  # not those of an older command
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(given.engine, Path(folder))
        try:
            for count in given.counts:
                rows[count] = measure(count, recipe)
                ratios = _write(path, when, [rows[one] for one in sorted(rows)])
        finally:
            if not given.keep:
                sparkstack("lab", "down")
    print(f"ratio 8 to 2 hosts: {ratios}, wanted ≤ {LIMIT}; {path.relative_to(ROOT)}")
    if given.engine == "light" and any(one is not None and one > LIMIT for one in ratios.values()):
        raise SystemExit(1)


def _write(path: Path, when: str, rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Writes the result down; returns what 8 hosts take in terms of 2, None where one of them is missing."""
    ratios = {
        "own_cores": _ratio({row["hosts"]: row["own_cores_least_s"] for row in rows}),
        "shared_cores": _ratio({row["hosts"]: row["least_s"] for row in rows}),
    }
    found = {"when": when, "cores": os.cpu_count(), "rows": rows, "ratio_8_to_2": ratios, "limit": LIMIT}
    path.write_text(json.dumps(found, indent=1) + "\n")
    return ratios


def _ratio(least: dict[int, float]) -> float | None:
    return round(least[8] / least[2], 2) if {2, 8} <= least.keys() else None


if __name__ == "__main__":
    main()
