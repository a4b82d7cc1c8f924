"""What a host's kernels say: which one the next boot will use, and what the running one complained of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A folder of /lib/modules: is its vmlinuz in /boot, and does it hold nvidia.ko?"""

    version: str
    bootable: bool
    nvidia: bool


@dataclass(frozen=True)
class Grub:
    """What GRUB is told. `first` is the version of the first entry in grub.cfg, `default` is GRUB_DEFAULT,
    `saved` and `once` are saved_entry and next_entry of grubenv; "" where there is none."""

    first: str = ""
    default: str = ""
    saved: str = ""
    once: str = ""


def next_boot(kernels: Sequence[Kernel], grub: Grub) -> str | None:
    """The version that the next boot will use; None where that cannot be told.

    An entry for one boot comes before the default; `saved` stands for the saved entry, and without one for
    the first. The first entry is what grub.cfg says, or the newest kernel with a vmlinuz.
    """
    entry = grub.once or (grub.saved if grub.default == "saved" else grub.default)
    bootable = [kernel.version for kernel in kernels if kernel.bootable]
    if entry in ("", "0"):
        return grub.first or max(bootable, key=_numbers, default=None)
    # An entry is named by its title or its id, and both hold the version ("gnulinux-6.14.0-1013-nvidia-…").
    # The longest one: 6.14.0-10 is also a part of 6.14.0-1013.
    named = [kernel.version for kernel in kernels if kernel.version in entry]
    return max(named, key=len, default=None)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


_MLX5_FATAL = re.compile(
    r"mlx5_core.*(fatal error|health compromised|bad device|failed to recover|recovery failed)", re.IGNORECASE
)
# Corrected errors are told, too, and do no harm: the link sent the packet again.
_CORRECTED = re.compile(r"\bCorrect(ed|able)\b")
_NO_MEMORY = re.compile(r"NVRM.*(NV_ERR_NO_MEMORY|_memdescAllocInternal)")


def connectx_faults(lines: Iterable[str], addresses: Iterable[str]) -> list[str]:
    """The lines in which a ConnectX-7 (`addresses`: on the PCI bus) had an error that was not corrected."""
    names = ["mlx5_core", *addresses]
    return [
        line
        for line in lines
        if _MLX5_FATAL.search(line)
        or (
            re.search(r"\bAER\b|PCIe Bus Error", line)
            and any(name in line for name in names)
            and not _CORRECTED.search(line)
        )
    ]


def gpu_memory_faults(lines: Iterable[str]) -> list[str]:
    """The lines in which the GPU's driver got no memory: a Spark that wrote one may stop without a word."""
    return [line for line in lines if _NO_MEMORY.search(line)]
