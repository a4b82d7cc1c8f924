"""The container format: what is right is read to the byte, and every broken rule is refused by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from making import EXTRA, FIRST, SECOND, Silent, contents, raw, safetensors

from onhost import files
from onhost.staging.catalog import SOURCE, Need
from onhost.staging.outputs import Piece, piece_of, weights
from onhost.staging.safetensors import (
    DTYPE_BITS,
    FormatError,
    header_bytes,
    read_header,
    tensor_bytes,
)


def one(dtype: object = "U8", shape: object = (2,), offsets: object = (0, 2)) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def test_reads_order_shapes_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors({**SECOND, **FIRST}, {"format": "pt"}))
    header = read_header(path)
    assert [t.name for t in header.tensors if t.size] == [n for n in [*SECOND, *FIRST] if n != "model.empty"]
    assert header.metadata == {"format": "pt"}
    assert header.data_start + header.data_size == path.stat().st_size
    by_name = {tensor.name: tensor for tensor in header.tensors}
    assert by_name["model.scalar"].shape == () and by_name["model.scalar"].size == 4
    assert by_name["model.empty"].shape == (0, 4) and by_name["model.empty"].size == 0


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"1234", "only 4 bytes"),
        (raw({}, length=100_000_001), "a header of 100000001 bytes (limit 100000000)"),
        (raw({}, length=500), "(truncated)"),
        (raw(b' {"a":1}'), "does not begin with '{'"),
        (raw(b""), "does not begin with '{'"),
        (raw(b'{"t": '), "not JSON"),
        (raw(b"{\xff}"), "not JSON"),
        (raw(b'{"t":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"x"), "the number NaN"),
        (raw(b"{" + b'"a":{' * 5000 + b"}" * 5001), "not JSON"),
        (raw(b'{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{}}'), "the key 't' twice"),
        (raw(b'{"t":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}'), "the key 'dtype' twice"),
        (raw({"__metadata__": {"a": 1}}), "__metadata__ that is not a map of strings"),
        (raw({"__metadata__": []}), "__metadata__ that is not a map of strings"),
        (raw({"t": 3}), "without a description"),
        (raw({"\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}), "surrogates not allowed"),
        (raw({"__metadata__": {"a": "\udfff"}}), "surrogates not allowed"),
        (raw(one(dtype=None), b"xx"), "without a dtype"),
        (raw(one(dtype="F7"), b"xx"), "the unknown dtype 'F7'"),
        (raw(one(shape=[-2]), b"xx"), "the shape [-2]"),
        (raw(one(shape=[True, 2]), b"xx"), "the shape [True, 2]"),
        (raw(one(shape=[2.0]), b"xx"), "the shape [2.0]"),
        (raw(b'{"t":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'), "the number -0"),
        (raw(one(shape=[1 << 63, 2, 0], offsets=[0, 0])), "more bits than 64-bit numbers can count"),
        (raw(one(dtype="F64", shape=[1 << 60], offsets=[0, 1 << 63])), "more bits than 64-bit"),
        (raw(one(offsets=[0]), b"xx"), "the offsets [0]"),
        (raw(one(offsets=[-2, 0]), b"xx"), "the offsets [-2, 0]"),
        (raw(one(offsets=[2, 0]), b"xx"), "-2 bytes where U8 [2] takes 2"),
        (raw(one(offsets=[0, 3]), b"xxx"), "3 bytes where U8 [2] takes 2"),
        (raw(one(dtype="BF16"), b"xx"), "2 bytes where BF16 [2] takes 4"),
        (
            raw(one(dtype="F4", shape=[3], offsets=[0, 2]), b"xx"),
            "12 bits, which is no whole number of bytes",
        ),
        (raw(one(offsets=[1, 3]), b"xxx"), "a hole of 1 bytes before tensor 't'"),
        (raw({**one(), "u": one(offsets=[1, 3])["t"]}, b"xxx"), "overlapping"),
        (raw({**one(), "u": one(offsets=[3, 5])["t"]}, b"xxxxx"), "a hole of 1 bytes before tensor 'u'"),
        (raw(one(), b"x"), "1 bytes missing at the end"),
        (raw(one(), b"xxx"), "1 bytes after the last tensor"),
        (raw({}, b"x"), "1 bytes after the last tensor"),
    ],
)
def test_refuses(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError) as error:
        read_header(path)
    assert found in str(error.value)
    assert "bad.safetensors; wanted a valid safetensors file; remove" in str(error.value)


def test_accepts_what_the_format_allows(tmp_path: Path) -> None:
    path = tmp_path / "ok.safetensors"
    path.write_bytes(raw(b"{}     "))
    assert read_header(path).tensors == ()
    # A header without padding and a misaligned wide tensor are allowed.
    path.write_bytes(safetensors({"a": ("U8", [1], b"x"), "b": ("F32", [1], b"1234")}))
    assert [t.begin for t in read_header(path).tensors] == [0, 1]


def test_sizes_of_types() -> None:
    assert tensor_bytes("F4", (2, 3)) == 3
    assert tensor_bytes("F8_E4M3", (1024, 3072)) == 3145728
    assert tensor_bytes("F8_E5M2", (3,)) == 3
    assert tensor_bytes("BF16", (5,)) == 10
    assert tensor_bytes("F64", ()) == 8
    assert tensor_bytes("F6_E2M3", (4,)) == 3
    assert {bits for bits in DTYPE_BITS.values()} == {4, 6, 8, 16, 32, 64}


def pieces(*paths: Path) -> list[Piece]:
    return [
        piece_of(tensor, header, Need(SOURCE, str(path)))
        for path, header in ((path, read_header(path)) for path in paths)
        for tensor in header.tensors
    ]


def write_file(path: Path, listed: Iterable[Piece], metadata: dict[str, str] | None) -> int:
    """Writes a file of these pieces; the bytes that the meter was told."""
    meter = Silent()
    weights(path.name, listed, metadata).write(lambda need: Path(need.file), path, meter)
    return meter.done


def test_writes_the_same_bytes_aligned(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(safetensors(FIRST))
    (tmp_path / "b").write_bytes(safetensors({**SECOND, **EXTRA}))
    out = tmp_path / "out"
    told = write_file(out, pieces(tmp_path / "a", tmp_path / "b"), {"format": "pt"})
    assert contents(out) == {**FIRST, **SECOND, **EXTRA}
    header = read_header(out)
    assert header.metadata == {"format": "pt"}
    assert header.data_start % 8 == 0
    assert all(t.begin % (DTYPE_BITS[t.dtype] // 8) == 0 for t in header.tensors)
    assert told == out.stat().st_size
    again = tmp_path / "again"
    write_file(again, reversed(pieces(tmp_path / "a", tmp_path / "b")), {"format": "pt"})
    assert again.read_bytes() == out.read_bytes()
    with pytest.raises(FileExistsError):
        write_file(out, [], None)


def test_refuses_to_write_a_name_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(safetensors(FIRST))
    tensor = read_header(tmp_path / "a").tensors[0]
    with pytest.raises(ValueError, match="cannot be written"):
        header_bytes([tensor, tensor], None)


def test_copies_without_the_kernels_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(files, "CHUNK", 100)
    (tmp_path / "a").write_bytes(safetensors(FIRST))
    write_file(tmp_path / "out", pieces(tmp_path / "a"), None)
    assert contents(tmp_path / "out") == FIRST


def test_a_source_cut_while_copying_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(safetensors(FIRST))
    listed = pieces(tmp_path / "a")
    os.truncate(tmp_path / "a", 700)
    with pytest.raises(EOFError):
        write_file(tmp_path / "out", listed, None)
