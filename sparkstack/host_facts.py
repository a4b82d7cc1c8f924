"""What preflight looks at, what it wants, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkstack.errors import Problem
from sparkstack.launch import Accelerator

Status = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True)
class Gpu:
    """As nvidia-smi says it: "NVIDIA GB10", "12.1", "580.95.05"."""

    name: str
    compute_capability: str
    driver: str


@dataclass(frozen=True)
class HostFacts:
    """What a host said. None: it could not say.

    `os_id` and `os_version` as in /etc/os-release; memory and `disk_free` (by folder) in bytes; `port_owner`
    of the recipe's port is "free", "sparkstack" or the other process; the clock in seconds of the epoch.
    """

    name: str
    os_id: str
    os_version: str
    arch: str
    memory_available_bytes: int
    memory_total_bytes: int
    disk_free: Mapping[str, int] = field(default_factory=dict)
    port_owner: str | None = None
    sudo_ok: bool = False
    python_version: str | None = None
    docker_version: str | None = None
    gpu: Gpu | None = None
    kernel: str = ""
    clock_epoch_s: float | None = None


@dataclass(frozen=True)
class Wanted:
    """What a run needs of each host.

    `systems` are (ID, VERSION_ID) pairs that are accepted; memory and `disk_bytes` (by folder) in bytes.
    While our own server runs, its memory is not free and will be: `memory_bytes` is then held against the
    total.
    """

    systems: Sequence[tuple[str, str]] = (("ubuntu", "24.04"),)
    accelerator: Accelerator = "gpu"
    port: int = 8000
    memory_bytes: int = 0
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    python_version: str = "3.9"
    compute_capability: str = "12.1"
    driver: str = "580"


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
