"""Where the benchmark keeps what it makes (all of it under .cache) and what it writes down."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "rerun"
RESULTS = ROOT / "benchmarks" / "results"
