"""Where the lab keeps its things, and the labels by which it knows them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

LAB = ROOT / ".lab"
CACHE = LAB / "cache"
STATE = LAB / "state.json"
KEY = LAB / "id_ed25519"
KNOWN_HOSTS = LAB / "known_hosts"
MODELS = LAB / "models"
FILES = LAB / "files"

LABEL = "sparkstack.lab"
"""Label on every container, network and volume; its value is `CHECKOUT`."""

LABEL_IMAGE = "sparkstack.lab.image"
"""Label on every image. Not the same: containers inherit their image's labels, also those of somebody who
merely tries an image by hand."""

LABEL_PATH = "sparkstack.lab.checkout"
LABEL_SPEC = "sparkstack.lab.spec"

CHECKOUT = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]

Progress = Callable[[str, int, int | None, str], None]
"""Called as `progress(stage, done, total or None, note)`; cheap, and never raises."""


class LabError(Exception):
    """What a user can act on, in one line."""


def quiet(stage: str, done: int, total: int | None, note: str) -> None:
    """A progress callback that says nothing."""


def labels(**more: str) -> dict[str, str]:
    """The labels of something that this checkout's lab makes."""
    return {LABEL: CHECKOUT, LABEL_PATH: str(ROOT), **more}


def image_labels() -> dict[str, str]:
    """The labels of an image that this checkout's lab makes."""
    return {LABEL_IMAGE: CHECKOUT}


def digest(*parts: Any) -> str:
    """First 12 hex digits of a SHA-256 over `parts` (bytes as they are, anything else as canonical JSON)."""
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:12]
