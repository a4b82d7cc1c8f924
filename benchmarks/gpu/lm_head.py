"""The plugin's heads against the card's own limits: `python benchmarks/gpu/lm_head.py [--only PART]`.

Needs a CUDA GPU (9.0 or later), torch and Triton, and nothing else of this project. In one run it measures

- reading: a kernel that only adds up, over 2 GiB and over as many bytes as each head has (the shortest time
  of 24 forms of it, each started as a head is: from a graph, with data that the cache does not hold);
- BF16: `x @ W.T` for the LM head's shape;
- the INT8 LM head and the FP8 and NVFP4 draft heads, as the plugin's own tuning configures them;
- accuracy: relative error, and whether the largest logit is at the same token as that of float64 products.

Times are of everything a head does for a call (the INT8 head's two launches), medians of graph replays.
A head that fits into the card's second-level cache would be measured there, so draft heads take turns in four
copies.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "files" / "patches"))
from sparkstack_vllm import int8_lm_head
from sparkstack_vllm.kernels import draft_head, draft_pack, int8_head, tuning

VOCAB, WIDTH = 248320, 3072
ROWS = (1, 2, 3, 4, 8, 18)
DRAFT_VOCAB, DRAFT_WIDTHS = 65536, (2560, 3072)
DRAFT_ROWS = (1, 2, 4, 6, 8, 16, 18, 32)
PACK_ROWS = 8192
COPIES = 4
CALLS = 8  # of all copies in one graph, in what is measured and in its limit
DEVICE = torch.device("cuda")


@triton.jit
def _add_up(data, out, count, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    sums = tl.zeros((BLOCK,), tl.int32)
    for block in tl.range(tl.program_id(0), count // BLOCK, PROGRAMS):
        sums += tl.load(
            data + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK), eviction_policy="evict_first"
        )
    tl.store(out + tl.program_id(0), tl.sum(sums, 0))


def reading(size: int, copies: int) -> float:
    """The shortest time, µs, in which any of 24 forms of a summing kernel reads `size` bytes."""
    data = [
        torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device=DEVICE)
        for _ in range(copies)
    ]
    out = torch.empty(8 * processors(), dtype=torch.int32, device=DEVICE)
    times = []
    for block, warps, each, stages in itertools.product((2048, 4096, 8192), (4, 8), (4, 8), (2, 4)):
        programs = each * processors()

        def call(
            block: int = block, warps: int = warps, programs: int = programs, stages: int = stages
        ) -> Any:
            for part in data:
                _add_up[(programs,)](
                    part, out, part.numel(), block, programs, num_warps=warps, num_stages=stages
                )

        times.append(tuning.microseconds(call, CALLS, 6) / copies)
    return min(times)


def processors() -> int:
    return int(torch.cuda.get_device_properties(DEVICE).multi_processor_count)


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def lm_head(limit: float) -> list[dict[str, Any]]:
    """Times of the INT8 head; `limit` is the reading rate, bytes a µs."""
    weight = torch.randn(VOCAB, WIDTH, device=DEVICE).bfloat16()
    quantised, scale = int8_lm_head.quantise(weight)
    same_size = reading(quantised.numel(), 1)
    table = []
    for rows in ROWS:
        x = torch.randn(rows, WIDTH, device=DEVICE).bfloat16()
        config = int8_lm_head.tuned(quantised, scale, x.dtype, int8_head.row_block(rows))
        base = tuning.microseconds(lambda x=x: x @ weight.T, CALLS, 15)
        time = tuning.microseconds(
            lambda x=x, config=config: int8_head.logits(x, quantised, scale, config), CALLS, 15
        )
        table.append(
            {
                "head": "INT8",
                "rows": rows,
                "us": time,
                "of_read_2GiB": quantised.numel() / time / limit,
                "of_read_same_size": same_size / time,
                "bf16_us": base,
                "times_bf16": base / time,
                "config": list(config),
            }
        )
    return table


def packed(pack: Callable[..., Any], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Part by part, as a server does when it loads a head."""
    made = [pack(*parts) for parts in zip(*(t.split(PACK_ROWS) for t in tensors), strict=True)]
    if isinstance(made[0], torch.Tensor):
        return [torch.cat(made)]
    return [torch.cat(parts) for parts in zip(*made, strict=True)]


def fp8_heads(width: int) -> tuple[list[list[Any]], Callable[[int, int], torch.Tensor]]:
    """Copies for the kernel, and rows of the first one's weight."""
    heads = [
        (
            torch.randn(DRAFT_VOCAB, width, device=DEVICE).to(torch.float8_e4m3fn),
            torch.rand(DRAFT_VOCAB // 128, width // 128, device=DEVICE) + 0.1,
        )
        for _ in range(COPIES)
    ]
    weight, scale = heads[0]
    return (
        [[*packed(draft_pack.pack_fp8, weight), scale] for weight, scale in heads],
        lambda start, end: draft_pack.dequantise_fp8(weight[start:end], scale[start // 128 : end // 128]),
    )


def nvfp4_heads(width: int) -> tuple[list[list[Any]], Callable[[int, int], torch.Tensor]]:
    """As `fp8_heads`."""
    scale_2 = torch.tensor([0.01], device=DEVICE)
    heads = [
        (
            torch.randint(0, 256, (DRAFT_VOCAB, width // 2), dtype=torch.uint8, device=DEVICE),
            (torch.rand(DRAFT_VOCAB, width // 16, device=DEVICE) * 448).to(torch.float8_e4m3fn),
        )
        for _ in range(COPIES)
    ]
    weight, scale = heads[0]
    return (
        [[*packed(draft_pack.pack_nvfp4, weight, scale), float(scale_2)] for weight, scale in heads],
        lambda start, end: draft_pack.dequantise_nvfp4(weight[start:end], scale[start:end], scale_2),
    )


def draft_heads(limit: float, width: int) -> list[dict[str, Any]]:
    kinds = (
        ("FP8", DRAFT_VOCAB * width, fp8_heads, draft_head.fp8_logits, draft_head.FP8_CANDIDATES),
        ("NVFP4", DRAFT_VOCAB * width * 9 // 16, nvfp4_heads, draft_head.nvfp4_logits,
         draft_head.NVFP4_CANDIDATES),
    )  # fmt: skip
    table = []
    for name, size, make, call, candidates in kinds:
        copies, restored = make(width)
        same_size = reading(size, COPIES)
        for rows in DRAFT_ROWS:
            x = torch.randn(rows, width, device=DEVICE).bfloat16()

            def all_copies(config: Any, x: Any = x, copies: Any = copies, call: Any = call) -> Any:
                return [call(x, *copy, DRAFT_VOCAB, config) for copy in copies]

            config = tuning.choose(
                draft_head,
                f"draft-{name}-copies",
                (DRAFT_VOCAB, width, rows),
                candidates,
                all_copies,
                DEVICE,
            )
            time = tuning.microseconds(lambda config=config, f=all_copies: f(config), CALLS, 15) / COPIES
            got = call(x, *copies[0], DRAFT_VOCAB, config, torch.float32)
            exact = torch.cat(
                [x.double() @ restored(start, start + 4096).T for start in range(0, DRAFT_VOCAB, 4096)], dim=1
            )
            table.append(
                {
                    "head": f"{name}, width {width}",
                    "rows": rows,
                    "us": time,
                    "of_read_2GiB": size / time / limit,
                    "of_read_same_size": same_size / time,
                    "error": error(got, exact),
                    "config": list(config),
                }
            )
    return table


def structured(count: int, weight: torch.Tensor) -> torch.Tensor:
    """Rows that random ones are not like: eight kinds in turn."""
    width = weight.shape[1]
    base = torch.randn(count, width, device=DEVICE)
    column = torch.arange(width, device=DEVICE)
    for index in range(count):
        kind, row = index % 8, base[index]
        if kind == 0:  # a single column
            row.zero_()[(index * 37) % width] = 3.0
        elif kind == 1:  # one element a thousand times the others
            row[(index * 53) % width] *= 1000
        elif kind == 2:  # a hundredth of the columns
            row *= torch.rand(width, device=DEVICE) < 0.01
        elif kind == 3:  # a row of the weight
            row.copy_(weight[(index * 9973) % weight.shape[0]])
        elif kind == 4:  # over 2⁻¹⁵ … 2¹⁵
            row *= torch.exp2(torch.rand(width, device=DEVICE) * 30 - 15)
        elif kind == 5:  # signs alone
            row.sign_()
        elif kind == 6:  # a wave
            row.copy_(torch.sin(column * (0.001 + index / count)))
        else:  # very small
            row *= 1e-20
    return base.bfloat16()


def agreement(
    x: torch.Tensor, weight: torch.Tensor, quantised: torch.Tensor, scale: torch.Tensor
) -> dict[str, Any]:
    """INT8 against the BF16 weight's float64 products, and against BF16 logits as `x @ W.T` gives them."""
    config = int8_lm_head.tuned(quantised, scale, torch.float32, 64)
    same = same_bf16 = bf16_same = decided = decided_same = 0
    off = size = split = 0.0
    wide = weight.double()
    for part in x.split(256):
        exact = part.double() @ wide.T
        got = int8_head.logits(part.float(), quantised, scale, config)
        off += float((got - exact).square().sum())
        size += float(exact.square().sum())
        top = exact.topk(2, dim=1)
        mine = got.argmax(dim=1)
        hit = mine == top.indices[:, 0]
        same += int(hit.sum())
        rounded = part @ weight.T
        largest = rounded.amax(dim=1)
        bf16_same += int((rounded.argmax(dim=1) == top.indices[:, 0]).sum())
        same_bf16 += int((rounded.gather(1, mine[:, None])[:, 0] == largest).sum())
        # BF16 logits cannot tell tokens apart that are nearer than its step at that size.
        step = torch.exp2(torch.floor(torch.log2(top.values[:, 0].abs())) - 7)
        clear = top.values[:, 0] - top.values[:, 1] > step
        decided += int(clear.sum())
        decided_same += int((hit & clear).sum())
        restored = (
            part[:8].double() @ (quantised.double() * scale.double()[:, None]).T if split == 0 else None
        )
        if restored is not None:
            split = error(got[:8], restored)
    return {
        "rows": len(x),
        "relative_error": (off / size) ** 0.5,
        "error_to_dequantised": split,
        "same_top1_as_exact": same / len(x),
        "bf16_logits_same_top1_as_exact": bf16_same / len(x),
        "same_top1_as_bf16_logits_ties_count": same_bf16 / len(x),
        "rows_decided_beyond_a_bf16_step": decided,
        "same_top1_of_decided": decided_same / max(decided, 1),
    }


def accuracy() -> dict[str, Any]:
    torch.manual_seed(3)
    torch.backends.cuda.matmul.allow_tf32 = False
    weight = (torch.randn(VOCAB, WIDTH, device=DEVICE) * 0.02).bfloat16()
    quantised, scale = int8_lm_head.quantise(weight)
    noise = torch.randn(10_000, WIDTH, device=DEVICE)
    # What a trained model gives: a direction that one token's row shares, and noise. Its logit stands 4 to 12
    # standard deviations above zero, where the best of 248320 tokens by chance stands at 4.7.
    token = torch.randint(0, VOCAB, (10_000,), device=DEVICE)
    towards = weight[token].float()
    strength = torch.rand(10_000, 1, device=DEVICE) * 8 + 4
    pointed = noise + towards / towards.norm(dim=1, keepdim=True) * strength
    odd_vocab = weight[: VOCAB - 101]
    odd = agreement(
        noise[:256].bfloat16(), odd_vocab, *(part[: VOCAB - 101].contiguous() for part in (quantised, scale))
    )
    return {
        "random, no direction": agreement(noise.bfloat16(), weight, quantised, scale),
        "random, towards a token": agreement(pointed.bfloat16(), weight, quantised, scale),
        "structured": agreement(structured(1000, weight), weight, quantised, scale),
        "random, vocabulary 248219": odd,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write all figures there as JSON")
    parser.add_argument("--only", choices=("lm_head", "draft_head", "accuracy"), help="one part alone")
    arguments = parser.parse_args()
    out, only = arguments.out, arguments.only
    torch.manual_seed(1)
    size = 2 << 30
    read = reading(size, 1)
    report: dict[str, Any] = {
        "command": "python benchmarks/gpu/lm_head.py" + (f" --only {only}" if only else ""),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "read_tb_s": size / read / 1e6,
    }
    versions = f"torch {report['torch']}, Triton {report['triton']}"
    print(f"{report['card']}, {versions}: reads {report['read_tb_s']:.2f} TB/s")
    widths = DRAFT_WIDTHS if only in (None, "draft_head") else ()
    report["lm_head"] = lm_head(size / read) if only in (None, "lm_head") else []
    report["draft_head"] = [line for width in widths for line in draft_heads(size / read, width)]
    print("| head | rows | µs | of reading 2 GiB | of reading as much | × BF16 | error | configuration |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in [*report["lm_head"], *report["draft_head"]]:
        against = f"{line['times_bf16']:.2f}" if "times_bf16" in line else "–"
        off = f"{line['error']:.1e}" if "error" in line else "–"
        print(
            f"| {line['head']} | {line['rows']} | {line['us']:.1f} | {line['of_read_2GiB']:.3f} | "
            f"{line['of_read_same_size']:.3f} | {against} | {off} | {line['config']} |"
        )
    report["accuracy"] = accuracy() if only in (None, "accuracy") else {}
    for name, figures in report["accuracy"].items():
        print(f"{name}: {json.dumps(figures)}")
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
