"""Who is at the other end of each port? Broadcast frames of our own, sent and heard for some seconds.

Runs alone, from standard input, with the system's Python (3.9 or newer) and as root, before anything of ours
is installed: standard library only, nothing imported from this package. Prints one JSON object:
`{"ports": {interface: {"present", "carrier", "speed" (Mb/s or null), "mtu", "heard": [[host, interface]]}},
"raised": [interface]}`.

An interface that is down ("raised") is set up for the time of the probe, and down again after it; its carrier
may take longer than the probe did, so whoever asked should ask all hosts again, for longer. Frames are
Ethernet broadcasts of type 0x88B5, which IEEE 802 keeps for local experiments: they stay in their segment,
and no IP address is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

TYPE = 0x88B5
MAGIC = b"sparkstack-probe\0"
INTERVAL_S = 0.2
IFF_UP = 0x1
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914
SO_ATTACH_FILTER = 26
ALL_TYPES = 0x0003


def read(name: str, what: str) -> str:
    """A file of /sys about an interface; "" where the kernel refuses (an interface that is down)."""
    try:
        return Path(f"/sys/class/net/{name}/{what}").read_text().strip()
    except OSError:
        return ""


def number(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) > 0 else None


def is_up(name: str) -> bool:
    return bool(int(read(name, "flags") or "0", 16) & IFF_UP)


def set_up(name: str, up: bool) -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        request = struct.pack("16sh", name.encode(), 0)
        flags = struct.unpack("16sh", fcntl.ioctl(plain, GET_FLAGS, request))[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(plain, SET_FLAGS, struct.pack("16sh", name.encode(), flags))


def listening(name: str) -> socket.socket:
    """A socket that hears our frames on an interface. Bound to all types, with a filter in the kernel: of a
    port in a bond or bridge nothing else sees a frame before that takes it."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # Load the type; where it is ours keep the frame, else drop it.
    program = [(0x28, 0, 0, 12), (0x15, 0, 1, TYPE), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filtered = struct.pack("HL", len(program), ctypes.addressof(buffer))
    raw.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filtered)
    raw.bind((name, ALL_TYPES))
    return raw


def frame(mac: bytes, run: str, host: str, name: str) -> bytes:
    """Destination, source, type, and who we are; padded to the shortest frame that Ethernet has."""
    text = MAGIC + json.dumps([run, host, name]).encode()
    return (b"\xff" * 6 + mac + struct.pack("!HH", TYPE, len(text)) + text).ljust(60, b"\0")


def heard(data: bytes, run: str) -> tuple[str, str] | None:
    """(host, interface) of a frame of this run; None for any other frame, whatever is in it."""
    if len(data) < 16 or data[12:14] != struct.pack("!H", TYPE):
        return None
    length = struct.unpack("!H", data[14:16])[0]
    text = data[16 : 16 + length]
    if not text.startswith(MAGIC):
        return None
    try:
        of_run, host, name = json.loads(text[len(MAGIC) :])
    except (ValueError, TypeError):
        return None
    return (str(host), str(name)) if of_run == run else None


def probe(run: str, host: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Send and listen on `names` for `seconds`; frames of `host` itself do not count."""
    present = [name for name in names if read(name, "address")]
    raised = [name for name in present if not is_up(name)]
    sockets: dict[int, tuple[socket.socket, str]] = {}
    # A port whose neighbour is done first, and down again, has lost its carrier by the end.
    carriers: dict[str, int | None] = {}
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in names}
    try:
        for name in raised:
            set_up(name, True)
        for name in present:
            raw = listening(name)
            sockets[raw.fileno()] = (raw, name)
        listen(run, host, sockets, found, carriers, seconds)
        ports = {
            name: {
                "present": name in present,
                "carrier": name in carriers,
                "speed": carriers.get(name),
                "mtu": number(read(name, "mtu")),
                "heard": sorted(map(list, found[name])),
            }
            for name in names
        }
    finally:
        for raw, _ in sockets.values():
            raw.close()
        for name in raised:
            with contextlib.suppress(OSError):
                set_up(name, False)
    return {"ports": ports, "raised": raised}


def listen(
    run: str,
    host: str,
    sockets: dict[int, tuple[socket.socket, str]],
    found: dict[str, set[tuple[str, str]]],
    carriers: dict[str, int | None],
    seconds: float,
) -> None:
    end = time.monotonic() + seconds
    send_at = 0.0
    while (now := time.monotonic()) < end:
        if now >= send_at:
            send_at = now + INTERVAL_S
            for raw, name in sockets.values():
                mac = bytes.fromhex(read(name, "address").replace(":", ""))
                if read(name, "carrier") == "1":
                    carriers[name] = number(read(name, "speed"))
                # No carrier: the next round may have one.
                with contextlib.suppress(OSError):
                    raw.send(frame(mac, run, host, name))
        ready, _, _ = select.select(list(sockets), [], [], max(0.0, min(send_at, end) - now))
        for descriptor in ready:
            raw, name = sockets[descriptor]
            with contextlib.suppress(OSError):
                who = heard(raw.recv(2048), run)
                if who is not None and who[0] != host:
                    found[name].add(who)


def main(words: list[str]) -> int:
    run, host, seconds, *names = words
    try:
        answer = probe(run, host, names, float(seconds))
    except OSError as error:
        # One line for the controller, which adds host and remedy.
        answer = {"error": f"{error.strerror or error} ({type(error).__name__})"}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
