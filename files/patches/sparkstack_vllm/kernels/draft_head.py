"""The drafter's head in FP8 (blocks of 128×128) or NVFP4 (groups of 16): read as stored, exact as computed.

Every FP8 value, and every product of an FP4 value and its FP8 scale, is a BF16 number. So the weight becomes
BF16 in registers, the activation is BF16 already, and sums are float32: the result is the dequantised
weight's.

Both are stored once more at load (`pack_…`), n = two FP8 or four FP4 weights in a 16-bit word, with bits such
that a shift and a mask make each a BF16 number (times a power of two). Word j of a row has the columns
8·n·(j // 8) + 8·k + j % 8, k from 0 to n − 1: neighbouring words hold neighbouring columns, so the
activation is read in pieces of eight as it is, and needs no launch of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # of FP8's scales, both ways
GROUP = 16  # weights of one NVFP4 scale
# A BF16 number is 16 bits: sign, 8 of exponent, 7 of fraction. Scales of NVFP4 are kept as 5 bits of exponent
# and 3 of fraction, counted from the exponent field 232, which stands for 2⁻¹³ · 2¹¹⁸.
SCALE_BASE = 232 << 7


class Config(NamedTuple):
    vocab: int  # rows of the weight a program, 64 or 128
    width: int  # 16-bit words a step; FP8: 64, one block of scales
    warps: int
    stages: int


FP8_CANDIDATES = (
    Config(64, 64, 4, 3),
    Config(64, 64, 4, 5),
    Config(64, 64, 4, 6),
    Config(128, 64, 4, 3),
    Config(128, 64, 8, 3),
    Config(128, 64, 8, 5),
)
NVFP4_CANDIDATES = (
    Config(64, 64, 4, 3),
    Config(64, 64, 4, 2),
    Config(64, 32, 4, 5),
    Config(128, 64, 4, 2),
    Config(128, 64, 4, 3),
    Config(128, 64, 8, 3),
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
            shr.b32 t1, $2, 4;
            shl.b32 t2, $2, 4;
            shl.b32 t3, $2, 12;
            and.b32 t1, t1, 0x07800780;
            lop3.b32 t1, t2, 0x00700070, t1, 0xEA;
            lop3.b32 t1, t3, 0x80008000, t1, 0xEA;
            mul.bf16x2 $1, t1, up;
            }""",
            "=r,=r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32)
        a = _bf16(w & 0x87F0) * 1.329227995784916e36
        b = _bf16((w << 12) & 0x8000 | (w >> 4) & 0x0780 | (w << 4) & 0x0070) * 1.329227995784916e36
    return a, b


@triton.jit
def _unpack_nvfp4(words, scale_0, scale_1, ASM: tl.constexpr):
    """16-bit words and the bytes of their two scales → the four weights of each, times scale and 2⁻⁸."""
    if ASM:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 t<6>, s<2>;
            mad.lo.u32 s0, $5, 0x00100010, 0x74007400;
            mad.lo.u32 s1, $7, 0x00100010, 0x74007400;
            and.b32 t0, $4, 0x81C081C0;
            mul.bf16x2 $0, t0, s0;
            shl.b32 t1, $4, 3;
            and.b32 t1, t1, 0x81C081C0;
            mul.bf16x2 $1, t1, s0;
            shl.b32 t2, $4, 6;
            shl.b32 t3, $4, 1;
            and.b32 t2, t2, 0x01C001C0;
            lop3.b32 t2, t3, 0x80008000, t2, 0xEA;
            mul.bf16x2 $2, t2, s1;
            shr.b32 t4, $4, 3;
            shl.b32 t5, $4, 2;
            and.b32 t4, t4, 0x01C001C0;
            lop3.b32 t4, t5, 0x80008000, t4, 0xEA;
            mul.bf16x2 $3, t4, s1;
            }""",
            "=r,=r,=r,=r,r,r,r,r,r",
            [words, scale_0, scale_1],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32)
        s0 = _bf16(scale_0 * 16 + 0x7400)
        s1 = _bf16(scale_1 * 16 + 0x7400)
        a = _bf16(w & 0x81C0) * s0
        b = _bf16((w << 3) & 0x81C0) * s0
        c = _bf16((w << 1) & 0x8000 | (w << 6) & 0x01C0) * s1
        d = _bf16((w << 2) & 0x8000 | (w >> 3) & 0x01C0) * s1
    return a, b, c, d


@triton.jit
def _store(sums, out, vocab, row, vocab_size, rows):
    place = out + row[None, :].to(tl.int64) * vocab_size + vocab[:, None]
    mask = (vocab < vocab_size)[:, None] & (row < rows)[None, :]
    tl.store(place, sums.to(out.dtype.element_ty), mask=mask)


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
    ASM: tl.constexpr,
):
    first = tl.program_id(1) * VOCAB
    vocab = first + tl.arange(0, VOCAB)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    line = tl.minimum(vocab, vocab_size - 1).to(tl.int64) * (WIDTH // 2)
    blocks: tl.constexpr = WIDTH // 128
    scales = scale + (first // 128) * blocks
    # The first weight of word j is of column 16 · (j // 8) + j % 8, the second of the eighth after it.
    j = tl.arange(0, 64)
    real = (row < rows)[None, :]
    at = x + row[None, :] * WIDTH + (j // 8 * 16 + j % 8)[:, None]
    sums = tl.zeros((VOCAB, ROWS), dtype=tl.float32)
    for block in range(0, blocks):
        word = tl.load(
            words + line[:, None] + (block * 64 + tl.arange(0, 64))[None, :], eviction_policy="evict_first"
        )
        a, b = _unpack_fp8(word, ASM)
        if ASM:
            part = tl.dot(a, tl.load(at + block * 128, mask=real, other=0.0), out_dtype=tl.float32)
            part = tl.dot(b, tl.load(at + block * 128 + 8, mask=real, other=0.0), part)
        else:
            first_act = tl.load(at + block * 128, mask=real, other=0.0).to(tl.float32)
            second_act = tl.load(at + block * 128 + 8, mask=real, other=0.0).to(tl.float32)
            part = tl.dot(a, first_act, input_precision="ieee") + tl.dot(
                b, second_act, input_precision="ieee"
            )
        sums += part * tl.load(scales + block)
    _store(sums, out, vocab, row, vocab_size, rows)


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
    wide: tl.constexpr = WIDTH // 4
    vocab = tl.program_id(1) * VOCAB + tl.arange(0, VOCAB)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    line = tl.minimum(vocab, vocab_size - 1).to(tl.int64)
    # The first weight of word j is of column 32 · (j // 8) + j % 8, each other of the eighth after it.
    j = tl.arange(0, STEP)
    real = (row < rows)[None, :]
    act_at = x + row[None, :] * WIDTH + (j // 8 * 32 + j % 8)[:, None]
    sums = tl.zeros((VOCAB, ROWS), dtype=tl.float32)
    for start in range(0, wide, STEP):
        at = start + tl.arange(0, STEP)
        group = start // 4 + tl.arange(0, STEP // 4)
        word = tl.load(words + (line * wide)[:, None] + at[None, :], eviction_policy="evict_first")
        small = tl.load(scale + (line * (wide // 4))[:, None] + group[None, :])
        s0, s1 = tl.split(tl.reshape(small.to(tl.int32), (VOCAB, STEP // 8, 2)))
        s0 = tl.reshape(tl.broadcast_to(s0[:, :, None], (VOCAB, STEP // 8, 8)), (VOCAB, STEP))
        s1 = tl.reshape(tl.broadcast_to(s1[:, :, None], (VOCAB, STEP // 8, 8)), (VOCAB, STEP))
        a, b, c, d = _unpack_nvfp4(word, s0, s1, ASM)
        if ASM:
            sums = tl.dot(a, tl.load(act_at + start * 4, mask=real, other=0.0), sums)
            sums = tl.dot(b, tl.load(act_at + start * 4 + 8, mask=real, other=0.0), sums)
            sums = tl.dot(c, tl.load(act_at + start * 4 + 16, mask=real, other=0.0), sums)
            sums = tl.dot(d, tl.load(act_at + start * 4 + 24, mask=real, other=0.0), sums)
        else:
            x0 = tl.load(act_at + start * 4, mask=real, other=0.0).to(tl.float32)
            x1 = tl.load(act_at + start * 4 + 8, mask=real, other=0.0).to(tl.float32)
            x2 = tl.load(act_at + start * 4 + 16, mask=real, other=0.0).to(tl.float32)
            x3 = tl.load(act_at + start * 4 + 24, mask=real, other=0.0).to(tl.float32)
            sums = tl.dot(a, x0, sums, input_precision="ieee")
            sums = tl.dot(b, x1, sums, input_precision="ieee")
            sums = tl.dot(c, x2, sums, input_precision="ieee")
            sums = tl.dot(d, x3, sums, input_precision="ieee")
    _store(sums * (tl.load(scale_2) * 256.0), out, vocab, row, vocab_size, rows)


def row_block(rows: int) -> int:
    """Rows that one program takes: 8, 16, 32 or 64."""
    return min(max(8, triton.next_power_of_2(rows)), 64)


def _launch(x: Tensor, vocab_size: int, config: Config) -> tuple[Tensor, int, tuple[int, int]]:
    if x.dtype != torch.bfloat16:
        raise TypeError(f"draft head: found activations of {x.dtype}; wanted torch.bfloat16")
    block = row_block(x.shape[0])
    return x.contiguous(), block, (triton.cdiv(x.shape[0], block), triton.cdiv(vocab_size, config.vocab))


def fp8_logits(
    x: Tensor, words: Tensor, scale: Tensor, config: Config, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """x BF16 [rows, width] → [rows, vocab]. words of `pack_fp8`, scale float32 [vocab/128, width/128], both
    rounded up. The width must be a multiple of 128."""
    rows, width = x.shape
    out = torch.empty(rows, words.shape[0], dtype=dtype, device=x.device)
    if rows == 0:
        return out
    x, block, grid = _launch(x, words.shape[0], config)
    _fp8_head[grid](
        words,
        scale,
        x,
        out,
        words.shape[0],
        rows,
        WIDTH=width,
        VOCAB=config.vocab,
        ROWS=block,
        ASM=x.is_cuda,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def nvfp4_logits(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    scale_2: Tensor,
    config: Config,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """x BF16 [rows, width] → [rows, vocab]. words and scale of `pack_nvfp4`, scale_2 float32, one element.
    The width must be a multiple of 4 · config.width."""
    rows, width = x.shape
    out = torch.empty(rows, words.shape[0], dtype=dtype, device=x.device)
    if rows == 0:
        return out
    x, block, grid = _launch(x, words.shape[0], config)
    _nvfp4_head[grid](
        words,
        scale,
        scale_2,
        x,
        out,
        words.shape[0],
        rows,
        WIDTH=width,
        VOCAB=config.vocab,
        STEP=config.width,
        ROWS=block,
        ASM=x.is_cuda,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def _as_int16(word: Tensor) -> Tensor:
    return torch.where(word >= 1 << 15, word - (1 << 16), word).to(torch.int16)


def pack_fp8(weight: Tensor) -> Tensor:
    """FP8 E4M3 [vocab, width] → INT16 [vocab, width/2]."""
    byte = weight.view(torch.uint8).to(torch.int32).reshape(weight.shape[0], -1, 2, 8)
    first, second = byte[:, :, 0], byte[:, :, 1]
    word = (first >> 7) << 15 | (first & 127) << 4
    word |= ((second >> 3) & 15) << 11 | (second >> 7) << 3 | (second & 7)
    return _as_int16(word).reshape(weight.shape[0], -1)


def pack_nvfp4(published: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """As published (uint8 [vocab, width/2], even columns in the low half; scale FP8 E4M3 [vocab, width/16])
    → words INT16 [vocab, width/4] and scales uint8 [vocab, width/16].

    The scales' new form has no zero, so weights of a group whose scale is zero become zero instead.
    Errors: ValueError for a negative scale or one that is not a number.
    """
    value = scale.float()
    if not bool((value >= 0).all()):
        raise ValueError("draft head: found an NVFP4 scale below zero or NaN; wanted none")
    byte = published.to(torch.int32)
    nibble = torch.stack((byte & 15, byte >> 4), dim=-1).reshape(byte.shape[0], -1)
    nibble = torch.where(value.repeat_interleave(GROUP, dim=1) == 0, torch.zeros_like(nibble), nibble)
    nibble = nibble.reshape(byte.shape[0], -1, 4, 8)
    sign, rest = nibble >> 3, nibble & 7
    word = rest[:, :, 0] << 6 | rest[:, :, 1] << 3 | rest[:, :, 2] | rest[:, :, 3] << 9
    word |= sign[:, :, 0] << 15 | sign[:, :, 1] << 12 | sign[:, :, 2] << 14 | sign[:, :, 3] << 13
    bits = (value * 2.0**118).view(torch.int32) >> 16
    small = torch.where(value > 0, (bits - SCALE_BASE) >> 4, torch.zeros_like(bits))
    return _as_int16(word).reshape(byte.shape[0], -1), small.to(torch.uint8)


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise_nvfp4(published: Tensor, scale: Tensor, scale_2: Tensor) -> Tensor:
    """The weight that NVFP4 stands for, float64 [vocab, width]: what the kernel is compared with."""
    byte = published.to(torch.int64)
    nibble = torch.stack((byte & 15, byte >> 4), dim=-1).reshape(byte.shape[0], -1)
    table = torch.tensor(FP4, dtype=torch.float64, device=published.device)
    value = table[nibble & 7] * torch.where(nibble >> 3 == 1, -1.0, 1.0)
    return value * scale.double().repeat_interleave(GROUP, dim=1) * scale_2.double()


def dequantise_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """The weight that FP8 with block scales stands for, float64 [vocab, width]."""
    spread = scale.double().repeat_interleave(BLOCK, dim=0).repeat_interleave(BLOCK, dim=1)
    return weight.double() * spread[: weight.shape[0], : weight.shape[1]]
