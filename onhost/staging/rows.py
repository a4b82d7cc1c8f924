"""Reads rows of an n-gram table by `ngram_rows.json`, without loading or mapping the table.

This module stands alone: the standard library and nothing else of this package, so that it can be used
where only the checkpoint is (an engine's plugin). POSIX only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROW_MAP = "ngram_rows.json"
BATCH = 64, 512  # rows that a thread takes at once: at least, and at most


class RowReader:
    """Rows of the table below `folder`; close it, or use it in a `with`. Safe for several threads.

    A disk is only fast at random places when it is asked for many at once. So a thread first tells the kernel
    all rows that it will want, which returns at once, and then reads them one after the other: few threads
    keep hundreds of reads under way, and do not wait for the interpreter's lock. Up to 64 rows (what four
    tokens need) are read by the caller's own thread. Reads go through the page cache, without read-ahead.
    """

    def __init__(self, folder: Path, threads: int = 64) -> None:
        """ValueError where the row map is missing, of another format, or contradicts the files' sizes."""
        try:
            data = json.loads((folder / ROW_MAP).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"found no row map at {folder / ROW_MAP} ({error}); stage with ngram_table"
            ) from None
        if not isinstance(data, dict) or data.get("format") != 1:
            raise ValueError(f"found a row map of another format at {folder / ROW_MAP}; wanted format 1")
        self._handles: dict[str, int] = {}
        self._shards: list[tuple[int, int]] = []  # descriptor, offset of the shard's first row
        self._pool: ThreadPoolExecutor | None = None
        try:
            self._open(folder, data)
        except BaseException as error:
            self.close()
            if isinstance(error, KeyError | TypeError | FileNotFoundError):
                raise ValueError(
                    f"found {folder / ROW_MAP} that leads nowhere ({type(error).__name__}: {error}); "
                    "wanted the map that ngram_table wrote; stage the checkpoint again"
                ) from None
            raise
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows")

    def _open(self, folder: Path, data: dict[str, Any]) -> None:
        self.rows: int = data["rows"]
        self.row_bytes: int = data["row_bytes"]
        self._per_shard: int = data["rows_per_shard"]
        self.dtype = str(data["dtype"])
        self.columns = int(data["columns"])
        self.scale: dict[str, Any] | None = data["scale"]
        counts = [shard["rows"] for shard in data["shards"]]
        last = self.rows - self._per_shard * (len(counts) - 1)
        full = counts[:-1] == [self._per_shard] * (len(counts) - 1) and counts[-1:] == [last]
        if not full or self.row_bytes < 1 or not 0 < last <= self._per_shard:
            raise ValueError(
                f"found {self.rows} rows in {folder / ROW_MAP} and other shards; wanted shards of "
                f"{self._per_shard} rows that add up; stage the checkpoint again"
            )
        for shard in data["shards"]:
            handle = self._opened(folder, shard["file"])
            end = shard["offset"] + shard["rows"] * self.row_bytes
            if os.fstat(handle).st_size < end:
                raise ValueError(
                    f"found {shard['file']} shorter than {ROW_MAP} says; stage the checkpoint again"
                )
            self._shards.append((handle, shard["offset"]))

    def _opened(self, folder: Path, name: str) -> int:
        if name not in self._handles:
            handle = os.open(folder / name, os.O_RDONLY)
            self._handles[name] = handle
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        return self._handles[name]

    def place(self, row: int) -> tuple[int, int]:
        """(descriptor, offset in bytes) of a row; IndexError outside of the table."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of a table with {self.rows} rows")
        handle, start = self._shards[row // self._per_shard]
        return handle, start + row % self._per_shard * self.row_bytes

    def read(self, rows: Sequence[int]) -> bytearray:
        """The bytes of these rows, one after the other in the given order."""
        out = bytearray(len(rows) * self.row_bytes)
        self.read_into(rows, memoryview(out))
        return out

    def read_into(self, rows: Sequence[int], target: memoryview) -> None:
        """The same into a buffer of `len(rows) * row_bytes` bytes (a pinned one, for a GPU).

        IndexError for a row outside of the table, ValueError for a buffer of another size or one that is
        read-only, OSError from the disk.
        """
        view = target.cast("B") if target.format != "B" or target.ndim != 1 else target
        if view.readonly:
            raise ValueError("a buffer that cannot be written")
        if view.nbytes != len(rows) * self.row_bytes:
            raise ValueError(
                f"a buffer of {view.nbytes} bytes for {len(rows)} rows of {self.row_bytes} bytes"
            )
        # In order of their place, so that rows of one page are read one after the other.
        order = sorted(range(len(rows)), key=rows.__getitem__)
        if rows and (rows[order[0]] < 0 or rows[order[-1]] >= self.rows):
            worst = rows[order[0]] if rows[order[0]] < 0 else rows[order[-1]]
            raise IndexError(f"row {worst} of a table with {self.rows} rows")
        if self._pool is None:
            raise ValueError("the reader is closed")
        size = min(BATCH[1], max(BATCH[0], math.ceil(len(order) / self._threads)))
        chunks = [order[at : at + size] for at in range(0, len(order), size)]
        if len(chunks) < 2:
            for chunk in chunks:
                self._fill(rows, chunk, view)
            return
        for _ in self._pool.map(lambda chunk: self._fill(rows, chunk, view), chunks):
            pass

    def _fill(self, rows: Sequence[int], chunk: list[int], view: memoryview) -> None:
        size, per_shard, shards = self.row_bytes, self._per_shard, self._shards
        places = []
        for at in chunk:
            number, within = divmod(rows[at], per_shard)
            handle, start = shards[number]
            places.append((handle, start + within * size, at * size))
        if hasattr(os, "posix_fadvise"):
            advise, soon = os.posix_fadvise, os.POSIX_FADV_WILLNEED
            for handle, offset, _ in places:
                advise(handle, offset, size, soon)
        preadv = os.preadv
        for handle, offset, begin in places:
            if preadv(handle, [view[begin : begin + size]], offset) != size:
                raise OSError(f"the file ends within the row at byte {offset}")

    def close(self) -> None:
        """Ends the threads and closes the files."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
