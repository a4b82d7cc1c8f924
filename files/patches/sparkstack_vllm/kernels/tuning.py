"""Which of a kernel's configurations is fastest on this card: tried once at load, remembered on disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

log = logging.getLogger("vllm.sparkstack")
C = TypeVar("C", bound=tuple[Any, ...])

CALLS = 8  # in one graph, so that launching does not count
REPLAYS = 5


def cache_dir() -> Path:
    """Beside vLLM's own cache, which the image puts into a folder of this plugin's version."""
    root = os.environ.get("VLLM_CACHE_ROOT") or str(Path.home() / ".cache" / "vllm")
    return Path(root) / "sparkstack-tuning"


def microseconds(call: Callable[[], Tensor], calls: int = CALLS, replays: int = REPLAYS) -> float:
    """Median time of one call on the device, µs, from replays of a graph."""
    call()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        # Other threads may go on allocating: a loader can be at work beside this.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return float(sorted(times)[len(times) // 2])


def _key(module: ModuleType, name: str, shape: Sequence[int], device: torch.device) -> str:
    """Whatever can change the winner: card, compiler, kernel's source, shape."""
    card = torch.cuda.get_device_properties(device)
    parts = [card.name, card.major, card.minor, triton.__version__, torch.__version__, list(shape)]
    source = hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    return f"{name}-{hashlib.sha256(json.dumps([*parts, source]).encode()).hexdigest()[:16]}"


def _remembered(path: Path, candidates: Sequence[C]) -> C | None:
    try:
        found = tuple(json.loads(path.read_text(encoding="ascii"))["config"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent, or cut short by a full disk: tried anew
    return next((candidate for candidate in candidates if tuple(candidate) == found), None)


def _remember(path: Path, config: tuple[Any, ...], time: float) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump({"config": list(config), "us": round(time, 2)}, file)
        Path(temporary).replace(path)
    except OSError as error:
        log.warning("sparkstack plugin: cannot keep %s: %s; the next start tries again", path, error)


def choose(
    module: ModuleType,
    name: str,
    shape: Sequence[int],
    candidates: Sequence[C],
    run: Callable[[C], Tensor],
    device: torch.device,
) -> C:
    """The fastest candidate for `run`, from the cache where it is there; compiled when this returns.

    Off a GPU it is the first. Errors: RuntimeError when no candidate runs on this card.
    """
    if device.type != "cuda":
        return candidates[0]
    path = cache_dir() / f"{_key(module, name, shape, device)}.json"
    known = _remembered(path, candidates)
    if known is not None:
        run(known)  # compiled (or taken from Triton's cache) now and not at the first request
        return known
    timed: list[tuple[float, C]] = []
    for candidate in candidates:
        try:
            timed.append((microseconds(lambda candidate=candidate: run(candidate)), candidate))
        except triton.runtime.errors.OutOfResources:
            continue  # too large for this card's multiprocessors
    if not timed:
        raise RuntimeError(
            f"{name}: found no configuration that runs on {torch.cuda.get_device_name(device)}"
        )
    time, best = min(timed)
    _remember(path, best, time)
    log.info("sparkstack plugin: %s %s: %s, %.0f µs", name, tuple(shape), tuple(best), time)
    return best
