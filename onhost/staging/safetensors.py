"""The safetensors container, read and written strictly and without loading a tensor.

Layout: u64 little endian N (at most 100,000,000), N bytes of JSON that begin with '{' and may end in spaces,
then the data. The JSON maps names to {dtype, shape, data_offsets: [begin, end)} relative to the data's start,
and may hold `__metadata__`, a map from strings to strings. The ranges must cover the data without hole,
overlap or rest. Source: the format's description by its authors, and version 0.8.0 of their library, which
refuses the same files.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onhost.files import BLOCK
from onhost.plan import JobError

LONGEST_HEADER = 100_000_000  # bytes; the library's own limit
ALIGNMENT = 8  # bytes; the header is padded so that the first tensor lies aligned

# Bits an element, for every type that the library knows.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class FormatError(JobError):
    """A file that is not a valid safetensors file; the message names the file and the rule."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header; `begin` and `end` in bytes from the data's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of data; 0 for a tensor with a zero dimension."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """A file's header: tensors in order of their offsets, metadata or None, where the data starts (bytes)."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str] | None
    data_start: int

    @property
    def data_size(self) -> int:
        """Bytes of data in the file."""
        return sum(tensor.size for tensor in self.tensors)


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor; ValueError for an unknown type or a size that is no whole number of bytes."""
    if dtype not in DTYPE_BITS:
        raise ValueError(f"the unknown dtype {dtype!r}")
    bits = 1
    for factor in (*shape, DTYPE_BITS[dtype]):
        bits *= factor
        if bits >= 1 << 64:  # also where a zero follows: other readers multiply in 64 bits, in this order
            raise ValueError("more bits than 64-bit numbers can count")
    if bits % 8:
        raise ValueError(f"{bits} bits, which is no whole number of bytes")
    return bits // 8


def header_length(start: bytes, size: int, name: str) -> int:
    """Bytes of JSON that follow the first eight; FormatError where a file of `size` bytes cannot hold them.

    Who reads over the network fetches these eight bytes first, then the header alone.
    """
    if len(start) < 8:
        raise _bad(name, f"only {size} bytes")
    length = int.from_bytes(start[:8], "little")
    if length > LONGEST_HEADER:
        raise _bad(name, f"a header of {length} bytes (limit {LONGEST_HEADER})")
    if 8 + length > size:
        raise _bad(name, f"a header of {length} bytes in a file of {size} bytes (truncated)")
    return length


def read_header(path: Path) -> Header:
    """Reads and checks a file's header against its size; FormatError where any rule is broken."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(file.read(8), size, str(path))
        return parse_header(file.read(length), size, str(path))


def prefix_of(path: Path) -> bytes:
    """A file's length field and header as they are; FormatError where the file cannot hold them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        return start + file.read(header_length(start, size, str(path)))


def parse_header(raw: bytes, size: int, name: str) -> Header:
    """The header whose JSON is `raw`, of a file of `size` bytes; FormatError where any rule is broken."""

    def bad(what: str) -> FormatError:
        return _bad(name, what)

    length = len(raw)
    if not raw.startswith(b"{"):
        raise bad("a header that does not begin with '{'")
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant,
                          parse_int=_whole)  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise bad(f"a header that is not JSON ({error})") from None
    metadata = data.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise bad("a __metadata__ that is not a map of strings")
    try:
        json.dumps(metadata, ensure_ascii=False).encode()
        tensors = sorted((_tensor(name, info) for name, info in data.items()), key=lambda t: (t.begin, t.end))
        end = _check_cover(tensors)
    except ValueError as error:
        raise bad(str(error)) from None
    if 8 + length + end != size:
        rest = size - 8 - length - end
        raise bad(f"{-rest} bytes missing at the end" if rest < 0 else f"{rest} bytes after the last tensor")
    return Header(tuple(tensors), metadata, 8 + length)


def _bad(name: str, what: str) -> FormatError:
    return FormatError(
        f"found {what} in {name.rpartition('/')[2]}; wanted a valid safetensors file; "
        f"remove {name} and fetch it again"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} twice")
    return out


def _no_constant(name: str) -> None:
    raise ValueError(f"the number {name}")


def _whole(digits: str) -> int:
    if digits == "-0":
        raise ValueError("the number -0")
    return int(digits)


def _tensor(name: str, info: Any) -> Tensor:
    if not isinstance(info, dict):
        raise ValueError(f"tensor {name!r} without a description")
    name.encode()  # half of a surrogate pair is JSON, but no text
    dtype, shape, offsets = info.get("dtype"), info.get("shape"), info.get("data_offsets")
    if not isinstance(dtype, str):
        raise ValueError(f"tensor {name!r} without a dtype")
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        raise ValueError(f"tensor {name!r} with the shape {shape!r}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_is_count(n) for n in offsets)):
        raise ValueError(f"tensor {name!r} with the offsets {offsets!r}")
    begin, end = offsets
    try:
        wanted = tensor_bytes(dtype, shape)
    except ValueError as error:
        raise ValueError(f"tensor {name!r} with {error}") from None
    if end < begin or end - begin != wanted:
        raise ValueError(f"tensor {name!r} with {end - begin} bytes where {dtype} {shape} takes {wanted}")
    # A large model has a hundred thousand names, each in an index, too, and few shapes.
    return Tensor(sys.intern(name), sys.intern(dtype), _shared(tuple(shape)), begin, end)


@functools.lru_cache(maxsize=1024)
def _shared(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _check_cover(tensors: list[Tensor]) -> int:
    at = 0
    for tensor in tensors:
        if tensor.begin > at:
            raise ValueError(f"a hole of {tensor.begin - at} bytes before tensor {tensor.name!r}")
        if tensor.begin < at:
            raise ValueError(f"tensor {tensor.name!r} overlapping the one before it")
        at = tensor.end
    return at


def header_bytes(
    tensors: Iterable[Tensor], metadata: Mapping[str, str] | None, lead: int | None = None
) -> bytes:
    """The length and the JSON of a header, padded with spaces so that the data lies aligned.

    `lead` (a multiple of 8 below BLOCK) is what the data's start shall leave when divided by BLOCK; None for
    the least padding. ValueError for a name twice or a header too long.
    """
    data: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for tensor in tensors:
        if tensor.name in data or tensor.name == "__metadata__":
            raise ValueError(f"the tensor name {tensor.name!r} cannot be written here")
        data[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.begin, tensor.end],
        }
    raw = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % ALIGNMENT if lead is None else (lead - 8 - len(raw)) % BLOCK)
    if len(raw) > LONGEST_HEADER:
        raise ValueError(f"a header of {len(raw)} bytes (limit {LONGEST_HEADER})")
    return len(raw).to_bytes(8, "little") + raw
