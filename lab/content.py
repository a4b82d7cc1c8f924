"""What the outside container serves, made before it starts: models, wheels, conda stand-in, base image."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import docker
import yaml

from lab import models
from lab.images import archive, exists
from lab.paths import CACHE, FILES, MODELS, ROOT, LabError, Progress

CONDA = Path(__file__).parent / "conda_standin.sh"
CONDA_NAME = f"Miniforge3-0-lab-Linux-{platform.machine()}.sh"

ENVIRONMENT = ROOT / "files" / "environment.yml"
SPARK_PYTHON = "3.11"
"""The Python of lab/rootfs.py's Debian."""


@dataclass(frozen=True)
class Content:
    """`models`: repository → revision; `base`: tag of the serving image's base in this machine's Docker."""

    models: dict[str, str]
    base: str
    conda_sha256: str


def make(client: docker.DockerClient, progress: Progress) -> Content:
    """Makes what is missing; quick where all is there."""
    MODELS.mkdir(parents=True, exist_ok=True)
    progress("models", 0, None, "tiny models")
    revisions = models.build(MODELS)
    MODELS.joinpath("revisions.json").write_text(json.dumps(revisions, indent=2) + "\n")
    installer = CONDA.read_bytes()
    folder = FILES / "miniforge"
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.joinpath(CONDA_NAME).exists() or folder.joinpath(CONDA_NAME).read_bytes() != installer:
        folder.joinpath(CONDA_NAME).write_bytes(installer)
    wheels(environment_requirements(), FILES / "wheels", progress)
    return Content(revisions, _base(client, progress), hashlib.sha256(installer).hexdigest())


def environment_requirements(definition: Path = ENVIRONMENT) -> list[str]:
    """The pip section of the environment that every Spark gets."""
    dependencies = yaml.safe_load(definition.read_text())["dependencies"]
    return [str(one) for part in dependencies if isinstance(part, dict) for one in part.get("pip", [])]


def wheels(requirements: list[str], folder: Path, progress: Progress) -> None:
    """Fetches the wheels of `requirements` for a Spark's Python, with pip as it is configured here.

    Nothing is asked of an index where the folder was filled for the same requirements before.
    """
    mark, wanted = folder / ".requirements", json.dumps([SPARK_PYTHON, *requirements])
    if mark.exists() and mark.read_text() == wanted:
        return
    progress("wheels", 0, None, f"{len(requirements)} requirements and what they need")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", SPARK_PYTHON, "--dest", str(folder)]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"pip download of the Sparks' wheels: {done.stderr.strip()[-300:]}")
    mark.write_text(wanted)
    progress("wheels", 1, 1, f"{len(list(folder.glob('*.whl')))} wheels")


def _base(client: docker.DockerClient, progress: Progress) -> str:
    if importlib.util.find_spec("lab.vllm_image"):
        return str(importlib.import_module("lab.vllm_image").build(CACHE, progress))
    tag = "sparkstack-lab/small:dev"
    if not exists(client, tag):
        client.api.import_image_from_data(archive({"hello": b"hello\n"}).getvalue(), repository=tag)
    return tag
