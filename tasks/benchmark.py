"""The check at the end: measured on the endpoint, compared with what the recipe expects."""

from __future__ import annotations

import json
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import gates
from sparkstack.errors import SparkstackError
from tasks import drift, report
from tasks.facts import Json
from tasks.files import Commands, ManagedFile
from tasks.remote import fail, job, report_failure
from tasks.site import Site


def _same_measurement(found: Any, site: Site) -> bool:
    if not found or found.get("release") != site.release_id:
        return False
    # The job notes more in the profile (which endpoint it used); what was asked for must be in it.
    return all(found.get("profile", {}).get(key) == value for key, value in site.profile.items())


@operation()
def measured(site: Site) -> Commands:
    """Measure the endpoint from the head, as a job.

    No-op when this release has been measured with this profile.
    """
    if not site.is_head:
        return
    if _same_measurement(host.get_fact(Json, path=site.measurement_path), site):
        host.noop(f"release {site.release_id} has been measured")
        return
    drift.differs(site.measurement_path, "absent, or of another profile", "a measurement of this release")
    yield from job(
        {
            "job": f"sparkstack-bench-{site.release_id}",
            "kind": "bench",
            "jobs_dir": site.jobs_dir,
            "url": site.endpoint,
            "model": site.served_model,
            "api_key_file": None,
            "release": site.release_id,
            "result": site.measurement_path,
            "profile": site.profile,
        }
    )


def _unmeasured(state: Any, host: Any, path: str) -> bool:
    return report_failure(host, f"{host.name}: benchmark: found no measurement; wanted {path}; run again")


@operation()
def judged(site: Site) -> Commands:
    """Compare the measurement with the recipe's expectations and keep the verdict beside it.

    No-op when the verdict stands already. A miss fails the host with the figures, on every run.
    """
    if not site.is_head:
        return
    measurement = host.get_fact(Json, path=site.measurement_path)
    if not _same_measurement(measurement, site):
        # A run measures first, and has failed by now where it could not: only who looks ahead finds none.
        drift.differs(site.verdict_path, "no measurement to judge", "the verdict on one")
        yield FunctionCommand(_unmeasured, (site.measurement_path,), {})
        return
    try:
        verdict = gates.judge(measurement, site.recipe.expect).as_dict()
    except SparkstackError as error:
        yield fail(f"{host.name}: benchmark: {error}")
        return
    report.note_benchmark(site, measurement, verdict)
    if host.get_fact(Json, path=site.verdict_path) != verdict:
        text = json.dumps(verdict, indent=1) + "\n"
        yield ManagedFile.text(site.verdict_path, text).write()
    if not verdict["ok"]:
        missed = [line for line in verdict["lines"] if line["verdict"] == "fail"]
        figures = ", ".join(
            f"{line['name']} {line['measured']} (expected {line['expected']})" for line in missed
        )
        yield fail(
            f"{host.name}: benchmark: found {figures}; wanted what recipe {site.recipe.name} expects; "
            "look at the report, or correct `expect`"
        )


@deploy("benchmark")
def deploy_benchmark(site: Site) -> None:
    """The head measures; the figures go into the report of the run."""
    measured(name="endpoint is measured", site=site)
    judged(name="figures meet the recipe", site=site)
