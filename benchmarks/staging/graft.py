"""`python -m benchmarks.staging.graft [--gb 20] [--where DIR] [--torch-python PYTHON]`

A synthetic hybrid graft, cold, in turn with `cp` of the same bytes and `sync` on the same file system, with
the published way in torch where a Python has torch and safetensors, and on XFS or btrfs in a loop file. The
best of the rounds counts, since whatever else a machine does only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.staging.common import child, cold, finish, need, scratch, timed, write_safetensors

HIDDEN, INTER = 3072, 1024
SHARD = 5_000_000_000  # bytes; what hubs have, or a fifth of a smaller base
RULE = {
    "name": "graft_fp8",
    "donor": {"repo": "donor", "revision": "0" * 40},
    "tensors": ["*.shared_expert.*_proj.weight"],
}

OURS = """
import json, re, sys, time
from pathlib import Path
from onhost.plan import Plan
from onhost.staging.chain import apply_steps, folder_view
from onhost.staging.transforms import read_steps
class Quiet:
    def stage(self, *a, **k): pass
    def add(self, *a): pass
base, donor, out, rule = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
began = time.perf_counter()
view = {"donor@" + "0" * 40: folder_view(donor)}
apply_steps(folder_view(base), read_steps([Plan(rule)]), out, Quiet(), view)
seconds = time.perf_counter() - began
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"seconds": seconds, "peak_kib": peak}))
"""
# The published way: the donor's tensors in memory, each shard loaded, changed and saved.
TORCH = """
import json, os, re, sys, time
from pathlib import Path
from safetensors.torch import load_file, save_file
base, donor, out = map(Path, sys.argv[1:4])
began = time.perf_counter()
held = {}
for file in sorted(donor.glob("*.safetensors")):
    held |= load_file(file)
out.mkdir()
for file in sorted(base.glob("*.safetensors")):
    tensors = load_file(file)
    for name in list(tensors):
        if name in held:
            tensors[name] = held[name]
            tensors[name + "_scale_inv"] = held[name + "_scale_inv"]
    save_file(tensors, out / file.name)
for path in out.iterdir():
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
seconds = time.perf_counter() - began
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"seconds": seconds, "peak_kib": peak}))
"""


def make(base: Path, donor: Path, size: int) -> tuple[int, int]:
    """A base of about `size` bytes in shards and its donor; (bytes of the base, tensors to graft).

    In each layer three BF16 shared experts of the 122B's shape among many small INT4 tensors.
    """
    experts = 256
    packed = {
        "qweight": ("I32", [HIDDEN // 8, INTER], HIDDEN * INTER // 2),
        "scales": ("F16", [HIDDEN // 128, INTER], HIDDEN // 128 * INTER * 2),
        "qzeros": ("I32", [HIDDEN // 128, INTER // 8], HIDDEN // 128 * INTER // 2),
    }
    shapes = {"gate_proj": [INTER, HIDDEN], "up_proj": [INTER, HIDDEN], "down_proj": [HIDDEN, INTER]}
    layer, shard, total, grafted = 0, 0, 0, 0
    content: dict[str, tuple[str, list[int], int]] = {}
    theirs: dict[str, tuple[str, list[int], int]] = {}
    held = 0
    while total + held < size:
        prefix = f"model.language_model.layers.{layer}"
        own: dict[str, tuple[str, list[int], int]] = {
            f"{prefix}.input_layernorm.weight": ("BF16", [HIDDEN], 2 * HIDDEN)
        }
        for expert in range(experts):
            for kind, entry in packed.items():
                own[f"{prefix}.mlp.experts.{expert}.gate_proj.{kind}"] = entry
        for name, shape in shapes.items():
            weight = f"{prefix}.mlp.shared_expert.{name}.weight"
            count = shape[0] * shape[1]
            own[weight] = ("BF16", shape, 2 * count)
            blocks = [shape[0] // 128, shape[1] // 128]
            theirs[weight] = ("F8_E4M3", shape, count)
            theirs[f"{weight}_scale_inv"] = ("F32", blocks, 4 * blocks[0] * blocks[1])
            grafted += 1
        content |= own
        held += sum(entry[2] for entry in own.values())
        layer += 1
        if held > min(SHARD, size // 5) - held // layer or total + held >= size:
            # As the format's library writes: wide types first, then by name.
            width = {"I32": 4, "BF16": 2, "F16": 2}
            order = sorted(content.items(), key=lambda item: (-width[item[1][0]], item[0]))
            shard += 1
            total += write_safetensors(base / f"model-{shard:05d}-of-99999.safetensors", dict(order))
            content, held = {}, 0
    write_safetensors(donor / "model.safetensors", theirs)
    return total, grafted


def copied(base: Path, target: Path, *options: str) -> float:
    """Seconds of `cp` and of `sync` for its files alone."""
    target.mkdir()
    files = sorted(str(path) for path in base.glob("*.safetensors"))
    copies = [str(target / Path(name).name) for name in files]
    commands = (["cp", *options, *files, str(target)], ["sync", *copies])
    return timed(lambda: [subprocess.run(command, check=True) for command in commands])[0]


def rounds(folder: Path, size: int, count: int, torch: str | None) -> dict[str, Any]:
    """Both in turn, cold; seconds of each and the bytes."""
    total, grafted = make(folder / "base", folder / "donor", size)
    rule = json.dumps({**RULE, "expect_tensors": grafted})
    found: dict[str, Any] = {"bytes": total, "cp": [], "ours": [], "torch": [], "peak_kib": 0, "torch_kib": 0}
    sides = ["cp", "ours"] * count + (["torch"] if torch else [])
    for number, side in enumerate(sides):
        if number % 4 in (2, 3):  # each goes first as often as the other
            side = {"cp": "ours", "ours": "cp"}.get(side, side)
        target = folder / "out"
        cold(folder)
        if side == "cp":
            found["cp"].append(copied(folder / "base", target))
        else:
            paths = [str(folder / "base"), str(folder / "donor"), str(target)]
            code, python = (OURS, sys.executable) if side == "ours" else (TORCH, torch or "")
            said = json.loads(child(code, *paths, rule, python=python))
            found[side].append(said["seconds"])
            key = "peak_kib" if side == "ours" else "torch_kib"
            found[key] = max(found[key], said["peak_kib"])
        print(f"  {side:<6} {found[side][-1]:7.2f} s")
        shutil.rmtree(target)
    return found


@contextmanager
def reflinks(folder: Path, size: int) -> Iterator[tuple[str, Path] | None]:
    """(kind, folder) of a file system that shares blocks, in a loop file; None where there can be none."""
    for kind, make_it in (
        ("xfs", ["mkfs.xfs", "-q", "-m", "reflink=1"]),
        ("btrfs", ["mkfs.btrfs", "-q"]),
    ):
        if shutil.which(make_it[0]) is None:
            continue
        image, mount = folder / f"{kind}.img", folder / kind
        mount.mkdir()
        with image.open("wb") as file:
            file.truncate(size)
        made = subprocess.run([*make_it, str(image)], capture_output=True, check=False)
        mounted = (
            made.returncode == 0
            and not subprocess.run(
                ["mount", "-o", "loop", str(image), str(mount)], capture_output=True, check=False
            ).returncode
        )
        if mounted:
            try:
                yield kind, mount
            finally:
                subprocess.run(["umount", str(mount)], check=True)
                image.unlink()
            return
        image.unlink(missing_ok=True)
    yield None


def torch_python(given: str | None) -> str | None:
    """A Python that has torch and safetensors, or None."""
    python = given or sys.executable
    if shutil.which(python) is None:
        raise SystemExit(f"found no program {python}; wanted a Python; correct --torch-python")
    probe = [python, "-c", "import torch, safetensors.torch"]
    return python if subprocess.run(probe, capture_output=True, check=False).returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staging.graft")
    parser.add_argument("--gb", type=float, default=20, help="size of the base in GB (20)")
    parser.add_argument("--rounds", type=int, default=3, help="of cp and ours, in turn (3)")
    parser.add_argument(
        "--where", type=Path, default=Path("/var/tmp"), help="a folder on the disk to measure"
    )
    parser.add_argument("--torch-python", help="a Python with torch and safetensors")
    given = parser.parse_args()
    size = int(given.gb * 1e9)
    torch = torch_python(given.torch_python)
    figures: dict[str, Any] = {}
    shared: float | None = None
    with scratch(given.where) as folder:
        need(folder, int(size * 2.3))
        print(f"{given.gb:g} GB on {folder}")
        figures["plain"] = plain = rounds(folder / "plain", size, given.rounds, torch)
        shutil.rmtree(folder / "plain")
        with reflinks(folder, int(size * 1.6) + (1 << 30)) as found:
            if found is None:
                print("reflinks: not run (no root, or neither mkfs.xfs nor mkfs.btrfs)")
            else:
                kind, where = found
                (where / "one").mkdir()
                total, grafted = make(where / "one/base", where / "one/donor", size // 2)
                cold(where)
                slow = copied(where / "one/base", where / "out", "--reflink=never")
                shutil.rmtree(where / "out")
                cold(where)
                paths = [str(where / "one/base"), str(where / "one/donor"), str(where / "out")]
                rule = json.dumps({**RULE, "expect_tensors": grafted})
                said = json.loads(child(OURS, *paths, rule))
                print(f"  {kind}: cp without sharing {slow:.2f} s, ours {said['seconds']:.2f} s")
                figures["reflink"] = {"kind": kind, "bytes": total, "cp": slow, "ours": said["seconds"]}
                shared = slow / said["seconds"]
    ratio = min(plain["cp"]) / min(plain["ours"])
    peak = plain["peak_kib"] * 1024 / 1e6
    torches = None
    if torch:
        torches = min(plain["torch"]) / min(plain["ours"])
        print(f"torch: {torches:.2f} × our time, {plain['torch_kib'] * 1024 / 1e6:.0f} MB of memory")
    else:
        print("torch: not run (no Python with torch and safetensors; --torch-python)")
    targets: dict[str, tuple[float | None, str, float]] = {
        "graft: throughput as a ratio to cp": (ratio, "≥", 0.9),
        "graft: peak memory of the process, MB": (peak, "≤", 200),
        "graft where blocks are shared: cp's time as a ratio to ours": (shared, "≥", 10),
    }
    return finish("staging-graft", figures, targets)


if __name__ == "__main__":
    sys.exit(main())
