"""INT8 weight × BF16 activation without turning the weight into BF16.

Converting the weight costs more than reading it (on an H200: 239 µs, against 170 µs for reading 248320×3072),
so it goes to the tensor cores as it is. The activation is converted instead, once: with s = absmax / 16256,

    q = round(x / s) = 128 · high + low,   high in −127…127,   low in −64…63

so a row becomes two INT8 rows, wrong by at most 1/32512 of its largest element; BF16's own step is 1/256.
`dot(W, high)` and `dot(W, low)` are exact in INT32 up to a width of 130000 and meet in float32: the logits of
a row are the same bits whatever else is in the batch and however the launch is cut.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_WIDTH = 130_000  # 127 · 127 · width stays below 2³¹


class Config(NamedTuple):
    """How one launch is cut: `vocab` rows of the weight a program, `width` columns a step."""

    vocab: int
    width: int
    warps: int
    stages: int


# What was among the best on an H200 for some number of rows, and smaller ones for cards whose multiprocessors
# have less shared memory (GB10: 99 KiB a program). `tuning` drops what does not fit.
CANDIDATES = (
    Config(64, 128, 4, 3),
    Config(64, 256, 4, 4),
    Config(64, 128, 4, 6),
    Config(64, 256, 4, 2),
    Config(128, 128, 4, 4),
    Config(128, 128, 8, 4),
    Config(128, 128, 4, 3),
    Config(128, 256, 8, 3),
    Config(128, 64, 4, 4),
    Config(64, 64, 4, 4),
)


@triton.jit
def _split_rows(x, high_low, scale, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row of x: its scale, and its two INT8 rows, one after the other."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(value), axis=0)
    step = tl.where(largest > 0, largest / 16256.0, 1.0)
    whole = value / step
    whole = tl.where(whole >= 0, whole + 0.5, whole - 0.5).to(tl.int32)
    # The shift is a floor; 64 more makes it the nearest, so that `low` fits.
    high = (whole + 64) >> 7
    low = whole - (high << 7)
    out = high_low + row * 2 * WIDTH + column
    tl.store(out, high.to(tl.int8), mask=inside)
    tl.store(out + WIDTH, low.to(tl.int8), mask=inside)
    # The maximum and the integers know no NaN: a row that has one is NaN as a whole, as in BF16.
    broken = tl.sum((value != value).to(tl.int32), axis=0) > 0
    tl.store(scale + row, tl.where(broken, float("nan"), step))


@triton.jit(do_not_specialize=["rows"])
def _head(
    weight,
    weight_scale,
    high_low,
    x_scale,
    bias,
    out,
    vocab_size,
    rows,
    WIDTH: tl.constexpr,
    VOCAB: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Logits of ROWS rows for VOCAB tokens. Blocks of rows vary fastest, so that they share the weight."""
    row_block = tl.program_id(0)
    vocab = tl.program_id(1) * VOCAB + tl.arange(0, VOCAB)
    known = vocab < vocab_size
    pair = row_block * 2 * ROWS + tl.arange(0, 2 * ROWS)
    step = tl.arange(0, STEP)
    # Past the end of the vocabulary its last row is read again and not stored: no mask in the weight's way.
    line = tl.minimum(vocab, vocab_size - 1).to(tl.int64) * WIDTH
    sums = tl.zeros((VOCAB, 2 * ROWS), dtype=tl.int32)
    for start in range(0, WIDTH, STEP):
        column = start + step
        at = weight + line[:, None] + column[None, :]
        if WIDTH % STEP == 0:
            block = tl.load(at, eviction_policy="evict_first")
        else:
            block = tl.load(at, mask=column[None, :] < WIDTH, other=0, eviction_policy="evict_first")
        # The mask matters: rows of padding that are fetched for nothing cost a fifth at 18 rows.
        act = tl.load(
            high_low + pair[None, :] * WIDTH + column[:, None],
            mask=(pair < 2 * rows)[None, :] & (column < WIDTH)[:, None],
            other=0,
            eviction_policy="evict_last",
        )
        sums = tl.dot(block, act, sums, out_dtype=tl.int32)
    high, low = tl.split(tl.reshape(sums, (VOCAB, ROWS, 2)))
    row = row_block * ROWS + tl.arange(0, ROWS)
    present = row < rows
    result = high.to(tl.float32) * 128.0 + low.to(tl.float32)
    result *= tl.load(weight_scale + vocab, mask=known, other=0.0)[:, None]
    result *= tl.load(x_scale + row, mask=present, other=0.0)[None, :]
    if HAS_BIAS:
        result += tl.load(bias + vocab, mask=known, other=0.0).to(tl.float32)[:, None]
    place = out + row[None, :].to(tl.int64) * vocab_size + vocab[:, None]
    tl.store(place, result.to(out.dtype.element_ty), mask=known[:, None] & present[None, :])


# Numbers of rows that have a launch of their own; more rows are cut into blocks of the last.
ROW_BLOCKS = (8, 16, 32, 64)


def row_block(rows: int) -> int:
    """Rows that one program takes."""
    return next((block for block in ROW_BLOCKS if rows <= block), ROW_BLOCKS[-1])


def logits(
    x: Tensor, weight: Tensor, weight_scale: Tensor, config: Config, bias: Tensor | None = None
) -> Tensor:
    """x [rows, width] → [rows, vocab] in x's type. weight INT8 [vocab, width], weight_scale float32 [vocab].

    Two launches whatever the number of rows. Nothing waits for the device, so it can be captured in a graph.
    """
    rows, width = x.shape
    vocab_size = weight.shape[0]
    out = torch.empty(rows, vocab_size, dtype=x.dtype, device=x.device)
    if rows == 0 or vocab_size == 0:
        return out
    high_low = torch.empty(2 * rows, width, dtype=torch.int8, device=x.device)
    x_scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if x.stride(1) != 1:
        x = x.contiguous()
    _split_rows[(rows,)](
        x, high_low, x_scale, x.stride(0), WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=4
    )
    block = row_block(rows)
    _head[(triton.cdiv(rows, block), triton.cdiv(vocab_size, config.vocab))](
        weight,
        weight_scale,
        high_low,
        x_scale,
        weight_scale if bias is None else bias,
        out,
        vocab_size,
        rows,
        WIDTH=width,
        VOCAB=config.vocab,
        STEP=config.width,
        ROWS=block,
        HAS_BIAS=bias is not None,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out
