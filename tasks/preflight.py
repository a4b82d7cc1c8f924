"""Stops before any change when something cannot work: every host says all that is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import preflight
from tasks.facts import Survey
from tasks.remote import fail
from tasks.site import Site


def host_facts(name: str, survey: dict[str, Any]) -> preflight.HostFacts:
    """A survey's words as the core's facts."""
    gpu = None
    if survey.get("gpu"):
        model, capability, driver = (part.strip() for part in survey["gpu"].split(","))
        gpu = preflight.Gpu(name=model, compute_capability=capability, driver=driver)
    system, _, version = survey.get("system", "").partition(":")
    return preflight.HostFacts(
        name=name,
        os_id=system,
        os_version=version,
        arch=survey.get("arch", ""),
        memory_available_bytes=int(survey.get("memory_available", 0)),
        memory_total_bytes=int(survey.get("memory_total", 0)),
        disk_free=survey["disk"],
        port_owner=survey.get("port"),
        sudo_ok=survey.get("user") == "root",
        python_version=survey.get("python") or None,
        docker_version=survey.get("docker") or None,
        gpu=gpu,
        kernel=survey.get("kernel", ""),
        clock_epoch_s=float(survey["clock"]) if survey.get("clock") else None,
    )


@operation()
def checks_pass(site: Site) -> Iterator[FunctionCommand]:
    """Compare what the host is with what the recipe needs.

    No-op when nothing is wrong (it never changes anything); else fails the host with a line a problem.
    """
    survey = host.get_fact(Survey, paths=[site.data.state_dir, "/var/lib/docker"], port=site.recipe.serve.port)
    results = preflight.check(host_facts(host.name, survey), site.preflight_wanted())
    for result in results:
        if result.status == "not checked":
            host.noop(f"{result.name}: not checked ({result.found})")
    problems = [result for result in results if result.status == "failed"]
    for result in problems[:-1]:
        host.log_styled(str(result), fg="red", log_func=logger.error)
    if problems:
        yield fail(str(problems[-1]))


@deploy("preflight")
def deploy_preflight(site: Site) -> None:
    """Ask each host once, judge, stop before any change."""
    checks_pass(name="host can carry the recipe", site=site)


def now() -> float:
    return time.time()
