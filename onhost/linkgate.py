"""Measures links between two hosts, one command at a time; the controller says who serves and who sends.

A file that runs by itself with the system's Python: links are measured before there is an environment.

    python3 linkgate.py ping   '[{"interface", "target", "bytes"}, …]'   → [{"received", "small", "said"}, …]
    python3 linkgate.py serve  '[{"tool", "port", …}, …]'                → [{"said"}, …]    "" is listening
    python3 linkgate.py send   '[{"tool", "port", "target", …}, …]'      → [{"gbps", "problem"}, …]
    python3 linkgate.py stop                                             → []

Several in one list run at the same time. A server is a transient systemd unit, `sparkstack-link-<port>`, that
ends by itself: whoever dies in between, nothing is left after a minute. Every wait has an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

UNIT = "sparkstack-link-"
LISTEN_S = 30.0
"""So long a server may take to listen (an emulated machine is slow)."""
OTHERS_S = 90.0
"""So long another controller's measurement is waited for."""
GRACE_S = 25.0
"""What a measurement may take beyond its own seconds."""
CONNECT_S = 5.0
CHUNK = bytes(1 << 20)


def main(arguments: list[str]) -> int:
    """Run one command; its result as JSON on standard output."""
    commands: dict[str, Callable[[Any], list[Any]]] = {"ping": ping, "serve": serve, "send": send}
    if arguments[:1] == ["stop"]:
        print(json.dumps(stop()))
    elif len(arguments) == 2 and arguments[0] in commands:
        print(json.dumps(commands[arguments[0]](json.loads(arguments[1]))))
    elif len(arguments) == 4 and arguments[0] == "sink":
        sink(arguments[1], int(arguments[2]), float(arguments[3]))
    else:
        print(f"found {arguments[:1]}; wanted ping, serve, send or stop", file=sys.stderr)
        return 2
    return 0


def _all(function: Callable[[dict[str, Any]], dict[str, Any]], plans: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(max_workers=max(len(plans), 1)) as pool:
        return list(pool.map(function, plans))


def _run(words: list[str], seconds: float) -> tuple[int | None, str]:
    """(exit status or None where the time was over, everything that it wrote)."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return 127, f"{words[0]}: {error.strerror}"
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        # With its children, which may hold the pipe; and what hangs in the kernel is not waited for either.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said = error.stdout or b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=2)
        return None, said.decode(errors="replace")
    return process.returncode, said.decode(errors="replace")


# ── Ping ──


def ping(plans: list[dict[str, Any]]) -> list[Any]:
    return _all(_ping, plans)


def _ping(plan: dict[str, Any]) -> dict[str, Any]:
    words = ["ping", "-n", "-q", "-I", plan["interface"]]
    # The small one first: it also fills the neighbour table, on which RDMA does not wait.
    small, _ = _run([*words, "-c", "2", "-W", "2", "-i", "0.2", plan["target"]], 15)
    # 28 bytes are the headers of IP and ICMP.
    size = str(plan["bytes"] - 28)
    _, said = _run([*words, "-c", "3", "-W", "2", "-i", "0.2", "-M", "do", "-s", size, plan["target"]], 15)
    counted = re.search(r"(\d+) received", said)
    errors = [line for line in said.splitlines() if "error" in line.lower() or line.startswith("ping:")]
    return {
        "received": int(counted[1]) if counted else 0,
        "small": small == 0,
        "said": errors[-1][:200] if errors else "",
    }


# ── Serving ──


def serve(plans: list[dict[str, Any]]) -> list[Any]:
    """Start a server for each plan; returns when all of them listen, or have failed to."""
    _wait_for_others()
    return _all(_serve, plans)


def _wait_for_others() -> None:
    until = time.monotonic() + OTHERS_S
    while _active() and time.monotonic() < until:
        time.sleep(0.5)


def _active() -> list[str]:
    _, said = _run(["systemctl", "list-units", "--plain", "--no-legend", f"{UNIT}*"], 10)
    return [line.split()[0] for line in said.splitlines() if line.startswith(UNIT)]


def _serve(plan: dict[str, Any]) -> dict[str, Any]:
    unit, port = f"{UNIT}{plan['port']}", int(plan["port"])
    limit = plan["seconds"] + GRACE_S + LISTEN_S
    begin = ["systemd-run", "--quiet", "--collect", f"--unit={unit}"]
    begin += [f"--property=RuntimeMaxSec={limit:.0f}", "--property=LimitMEMLOCK=infinity", "--"]
    if _listens(port):
        return {"said": f"port {port} is somebody else's: set another one in link_wanted"}
    begun, said = _run([*begin, *_server_words(plan, limit)], 20)
    if begun != 0:
        return {"said": " ".join(said.split())[-200:] or "systemd-run did not come to an end"}
    until = time.monotonic() + LISTEN_S
    while time.monotonic() < until:
        if _listens(port):
            return {"said": ""}
        if unit + ".service" not in _active():
            break
        time.sleep(0.1)
    _, journal = _run(["journalctl", "-u", unit, "-n", "3", "-o", "cat", "--no-pager"], 10)
    words = " / ".join(line for line in journal.splitlines() if line.strip())
    return {"said": f"the server does not listen: {words[-200:]}"}


def _server_words(plan: dict[str, Any], limit: float) -> list[str]:
    if plan["tool"] == "tcp":
        return [sys.executable, __file__, "sink", plan["address"], str(plan["port"]), str(limit)]
    return _perftest(plan)


def _perftest(plan: dict[str, Any]) -> list[str]:
    # Line by line: what it said is known even where it has to be killed.
    return [
        *("stdbuf", "-oL", "ib_write_bw", "-d", plan["device"], "-i", "1", "-p", str(plan["port"]), "-F"),
        *("-D", str(plan["seconds"]), "--report_gbits"),
    ]


def _listens(port: int) -> bool:
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()]
        except OSError:
            continue
        # 0A is LISTEN.
        if any(len(row) > 3 and row[1].endswith(wanted) and row[3] == "0A" for row in rows):
            return True
    return False


def stop() -> list[Any]:
    """End the servers that are still there."""
    if units := _active():
        _run(["systemctl", "stop", *units], 30)
    return []


# ── Sending ──


def send(plans: list[dict[str, Any]]) -> list[Any]:
    return _all(lambda plan: _tcp(plan) if plan["tool"] == "tcp" else _ib_write_bw(plan), plans)


def _ib_write_bw(plan: dict[str, Any]) -> dict[str, Any]:
    status, said = _run([*_perftest(plan), plan["target"]], plan["seconds"] + GRACE_S)
    if status is None:
        # The two exchange addresses by TCP before RDMA begins.
        return {"gbps": None, "problem": "stalled" if "remote address:" in said else "filtered"}
    gbps = _average(said)
    if status == 0 and gbps == 0:
        # With a duration it ends well, also where not one packet came through.
        return {"gbps": None, "problem": "stalled"}
    if status == 0 and gbps is not None:
        return {"gbps": gbps, "problem": ""}
    if "couldn't connect" in said.lower():
        return {"gbps": None, "problem": "refused"}
    lines = [line.strip() for line in said.splitlines() if line.strip(" -")]
    return {"gbps": None, "problem": f"ib_write_bw: {' / '.join(lines[-2:])[-200:] or status}"}


def _average(said: str) -> float | None:
    """The fourth column of the last row of figures, below "BW average[Gb/sec]"."""
    if "BW average[Gb/sec]" not in said:
        return None
    rows = [line.split() for line in said.splitlines()]
    figures = [row for row in rows if len(row) >= 4 and row[0].isdigit() and row[1].isdigit()]
    try:
        return float(figures[-1][3])
    except (IndexError, ValueError):
        return None


def _tcp(plan: dict[str, Any]) -> dict[str, Any]:
    """Send for some seconds; what counts is what the other side says it has received."""
    here, there = (plan["address"], 0), (plan["target"], plan["port"])
    try:
        connection = socket.create_connection(there, timeout=CONNECT_S, source_address=here)
    except TimeoutError:
        return {"gbps": None, "problem": "filtered"}
    except ConnectionRefusedError:
        return {"gbps": None, "problem": "refused"}
    except OSError as error:
        return {"gbps": None, "problem": f"tcp: {error.strerror or error}"}
    try:
        with connection:
            return {"gbps": _pour(connection, plan["seconds"]), "problem": ""}
    except TimeoutError:
        return {"gbps": None, "problem": "stalled"}
    except (OSError, ValueError) as error:
        return {"gbps": None, "problem": f"tcp: {error}"}


def _pour(connection: socket.socket, seconds: float) -> float:
    """Gb/s that arrived."""
    connection.settimeout(GRACE_S)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        connection.sendall(CHUNK)
    connection.shutdown(socket.SHUT_WR)
    received = int(connection.recv(64))
    return received * 8 / (time.monotonic() - began) / 1e9


def sink(address: str, port: int, seconds: float) -> None:
    """Take one connection's bytes to their end, and answer how many there were."""
    with socket.create_server((address, port)) as server:
        server.settimeout(seconds)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(seconds)
            buffer, total = bytearray(1 << 20), 0
            while count := connection.recv_into(buffer):
                total += count
            connection.sendall(str(total).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
