"""Sizes and durations as people write and read them."""

from __future__ import annotations

import re

GIB = 1024**3
_FACTORS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes of "4GB" (decimal), "4GiB" (binary) or "4000"; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _FACTORS:
        raise ValueError(f"{text!r} is no size such as 4GB or 4GiB")
    factor = _FACTORS[match[2].upper()]
    # Whole numbers stay whole: a float has no room for every byte of a large size.
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def bytes_text(count: float) -> str:
    """123 B, 4.2 MB, 4.20 GB: decimal, as disks and links are sold."""
    for unit, size, digits in (("TB", 1e12, 2), ("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 0)):
        if abs(count) >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f} B"


def gib_text(count: float) -> str:
    """Bytes as GiB with one decimal: how memory and budgets are declared."""
    return f"{count / GIB:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """0.4 s, 12 s, 3:05 min, 2:03:05 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
