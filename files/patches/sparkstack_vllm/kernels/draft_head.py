"""The drafter's head in FP8 (blocks of 128×128) or NVFP4 (groups of 16): read as stored, exact as computed.

Every FP8 value, and every product of an FP4 value and its FP8 scale, is a BF16 number. So the weight becomes
BF16 in registers, the activation is BF16 already, and sums are float32: the result is the dequantised
weight's.

They are read in the order in which `draft_pack.py` stored them at load.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkstack_vllm.kernels import draft_pack

TILE = tl.constexpr(draft_pack.TILE)


class Config(NamedTuple):
    vocab: int  # rows of the weight a program: 64 or 128, for NVFP4 256 too
    warps: int
    stages: int
    joined: bool = False  # FP8: one product of 128 columns a step, and not two of 64


# At best all programs are on the card at once: where a few must start late, a head that could be read in
# 30 µs takes up to a third longer. How many fit depends on the card and on the number of activations.
#
# `joined` is right for Hopper's matrix instructions from 16 activations on (18 of them: 45 µs instead of 63);
# where the compiler takes the older ones it costs a way through shared memory.
FP8_CANDIDATES = (
    Config(128, 4, 3),
    Config(64, 4, 2),
    Config(128, 8, 3),
    Config(128, 8, 4),
    Config(128, 4, 3, True),
    Config(64, 4, 4, True),
    Config(128, 8, 4, True),
)
NVFP4_CANDIDATES = (
    Config(64, 2, 3),
    Config(128, 2, 3),
    Config(128, 4, 3),
    Config(256, 4, 3),
    Config(256, 4, 4),
)


@triton.jit
def _bf16(bits):
    """The BF16 number of 16 bits, as float32."""
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _unpack_fp8(words, ASM: tl.constexpr):
    """16-bit words → the two weights of each: 2⁻¹²⁰ of them as bits, then exactly themselves."""
    if ASM:
        a, b = tl.inline_asm_elementwise(
            """{
            .reg .b32 t<4>, up;
            mov.b32 up, 0x7B807B80;
            and.b32 t0, $2, 0x87F087F0;
            mul.bf16x2 $0, t0, up;
            prmt.b32 t1, $2, 0, 0x2301;
            shl.b32 t2, t1, 4;
            and.b32 t3, t1, 0x07700770;
            lop3.b32 t3, t2, 0x80808080, t3, 0xEA;
            mul.bf16x2 $1, t3, up;
            }""",
            "=r,=r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32)
        swapped = (w & 0xFF) << 8 | (w >> 8) & 0xFF
        a = _bf16(w & 0x87F0) * 1.329227995784916e36
        b = _bf16(swapped & 0x0770 | (swapped << 4) & 0x8080) * 1.329227995784916e36
    return a, b


@triton.jit
def _nvfp4_scales(packed, ASM: tl.constexpr):
    """Four scales in 32 bits → two BF16 numbers each in two words: the first and third, second and fourth."""
    if ASM:
        even, odd = tl.inline_asm_elementwise(
            """{
            .reg .b32 t, mask, base;
            mov.b32 mask, 0x0FF00FF0;
            mov.b32 base, 0x70007000;
            lop3.b32 $0, $2, mask, base, 0xEA;
            prmt.b32 t, $2, 0, 0x2301;
            lop3.b32 $1, t, mask, base, 0xEA;
            }""",
            "=r,=r,r",
            [packed],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        swapped = (packed & 0x00FF00FF) << 8 | (packed >> 8) & 0x00FF00FF
        even = packed & 0x0FF00FF0 | 0x70007000
        odd = swapped & 0x0FF00FF0 | 0x70007000
    return even, odd


@triton.jit
def _unpack_nvfp4(words, even, odd, ASM: tl.constexpr):
    """16-bit words and their scales → the four weights of each, times scale and 2⁻²⁰."""
    if ASM:
        # A scale's two copies cost nothing: the multiplication can take one half of a register for both.
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 t<5>, s<4>;
            .reg .b16 low, high;
            mov.b32 {low, high}, $5;
            mov.b32 s0, {low, low};
            mov.b32 s2, {high, high};
            mov.b32 {low, high}, $7;
            mov.b32 s1, {low, low};
            mov.b32 s3, {high, high};
            prmt.b32 t0, $4, 0, 0x2301;
            shl.b32 t1, $4, 6;
            and.b32 t1, t1, 0x81C081C0;
            mul.bf16x2 $0, t1, s0;
            shl.b32 t2, t0, 4;
            and.b32 t2, t2, 0x81C081C0;
            mul.bf16x2 $1, t2, s1;
            shl.b32 t3, $4, 2;
            and.b32 t3, t3, 0x81C081C0;
            mul.bf16x2 $2, t3, s2;
            and.b32 t4, $4, 0x81808180;
            lop3.b32 t4, t0, 0x00400040, t4, 0xEA;
            mul.bf16x2 $3, t4, s3;
            }""",
            "=r,=r,=r,=r,r,r,r,r,r",
            [words, even, odd],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32)
        swapped = (w & 0xFF) << 8 | (w >> 8) & 0xFF
        a = _bf16((w << 6) & 0x81C0) * _bf16(even)
        b = _bf16((swapped << 4) & 0x81C0) * _bf16(odd)
        c = _bf16((w << 2) & 0x81C0) * _bf16(even >> 16)
        d = _bf16(w & 0x8180 | swapped & 0x0040) * _bf16(odd >> 16)
    return a, b, c, d


@triton.jit
def _dot(weight, act, sums, ASM: tl.constexpr):
    if ASM:
        return tl.dot(weight, act, sums)
    else:
        return tl.dot(weight, act.to(tl.float32), sums, input_precision="ieee")


@triton.jit
def _store(sums, out, vocab, row, vocab_size, rows):
    place = out + row[None, :].to(tl.int64) * vocab_size + vocab[:, None]
    mask = (vocab < vocab_size)[:, None] & (row < rows)[None, :]
    tl.store(place, sums.to(out.dtype.element_ty), mask=mask)


# Columns in the order of the activation's, which is then read in whole lines and multiplied at once. The
# packed forms are such that matrix instructions want each weight from the thread that unpacked it: nothing
# moves.


@triton.jit
def _joined_fp8(a, b, VOCAB: tl.constexpr):
    """Two weights of 64 words each → those of 128 columns."""
    both = tl.reshape(tl.join(a, b), (VOCAB, 8, 8, 2))
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (VOCAB, 128))


@triton.jit
def _joined_nvfp4(a, b, c, d, VOCAB: tl.constexpr, STEP: tl.constexpr):
    """Four weights of STEP words each → those of 4 · STEP columns."""
    four = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (VOCAB, STEP // 16, 16, 4))
    return tl.reshape(tl.permute(four, (0, 1, 3, 2)), (VOCAB, 4 * STEP))


@triton.jit(do_not_specialize=["rows"])
def _fp8_head(
    words,
    scale,
    x,
    out,
    vocab_size,
    rows,
    WIDTH: tl.constexpr,
    VOCAB: tl.constexpr,
    ROWS: tl.constexpr,
    JOINED: tl.constexpr,
    ASM: tl.constexpr,
):
    blocks: tl.constexpr = WIDTH // 128
    first = tl.program_id(1) * VOCAB
    line = tl.arange(0, VOCAB)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, 64)
    start = (first // TILE).to(tl.int64) * (TILE * 64 * blocks) + first % TILE * 64
    word_at = words + start + (line * 64)[:, None] + j[None, :]
    scales = scale + (first // 128) * blocks
    if JOINED:
        act_at = x + row[None, :] * WIDTH + tl.arange(0, 128)[:, None]
    else:
        act_at = x + row[None, :] * WIDTH + (j // 8 * 16 + j % 8)[:, None]
    real = (row < rows)[None, :]
    sums = tl.zeros((VOCAB, ROWS), dtype=tl.float32)
    for turn in range(0, blocks):
        # Programs begin at different columns: else all of them want the same activations at the same time.
        # With more than 16 of them it was measured to be a little worse.
        block = (turn + tl.program_id(1)) % blocks if ROWS <= 16 else turn
        # First of all: it is wanted last, and nothing else hides the wait for it.
        factor = tl.load(scales + block)
        word = tl.load(word_at + block * (TILE * 64), eviction_policy="evict_first")
        a, b = _unpack_fp8(word, ASM)
        part = tl.zeros((VOCAB, ROWS), dtype=tl.float32)
        if JOINED:
            weight = _joined_fp8(a, b, VOCAB)
            part = _dot(weight, tl.load(act_at + block * 128, mask=real, other=0.0), part, ASM)
        else:
            part = _dot(a, tl.load(act_at + block * 128, mask=real, other=0.0), part, ASM)
            part = _dot(b, tl.load(act_at + block * 128 + 8, mask=real, other=0.0), part, ASM)
        sums += part * factor
    _store(sums, out, first + line, row, vocab_size, rows)


@triton.jit
def _spread(of_group, VOCAB: tl.constexpr, STEP: tl.constexpr):
    wide = tl.broadcast_to(of_group[:, :, None], (VOCAB, STEP // 16, 16))
    return tl.reshape(wide, (VOCAB, STEP))


@triton.jit(do_not_specialize=["rows"])
def _nvfp4_head(
    words,
    scale,
    scale_2,
    x,
    out,
    vocab_size,
    rows,
    WIDTH: tl.constexpr,
    VOCAB: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    ASM: tl.constexpr,
):
    steps: tl.constexpr = WIDTH // (4 * STEP)
    first = tl.program_id(1) * VOCAB
    line = tl.arange(0, VOCAB)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    groups: tl.constexpr = STEP // 16
    tile, inside = (first // TILE).to(tl.int64) * (TILE * steps), first % TILE
    word_at = words + (tile + inside) * STEP + (line * STEP)[:, None] + tl.arange(0, STEP)[None, :]
    scale_at = scale + (tile + inside) * groups + (line * groups)[:, None] + tl.arange(0, groups)[None, :]
    act_at = x + row[None, :] * WIDTH + tl.arange(0, 4 * STEP)[:, None]
    real = (row < rows)[None, :]
    sums = tl.zeros((VOCAB, ROWS), dtype=tl.float32)
    for turn in range(0, steps):
        step = (turn + tl.program_id(1)) % steps
        word = tl.load(word_at + step * (TILE * STEP), eviction_policy="evict_first")
        small = tl.load(scale_at + step * (TILE * groups), eviction_policy="evict_first")
        even, odd = _nvfp4_scales(small, ASM)
        a, b, c, d = _unpack_nvfp4(word, _spread(even, VOCAB, STEP), _spread(odd, VOCAB, STEP), ASM)
        weight = _joined_nvfp4(a, b, c, d, VOCAB, STEP)
        sums = _dot(weight, tl.load(act_at + step * (4 * STEP), mask=real, other=0.0), sums, ASM)
    _store(sums * (scale_2 * 1048576.0), out, first + line, row, vocab_size, rows)


def row_block(rows: int) -> int:
    """Rows that one program takes: 8, 16, 32 or 64."""
    return min(max(8, triton.next_power_of_2(rows)), 64)


@cache
def _has_asm(device: torch.device) -> bool:
    """Whether the inline instructions run there: BF16 ones came with compute capability 9.0."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _launch(x: Tensor, count: int, config: Config) -> tuple[Tensor, int, tuple[int, int]]:
    if x.dtype != torch.bfloat16:
        raise TypeError(f"draft head: found activations of {x.dtype}; wanted torch.bfloat16")
    if x.shape[1] % draft_pack.COLUMNS:
        raise ValueError(
            f"draft head: found a width of {x.shape[1]}; wanted a multiple of {draft_pack.COLUMNS}"
        )
    block = row_block(x.shape[0])
    return x.contiguous(), block, (triton.cdiv(x.shape[0], block), triton.cdiv(count, config.vocab))


def fp8_logits(
    x: Tensor, words: Tensor, scale: Tensor, count: int, config: Config, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """x BF16 [rows, width] → [rows, count]. words of `pack_fp8` of count rows, scale float32
    [count/128, width/128], both rounded up. The width must be a multiple of 128."""
    rows, width = x.shape
    out = torch.empty(rows, count, dtype=dtype, device=x.device)
    if rows == 0:
        return out
    x, block, grid = _launch(x, count, config)
    _fp8_head[grid](
        words,
        scale,
        x,
        out,
        count,
        rows,
        WIDTH=width,
        VOCAB=config.vocab,
        ROWS=block,
        JOINED=config.joined,
        ASM=_has_asm(x.device),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def nvfp4_logits(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    scale_2: float,
    count: int,
    config: Config,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """x BF16 [rows, width] → [rows, count]. words and scale of `pack_nvfp4` of count rows, scale_2 a
    float32 number: not a tensor, or every program would wait for it. The width must be a multiple of 128."""
    rows, width = x.shape
    out = torch.empty(rows, count, dtype=dtype, device=x.device)
    if rows == 0:
        return out
    x, block, grid = _launch(x, count, config)
    _nvfp4_head[grid](
        words,
        scale,
        scale_2,
        x,
        out,
        count,
        rows,
        WIDTH=width,
        VOCAB=config.vocab,
        STEP=draft_pack.NVFP4_STEP,
        ROWS=block,
        ASM=_has_asm(x.device),
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out
