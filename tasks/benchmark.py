"""The check at the end: measured on the endpoint, compared with what the recipe expects."""

from __future__ import annotations

import json
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import gates
from tasks import report
from tasks.facts import Json
from tasks.files import Commands, ManagedFile
from tasks.remote import job, report_failure, shell
from tasks.site import Site


def _same_measurement(found: Any, site: Site) -> bool:
    return bool(found) and found.get("release") == site.release_id and found.get("profile") == site.profile


@operation()
def measured(site: Site) -> Commands:
    """Measure the endpoint from the head, as a job.

    No-op when this release has been measured with this profile; `bench.py` measures anew.
    """
    if _same_measurement(host.get_fact(Json, path=site.measurement_path), site):
        host.noop(f"release {site.release_id} has been measured")
        return
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


@operation()
def judged(site: Site) -> Commands:
    """Compare the measurement with the recipe's expectations and keep the verdict beside it.

    No-op when the verdict stands already. A miss fails the host with the figures, on every run.
    """
    measurement = host.get_fact(Json, path=site.measurement_path)
    if not measurement:
        yield FunctionCommand(_judge_fresh, (site,), {})  # a dry run, before anything was measured
        return
    verdict = gates.judge(measurement, site.recipe.expect).as_dict()
    report.note_benchmark(site, measurement, verdict)
    if host.get_fact(Json, path=site.verdict_path) != verdict:
        text = json.dumps(verdict, indent=1) + "\n"
        yield ManagedFile.text(site.verdict_path, text).write()
    if not verdict["ok"]:
        yield FunctionCommand(_missed, (site, verdict), {})


def _judge_fresh(state: Any, head: Any, site: Site) -> bool:
    _, text = shell(head, f"ls {site.measurement_path}")
    return report_failure(
        head, f"{head.name}: benchmark: found no measurement ({text}); wanted one; run again"
    )


def _missed(state: Any, head: Any, site: Site, verdict: dict[str, Any]) -> bool:
    missed = [line for line in verdict["lines"] if line["verdict"] == "fail"]
    figures = ", ".join(f"{line['name']} {line['measured']} (expected {line['expected']})" for line in missed)
    return report_failure(
        head,
        f"{head.name}: benchmark: found {figures}; wanted what recipe {site.recipe.name} expects; "
        "look at the report, or correct `expect`",
    )


@deploy("benchmark")
def deploy_benchmark(site: Site) -> None:
    """The head measures; the figures go into the report of the run."""
    if site.is_head:
        measured(name="endpoint is measured", site=site)
        judged(name="figures meet the recipe", site=site)
