"""The format for all inputs, not for those one thinks of; where copied bytes lie; memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import Silent, contents, noise, raw, safetensors

from onhost.files import BLOCK
from onhost.plan import JobError, Plan
from onhost.staging.catalog import SOURCE, FileInfo, Need, catalog_of
from onhost.staging.chain import Step, chain
from onhost.staging.outputs import (
    Copy,
    Literal,
    Made,
    Piece,
    Planned,
    Range,
    kept,
    merged,
    piece_of,
    text,
    weights,
)
from onhost.staging.safetensors import (
    DTYPE_BITS,
    FormatError,
    Tensor,
    parse_header,
    read_header,
    tensor_bytes,
)
from onhost.staging.transforms import read_steps

NEVER_SHARED = ("C64", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors of any type and shape; F4 and F6 ones take whole bytes."""
    content = {}
    names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
    for name in draw(st.lists(names, unique=True, max_size=6)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPE_BITS))), draw(SHAPES)
        if DTYPE_BITS[dtype] < 8:
            shape = [*shape, 4]
        content[name] = (dtype, shape, noise(tensor_bytes(dtype, shape), name))
    return content


METADATA = st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
quick = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def header_of(blob: bytes) -> Any:
    length = int.from_bytes(blob[:8], "little")
    return parse_header(blob[8 : 8 + length], len(blob), "any.safetensors")


@quick
@given(content=tensors(), metadata=METADATA)
def test_whatever_is_right_is_read_and_written(content: Any, metadata: Any) -> None:
    header = header_of(safetensors(content, metadata))
    assert {t.name: (t.dtype, list(t.shape), t.size) for t in header.tensors} == {
        name: (dtype, shape, len(data)) for name, (dtype, shape, data) in content.items()
    }
    assert header.metadata == metadata
    pieces = [piece_of(tensor, header, Need(SOURCE, "a")) for tensor in header.tensors]
    output = weights("b", pieces, metadata)
    start = output.parts[0]
    assert isinstance(start, Literal)
    length = int.from_bytes(start.data[:8], "little")
    assert parse_header(start.data[8 : 8 + length], output.info.size, "b") == output.info.header
    assert sum(part.size for part in output.parts) == output.info.size
    assert all(t.begin % max(1, DTYPE_BITS[t.dtype] // 8) == 0 for t in output.info.header.tensors)  # type: ignore[union-attr]


@quick
@given(content=tensors(), place=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 3))
def test_what_is_wrong_is_refused_as_by_the_formats_library(
    content: Any, place: int, value: int, cut: int
) -> None:
    """A changed byte, or a file cut short: FormatError and nothing else, wherever the library refuses."""
    blob = bytearray(safetensors(content))
    blob[place % len(blob)] = value
    changed = bytes(blob[: len(blob) - cut] if cut else blob)
    try:
        library.deserialize(changed)
        right = True
    except library.SafetensorError:
        right = False
    try:
        length = int.from_bytes(changed[:8], "little")
        if 8 + length > len(changed):
            raise FormatError("truncated")
        header_of(changed)
    except FormatError:
        return  # ours may be stricter: a key twice, a name that JSON readers differ about
    assert right


@quick
@given(
    header=st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["a", "dtype", "shape", "data_offsets", "__metadata__"]), inner, max_size=4
            )
        ),
    )
)
def test_any_json_is_a_header_or_an_error(header: Any) -> None:
    blob = raw(header)
    try:
        found = header_of(blob)
    except FormatError:
        return
    assert found.data_start + found.data_size == len(blob)


def test_dtypes_are_those_of_the_library() -> None:
    for dtype in sorted(set(DTYPE_BITS) - {"F4"}):
        shape = [4]
        blob = safetensors({"t": (dtype, shape, bytes(tensor_bytes(dtype, shape)))})
        assert library.deserialize(blob)[0][1]["dtype"] == dtype
    library.deserialize(safetensors({"t": ("F4", [2, 3], bytes(3))}))


def big(tmp_path: Path, name: str, sizes: dict[str, int]) -> Path:
    content = {key: ("U8", [size], noise(size, key)) for key, size in sizes.items()}
    blob = safetensors(content, {"format": "pt"})
    # The format's library pads headers to eight bytes; so do all published files.
    header, data = (
        blob[8 : 8 + int.from_bytes(blob[:8], "little")],
        blob[8 + int.from_bytes(blob[:8], "little") :],
    )
    (tmp_path / name).write_bytes(raw(header + b" " * (-len(header) % 8), data))
    return tmp_path / name


def test_copied_bytes_keep_their_place_within_a_block(tmp_path: Path) -> None:
    """Only then can a file system share blocks, and most of a grafted file is copied."""
    path = big(tmp_path, "a", {"a": 1_000_000, "b": 2 * BLOCK, "c": 3_000_000, "d": 77})
    catalog = catalog_of({"a.safetensors": path})
    header = read_header(path)
    pieces = [piece_of(t, header, Need(SOURCE, "a")) for t in header.tensors if t.name != "b"]
    small = (tmp_path / "s").write_bytes(safetensors({"b": ("F32", [16], bytes(64))}))
    assert small
    pieces += [
        piece_of(t, read_header(tmp_path / "s"), Need("d", "s")) for t in read_header(tmp_path / "s").tensors
    ]
    output = weights("out", pieces, None)
    at, copied = 0, 0
    for part in output.parts:
        if isinstance(part, Copy) and (part.offset - at) % BLOCK == 0:
            copied += part.size
        at += part.size
    assert copied > 4_000_000
    assert output.info.header is not None and output.info.header.data_start % 8 == 0
    output.write(lambda need: tmp_path / need.file, tmp_path / "out", Silent())
    assert {n: d for n, (_, _, d) in contents(tmp_path / "out").items() if n != "b"} == {
        n: d for n, (_, _, d) in contents(path).items() if n != "b"
    }
    assert catalog["a.safetensors"].header == header


@pytest.mark.parametrize(
    ("count", "order"),
    # An odd number of F16 leaves no aligned place for the F32 behind it: then wide types come first.
    [(6, ["q", "s", "w_scale", "w"]), (7, ["q", "w_scale", "s", "w"])],
)
def test_what_is_new_lies_behind_what_stays(count: int, order: list[str]) -> None:
    """A donor's wide scales before the narrower tensors would move all of these within a block."""

    def piece(origin: str, name: str, dtype: str, *shape: int) -> Piece:
        size = tensor_bytes(dtype, shape)
        return Piece(Tensor(name, dtype, shape, 0, size), Copy(Need(origin, "f"), 800, size))

    new = [piece("donor", "w", "F8_E4M3", 6), piece("donor", "w_scale", "F32", 1)]
    old = [piece(SOURCE, "s", "F16", count), piece(SOURCE, "q", "I32", 4)]
    header = weights("out", [*new, *old], None).info.header
    assert header is not None
    assert [tensor.name for tensor in header.tensors] == order
    assert all(tensor.begin % (DTYPE_BITS[tensor.dtype] // 8) == 0 for tensor in header.tensors)


def test_runs_are_copied_as_one(tmp_path: Path) -> None:
    path = big(tmp_path, "a", {f"t{number}": 100 for number in range(50)})
    header = read_header(path)
    output = weights("b", [piece_of(t, header, Need(SOURCE, "a")) for t in header.tensors], None)
    assert len(output.parts) == 2  # the header, and all tensors


def made(size: int, *inputs: Copy) -> Made:
    def make(ranges: list[Range], target: Path, at: int, meter: Any) -> None:
        data = b"".join(r.path.read_bytes()[r.offset : r.offset + r.size] for r in ranges)
        with target.open("r+b") as out:
            out.seek(at)
            out.write(data[::-1][:size])
        meter.add(size)

    return Made(size, inputs, make)  # type: ignore[arg-type]


def step(plan: Any) -> Step:
    return Step("any", 1, {}, lambda catalog, donors: Planned(tuple(plan(catalog))))


def test_a_computation_over_a_computed_file_keeps_the_file_between(tmp_path: Path) -> None:
    from onhost.staging.chain import apply_steps

    (tmp_path / "a").write_bytes(b"0123456789")
    first = step(lambda catalog: [
        kept("a", catalog["a"]),
        weights("b", [], None),
        text("j.config.json", b"{}"),
        output("c", 6, Copy(Need(SOURCE, "a"), 2, 2), made(4, Copy(Need(SOURCE, "a"), 0, 4))),
    ])  # fmt: skip
    second = step(lambda catalog: [
        output("d", 5, made(5, Copy(Need(SOURCE, "c"), 1, 5))),  # reaches into what was computed
        output("e", 4, Copy(Need(SOURCE, "c"), 2, 4)),  # all that was computed: made anew in its place
        output("f", 1, Copy(Need(SOURCE, "c"), 1, 1)),
        output("g", 2, Copy(Need(SOURCE, "c"), 4, 2)),  # a part of what was computed
    ])  # fmt: skip
    chained = chain(catalog_of({"a": tmp_path / "a"}), [first, second], {})
    assert {origin: [o.name for o in outputs] for origin, outputs in chained.between.items()} == {
        "step1": ["c"]
    }
    apply_steps({"a": tmp_path / "a"}, [first, second], tmp_path / "out", Silent())
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        "d": b"01233",
        "e": b"3210",
        "f": b"3",
        "g": b"10",
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "out"]


def output(name: str, size: int, *parts: Any) -> Any:
    from onhost.staging.outputs import Output

    return Output(name, FileInfo(size), merged(parts))


def test_a_maker_that_writes_too_little_is_an_error(tmp_path: Path) -> None:
    wrong = Made(4, (), lambda ranges, target, at, meter: None)
    with pytest.raises(JobError, match="found 0 bytes written of x; wanted 4; report it"):
        output("x", 4, wrong).write(lambda need: tmp_path, tmp_path / "x", Silent())


MEMORY = """
import re, sys
from pathlib import Path
from onhost.plan import Plan
from onhost.staging.chain import apply_steps, folder_view
from onhost.staging.transforms import read_steps
class Quiet:
    def stage(self, *a, **k): pass
    def add(self, *a): pass
base, donor, out = map(Path, sys.argv[1:])
rule = {"name": "graft_fp8", "tensors": ["*.w.weight"], "expect_tensors": 1}
rule["donor"] = {"repo": "d", "revision": "0" * 40}
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
apply_steps(folder_view(base), read_steps([Plan(rule)]), out, Quiet(), {"d@" + "0" * 40: folder_view(donor)})
print(before, peak())
"""


def sparse_file(path: Path, shapes: dict[str, tuple[str, list[int]]]) -> None:
    """A file of zeros that takes no room."""
    path.parent.mkdir(exist_ok=True)
    header, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = tensor_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    blob = raw(header)
    path.write_bytes(blob)
    os.truncate(path, len(blob) + at)


def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    """A graft of a 250 MB file, in a process of its own: below 100 MB, and hardly more than before it."""
    sparse_file(
        tmp_path / "base/model.safetensors",
        {"a": ("U8", [250_000_000]), "x.w.weight": ("BF16", [1024, 1024])},
    )
    donor = {"x.w.weight": ("F8_E4M3", [1024, 1024]), "x.w.weight_scale_inv": ("F32", [8, 8])}
    sparse_file(tmp_path / "donor/model.safetensors", donor)  # type: ignore[arg-type]
    folders = [str(tmp_path / name) for name in ("base", "donor", "out")]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *folders], capture_output=True, text=True, check=True, timeout=60
    )
    before, peak = map(int, done.stdout.split())
    assert peak < 100_000 and peak - before < 20_000
    (tmp_path / "out/model.safetensors").unlink()


HELPERS = """
import os
from onhost.staging import workers
workers.WORTH, workers.MOST = 0, 1
os.cpu_count = lambda: 2
found = []
workers.shared(os.getppid, [(), ()], 1, found.append)
assert found == [os.getpid()] * 2
print(*workers._pool._processes, flush=True)
os._exit(0)  # as a killed job: nothing is closed
"""


def test_helper_processes_end_with_their_job() -> None:
    # The helper has our pipe as its standard output, so this waits for its end, too.
    done = subprocess.run([sys.executable, "-c", HELPERS], stdout=subprocess.PIPE, check=True, timeout=60)
    assert not Path(f"/proc/{int(done.stdout)}/fd/1").exists()


def test_the_plan_needs_no_file() -> None:
    """A graft is planned from sizes and headers alone; the donor's other files are no need of it."""
    import models

    catalogs = {}
    for name, files in (("base", models.hybrid_base()), ("donor", models.donor_files())):
        catalogs[name] = {
            file: FileInfo(
                len(blob),
                None,
                header_of(blob) if file.endswith("safetensors") else None,
                blob if file.endswith("json") else None,
            )
            for file, blob in files.items()
        }
    rule = {
        "name": "graft_fp8",
        "donor": {"repo": "d", "revision": "0" * 40},
        "tensors": ["*.shared_expert.*"],
        "expect_tensors": 12,
    }
    origin = "d@" + "0" * 40
    chained = chain(catalogs["base"], read_steps([Plan(rule)]), {origin: catalogs["donor"]})
    needs = set().union(*(output.needs for output in chained.outputs))
    assert {need.file for need in needs if need.origin == origin} == {"model-00001-of-00002.safetensors"}
    assert chained.written == sum(
        o.info.size
        for o in chained.outputs
        if o.name.startswith("model-") or o.name in {"config.json", "model.safetensors.index.json"}
    )
