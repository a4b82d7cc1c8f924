"""The lab's wheels: what pip is asked, when it is not asked, and what a user reads when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab import vllm_image, wheelhouse
from lab.paths import LabError, quiet

# Stands in for pip: writes down how it was called, makes the wheels unless it is told to refuse.
PIP = """
import pathlib, sys
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
with (here / "calls").open("a") as log:
    log.write(" ".join(a for a in arguments if not a.startswith(("--platform", "--dest"))) + "\\n")
if (here / "refuse").exists() and not any(a.startswith("--extra-index-url") for a in arguments):
    print("ERROR: Could not find a version\\nERROR: No matching distribution found for torch==9+cpu")
    sys.exit(1)
folder = next(pathlib.Path(a.partition("=")[2]) for a in arguments if a.startswith("--dest="))
for name in (a for a in arguments if "==" in a and not a.startswith("-")):
    print("Collecting", name)
    project, _, version = name.partition("==")
    (folder / f"{project.replace('-', '_')}-{version}-py3-none-any.whl").write_text("")
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for pip; `calls` there says how it was called."""
    folder = tmp_path / "pip"
    folder.mkdir()
    (folder / "pip.py").write_text(PIP)
    monkeypatch.setattr(wheelhouse, "find_pip", lambda: [sys.executable, str(folder / "pip.py")])
    return folder


def listed(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "wanted.txt"
    file.write_text("# a comment\n" + "\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("file", [wheelhouse.VLLM_CPU, wheelhouse.ONHOST])
def test_our_lists_are_pinned_and_sorted(file: Path) -> None:
    names = [name for name, _ in wheelhouse.requirements(file)]
    assert len(names) == len(set(names))
    assert names == sorted(names)


def test_a_loose_requirement_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"wanted\.txt, line 3: found 'b>=2'; wanted name==version"):
        wheelhouse.requirements(listed(tmp_path, "a==1", "b>=2"))


def test_fetches_once_and_only_what_is_missing(tmp_path: Path, pip: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    file = listed(tmp_path, "one==1.0", "two-parts==2.0")
    home = wheelhouse.fetch(
        file, tmp_path / "cache", lambda stage, done, total, note: seen.append((done, total))
    )
    assert seen[0] == (0, 2)
    assert seen[-1] == (2, 2)
    assert wheelhouse.find(home, "two-parts", "2.0") is not None
    home.joinpath("one-1.0-py3-none-any.whl").unlink()
    wheelhouse.fetch(file, tmp_path / "cache", quiet)
    wheelhouse.fetch(file, tmp_path / "cache", quiet)
    calls = [line.split() for line in (pip / "calls").read_text().splitlines()]
    assert [[word for word in call if "==" in word] for call in calls] == [
        ["one==1.0", "two-parts==2.0"],
        ["one==1.0"],
    ]


def test_torch_is_asked_of_its_own_index_where_the_configured_one_has_none(tmp_path: Path, pip: Path) -> None:
    (pip / "refuse").touch()
    wheelhouse.fetch(listed(tmp_path, "torch==9+cpu"), tmp_path / "cache", quiet)
    first, second = (pip / "calls").read_text().splitlines()
    assert "--extra-index-url" not in first
    assert f"--extra-index-url={wheelhouse.TORCH_CPU_INDEX}" in second


def test_a_refusal_is_one_line_in_pips_words(tmp_path: Path, pip: Path) -> None:
    (pip / "refuse").touch()
    with pytest.raises(LabError) as caught:
        wheelhouse.fetch(listed(tmp_path, "numpy==1"), tmp_path / "cache", quiet)
    assert str(caught.value) == ("pip download of numpy==1: No matching distribution found for torch==9+cpu")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_target_is_debians_python_on_that_machine(machine: str) -> None:
    options = wheelhouse.target(machine)
    assert {"--python-version=3.11", "--abi=cp311", f"--platform=manylinux_2_28_{machine}"} <= set(options)
    assert not [one for one in options if one.startswith("--platform") and not one.endswith(machine)]


def test_kernels_that_this_processor_cannot_load_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo.write_text("flags : avx avx2\n")
    assert vllm_image.unused_kernels(cpuinfo) == ("vllm/_C.abi3.so", "vllm/_C_AVX512.abi3.so")
    cpuinfo.write_text("flags : avx avx2 avx512f\n")
    assert vllm_image.unused_kernels(cpuinfo) == ()


def test_prune_leaves_what_serving_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    kept = ("torch/bin/torch_shm_manager", "vllm/engine.py", "numpy/core.so")
    gone = ("torch/bin/test_api", "torch/include/a.h", "numpy/tests/test_a.py", "vllm/a.pyi", "bin/tool")
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    vllm_image.prune(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
