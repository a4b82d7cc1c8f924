"""The check at the end: measured on the endpoint, compared with what the recipe expects."""

from __future__ import annotations

import json
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import gates, knobs, releases
from sparkstack.errors import SparkstackError
from sparkstack.releases import History, OnHost
from tasks import activation, cleaning, drift, report, serve
from tasks.activation import Releases
from tasks.facts import Json
from tasks.files import Commands, ManagedFile
from tasks.remote import fail, job, report_failure
from tasks.site import Site


def same_measurement(found: Any, site: Site) -> bool:
    if not found or found.get("release") != site.release_id:
        return False
    # The job notes more in the profile (which endpoint it used); what was asked for must be in it.
    return all(found.get("profile", {}).get(key) == value for key, value in site.profile.items())


@operation()
def measured(site: Site) -> Commands:
    """Measure the endpoint from the head, as a job.

    No-op when this release has been measured with this profile. A release that stops answering while it is
    measured, and never met what was expected of it, makes way for the one before.
    """
    if not site.is_head:
        return
    if same_measurement(host.get_fact(Json, path=site.measurement_path), site):
        host.noop(f"release {site.release_id} has been measured")
        return
    drift.differs(site.measurement_path, "absent, or of another profile", "a measurement of this release")
    yield FunctionCommand(_serves, (site,), {})
    yield from job(
        {
            "job": f"sparkstack-bench-{site.release_id}",
            "kind": "bench",
            "jobs_dir": site.jobs_dir,
            "url": site.endpoint,
            "model": site.served_model,
            "api_key_file": site.api_key_path,
            "release": site.release_id,
            "result": site.measurement_path,
            "profile": site.profile,
        },
        failed=lambda host: _not_measured(host, site),
    )


def _serves(state: Any, host: Any, site: Site) -> bool:
    """Figures of another release must not be kept as this one's: a run may leave `serve` out."""
    current = activation.kept_by(host).current
    return current in (None, site.release_id) or report_failure(
        host,
        f"{host.name}: benchmark: found release {current} serving; wanted {site.release_id}, that of "
        f"recipe {site.recipe.name}; run the stage serve, too",
    )


def _not_measured(host: Any, site: Site) -> None:
    """The job has failed and said why. That may be anybody's fault; a head that answers no more is its
    release's."""
    kept = activation.kept_by(host)
    back = releases.before(kept, site.release_id)
    if _may_go_back(site, kept) and back and not serve.completes(site):
        why = "it stopped answering while it was measured"
        activation.give_back(host, serve.target_of(site), back, "gate", why)


def _may_go_back(site: Site, kept: OnHost) -> bool:
    return releases.on_trial(kept, site.release_id) and not knobs.switched_on(site.data, "keep_failed")


def _unmeasured(state: Any, host: Any, path: str) -> bool:
    return report_failure(host, f"{host.name}: benchmark: found no measurement; wanted {path}; run again")


@operation()
def judged(site: Site) -> Commands:
    """Compare the measurement with the recipe's expectations and keep the verdict beside it.

    No-op when the verdict stands already. A miss fails the host with the figures, on every run; a release
    that never met what was expected of it makes way for the one before.
    """
    if not site.is_head:
        return
    measurement = host.get_fact(Json, path=site.measurement_path)
    if not same_measurement(measurement, site):
        # A run measures first, and has failed by now where it could not: only who looks ahead finds none.
        drift.differs(site.verdict_path, "no measurement to judge", "the verdict on one")
        yield FunctionCommand(_unmeasured, (site.measurement_path,), {})
        return
    try:
        verdict = gates.judge(measurement, site.recipe.expect).as_dict()
    except SparkstackError as error:
        yield fail(f"{host.name}: benchmark: {error}")
        return
    if host.state.is_executing:  # who looks ahead notes nothing: it may come otherwise
        report.note_benchmark(site, measurement, verdict)
    if host.get_fact(Json, path=site.verdict_path) != verdict:
        text = json.dumps(verdict, indent=1) + "\n"
        yield ManagedFile.text(site.verdict_path, text).write()
    kept = host.get_fact(Releases, config_dir=site.data.config_dir)
    if verdict["ok"]:
        mine = kept.releases.get(site.release_id)
        if mine is not None and mine.history.passed is None:
            yield FunctionCommand(_passed, (site.release_id,), {})
        return
    missed = [line for line in verdict["lines"] if line["verdict"] == "fail"]
    figures = ", ".join(f"{line['name']} {line['measured']} (expected {line['expected']})" for line in missed)
    line = (
        f"{host.name}: benchmark: found {figures}; wanted what recipe {site.recipe.name} expects; "
        "look at the report, or correct `expect`"
    )
    if not _may_go_back(site, kept):
        yield fail(line)
    else:
        back = releases.before(kept, site.release_id)

        def missed_it(state: Any, host: Any) -> bool:
            report_failure(host, line)
            return activation.give_back(host, serve.target_of(site), back, "gate", figures)

        missed_it.lines = (line,)  # type: ignore[attr-defined]  # the doctor says them and runs nothing
        yield FunctionCommand(missed_it, (), {})


def _passed(state: Any, host: Any, release: str) -> bool:
    kept = activation.kept_by(host).releases.get(release)
    history = kept.history if kept else History()
    note = History(history.served, activation.now(), None)
    return activation.put(host, activation.history_path(host, release), note.as_dict())


@deploy("benchmark")
def deploy_benchmark(site: Site) -> None:
    """The head measures; the figures go into the report of the run. What only old releases needed goes."""
    measured(name="endpoint is measured", site=site)
    judged(name="figures meet the recipe", site=site)
    cleaning.collected(name="old releases are gone", site=site)
