"""BF16 to FP8 and NVFP4 in bulk: to the bit what one value after the other gives."""

from __future__ import annotations

import bisect
import functools
import random
import struct
from collections.abc import Callable

import pytest
from models import gauss

from onhost.staging import fp8, nvfp4
from onhost.staging.numerals import bf16, column_largest, e2m1, e4m3, e4m3_value, f32

MIDDLES = [(e4m3_value(code) + e4m3_value(code + 1)) / 2 for code in range(126)]


def test_every_fp8_number_is_its_own_code() -> None:
    assert [e4m3(e4m3_value(code)) for code in range(127)] == list(range(127))
    known = {0: 0, 1: 2**-9, 7: 7 * 2**-9, 8: 2**-6, 9: 9 / 512, 56: 1, 126: 448}
    assert {code: e4m3_value(code) for code in known} == known


def test_fp8_rounds_to_even_and_saturates() -> None:
    for code in range(126):
        middle = (e4m3_value(code) + e4m3_value(code + 1)) / 2
        assert e4m3(middle) == (code if code % 2 == 0 else code + 1)
        assert e4m3(middle * (1 - 1e-9)) == code
        assert e4m3(middle * (1 + 1e-9)) == code + 1
    assert e4m3(447.9) == e4m3(448) == e4m3(1e30) == 126


def test_fp4_rounds_to_even_and_saturates() -> None:
    found = [e2m1(value) for value in (0, 0.25, 0.26, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.01, 6, 99)]
    assert found == [0, 0, 1, 1, 2, 2, 4, 4, 6, 6, 7, 7, 7]


def shorts(*codes: int) -> bytes:
    return struct.pack(f"<{len(codes)}H", *codes)


@functools.cache
def nearest(value: float) -> int:
    """The E4M3 code by the definition: how many midpoints lie below, and of a tie the even one."""
    code = bisect.bisect_left(MIDDLES, value)
    return code + 1 if code < 126 and MIDDLES[code] == value and code % 2 else code


@functools.cache
def quantised(code: int, scale: float) -> int:
    return nearest(f32(bf16(code & 0x7FFF) / scale)) | (code >> 8 & 0x80)


def one_by_one(data: bytes, rows: int, columns: int, block: int) -> tuple[bytes, bytes]:
    """Codes and scales by the definition."""
    values = memoryview(data).cast("H")
    codes, scales = bytearray(rows * columns), b""
    for start in range(0, columns, block):
        places = [r * columns + c for r in range(rows) for c in range(start, min(start + block, columns))]
        largest = bf16(max(values[at] & 0x7FFF for at in places))
        scale = f32(max(f32(1e-12), largest) / 448)
        scales += struct.pack("<f", scale)
        for at in places:
            codes[at] = quantised(values[at], scale)
    return bytes(codes), scales


def sparse(count: int) -> bytes:
    weights = gauss(count, "s")
    return b"".join(weights[2 * n : 2 * n + 2] if n % 11 == 0 else b"\0\x80" for n in range(count))


def spread(count: int) -> bytes:
    """All exponents, so that most weights are far below the largest."""
    source = random.Random(1)
    return shorts(*(source.randrange(0x3000, 0x4300) | source.choice((0, 0x8000)) for _ in range(count)))


CASES: dict[str, Callable[[int], bytes]] = {
    "as a model has them": lambda count: gauss(count, "g"),
    "few that are not zero": sparse,
    "all exponents": spread,
    "zeros of both signs": lambda count: shorts(*(0, 0x8000) * (count // 2)),
    "below every normal number": lambda count: shorts(*(1, 0x8002, 0x7F, 0) * (count // 4)),
    "next to 1e-12": lambda count: shorts(*(0x2B8C, 0x2B8D, 0xAB00, 0x2000) * (count // 4)),
    "at float32's end": lambda count: shorts(*(0x7F7F, 0x7F00, 0xFF10, 0x3F80) * (count // 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_fp8_blocks(case: str) -> None:
    rows, columns, block = 16, 64, 32
    data = CASES[case](rows * columns)
    largest = fp8.block_largest(data, rows, columns, block)
    codes, scales = one_by_one(data, rows, columns, block)
    assert fp8.scales(largest) == scales
    assert bytes(fp8.strip_codes(data, rows, columns, block, largest)) == codes


def test_mantissas_of_the_largest_weight() -> None:
    """The tables by mantissa, and both ways for small weights (few of them, many of them)."""
    for mantissa in range(0, 128, 7):
        for few in (True, False):
            small = [0x3A00 - 37 * at for at in range(30)] if few else []
            codes = [0x3F00 | mantissa, *small, *(0x3800 + 5 * at for at in range(300))]
            codes += [0x3D80 + at % 0x100 for at in range(800 if few else 100)]
            data = shorts(*(codes + [0x3B11] * 1600)[:1600])
            largest = fp8.block_largest(data, 10, 160, 160)
            found = fp8.strip_codes(data, 10, 160, 160, largest)
            scale = fp8.scale_of(0x3F00 | mantissa)
            wanted = {code: fp8.encode(code, scale) for code in set(memoryview(data).cast("H"))}
            assert bytes(found) == bytes(wanted[code] for code in memoryview(data).cast("H"))


def test_a_ragged_last_block() -> None:
    rows, columns, block = 5, 40, 32
    data = gauss(rows * columns, "ragged")
    largest = fp8.block_largest(data, rows, columns, block)
    assert len(largest) == 2
    wanted, _ = one_by_one(data, rows, columns, block)
    assert bytes(fp8.strip_codes(data, rows, columns, block, largest)) == wanted


@pytest.mark.parametrize("code", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_fp8_refuses_what_is_no_finite_number(code: int) -> None:
    data = shorts(*(0x3F80,) * 31, code)
    with pytest.raises(fp8.NotFinite):
        fp8.scales(fp8.block_largest(data, 1, 32, 32))


def test_column_largest() -> None:
    data = shorts(1, 0x8005, 3, 4, 0x8009, 2, 3, 0x7000, 0, 6, 1, 2)
    assert list(column_largest(data, 3, 4)) == [9, 6, 3, 0x7000]
    assert list(column_largest(data, 1, 12)) == [1, 5, 3, 4, 9, 2, 3, 0x7000, 0, 6, 1, 2]


@pytest.mark.parametrize("case", list(CASES)[:4])
def test_nvfp4(case: str) -> None:
    count = 40 * 16
    data = CASES[case](count)
    values = memoryview(data).cast("H")
    largest = max(code & 0x7FFF for code in values)
    scale = f32(bf16(largest) / 2688) or 1.0
    encoder = nvfp4.Encoder(nvfp4.tensor_scale(largest))
    packed, scales = encoder.values(data, count), encoder.scales(data, count)
    for group in range(count // 16):
        inside = values[group * 16 : group * 16 + 16]
        own = nearest(f32(f32(max(bf16(c & 0x7FFF) for c in inside) / 6) / scale)) or 56
        assert scales[group] == own
        for at, code in enumerate(inside):
            wanted = e2m1(f32(bf16(code & 0x7FFF) / f32(e4m3_value(own) * scale))) | (code >> 12 & 8)
            byte = packed[(group * 16 + at) // 2]
            assert (byte >> 4 if at % 2 else byte & 15) == wanted
