"""The check at the end: measured on the endpoint, compared with what the recipe expects."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import gates, knobs, releases
from sparkstack.errors import SparkstackError
from sparkstack.expectation import covers
from sparkstack.releases import History, OnHost
from tasks import activation, cleaning, drift, live, report, serve
from tasks.activation import Releases
from tasks.facts import Ask, Json
from tasks.files import Commands, ManagedFile
from tasks.remote import Watch, fail, job, report_failure
from tasks.site import Site


def asks(site: Site) -> list[Ask]:
    """The facts that the stage's operations ask of a host whose release was measured."""
    if not site.is_head:
        return []
    paths = (site.measurement_path, site.verdict_path) if site.is_measured else ()
    return [
        *((Json, {"path": path}) for path in paths),
        (Releases, {"config_dir": site.data.config_dir}),
    ]


def same_measurement(found: Any, site: Site) -> bool:
    """Whether this is a measurement of the release with the profile that is asked for, or a larger one."""
    mine = bool(found) and found.get("release") == site.release_id
    return mine and covers(found.get("profile"), site.profile)


def settled(found: Any, site: Site) -> bool:
    """Whether the measurement says what it was made for: one that decides nothing, or was stopped before its
    end, is made again."""
    if not same_measurement(found, site) or found.get("complete") is False:
        return False
    try:
        return gates.judge(found, site.recipe.expect).result != "inconclusive"
    except SparkstackError:
        return True  # `judged` says what is wrong with it


@operation()
def measured(site: Site) -> Commands:
    """Measure the endpoint from the head, as a job.

    No-op when this release has been measured with this profile (or a larger one) and the figures decide
    something, and where `benchmark` is off. A release that stops answering while it is measured, and never
    met what was expected of it, makes way for the one before. Ctrl-C ends the job, and the report has what
    was measured until then.
    """
    if not site.is_head:
        return
    if not site.is_measured:
        host.noop("benchmark is off")
        drift.not_checked(site.measurement_path, "benchmark is off")
        return
    found = host.get_fact(Json, path=site.measurement_path)
    if settled(found, site):
        host.noop(f"release {site.release_id} has been measured")
        return
    there = "inconclusive" if same_measurement(found, site) else "absent, or of another profile"
    drift.differs(site.measurement_path, there, "a measurement of this release")
    yield FunctionCommand(_serves, (site,), {})
    plan = {
        "job": f"sparkstack-bench-{site.release_id}",
        "kind": "bench",
        "jobs_dir": site.jobs_dir,
        "url": site.endpoint,
        "model": site.served_model,
        "api_key_file": site.api_key_path,
        "release": site.release_id,
        "result": site.measurement_path,
        "previous": _answers_before(site),
        "profile": site.profile,
    }
    watch = Watch(live.table)
    yield from job(plan, failed=lambda host: _not_measured(host, site, watch), watch=watch)


def _answers_before(site: Site) -> str | None:
    """The greedy answers of the release before, to compare with."""
    back = releases.before(host.get_fact(Releases, config_dir=site.data.config_dir), site.release_id)
    return f"{site.data.state_dir}/results/{back}/answers.json" if back else None


def _serves(state: Any, host: Any, site: Site) -> bool:
    """Figures of another release must not be kept as this one's: a run may leave `serve` out."""
    current = activation.kept_by(host).current
    return current in (None, site.release_id) or report_failure(
        host,
        f"{host.name}: benchmark: found release {current} serving; wanted {site.release_id}, that of "
        f"recipe {site.recipe.name}; run the stage serve, too",
    )


def _not_measured(host: Any, site: Site, watch: Watch) -> None:
    """The job has failed and said why, or Ctrl-C ended it. What it had measured goes into the report. A
    failure may be anybody's fault; a head that answers no more is its release's."""
    partial = live.partial(host, f"{site.jobs_dir}/sparkstack-bench-{site.release_id}")
    if partial is not None and partial.get("release") == site.release_id:
        with suppress(SparkstackError):
            report.note_benchmark(site, partial, gates.judge(partial, site.recipe.expect).as_dict())
    if watch.interrupted:
        report_failure(host, f"{host.name}: benchmark: found {watch.interrupted}; {live.INTERRUPTED}")
        return
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

    No-op when the verdict stands already, and where `benchmark` is off. A miss fails the host with the
    figures, on every run; a release that never met what was expected of it makes way for the one before. A
    measurement that decides nothing (a noisy machine) fails the host, too, but the release goes on serving.
    """
    if not site.is_head:
        return
    if not site.is_measured:
        if host.state.is_executing:
            report.note_endpoint(site)
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
    if verdict["result"] == "inconclusive":
        yield fail(
            f"{host.name}: benchmark: found no result ({verdict['why']}); wanted figures that can be "
            f"believed; release {site.release_id} goes on serving; {gates.remedy(measurement, 'benchmark')}"
        )
        return
    figures = gates.missed(verdict)
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
