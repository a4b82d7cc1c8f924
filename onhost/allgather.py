"""NCCL's all_gather over all ranks, in the image that serves: its bus bandwidth as one line of JSON.

    python3 allgather.py RANK WORLD MASTER_ADDRESS PORT GIB SECONDS

Runs inside the container with the rank's environment (fabric.env); the image has torch. `busbw` is in GB/s,
as nccl-tests count it: (ranks - 1) / ranks of the gathered bytes, by the time that one all_gather takes.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import timedelta
from typing import Any

ROUNDS = 5
SPARE_BYTES = 16 << 30
"""Left to the host: what is asked from the GPU is the host's memory on a Spark."""


def main(arguments: list[str]) -> int:
    """Gather, and print the figure; one line with the reason, and status 1, where that is not possible."""
    rank, world, master, port, gib, seconds = arguments
    try:
        figure = gather(int(rank), int(world), f"tcp://{master}:{port}", float(gib), float(seconds))
    except Exception as error:
        print(json.dumps({"gbytes": None, "problem": " ".join(str(error).split())[:300]}), flush=True)
        return 1
    print(json.dumps({"gbytes": figure, "problem": ""}), flush=True)
    return 0


def gather(rank: int, world: int, method: str, gib: float, seconds: float) -> float:
    """GB/s. Both buffers together must leave SPARE_BYTES free. Errors: RuntimeError."""
    # The image has it, whoever checks this file's types has not.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    part = max(int(gib * (1 << 30)) // world // 2, 1)
    free, _ = torch.cuda.mem_get_info()
    needed = 2 * part * (world + 1)
    if free - needed < min(SPARE_BYTES, free // 4):
        raise RuntimeError(f"found {free >> 20} MiB free; wanted {needed >> 20} MiB and room beside it")
    limit = timedelta(seconds=seconds)
    dist.init_process_group("nccl", init_method=method, rank=rank, world_size=world, timeout=limit)
    try:
        mine = torch.zeros(part, dtype=torch.bfloat16, device="cuda")
        whole = torch.empty(part * world, dtype=torch.bfloat16, device="cuda")
        return _busbw(torch, dist, mine, whole, world)
    finally:
        dist.destroy_process_group()


def _busbw(torch: Any, dist: Any, mine: Any, whole: Any, world: int) -> float:
    for _ in range(2):  # connections are made at the first
        dist.all_gather_into_tensor(whole, mine)
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(ROUNDS):
        dist.all_gather_into_tensor(whole, mine)
    torch.cuda.synchronize()
    took = (time.monotonic() - began) / ROUNDS
    return float(whole.numel() * whole.element_size() * (world - 1) / world / took / 1e9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
