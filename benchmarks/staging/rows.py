"""`python -m benchmarks.staging.rows [--gb 8] [--where DIR]`

The n-gram table's row reader against `fio` reading at random places of the same file, cold, with 64
reads under way. Where the file fits into memory, the cache is emptied before each run; a table that does not
fit is the real case.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.staging.common import cold, finish, need, scratch, timed, write_safetensors
from onhost.staging.catalog import catalog_of
from onhost.staging.ngram import ngram_table
from onhost.staging.outputs import Literal
from onhost.staging.rows import ROW_MAP, RowReader

COLUMNS = 160
BATCH = 16 * 512  # rows: what 512 tokens ask at once


def table(folder: Path, size: int) -> int:
    """A table of about `size` bytes in one file, and its row map; the number of rows."""
    rows = size // COLUMNS // 128
    shapes = {
        f"m.ngram_embedding.shard_{part}.weight": ("F8_E4M3", [rows, COLUMNS], rows * COLUMNS)
        for part in range(128)
    }
    write_safetensors(folder / "model.safetensors", dict(shapes))
    planned = ngram_table(catalog_of({"model.safetensors": folder / "model.safetensors"}), None)
    [part] = planned.outputs[-1].parts
    assert isinstance(part, Literal)
    (folder / ROW_MAP).write_bytes(part.data)
    return rows * 128


def fio_rate(path: Path, threads: int, seconds: int, bytes_: int) -> float:
    """Reads a second of `fio` at random places with `threads` under way."""
    command = ["fio", "--name=rows", f"--filename={path}", "--rw=randread", f"--bs={bytes_}"]
    command += ["--ioengine=psync", f"--numjobs={threads}", "--thread", "--group_reporting", "--readonly"]
    command += [f"--runtime={seconds}", "--time_based", "--fadvise_hint=random", "--invalidate=1"]
    command += ["--norandommap", "--randrepeat=0", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["iops"])


def our_rate(folder: Path, rows: int, threads: int, seconds: int, seed: int) -> float:
    """Rows a second of the reader."""
    source = random.Random(seed)
    done, spent = 0, 0.0
    with RowReader(folder, threads=threads) as reader:
        buffer = memoryview(bytearray(BATCH * reader.row_bytes))
        while spent < seconds:
            ids = [source.randrange(rows) for _ in range(BATCH)]
            spent += timed(lambda ids=ids: reader.read_into(ids, buffer))[0]  # type: ignore[misc]
            done += BATCH
    return done / spent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staging.rows")
    parser.add_argument(
        "--gb", type=float, default=8, help="size of the table in GB (8; the real one has 51)"
    )
    parser.add_argument("--threads", type=int, default=64, help="of our reader (64)")
    parser.add_argument("--depth", type=int, default=64, help="reads that fio has under way (64)")
    parser.add_argument("--seconds", type=int, default=10, help="of each run (10)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--where", type=Path, default=Path("/var/tmp"), help="a folder on the disk to measure"
    )
    given = parser.parse_args()
    figures: dict[str, Any] = {"fio": [], "ours": []}
    ratio: float | None = None
    with scratch(given.where) as folder:
        need(folder, int(given.gb * 1.05e9))
        rows = table(folder, int(given.gb * 1e9))
        if shutil.which("fio") is None:
            print("fio: not run (it is not installed)")
        for number in range(given.rounds):
            cold(folder)
            figures["ours"].append(our_rate(folder, rows, given.threads, given.seconds, number))
            if shutil.which("fio") is not None:
                cold(folder)
                path = folder / "model.safetensors"
                figures["fio"].append(fio_rate(path, given.depth, given.seconds, COLUMNS))
            told = f"  ours {figures['ours'][-1]:,.0f} rows/s"
            print(told + (f"   fio {figures['fio'][-1]:,.0f} reads/s" if figures["fio"] else ""))
    if figures["fio"]:
        ratio = statistics.median(figures["ours"]) / statistics.median(figures["fio"])
    return finish("staging-rows", figures, {"rows: rate as a ratio to fio": (ratio, "≥", 0.8)})


if __name__ == "__main__":
    sys.exit(main())
