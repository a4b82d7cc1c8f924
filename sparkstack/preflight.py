"""Can this host carry this recipe? Judged from facts, before anything is changed.

Every check says "ok", "failed", or "not checked" with the reason: what was not looked at is never called ok.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkstack.alike import across
from sparkstack.disk_need import by_file_system
from sparkstack.host_facts import CheckResult, Gpu, HostFacts, Status, Wanted
from sparkstack.kernel import connectx_faults, gpu_memory_faults, next_boot
from sparkstack.units import gib_text

__all__ = ["CheckResult", "Gpu", "HostFacts", "Wanted", "across", "check"]


def check(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    """All checks of one host, in the order in which a reader would mend what they find."""
    return [
        *_system(facts, wanted),
        *_memory(facts, wanted),
        *_disk(facts, wanted),
        *_port(facts, wanted),
        *_docker(facts, wanted),
        *_gpu(facts, wanted),
        _next_boot(facts, wanted),
        *_kernel_log(facts),
    ]


def _result(
    facts: HostFacts, name: str, good: bool | None, found: str, want: str, remedy: str = ""
) -> CheckResult:
    """None is for what could not be looked at; `found` then says why."""
    status: Status = "not checked" if good is None else "ok" if good else "failed"
    return CheckResult(facts.name, name, status, found, want, remedy if good is False else "")


def _system(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    root = "root rights" if facts.sudo_ok else "no root rights"
    whose = "" if facts.account_exists else "no "
    return [
        _result(
            facts,
            "system",
            (facts.os_id, facts.os_version) in {tuple(pair) for pair in wanted.systems},
            f"{facts.os_id} {facts.os_version}",
            " or ".join(f"{name} {version}" for name, version in wanted.systems),
            "install one of these, or add this one to the accepted systems once you have tried it",
        ),
        _result(
            facts,
            "architecture",
            facts.arch in wanted.architectures if facts.arch else None,
            facts.arch or "no answer from uname",
            " or ".join(wanted.architectures),
            "the images are built for a DGX Spark; use one",
        ),
        _result(
            facts,
            "sudo",
            facts.sudo_ok,
            root,
            "root rights",
            "add the user to sudoers, and keep `_sudo = True` in group_data",
        ),
        _result(
            facts,
            "python",
            None if not facts.python_version else _at_least(facts.python_version, wanted.python_version),
            f"Python {facts.python_version}" if facts.python_version else "no answer from python3",
            f"{wanted.python_version} or newer",
            "install python3",
        ),
        _result(
            facts,
            "user",
            facts.account_exists,
            "no answer" if facts.account_exists is None else f"{whose}user {wanted.account}",
            "the one that owns the daily work",
            "correct `user` in group_data, or create the user on the host",
        ),
    ]


def _memory(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    # What our own server holds comes back when it is stopped for the new release.
    serving = facts.serving
    memory = facts.memory_total_bytes if serving else facts.memory_available_bytes
    kind = "in total (our server runs)" if serving else "available"
    total, free = facts.cma_total_bytes, facts.cma_free_bytes
    known = total is not None and free is not None
    return [
        _result(
            facts,
            "memory",
            memory >= wanted.memory_bytes,
            f"{gib_text(memory)} {kind}",
            gib_text(wanted.memory_bytes),
            "stop what uses it, or take a smaller recipe",
        ),
        # Some kernels hand pages to CMA that are not its own; RDMA registrations then fail (ENOMEM).
        _result(
            facts,
            "contiguous memory",
            free <= total if total is not None and free is not None else None,
            f"CmaFree {gib_text(free or 0)}, CmaTotal {gib_text(total or 0)}" if known else "no CMA figures",
            "CmaFree at most CmaTotal",
            "boot with kho=off on the kernel's command line, or take another kernel",
        ),
    ]


def _disk(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    results = []
    for folders, needed in by_file_system(wanted.disk_bytes, facts.file_systems):
        free = facts.disk_free.get(folders[0])
        results.append(
            _result(
                facts,
                f"disk {' + '.join(folders)}",
                None if free is None else free >= needed,
                "no figure" if free is None else f"{gib_text(free)} free",
                gib_text(needed),
                "free some of it; old checkpoints are the largest",
            )
        )
    return results


def _port(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    if wanted.port is None:
        return []
    result = _result(
        facts,
        f"port {wanted.port}",
        None if facts.port_owner is None else facts.port_owner in ("free", "sparkstack"),
        "no answer" if facts.port_owner is None else facts.port_owner,
        "free, or ours",
        "stop that process, or choose another serve.port",
    )
    return [result]


def _docker(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    """Both come with DGX OS, and we do not install them."""
    version, toolkit = facts.docker_version, facts.container_toolkit
    # A daemon that does not answer may be what the stage docker mends.
    found = "no Docker" if version is None else version or "a daemon that does not answer"
    results = [
        _result(
            facts,
            "docker",
            None if version == "" else version is not None,
            found,
            "Docker",
            "install it (DGX OS has it: package docker-ce)",
        )
    ]
    name, want = "container toolkit", "nvidia-ctk"
    if wanted.accelerator == "cpu":
        return [*results, _result(facts, name, None, "accelerator is cpu", want)]
    remedy = "install it (DGX OS has it: package nvidia-container-toolkit)"
    found = f"no {want}" if toolkit is None else f"{want} {toolkit}".strip()
    return [*results, _result(facts, name, toolkit is not None, found, want, remedy)]


def _gpu(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    capability = f"compute capability {wanted.compute_capability}"

    def least(name: str, version: str) -> str:
        whose = "the recipe's" if name in wanted.from_recipe else "default; the recipe names none"
        return f"{version} or newer ({whose})"

    driver, cuda = least("driver", wanted.driver), least("cuda", wanted.cuda)
    gpu = facts.gpu
    if wanted.accelerator == "cpu":
        wants = {"gpu": capability, "driver": driver, "cuda": cuda}
        return [_result(facts, name, None, "accelerator is cpu", want) for name, want in wants.items()]
    if gpu is None:
        see = "see `nvidia-smi` there; after a kernel upgrade its driver modules may be missing"
        return [
            _result(facts, "gpu", False, "no GPU", f"one of {capability}", see),
            _result(facts, "driver", None, "no GPU", driver),
            _result(facts, "cuda", None, "no GPU", cuda),
        ]
    return [
        _result(
            facts,
            "gpu",
            gpu.compute_capability == wanted.compute_capability,
            f"{gpu.name}, compute capability {gpu.compute_capability}",
            capability,
            "the image is built for a DGX Spark's GB10; use one",
        ),
        _result(
            facts,
            "driver",
            _at_least(gpu.driver, wanted.driver),
            gpu.driver,
            driver,
            "upgrade DGX OS, and restart",
        ),
        _result(
            facts,
            "cuda",
            _at_least(gpu.cuda, wanted.cuda) if gpu.cuda else None,
            gpu.cuda or "nvidia-smi names no CUDA version",
            cuda,
            "upgrade DGX OS, and restart",
        ),
    ]


def _next_boot(facts: HostFacts, wanted: Wanted) -> CheckResult:
    """After an upgrade the newest kernel may have no driver yet: the GPU is then gone after a restart."""
    name, want = "next boot", "a kernel with nvidia.ko"
    if wanted.accelerator == "cpu":
        return _result(facts, name, None, "accelerator is cpu", want)
    if facts.container:
        return _result(facts, name, None, f"a {facts.container} container boots no kernel", want)
    version = next_boot(facts.kernels, facts.grub)
    if version is None:
        entry = facts.grub.once or facts.grub.saved or facts.grub.default
        found = f"which kernel GRUB's {entry!r} is" if entry else "no kernel in /boot"
        return _result(facts, name, None, f"cannot tell: {found}", want)
    has_driver = any(kernel.nvidia for kernel in facts.kernels if kernel.version == version)
    return _result(
        facts,
        name,
        has_driver,
        f"kernel {version} {'with' if has_driver else 'without'} nvidia.ko",
        want,
        f"install the driver's modules for {version} before you restart (now runs: {facts.kernel})",
    )


def _kernel_log(facts: HostFacts) -> list[CheckResult]:
    kinds = [
        (
            "kernel log of ConnectX-7",
            connectx_faults(facts.kernel_log or (), facts.connectx),
            "no PCIe (AER) or fatal mlx5 error since boot",
            "power both ends off, unplug QSFP cables and power for a minute, and start them again",
        ),
        (
            "kernel log of the GPU",
            gpu_memory_faults(facts.kernel_log or ()),
            "no NV_ERR_NO_MEMORY since boot",
            "restart the Spark: it may stop without a word; then give the engine less memory",
        ),
    ]
    if facts.kernel_log is None:
        why = (
            f"a {facts.container} container has no kernel journal of its own"
            if facts.container
            else "the kernel's journal could not be read"
        )
        return [_result(facts, name, None, why, want) for name, _, want, _ in kinds]
    return [
        _result(
            facts,
            name,
            not faults,
            _lines(faults),
            want,
            remedy,
        )
        for name, faults, want, remedy in kinds
    ]


def _lines(faults: Sequence[str]) -> str:
    count = "1 line" if len(faults) == 1 else f"{len(faults)} lines"
    return f"{count}, the last: {faults[-1][:200]}" if faults else "nothing"


def _at_least(version: str, least: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    return numbers(version) >= numbers(least)
