"""BF16, FP8 (E4M3) and FP4 (E2M1) as numbers, exactly, and BF16 in bulk, with the standard library alone.

Bulk work is done on whole rows at once, as integers of millions of bits whose 16-bit lanes hold one value
each. Python adds, compares and masks such integers at the speed of memory.
"""

from __future__ import annotations

import functools
import struct

LARGEST = 448.0  # the largest E4M3 number
FP4_LARGEST = 6.0
NOT_FINITE = 0x7F80  # BF16 codes from here on (sign cleared) are infinite or no number
FP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def f32(value: float) -> float:
    """The nearest single-precision number (ties to even)."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def bf16(code: int) -> float:
    """The number that a BF16 code stands for."""
    return float(struct.unpack("<f", struct.pack("<I", code << 16))[0])


def e4m3_value(code: int) -> float:
    """The number of an E4M3 code without sign (0 to 126)."""
    exponent, mantissa = code >> 3, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


_VALUES = [e4m3_value(code) for code in range(127)]


def e4m3(value: float) -> int:
    """The code of the nearest E4M3 number to a value ≥ 0 (ties to even, saturating at 448)."""
    if value >= LARGEST:
        return 126
    low, high = 0, 126  # _VALUES[low] <= value < _VALUES[high]
    while high - low > 1:
        middle = (low + high) // 2
        if _VALUES[middle] <= value:
            low = middle
        else:
            high = middle
    below, above = value - _VALUES[low], _VALUES[high] - value
    return high if above < below or (above == below and low & 1) else low


def e2m1(value: float) -> int:
    """The code of the nearest E2M1 number to a value ≥ 0 (ties to even, saturating at 6)."""
    code = min(range(8), key=lambda at: (abs(FP4_LEVELS[at] - value), at & 1))
    return 7 if value >= FP4_LARGEST else code


@functools.cache
def lanes(count: int, value: int) -> int:
    """`count` lanes of 16 bits, each holding `value`."""
    return int.from_bytes(value.to_bytes(2, "little") * count, "little")


def magnitudes(data: bytes | memoryview, count: int) -> int:
    """`count` BF16 values as lanes, signs cleared."""
    return int.from_bytes(data, "little") & lanes(count, 0x7FFF)


def larger(a: int, b: int, count: int) -> int:
    """The larger of two values in each lane (values below 0x8000)."""
    at_least = ((a | lanes(count, 0x8000)) - b) & lanes(count, 0x8000)
    mask = at_least - (at_least >> 15)
    return b ^ ((a ^ b) & mask)


def column_largest(data: bytes | memoryview, rows: int, columns: int) -> memoryview:
    """The largest magnitude in each column of BF16 rows, as BF16 codes."""
    found = magnitudes(data, rows * columns)
    while rows > 1:
        upper = (rows + 1) // 2
        bits = upper * columns * 16
        found = larger(found & ((1 << bits) - 1), found >> bits, upper * columns)
        rows = upper
    return memoryview(found.to_bytes(columns * 2, "little")).cast("H")
