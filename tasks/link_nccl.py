"""The last question to the links: what does NCCL make of them, from inside the image that will serve?"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import launch, link_gate, links, release
from sparkstack.host_facts import CheckResult
from sparkstack.links import Collective
from tasks import drift, report
from tasks.facts import Ask, Json, UnitState
from tasks.files import Commands
from tasks.link_gate import NoAnswer, conclude, put, result_path, wanted_of
from tasks.remote import POLL_SECONDS, progress, report_failure, shell
from tasks.site import ROOT, UNIT, Site

SCRIPT = ROOT / "onhost" / "allgather.py"
NAME = "sparkstack-nccl"
# A container of a large image, torch in it, a rendezvous: a minute or two; then it is a fault.
LIMIT_SECONDS = 300
MEETING_SECONDS = 120


def _path(site: Site) -> str:
    return result_path(site).replace("links.json", "nccl.json")


def asks(site: Site) -> list[Ask]:
    """The facts that the operation below asks of a host with links that were measured."""
    if not site.is_head or _unasked(site):
        return []
    return [(Json, {"path": path}) for path in (result_path(site), _path(site))]


@operation()
def collective(site: Site) -> Commands:
    """Run NCCL's all_gather over all ranks.

    No-op without a GPU or a fabric, where the gate is off or the image not one of vLLM, while a release
    serves (it has the memory), and when this image has gathered over the links as they were measured last.
    """
    if not site.is_head:
        return
    wanted, mode = wanted_of(site), site.data.link_gate
    if reason := _unasked(site):
        _not_checked(reason)
        return
    measured = host.get_fact(Json, path=result_path(site)) or {}
    stored = host.get_fact(Json, path=_path(site)) or {}
    wishes = [wanted.nccl_gbytes, wanted.nccl_ring_gbytes, wanted.nccl_size_gib]
    key = release.content_id([measured.get("key"), site.image_id, wishes])
    if stored.get("key") == key and (stored.get("ok") or mode == "warn"):
        host.noop(f"NCCL's all_gather was measured at {stored['when']}")
        report.note_collective(stored)
        return
    if host.get_fact(UnitState, unit=UNIT) == "active":
        _not_checked("a release serves, and has the memory")
        return
    drift.differs("NCCL all_gather", "not measured on these links", "a measurement with this image")
    yield FunctionCommand(_gather, (site, key), {})


def _not_checked(why: str) -> None:
    host.noop(f"NCCL's all_gather is not checked: {why}")
    drift.not_checked("NCCL all_gather", why)


def _unasked(site: Site) -> str | None:
    if site.data.link_gate == "off":
        return "link_gate is off"
    if not site.interfaces:
        return "one Spark has no links"
    if not site.has_plugin:
        return f"the image of engine {site.recipe.serve.engine} need not have torch"
    return "no GPU" if site.data.accelerator != "gpu" else None


def _gather(state: Any, host: Any, site: Site, key: str) -> bool:
    try:
        try:
            # The head last: the others wait for it, and not it for them.
            for rank in reversed(range(len(site.hosts))):
                _begin(site, rank)
            said = _wait(site)
        finally:
            progress.finish("nccl")
            for one in site.hosts:
                shell(one, f"systemctl stop {NAME} 2>/dev/null; docker rm -f {NAME} >/dev/null 2>&1; true")
        line = link_gate.collective(host.name, parse(said), wanted_of(site), ring=site.fabric.kind == "ring")
        result = _result(key, line)
        put(host, _path(site), json.dumps(result) + "\n")
    except NoAnswer as error:
        return report_failure(host, str(error))
    report.note_collective(result)
    return conclude(host, [line], site.data.link_gate)


def _result(key: str, line: CheckResult) -> dict[str, Any]:
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ok = link_gate.passed([line])
    return {"format": links.FORMAT, "key": key, "ok": ok, "when": when, "lines": [asdict(line)]}


def _log(site: Site) -> str:
    return f"{site.data.state_dir}/results/link/nccl.log"


def _begin(site: Site, rank: int) -> None:
    """Start a rank's container as a unit that ends by itself."""
    one, wanted = site.hosts[rank], wanted_of(site)
    plans, log = f"{site.data.state_dir}/plans", _log(site)
    put(one, f"{plans}/allgather.py", SCRIPT.read_text())
    meeting = [site.head_fabric_address, str(wanted.port + 2)]
    words = ["python3", "/plans/allgather.py", str(rank), str(len(site.hosts)), *meeting]
    argv = launch.docker_argv(
        [*words, str(wanted.nccl_size_gib), str(MEETING_SECONDS)],
        image=site.image_tag,
        checkpoint_dir=plans,
        model_path="/plans",
        name=NAME,
        accelerator="gpu",
        env_files=[f"{site.data.config_dir}/fabric.env"],
        extra=["--env", "NCCL_DEBUG=INFO"],
    )
    begin = ["systemd-run", "--quiet", "--collect", f"--unit={NAME}"]
    begin += [f"--property=RuntimeMaxSec={LIMIT_SECONDS}", f"--property=StandardOutput=truncate:{log}"]
    ok, said = shell(
        one,
        f"systemctl stop {NAME} 2>/dev/null; docker rm -f {NAME} >/dev/null 2>&1; "
        f"mkdir -p {shlex.quote(log.rpartition('/')[0])} && {shlex.join([*begin, '--', *argv])}",
    )
    if not ok:
        raise NoAnswer(f"{one.name}: nccl: found {said}; wanted {NAME}; see `systemctl status docker`")


def _wait(site: Site) -> str:
    """What the head's rank wrote, once its unit has ended or the time is over."""
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_SECONDS:
        progress.update("nccl", "nccl", time.monotonic() - began, None, "s", "all_gather")
        ok, state = shell(site.head, f"systemctl show -p ActiveState --value {NAME}")
        if not ok or state.strip() not in ("active", "activating", "deactivating"):
            break
        time.sleep(POLL_SECONDS)
    return shell(site.head, f"tail -c 200000 {shlex.quote(_log(site))}")[1]


def parse(said: str) -> Collective:
    """The figure in the last line of JSON, and over what NCCL says that it goes."""
    # NCCL lists what it could use ("NET/IB : Using …", without a device, too); "via" is what it uses.
    transport = next((word for word in ("Socket", "IB") if f"via NET/{word}" in said), "")
    for line in reversed(said.splitlines()):
        try:
            found = json.loads(line)
            return Collective(gbytes=found["gbytes"], transport=transport, problem=found["problem"])
        except (ValueError, KeyError, TypeError):
            continue
    last = " ".join(said.split())[-200:]
    return Collective(gbytes=None, problem=f"no figure, but: {last or 'nothing'}", transport=transport)


@deploy("nccl")
def deploy_nccl(site: Site) -> None:
    """After this NCCL has been seen to use the links."""
    collective(name="NCCL gathers as fast as wanted", site=site)
