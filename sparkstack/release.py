"""Names that are hashes of everything that went in: images, checkpoints, releases.

An id says "same inputs, same product". Whatever changes the product must be hashed here, and nothing else:
a changed benchmark expectation must not restart a server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sparkstack.errors import Problem, SparkstackError

IGNORED = ("__pycache__", "*.egg-info", "build")


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no blanks, no escapes outside ASCII's own.

    Errors: TypeError for what JSON cannot hold and for keys that are not text (JSON would turn 1 and "1"
    into the same key); ValueError for NaN and infinities.
    """
    _refuse_other_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _refuse_other_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not text")
            _refuse_other_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_other_keys(item)


def content_id(value: Any, length: int = 12) -> str:
    """The first `length` (1 to 64) hex digits of SHA-256 over the canonical JSON of `value`."""
    if not 1 <= length <= 64:
        raise ValueError(f"an id has 1 to 64 hex digits, not {length}")
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def tree_hash(root: Path, ignore: Iterable[str] = IGNORED) -> str:
    """SHA-256 (64 hex digits) over the names and contents of all files under `root`.

    `ignore` holds patterns for single path components: what a build leaves behind must not change the hash.
    A link counts by where it points. Empty folders, modes and times do not count.
    Errors: SparkstackError when `root` is not a folder.
    """
    if not root.is_dir():
        raise SparkstackError(Problem(str(root), "no such folder", "a folder to hash", "check the path"))
    patterns = tuple(ignore)
    listing: list[list[str]] = []
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if any(fnmatchcase(part, pattern) for part in relative.parts for pattern in patterns):
            continue
        if path.is_symlink():
            listing.append([relative.as_posix(), "link", str(path.readlink())])
        elif path.is_file():
            listing.append([relative.as_posix(), "file", hashlib.sha256(path.read_bytes()).hexdigest()])
    return content_id(sorted(listing), length=64)


def image_id(base: str, plugin_hash: str, dockerfile: str, build_args: Mapping[str, str]) -> str:
    """The id of an image: base (`repo@sha256:…`), the plugin's tree hash, Dockerfile text, arguments."""
    return content_id(
        {"base": base, "plugin": plugin_hash, "dockerfile": dockerfile, "build_args": dict(build_args)}
    )


def checkpoint_id(
    repo: str,
    revision: str,
    transforms: Sequence[Mapping[str, Any]],
    versions: Mapping[str, int],
    allow: Sequence[str] | None = None,
) -> str:
    """The id of a checkpoint: source, which of its files, the transforms in order with the version of each.

    `transforms` are as in a job's plan, `{"name": …, its arguments}`. Only the versions of transforms that
    are used count: improving `reshard` must not rename a checkpoint that never went through it.
    `allow` holds the glob patterns of the files to take (their order does not matter), None for all.
    Errors: SparkstackError for a transform without a version.
    """
    steps = []
    for transform in transforms:
        name = str(transform.get("name"))
        if name not in versions:
            known = ", ".join(sorted(versions)) or "none"
            raise SparkstackError(
                Problem(f"checkpoint {repo}", f"transform {name!r}", f"one of: {known}", "correct the recipe")
            )
        steps.append({**transform, "version": versions[name]})
    files = None if allow is None else sorted(set(allow))
    return content_id({"repo": repo, "revision": revision, "allow": files, "transforms": steps})


def release_id(
    image: str,
    checkpoint: str,
    argv_by_rank: Sequence[Sequence[str]],
    env_by_rank: Sequence[Mapping[str, str]],
    unit: str,
) -> str:
    """The id of a release, the same on all ranks of a cluster because it hashes what every rank runs.

    `image` and `checkpoint` are ids; `argv_by_rank` and `env_by_rank` are in rank order; `unit` is the text
    of the systemd unit.
    """
    return content_id(
        {
            "image": image,
            "checkpoint": checkpoint,
            "argv": [list(argv) for argv in argv_by_rank],
            "env": [dict(env) for env in env_by_rank],
            "unit": unit,
        }
    )


TRANSFORM_VERSIONS = {
    "register_mtp": 1,
    "reshard": 2,
    "graft_fp8": 2,
    "turboquant_metadata": 1,
    "fp8_dense": 2,
    "draft_vocab": 1,
    "ngram_table": 1,
}
"""Raised when a transform's product changes: the package `onhost` has the code, and a test compares."""
