"""Wheels of our own packages, built on the controller once for each content of their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError

from sparkstack.release import tree_hash

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "wheels"


def build(source: Path) -> tuple[Path, str]:
    """The wheel of the package in `source` and the hash of its sources; built only where it is missing."""
    digest = tree_hash(source)[:12]
    folder = CACHE / f"{source.name}-{digest}"
    ready = sorted(folder.glob("*.whl"))
    if ready:
        return ready[0], digest
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
        str(partial), str(source),
    ]
    # A fixed time stamp makes the wheel's bytes depend on its sources alone.
    done = subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": "1704067200"}, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise PyinfraError(f"{source.name}: the wheel could not be built; pip says: {done.stderr.strip()[-300:]}")
    partial.rename(folder)
    return sorted(folder.glob("*.whl"))[0], digest
