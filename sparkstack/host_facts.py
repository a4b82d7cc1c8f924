"""What preflight looks at, what it wants, and what it says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkstack.errors import Problem
from sparkstack.kernel import Grub, Kernel
from sparkstack.launch import Accelerator

Status = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True)
class Gpu:
    """As nvidia-smi says it: "NVIDIA GB10", "12.1", "580.95.05"; `cuda` ("13.0") is what the driver can."""

    name: str
    compute_capability: str
    driver: str
    cuda: str = ""


@dataclass(frozen=True)
class HostFacts:
    """What a host said. None: it could not say.

    `os_id` and `os_version` as in /etc/os-release; memory and `disk_free` (by folder) in bytes, and
    `file_systems` names the one on which each folder is; `port_owner` of the recipe's port is "free",
    "sparkstack" (our serving unit) or the other process, and `serving` says that a rank of ours runs;
    `docker_version` is "" where the daemon does not answer; `account_exists` is about `Wanted.account`; the
    clock in seconds of the epoch. `container` is the kind of container that the host is ("" for none),
    `kernel_log` what is suspicious in the kernel's journal of this boot, and `connectx` the PCI addresses of
    its ConnectX-7 ports.
    """

    name: str
    os_id: str
    os_version: str
    arch: str
    memory_available_bytes: int
    memory_total_bytes: int
    disk_free: Mapping[str, int] = field(default_factory=dict)
    file_systems: Mapping[str, str] = field(default_factory=dict)
    port_owner: str | None = None
    sudo_ok: bool = False
    python_version: str | None = None
    serving: bool = False
    account_exists: bool | None = None
    docker_version: str | None = None
    container_toolkit: str | None = None
    gpu: Gpu | None = None
    kernel: str = ""
    clock_epoch_s: float | None = None
    container: str = ""
    kernels: Sequence[Kernel] = ()
    grub: Grub = field(default_factory=Grub)
    cma_total_bytes: int | None = None
    cma_free_bytes: int | None = None
    kernel_log: Sequence[str] | None = None
    connectx: Sequence[str] = ()

    @property
    def versions(self) -> dict[str, str]:
        """What the host is, for the report."""
        gpu = self.gpu or Gpu("", "", "")
        return {
            "system": " ".join(part for part in (self.os_id, self.os_version, self.arch) if part),
            "kernel": self.kernel,
            "Docker": self.docker_version or "",
            "GPU": gpu.name,
            "driver": gpu.driver,
            "CUDA": gpu.cuda,
        }


@dataclass(frozen=True)
class Wanted:
    """What a run needs of each host.

    `systems` are (ID, VERSION_ID) pairs that are accepted; memory and `disk_bytes` (by folder) in bytes.
    While our own server runs, its memory is not free and will be: `memory_bytes` is then held against the
    total. `driver` and `cuda` are the recipe's, or what the images are built for; `from_recipe` names those
    that the recipe says. `account` is who works on the host. `port` is None where nothing of ours will
    listen.
    """

    systems: Sequence[tuple[str, str]] = (("ubuntu", "24.04"),)
    accelerator: Accelerator = "gpu"
    port: int | None = 8000
    memory_bytes: int = 0
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    python_version: str = "3.9"
    compute_capability: str = "12.1"
    driver: str = "580"
    cuda: str = "13.0"
    from_recipe: Collection[str] = ()
    account: str = ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """A Spark is aarch64; the lab runs where it runs."""
        return ("aarch64",) if self.accelerator == "gpu" else ("aarch64", "x86_64")


@dataclass(frozen=True)
class CheckResult:
    """One check of one host (or of all of them: `host` is then "all hosts")."""

    host: str
    name: str
    status: Status
    found: str
    wanted: str
    remedy: str = ""

    def __str__(self) -> str:
        if self.status == "failed":
            return str(Problem(f"{self.host}: {self.name}", self.found, self.wanted, self.remedy))
        return f"{self.host}: {self.name}: {self.status} ({self.found})"
