"""How fast the plugin reads rows of an n-gram table: through the page cache, and past it (O_DIRECT).

    python benchmarks/gpu/ngram_table.py --checkpoint DIR      a staged checkpoint with ngram_rows.json
    python benchmarks/gpu/ngram_table.py --gb 3 --scratch DIR  a file of noise, made and removed

Needs torch and numpy, no GPU: the image has them, and so has `.cache/vllm-tests/venv` after `./test --vllm`.
A step's rows are picked at random; `cold` means that the pages of the file are dropped before each read. One
JSON object a line: mode, threads, rows, and the median of the times in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "files" / "patches"))
import numpy
from sparkstack_vllm.ngram_table import MODES, ROW_MAP, TableFile

ROW = 160  # bytes, as Qwen3.8-Flash-Next has
# Rows of a step: one token, five (four drafted), six streams of four, a prefill of 4096.
STEPS = (16, 80, 384, 65536)


@contextmanager
def made(gb: float, scratch: Path) -> Iterator[Path]:
    """A table of noise in a folder that goes away."""
    with TemporaryDirectory(dir=scratch) as name:
        folder, rows = Path(name), int(gb * 1e9) // ROW
        with (folder / "table").open("wb") as file:
            for start in range(0, rows, 500_000):
                file.write(os.urandom(min(500_000, rows - start) * ROW))
            os.fsync(file.fileno())
        told = {"format": 1, "table": "noise", "rows": rows, "row_bytes": ROW, "rows_per_shard": rows}
        shards = [{"file": "table", "offset": 0, "rows": rows}]
        (folder / ROW_MAP).write_text(json.dumps({**told, "shards": shards}))
        yield folder


def drop(folder: Path) -> None:
    """Give the kernel back what it holds of the files."""
    for shard in json.loads((folder / ROW_MAP).read_text())["shards"]:
        handle = os.open(folder / shard["file"], os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def measure(folder: Path, threads: int, repeats: int) -> None:
    random = numpy.random.default_rng(0)
    for mode in MODES:
        table = TableFile(folder, mode, threads)
        for rows in STEPS:
            times = []
            for _ in range(repeats if rows < 10_000 else 3):
                drop(folder)
                picked = random.integers(0, table.rows, rows)
                out = memoryview(bytearray(rows * table.row_bytes))
                start = time.perf_counter()
                table.read_into(picked, out)
                times.append((time.perf_counter() - start) * 1e3)
            median = round(statistics.median(times), 2)
            print(json.dumps({"mode": mode, "threads": threads, "rows": rows, "cold_ms": median}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--checkpoint", type=Path)
    where.add_argument("--gb", type=float)
    parser.add_argument("--scratch", type=Path, default=Path.cwd())
    parser.add_argument("--threads", type=int, nargs="+", default=[32])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    for threads in arguments.threads:
        if arguments.checkpoint:
            measure(arguments.checkpoint, threads, arguments.repeats)
        else:
            with made(arguments.gb, arguments.scratch) as folder:
                measure(folder, threads, arguments.repeats)


if __name__ == "__main__":
    main()
