"""`python -m benchmarks.staging.convert [--mb 512]`

BF16 to FP8 (fp8_dense) and to NVFP4 (draft_vocab): MB of BF16 a second, on one core and over processes.
There is no target; the figure says what a Spark will take.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
from pathlib import Path

from benchmarks.staging.common import finish, timed
from onhost.staging import fp8, fp8_dense, nvfp4, workers

COLUMNS = 4096


def weights(count: int) -> bytes:
    """Normal BF16 weights."""
    source = random.Random(1)
    wide = struct.pack("<65521f", *(source.gauss(0, 0.02) for _ in range(65521)))
    pool = b"".join(wide[at + 2 : at + 4] for at in range(0, len(wide), 4))
    return (pool * (count // 65521 + 1))[: 2 * count]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staging.convert")
    parser.add_argument("--mb", type=int, default=512, help="MB of BF16 weights (512)")
    given = parser.parse_args()
    rows = max(1, given.mb * 1_000_000 // (2 * COLUMNS * 128)) * 128
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "in", Path(name) / "out"
        strip = weights(128 * COLUMNS)
        source.write_bytes(strip * (rows // 128))
        target.touch()
        place = (str(source), 0, COLUMNS)
        call = (*place, 0, rows, (128, 128), str(target), 0)
        size = source.stat().st_size / 1e6
        one = size / timed(lambda: fp8_dense.convert_codes(*call))[0]
        step = fp8_dense.ROWS_AT_ONCE
        calls = [
            (*place, row, min(row + step, rows), (128, 128), str(target), 0) for row in range(0, rows, step)
        ]
        workers.shared(fp8_dense.convert_codes, calls, 1 << 40, lambda _: None)  # the processes start
        several = (
            size / timed(lambda: workers.shared(fp8_dense.convert_codes, calls, 1 << 40, lambda _: None))[0]
        )
        workers.close()
        largest = max(fp8.block_largest(strip, 128, COLUMNS, 128))
        encoder = nvfp4.Encoder(nvfp4.tensor_scale(largest))
        encoder.values(strip, 128 * COLUMNS)
        nv = len(strip) / 1e6 / timed(lambda: encoder.values(strip, 128 * COLUMNS))[0]
    figures = {"fp8_one_core": one, "fp8_processes": several, "nvfp4_one_core": nv}
    for what, value in figures.items():
        print(f"{what:<20} {value:7.0f} MB of BF16 a second")
    return finish("staging-convert", figures, {})


if __name__ == "__main__":
    sys.exit(main())
