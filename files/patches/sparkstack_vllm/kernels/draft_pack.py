"""How the draft head's weights lie in memory for its kernels, and what they stand for.

FP8 and NVFP4 weights are stored once more when they are loaded:

- A 16-bit word has two FP8 or four FP4 weights, its bits so that few instructions make each weight a BF16
  number (times a power of two). They work on two words at a time, a word in each half of a register.
- The words of 256 rows (a tile) and 64 or 32 words of each (a step) lie together, as do their scales, in the
  order in which a program reads them. Reading rows where they are costs a tenth of the time.
- Of an NVFP4 row, word j of a step has the columns 64 · (j // 16) + 16 · f + j % 16, f from 0 to 3: the four
  weights of a word are of four groups, and all words of 64 columns of the same four. So their scales are one
  32-bit number, from which each becomes BF16 once for 16 words, and the activation is read as it is. Its bits
  are so that two scales are in their places at once, and the other two with its bytes exchanged.
- Of an FP8 row, word j has the columns 16 · (j // 8) + j % 8 and the eighth after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128  # of FP8's scales, both ways
GROUP = 16  # weights of one NVFP4 scale
TILE = 256  # rows that are stored together, the most of a program; packing fills up to it with zeros
FP8_STEP = 64  # words, one block of scales
NVFP4_STEP = 32  # words, eight groups
COLUMNS = 128  # of a step, in both; a width must be a multiple of it
# A BF16 number is 16 bits: sign, 8 of exponent, 7 of fraction. Scales of NVFP4 are kept as 5 bits of exponent
# and 3 of fraction, counted from the exponent field 224, which stands for 2⁻⁹ · 2¹⁰⁶.
SCALE_BASE = 224 << 7


def _as_int16(word: Tensor) -> Tensor:
    return torch.where(word >= 1 << 15, word - (1 << 16), word).to(torch.int16)


def _filled_up(rows: Tensor) -> Tensor:
    missing = -rows.shape[0] % TILE
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def _in_tiles(rows: Tensor, step: int) -> Tensor:
    """[vocab, width] → the same numbers by 256 rows, `step` columns, row, column; the shape is kept."""
    parts = rows.reshape(rows.shape[0] // TILE, TILE, -1, step)
    return parts.transpose(1, 2).reshape(rows.shape)


def pack_fp8(weight: Tensor) -> Tensor:
    """FP8 E4M3 [vocab, width] → INT16 [vocab rounded up to 256, width/2]. Parts of a weight can be packed one
    by one and joined, if all but the last have a multiple of 256 rows."""
    byte = _filled_up(weight.view(torch.uint8)).to(torch.int32)
    vocab = byte.shape[0]
    byte = byte.reshape(vocab, -1, 2, 8)
    first, second = byte[:, :, 0], byte[:, :, 1]
    word = (first >> 7) << 15 | (first & 127) << 4
    # Exponent E3 E2 E1 E0 and fraction F of the second: F at bits 12 to 14, E0 at 11, the sign at 3, E3…E1 at
    # 0 to 2. With the word's bytes exchanged, all but E0 and the sign are in their place, and these two are
    # four bits below theirs.
    word |= (second & 7) << 12 | (second >> 4) & 7 | ((second >> 3) & 1) << 11 | (second >> 7) << 3
    return _in_tiles(_as_int16(word).reshape(vocab, -1), FP8_STEP)


def pack_nvfp4(published: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """As published (uint8 [vocab, width/2], even columns in the low half; scale FP8 E4M3 [vocab, width/16])
    → words INT16 [vocab, width/4] and scales INT32 [vocab, width/64], the vocabulary rounded up to 256. Parts
    can be packed one by one, as by `pack_fp8`.

    The scales' new form has no zero, so weights of a group whose scale is zero become zero instead.
    Errors: ValueError for a negative scale or one that is not a number.
    """
    value = _filled_up(scale.float())
    if not bool((value >= 0).all()):
        raise ValueError("draft head: found an NVFP4 scale below zero or NaN; wanted none")
    byte = _filled_up(published).to(torch.int32)
    vocab = byte.shape[0]
    nibble = torch.stack((byte & 15, byte >> 4), dim=-1).reshape(vocab, -1)
    nibble = torch.where(value.repeat_interleave(GROUP, dim=1) == 0, torch.zeros_like(nibble), nibble)
    nibble = nibble.reshape(vocab, -1, 4, GROUP)
    sign, rest = nibble >> 3, nibble & 7
    word = rest[:, :, 0] | rest[:, :, 1] << 10 | rest[:, :, 2] << 4
    word |= (rest[:, :, 3] >> 1) << 7 | (rest[:, :, 3] & 1) << 14
    word |= sign[:, :, 0] << 9 | sign[:, :, 1] << 3 | sign[:, :, 2] << 13 | sign[:, :, 3] << 15
    bits = (value * 2.0**106).view(torch.int32) >> 16
    small = torch.where(value > 0, (bits - SCALE_BASE) >> 4, torch.zeros_like(bits)).reshape(vocab, -1, 2, 2)
    first, second = small[..., 0], small[..., 1]
    pair = _as_int16(first << 4 | second >> 4 | (second & 15) << 12)
    words = _in_tiles(_as_int16(word).reshape(vocab, -1), NVFP4_STEP)
    return words, _in_tiles(pair.reshape(vocab, -1).view(torch.int32), NVFP4_STEP // 16)


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
