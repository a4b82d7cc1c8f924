"""Transform fp8_dense: BF16 linear layers become FP8 in blocks with float32 scales, in files and configs.

The offline twin of converting while loading: done once, on the head, and the same bytes on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from onhost.plan import JobError
from onhost.staging import fp8
from onhost.staging.catalog import Catalog
from onhost.staging.graft import Weights, made_tensor, matching, rewritten, scale_shape
from onhost.staging.model_index import json_bytes, read_json
from onhost.staging.outputs import Made, Meter, Output, Piece, Planned, Range, text
from onhost.staging.workers import shared

VERSION = 2
ROWS_AT_ONCE = 1024  # of a task for one process: seconds of work, megabytes of result


@dataclass(frozen=True)
class Dense:
    """The options of the transform."""

    tensors: tuple[str, ...]
    expect: int
    block: tuple[int, int]

    def plan(self, catalog: Catalog) -> Planned:
        """The checkpoint with those weights in FP8; JobError for whatever was not expected."""
        model = Weights.read(catalog)
        names = sorted(matching(model.tensors, self.tensors))
        if len(names) != self.expect:
            raise JobError(
                f"found {len(names)} tensors to convert; wanted {self.expect}; "
                "correct `tensors` or `expect_tensors` in the recipe"
            )
        configs = _Configs(catalog, self.block)
        change = {name: self._converted(name, model, configs.scale) for name in names}
        files = configs.changed([name.removesuffix(".weight") for name in names], model)
        return Planned(tuple(rewritten(catalog, model, change, files)))

    def _converted(self, name: str, model: Weights, scale: str) -> list[Piece]:
        tensor = model.tensors[name]
        shape = tensor.shape
        if tensor.dtype != "BF16" or len(shape) != 2 or not name.endswith(".weight"):
            raise JobError(
                f"found {name} as {tensor.dtype} {list(shape)}; wanted the BF16 weight of a linear layer; "
                "correct `tensors` in the recipe"
            )
        if 0 in shape or shape[1] % self.block[1]:
            raise JobError(
                f"found {name} with {shape[1]} columns; wanted a multiple of {self.block[1]}, which engines "
                "need; leave it out of `tensors`"
            )
        scale_name = f"{name.removesuffix('weight')}{scale}"
        if scale_name in model.tensors:
            raise JobError(f"found {scale_name} beside a BF16 weight; wanted none; pin another revision")
        source = model.place(name)
        down, across = scale_shape(shape, self.block)
        four = scale == "weight_scale"
        work = _Conversion(name, (shape[0], shape[1]), self.block)
        size, scale_size = shape[0] * shape[1], 4 * down * across
        return [
            Piece(
                made_tensor(name, "F8_E4M3", shape, size),
                Made(size, (source,), work.write_codes),
            ),
            Piece(
                made_tensor(
                    scale_name, "F32", (down, 1, across, 1) if four else (down, across), scale_size
                ),
                Made(scale_size, (source,), work.write_scales),
            ),
        ]


@dataclass(frozen=True)
class _Conversion:
    """One weight's conversion; what its two tensors are made by."""

    name: str
    shape: tuple[int, int]
    block: tuple[int, int]

    def write_codes(self, ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
        self._shared(convert_codes, ranges[0], target, at, meter)

    def write_scales(self, ranges: Sequence[Range], target: Path, at: int, meter: Meter) -> None:
        self._shared(convert_scales, ranges[0], target, at, meter)

    def _shared(self, work: Any, source: Range, target: Path, at: int, meter: Meter) -> None:
        rows, columns = self.shape
        step = max(1, ROWS_AT_ONCE // self.block[0]) * self.block[0]
        place = (str(source.path), source.offset, columns)
        calls = [
            (*place, row, min(row + step, rows), self.block, str(target), at) for row in range(0, rows, step)
        ]
        try:
            shared(work, calls, source.size, meter.add)
        except fp8.NotFinite:
            raise JobError(
                f"found a value in {self.name} that is infinite or no number; wanted finite weights; "
                "leave it out of `tensors` or pin another revision"
            ) from None


def _strips(
    source: int, offset: int, columns: int, first: int, last: int, height: int
) -> Iterable[tuple[int, int, bytes]]:
    for row in range(first, last, height):
        rows = min(height, last - row)
        data = os.pread(source, rows * columns * 2, offset + row * columns * 2)
        if len(data) != rows * columns * 2:
            raise EOFError(f"{rows * columns * 2 - len(data)} bytes missing from offset {offset}")
        yield row, rows, data


def convert_codes(
    path: str, offset: int, columns: int, first: int, last: int, block: tuple[int, int], target: str, at: int
) -> int:
    """Converts rows `first` to `last` and writes their codes; returns the bytes written."""
    source, out = os.open(path, os.O_RDONLY), os.open(target, os.O_WRONLY)
    try:
        for row, rows, data in _strips(source, offset, columns, first, last, block[0]):
            largest = fp8.block_largest(data, rows, columns, block[1])
            write_at(out, fp8.strip_codes(data, rows, columns, block[1], largest), at + row * columns)
    finally:
        os.close(source)
        os.close(out)
    return (last - first) * columns


def convert_scales(
    path: str, offset: int, columns: int, first: int, last: int, block: tuple[int, int], target: str, at: int
) -> int:
    """Writes the scales of rows `first` to `last`; returns the bytes written."""
    source, out = os.open(path, os.O_RDONLY), os.open(target, os.O_WRONLY)
    written = 0
    try:
        for row, rows, data in _strips(source, offset, columns, first, last, block[0]):
            made = fp8.scales(fp8.block_largest(data, rows, columns, block[1]))
            write_at(out, made, at + row // block[0] * len(made))
            written += len(made)
    finally:
        os.close(source)
        os.close(out)
    return written


def write_at(handle: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data` at an offset."""
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, offset)
        offset += done
        view = view[done:]


class _Configs:
    """config.json and hf_quant_config.json of a checkpoint, and which of three kinds it is.

    NVIDIA's mixed kind lists each quantised layer; the `fp8` kind lists what is not converted; a checkpoint
    without any becomes `fp8`. The kind decides how engines call the scales.
    """

    def __init__(self, catalog: Catalog, block: tuple[int, int]) -> None:
        config = read_json(catalog, "config.json")
        if config is None:
            raise JobError("found no config.json; wanted one; fetch the checkpoint with its config.json")
        self.block = block
        self.config = config
        self.other = read_json(catalog, "hf_quant_config.json")
        found = config.get("quantization_config")
        self.quantization: dict[str, Any] | None = found if isinstance(found, dict) else None
        self.mixed = False
        if self.quantization is None:
            if self.other is not None:
                raise JobError(
                    "found hf_quant_config.json and no quantization_config in config.json; wanted both or "
                    "neither; pin a revision that has both"
                )
            return
        algorithm = self.quantization.get("quant_algo")
        if algorithm == "MIXED_PRECISION" and isinstance(self.quantization.get("quantized_layers"), dict):
            self.mixed = True
            if block != (128, 128):
                raise JobError(
                    f"found a block size of {list(block)}; wanted [128, 128], which FP8_PB_WO has; "
                    "correct `block_size` in the recipe"
                )
        elif not (
            self.quantization.get("quant_method") == "fp8"
            and self.quantization.get("weight_block_size") == list(block)
        ):
            raise JobError(
                f"found a checkpoint quantised as {algorithm or self.quantization.get('quant_method')!r}; "
                f"wanted MIXED_PRECISION, fp8 in blocks of {list(block)}, or none; "
                "leave fp8_dense out of the recipe"
            )

    @property
    def scale(self) -> str:
        """The last word of a scale's name."""
        return "weight_scale" if self.mixed else "weight_scale_inv"

    def changed(self, modules: Sequence[str], model: Weights) -> dict[str, Output]:
        """The files with new content."""
        files = {}
        if self.mixed:
            assert self.quantization is not None
            config = {**self.config, "quantization_config": _listed(self.quantization, modules, "ignore")}
            if self.other is not None:
                inner = self.other.get("quantization")
                if not isinstance(inner, dict):
                    raise JobError(
                        "found hf_quant_config.json without `quantization`; wanted it; pin another revision"
                    )
                listed = {**self.other, "quantization": _listed(inner, modules, "exclude_modules")}
                files["hf_quant_config.json"] = text("hf_quant_config.json", json_bytes(listed))
        elif self.quantization is not None:
            left = _uncovered(self.quantization, "modules_to_not_convert", modules)
            config = {
                **self.config,
                "quantization_config": {**self.quantization, "modules_to_not_convert": left},
            }
        else:
            config = {**self.config, "quantization_config": self._fresh(modules, model)}
        files["config.json"] = text("config.json", json_bytes(config))
        return files

    def _fresh(self, modules: Sequence[str], model: Weights) -> dict[str, Any]:
        done = set(modules)
        left = sorted(
            name.removesuffix(".weight")
            for name, tensor in model.tensors.items()
            if name.endswith(".weight")
            and len(tensor.shape) >= 2
            and name.removesuffix(".weight") not in done
        )
        return {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": list(self.block),
            "modules_to_not_convert": left,
        }


def _listed(quantization: Mapping[str, Any], modules: Sequence[str], skipped: str) -> dict[str, Any]:
    """A mixed configuration that names these modules; patterns that would still exclude them go.

    What else such a pattern covered stays as it is: in a mixed checkpoint only listed layers are quantised.
    """
    layers = quantization.get("quantized_layers") or {}
    if not isinstance(layers, dict):
        raise JobError(
            f"found {layers!r} as quantized_layers; wanted layers by name; "
            "pin a revision with a sound configuration"
        )
    layers = dict(layers)
    for module in modules:
        if module in layers:
            raise JobError(
                f"found {module} listed as quantised and stored as BF16; wanted one; pin another revision"
            )
        layers[module] = {"quant_algo": "FP8_PB_WO", "group_size": 128}
    return {**quantization, "quantized_layers": layers, skipped: _uncovered(quantization, skipped, modules)}


def _uncovered(quantization: Mapping[str, Any], key: str, modules: Sequence[str]) -> list[str]:
    """The names or patterns under a key that cover none of these modules; JobError for something else."""
    found = quantization.get(key) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise JobError(
            f"found {found!r} as {key}; wanted a list of names; pin a revision with a sound configuration"
        )
    return [name for name in found if not _covers(name, modules)]


def _covers(pattern: str, modules: Iterable[str]) -> bool:
    return any(
        fnmatchcase(module, pattern) or module.startswith(f"{pattern}.") for module in modules
    )
