"""Runs a module until the process that started it ends: `python -P with_parent.py MODULE ARGUMENT…`.

Its standard input is a pipe whose other end that process alone holds, and never writes to: however it ends,
killed or not, the pipe does, too. Then the module is told to (SIGTERM), and after a while made to.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_SECONDS = 20


def watch(main: int) -> None:
    """Ends this process, whose main thread is `main`, when standard input does."""
    while os.read(0, 1):
        pass
    signal.pthread_kill(main, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(threading.get_ident(),), daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
