"""`sparkstack-image-check`: is this image what it should be? Run once in every image that was built.

Prints one JSON object, `{"format": 1, "ok", "profile", "lines": [{"check", "status", "found", "wanted"}]}`,
and ends with 1 unless every line is "ok" or "not checked". The profile says what the image is for: "gpu" a
Spark, "cpu" the lab, where a CPU build is what is wanted and nothing of a GPU is looked at. Only the standard
library is imported before a check begins, so that a broken feature is a line and no traceback.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROFILES = ("gpu", "cpu")
# A Spark's GB10. Machine code of one major version runs on the minor versions after it, the forms with a
# letter (sm_120a) only on exactly theirs; "f" is a family's. PTX runs on everything later.
SPARK = (12, 1)
DEVICE_CODE_LIMIT_S = 300  # the driver compiles PTX as it loads it


class Line(NamedTuple):
    check: str
    status: str  # "ok", "failed", "not checked"
    found: str
    wanted: str


def release_of(version: str) -> str:
    """0.20.2+cu130 → 0.20.2."""
    return re.split(r"[+-]", version, maxsplit=1)[0]


def vllm_version(wanted: str | None) -> Line:
    import vllm

    found = str(vllm.__version__)
    if wanted is None:
        return Line("vllm_version", "not checked", f"vLLM {found}", "the recipe names none")
    same = release_of(found) == release_of(wanted)
    return Line("vllm_version", "ok" if same else "failed", f"vLLM {found}", f"vLLM {wanted}")


def torch_cuda(profile: str) -> Line:
    import torch

    cuda = torch.version.cuda
    found = f"torch {torch.__version__}, " + (f"CUDA {cuda}" if cuda else "no CUDA")
    if profile == "cpu":
        return Line("torch_cuda", "failed" if cuda else "ok", found, "a CPU build, as the profile says")
    return Line("torch_cuda", "ok" if cuda else "failed", found, "torch with CUDA")


def runs_on_spark(flag: str) -> bool:
    """Whether code for this target (sm_90, sm_120f, compute_80 …) can run on a GB10."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", flag)
    if match is None:
        return False
    kind, (major, minor), letter = match[1], (int(match[2]), int(match[3])), match[4]
    if letter == "a":
        return (major, minor) == SPARK
    if kind == "compute" and not letter:
        return (major, minor) <= SPARK
    return major == SPARK[0] and minor <= SPARK[1]


def architectures(profile: str) -> Line:
    wanted = "code that runs on sm_121"
    if profile == "cpu":
        return Line("architectures", "not checked", "profile cpu", wanted)
    import torch

    # torch.cuda.get_arch_list() is empty where no GPU is visible; this is what it reads.
    flags = str(torch._C._cuda_getArchFlags() or "") if torch.version.cuda else ""
    reaches = any(runs_on_spark(flag) for flag in flags.split())
    return Line("architectures", "ok" if reaches else "failed", flags or "none", wanted)


def plugin_active() -> Line:
    from sparkstack_vllm.__main__ import check

    return Line("plugin", "ok", check(), "found by vLLM, its features' self-checks right")


def _libraries() -> list[Path]:
    spec = importlib.util.find_spec("vllm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return sorted(path for folder in folders for path in Path(folder).rglob("*.so"))


def _load(library: Path) -> str:
    """What the loader says against a library; "" where it takes it. In a process of its own: builds for
    several processors lie side by side, and all of them register the same names with torch."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no answer of the loader"
        try:
            ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
            said = ""
        except OSError as error:
            said = str(error)
        finally:
            os.write(write, said.encode()[:4096])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8", errors="replace") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"{library.name}: the process that loaded it ended with {status}" if status else said


def extensions(profile: str) -> Line:
    """Load each of vLLM's compiled extensions with all symbols resolved at once."""
    import torch  # noqa: F401  # its libraries hold the symbols

    wanted = "every symbol of vLLM's extensions resolved"
    libraries = _libraries()
    if not libraries:
        return Line("extensions", "failed", "no extension in vllm", wanted)
    loaded, driverless = [], []
    for library in libraries:
        if not (said := _load(library)):
            loaded.append(library.name)
        elif "libcuda.so" in said and "cannot open" in said:
            driverless.append(library.name)
        elif profile == "cpu" and "AVX" in library.name:
            continue  # built for a processor that this is not
        else:
            return Line("extensions", "failed", said, wanted)
    if driverless:
        return Line("extensions", "not checked", f"no driver to load {', '.join(driverless)} with", wanted)
    return Line("extensions", "ok", ", ".join(loaded), wanted)


def extensions_device_code(profile: str) -> Line:
    """What vLLM's extensions hold for GPUs, given to the driver. Code for other chips alone is no fault: the
    kernels for Hopper are files of their own; but some file must have code for this one."""
    wanted = "GPU code of vLLM's extensions that this driver loads"
    if profile == "cpu":
        return Line("extensions_device_code", "not checked", "profile cpu", wanted)
    from sparkstack_vllm import device_images

    try:
        driver = device_images.Driver()
    except OSError as error:
        return Line("extensions_device_code", "not checked", str(error), wanted)
    until = time.monotonic() + DEVICE_CODE_LIMIT_S
    said, cut, good = [], False, False
    for library in _libraries():
        result = device_images.try_all(driver, library, until)
        if result.error:
            return Line("extensions_device_code", "failed", f"{library.name}: {result.error}", wanted)
        if result.total:
            said.append(f"{library.name} {result.loaded}/{result.total}")
        good |= result.loaded > 0
        cut |= result.loaded + result.other_chips < result.total
    found = ", ".join(said) or "no GPU code in vllm"
    if not good and not cut:
        return Line("extensions_device_code", "failed", found, wanted)
    status = "not checked" if cut else "ok"
    more = f" (not all within {DEVICE_CODE_LIMIT_S} s)" if cut else ""
    return Line("extensions_device_code", status, found + more, wanted)


def device_code(profile: str) -> Line:
    """A kernel of our own on the GPU that is there: torch launches, Triton compiles for this driver."""
    wanted = "kernels of torch and Triton that run on this GPU and driver"
    if profile == "cpu":
        return Line("device_code", "not checked", "profile cpu", wanted)
    import torch

    if not torch.cuda.is_available():
        # The check is run with the GPU given to the container, so this image cannot use it.
        return Line("device_code", "failed", "torch sees no GPU", wanted)
    from sparkstack_vllm import int8_lm_head
    from sparkstack_vllm.kernels import int8_head

    weight = torch.randn(1003, 256, device="cuda").bfloat16()
    x = torch.randn(3, 256, device="cuda").bfloat16()
    quantised, scale = int8_lm_head.quantise(weight)
    config = int8_head.Config(64, 64, 4, 2)
    got = int8_head.logits(x, quantised, scale, config).float()
    exact = x.float() @ weight.float().T
    error = ((got - exact).norm() / exact.norm()).item()
    name = f"{torch.cuda.get_device_name()}, error {error:.1e}"
    return Line("device_code", "ok" if error < 0.02 else "failed", name, wanted)


def run(profile: str, vllm: str | None) -> dict[str, Any]:
    """All checks; one that raises is a failed line."""
    checks: Sequence[tuple[str, Callable[[], Line]]] = (
        ("vllm_version", lambda: vllm_version(vllm)),
        ("torch_cuda", lambda: torch_cuda(profile)),
        ("architectures", lambda: architectures(profile)),
        # Before anything has loaded one of them for work.
        ("extensions", lambda: extensions(profile)),
        ("plugin", plugin_active),
        ("extensions_device_code", lambda: extensions_device_code(profile)),
        ("device_code", lambda: device_code(profile)),
    )
    lines = []
    for name, check in checks:
        try:
            lines.append(check())
        except (Exception, SystemExit) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            lines.append(Line(name, "failed", f"{type(error).__name__}: {said}"[:400], "the check to run"))
    ok = all(line.status != "failed" for line in lines)
    return {"format": 1, "ok": ok, "profile": profile, "lines": [line._asdict() for line in lines]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="sparkstack-image-check", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, required=True)
    parser.add_argument("--vllm", help="the version that the recipe names")
    arguments = parser.parse_args()
    # What libraries print as they are imported must not stand beside the JSON.
    out = os.dup(1)
    os.dup2(2, 1)
    report = run(arguments.profile, arguments.vllm)
    sys.stdout.flush()
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
