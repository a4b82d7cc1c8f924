"""Stops before any change when something cannot work: every host says all that is wrong with it."""

from __future__ import annotations

import time
from typing import Any

from pyinfra import host, logger
from pyinfra.api import deploy, operation

from sparkstack import preflight
from sparkstack.host_facts import CheckResult, Gpu, HostFacts
from tasks.facts import Json, Survey
from tasks.files import Commands
from tasks.remote import fail
from tasks.site import Site

# Certificates and logs of a cluster want clocks that agree; the asking itself takes up to a second.
MAX_SKEW_SECONDS = 2.0

# What each host said in this run: the first operation asks, the second compares.
_asked: dict[str, HostFacts] = {}


def _clock_offset(clock: float, asked: float, answered: float) -> float:
    """Seconds by which a host's clock differs from ours at least: it was read some time between asking
    and answer, and hosts are asked at different moments."""
    return max(clock - answered, 0.0) + min(clock - asked, 0.0)


def host_facts(name: str, survey: dict[str, Any], asked: float, answered: float) -> HostFacts:
    """A survey's words as the core's facts; `asked` and `answered` are our clock around it."""
    gpu = None
    # Without a GPU nvidia-smi prints a sentence where its three fields would be.
    fields = [part.strip() for part in survey.get("gpu", "").split(",")]
    if len(fields) == 3:
        gpu = Gpu(*fields)
    system, _, version = survey.get("system", "").partition(":")
    return HostFacts(
        name=name,
        os_id=system,
        os_version=version,
        arch=survey.get("arch", ""),
        memory_available_bytes=int(survey.get("memory_available", 0)),
        memory_total_bytes=int(survey.get("memory_total", 0)),
        disk_free=survey.get("disk", {}),
        port_owner=survey.get("port"),
        sudo_ok=survey.get("user") == "root",
        python_version=survey.get("python") or None,
        docker_version=survey.get("docker") or None,
        gpu=gpu,
        kernel=survey.get("kernel", ""),
        clock_epoch_s=_clock_offset(float(survey["clock"]), asked, answered) if survey.get("clock") else None,
    )


@operation()
def checks_pass(site: Site) -> Commands:
    """Compare what the host is with what the recipe needs.

    No-op when nothing is wrong (it never changes anything); else fails the host with a line a problem.
    """
    asked = time.time()
    survey = host.get_fact(Survey, paths=[site.data.state_dir], port=site.recipe.serve.port)
    manifest = host.get_fact(Json, path=f"{site.checkpoint_dir}/manifest.json")
    facts = host_facts(host.name, survey, asked, time.time())
    _asked[host.name] = facts
    yield from _show(preflight.check(facts, site.preflight_wanted(staged=bool(manifest))))


@operation()
def hosts_agree(site: Site) -> Commands:
    """Compare the hosts with one another (architecture, driver, kernel, clock), from the head.

    No-op when they agree (it never changes anything); else fails with a line a difference.
    """
    if not site.is_head:
        return
    yield from _show(preflight.across(list(_asked.values()), MAX_SKEW_SECONDS))


def _show(results: list[CheckResult]) -> Commands:
    for result in results:
        if result.status == "not checked":
            host.noop(f"{result.name}: not checked ({result.found})")
    problems = [str(result) for result in results if result.status == "failed"]
    if problems:
        if not host.state.is_executing:  # a dry run stops here; the lines are all that it can say
            for line in problems:
                host.log_styled(line, fg="red", log_func=logger.error)
        yield fail(*problems)


@deploy("preflight")
def deploy_preflight(site: Site) -> None:
    """Ask each host once, judge, stop before any change."""
    checks_pass(name="host can carry the recipe", site=site)
    hosts_agree(name="hosts agree with one another", site=site)
