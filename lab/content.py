"""What the outside container serves, made before it starts: models, wheels, conda stand-in, base image."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import docker

from lab import models
from lab.images import exists
from lab.paths import CACHE, FILES, MODELS, Progress

CONDA = Path(__file__).parent / "conda_standin.sh"
CONDA_NAME = f"Miniforge3-0-lab-Linux-{platform.machine()}.sh"


@dataclass(frozen=True)
class Content:
    """`models`: repository → revision; `base`: tag of the serving image's base in this machine's Docker."""

    models: dict[str, str]
    base: str
    conda_sha256: str


def make(client: docker.DockerClient, progress: Progress) -> Content:
    """Makes what is missing; quick where all is there."""
    FILES.joinpath("wheels").mkdir(parents=True, exist_ok=True)
    MODELS.mkdir(parents=True, exist_ok=True)
    progress("models", 0, None, "tiny models")
    revisions = models.build(MODELS)
    MODELS.joinpath("revisions.json").write_text(json.dumps(revisions, indent=2) + "\n")
    installer = CONDA.read_bytes()
    FILES.joinpath("miniforge").mkdir(exist_ok=True)
    FILES.joinpath("miniforge", CONDA_NAME).write_bytes(installer)
    base = _base(client, progress)
    return Content(revisions, base, hashlib.sha256(installer).hexdigest())


def _base(client: docker.DockerClient, progress: Progress) -> str:
    if importlib.util.find_spec("lab.vllm_image"):
        return str(importlib.import_module("lab.vllm_image").build(CACHE, progress))
    tag = "sparkstack-lab/small:dev"
    if not exists(client, tag):
        client.api.import_image_from_data(_tar(), repository="sparkstack-lab/small", tag="dev")
    return tag


def _tar() -> bytes:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("hello")
        member.size = 6
        archive.addfile(member, io.BytesIO(b"hello\n"))
    return out.getvalue()
