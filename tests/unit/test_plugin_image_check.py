"""`sparkstack-image-check` against stand-ins for vLLM and torch: what is right, and what is not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "files" / "patches"
SPARK = "sm_80 sm_90 sm_120f compute_120"


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Gives a function that makes an image's Python what it says and returns the check's module."""
    monkeypatch.syspath_prepend(PATCHES)

    def make(
        vllm: str = "0.20.2",
        cuda: str | None = "13.0",
        flags: str = SPARK,
        libraries: str = "_C.so",
        kernel_runs: bool = True,
    ) -> Any:
        package = tmp_path / "vllm"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(f"__version__ = {vllm!r}\n")
        for name in libraries.split():
            (package / name).write_bytes(b"")
        monkeypatch.syspath_prepend(tmp_path)
        torch = ModuleType("torch")
        for name, value in {
            "__version__": "2.11.0" + ("" if cuda else "+cpu"),
            "version": SimpleNamespace(cuda=cuda),
            "_C": SimpleNamespace(_cuda_getArchFlags=lambda: flags),
            "cuda": SimpleNamespace(is_available=lambda: False),
        }.items():
            setattr(torch, name, value)
        monkeypatch.setitem(sys.modules, "torch", torch)
        import sparkstack_vllm.__main__ as main
        from sparkstack_vllm import image_check

        monkeypatch.setattr(main, "check", lambda: "sparkstack plugin 0.1.0: vLLM 0.20.2, checked: hybrid")
        monkeypatch.setattr(image_check.ctypes, "CDLL", lambda path, mode: None)
        from sparkstack_vllm import device_images

        def no_driver() -> None:
            raise OSError("no driver here")

        monkeypatch.setattr(device_images, "Driver", no_driver)
        if kernel_runs:  # there is no GPU in a test; what the kernel computes has tests of its own
            line = image_check.Line("device_code", "ok", "NVIDIA GB10, error 7e-05", "a kernel that runs")
            monkeypatch.setattr(image_check, "device_code", lambda profile: line)
        return image_check

    def forget() -> None:
        for name in [n for n in sys.modules if n.split(".")[0] in ("sparkstack_vllm", "vllm")]:
            del sys.modules[name]

    forget()
    yield make
    forget()


def said(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {line["check"]: (line["status"], line["found"]) for line in report["lines"]}


def test_a_good_image(image: Callable[..., Any]) -> None:
    report = image().run("gpu", "0.20.2")
    assert report["ok"] and report["profile"] == "gpu"
    assert said(report) == {
        "vllm_version": ("ok", "vLLM 0.20.2"),
        "torch_cuda": ("ok", "torch 2.11.0, CUDA 13.0"),
        "architectures": ("ok", SPARK),
        "plugin": ("ok", "sparkstack plugin 0.1.0: vLLM 0.20.2, checked: hybrid"),
        "extensions": ("ok", "_C.so"),
        "extensions_device_code": ("not checked", "no driver here"),
        "device_code": ("ok", "NVIDIA GB10, error 7e-05"),
    }


@pytest.mark.parametrize(
    ("made", "check", "found"),
    [
        ({"vllm": "0.19.1"}, "vllm_version", "vLLM 0.19.1"),
        ({"cuda": None}, "torch_cuda", "torch 2.11.0+cpu, no CUDA"),
        ({"flags": "sm_80 sm_90a sm_120a"}, "architectures", "sm_80 sm_90a sm_120a"),
        ({"libraries": ""}, "extensions", "no extension in "),
        ({"kernel_runs": False}, "device_code", "torch sees no GPU"),
    ],
    ids=["another version", "CPU torch", "no code for a Spark", "no extensions", "no GPU in the container"],
)
def test_what_fails(image: Callable[..., Any], made: dict[str, Any], check: str, found: str) -> None:
    report = image(**made).run("gpu", "0.20.2")
    assert not report["ok"]
    failed = [name for name, (status, _) in said(report).items() if status == "failed"]
    # Torch without CUDA has no code for any GPU, either.
    assert failed == ([check, "architectures"] if check == "torch_cuda" else [check])
    assert said(report)[check][1].startswith(found)


def test_a_plugin_with_a_syntax_error_is_a_line(
    image: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = image()

    def broken() -> None:
        compile("def apply(:", "hybrid.py", "exec")

    monkeypatch.setattr(sys.modules["sparkstack_vllm.__main__"], "check", broken)
    report = check.run("gpu", "0.20.2")
    status, found = said(report)["plugin"]
    assert not report["ok"] and status == "failed" and found.startswith("SyntaxError: ")


def test_symbols_that_do_not_resolve(image: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check = image()

    def load(path: str, mode: int) -> None:
        raise OSError(f"{path}: undefined symbol: _ZN3c106Symbol")

    monkeypatch.setattr(check.ctypes, "CDLL", load)
    report = check.run("gpu", None)
    assert not report["ok"] and "undefined symbol: _ZN3c106Symbol" in said(report)["extensions"][1]
    assert said(report)["vllm_version"] == ("not checked", "vLLM 0.20.2")


def test_builds_for_several_processors_register_the_same_names(
    image: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As vLLM's CPU build has them: the second of them ends a process that has loaded the first."""
    check = image()
    for name in ("_C_AVX2.so", "_C_AVX512.so"):
        (tmp_path / "vllm" / name).write_bytes(b"")
    registered: list[str] = []

    def load(path: str, mode: int) -> None:
        registered.append(path)
        if len(registered) > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(check.ctypes, "CDLL", load)
    assert said(check.run("gpu", None))["extensions"] == ("ok", "_C.so, _C_AVX2.so, _C_AVX512.so")


@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)], ids=["a signal", "a status"]
)
def test_a_library_that_ends_its_process_is_a_line(
    image: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]
) -> None:
    check = image()
    monkeypatch.setattr(check.ctypes, "CDLL", lambda path, mode: end())
    status, found = said(check.run("gpu", None))["extensions"]
    assert status == "failed" and found.startswith("_C.so: the process that loaded it ended with ")


def test_without_a_driver_extensions_are_not_checked(
    image: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = image()

    def load(path: str, mode: int) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(check.ctypes, "CDLL", load)
    assert said(check.run("gpu", None))["extensions"] == ("not checked", "no driver to load _C.so with")


def library(*containers: bytes) -> bytes:
    """A 64-bit ELF file with the section that nvcc puts GPU code in."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    body = b"\0\0\0\0\0\0\0\0".join(
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inner)) + inner for inner in containers
    )
    start = 64 + len(names)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start + len(body), 0, 64, 0, 0, 64, 3, 2)
    )
    section = struct.Struct("<IIQQQQIIQQ")
    table = bytes(64) + section.pack(1, 1, 0, 0, start, len(body), 0, 0, 8, 0)
    table += section.pack(12, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    return header + names + body + table


@pytest.mark.parametrize(
    ("codes", "status", "found"),
    [
        ({b"mine....": 0, b"hopper..": 209}, "ok", "_C.so 1/2"),
        ({b"hopper..": 209}, "failed", "_C.so 0/1"),
        ({b"mine....": 0, b"new ptx.": 222}, "failed", "_C.so: CUDA_ERROR_222"),
        ({}, "failed", "no GPU code in vllm"),
    ],
)
def test_gpu_code_is_given_to_the_driver(
    image: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    codes: dict[bytes, int],
    status: str,
    found: str,
) -> None:
    check = image()
    (tmp_path / "vllm" / "_C.so").write_bytes(library(*codes))
    driver = SimpleNamespace(load=lambda code: codes[code[16:]], name=lambda code: f"CUDA_ERROR_{code}")
    monkeypatch.setattr(sys.modules["sparkstack_vllm.device_images"], "Driver", lambda: driver)
    assert said(check.run("gpu", None))["extensions_device_code"] == (status, found)
    monkeypatch.setattr(check, "DEVICE_CODE_LIMIT_S", -1)
    if codes:
        line = said(check.run("gpu", None))["extensions_device_code"]
        assert line == ("not checked", f"_C.so 0/{len(codes)} (not all within -1 s)")


def test_the_labs_image_is_judged_by_its_own_profile(image: Callable[..., Any]) -> None:
    report = image(vllm="0.32.0+cpu", cuda=None, flags="", kernel_runs=False).run("cpu", "0.32.0")
    assert report["ok"]
    assert said(report)["torch_cuda"] == ("ok", "torch 2.11.0+cpu, no CUDA")
    for name in ("architectures", "extensions_device_code", "device_code"):
        assert said(report)[name] == ("not checked", "profile cpu")
    # Not the CPU build that the profile declares.
    assert not image(cuda="13.0", kernel_runs=False).run("cpu", None)["ok"]


@pytest.mark.parametrize(
    ("flag", "runs"),
    [
        ("sm_121", True), ("sm_121a", True), ("sm_121f", True), ("sm_120", True), ("sm_120f", True),
        ("sm_120a", False), ("sm_90", False), ("sm_90a", False), ("sm_100", False), ("sm_130", False),
        ("compute_80", True), ("compute_120", True), ("compute_120a", False), ("compute_130", False),
        ("nonsense", False),
    ],
)  # fmt: skip
def test_which_code_runs_on_a_spark(image: Callable[..., Any], flag: str, runs: bool) -> None:
    assert image().runs_on_spark(flag) is runs


def test_no_module_of_the_plugin_may_be_broken(image: Callable[..., Any], tmp_path: Path) -> None:
    """Also one that is imported only when its feature is at work is looked at: all of the package is compiled
    before anything is loaded."""
    package = PATCHES / "sparkstack_vllm"
    image()
    main_of_plugin = sys.modules["sparkstack_vllm.__main__"]
    found = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    assert len(found) > 15
    for path in found:
        copy = tmp_path / str(path).replace("/", "-")
        shutil.copytree(package, copy / "sparkstack_vllm", ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / "sparkstack_vllm" / path).open("a") as file:
            file.write("\ndef broken(:\n")
        with pytest.raises(SyntaxError, match=re.escape(path.name)):
            main_of_plugin.whole(copy / "sparkstack_vllm")
    main_of_plugin.whole(package)
