"""Transform draft_vocab: an LM head of the most used tokens for drafting (FR-Spec).

`draft_vocab/head.safetensors` holds `ids` (sorted, row i of the weights is token ids[i]) and the weights, in
one file so that they can never be of two minds. It lies in a folder of its own: engines that load every
safetensors file beside a config would stumble over it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from onhost.files import write_all
from onhost.plan import JobError
from onhost.staging import fp8, nvfp4
from onhost.staging.catalog import SOURCE, Catalog, Need
from onhost.staging.fp8_dense import write_at
from onhost.staging.graft import Weights, made_tensor, scale_shape, text_config
from onhost.staging.model_index import read_json
from onhost.staging.numerals import column_largest
from onhost.staging.outputs import Copy, Made, Make, Meter, Piece, Planned, Range, kept, weights
from onhost.staging.vocabulary import TOKENIZER, chosen, pinned, read_counts, read_part, read_tokenizer
from onhost.staging.workers import shared

VERSION = 1
FILE = "draft_vocab/head.safetensors"
BLOCK = 128
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)


@dataclass(frozen=True)
class Draft:
    """The options of the transform. `counts` is a file of the checkpoint, or of the donor `counts_origin`."""

    size: int
    output: str  # bf16, fp8 or nvfp4
    counts: str | None
    pin_special: bool
    counts_origin: str = SOURCE

    def plan(self, catalog: Catalog, donors: Mapping[str, Catalog]) -> Planned:
        """The same files and the draft head; JobError for whatever was not expected."""
        if FILE in catalog:
            raise JobError(f"found {FILE} in the checkpoint already; wanted none; leave it out by `allow`")
        name, shape, source = _head(catalog)
        vocabulary, hidden = shape
        if self.size > vocabulary:
            raise JobError(
                f"found an LM head of {vocabulary} rows; wanted at least {self.size}; "
                "correct `size` in the recipe"
            )
        unit = BLOCK if self.output == "fp8" else nvfp4.GROUP
        if hidden % unit:
            raise JobError(
                f"found an LM head of {hidden} columns; wanted a multiple of {unit}; "
                "choose another `output`"
            )
        inputs = [source]
        if self.pin_special:
            inputs.append(self._file(catalog, TOKENIZER, SOURCE, "special and byte tokens"))
        if self.counts is not None:
            held = catalog if self.counts_origin == SOURCE else donors[self.counts_origin]
            inputs.append(self._file(held, self.counts, self.counts_origin, "counts"))
        work = _Head(self, vocabulary, hidden)
        pieces = [
            Piece(made_tensor(tensor, dtype, dims, size), Made(size, tuple(inputs), make))
            for tensor, dtype, dims, size, make in work.tensors()
        ]
        metadata = {
            "format": "pt",
            "source": name,
            "output": self.output,
            "vocabulary": str(vocabulary),
        }
        outputs = [kept(file, info) for file, info in catalog.items()]
        return Planned((*outputs, weights(FILE, pieces, metadata)))

    def _file(self, held: Catalog, name: str, origin: str, what: str) -> Copy:
        if name not in held:
            raise JobError(
                f"found no {name}, which has the {what}; wanted it among the checkpoint's files; "
                "add it to the allow list, or change draft_vocab in the recipe"
            )
        return Copy(Need(origin, name), 0, held[name].size)


def _head(catalog: Catalog) -> tuple[str, tuple[int, ...], Copy]:
    model = Weights.read(catalog)
    names = [name for name in HEADS if name in model.tensors]
    if not names and text_config(read_json(catalog, "config.json") or {}).get("tie_word_embeddings"):
        names = [name for name in EMBEDDINGS if name in model.tensors]
    if len(names) != 1:
        raise JobError(
            f"found {' and '.join(names) or 'no LM head'}; wanted one of {', '.join(HEADS)}; "
            "leave draft_vocab out of the recipe"
        )
    tensor = model.tensors[names[0]]
    if tensor.dtype != "BF16" or len(tensor.shape) != 2:
        raise JobError(
            f"found {names[0]} as {tensor.dtype} {list(tensor.shape)}; wanted BF16 rows; "
            "put draft_vocab before what converts the LM head"
        )
    return names[0], tensor.shape, model.place(names[0])


class _Head:
    """The tensors of the draft head. Which ids they are for is found out once, when the first is written."""

    def __init__(self, options: Draft, vocabulary: int, hidden: int) -> None:
        self.options = options
        self.vocabulary = vocabulary
        self.hidden = hidden
        self._ids: list[int] | None = None
        self._scale: float | None = None

    def tensors(self) -> Iterator[tuple[str, str, tuple[int, ...], int, Make]]:
        """(name, type, shape, bytes, what writes it) of each."""
        size, hidden = self.options.size, self.hidden
        yield "ids", "I64", (size,), 8 * size, self._write_ids
        if self.options.output == "bf16":
            yield "weight", "BF16", (size, hidden), 2 * size * hidden, self._write_rows
        elif self.options.output == "fp8":
            shape = scale_shape((size, hidden), (BLOCK, BLOCK))
            yield "weight", "F8_E4M3", (size, hidden), size * hidden, self._by_rows(fp8_rows)
            yield "weight_scale_inv", "F32", shape, 4 * shape[0] * shape[1], self._by_rows(fp8_scales)
        else:
            groups = hidden // nvfp4.GROUP
            yield "weight", "U8", (size, hidden // 2), size * hidden // 2, self._by_rows(nvfp4_rows)
            yield "weight_scale", "F8_E4M3", (size, groups), size * groups, self._by_rows(nvfp4_scales)
            yield "weight_scale_2", "F32", (), 4, self._write_scale

    def ids(self, ranges: Sequence[Range]) -> list[int]:
        """The draft vocabulary, sorted."""
        if self._ids is None:
            rest = list(ranges[1:])
            options = self.options
            always: set[int] = set()
            if options.pin_special:
                part = rest.pop(0)
                always = pinned(read_tokenizer(part.path, part.offset, part.size))
            counts = None
            if options.counts is not None:
                part = rest.pop(0)
                counts = read_counts(
                    read_part(part.path, part.offset, part.size), options.counts, self.vocabulary
                )
            self._ids = chosen(self.vocabulary, options.size, always, counts)
        return self._ids

    def _write_ids(self, ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
        ids = self.ids(ranges)
        self._write(struct.pack(f"<{len(ids)}q", *ids), target, at, meter)

    def _write_rows(self, ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
        size = 2 * self.hidden
        with ranges[0].path.open("rb", buffering=0) as source, target.open("r+b", buffering=0) as out:
            out.seek(at)
            for first, count in runs(self.ids(ranges)):
                for row in range(first, first + count, 1024):
                    rows = min(1024, first + count - row)
                    write_all(out.fileno(), read_rows(source.fileno(), ranges[0].offset, size, row, rows))
                    meter.add(rows * size)

    def _write_scale(self, ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
        self._write(nvfp4.float_bytes(self._tensor_scale(ranges)), target, at, meter)

    def _write(self, data: bytes, target: Path, at: int, meter: Meter) -> None:
        with target.open("r+b", buffering=0) as out:
            write_at(out.fileno(), data, at)
        meter.add(len(data))

    def _tensor_scale(self, ranges: Sequence[Range]) -> float:
        if self._scale is None:
            largest = 0
            for _, data in strips(str(ranges[0].path), ranges[0].offset, self.hidden, self.ids(ranges)):
                largest = max(largest, *column_largest(data, len(data) // (2 * self.hidden), self.hidden))
            if largest >= 0x7F80:
                raise _not_finite()
            self._scale = nvfp4.tensor_scale(largest)
        return self._scale

    def _by_rows(self, work: object) -> Make:
        def make(ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
            ids = self.ids(ranges)
            scale = self._tensor_scale(ranges) if self.options.output == "nvfp4" else 0.0
            source = ranges[0]
            step = 32 * BLOCK
            calls = [
                (str(source.path), source.offset, self.hidden, ids[n : n + step], n, str(target), at, scale)
                for n in range(0, len(ids), step)
            ]
            try:
                shared(work, calls, 2 * len(ids) * self.hidden, meter.add)  # type: ignore[arg-type]
            except fp8.NotFinite:
                raise _not_finite() from None

        return make


def _not_finite() -> JobError:
    return JobError(
        "found a value in the LM head that is infinite or no number; wanted finite weights; "
        "pin another revision"
    )


def runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of each run of ids that follow one another."""
    for _, group in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        listed = list(group)
        yield listed[0][1], len(listed)


def read_rows(source: int, offset: int, size: int, row: int, count: int) -> bytes:
    """Rows of `size` bytes; EOFError where the file is shorter."""
    data = os.pread(source, size * count, offset + row * size)
    if len(data) != size * count:
        raise EOFError(f"{size * count - len(data)} bytes missing from row {row}")
    return data


def strips(path: str, offset: int, hidden: int, ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """(number of the first row among the ids, BF16 rows) in strips of BLOCK rows."""
    source = os.open(path, os.O_RDONLY)
    try:
        for first in range(0, len(ids), BLOCK):
            found = runs(ids[first : first + BLOCK])
            yield first, b"".join([read_rows(source, offset, 2 * hidden, *run) for run in found])
    finally:
        os.close(source)


def _each(
    path: str, offset: int, hidden: int, ids: Sequence[int], target: str
) -> Iterator[tuple[int, bytes, int]]:
    out = os.open(target, os.O_WRONLY)
    try:
        for first, data in strips(path, offset, hidden, ids):
            yield first, data, out
    finally:
        os.close(out)


def fp8_rows(
    path: str, offset: int, hidden: int, ids: Sequence[int], number: int, target: str, at: int, _: float
) -> int:
    """Writes the FP8 codes of some rows, the first of which is row `number` of the draft head."""
    for first, data, out in _each(path, offset, hidden, ids, target):
        rows = len(data) // (2 * hidden)
        largest = fp8.block_largest(data, rows, hidden, BLOCK)
        write_at(out, fp8.strip_codes(data, rows, hidden, BLOCK, largest), at + (number + first) * hidden)
    return len(ids) * hidden


def fp8_scales(
    path: str, offset: int, hidden: int, ids: Sequence[int], number: int, target: str, at: int, _: float
) -> int:
    """Writes the scales of those rows."""
    written = 0
    for first, data, out in _each(path, offset, hidden, ids, target):
        made = fp8.scales(fp8.block_largest(data, len(data) // (2 * hidden), hidden, BLOCK))
        write_at(out, made, at + (number + first) // BLOCK * len(made))
        written += len(made)
    return written


def nvfp4_rows(
    path: str, offset: int, hidden: int, ids: Sequence[int], number: int, target: str, at: int, scale: float
) -> int:
    """Writes the packed E2M1 codes of those rows."""
    encoder = nvfp4.Encoder(scale)
    for first, data, out in _each(path, offset, hidden, ids, target):
        write_at(out, encoder.values(data, len(data) // 2), at + (number + first) * hidden // 2)
    return len(ids) * hidden // 2


def nvfp4_scales(
    path: str, offset: int, hidden: int, ids: Sequence[int], number: int, target: str, at: int, scale: float
) -> int:
    """Writes the group scales of those rows."""
    encoder, groups = nvfp4.Encoder(scale), hidden // nvfp4.GROUP
    for first, data, out in _each(path, offset, hidden, ids, target):
        write_at(out, encoder.scales(data, len(data) // 2), at + (number + first) * groups)
    return len(ids) * groups
