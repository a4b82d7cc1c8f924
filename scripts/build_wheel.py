"""Build the wheel of a package of ours: `python scripts/build_wheel.py SOURCE_DIR OUT_DIR`; prints its path.

The same sources give the same bytes on every machine that has the versions of requirements.lock: the sources
are copied with fixed modes (a wheel records them, and they depend on the umask of whoever cloned), and time
stands still. Building in a copy also keeps build/ of an earlier state out of the wheel and of the tree.
Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The earliest date that a zip file can hold.
EPOCH = "315532800"
NOT_SOURCES = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*_cache")


def build_wheel(source: Path, out: Path) -> Path:
    """Build the package in `source` into `out`; return the wheel's path.

    Raises `RuntimeError` with the last line of pip's output when the build fails.
    """
    with tempfile.TemporaryDirectory(prefix="sparkstack-wheel-") as scratch:
        copy = Path(scratch, "source")
        shutil.copytree(source, copy, ignore=NOT_SOURCES, copy_function=shutil.copyfile)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        built = Path(scratch, "wheel")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        result = subprocess.run(
            [*command, "--no-index", "--wheel-dir", str(built), str(copy)],
            env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
            umask=0o022,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            last = (result.stderr.strip() or "pip said nothing").splitlines()[-1]
            raise RuntimeError(f"{source}: building the wheel failed: {last}")
        (wheel,) = built.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        # A rename, so that a reader never sees half a wheel; the copy makes it one within a file system.
        partial = out / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        return partial.replace(out / wheel.name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python scripts/build_wheel.py SOURCE_DIR OUT_DIR")
    try:
        print(build_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
    except RuntimeError as error:
        sys.exit(str(error))
