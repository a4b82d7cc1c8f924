"""Which kernel boots next, and what in the kernel's journal is a fault; lines as people reported them."""

from __future__ import annotations

import pytest

from sparkstack.kernel import Grub, Kernel, connectx_faults, gpu_memory_faults, next_boot

OLD, NOW, NEW = "6.8.0-1051-nvidia", "6.14.0-1013-nvidia", "6.17.0-1014-nvidia"
KERNELS = [Kernel(NEW, True, False), Kernel(OLD, True, True), Kernel(NOW, True, True)]


@pytest.mark.parametrize(
    ("grub", "version"),
    [
        (Grub(), NEW),  # the newest, by numbers and not by letters (6.8 is older than 6.14)
        (Grub(default="0"), NEW),
        (Grub(first=NOW, default="0"), NOW),  # what grub.cfg says comes before what we would sort
        (Grub(default="saved"), NEW),
        (Grub(default="saved", saved=f"gnulinux-advanced-1f>gnulinux-{OLD}-advanced-1f"), OLD),
        (Grub(default=f"Advanced options for Ubuntu>Ubuntu, with Linux {NOW}"), NOW),
        (Grub(default="0", once=f"gnulinux-{OLD}-advanced-1f"), OLD),
        (Grub(saved=f"gnulinux-{OLD}-advanced-1f"), NEW),  # saved, but the default does not look at it
        (Grub(default="1>2"), None),
        (Grub(default="windows"), None),
    ],
)
def test_next_boot(grub: Grub, version: str | None) -> None:
    assert next_boot(KERNELS, grub) == version


def test_a_kernel_without_vmlinuz_does_not_boot() -> None:
    assert next_boot([Kernel(NEW, False, True), Kernel(OLD, True, True)], Grub()) == OLD
    assert next_boot([Kernel(NEW, False, True)], Grub()) is None
    assert next_boot([], Grub()) is None


def test_one_version_within_another() -> None:
    short, long = Kernel("6.14.0-10", True, True), Kernel("6.14.0-1013-nvidia", True, True)
    assert next_boot([short, long], Grub(default="gnulinux-6.14.0-1013-nvidia-advanced")) == long.version


CONNECTX = ["0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0", True),
        ("mlx5_core 0002:01:00.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction", True),
        ("mlx5_core 0000:01:00.0: AER: can't recover (no error_detected callback)", True),
        ("mlx5_core 0000:01:00.0: poll_health:825:(pid 0): Fatal error 1 detected", True),
        ("mlx5_core 0000:01:00.0: mlx5_health_try_recover:335:(pid 9): handling bad device here", True),
        ("pcieport 0000:00:00.0: AER: Corrected error message received from 0000:01:00.0", False),
        ("mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer", False),
        ("pcieport 0000:00:00.0: AER: enabled with IRQ 45", False),
        ("nvme 0004:01:00.0: AER: Uncorrected (Non-Fatal) error", False),  # another device
        # A line that every healthy Spark writes.
        ("mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).", False),
    ],
)
def test_faults_of_connectx(line: str, fault: bool) -> None:
    assert connectx_faults([line], CONNECTX) == ([line] if fault else [])


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
            "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359",
            True,
        ),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05", False),
    ],
)
def test_faults_of_the_gpu(line: str, fault: bool) -> None:
    assert gpu_memory_faults([line]) == ([line] if fault else [])
