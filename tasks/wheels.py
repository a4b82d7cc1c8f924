"""Wheels of our own packages, built on the controller once for each content of their sources."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError

from sparkstack.release import IGNORED, tree_hash

# Deploy code runs for all hosts side by side; the first one builds.
_lock = threading.Lock()

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "wheels"


@functools.cache  # one answer for all hosts of a run
def build(source: Path) -> tuple[Path, str]:
    """The wheel of the package in `source` and the hash of its sources; built only where it is missing."""
    digest = tree_hash(source)[:12]
    folder = CACHE / f"{source.name}-{digest}"
    with _lock:
        if not list(folder.glob("*.whl")):
            _build(source, folder)
    return next(folder.glob("*.whl")), digest


def _build(source: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    copy = partial / "source"
    # Building leaves files beside the sources; a copy keeps the checkout clean.
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*IGNORED))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(partial), str(copy)],
        # A fixed time stamp makes the wheel's bytes depend on its sources alone.
        env={**os.environ, "SOURCE_DATE_EPOCH": "1704067200"},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(copy)
    if done.returncode:
        shutil.rmtree(partial)
        said = " ".join(done.stderr.split())[-300:]
        raise PyinfraError(f"{source.name}: the wheel could not be built; pip says: {said}")
    partial.rename(folder)
