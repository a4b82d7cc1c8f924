"""Preflight changes nothing; it says all that is wrong, each in a line, and fails the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_host import commands_of, follow
from pyinfra.context import ctx_host

from sparkstack.native import Budget, Host
from tasks import preflight
from tasks.facts import ImageId, Json, Survey
from tasks.site import Site

Sites = Callable[..., list[Site]]
GIB = 2**30
STATE = "/var/lib/sparkstack"
GOOD = {
    "system": "ubuntu:24.04",
    "arch": "aarch64",
    "kernel": "6.14.0-1013-nvidia",
    "clock": "1000.0",
    "user": "root",
    "python": "3.12.3",
    "memory_available": str(100 * GIB),
    "memory_total": str(119 * GIB),
    "disk": {"/var/lib/sparkstack": 900 * GIB, "/var/lib/docker": 900 * GIB},
    "file_system": {"/var/lib/sparkstack": "/", "/var/lib/docker": "/"},
    "docker_root": "/var/lib/docker",
    "cma_total": str(GIB),
    "cma_free": str(GIB // 2),
    "container": "",
    "kernels": {"6.14.0-1013-nvidia": "bootable nvidia", "6.11.0-1016-nvidia": "nvidia"},
    "grub_default": "0",
    "connectx": "0000:01:00.0 0002:01:00.0",
    "log_read": "yes",
    "log": [],
    "port": "free",
    "gpu": "NVIDIA GB10, 12.1, 580.95.05",
    "cuda": "13.0",
    "docker": "28.3.3",
    "nvidia_ctk": "1.17.8",
    "account": "1000",
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)


def check(site: Site, manifest: Any = None, **changes: Any) -> list[Any]:
    site.host.facts = {Survey: {**GOOD, **changes}, Json: manifest, ImageId: None}
    return commands_of(preflight.checks_pass, site.host, site)


def failed(site: Site, commands: list[Any]) -> list[str]:
    """The lines that the user sees when the host fails."""
    assert not follow(commands, site.host)
    lines = [line.removeprefix(f"{site.host.name}: ") for line in site.host.shown]
    return [line for line in lines if not line.startswith("not checked: ")]


def test_a_good_spark_has_nothing_to_say(sites: Sites) -> None:
    (site,) = sites(1, accelerator="gpu")
    assert check(site) == []
    assert site.host.shown == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"system": "ubuntu:22.04"}, "system: found ubuntu 22.04; wanted ubuntu 24.04; "),
        ({"arch": "x86_64"}, "architecture: found x86_64; wanted aarch64; "),
        ({"user": "nvidia"}, "sudo: found no root rights; wanted root rights; "),
        ({"cma_free": str(2 * GIB)}, "contiguous memory: found CmaFree 2.0 GiB, CmaTotal 1.0 GiB; "),
        ({"cuda": "12.8"}, "cuda: found 12.8; wanted 13.0 or newer (default; "),
        ({"grub_first": "6.17.0-1"}, "next boot: found kernel 6.17.0-1 without nvidia.ko; "),
        (
            {"log": ["pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0"]},
            "kernel log of ConnectX-7: found 1 line, the last: pcieport 0000:00:00.0: AER: Uncorrected ",
        ),
        (
            {"log": ["NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] from _memdescAllocInternal"]},
            "kernel log of the GPU: found 1 line, the last: NVRM: Check failed: ",
        ),
        ({"memory_available": str(2 * GIB)}, "memory: found 2.0 GiB available; wanted 3.0 GiB; "),
        (
            {"disk": {"/var/lib/sparkstack": GIB}},
            "disk /var/lib/sparkstack: found 1.0 GiB free; wanted 6.0 GiB",
        ),
        ({"account": "none"}, "user: found no user "),
        ({"docker": None}, "docker: found no Docker; wanted Docker; install it"),
        ({"nvidia_ctk": None}, "container toolkit: found no nvidia-ctk; wanted nvidia-ctk; install it"),
        ({"port": "nginx"}, "port 8000: found nginx; wanted free, or ours; "),
        ({"gpu": ""}, "gpu: found no GPU; wanted one of compute capability 12.1; see `nvidia-smi` there"),
        ({"gpu": "NVIDIA GB10, 12.1, 570.1"}, "driver: found 570.1; wanted 580 or newer (default; "),
        # What nvidia-smi says on standard output when there is nothing to list.
        ({"gpu": "No devices were found"}, "gpu: found no GPU; "),
    ],
)
def test_what_is_wrong_is_one_line(sites: Sites, changes: dict[str, Any], line: str) -> None:
    (site,) = sites(1, accelerator="gpu")
    (said,) = failed(site, check(site, **changes))
    assert said.startswith(line)


def test_all_problems_are_said(sites: Sites) -> None:
    (site,) = sites(1)
    lines = failed(site, check(site, system="debian:12", port="nginx", memory_available="0"))
    assert [line.partition(":")[0] for line in lines] == ["system", "memory", "port 8000"]


def test_every_problem_reaches_the_report(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = sites(1)
    noted: list[str] = []
    monkeypatch.setattr("tasks.report.note_failure", lambda host, line: noted.append(line))
    failed(site, check(site, system="debian:12", port="nginx"))
    assert len(noted) == 2


def test_what_was_not_checked_is_said(sites: Sites) -> None:
    (site,) = sites(1)  # without a GPU
    assert check(site, container="docker", log_read=None) == []
    assert site.host.shown == [
        "spark-1: not checked: container toolkit (accelerator is cpu), gpu (accelerator is cpu), driver "
        "(accelerator is cpu), cuda (accelerator is "
        "cpu), next boot (accelerator is cpu), kernel log of ConnectX-7 (a docker container has no kernel "
        "journal of its own), kernel log of the GPU (a docker container has no kernel journal of its own)"
    ]


@pytest.mark.parametrize(
    ("data", "staged", "disk"),
    [
        # 6 GiB: 2 are downloaded, 2 written anew by the transform, 2 are the image.
        ({}, {}, {"/var/lib/sparkstack": 4, "/var/lib/docker": 2}),
        ({}, {"downloaded": str(GIB)}, {"/var/lib/sparkstack": 3, "/var/lib/docker": 2}),
        ({}, {"image": "sha256:1"}, {"/var/lib/sparkstack": 4, "/var/lib/docker": 0}),
        ({}, {"manifest": {"id": "x"}}, {"/var/lib/sparkstack": 0, "/var/lib/docker": 2}),
        ({"docker_data_root": "/data"}, {}, {"/var/lib/sparkstack": 4, "/data": 2}),
    ],
)
def test_room_is_asked_for_where_it_is_needed(
    sites: Sites, data: dict[str, Any], staged: dict[str, Any], disk: dict[str, int]
) -> None:
    (site,) = sites(1, **data)
    budget = Budget(memory_gib=3, disk_gib=6, download_gib=2)
    site = replace(site, recipe=site.recipe.model_copy(update={"budget": budget}))
    site.host.facts = {Json: staged.pop("manifest", None), ImageId: staged.pop("image", None)}
    survey = {**GOOD, **staged}
    with ctx_host.use(site.host):
        wanted = preflight._wanted(site, survey)
    assert wanted.disk_bytes == {folder: size * GIB for folder, size in disk.items()}


@pytest.mark.parametrize(
    ("systems", "data", "disk"),
    [
        ({"downloads": "/"}, {}, {STATE: 4, "/var/lib/docker": 2}),
        ({"checkpoints": "/fast"}, {}, {STATE: 2, f"{STATE}/checkpoints": 2, "/var/lib/docker": 2}),
        ({"downloads": "/big"}, {}, {STATE: 2, f"{STATE}/downloads": 2, "/var/lib/docker": 2}),
        (
            {"downloads": "/big", "checkpoints": "/big"},
            {},
            {STATE: 0, f"{STATE}/downloads": 2, f"{STATE}/checkpoints": 2, "/var/lib/docker": 2},
        ),
        # containerd's store is not moved by Docker's data root
        ({}, {"image_store": "containerd", "docker_root": "/c"}, {STATE: 4, "/c": 2}),
    ],
)
def test_room_is_asked_for_on_the_disk_that_is_mounted_there(
    sites: Sites, systems: dict[str, str], data: dict[str, str], disk: dict[str, int]
) -> None:
    (site,) = sites(1, docker_data_root="/data" if data else None)
    budget = Budget(memory_gib=3, disk_gib=6, download_gib=2)
    site = replace(site, recipe=site.recipe.model_copy(update={"budget": budget}))
    site.host.facts = {Json: None, ImageId: None}
    mounted = {f"{STATE}/{name}": mount for name, mount in systems.items()}
    survey = {**GOOD, **data, "file_system": {**GOOD["file_system"], **mounted}}  # type: ignore[dict-item]
    with ctx_host.use(site.host):
        wanted = preflight._wanted(site, survey)
    assert wanted.disk_bytes == {folder: size * GIB for folder, size in disk.items()}


def test_the_port_is_wanted_where_the_endpoint_is(sites: Sites) -> None:
    head, worker = sites(2)
    assert check(worker, port="nginx (pid 8)") == []
    (said,) = failed(head, check(head, port="nginx (pid 8)"))
    assert said.startswith("port 8000: found nginx (pid 8); wanted free, or ours; ")


@pytest.mark.parametrize(
    ("first", "last", "offset"), [(1000.2, 1003.9, 0), (1003, 1007, 3), (997, 1001, -3), (1000.5, 1003, 0)]
)
def test_a_survey_that_takes_its_time_hides_no_difference(first: float, last: float, offset: float) -> None:
    """Asked at 1000, answered at 1004."""
    facts = preflight.host_facts("spark-1", {"clock": str(first), "clock_last": str(last)}, 1000.0, 1004.0)
    assert facts.clock_epoch_s == offset


def test_room_for_a_staged_checkpoint_is_not_asked_for_again(sites: Sites) -> None:
    (site,) = sites(1)
    full = {"/var/lib/sparkstack": 0}
    assert check(site, disk=full) != []
    assert check(site, {"id": site.checkpoint_id}, disk=full) == []


def test_memory_of_our_own_server_counts_as_free(sites: Sites) -> None:
    (site,) = sites(1)
    assert check(site, port="sparkstack", serving="yes", memory_available="0") == []


def test_the_recipe_names_a_driver(sites: Sites) -> None:
    (site,) = sites(1, accelerator="gpu")
    site = replace(site, recipe=site.recipe.model_copy(update={"host": Host(driver="590")}))
    (said,) = failed(site, check(site))
    assert said.startswith("driver: found 580.95.05; wanted 590 or newer (the recipe's); ")


def test_a_host_that_says_nothing_fails_in_words(sites: Sites) -> None:
    """Survey's value where the command failed."""
    (site,) = sites(1)
    site.host.facts = {Survey: {}, Json: None}
    assert failed(site, commands_of(preflight.checks_pass, site.host, site))


def test_hosts_agree(sites: Sites) -> None:
    head, worker = sites(2)
    assert check(head) == check(worker, clock="1001.5") == []
    assert commands_of(preflight.hosts_agree, head.host, head) == []


def test_hosts_differ(sites: Sites) -> None:
    head, worker = sites(2)
    check(head)
    check(worker, kernel="6.11.0", gpu="NVIDIA GB10, 12.1, 575.1", clock="1090.0")
    assert not follow(commands_of(preflight.hosts_agree, head.host, head), head.host)
    kernel, driver, clocks = (line for line in head.host.shown if "not checked" not in line)
    assert kernel.startswith(
        "all hosts: kernel: found spark-1 6.14.0-1013-nvidia, spark-2 6.11.0; wanted the same on all hosts"
    )
    assert driver.startswith("all hosts: driver: found spark-1 580.95.05, spark-2 575.1; ")
    assert clocks.startswith("all hosts: clocks: found 90.0 s between spark-1 and spark-2; ")


def test_a_dry_run_says_it_too(sites: Sites) -> None:
    """A dry run follows no command: what it has to say is said while the operation is prepared."""
    (site,) = sites(1)
    site.host.state.is_executing = False
    assert check(site, system="debian:12", port="nginx") != []
    assert [line.split(": ")[1] for line in site.host.shown] == ["system", "port 8000"]
