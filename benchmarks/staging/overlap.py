"""`python -m benchmarks.staging.overlap [--gb 1] [--rate 100] [--runs 1] [--where DIR]`

Download and graft together against the slower of the two alone, from a hub with a rate limit; then with
`keep_source: false` the disk's peak against output + two shards, measured while it runs, and the process's
memory. `--rate 0` sets the limit so that the download takes as long as the graft, where overlap is worth
most; that wants cores to spare, since hub, download and graft then all run at full speed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.staging.common import ROOT, cold, finish, need, scratch, write_safetensors

LAYERS, HIDDEN, INTER = 16, 2048, 1024
BLOCKS = INTER // 128
BASE, DONOR = "org/base", "org/donor"
STREAMS = 8  # as the download's own
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def revision(repo: str) -> str:
    """The lab hub's."""
    return hashlib.sha1(repo.encode()).hexdigest()


def make_repositories(root: Path, size: int) -> tuple[int, int]:
    """A base of LAYERS shards and a donor; returns bytes of the largest shard and of all files."""
    filler = size // LAYERS - 2 * HIDDEN * INTER
    index: dict[str, dict[str, str]] = {BASE: {}, DONOR: {}}
    largest = total = 0
    for layer in range(LAYERS):
        weight = f"model.layers.{layer}.mlp.shared_expert.up_proj.weight"
        shards = {
            BASE: {weight: ("BF16", [INTER, HIDDEN], 2 * HIDDEN * INTER),
                   f"model.layers.{layer}.mlp.experts.qweight": ("U8", [filler], filler)},
            DONOR: {weight: ("F8_E4M3", [INTER, HIDDEN], HIDDEN * INTER),
                    f"{weight}_scale_inv": ("F32", [BLOCKS, HIDDEN // 128], 4 * BLOCKS * HIDDEN // 128)},
        }  # fmt: skip
        for repo, shapes in shards.items():
            name = f"model-{layer + 1:05d}-of-{LAYERS:05d}.safetensors"
            written = write_safetensors(root / repo / name, shapes)
            largest, total = max(largest, written), total + written
            index[repo] |= dict.fromkeys(shapes, name)
    for repo, weight_map in index.items():
        (root / repo / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        (root / repo / "config.json").write_text("{}")
    return largest, total


@contextmanager
def hub(root: Path, port: int, rate: float | None) -> Iterator[str]:
    """The lab's hub in a process of its own; `rate` in bytes a second over all streams."""
    words = [sys.executable, "-m", "lab.hub", str(root), "--port", str(port)]
    process = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                # Its list reads and hashes all files once, which is no part of what is measured.
                for repo in (BASE, DONOR):
                    urllib.request.urlopen(f"{url}/api/models/{repo}", timeout=600).read()
                break
            except OSError:
                time.sleep(0.1)
        if rate is not None:
            fault = {"path": "/__objects/*", "kind": "slow", "count": None,
                     "bytes_per_second": int(rate / STREAMS)}  # fmt: skip
            request = urllib.request.Request(f"{url}/__faults", json.dumps(fault).encode(), method="POST")
            urllib.request.urlopen(request).read()
        yield url
    finally:
        process.terminate()
        process.wait()


def plan(folder: Path, url: str, graft: bool, keep_source: bool) -> Path:
    rule = {
        "name": "graft_fp8",
        "donor": {"repo": DONOR, "revision": revision(DONOR)},
        "tensors": ["*.shared_expert.*_proj.weight"],
        "expect_tensors": LAYERS,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(
        json.dumps(
            {
                "job": "stage", "kind": "checkpoint", "jobs_dir": str(folder / "jobs"), "id": "bench",
                "source": {"repo": BASE, "revision": revision(BASE), "endpoint": url},
                "transforms": [rule] if graft else [], "keep_source": keep_source,
                "downloads_dir": str(folder / "downloads"), "checkpoints_dir": str(folder / "checkpoints"),
            }
        )
    )  # fmt: skip
    return path


JOB = """
import json, re, sys, time
from pathlib import Path
from onhost import jobs
from onhost.staging import checkpoint, download
if sys.argv[2]:
    download.SEGMENT = int(sys.argv[2])
    download.SETTINGS = download.Settings(segment=int(sys.argv[2]))
began = time.perf_counter()
status = jobs.main(sys.argv[1])
seconds = time.perf_counter() - began
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"seconds": seconds, "peak_mb": peak * 1024 / 1e6}))
sys.stdout.flush()
import os
os._exit(status)
"""


def stage(path: Path, segment: int, watch: Path | None = None) -> dict[str, Any]:
    """Runs a plan in a process of its own: seconds, memory, and with `watch` the most bytes below it."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, str(path), str(segment)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    peak = 0
    ended = threading.Event()

    def look() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, on_disk(watch)) if watch is not None else 0

    watcher = threading.Thread(target=look)
    watcher.start()
    output, _ = process.communicate()
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit("found a failed stage; wanted it to end well; its line is above")
    return {**json.loads(output), "peak_disk": peak}


def on_disk(folder: Path) -> int:
    """Bytes that files take, however often they are linked."""
    taken: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                stat = Path(place, name).stat()
            except FileNotFoundError:
                continue
            taken[stat.st_ino] = stat.st_blocks * 512
    return sum(taken.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.staging.overlap")
    parser.add_argument("--gb", type=float, default=1)
    parser.add_argument("--rate", type=float, default=100, help="MB/s of the hub over all streams")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--port", type=int, default=18765)
    parser.add_argument("--where", type=Path, default=Path.cwd())
    given = parser.parse_args()
    size = int(given.gb * 1e9)
    need(given.where, 4 * size)
    figures: dict[str, list[float]] = {"download": [], "graft": [], "together": [], "memory": []}
    with scratch(given.where) as folder:
        largest, total = make_repositories(folder / "hub", size)
        segment = max(largest // 4, 1 << 20)  # as 128 MiB is to a shard of a hub
        with hub(folder / "hub", given.port, None) as url:
            # The graft alone needs its sources here: a first stage brings them, a second one is measured.
            stage(plan(folder / "local", url, True, True), segment)
            for _ in range(given.runs):
                for name in ("bench", "bench.partial"):
                    subprocess.run(["rm", "-rf", folder / "local/checkpoints" / name], check=True)
                cold(folder / "local")
                alone = stage(folder / "local/plan.json", segment)
                figures["graft"].append(alone["seconds"])
        rate = given.rate * 1e6 if given.rate else total / statistics.median(figures["graft"])
        with hub(folder / "hub", given.port, rate) as url:
            for run in range(given.runs):
                # Both repositories, no graft: what the link alone takes.
                figures["download"].append(download_all(folder / f"down-{run}", url, segment))
                both = stage(plan(folder / f"both-{run}", url, True, True), segment)
                figures["together"].append(both["seconds"])
                figures["memory"].append(both["peak_mb"])
                subprocess.run(["rm", "-rf", folder / f"down-{run}", folder / f"both-{run}"], check=True)
            lean = folder / "lean"
            found = stage(plan(lean, url, True, False), segment, lean)
            told = next(
                json.loads(line)["done"]
                for line in (lean / "jobs/stage/progress.jsonl").read_text().splitlines()
                if '"plan"' in line
            )
            output = on_disk(lean / "checkpoints")
    median = {name: statistics.median(values) for name, values in figures.items()}
    slower = max(median["download"], median["graft"])
    bound = output + 2 * largest
    return finish(
        "staging-overlap" if given.rate else "staging-overlap-matched",
        {
            "gb": given.gb, "rate_mb_s": rate / 1e6, "seconds": figures, "peak_disk": found["peak_disk"],
            "told": told, "output": output, "largest_shard": largest, "downloaded": total,
        },
        {
            "download and graft together / the slower alone": (median["together"] / slower, "≤", 1.15),
            "keep_source: false: peak disk / (output + 2 shards)": (found["peak_disk"] / bound, "≤", 1.0),
            "keep_source: false: peak disk / what the plan said": (found["peak_disk"] / told, "≤", 1.0),
            "peak memory of the process, MB": (max(figures["memory"] + [found["peak_mb"]]), "≤", 200),
        },
    )  # fmt: skip


def download_all(folder: Path, url: str, segment: int) -> float:
    """The same files by the same code, without a graft: each repository as it is. Returns seconds."""
    plans = []
    for repo in (BASE, DONOR):
        path = plan(folder / repo.replace("/", "-"), url, False, True)
        data = json.loads(path.read_text())
        data["source"] |= {"repo": repo, "revision": revision(repo)}
        path.write_text(json.dumps(data))
        plans.append(path)
    return sum(float(stage(path, segment)["seconds"]) for path in plans)


if __name__ == "__main__":
    sys.exit(main())
