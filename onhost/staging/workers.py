"""Work on rows of a tensor, shared over processes where there is enough of it.

Python computes on one core a process. A Spark has twenty, so a tensor's rows are handed out in pieces; each
process reads its rows from the source and writes its bytes at their place in the product.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from onhost.files import OnBytes
from onhost.plan import JobError

WORTH = 32 << 20  # bytes of input; less is done here and now
MOST = 16  # processes; beyond that the disk is the limit

_lock = threading.Lock()
_pool: ProcessPoolExecutor | None = None


def shared(
    work: Callable[..., int], calls: Sequence[tuple[object, ...]], size: int, on_bytes: OnBytes
) -> None:
    """Runs `work(*call)` for all calls, over processes if `size` (bytes of input) is worth it.

    `work` is a module's function and returns how many bytes it has written. The first error ends it all.
    """
    if size < WORTH or len(calls) < 2 or (os.cpu_count() or 1) < 2:
        for call in calls:
            on_bytes(work(*call))
        return
    futures = [_processes().submit(work, *call) for call in calls]
    try:
        for future in as_completed(futures):
            on_bytes(future.result())
    except BrokenProcessPool:
        close()
        raise JobError(
            "found a helper process of the conversion ended from outside; wanted it to live; "
            "look for an out-of-memory kill in the journal and run again"
        ) from None
    finally:
        for future in futures:
            future.cancel()


def _processes() -> ProcessPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            # Not forked: another thread (a download's) may hold a lock that the fork would find taken for
            # ever.
            count = max(1, min(MOST, os.cpu_count() or 1))
            context = multiprocessing.get_context("spawn")
            _pool = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
        return _pool


def _end_with_parent() -> None:
    """In a helper process: it ends when its parent does, however that ends. Else it would wait for ever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def close() -> None:
    """Ends the processes, if there are any."""
    global _pool
    with _lock:
        if _pool is not None:
            _pool.shutdown(cancel_futures=True)
            _pool = None
