"""A group that breaks begins again by itself: a handful of the faults of `python -m benchmarks.faults`, on
the light engine. What serves before is served again afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults import cases
from benchmarks.faults.cluster import (
    QUICK,
    Cluster,
    data,
    light_recipe,
    standing,
    wait_for,
)  # fmt: skip
from benchmarks.faults.load import SILENT, WHOLE, Load
from tests.lab.conftest import Spark, pyinfra

pytestmark = pytest.mark.lab

# A machine three times as slow as this one still passes; what is waited for is a state.
PATIENCE = 600.0
WORDS = ("-y", *data(plan="no", retry="yes", watchdog=json.dumps(QUICK)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def cluster(sparks: list[Spark], folder: Path) -> Iterator[Cluster]:
    run = pyinfra(*WORDS, *data(recipe=light_recipe(folder)))
    assert run.code == 0, run.output
    found = standing()
    assert len(found.hosts) == 2
    yield found
    for host in found.hosts:
        host.join()
    # The clients of these tests reconnect by themselves; those of the fixture `sparks` are not cut by them.
    run = pyinfra("-y", "--data", "retry=yes")
    assert run.code == 0, run.output


@pytest.mark.parametrize(
    "name",
    [
        "SIGKILL of the engine, head",
        "engine wedged (SIGSTOP), rank 1",
        "SIGKILL of dockerd, head",
    ],
)
def test_tokens_come_again_with_no_hand_touched(cluster: Cluster, name: str) -> None:
    (case,) = [one for one in cases.cases(2) if one.name == name]
    result = cases.play(cluster, case, PATIENCE)
    assert result.seconds is not None and result.outage, result


def test_while_a_host_is_away_the_endpoint_says_so(cluster: Cluster) -> None:
    """Its network is cut, and the head's engine dies: 503 with the reason, and tokens when it is back."""
    head, worker = cluster.hosts
    wait_for("tokens", PATIENCE, cluster.serves)
    with cases.no_network(worker):
        head.run("docker kill sparkstack-serve")
        wait_for(
            "503 with the reason",
            PATIENCE,
            lambda: cluster.says()[0] == 503 and "rank 1 (spark-2): no answer" in cluster.says()[1],
        )
        assert head.active == "activating"
        # A worker without a head ends its engine and waits, too.
        wait_for("the worker to wait", PATIENCE, lambda: worker.active == "activating")
        assert worker.run("docker ps -q -f name=sparkstack-serve") == ""
    wait_for("tokens", PATIENCE, cluster.serves)


def test_boot_does_not_wait_for_a_rank(cluster: Cluster) -> None:
    """By systemd's own word: the target wants the units and is not ordered after them."""
    for host in cluster.hosts:
        text = host.run("systemctl show -p Wants,After multi-user.target")
        target = {line.partition("=")[0]: line.partition("=")[2].split() for line in text.splitlines()}
        assert "sparkstack-serve.service" in target["Wants"]
        assert "sparkstack-serve.service" not in target["After"]
        watchdog = host.run("systemctl show -p After --value sparkstack-watchdog.service")
        assert "sparkstack-serve.service" not in watchdog.split()


def test_a_rank_comes_back_with_docker(cluster: Cluster) -> None:
    """Stopped and started by an operator, with nothing of ours starting it meanwhile; and a rank that the
    operator has stopped stays stopped, whatever Docker does."""
    head, worker = cluster.hosts
    wait_for("tokens", PATIENCE, cluster.serves)
    look = "systemctl is-active docker.service; true"
    try:
        head.run("systemctl stop docker.service")
        wait_for("503 with the reason", PATIENCE, lambda: "docker.service is inactive" in cluster.says()[1])
        assert (cluster.says()[0], head.active, head.run(look)) == (503, "activating", "inactive")
        head.run("systemctl start docker.service")
        wait_for("tokens", PATIENCE, cluster.serves)
        worker.run("systemctl stop sparkstack-serve && systemctl restart docker.service")
        wait_for("503 with the reason", PATIENCE, lambda: "its unit is inactive" in cluster.says()[1])
        assert worker.active == "inactive"
    finally:
        for host in cluster.hosts:
            host.run("systemctl start docker.service; systemctl start --no-block sparkstack-serve")
    wait_for("tokens", PATIENCE, cluster.serves)


def test_the_second_of_two_deploys_is_told_who_is_first(cluster: Cluster, folder: Path) -> None:
    wait_for("tokens", PATIENCE, cluster.serves)
    before = cluster.head.show("InvocationID")
    holder = "flock /run/sparkstack/run.lock sh -c 'echo ann on desk > /run/sparkstack/run.lock; sleep 600'"
    cluster.head.run(f"systemd-run --quiet --collect --unit=other-run {holder}")
    try:
        wait_for("the lock", 60, lambda: "ann" in cluster.head.run("cat /run/sparkstack/run.lock; true"))
        for script in ("deploy.py", "remove.py"):
            run = pyinfra(*WORDS, script=script)
            assert run.code != 0 and "Traceback" not in run.output
            assert "spark-1: found another run at work (ann on desk); wanted one at a time; " in run.output
            run = pyinfra("-y", "--data", "profile=smoke", script="bench.py")
            assert "spark-1: found another run at work (ann on desk); wanted one at a time; " in run.output
        run = pyinfra("--dry", *data(recipe=folder / "lab-light.yaml", plan="no"))
        assert run.code == 0, run.output
    finally:
        cluster.head.run("systemctl stop other-run", check=False)
    assert cluster.head.show("InvocationID") == before


def test_a_deploy_under_load_loses_no_request_without_a_word(cluster: Cluster, folder: Path) -> None:
    """Open streams end whole, or with a clear error; and the run after it changes nothing."""
    wait_for("tokens", PATIENCE, cluster.serves)
    load = Load(cluster.head.address, cluster.port, cluster.model, clients=2)
    load.begin()
    try:
        recipe = light_recipe(folder, token_ms=15)
        run = pyinfra(*WORDS, *data(recipe=recipe))
        assert run.code == 0, run.output
        wait_for("tokens", PATIENCE, cluster.serves)
    finally:
        counts = load.end()
    assert counts[SILENT] == 0 and counts[WHOLE] > 0, counts
    again = pyinfra(*WORDS, *data(recipe=recipe))
    assert (again.code, again.changed()) == (0, {}), again.output


def test_the_journal_has_rank_and_release(cluster: Cluster) -> None:
    release = json.loads(cluster.head.run("cat /etc/sparkstack/current/release.json"))["release"]
    for rank, host in enumerate(cluster.hosts):
        said = host.run(f"journalctl -t sparkstack-rank{rank}-{release} -o cat --no-pager")
        assert "serving light at" in said or "joined" in said
