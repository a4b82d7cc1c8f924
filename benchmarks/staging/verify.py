"""`python -m benchmarks.staging.verify [--gb 8] [--files 16] [--runs 3] [--where DIR]`

`onhost verify --hashes` against `sha256sum` over all cores (`xargs -P`), in turn, both with the files in the
page cache and both from the disk; and a stage with nothing to do on a checkpoint of 100 shards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.staging.common import ROOT, cold, finish, need, scratch, timed, write_safetensors
from onhost.files import write_json
from onhost.staging import manifest

NAMES = 400  # tensors in a shard of the second part


def made(folder: Path, sizes: dict[str, dict[str, tuple[str, list[int], int]]]) -> None:
    """A finished checkpoint."""
    for name, shapes in sizes.items():
        write_safetensors(folder / name, shapes)
    hashes = manifest.hash_files([folder / name for name in sizes])
    files = {path.name: (path.stat().st_size, sha256) for path, sha256 in hashes.items()}
    source = {"repo": "org/name", "revision": "0" * 40}
    headers = {path.name: manifest.header_sha256(path) for path in hashes}
    write_json(folder / "manifest.json", manifest.make(folder.name, source, [], files, headers=headers).raw)


def run(*words: str, where: Path = ROOT) -> None:
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    if done.returncode:
        raise SystemExit(f"found {done.stderr or done.stdout}; wanted {' '.join(words)} to end well")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.staging.verify")
    parser.add_argument("--gb", type=float, default=8)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--where", type=Path, default=Path.cwd())
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    size = int(given.gb * 1e9) // given.files
    need(given.where, size * given.files)
    seconds: dict[str, list[float]] = {}
    with scratch(given.where) as folder:
        large = folder / "large"
        made(large, {f"model-{n:05d}.safetensors": {"w": ("U8", [size], size)} for n in range(given.files)})
        ours = [sys.executable, "-m", "onhost", "verify", "--hashes", "--checkpoint", str(large)]
        theirs = ["sh", "-c", f"find . -name '*.safetensors' -print0 | xargs -0 -n1 -P{cores} sha256sum"]
        for _ in range(given.runs):
            for state in ("disk", "cache"):
                for who, command, at in (("ours", ours, ROOT), ("sha256sum", theirs, large)):
                    if state == "disk":
                        cold(large)
                    else:
                        run("sh", "-c", "cat *.safetensors > /dev/null", where=large)
                    taken = timed(lambda c=command, w=at: run(*c, where=w))[0]  # type: ignore[misc]
                    seconds.setdefault(f"{who}, {state}", []).append(taken)
        checkpoints = folder / "checkpoints"
        shards = {
            f"model-{n:05d}-of-00100.safetensors": {
                f"l{n}.{m}.weight": ("BF16", [8, 8], 128) for m in range(NAMES)
            }
            for n in range(1, 101)
        }
        made(checkpoints / "abc123", shards)
        plan = folder / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "job": "noop", "kind": "checkpoint", "jobs_dir": str(folder / "jobs"), "id": "abc123",
                    "source": {"repo": "org/name", "revision": "0" * 40}, "transforms": [],
                    "downloads_dir": str(folder / "downloads"), "checkpoints_dir": str(checkpoints),
                }
            )
        )  # fmt: skip
        job = [sys.executable, "-m", "onhost", "job", str(plan)]
        seconds["no-op stage"] = [timed(lambda: run(*job))[0] for _ in range(given.runs + 2)]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return finish(
        "staging-verify",
        {"gb": given.gb, "files": given.files, "seconds": seconds},
        {
            "verify --hashes / sha256sum on all cores, from cache": (
                median["sha256sum, cache"] / median["ours, cache"], "≥", 0.8),
            "verify --hashes / sha256sum on all cores, from disk": (
                median["sha256sum, disk"] / median["ours, disk"], "≥", 0.8),
            "no-op stage of 100 shards, s, whole process": (median["no-op stage"], "≤", 1.0),
        },
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
