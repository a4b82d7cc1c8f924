# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstack.preflight import CheckResult, Gpu, HostFacts, Wanted, across, check, nodes
from sparkstack.recipe import load_recipe

GIB = 2**30
FACTS = HostFacts(
    name="spark-1",
    os_id="ubuntu",
    os_version="24.04",
    arch="aarch64",
    memory_available_bytes=100 * GIB,
    memory_total_bytes=119 * GIB,
    disk_free={"/var/lib/sparkstack": 500 * GIB},
    port_owner="free",
    sudo_ok=True,
    python_version="3.12.3",
    gpu=Gpu("NVIDIA GB10", "12.1", "580.95.05"),
    kernel="6.14.0-1013-nvidia",
    clock_epoch_s=1000.0,
)
WANTED = Wanted(memory_bytes=90 * GIB, disk_bytes={"/var/lib/sparkstack": 200 * GIB})


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results}


def test_a_good_spark() -> None:
    results = check(FACTS, WANTED)
    assert {result.status for result in results} == {"ok"}
    assert [result.name for result in results] == [
        "system", "sudo", "python", "memory", "disk /var/lib/sparkstack", "port 8000", "gpu", "driver"
    ]  # fmt: skip
    assert str(results[0]) == "spark-1: system: ok (ubuntu 24.04)"


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            replace(FACTS, os_id="debian", os_version="12"),
            "spark-1: system: found debian 12; wanted ubuntu 24.04; install one of these, or add this one to "
            "the accepted systems once you have tried it",
        ),
        (
            replace(FACTS, sudo_ok=False),
            "spark-1: sudo: found no root rights without a password; wanted root rights without a password; "
            "add the user to sudoers with NOPASSWD",
        ),
        (
            replace(FACTS, python_version="3.8.10"),
            "spark-1: python: found Python 3.8.10; wanted 3.9 or newer; install python3",
        ),
        (
            replace(FACTS, memory_available_bytes=50 * GIB),
            "spark-1: memory: found 50.0 GiB available; wanted 90.0 GiB; stop what uses it, or take a smaller recipe",
        ),
        (
            replace(FACTS, disk_free={"/var/lib/sparkstack": GIB}),
            "spark-1: disk /var/lib/sparkstack: found 1.0 GiB free; wanted 200.0 GiB; free some of it; old "
            "checkpoints are the largest",
        ),
        (
            replace(FACTS, port_owner="nginx"),
            "spark-1: port 8000: found nginx; wanted free, or ours; stop that process, or choose another serve.port",
        ),
        (
            replace(FACTS, gpu=None),
            "spark-1: gpu: found no GPU; wanted one of compute capability 12.1; see `nvidia-smi` there; after a "
            "kernel upgrade its driver modules may be missing",
        ),
        (
            replace(FACTS, gpu=Gpu("H200", "9.0", "580.1")),
            "spark-1: gpu: found H200, compute capability 9.0; wanted compute capability 12.1; the image is "
            "built for a DGX Spark's GB10; use one",
        ),
        (
            replace(FACTS, gpu=Gpu("NVIDIA GB10", "12.1", "575.57")),
            "spark-1: driver: found 575.57; wanted 580 or newer; upgrade DGX OS, and restart",
        ),
    ],
)
def test_each_fault_is_one_line(facts: HostFacts, line: str) -> None:
    failed = [result for result in check(facts, WANTED) if result.status != "ok"]
    assert [str(result) for result in failed] == [line]


def test_versions_are_compared_as_numbers() -> None:
    assert by_name(check(replace(FACTS, python_version="3.10.0"), WANTED))["python"].status == "ok"


def test_accepted_systems_are_a_parameter() -> None:
    debian = replace(FACTS, os_id="debian", os_version="12")
    wanted = replace(WANTED, systems=(("ubuntu", "24.04"), ("debian", "12")))
    assert by_name(check(debian, wanted))["system"].status == "ok"


def test_without_a_gpu_on_cpu_the_gpu_is_not_checked() -> None:
    result = by_name(check(replace(FACTS, gpu=None), replace(WANTED, accelerator="cpu")))
    assert result["gpu"].status == "not checked"
    assert "driver" not in result
    assert str(result["gpu"]) == "spark-1: gpu: not checked (accelerator is cpu)"


def test_what_a_host_did_not_say_is_not_checked() -> None:
    facts = replace(FACTS, port_owner=None, python_version=None, disk_free={})
    results = by_name(check(facts, WANTED))
    for name in ("port 8000", "python", "disk /var/lib/sparkstack"):
        assert results[name].status == "not checked"


def test_while_our_server_runs_the_total_memory_counts() -> None:
    facts = replace(FACTS, port_owner="sparkstack", memory_available_bytes=GIB)
    results = by_name(check(facts, WANTED))
    assert results["memory"].status == results["port 8000"].status == "ok"
    assert results["memory"].found == "119.0 GiB in total (our server runs)"


def test_one_host_has_nothing_to_be_alike_with() -> None:
    assert across([FACTS]) == []


def test_like_hosts() -> None:
    results = across([FACTS, replace(FACTS, name="spark-2", clock_epoch_s=1004.0)])
    assert [(result.name, result.status) for result in results] == [
        ("architecture", "ok"), ("kernel", "ok"), ("driver", "ok"), ("clocks", "ok")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"arch": "x86_64"}, "all hosts: architecture: found spark-1 aarch64, spark-2 x86_64; wanted the same on all hosts; use like machines"),
        ({"kernel": "6.17"}, "all hosts: kernel: found spark-1 6.14.0-1013-nvidia, spark-2 6.17; wanted the same on all hosts; bring all hosts to the same DGX OS update"),
        ({"gpu": Gpu("NVIDIA GB10", "12.1", "590.1")}, "all hosts: driver: found spark-1 580.95.05, spark-2 590.1; wanted the same on all hosts; bring all hosts to the same DGX OS update"),
        ({"clock_epoch_s": 940.0}, "all hosts: clocks: found 60.0 s between spark-2 and spark-1; wanted at most 30 s apart; switch time synchronisation on (timedatectl set-ntp true)"),
    ],
)  # fmt: skip
def test_hosts_that_differ(other: dict[str, object], line: str) -> None:
    results = across([FACTS, replace(FACTS, name="spark-2", **other)])  # type: ignore[arg-type]
    assert [str(result) for result in results if result.status == "failed"] == [line]


def test_what_one_of_them_did_not_say_is_not_checked() -> None:
    silent = replace(FACTS, name="spark-2", gpu=None, kernel="", clock_epoch_s=None)
    results = by_name(across([FACTS, silent]))
    for name in ("kernel", "driver", "clocks"):
        assert results[name].status == "not checked"
    assert results["clocks"].found == "no clock of spark-2"


def test_the_recipe_against_the_number_of_hosts() -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "lab-tiny.yaml")
    assert nodes(recipe, 2).status == "ok"
    assert str(nodes(recipe, 3)) == (
        "all hosts: nodes: found 3 hosts; wanted 1 to 2; change the inventory or the recipe lab-tiny"
    )
