"""Can this host carry this recipe? Judged from facts, before anything is changed.

Every check says "ok", "failed", or "not checked" with the reason: what was not looked at is never called ok.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sparkstack.host_facts import CheckResult, Gpu, HostFacts, Status, Wanted
from sparkstack.recipe import Recipe
from sparkstack.units import gib_text

__all__ = ["CheckResult", "Gpu", "HostFacts", "Wanted", "across", "check", "nodes"]


def check(facts: HostFacts, wanted: Wanted) -> list[CheckResult]:
    """All checks of one host, in the order in which a reader would mend what they find."""

    def result(name: str, good: bool | None, found: str, want: str, remedy: str = "") -> CheckResult:
        status: Status = "not checked" if good is None else "ok" if good else "failed"
        return CheckResult(facts.name, name, status, found, want, "" if good else remedy)

    system = (facts.os_id, facts.os_version)
    systems = " or ".join(f"{name} {version}" for name, version in wanted.systems)
    results = [
        result(
            "system",
            system in {tuple(pair) for pair in wanted.systems},
            f"{facts.os_id} {facts.os_version}",
            systems,
            "install one of these, or add this one to the accepted systems once you have tried it",
        ),
        result(
            "sudo",
            facts.sudo_ok,
            "root rights" if facts.sudo_ok else "no root rights without a password",
            "root rights without a password",
            "add the user to sudoers with NOPASSWD",
        ),
        result(
            "python",
            None if not facts.python_version else _at_least(facts.python_version, wanted.python_version),
            f"Python {facts.python_version}" if facts.python_version else "no answer from python3",
            f"{wanted.python_version} or newer",
            "install python3",
        ),
    ]
    # What our own server holds comes back when it is stopped for the new release.
    serving = facts.port_owner == "sparkstack"
    memory = facts.memory_total_bytes if serving else facts.memory_available_bytes
    kind = "in total (our server runs)" if serving else "available"
    results.append(
        result(
            "memory",
            memory >= wanted.memory_bytes,
            f"{gib_text(memory)} {kind}",
            gib_text(wanted.memory_bytes),
            "stop what uses it, or take a smaller recipe",
        )
    )
    for folder, needed in wanted.disk_bytes.items():
        free = facts.disk_free.get(folder)
        results.append(
            result(
                f"disk {folder}",
                None if free is None else free >= needed,
                "no figure" if free is None else f"{gib_text(free)} free",
                gib_text(needed),
                "free some of it; old checkpoints are the largest",
            )
        )
    results.append(
        result(
            f"port {wanted.port}",
            None if facts.port_owner is None else facts.port_owner in ("free", "sparkstack"),
            "no answer" if facts.port_owner is None else facts.port_owner,
            "free, or ours",
            "stop that process, or choose another serve.port",
        )
    )
    return results + _gpu(facts, wanted, result("gpu", None, "accelerator is cpu", "a GPU"))


def _gpu(facts: HostFacts, wanted: Wanted, not_checked: CheckResult) -> list[CheckResult]:
    if wanted.accelerator == "cpu":
        return [not_checked]
    host, gpu = facts.name, facts.gpu
    if gpu is None:
        want = f"one of compute capability {wanted.compute_capability}"
        remedy = "see `nvidia-smi` there; after a kernel upgrade its driver modules may be missing"
        return [CheckResult(host, "gpu", "failed", "no GPU", want, remedy)]
    fits = gpu.compute_capability == wanted.compute_capability
    drives = _at_least(gpu.driver, wanted.driver)
    return [
        CheckResult(
            host,
            "gpu",
            "ok" if fits else "failed",
            f"{gpu.name}, compute capability {gpu.compute_capability}",
            f"compute capability {wanted.compute_capability}",
            "" if fits else "the image is built for a DGX Spark's GB10; use one",
        ),
        CheckResult(
            host,
            "driver",
            "ok" if drives else "failed",
            gpu.driver,
            f"{wanted.driver} or newer",
            "" if drives else "upgrade DGX OS, and restart",
        ),
    ]


def nodes(recipe: Recipe, count: int) -> CheckResult:
    """Does the recipe run on as many hosts as the inventory has?"""
    for problem in recipe.check_nodes(count):
        return CheckResult(
            "all hosts", "nodes", "failed", problem.found, problem.wanted, f"{problem.remedy} {recipe.name}"
        )
    return CheckResult("all hosts", "nodes", "ok", f"{count} hosts", f"what recipe {recipe.name} allows")


def across(all_facts: Sequence[HostFacts], max_skew_s: float = 30.0) -> list[CheckResult]:
    """What must be alike on the hosts of a cluster: architecture, kernel, driver, clock; [] for one host.

    `max_skew_s` leaves room for the facts of different hosts being asked for at different moments.
    """
    if len(all_facts) < 2:
        return []
    update = "bring all hosts to the same DGX OS update"
    drivers = {facts.name: facts.gpu.driver if facts.gpu else None for facts in all_facts}
    results = [
        _alike("architecture", {facts.name: facts.arch or None for facts in all_facts}, "use like machines"),
        _alike("kernel", {facts.name: facts.kernel or None for facts in all_facts}, update),
        _alike("driver", drivers, update),
    ]
    clocks = {facts.name: facts.clock_epoch_s for facts in all_facts}
    known = {name: clock for name, clock in clocks.items() if clock is not None}
    wanted = f"at most {max_skew_s:g} s apart"
    if len(known) < len(clocks):
        found = "no clock of " + ", ".join(sorted(clocks.keys() - known.keys()))
        return [*results, CheckResult("all hosts", "clocks", "not checked", found, wanted)]
    skew = max(known.values()) - min(known.values())
    found = (
        f"{skew:.1f} s between {min(known, key=known.__getitem__)} and {max(known, key=known.__getitem__)}"
    )
    status: Status = "ok" if skew <= max_skew_s else "failed"
    remedy = "" if status == "ok" else "switch time synchronisation on (timedatectl set-ntp true)"
    return [*results, CheckResult("all hosts", "clocks", status, found, wanted, remedy)]


def _alike(name: str, values: Mapping[str, str | None], remedy: str) -> CheckResult:
    wanted = "the same on all hosts"
    known = {value for value in values.values() if value is not None}
    found = ", ".join(f"{host} {value or 'unknown'}" for host, value in values.items())
    if len(known) > 1:
        return CheckResult("all hosts", name, "failed", found, wanted, remedy)
    if None in values.values():
        return CheckResult("all hosts", name, "not checked", found, wanted)
    return CheckResult("all hosts", name, "ok", next(iter(known)), wanted)


def _at_least(version: str, least: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    return numbers(version) >= numbers(least)
