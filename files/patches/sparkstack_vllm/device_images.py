"""Can this driver load the GPU code inside a compiled extension? Asked of the driver itself, file by file.

nvcc puts GPU code into the section `.nv_fatbin` of a library: containers one after another, each with machine
code for some chips and perhaps PTX, from which the driver takes what suits its GPU or compiles it.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = 0xBA55ED50
NO_CODE = 209  # CUDA_ERROR_NO_BINARY_FOR_GPU: nothing in it is for this chip
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


class Loaded(NamedTuple):
    loaded: int
    other_chips: int
    total: int  # containers in the file; fewer than that were tried where the time was over
    error: str | None


def containers(data: bytes) -> list[bytes]:
    """The containers of a 64-bit little-endian ELF file; [] for one without GPU code, or no such file."""
    if data[:6] != b"\x7fELF\x02\x01":
        return []
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    if not headers or names >= count:
        return []
    found = []
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if data[start : data.index(b"\0", start)] in SECTIONS:
            found += list(_split(data[offset : offset + length]))
    return found


def _split(section: bytes) -> Iterator[bytes]:
    at = 0
    while at + 16 <= len(section):
        magic, _, header, length = struct.unpack_from("<IHHQ", section, at)
        if magic != MAGIC:
            at += 8  # containers are aligned, with zeros between them
            continue
        yield section[at : at + header + length]
        at += header + length


class Driver:
    """libcuda with a context on the first GPU. Errors: OSError where there is no driver or no GPU."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        for call, arguments in (
            ("cuInit", (0,)),
            ("cuDeviceGet", (ctypes.byref(device), 0)),
            ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
            ("cuCtxSetCurrent", (context,)),
        ):
            if code := getattr(self.cuda, call)(*arguments):
                raise OSError(f"{call}: {self.name(code)}")

    def name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self.cuda.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"").decode() or f"error {code}"

    def load(self, container: bytes) -> int:
        """0, or the driver's error."""
        module: Any = ctypes.c_void_p()
        code = int(self.cuda.cuModuleLoadData(ctypes.byref(module), container))
        if code == 0:
            self.cuda.cuModuleUnload(module)
        return code


def try_all(driver: Driver, library: Path, until: float) -> Loaded:
    """Load every container of a library, while `time.monotonic()` is below `until`."""
    images = containers(library.read_bytes())
    loaded = other = 0
    for image in images:
        if time.monotonic() > until:
            break
        code = driver.load(image)
        if code == 0:
            loaded += 1
        elif code == NO_CODE:
            other += 1
        else:
            return Loaded(loaded, other, len(images), driver.name(code))
    return Loaded(loaded, other, len(images), None)
