"""What staging takes of a host's memory, with as many tensors as a real model has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from making import revision_of
from spark import ROOT, Host

from benchmarks.staging.common import write_safetensors
from lab.hub import serve
from tasks.remote import ONE_HEAP

LIMIT = 200_000_000  # bytes, whatever the shards' size
LAYERS, EXPERTS = 48, 256  # of the 122B: 110,736 tensors

RUN = """
import re, sys
from onhost import jobs
status = jobs.main(sys.argv[1])
print(status, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def make(base: Path, donor: Path) -> int:
    """Base and donor, every tensor tiny; returns how many are to be grafted."""
    packed = {"qweight": ("I32", [4, 4], 64), "scales": ("F16", [4, 4], 32), "qzeros": ("I32", [4, 4], 64)}
    theirs: dict[str, tuple[str, list[int], int]] = {}
    content: dict[str, tuple[str, list[int], int]] = {}
    index: dict[str, str] = {}
    for layer in range(LAYERS):
        mlp = f"model.language_model.layers.{layer}.mlp"
        for proj in ("gate_proj", "up_proj", "down_proj"):
            for expert in range(EXPERTS):
                content |= {f"{mlp}.experts.{expert}.{proj}.{kind}": entry for kind, entry in packed.items()}
            weight = f"{mlp}.shared_expert.{proj}.weight"
            content[weight] = ("BF16", [128, 128], 32768)
            theirs |= {weight: ("F8_E4M3", [128, 128], 16384), f"{weight}_scale_inv": ("F32", [1, 1], 4)}
        if layer % 3 == 2:
            file = f"model-{layer // 3 + 1:05d}-of-{LAYERS // 3:05d}.safetensors"
            write_safetensors(base / file, content)
            index |= dict.fromkeys(content, file)
            content = {}
    whole = {"metadata": {"total_size": 1}, "weight_map": index}
    (base / "model.safetensors.index.json").write_text(json.dumps(whole))
    (base / "config.json").write_text("{}")
    write_safetensors(donor / "model.safetensors", theirs)
    return LAYERS * 3


@pytest.mark.skipif("THOROUGH_TESTS" not in os.environ, reason="a minute where cores are shared")
def test_a_hundred_thousand_tensors_fit_into_the_limit(tmp_path: Path, host: Host) -> None:
    count = make(tmp_path / "hub/org/base", tmp_path / "hub/org/donor")
    hub = serve(tmp_path / "hub")
    try:
        plan = host.write_plan(
            "checkpoint",
            id="abc123",
            source={"repo": "org/base", "revision": revision_of("org/base"), "endpoint": hub.url},
            transforms=[
                {
                    "name": "graft_fp8",
                    "donor": {"repo": "org/donor", "revision": revision_of("org/donor")},
                    "tensors": ["*.shared_expert.*_proj.weight"],
                    "expect_tensors": count,
                }
            ],
            downloads_dir=str(host.downloads),
            checkpoints_dir=str(host.checkpoints),
        )
        heap = dict(word.removeprefix("--setenv=").split("=") for word in ONE_HEAP.split())
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(plan)],
            env={**os.environ, **heap, "PYTHONPATH": str(ROOT), "HOME": str(host.home)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        hub.stop()
    status, peak = map(int, done.stdout.split())
    assert status == 0, done.stderr
    assert peak * 1024 <= LIMIT
