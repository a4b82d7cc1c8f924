"""What all tests of operations share: no waiting, no wheel builds, and a cluster of fake hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost

from sparkstack import topology
from sparkstack.recipe import load_recipe
from tasks import preflight, wheels
from tasks.site import Site

HERE = Path(__file__).resolve().parent

# Tests of defects that are not mended yet (part of a test's id -> what is wrong); a mended one fails here
# until its line is deleted.
NOT_HANDED_ON = "pyinfra hands a FunctionCommand state and host only under just these names"
KNOWN_DEFECTS = {
    "benchmark.py::test_a_miss_fails": f"tasks/benchmark.py _missed: {NOT_HANDED_ON}",
    "benchmark.py::test_no_measurement_to_judge": f"tasks/benchmark.py _judge_fresh: {NOT_HANDED_ON}",
    "checkpoint.py::test_image_is_fetched": f"tasks/share.py _open: {NOT_HANDED_ON}",
    "checkpoint.py::test_the_token_travels": f"tasks/share.py _open: {NOT_HANDED_ON}",
    "checkpoint.py::test_a_share_that_does_not_start": f"tasks/share.py _open: {NOT_HANDED_ON}",
    "checkpoint.py::test_a_job_of_the_worker": f"tasks/share.py _open: {NOT_HANDED_ON}",
    "serve.py::test_stop_all_switch_all": f"tasks/serve.py _activate: {NOT_HANDED_ON}",
    "serve.py::test_a_step_that_fails": f"tasks/serve.py _activate: {NOT_HANDED_ON}",
    "serve.py::test_a_rank_that_starts_again": f"tasks/serve.py _activate: {NOT_HANDED_ON}",
    "serve.py::test_no_completion_in_time": f"tasks/serve.py _activate: {NOT_HANDED_ON}",
    "serve.py::test_a_rank_that_does_not_answer": "tasks/serve.py _restarts takes an error for a count",
    "benchmark.py::test_the_measurement_as_the_job": "the job adds `endpoint` to the profile",
    "real.py::test_survey[true-echo": "tasks/survey.sh: a worker's running rank is not seen",
    "preflight.py::test_what_is_wrong_is_one_line[changes7": "tasks/preflight.py: an excuse taken for a GPU",
    "preflight.py::test_every_problem_reaches": "tasks/preflight.py _show notes the last problem only",
    "preflight.py::test_a_host_that_says_nothing": "tasks/preflight.py: KeyError for a survey without answer",
    "jobs.py::test_host_stops_answering[silence": "tasks/remote.py shell: a lost connection raises",
    "jobs.py::test_script_whose_host_stops_answering[silence": "tasks/remote.py shell: likewise",
}
NOT_DEFECTIVE = ("answering[silence0]",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part, reason in KNOWN_DEFECTS.items():
            if f"_{part}" in item.nodeid and not item.nodeid.endswith(NOT_DEFECTIVE):
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)  # fixtures name files beside them
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(preflight, "_asked", {})


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Site]]:
    """`sites(2, **data)`: the site as each of two fake hosts sees it, the head first."""
    wheel = HERE / "fixtures" / "sparkstack_vllm-0.1.0-py3-none-any.whl"
    monkeypatch.setattr(wheels, "build", lambda source: (wheel, "0123456789ab"))

    def make(count: int, **data: Any) -> list[Site]:
        data = {"accelerator": "cpu", **data}
        hosts = [
            FakeHost(f"spark-{n}", ssh_hostname=f"10.0.0.{n}", _sudo=True, **data)
            for n in range(1, count + 1)
        ]
        kind = {1: "single", 2: "pair"}.get(count, "switch")
        plan = topology.plan(kind, [host.name for host in hosts])
        recipe = load_recipe(HERE / "recipe.yaml")
        return [Site(host, rank, hosts, recipe, plan) for rank, host in enumerate(hosts)]

    return make
