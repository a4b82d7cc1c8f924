"""The scripts of the task conda, run by a real shell with stand-ins for the tools that would download."""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_host import GROUP_DATA, FakeHost, commands_of, written

from tasks import conda
from tasks.facts import Text
from tasks.site import ROOT

INSTALLER = '#!/bin/sh\nfor last; do :; done\necho ran >> "$last/ran"\n'


def script(commands: list[Any]) -> str:
    (text,) = written(commands).values()
    return text


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("served", [INSTALLER, INSTALLER[:-9], "<html>404</html>", ""])
def test_a_corrupt_or_wrong_installer_never_runs(tmp_path: Path, served: str) -> None:
    source, prefix = tmp_path / "served.sh", tmp_path / "conda"
    source.write_text(served)
    pinned = hashlib.sha256(INSTALLER.encode()).hexdigest()
    host = FakeHost("spark-1", {Text: None})
    commands = commands_of(conda.miniforge, host, "aarch64", {}, f"file://{source}", pinned, str(prefix))
    done = run(script(commands), tmp_path)
    assert (prefix / "ran").exists() is (served == INSTALLER)
    assert (done.returncode == 0) is (served == INSTALLER)
    assert not (tmp_path / "conda.installer.sh").exists()
    if served == INSTALLER:
        assert (prefix / ".sparkstack").read_text() == f"{pinned}\n"
    else:
        assert not (prefix / ".sparkstack").exists()
        assert done.stdout.splitlines()[-1] == (
            f"found another SHA-256 than {pinned} at file://{source}; wanted the pinned one; check conda_url"
        )


def test_the_pinned_installers_have_a_version_and_a_hash() -> None:
    installers = runpy.run_path(str(ROOT / "group_data/all.py"))["conda_installers"]
    for arch in ("aarch64", "x86_64"):
        assert (
            installers[arch]["url"].endswith(f"-Linux-{arch}.sh") and "latest" not in installers[arch]["url"]
        )
        assert len(installers[arch]["sha256"]) == 64


def source_job(folder: Path) -> str:
    host = FakeHost("spark-1", {Text: None})
    build = {**GROUP_DATA["source_build"], "jobs": 4}
    commands = commands_of(conda.vllm_from_source, host, "source", build, str(folder), {"PIP_X": "a b"})
    return script(commands)


def test_a_source_build_is_asked_for() -> None:
    host = FakeHost("spark-1")
    assert commands_of(conda.vllm_from_source, host, "container", {}, "/opt/x", {}) == []
    build = GROUP_DATA["source_build"]
    digest, _ = conda.source_script(build, "/opt/x", {})
    host.facts = {Text: f"{digest}\n"}
    assert commands_of(conda.vllm_from_source, host, "source", build, "/opt/x", {}) == []
    assert conda.source_script({**build, "ref": "v0.20.1"}, "/opt/x", {})[0] != digest


def test_what_the_source_build_does() -> None:
    text = source_job(Path("/opt/sparkstack"))
    order = [
        'create --yes --quiet -p "$prefix" python=3.12',
        "pip install --quiet torch==2.11.0 torchvision==0.26.0 torchaudio==2.11.0 --index-url https://",
        "git clone --quiet --depth 1 --branch v0.20.2 ",
        "use_existing_torch.py",
        "TORCH_CUDA_ARCH_LIST=12.1a",
        "MAX_JOBS=4",
        '--no-build-isolation --override "$prefix/torch.txt" -e .',
        "torch.version.cuda",
        "echo ",
    ]
    at = [text.index(words) for words in order[:-1]] + [text.rindex(order[-1])]
    assert at == sorted(at)
    assert "/cu130\n" in text and "export PIP_X='a b'\n" in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


PYTHON = """case "$*" in
*"pip freeze"*) printf 'torch==2.11.0+cu130\\nnumpy==2.3\\ntorchvision==0.26.0+cu130\\n' ;;
*torch.version.cuda*) echo {cuda} ;;
*torch.__version__*) echo 2.11.0+cpu ;;
*) echo "python $*" >> {log} ;;
esac"""


@pytest.mark.parametrize("cuda", ["13.0", ""])
def test_a_cpu_torch_fails_the_source_build(tmp_path: Path, cuda: str) -> None:
    text, log = source_job(tmp_path), tmp_path / "log"
    python = base64.b64encode(f"#!/bin/sh\n{PYTHON.format(cuda=cuda, log=log)}\n".encode()).decode()
    uv = base64.b64encode(f'#!/bin/sh\necho "uv $*" >> {log}\n'.encode()).decode()
    target = f"{tmp_path}/vllm/bin"
    make = f"mkdir -p {target}; " + "".join(
        f"echo {body} | base64 -d > {target}/{name}; chmod 755 {target}/{name}; "
        for name, body in (("python", python), ("uv", uv))
    )
    tool(tmp_path / "conda/bin", "conda", make)
    tool(
        tmp_path / "bin",
        "git",
        'for last; do :; done; mkdir -p "$last/requirements"; : > "$last/requirements/build.txt"',
    )
    done = run(text, tmp_path)
    marker = tmp_path / "vllm/.sparkstack"
    assert (tmp_path / "vllm/torch.txt").read_text() == "torch==2.11.0+cu130\ntorchvision==0.26.0+cu130\n"
    steps = log.read_text().splitlines()
    assert any("-r requirements/build.txt --override" in step for step in steps)
    assert (done.returncode == 0) is bool(cuda), done.stderr
    assert marker.exists() is bool(cuda)
    if not cuda:
        assert done.stdout.splitlines()[-1].startswith(
            "found torch 2.11.0+cpu without CUDA; wanted one from https://"
        )
