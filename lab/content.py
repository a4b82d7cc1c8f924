"""What the outside container serves, made before it starts: models, wheels, conda stand-in, base image."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path

from lab import models, vllm_image, wheelhouse
from lab.paths import CACHE, FILES, MODELS, Progress

CONDA = Path(__file__).parent / "conda_standin.sh"
CONDA_NAME = f"Miniforge3-0-lab-Linux-{platform.machine()}.sh"


@dataclass(frozen=True)
class Content:
    """`models`: repository → revision; `base`: tag of the serving image's base in this machine's Docker."""

    models: dict[str, str]
    base: str
    conda_sha256: str


def make(progress: Progress) -> Content:
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
    _offer(wheelhouse.fetch(wheelhouse.ONHOST, CACHE, progress), FILES / "wheels")
    return Content(revisions, vllm_image.build(CACHE, progress), hashlib.sha256(installer).hexdigest())


def _offer(home: Path, folder: Path) -> None:
    """Makes `folder` hold the wheels of `home` and no others (links, so they are on disk once)."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {wheel.name: wheel for wheel in home.glob("*.whl")}
    for name in {one.name for one in folder.iterdir()} - wanted.keys():
        folder.joinpath(name).unlink()
    for name, wheel in wanted.items():
        if not folder.joinpath(name).exists():
            folder.joinpath(name).hardlink_to(wheel)
