"""vLLM's own weight loader reads what the transforms write: a hybrid and an MTP checkpoint, on the CPU.

It runs in the lab's vLLM image, without a network and without a model class: the loader's choice of files,
each tensor's name, type, shape and bytes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/onhost"))

import models
from making import Content, write_repo
from staged import CUT, GRAFT, REGISTER, apply, indexed

pytestmark = pytest.mark.lab

READ = """
import hashlib, json, sys, torch
from pathlib import Path
from vllm.model_executor.model_loader import weight_utils as loader
folder = Path(sys.argv[1])
files = sorted(map(str, folder.glob("*.safetensors")))
files = loader.filter_duplicate_safetensors_files(files, str(folder), "model.safetensors.index.json")
found = {}
for name, tensor in loader.safetensors_weights_iterator(files, False):
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    found[name] = [str(tensor.dtype), list(tensor.shape), hashlib.sha256(data).hexdigest()]
print("READ" + json.dumps(found))
"""
TYPES = {
    "BF16": "torch.bfloat16",
    "F16": "torch.float16",
    "F32": "torch.float32",
    "I32": "torch.int32",
    "F8_E4M3": "torch.float8_e4m3fn",
}


def image() -> str:
    """The lab's vLLM image, which `lab up` has built."""
    done = subprocess.run(
        ["docker", "images", "-q", "sparkstack-lab/vllm-cpu"], capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout.strip():
        pytest.skip("not checked: no vLLM image of the lab on this machine")
    return done.stdout.split()[0]


def read_by_vllm(folder: Path) -> dict[str, Any]:
    command = ["docker", "run", "--rm", "--network", "none", "-v", f"{folder}:/model:ro"]
    done = subprocess.run(
        [*command, "--entrypoint", "python3", image(), "-c", READ, "/model"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("READ")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("READ"))
    return found


def as_vllm_says(content: Content) -> dict[str, Any]:
    return {
        name: [TYPES[dtype], shape, hashlib.sha256(data).hexdigest()]
        for name, (dtype, shape, data) in content.items()
    }


def test_a_hybrid_and_an_mtp_checkpoint(state: dict[str, Any], tmp_path: Path) -> None:
    write_repo(tmp_path / "base", models.hybrid_base())
    write_repo(tmp_path / "donor", models.donor_files())
    out = apply(tmp_path / "base", tmp_path / "out", GRAFT, REGISTER, CUT, donor=tmp_path / "donor")
    found = read_by_vllm(out)
    assert found == as_vllm_says(indexed(out))
    assert set(models.mtp()) < set(found)
    assert not set(models.mtp()) & set(read_by_vllm(tmp_path / "base"))  # what register_mtp is for
