"""What a transform makes, as data: files put together from ranges of others, literal bytes and made tensors.

Nothing here reads a weight before `Output.write`. Since a copied range says where it comes from, transforms
that follow one another are joined beforehand (onhost.staging.chain) and every byte is written once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from onhost.files import BLOCK, copy_range, link_or_copy, placed, write_all
from onhost.plan import JobError
from onhost.staging.catalog import SOURCE, FileInfo, Need
from onhost.staging.safetensors import DTYPE_BITS, Header, Tensor, header_bytes

SHARING = 1 << 20  # bytes of data; a smaller file is not worth up to BLOCK bytes of padding


class Meter(Protocol):
    """Where a transform tells how far it is; onhost.jobs.Progress fits."""

    def stage(self, name: str, total: int | None, unit: str, note: str = "", done: int = 0) -> None:
        """Begins a stage."""

    def add(self, count: int, note: str | None = None) -> None:
        """Some units are done."""


Find = Callable[[Need], Path]


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes that the plan knows."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Copy:
    """`size` bytes from `offset` of another file."""

    need: Need
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Range:
    """Where an input's bytes lie at the time of writing."""

    path: Path
    offset: int
    size: int


# Writes exactly a Made's size into the file, from the offset on, and tells the meter as many bytes.
Make = Callable[[Sequence[Range], Path, int, Meter], None]


@dataclass(frozen=True, slots=True)
class Made:
    """`size` bytes computed from the inputs, in the same way each time."""

    size: int
    inputs: tuple[Copy, ...]
    make: Make = field(compare=False)


Part = Literal | Copy | Made


@dataclass(frozen=True)
class Output:
    """One file of a planned checkpoint.

    Either `link_of` names a file that it equals (a hard link, or a copy where that is impossible), or `parts`
    are its content in order. `info` is known beforehand; its sha256 only for links.
    """

    name: str
    info: FileInfo
    parts: tuple[Part, ...] = ()
    link_of: Need | None = None

    @property
    def needs(self) -> frozenset[Need]:
        """The files that must be whole before this one is written."""
        if self.link_of is not None:
            return frozenset({self.link_of})
        found = {part.need for part in self.parts if isinstance(part, Copy)}
        found |= {copy.need for part in self.parts if isinstance(part, Made) for copy in part.inputs}
        return frozenset(found)

    @property
    def written(self) -> int:
        """Bytes that it takes anew on the disk; 0 for a link."""
        return 0 if self.link_of is not None else self.info.size

    def write(self, find: Find, path: Path, meter: Meter) -> None:
        """Makes the file at `path`, which must not exist, and brings it to the disk.

        EOFError where a source is shorter than its catalog said; the meter is told `info.size` bytes in all.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with placed(path):
            if self.link_of is not None:
                link_or_copy(find(self.link_of), path, meter.add)
            else:
                self._put_together(find, path, meter)

    def _put_together(self, find: Find, path: Path, meter: Meter) -> None:
        handles: dict[Path, int] = {}

        def opened(source: Path) -> int:
            if source not in handles:
                handles[source] = os.open(source, os.O_RDONLY)
                os.posix_fadvise(handles[source], 0, 0, os.POSIX_FADV_SEQUENTIAL)  # read further ahead
            return handles[source]

        try:
            with path.open("xb", buffering=0) as out:
                at = 0
                for part in self.parts:
                    if isinstance(part, Literal):
                        write_all(out.fileno(), part.data)
                        meter.add(part.size)
                    elif isinstance(part, Copy):
                        copy_range(opened(find(part.need)), out.fileno(), part.offset, part.size, meter.add)
                    else:
                        ranges = [Range(find(copy.need), copy.offset, copy.size) for copy in part.inputs]
                        part.make(ranges, path, at, meter)
                        out.seek(at + part.size)
                    at += part.size
                if out.seek(0, os.SEEK_END) != self.info.size:
                    raise JobError(
                        f"found {out.tell()} bytes written of {self.name}; wanted {self.info.size}; report it"
                    )
                os.fsync(out.fileno())
        finally:
            for handle in handles.values():
                os.close(handle)


@dataclass(frozen=True)
class Planned:
    """All files after a transform, those that it left alone among them."""

    outputs: tuple[Output, ...]

    def catalog(self) -> dict[str, FileInfo]:
        """What the next transform plans over."""
        return {output.name: output.info for output in self.outputs}


def kept(name: str, info: FileInfo) -> Output:
    """A file of the source as it is."""
    return Output(name, info, link_of=Need(SOURCE, name))


def text(name: str, content: bytes) -> Output:
    """A small file with known content."""
    return Output(name, FileInfo(len(content), content=content), (Literal(content),))


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor for a new file and where its bytes come from; offsets of `tensor` are those of its source."""

    tensor: Tensor
    part: Part


def piece_of(tensor: Tensor, header: Header, need: Need) -> Piece:
    """A tensor as it lies in a file."""
    return Piece(tensor, Copy(need, header.data_start + tensor.begin, tensor.size))


def weights(name: str, pieces: Iterable[Piece], metadata: Mapping[str, str] | None) -> Output:
    """A safetensors file of these tensors.

    Wide types come first, so that every tensor lies aligned, and within a width the sources' own order, so
    that long runs stay runs. What is new in the file comes behind all that was there, where alignment allows
    it, and the header is padded until most of the copied bytes lie as they lay in their source relative to
    the file system's blocks: only then can blocks be shared instead of copied.
    """
    listed = list(pieces)
    ordered = sorted(listed, key=lambda piece: (_is_new(piece), _place(piece)))
    if not _aligned(ordered):
        ordered = sorted(listed, key=_place)
    placed: list[Tensor] = []
    parts: list[Part] = []
    at = 0
    shared: dict[int, int] = {}  # place within a block → bytes that want the data to start there
    for piece in ordered:
        old, part = piece.tensor, piece.part
        placed.append(Tensor(old.name, old.dtype, old.shape, at, at + part.size))
        if isinstance(part, Copy) and part.size >= BLOCK and (part.offset - at) % 8 == 0:
            shared[(part.offset - at) % BLOCK] = shared.get((part.offset - at) % BLOCK, 0) + part.size
        parts.append(part)
        at += part.size
    lead = min(shared, key=lambda key: (-shared[key], key)) if shared and at >= SHARING else None
    try:
        start = header_bytes(placed, metadata, lead)
    except ValueError as error:
        raise JobError(
            f"found {error} for {name}; wanted names that are there once; correct the recipe"
        ) from None
    info = FileInfo(
        len(start) + at,
        header=Header(tuple(placed), None if metadata is None else dict(metadata), len(start)),
    )
    return Output(name, info, merged([Literal(start), *parts]))


def _is_new(piece: Piece) -> bool:
    return not isinstance(piece.part, Copy) or piece.part.need.origin != SOURCE


def _aligned(pieces: Iterable[Piece]) -> bool:
    at = 0
    for piece in pieces:
        if at % max(1, DTYPE_BITS[piece.tensor.dtype] // 8):
            return False
        at += piece.part.size
    return True


def _place(piece: Piece) -> tuple[int, bool, str, str, int, str]:
    tensor, part = piece.tensor, piece.part
    need, offset = (part.need, part.offset) if isinstance(part, Copy) else (Need("~", ""), 0)
    return -DTYPE_BITS[tensor.dtype], need.origin != SOURCE, need.origin, need.file, offset, tensor.name


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same content in as few parts as possible."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if part.size == 0:
            continue
        if (
            isinstance(part, Copy)
            and isinstance(last, Copy)
            and last.need == part.need
            and last.offset + last.size == part.offset
        ):
            out[-1] = Copy(last.need, last.offset, last.size + part.size)
        elif isinstance(part, Literal) and isinstance(last, Literal):
            out[-1] = Literal(last.data + part.data)
        else:
            out.append(part)
    return tuple(out)
