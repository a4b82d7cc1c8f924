"""What must be alike on the hosts of a cluster. Judged from facts, as `sparkstack/preflight.py` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkstack.host_facts import CheckResult, HostFacts, Status


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
    wanted = f"less than {max_skew_s:g} s apart"
    skew = max(known.values()) - min(known.values()) if known else 0.0
    # Two that are too far apart are, whatever a third one would have said.
    if len(known) < len(clocks) and skew < max_skew_s:
        found = "no clock of " + ", ".join(sorted(clocks.keys() - known.keys()))
        return [*results, CheckResult("all hosts", "clocks", "not checked", found, wanted)]
    found = (
        f"{skew:.1f} s between {min(known, key=known.__getitem__)} and {max(known, key=known.__getitem__)}"
    )
    status: Status = "ok" if skew < max_skew_s else "failed"
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
