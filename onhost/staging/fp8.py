"""BF16 weights to FP8 (E4M3) with one float32 scale a block, exactly, with the standard library alone.

scale = max(largest magnitude, 1e-12) / 448 and value = round(weight / scale), each in single precision and to
nearest even: to the bit what torch gives on a CPU. How it is fast: weight / scale keeps its mantissa when the
weight's exponent changes, so a code is one table's entry for the low byte (a bit of exponent, seven of
mantissa) plus another's for the high byte (sign, seven bits of exponent). Both tables are applied to whole
blocks by `bytes.translate`; the sum is one addition of two long integers, since no byte carries over. Only
weights so small that FP8 has fewer bits for them, a handful in a block, are looked up one by one.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence

from onhost.staging.numerals import LARGEST, NOT_FINITE, bf16, column_largest, e4m3, f32

LEAST = f32(1e-12)  # what stands for the largest magnitude where all weights of a block are nearly zero
NORMAL = 8  # the smallest E4M3 code with an exponent of its own: the product's shape ends below it
MANY = 256  # weights of a block; from here on masks are cheaper than one look-up after the other

_SIGNS = bytes(code & 0x80 for code in range(256))


class NotFinite(ValueError):
    """A weight that is infinite or no number."""


def scale_of(largest: int) -> float:
    """The scale for the largest magnitude of a block, a BF16 code; NotFinite for infinities and NaN."""
    if largest >= NOT_FINITE:
        raise NotFinite("a weight that is not finite")
    return f32(max(bf16(largest), LEAST) / LARGEST)


def encode(code: int, scale: float) -> int:
    """The E4M3 code of one BF16 weight without sign."""
    return e4m3(f32(bf16(code) / scale))


@functools.lru_cache(maxsize=4096)
def _mantissas(mantissa: int) -> tuple[bytes, int]:
    """(table for the low byte, what to add) for blocks whose largest weight has this mantissa.

    The sum is the code of a weight in the binade of the largest one; the table's values start at zero.
    """
    exponent = 127
    scale = scale_of(exponent << 7 | mantissa)
    # One binade down, where nothing saturates.
    codes = [encode((exponent - 1) << 7 | low, scale) + NORMAL for low in range(128)]
    least = min(codes)
    return bytes(c - least for c in codes) + bytes(c - least + NORMAL for c in codes), least


@functools.lru_cache(maxsize=4096)
def _small(mantissa: int, below: int) -> bytes:
    """Codes by low byte for a high byte whose two binades begin `below` binades under the largest one."""
    if below > 21:
        return bytes(256)  # 448 × 2^-20 is less than half of the smallest E4M3 number
    exponent = 127
    scale = scale_of(exponent << 7 | mantissa)
    start = (exponent - below) << 7
    return bytes(encode(start + low, scale) for low in range(256))


@functools.lru_cache(maxsize=4096)
def _high(largest: int) -> tuple[bytes, bytes, dict[int, bytes]]:
    """For the largest magnitude of a block: (table for the high byte, high bytes that it is right for, tables
    by low byte for the others)."""
    exponent, mantissa = largest >> 7, largest & 0x7F
    _, least = _mantissas(mantissa)
    table = bytearray(256)
    right = bytearray()
    others: dict[int, bytes] = {}
    for high in range(128):
        base = least + NORMAL * (2 * high - exponent)
        for signed in (high, high | 0x80):
            table[signed] = signed & 0x80
            if 2 * high > exponent:
                continue  # no weight of the block is that large
            if base >= NORMAL:
                table[signed] |= base
                right.append(signed)
            else:
                others[signed] = _small(mantissa, exponent - 2 * high)
    return bytes(table), bytes(right), others


def _plain(largest: int) -> bool:
    """Whether the fast way holds: neither the weights that matter nor their scale lie at float32's end."""
    return 40 <= largest >> 7 < 255


def block_codes(highs: bytes, lows: bytes, largest: int) -> bytes | bytearray:
    """The E4M3 codes of a block, given as the high and the low bytes of its BF16 weights."""
    if largest == 0:
        return highs.translate(_SIGNS)
    if not _plain(largest):
        scale = scale_of(largest)
        pairs = list(zip(highs, lows, strict=True))
        known = {(h, low): encode((h & 0x7F) << 8 | low, scale) | (h & 0x80) for h, low in set(pairs)}
        return bytes(map(known.__getitem__, pairs))
    table, right, others = _high(largest)
    low_table, _ = _mantissas(largest & 0x7F)
    count = len(highs)
    rest = highs.translate(None, right)
    upper = int.from_bytes(highs.translate(table), "little")
    lower = int.from_bytes(lows.translate(low_table), "little")
    if not rest:
        return (upper + lower).to_bytes(count, "little")
    if len(rest) < MANY:
        # A small weight's byte may not carry over either: its high byte's entry is the sign alone.
        out = bytearray((upper + lower).to_bytes(count, "little"))
        for high in set(rest):
            small, at = others[high], highs.find(high)
            while at >= 0:
                out[at] = small[lows[at]] | (high & 0x80)
                at = highs.find(high, at + 1)
        return out
    keep = bytearray(256)
    for high in right:
        keep[high] = 0xFF
    total = upper + (lower & int.from_bytes(highs.translate(bytes(keep)), "little"))
    for high in set(rest):
        if any(others[high]):
            mask = bytearray(256)
            mask[high] = 0xFF
            total |= int.from_bytes(lows.translate(others[high]), "little") & int.from_bytes(
                highs.translate(bytes(mask)), "little"
            )
    return total.to_bytes(count, "little")


def block_largest(data: bytes | memoryview, rows: int, columns: int, block: int) -> list[int]:
    """The largest magnitude (BF16 code) in each block of `block` columns, over all of the rows."""
    found = column_largest(data, rows, columns)
    return [max(found[at : at + block]) for at in range(0, columns, block)]


def scales(largest: Iterable[int]) -> bytes:
    """The scales of blocks as float32, little endian."""
    return struct.pack(f"<{len(values := [scale_of(code) for code in largest])}f", *values)


def strip_codes(data: bytes, rows: int, columns: int, block: int, largest: Sequence[int]) -> bytearray:
    """The E4M3 codes of `rows` rows that make up one row of blocks.

    `data` are the BF16 weights, little endian; `largest` is what `block_largest` gives.
    """
    highs, lows = data[1::2], data[0::2]
    out = bytearray(rows * columns)
    for number, start in enumerate(range(0, columns, block)):
        width = min(block, columns - start)
        begins = range(start, rows * columns, columns)
        codes = block_codes(
            b"".join([highs[at : at + width] for at in begins]),
            b"".join([lows[at : at + width] for at in begins]),
            largest[number],
        )
        view = memoryview(codes)
        for row, at in enumerate(begins):
            out[at : at + width] = view[row * width : (row + 1) * width]
    return out
