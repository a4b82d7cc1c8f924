"""The build of vLLM from source, run as it is by a real shell, with git, pip and virtual environments.

What stands in: a small repository for vLLM's, a folder of small wheels for the index, virtual environments
for conda's, and a `uv` that hands over to pip. Not here: a compiler, CUDA, conda itself. Needs no lab.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tasks.conda import source_script

pytestmark = pytest.mark.lab

TORCH = ["torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0"]

# `uv pip install --python P [--override FILE] …`: what is pinned in FILE wins over every requirement.
UV = '''import subprocess, sys

def main():
    words = [word for word in sys.argv[3:] if word != "--python"]
    python = words.pop(next(i for i, word in enumerate(words) if word.endswith("/python")))
    words = ["-c" if word == "--override" else word for word in words]
    sys.exit(subprocess.call([python, "-m", "pip", "install", *words]))
'''

# A build without isolation must see the torch that is there; it is written down in the package.
BACKEND = '''import base64, hashlib, os, zipfile

def _wheel(folder):
    import torch
    said = f"torch = {torch.__version__!r}\\narch = {os.environ['TORCH_CUDA_ARCH_LIST']!r}\\n"
    files = {"vllm.py": f"__version__ = '0.20.2'\\n{said}"}
    about = "vllm-0.20.2.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: vllm", "Version: 0.20.2", "Requires-Dist: torch", ""]
    files[f"{about}/METADATA"] = "\\n".join(lines)
    lines = ["Wheel-Version: 1.0", "Generator: t", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
    files[f"{about}/WHEEL"] = "\\n".join(lines)
    files[f"{about}/RECORD"] = "".join(f"{name},,\\n" for name in files) + f"{about}/RECORD,,\\n"
    name = "vllm-0.20.2-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name

def build_wheel(folder, settings=None, metadata=None):
    return _wheel(folder)

build_editable = build_wheel
'''

CONDA = """#!/bin/sh
# conda create --yes --quiet -p PREFIX python=3.12 …
[ "$1" = create ] || exit 2
while [ "$1" != -p ]; do shift; done
exec {python} -m venv "$2"
"""


def wheel(folder: Path, name: str, version: str, modules: dict[str, str], scripts: str = "") -> None:
    about = f"{name}-{version}.dist-info"
    files = {
        **modules,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{about}/entry_points.txt": f"[console_scripts]\n{scripts}\n"} if scripts else {}),
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(path, text)


def torch(folder: Path, version: str, cuda: str | None) -> None:
    text = f"from torch import version\n__version__ = {version!r}\n"
    wheel(folder, "torch", version, {"torch/__init__.py": text, "torch/version.py": f"cuda = {cuda!r}\n"})


def index(folder: Path, wheels: Path) -> str:
    """The pages of a package index over the wheels; its URL."""
    for name in {path.name.partition("-")[0] for path in wheels.glob("*.whl")}:
        (folder / name).mkdir(parents=True)
        links = "".join(f'<a href="file://{path}">{path.name}</a>\n' for path in wheels.glob(f"{name}-*.whl"))
        (folder / name / "index.html").write_text(links)
    return f"file://{folder}"


def repository(folder: Path) -> str:
    """vLLM's sources, as far as the build looks at them, with a tag; its URL."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["torch==9.9"]\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "backend.py": BACKEND,
        "requirements/build.txt": "torch==2.12.0\nhelper\n",
        # As vLLM's: no requirement of its own may bring another torch.
        "use_existing_torch.py": "import pathlib\np = pathlib.Path('requirements/build.txt')\n"
        "p.write_text(''.join(l for l in p.read_text().splitlines(True) if 'torch' not in l))\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "0.20.2"], ["tag", "v0.20.2"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return f"file://{folder}"


def build(tmp_path: Path, cuda: str | None, **changes: Any) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the job's script: (how it ended, the environment)."""
    place = tmp_path / "sparkstack"
    (place / "conda/bin").mkdir(parents=True)
    (place / "conda/bin/conda").write_text(CONDA.format(python=sys.executable))
    (place / "conda/bin/conda").chmod(0o755)
    cuda_wheels, plain = tmp_path / "cu130", tmp_path / "plain"
    torch(cuda_wheels, "2.11.0+cu130", cuda)
    for name, version in (("torchvision", "0.26.0+cu130"), ("torchaudio", "2.11.0+cu130")):
        wheel(cuda_wheels, name, version, {f"{name}.py": ""})
    # What a dependency that leaves torch open would bring, where nothing held the other one.
    torch(plain, "2.13.0", None)
    wheel(plain, "helper", "1.0", {"helper.py": ""})
    wheel(plain, "uv", "0.9", {"uv.py": UV}, "uv = uv:main")
    settings: dict[str, Any] = {
        "repository": repository(tmp_path / "repository"),
        "ref": "v0.20.2",
        "python": "3.12",
        "torch": TORCH,
        "torch_index": index(tmp_path / "index", cuda_wheels),
        "cuda_arch": "12.1a",
        "jobs": 2,
    }
    environment = {
        "PIP_INDEX_URL": index(tmp_path / "pypi", plain),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_CACHE_DIR": "1",
    }
    digest, script = source_script({**settings, **changes}, str(place), environment)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=clean, timeout=300, check=False
    )
    marker = place / "vllm/.sparkstack"
    assert (marker.exists() and marker.read_text() == f"{digest}\n") is (done.returncode == 0), done
    return done, place / "vllm"


def test_a_build_against_a_torch_with_cuda(tmp_path: Path) -> None:
    done, prefix = build(tmp_path, "13.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "0.20.2"
    ask = "import torch, vllm; print(torch.__version__, vllm.torch, vllm.arch)"
    said = subprocess.run([prefix / "bin/python", "-Ic", ask], capture_output=True, text=True, check=True)
    # Nothing has exchanged torch, neither before the build nor by what the product asks for.
    assert said.stdout.split() == ["2.11.0+cu130", "2.11.0+cu130", "12.1a"]
    assert (prefix.parent / "vllm-source/backend.py").exists()
    assert not (prefix.parent / "vllm-source.new").exists()


def test_a_torch_without_cuda_ends_it_in_words(tmp_path: Path) -> None:
    done, _ = build(tmp_path, None)
    assert done.returncode == 1
    line = "found torch 2.11.0+cu130 without CUDA; wanted one from file:"
    assert done.stdout.splitlines()[-1].startswith(line)
