"""The n-gram table of Qwen3.8-Flash-Next stays on disk: each step reads the rows that its tokens name.

The table has 320 million rows of 160 bytes (51.2 GB) and a token uses 16 of them. vLLM holds it in the GPU's
memory or, pinned, in the host's; on a Spark that is one memory, and the model does not fit beside it. Here
the rows come from the checkpoint's own file, by the places that transform `ngram_table` wrote down in
`ngram_rows.json`.

Rows are read when a step's inputs are prepared, before its forward pass: ids from the GPU, rows from disk
into a pinned buffer, from there into a GPU buffer of a fixed address. The forward pass only copies from that,
so it can be captured in CUDA graphs of any kind.

`SPARKSTACK_NGRAM_TABLE_IO=cached` (the default) reads through the page cache, which the kernel gives up where
memory is short; `direct` goes past it (O_DIRECT) and leaves the memory alone. This module reads and stages
and needs torch alone; `ngram_hook.py` is vLLM's side.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import torch
from torch import Tensor

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.loading import Nothing

ROW_MAP = "ngram_rows.json"
IO, THREADS = "SPARKSTACK_NGRAM_TABLE_IO", "SPARKSTACK_NGRAM_TABLE_THREADS"
MODES = ("cached", "direct")
PAGE = 4096  # O_DIRECT wants places, lengths and memory in multiples of the disk's block; this suits all
# Rows that a thread takes at once, at least: with O_DIRECT each read waits for the disk, so few.
LEAST = {"cached": 64, "direct": 4}
STAGE_AGAIN = "stage the checkpoint again with the transform ngram_table"

# Words for each embedding that reads from disk, made since `loaded` was last asked.
on_disk: list[str] = []


def refuse(found: str, wanted: str, remedy: str) -> PluginError:
    return PluginError(f"sparkstack plugin: ngram_table: found {found}; wanted {wanted}; {remedy}")


def settings() -> tuple[str, int]:
    """How to read, and with how many threads, from the environment."""
    mode, threads = os.environ.get(IO, "cached"), os.environ.get(THREADS, "32")
    if mode not in MODES:
        raise refuse(f"{IO}={mode!r}", " or ".join(MODES), "correct it")
    if not threads.isdecimal() or not 1 <= int(threads) <= 256:
        raise refuse(f"{THREADS}={threads!r}", "1 to 256", "correct it")
    return mode, int(threads)


class TableFile:
    """Rows of the table of a checkpoint, by number."""

    def __init__(self, folder: Path, mode: str = "cached", threads: int = 32) -> None:
        """Errors: PluginError where the map or the files are not there or contradict each other."""
        path = folder / ROW_MAP
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != 1:
                raise refuse(f"format {data['format']!r} of {path}", "1", STAGE_AGAIN)
            self._read_map(folder, data, mode)
        except PluginError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
            wanted = "the map of the table's rows"
            raise refuse(f"{path} that cannot be used ({said})", wanted, STAGE_AGAIN) from None
        self._mode = mode
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ngram-rows")

    def _read_map(self, folder: Path, data: dict[str, Any], mode: str) -> None:
        self.rows, self.row_bytes = int(data["rows"]), int(data["row_bytes"])
        self.table = str(data["table"])
        self._per_shard = int(data["rows_per_shard"])
        counts = [int(shard["rows"]) for shard in data["shards"]]
        if sum(counts) != self.rows or any(count != self._per_shard for count in counts[:-1]):
            found = f"shards of {sum(counts)} rows in {folder / ROW_MAP}"
            raise refuse(found, f"{self.rows} in equal shards", STAGE_AGAIN)
        flags = os.O_RDONLY | (os.O_DIRECT if mode == "direct" else 0)
        handles: dict[str, int] = {}
        self._handles: list[int] = []  # by shard
        starts = []
        for shard, count in zip(data["shards"], counts, strict=True):
            name, start = str(shard["file"]), int(shard["offset"])
            if name not in handles:
                try:
                    handles[name] = os.open(folder / name, flags)
                except OSError as error:
                    if mode != "direct" or error.errno != 22:  # EINVAL: a file system without it
                        raise
                    found = f"no O_DIRECT on the file system of {folder / name}"
                    raise refuse(found, f"{IO}=cached there", "correct it") from None
                os.posix_fadvise(handles[name], 0, 0, os.POSIX_FADV_RANDOM)
            if os.fstat(handles[name]).st_size < start + count * self.row_bytes:
                raise refuse(f"{name} shorter than {ROW_MAP} says", "the whole table", STAGE_AGAIN)
            self._handles.append(handles[name])
            starts.append(start)
        self._starts = numpy.array(starts, dtype=numpy.int64)

    def read_into(self, rows: numpy.ndarray[Any, Any], target: memoryview) -> None:
        """Row after row of int64 `rows` into a buffer of `len(rows) * row_bytes` bytes.

        Errors: IndexError for a row outside of the table, OSError from the disk.
        """
        if not len(rows):
            return
        # By place, so that rows of one page meet.
        order = numpy.argsort(rows, kind="stable")
        first, last = int(rows[order[0]]), int(rows[order[-1]])
        if first < 0 or last >= self.rows:
            raise IndexError(f"row {first if first < 0 else last} of an n-gram table with {self.rows}")
        shard, within = numpy.divmod(rows[order], self._per_shard)
        places = (self._starts[shard] + within * self.row_bytes).tolist()
        jobs = list(zip(shard.tolist(), places, (order * self.row_bytes).tolist(), strict=True))
        size = max(LEAST[self._mode], -(-len(jobs) // self._threads))
        chunks = [jobs[at : at + size] for at in range(0, len(jobs), size)]
        fill = self._direct if self._mode == "direct" else self._cached
        if len(chunks) == 1:
            fill(chunks[0], target)
            return
        for _ in self._pool.map(lambda chunk: fill(chunk, target), chunks):
            pass

    def _cached(self, jobs: Sequence[tuple[int, int, int]], target: memoryview) -> None:
        size, handles = self.row_bytes, self._handles
        # A disk is fast at random places only when it is asked for many at once: all first, then one by one.
        for shard, place, _ in jobs:
            os.posix_fadvise(handles[shard], place, size, os.POSIX_FADV_WILLNEED)
        for shard, place, begin in jobs:
            if os.preadv(handles[shard], [target[begin : begin + size]], place) != size:
                raise OSError(f"the table ends within the row at byte {place}")

    def _direct(self, jobs: Sequence[tuple[int, int, int]], target: memoryview) -> None:
        size, at = self.row_bytes, (-1, -1)
        room = (size + 2 * PAGE - 2) // PAGE * PAGE  # whole pages around a row, wherever it begins
        with mmap.mmap(-1, room) as memory, memoryview(memory) as pages:
            for shard, place, begin in jobs:
                start = place // PAGE * PAGE
                if (shard, start) != at:
                    got = os.preadv(self._handles[shard], [pages], start)
                    at = (shard, start)
                if got < place - start + size:
                    raise OSError(f"the table ends within the row at byte {place}")
                target[begin : begin + size] = pages[place - start : place - start + size]


class Stage:
    """The rows of one step's tokens, in a buffer that never moves: uint8 [tokens, heads · row_bytes]."""

    def __init__(self, table: TableFile, tokens: int, heads: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._table = table
        shape = (tokens, heads * table.row_bytes)
        self.buffer = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._rows = torch.zeros(shape, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._ids = torch.zeros(tokens, heads, dtype=torch.int64, device="cpu", pin_memory=pinned)

    def fill(self, ids: Tensor) -> None:
        """ids int64 [tokens, heads] on the device. Waits for them; the rows follow on the current stream."""
        tokens = ids.shape[0]
        if tokens > self.buffer.shape[0]:
            most = f"at most {self.buffer.shape[0]}"
            raise refuse(f"a step of {tokens} tokens", most, "raise max_num_batched_tokens")
        self._ids[:tokens].copy_(ids, non_blocking=True)
        if ids.is_cuda:
            # Also ends the copy of the step before, whose buffer is filled anew.
            torch.cuda.current_stream(ids.device).synchronize()
        view = memoryview(self._rows[:tokens].numpy()).cast("B")
        self._table.read_into(self._ids[:tokens].reshape(-1).numpy(), view)
        self.buffer[:tokens].copy_(self._rows[:tokens], non_blocking=True)


def apply() -> None:
    """Have the model's n-gram embeddings read from the checkpoint's file."""
    settings()
    from sparkstack_vllm import ngram_hook

    ngram_hook.install()


def loaded(model: Any) -> str | Nothing:
    """Which tables stay on disk."""
    found = list(on_disk)
    on_disk.clear()
    if not found:
        return Nothing("no n-gram table in this model")
    return found[0] if len(found) == 1 else f"in {len(found)} layers {'; '.join(sorted(set(found)))}"


def self_check() -> None:
    """Rows across two files, in any order and more than once, read both ways and staged."""
    row, per_shard, rows = 160, 70, 130
    content = numpy.random.default_rng(0).integers(0, 256, (rows, row), dtype=numpy.uint8)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number, lead in ((0, 7), (1, 4093)):
            part = content[number * per_shard : (number + 1) * per_shard]
            (folder / f"{number}.bin").write_bytes(bytes(lead) + part.tobytes())
        shards = [{"file": f"{n}.bin", "offset": o, "rows": r} for n, o, r in ((0, 7, 70), (1, 4093, 60))]
        told = {"format": 1, "table": "t", "rows": rows, "row_bytes": row, "rows_per_shard": per_shard}
        (folder / ROW_MAP).write_text(json.dumps({**told, "shards": shards}))
        ids = torch.tensor([[129, 0, 5], [69, 70, 5]])
        for mode in MODES:
            try:
                table = TableFile(folder, mode, threads=2)
            except PluginError:
                assert mode == "direct", "a table through the page cache could not be opened"
                continue  # a build's file system without O_DIRECT
            stage = Stage(table, 4, 3, torch.device("cpu"))
            stage.fill(ids)
            exact = content[ids.numpy()].reshape(2, -1)
            assert (stage.buffer[:2].numpy() == exact).all(), f"{mode}: other bytes than the file's"
