"""What the tests of onhost make: safetensors files byte by byte (not with the code under test), jobs."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from io import StringIO
from pathlib import Path
from typing import Any

from onhost.jobs import Job, Progress
from onhost.plan import Plan

Content = dict[str, tuple[str, list[int], bytes]]  # name → dtype, shape, bytes


def noise(count: int, seed: str) -> bytes:
    return random.Random(seed).randbytes(count)


def tensors(**sizes: int) -> Content:
    """U8 tensors of the given bytes; `__` in a name stands for a dot."""
    return {name.replace("__", "."): ("U8", [size], noise(size, name)) for name, size in sizes.items()}


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file from a header (an object, or bytes as they are) and data, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def safetensors(content: Content, metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, content_bytes) in content.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(content_bytes)],
        }
        data += content_bytes
    return raw(header, data)


def contents(path: Path) -> Content:
    """Reads a file back, by the format's description alone."""
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    data = blob[8 + length :]
    return {
        name: (info["dtype"], info["shape"], data[info["data_offsets"][0] : info["data_offsets"][1]])
        for name, info in header.items()
    }


def write_repo(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    """Files below a folder, and the view of them."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in files}


def index(weight_map: dict[str, str], total_size: int = 0) -> bytes:
    return json.dumps(
        {"metadata": {"total_size": total_size, "note": "kept"}, "weight_map": weight_map}
    ).encode()


FIRST = {
    "model.embed.weight": ("BF16", [40, 8], noise(640, "embed")),
    "model.layers.0.q.weight": ("F8_E4M3", [16, 16], noise(256, "q0")),
    "model.layers.0.norm.weight": ("F32", [8], noise(32, "n0")),
}
SECOND = {
    "model.layers.0.q.weight_scale_inv": ("F32", [1, 1], noise(4, "s0")),
    "model.layers.1.q.qweight": ("I32", [8, 8], noise(256, "q1")),
    "model.layers.1.q.scales": ("F16", [2, 8], noise(32, "s1")),
    "model.layers.1.bias": ("BF16", [3], noise(6, "b1")),
    "model.scalar": ("F32", [], noise(4, "sc")),
    "model.empty": ("BF16", [0, 4], b""),
}
EXTRA = {
    "mtp.fc.weight": ("BF16", [8, 8], noise(128, "fc")),
    "mtp.norm.weight": ("BF16", [8], noise(16, "mn")),
}


def model_files() -> dict[str, bytes]:
    """A model in two parts, with an extra file that its index forgets, and files that are not weights."""
    names = {name: "model-00001-of-00002.safetensors" for name in FIRST}
    names |= {name: "model-00002-of-00002.safetensors" for name in SECOND}
    return {
        "model-00001-of-00002.safetensors": safetensors(FIRST, {"format": "pt"}),
        "model-00002-of-00002.safetensors": safetensors(SECOND, {"format": "pt"}),
        "model_extra_tensors.safetensors": safetensors(EXTRA),
        "model.safetensors.index.json": index(names, 1230),
        "config.json": b'{"architectures": ["Tiny"]}\n',
        "assets/chat.txt": b"hello\n",
    }


def job(folder: Path, plan: dict[str, Any]) -> Job:
    """A job as its function gets it, outside of the runner."""
    return Job("test", Plan(plan), folder, Progress(StringIO()), threading.Event())


def revision_of(repo: str) -> str:
    """The lab hub's revision of a repository without an entry of its own."""
    return hashlib.sha1(repo.encode()).hexdigest()


class Silent:
    """A meter that keeps the stages and the sum that it was told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.done = 0
        self._lock = threading.Lock()

    def stage(self, name: str, total: int | None, unit: str, note: str = "", done: int = 0) -> None:
        self.stages.append(name)

    def add(self, count: int, note: str | None = None) -> None:
        with self._lock:
            self.done += count
