# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
from dataclasses import replace

import pytest

from sparkstack.kernel import Grub, Kernel
from sparkstack.preflight import CheckResult, Gpu, HostFacts, Wanted, across, check

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
    gpu=Gpu("NVIDIA GB10", "12.1", "580.95.05", "13.0"),
    kernel="6.14.0-1013-nvidia",
    clock_epoch_s=1000.0,
    file_systems={"/var/lib/sparkstack": "/", "/var/lib/docker": "/"},
    kernels=[Kernel("6.14.0-1013-nvidia", True, True), Kernel("6.11.0-1016-nvidia", True, True)],
    grub=Grub(first="6.14.0-1013-nvidia", default="0"),
    cma_total_bytes=GIB,
    cma_free_bytes=GIB // 2,
    kernel_log=[],
    connectx=["0000:01:00.0", "0002:01:00.0"],
    account_exists=True,
    docker_version="28.3.3",
    container_toolkit="1.17.8",
)
WANTED = Wanted(
    memory_bytes=90 * GIB, disk_bytes={"/var/lib/sparkstack": 200 * GIB}, account="nvidia"
)


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results}


def test_a_good_spark() -> None:
    results = check(FACTS, WANTED)
    assert {result.status for result in results} == {"ok"}
    assert [result.name for result in results] == [
        "system", "architecture", "sudo", "python", "user", "memory", "contiguous memory",
        "disk /var/lib/sparkstack", "port 8000", "docker", "container toolkit", "gpu", "driver", "cuda", "next boot", "kernel log of ConnectX-7", "kernel log of the GPU",
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
            "spark-1: sudo: found no root rights; wanted root rights; add the user to sudoers, and keep "
            "`_sudo = True` in group_data",
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
            replace(FACTS, arch="x86_64"),
            "spark-1: architecture: found x86_64; wanted aarch64; the images are built for a DGX Spark; use one",
        ),
        (
            replace(FACTS, cma_free_bytes=2 * GIB),
            "spark-1: contiguous memory: found CmaFree 2.0 GiB, CmaTotal 1.0 GiB; wanted CmaFree at most CmaTotal; "
            "boot with kho=off on the kernel's command line, or take another kernel",
        ),
        (
            replace(FACTS, gpu=Gpu("NVIDIA GB10", "12.1", "580.95.05", "12.8")),
            "spark-1: cuda: found 12.8; wanted 13.0 or newer (default; the recipe names none); upgrade DGX OS, and restart",
        ),
        (
            replace(FACTS, kernels=[Kernel("6.17.0-1014-nvidia", True, False), *FACTS.kernels], grub=Grub()),
            "spark-1: next boot: found kernel 6.17.0-1014-nvidia without nvidia.ko; wanted a kernel with "
            "nvidia.ko; install the driver's modules for 6.17.0-1014-nvidia before you restart (now runs: "
            "6.14.0-1013-nvidia)",
        ),
        (
            replace(
                FACTS, kernel_log=["mlx5_core 0000:01:00.0: poll_health:825:(pid 0): Fatal error 1 detected"]
            ),
            "spark-1: kernel log of ConnectX-7: found 1 line, the last: mlx5_core 0000:01:00.0: "
            "poll_health:825:(pid 0): Fatal error 1 detected; wanted no PCIe (AER) or fatal mlx5 error since "
            "boot; power both ends off, unplug QSFP cables and power for a minute, and start them again",
        ),
        (
            replace(FACTS, kernel_log=["NVRM: NV_ERR_NO_MEMORY a", "NVRM: NV_ERR_NO_MEMORY b"]),
            "spark-1: kernel log of the GPU: found 2 lines, the last: NVRM: NV_ERR_NO_MEMORY b; wanted no "
            "NV_ERR_NO_MEMORY since boot; restart the Spark: it may stop without a word; then give the engine "
            "less memory",
        ),
        (
            replace(FACTS, account_exists=False),
            "spark-1: user: found no user nvidia; wanted the one that owns the daily work; correct `user` in "
            "group_data, or create the user on the host",
        ),
        (
            replace(FACTS, docker_version=None),
            "spark-1: docker: found no Docker; wanted Docker; install it (DGX OS has it: package docker-ce)",
        ),
        (
            replace(FACTS, container_toolkit=None),
            "spark-1: container toolkit: found no nvidia-ctk; wanted nvidia-ctk; install it (DGX OS has it: "
            "package nvidia-container-toolkit)",
        ),
        (
            replace(FACTS, gpu=Gpu("H200", "9.0", "580.1", "13.0")),
            "spark-1: gpu: found H200, compute capability 9.0; wanted compute capability 12.1; the image is "
            "built for a DGX Spark's GB10; use one",
        ),
        (
            replace(FACTS, gpu=None),
            "spark-1: gpu: found no GPU; wanted one of compute capability 12.1; see `nvidia-smi` there; after a "
            "kernel upgrade its driver modules may be missing",
        ),
        (
            replace(FACTS, gpu=Gpu("NVIDIA GB10", "12.1", "575.57", "13.0")),
            "spark-1: driver: found 575.57; wanted 580 or newer (default; the recipe names none); upgrade DGX "
            "OS, and restart",
        ),
    ],
)
def test_each_fault_is_one_line(facts: HostFacts, line: str) -> None:
    failed = [result for result in check(facts, WANTED) if result.status == "failed"]
    assert [str(result) for result in failed] == [line]


def test_versions_are_compared_as_numbers() -> None:
    assert by_name(check(replace(FACTS, python_version="3.10.0"), WANTED))["python"].status == "ok"


def test_accepted_systems_are_a_parameter() -> None:
    debian = replace(FACTS, os_id="debian", os_version="12")
    wanted = replace(WANTED, systems=(("ubuntu", "24.04"), ("debian", "12")))
    assert by_name(check(debian, wanted))["system"].status == "ok"


def test_without_a_gpu_on_cpu_the_gpu_is_not_checked() -> None:
    result = by_name(check(replace(FACTS, gpu=None), replace(WANTED, accelerator="cpu")))
    for name in ("container toolkit", "gpu", "driver", "cuda", "next boot"):
        assert result[name].status == "not checked"
    assert str(result["gpu"]) == "spark-1: gpu: not checked (accelerator is cpu)"


def test_what_a_host_did_not_say_is_not_checked() -> None:
    facts = replace(
        FACTS,
        port_owner=None,
        account_exists=None,
        docker_version="",
        python_version=None,
        disk_free={},
        arch="",
        cma_free_bytes=None,
        kernel_log=None,
        kernels=[],
        grub=Grub(),
        gpu=Gpu("NVIDIA GB10", "12.1", "580.95.05", ""),
    )
    results = check(facts, WANTED)
    assert {result.name for result in results if result.status == "not checked"} == {
        "port 8000", "python", "disk /var/lib/sparkstack", "architecture", "contiguous memory", "cuda",
        "next boot", "kernel log of ConnectX-7", "kernel log of the GPU", "user", "docker",
    }  # fmt: skip
    assert not any(result.status == "failed" or result.remedy for result in results)


def test_a_container_is_no_host_for_the_kernel() -> None:
    results = by_name(check(replace(FACTS, container="docker", kernel_log=None), WANTED))
    assert str(results["next boot"]) == (
        "spark-1: next boot: not checked (a docker container boots no kernel)"
    )
    assert str(results["kernel log of the GPU"]) == (
        "spark-1: kernel log of the GPU: not checked (a docker container has no kernel journal of its own)"
    )


def test_a_boot_entry_that_names_no_known_kernel_is_not_checked() -> None:
    results = by_name(check(replace(FACTS, grub=Grub(default="1>2")), WANTED))
    assert str(results["next boot"]) == (
        "spark-1: next boot: not checked (cannot tell: which kernel GRUB's '1>2' is)"
    )


def test_folders_on_one_file_system_need_their_room_together() -> None:
    disk = {"/var/lib/sparkstack": 300 * GIB, "/var/lib/docker": 250 * GIB}
    free = {"/var/lib/sparkstack": 500 * GIB, "/var/lib/docker": 500 * GIB}
    together = check(replace(FACTS, disk_free=free), replace(WANTED, disk_bytes=disk))
    assert [str(result) for result in together if result.status == "failed"] == [
        "spark-1: disk /var/lib/sparkstack + /var/lib/docker: found 500.0 GiB free; wanted 550.0 GiB; "
        "free some of it; old checkpoints are the largest"
    ]
    apart = replace(
        FACTS, disk_free=free, file_systems={"/var/lib/sparkstack": "/", "/var/lib/docker": "/data"}
    )
    results = [result for result in check(apart, replace(WANTED, disk_bytes=disk)) if "disk" in result.name]
    assert [(result.name, result.status) for result in results] == [
        ("disk /var/lib/sparkstack", "ok"), ("disk /var/lib/docker", "ok")
    ]  # fmt: skip


def test_while_our_server_runs_the_total_memory_counts() -> None:
    facts = replace(FACTS, port_owner="sparkstack", serving=True, memory_available_bytes=GIB)
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
        ({"clock_epoch_s": 940.0}, "all hosts: clocks: found 60.0 s between spark-2 and spark-1; wanted less than 30 s apart; switch time synchronisation on (timedatectl set-ntp true)"),
    ],
)  # fmt: skip
def test_hosts_that_differ(other: dict[str, object], line: str) -> None:
    results = across([FACTS, replace(FACTS, name="spark-2", **other)])  # type: ignore[arg-type]
    assert [str(result) for result in results if result.status == "failed"] == [line]


@pytest.mark.parametrize(("other", "status"), [(1001.9, "ok"), (1002.0, "failed"), (997.0, "failed")])
def test_clocks_are_less_than_two_seconds_apart(other: float, status: str) -> None:
    hosts = [replace(FACTS, clock_epoch_s=1000.0), replace(FACTS, name="spark-2", clock_epoch_s=other)]
    assert by_name(across(hosts, 2.0))["clocks"].status == status
    # A third one that says nothing hides nothing.
    third = replace(FACTS, name="spark-3", clock_epoch_s=None)
    assert by_name(across([*hosts, third], 2.0))["clocks"].status == (
        "failed" if status == "failed" else "not checked"
    )


def test_where_nothing_will_listen_no_port_is_wanted() -> None:
    results = check(replace(FACTS, port_owner="nginx (pid 8)"), replace(WANTED, port=None))
    assert not [result for result in results if result.name.startswith("port") or result.status == "failed"]


def test_what_one_of_them_did_not_say_is_not_checked() -> None:
    silent = replace(FACTS, name="spark-2", gpu=None, kernel="", clock_epoch_s=None)
    results = by_name(across([FACTS, silent]))
    for name in ("kernel", "driver", "clocks"):
        assert results[name].status == "not checked"
    assert results["clocks"].found == "no clock of spark-2"


def test_somebody_elses_listener_is_not_ours_while_we_serve() -> None:
    """Our server's memory comes back all the same."""
    facts = replace(FACTS, port_owner="nginx (pid 8)", serving=True, memory_available_bytes=GIB)
    results = by_name(check(facts, WANTED))
    assert (results["port 8000"].status, results["memory"].status) == ("failed", "ok")


def test_the_recipe_says_which_driver() -> None:
    wanted = replace(WANTED, driver="590.44", from_recipe=["driver"])
    results = by_name(check(FACTS, wanted))
    assert str(results["driver"]) == (
        "spark-1: driver: found 580.95.05; wanted 590.44 or newer (the recipe's); upgrade DGX OS, and restart"
    )
    assert results["cuda"].wanted == "13.0 or newer (default; the recipe names none)"
