"""The measurement is taken once a release and profile, and judged on every run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of, follow, shell_lines, written

from sparkstack import gates
from sparkstack.report import RunReport
from tasks import benchmark, report
from tasks.facts import Json
from tasks.site import Site

Sites = Callable[..., list[Site]]


def measurement(site: Site, tok_s: float, **changes: Any) -> dict[str, Any]:
    def spread(value: float) -> dict[str, float]:
        return {"median": value, "min": value, "max": value, "n": 3}

    point = {"streams": 1, "requests": 3, "failed": 0, "ttft_s": spread(0.1)}
    return {
        "format": 1,
        "release": site.release_id,
        "when": "2026-01-02T03:04:05Z",
        "profile": site.profile,
        "points": [{**point, "decode_tok_s": spread(tok_s), "total_tok_s": tok_s}],
        "sane": {"ok": True, "found": "4 different answers"},
        **changes,
    }


def results(site: Site, measured: Any, verdict: Any = None) -> None:
    known = {site.measurement_path: measured, site.verdict_path: verdict}
    site.host.facts = {Json: lambda path: known.get(path)}


def test_a_release_without_a_measurement_is_measured(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, None)
    site.host.answers = {"look at job": 'inactive\n{"ok": true, "seconds": 1, "value": {}}'}
    commands = commands_of(benchmark.measured, site.host, site)
    (plan,) = written(commands).values()
    job = f"sparkstack-bench-{site.release_id}"
    assert json.loads(plan) == {
        "job": job,
        "kind": "bench",
        "jobs_dir": "/var/lib/sparkstack/jobs",
        "url": "http://127.0.0.1:8000",
        "model": "org/model",
        "api_key_file": None,
        "release": site.release_id,
        "result": f"/var/lib/sparkstack/results/{site.release_id}/measurement.json",
        "previous": None,
        "profile": {"name": "smoke", "streams": [1], "max_tokens": 64, "warmup": 1, "repeats": 3},
    }
    assert follow(commands, site.host)
    assert any(f"--unit={job} " in line for line in site.host.heard)


def test_a_measured_release_is_not_measured_again(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20))
    assert commands_of(benchmark.measured, site.host, site) == []
    assert site.host.noops == [f"release {site.release_id} has been measured"]


def test_the_measurement_as_the_job_writes_it_counts(sites: Sites) -> None:
    """The job `bench` adds to the profile which endpoint it asked."""
    (site,) = sites(1)
    results(site, measurement(site, 20, profile={"endpoint": "chat", **site.profile}))
    assert commands_of(benchmark.measured, site.host, site) == []


def test_another_profile_is_measured_anew(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20, profile={**site.profile, "max_tokens": 32}))
    assert commands_of(benchmark.measured, site.host, site) != []


def test_a_pass_is_written_down(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20))
    commands = commands_of(benchmark.judged, site.host, site)
    ((path, text),) = written(commands).items()
    verdict = json.loads(text)
    assert path.endswith(f"/results/{site.release_id}/verdict.json")
    assert verdict["ok"] and verdict["release"] == site.release_id
    assert follow(commands, site.host)


def test_a_verdict_that_stands_is_left_alone(sites: Sites) -> None:
    (site,) = sites(1)
    measured = measurement(site, 20)
    verdict = json.loads(gates.judge(measured, site.recipe.expect).to_json())
    results(site, measured, verdict)
    assert commands_of(benchmark.judged, site.host, site) == []


def test_a_miss_fails_with_the_figures_on_every_run(sites: Sites) -> None:
    (site,) = sites(1)
    measured = measurement(site, 4.5)
    verdict = json.loads(gates.judge(measured, site.recipe.expect).to_json())
    results(site, measured, verdict)
    commands = commands_of(benchmark.judged, site.host, site)
    assert shell_lines(commands) == []
    assert not follow(commands, site.host)
    assert site.host.shown == [
        "spark-1: benchmark: found decode_tok_s@1 4.5 (expected ≥ 10.0); wanted what recipe test-recipe "
        "expects; look at the report, or correct `expect`"
    ]


def test_no_measurement_to_judge(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, None)
    assert not follow(commands_of(benchmark.judged, site.host, site), site.host)
    assert site.host.shown == [
        f"spark-1: benchmark: found no measurement; wanted {site.measurement_path}; run again"
    ]


def test_a_measurement_of_another_profile_is_not_judged(sites: Sites) -> None:
    """A look ahead: the run will measure anew, so that what these figures miss stops nothing."""
    (site,) = sites(1)
    results(site, measurement(site, 4.5, profile={**site.profile, "max_tokens": 32}))
    commands = commands_of(benchmark.judged, site.host, site)
    assert written(commands) == {} and not any(hasattr(one.function, "lines") for one in commands)


def test_a_measurement_that_cannot_be_judged(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20, points=[{"streams": "one"}]))
    commands = commands_of(benchmark.judged, site.host, site)
    assert written(commands) == {}
    assert not follow(commands, site.host)
    (line,) = site.host.shown
    assert line.startswith("spark-1: benchmark: ")


def test_a_miss_is_written_down_before_it_fails(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 4.5))
    commands = commands_of(benchmark.judged, site.host, site)
    (text,) = written(commands).values()
    assert json.loads(text)["ok"] is False
    assert not follow(commands, site.host)
    assert site.host.kinds() == ["write"]
    assert len(site.host.shown) == 1


NOISE = {"spread": 0.4, "limit": 0.1, "repeated": 1, "verdict": "noisy"}
WHY = "the machine is noisy: spread 40 % over 10 % after one more try"


def test_what_is_inconclusive_fails_the_run_and_leaves_the_release(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20, noise=NOISE))
    commands = commands_of(benchmark.judged, site.host, site)
    (text,) = written(commands).values()
    assert json.loads(text)["result"] == "inconclusive"
    assert not follow(commands, site.host)
    assert site.host.shown == [
        f"spark-1: benchmark: found no result ({WHY}); wanted figures that can be believed; release "
        f"{site.release_id} goes on serving; run again when nothing else runs there"
    ]
    assert site.host.kinds() == ["write"]  # nothing is activated, nothing is noted as passed


@pytest.mark.parametrize(
    ("decode", "changes"),
    [(20, {"noise": NOISE}), (20, {"complete": False}), (4.5, {"complete": False})],
)
def test_what_decided_nothing_or_was_stopped_is_measured_anew(
    sites: Sites, decode: float, changes: dict[str, Any]
) -> None:
    (site,) = sites(1)
    results(site, measurement(site, decode, **changes))
    assert commands_of(benchmark.measured, site.host, site) != []


def test_a_larger_profile_is_not_measured_over(sites: Sites) -> None:
    (site,) = sites(1)
    results(site, measurement(site, 20, profile={"name": "standard", "streams": [1, 2, 4]}))
    assert commands_of(benchmark.measured, site.host, site) == []


def test_the_profile_is_a_knob(sites: Sites) -> None:
    (site,) = sites(1, benchmark="full")
    results(site, measurement(site, 20, profile={"name": "smoke", "streams": [1]}))
    (plan,) = written(commands_of(benchmark.measured, site.host, site)).values()
    assert json.loads(plan)["profile"] == {"name": "full"}


def test_off_nothing_is_measured_or_judged(sites: Sites) -> None:
    (site,) = sites(1, benchmark="off")
    results(site, measurement(site, 0.1))
    assert commands_of(benchmark.measured, site.host, site) == []
    assert commands_of(benchmark.judged, site.host, site) == []
    assert site.host.noops == ["benchmark is off"]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> RunReport:
    """The report of the run that goes on."""
    run = RunReport(when="20260102T030405Z", recipe="test-recipe", release="x")
    monkeypatch.setattr(report, "_report", run)
    return run


def test_ctrl_c_ends_the_job_and_keeps_what_there_is(
    sites: Sites, noted: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site,) = sites(1)
    results(site, None)
    partial = measurement(site, 20, format=2, complete=False)
    running = '{"stage": "bench", "done": 1, "total": 4, "unit": "requests", "note": ""}\nactive\n'
    site.host.answers = {
        "look at job": [running, running, "inactive\n"],
        "read measurement": json.dumps(partial),
    }

    def pressed(text: str, plain: Any = site.host.run_shell_command) -> None:
        if sum("tail -n 1" in line for line in site.host.heard) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("time.sleep", pressed)
    commands = commands_of(benchmark.measured, site.host, site)
    assert not follow(commands, site.host)
    job = f"sparkstack-bench-{site.release_id}"
    assert site.host.heard.count(f"systemctl stop --no-block {job}") == 1
    # What an earlier run of the job left is not this one's part.
    begun = next(line for line in site.host.heard if "systemd-run" in line)
    folder = f"/var/lib/sparkstack/jobs/{job}"
    assert f"rm -f {folder}/result.json {folder}/measurement.json;" in begun
    assert site.host.shown == [
        "spark-1: benchmark: found Ctrl-C; wanted the whole measurement; the report has what was measured "
        "until then; run again"
    ]
    assert noted.measurement == partial and noted.verdict is not None
    assert noted.verdict["result"] == "inconclusive" and not noted.ok


def test_a_job_that_dies_leaves_its_part_to_the_report(sites: Sites, noted: RunReport) -> None:
    (site,) = sites(1)
    results(site, None)
    partial = measurement(site, 20, format=2, complete=False)
    failed = 'inactive\n{"ok": false, "seconds": 1, "error": "found HTTP 401 from x; wanted a key; check"}'
    site.host.answers = {"look at job": failed, "read measurement": json.dumps(partial)}
    assert not follow(commands_of(benchmark.measured, site.host, site), site.host)
    assert site.host.shown == [
        f"sparkstack-bench-{site.release_id}: found HTTP 401 from x; wanted a key; check"
    ]
    assert noted.measurement == partial and not noted.ok
