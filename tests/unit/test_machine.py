"""What a host's words mean, when systemd may read its files again, and what Docker's settings become."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkstack import conda, docker_settings, machine
from sparkstack.errors import SparkstackError
from sparkstack.machine import Machine, Unit

WORDS = """container=none
gpu=yes
swappiness=60
swaps=/swap.img /dev/zram0
swap_used=4096
memory_available=1000
target=graphical.target
unit:ssh.service=enabled,active,yes,-1000
unit:earlyoom.service=,inactive,no,0
installed=curl linux-image-6.17
held=linux-image-6.17
cgroup_driver=systemd
gpu_containers=jupyter sparkstack-serve """


def test_a_hosts_words() -> None:
    state = machine.parse(WORDS.splitlines())
    assert state == Machine(
        container=False,
        gpu=True,
        swappiness=60,
        swaps=("/swap.img", "/dev/zram0"),
        swap_used_bytes=4096,
        memory_available_bytes=1000,
        target="graphical.target",
        units={
            "ssh.service": Unit("enabled", "active", True, "-1000"),
            "earlyoom.service": Unit("", "inactive", False, "0"),
        },
        installed=frozenset(["curl", "linux-image-6.17"]),
        held=frozenset(["linux-image-6.17"]),
        gpu_containers=("jupyter", "sparkstack-serve"),
        cgroup_driver="systemd",
    )


def test_a_host_that_says_nothing() -> None:
    assert machine.parse([]) == Machine()


@pytest.mark.parametrize(
    ("containers", "driver", "apart_from", "refused"),
    [
        ((), "systemd", [], False),
        (("a",), "systemd", [], True),
        (("a",), "", [], True),  # a daemon that did not say: the careful answer
        (("a",), "cgroupfs", [], False),
        (("sparkstack-serve",), "systemd", ["sparkstack-serve"], False),
        (("sparkstack-serve", "a"), "systemd", ["sparkstack-serve"], True),
    ],
)
def test_when_a_reload_is_safe(
    containers: tuple[str, ...], driver: str, apart_from: list[str], refused: bool
) -> None:
    state = Machine(gpu_containers=containers, cgroup_driver=driver)
    assert (machine.reload_refused(state, apart_from) is not None) is refused


ROOT = Path(__file__).resolve().parents[2]
RUNS, OFF = Unit("enabled", "active"), Unit("disabled", "inactive")


@pytest.mark.parametrize(
    ("units", "daemon"),
    [
        ({}, "systemd-timesyncd.service"),
        ({"chrony.service": RUNS}, "chrony.service"),
        ({"systemd-timesyncd.service": OFF, "ntpsec.service": RUNS}, "ntpsec.service"),
        ({"systemd-timesyncd.service": OFF}, "systemd-timesyncd.service"),
        ({"chrony.service": Unit("masked", "inactive")}, "systemd-timesyncd.service"),
    ],
)
def test_who_keeps_the_clock(units: dict[str, Unit], daemon: str) -> None:
    assert machine.time_daemon(Machine(units=units)) == daemon
    assert machine.time_daemon(Machine(units=units, container=True)) is None


def test_timesyncd_is_installed_only_where_nothing_keeps_the_clock() -> None:
    data = SimpleNamespace(packages=["curl"], earlyoom=True, time_sync=True)
    assert machine.wanted_packages(data, Machine()) == ["curl", "earlyoom", "systemd-timesyncd"]
    assert machine.wanted_packages(data, Machine(units={"chrony.service": RUNS})) == ["curl", "earlyoom"]
    assert machine.wanted_packages(data, Machine(container=True)) == ["curl", "earlyoom"]


def test_what_is_held_is_installed_and_nothing_else() -> None:
    installed = ["linux-image-6.17", "linux-base", "nvidia-driver-580-open", "libnvidia-compute-580", "curl"]
    patterns = ["linux-image-*", "nvidia-driver-*", "libnvidia-*", "nvidia-dkms-*"]
    assert machine.to_hold(patterns, installed) == [
        "libnvidia-compute-580",
        "linux-image-6.17",
        "nvidia-driver-580-open",
    ]
    assert machine.to_hold([], installed) == []


def test_the_container_toolkit_is_not_a_part_of_the_driver() -> None:
    """Its parts need one another's versions: one of them held stops the upgrade of all."""
    toolkit = ["libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit"]
    driver = ["libnvidia-cfg1-580", "libnvidia-gl-580", "nvidia-kernel-common-580", "linux-image-6.17-nvidia"]
    patterns = runpy.run_path(str(ROOT / "group_data/all.py"))["held_packages"]
    assert machine.to_hold(patterns, [*toolkit, *driver]) == sorted(driver)


def data(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "docker_mirrors": ["https://m"],
        "docker_log_options": {"max-size": "1m"},
        "docker_nvidia_default": True,
        "docker_cgroupfs": True,
        "docker_data_root": None,
        "docker_settings": {},
    }
    return SimpleNamespace(**{**values, **changes})


def test_docker_without_a_gpu() -> None:
    assert docker_settings.wanted(data(), gpu=False) == {
        "registry-mirrors": ["https://m"],
        "log-driver": "json-file",
        "log-opts": {"max-size": "1m"},
    }


def test_docker_with_a_gpu() -> None:
    settings = docker_settings.wanted(data(docker_log_options=None, docker_data_root="/srv/docker"), gpu=True)
    assert settings == {
        "registry-mirrors": ["https://m"],
        "default-runtime": "nvidia",
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "data-root": "/srv/docker",
    }


def test_a_sites_own_words_win() -> None:
    own = {"exec-opts": ["native.cgroupdriver=systemd"], "registry-mirrors": []}
    settings = docker_settings.wanted(data(docker_settings=own), gpu=True)
    assert settings["exec-opts"] == own["exec-opts"] and settings["registry-mirrors"] == []


HASH, OTHER = "a" * 64, "b" * 64
PINNED: dict[str, dict[str, str | None]] = {
    "aarch64": {"url": "https://one", "sha256": HASH},
    "x86_64": {"url": "https://two", "sha256": None},
}


@pytest.mark.parametrize(
    ("arch", "url", "sha256", "wanted"),
    [
        ("aarch64", None, None, ("https://one", HASH)),
        ("aarch64", "https://mirror", None, ("https://mirror", HASH)),
        ("aarch64", "https://mirror", OTHER, ("https://mirror", OTHER)),
        ("x86_64", "https://mirror", OTHER, ("https://mirror", OTHER)),
    ],
)
def test_which_installer(arch: str, url: str | None, sha256: str | None, wanted: tuple[str, str]) -> None:
    assert conda.installer(arch, PINNED, url, sha256) == wanted


@pytest.mark.parametrize("url", [None, "https://mirror"])
@pytest.mark.parametrize("arch", ["x86_64", "riscv64"])
def test_no_hash_no_installer(arch: str, url: str | None) -> None:
    with pytest.raises(SparkstackError) as caught:
        conda.installer(arch, PINNED, url, None)
    assert str(caught.value) == (
        f"conda: found no installer with its SHA-256 for {arch} (pinned: aarch64); wanted an installer to "
        "trust; set conda_installers, or conda_url and conda_sha256, in group_data"
    )


def test_a_hash_alone_says_too_little() -> None:
    with pytest.raises(SparkstackError, match="conda_sha256 without conda_url"):
        conda.installer("aarch64", PINNED, None, OTHER)


def test_swap_that_fits() -> None:
    state = Machine(swap_used_bytes=1, memory_available_bytes=10)
    assert machine.swap_problem("a", state) is None
    assert machine.swap_problem("a", replace(state, swap_used_bytes=10)) is not None
