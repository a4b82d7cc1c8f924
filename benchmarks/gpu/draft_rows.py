"""The plugin's draft head as vLLM calls it: `python benchmarks/gpu/draft_rows.py [--out FILE.json]`.

Needs a CUDA GPU, torch and Triton. `lm_head.py` measures the kernels; this loads heads of the three kinds as
a server does (packed in pieces, tuned on the card), compares their logits with the head worked out in
float64, and measures a call beside BF16's `torch.mm` of the same shape, medians of graph replays.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "files" / "patches"))
from sparkstack_vllm import draft_head

ROWS = (1, 2, 4, 6, 8, 18)
SHAPES = ((65536, 2560), (65536, 3072), (1000, 2560))
DEVICE = torch.device("cuda")
LIMITS = {"bf16": 4e-3, "fp8": 4e-3, "nvfp4": 4e-3}
"""Of ‖made − exact‖ / ‖exact‖: what rounding the logits to BF16 leaves."""


def head(kind: str, count: int, width: int) -> Any:
    """A head of random weights in the form that the transform draft_vocab writes."""
    ids = torch.arange(count)
    if kind == "bf16":
        return draft_head.Head(ids, torch.randn(count, width).bfloat16(), None, None)
    if kind == "fp8":
        weight = torch.randn(count, width).mul(50).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-count // 128), -(-width // 128)) * 1e-2 + 1e-3
        return draft_head.Head(ids, weight, scale, None)
    weight = torch.randint(0, 256, (count, width // 2), dtype=torch.uint8)
    scale = (torch.rand(count, width // 16) * 100 + 1).to(torch.float8_e4m3fn)
    return draft_head.Head(ids, weight, scale, torch.tensor([1e-4]))


def median(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """Milliseconds."""
    return float(triton.testing.do_bench_cudagraph(lambda: call(x), return_mode="median"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    out = parser.parse_args().out
    torch.manual_seed(2)
    lines: list[dict[str, Any]] = []
    for count, width in SHAPES:
        plain = torch.randn(count, width, device=DEVICE).bfloat16()
        for kind in LIMITS:
            published = head(kind, count, width)
            exact = draft_head.restored(published, 0, count).double()
            rows = draft_head.Rows(published, DEVICE)
            for number in ROWS:
                x = torch.randn(number, width).bfloat16()
                here = x.to(DEVICE)
                made = rows.logits(here)
                wanted = x.double() @ exact.t()
                error = float((made.double().cpu() - wanted).norm() / wanted.norm())
                ours, theirs = median(rows.logits, here), median(partial(torch.mm, mat2=plain.t()), here)
                line = {
                    "shape": [count, width], "kind": kind, "rows": number, "kernel": rows._kernel is not None,
                    "error": error, "within": error <= LIMITS[kind],
                    "us": ours * 1e3, "bf16_us": theirs * 1e3,
                }  # fmt: skip
                lines.append(line)
                print(
                    f"{count}×{width} {kind:<6} {number} rows: error {error:.1e}, {ours * 1e3:6.1f} µs, "
                    f"{theirs / ours:.2f} × BF16's mm, {'kernel' if line['kernel'] else 'plain torch'}"
                )
    report = {
        "command": "python benchmarks/gpu/draft_rows.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "lines": lines,
    }
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(line["within"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
