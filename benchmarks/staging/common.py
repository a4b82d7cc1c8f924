"""What the staging benchmarks share: synthetic checkpoints, cold files, results."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"
ROOT = RESULTS.parent.parent
NOISE = 64 << 20  # bytes; written over and over, since no file system here compresses


def write_safetensors(path: Path, shapes: dict[str, tuple[str, list[int], int]]) -> int:
    """A file of noise: name → type, shape, bytes. Returns its size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in shapes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    pool = memoryview(random.Random(path.name).randbytes(NOISE))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        while at:
            at -= file.write(pool[: min(at, NOISE)])
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


def cold(*folders: Path) -> None:
    """Brings everything to the disk and takes the folders' files out of the page cache."""
    os.sync()
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, what it returned)."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def child(code: str, *arguments: str, python: str = sys.executable) -> str:
    """Standard output of a Python process with this checkout's packages; SystemExit where it fails."""
    done = subprocess.run(
        [python, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"found a failed run: {done.stderr.strip().splitlines()[-1:]}; wanted it to end well"
        )
    return done.stdout


@contextmanager
def scratch(where: Path) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="staging-bench-", dir=where) as folder:
        yield Path(folder)


def need(folder: Path, size: int) -> None:
    """SystemExit where there is less room than `size` bytes."""
    from onhost.files import need_space
    from onhost.plan import JobError

    try:
        need_space(folder, size, "the benchmark (--gb says how large)")
    except JobError as error:
        raise SystemExit(str(error)) from None


def finish(name: str, figures: dict[str, Any], targets: dict[str, tuple[float | None, str, float]]) -> int:
    """Prints each target's line and keeps everything; the status is 1 where a measured target is missed."""
    missed = 0
    lines = {}
    for what, (value, sign, limit) in targets.items():
        if value is None:
            verdict = "not run"
        else:
            good = value >= limit if sign == "≥" else value <= limit
            verdict = "pass" if good else "FAIL"
            missed += not good
        found = "-" if value is None else f"{value:.2f}"
        lines[what] = {"measured": value, "wanted": f"{sign} {limit:g}", "verdict": verdict}
        print(f"{what:<58} {found:>9}   wanted {sign} {limit:g}   {verdict}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{datetime.now(UTC):%Y-%m-%d}.json"
    command = f"python -m benchmarks.{'.'.join(Path(sys.argv[0]).with_suffix('').parts[-2:])}"
    record = {
        "command": " ".join([command, *(Path(word).name for word in sys.argv[1:])]),  # no path of a machine
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": os.uname().release,
            "machine": os.uname().machine,
            "load_of_5_minutes": os.getloadavg()[1],  # far above the cores: ratios of a busy machine
        },
        "targets": lines,
        "figures": figures,
    }
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return 1 if missed else 0
