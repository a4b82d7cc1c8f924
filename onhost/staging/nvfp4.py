"""BF16 rows to NVFP4: E2M1 values, an E4M3 scale for sixteen of them, one float32 scale for the tensor.

weight_scale_2 = largest / (6 × 448); a group's scale = its largest / 6 / weight_scale_2 in E4M3 (one where
that is zero); value = weight / (scale × weight_scale_2) in E2M1, ties to even, each step in single precision.
Two values a byte, the first in the low half. How it is fast: an E2M1 code is the number of seven limits that
a magnitude reaches, the limits of a group follow from its scale alone, and all values of a strip are compared
with their group's limits at once, as lanes of one long integer.
"""

from __future__ import annotations

import functools
import struct

from onhost.staging.numerals import (
    FP4_LARGEST,
    LARGEST,
    bf16,
    e2m1,
    e4m3,
    e4m3_value,
    f32,
    lanes,
    larger,
    magnitudes,
)

GROUP = 16  # values that share a scale
NEVER = 0x7FFF  # a limit that no finite magnitude reaches


def tensor_scale(largest: int) -> float:
    """weight_scale_2 for the largest magnitude of all rows (a BF16 code); 1 where all are zero."""
    return f32(bf16(largest) / (FP4_LARGEST * LARGEST)) or 1.0


def group_largest(data: bytes, count: int) -> memoryview:
    """The largest magnitude (BF16 code) of each group of `count` values."""
    found = magnitudes(data, count)
    for step in (8, 4, 2, 1):
        found = larger(found, found >> (16 * step), count)
    return memoryview(found.to_bytes(count * 2, "little")).cast("H")[::GROUP]


class Encoder:
    """Values and scales of one tensor, whose scale is known."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.group_code = functools.lru_cache(maxsize=1 << 15)(self._group_code)
        self.limits = functools.lru_cache(maxsize=256)(self._limits)

    def _group_code(self, largest: int) -> int:
        code = e4m3(f32(f32(bf16(largest) / FP4_LARGEST) / self.scale))
        return code or e4m3(1.0)

    def _limits(self, code: int) -> list[bytes]:
        """For a group's scale: the least BF16 code that becomes 1, 2, …, 7, each sixteen times."""
        divisor = f32(e4m3_value(code) * self.scale)
        limits = []
        for wanted in range(1, 8):
            low, high = -1, NEVER  # the codes' values rise, and so do their E2M1 codes
            while high - low > 1:
                middle = (low + high) // 2
                if middle < 0x7F80 and e2m1(f32(bf16(middle) / divisor)) < wanted:
                    low = middle
                else:
                    high = middle
            limits.append(high.to_bytes(2, "little") * GROUP)
        return limits

    def scales(self, data: bytes, count: int) -> bytes:
        """The groups' E4M3 codes."""
        return bytes(map(self.group_code, group_largest(data, count)))

    def values(self, data: bytes, count: int) -> bytes:
        """The packed E2M1 codes: `count / 2` bytes."""
        limits = [self.limits(code) for code in self.scales(data, count)]
        found, tops = magnitudes(data, count), lanes(count, 0x8000)
        total = 0
        for level in range(7):
            least = int.from_bytes(b"".join([group[level] for group in limits]), "little")
            total += (((found | tops) - least) & tops) >> 15
        total |= (int.from_bytes(data, "little") & tops) >> 12
        codes = total.to_bytes(count * 2, "little")[::2]
        low, high = int.from_bytes(codes[::2], "little"), int.from_bytes(codes[1::2], "little")
        return (low | high << 4).to_bytes(count // 2, "little")


def float_bytes(value: float) -> bytes:
    """A float32, little endian."""
    return struct.pack("<f", value)
