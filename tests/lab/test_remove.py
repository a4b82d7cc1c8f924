"""Deployed, then removed: the hosts are as they came out of the box. The tests build on one another.

Needs no vLLM: the stages up to the checkpoint. Where the tests before this file left a cluster that serves,
the first removal takes that away too.
"""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.lab.conftest import Run, Spark, pyinfra, start_pyinfra

pytestmark = pytest.mark.lab

STAGES = "only=host,docker,conda,fabric,image,checkpoint"
STATE = "/var/lib/sparkstack"
# What the system itself rewrites when users, groups or packages come and go.
MAY_DIFFER = re.compile(r"/etc/(passwd|shadow|group|gshadow|subuid|subgid)-|/etc/ld\.so\.cache")


def removed(*words: str) -> Run:
    run = pyinfra("-y", *words, script="remove.py")
    assert run.code == 0, run.output
    return run


def deployed(stages: str) -> None:
    run = pyinfra("-y", "--data", stages)
    assert run.code == 0, run.output


def left(spark: Spark) -> dict[str, tuple[str | None, str | None]]:
    """What differs from the fresh host: path → (fresh, now)."""
    now = spark.contents()
    paths = [path for path in spark.fresh.keys() | now.keys() if not MAY_DIFFER.fullmatch(path)]
    return {
        path: (spark.fresh.get(path), now.get(path))
        for path in paths
        if spark.fresh.get(path) != now.get(path)
    }


def as_fresh(sparks: list[Spark]) -> None:
    for spark in sparks:
        assert left(spark) == {}, spark.name
        assert spark.run("systemctl list-units --all --plain --no-legend 'sparkstack-*'") == ""
        assert spark.run("docker ps -aq; docker images -q; docker volume ls -q") == ""
        assert "192.168." not in spark.run("ip -4 -o addr show | grep -E 'np0' || true")
        assert spark.run("id -nG nvidia") == "nvidia"
        assert spark.run("ls /run/sparkstack 2>/dev/null | grep -v '^run.lock$' || true") == ""


def test_a_dry_run_says_what_would_go_and_changes_nothing(sparks: list[Spark]) -> None:
    deployed(STAGES)
    before = [spark.files() for spark in sparks]
    run = pyinfra("--dry", script="remove.py")
    assert run.code == 0, run.output
    for operation in (
        "containers and images are gone",
        "daemon.json is without our settings",
        "twins are without our addresses",
        "files are as they were",
        "packages, groups and units are as they were",
        "our folders are gone",
    ):
        assert re.search(rf"remove \| {re.escape(operation)} +2 \(", run.output), run.output
    assert [spark.files() for spark in sparks] == before


def test_all_goes_but_downloads_and_checkpoints_and_the_run_says_so(sparks: list[Spark]) -> None:
    head = sparks[0]
    checkpoints = [spark.run(f"ls -i {STATE}/checkpoints") for spark in sparks]
    run = removed()
    assert re.search(
        rf"{head.name}: remove: kept {STATE}/checkpoints and {STATE}/downloads \([\d.]+ MB\); "
        ".*checkpoints=yes",
        run.output,
    ), run.output
    assert checkpoints == [spark.run(f"ls -i {STATE}/checkpoints") for spark in sparks]
    for spark in sparks:
        mine = (f"{STATE}/checkpoints", f"{STATE}/downloads")
        strange = [path for path in left(spark) if path != STATE and not path.startswith(mine)]
        assert strange == []


def test_removed_again_nothing_changes(sparks: list[Spark]) -> None:
    before = [spark.files() for spark in sparks]
    run = removed()
    assert run.changed() == {}
    assert [spark.files() for spark in sparks] == before


def test_with_the_checkpoints_the_hosts_are_fresh(sparks: list[Spark]) -> None:
    run = removed("--data", "checkpoints=yes")
    assert set(run.changed()) == {spark.name for spark in sparks}
    as_fresh(sparks)
    assert removed("--data", "checkpoints=yes").changed() == {}


def test_what_others_did_to_daemon_json_since_stays(sparks: list[Spark]) -> None:
    deployed("only=docker")
    head, path = sparks[0], "/etc/docker/daemon.json"
    fresh = json.loads(head.run(f"cp -p {path}.before-sparkstack /tmp/daemon.json; cat /tmp/daemon.json"))
    head.run(f"""sed -i '1s/{{/{{ "debug": true,/' {path}""")
    removed()
    assert json.loads(head.run(f"cat {path}")) == {**fresh, "debug": True}
    assert set(left(head)) == {path}
    assert head.run("systemctl is-active docker") == "active"
    # The other hosts have theirs back as it was; put this one right for the tests to come.
    as_fresh(sparks[1:])
    head.run(f"mv -f /tmp/daemon.json {path} && systemctl restart docker")
    as_fresh(sparks)


def test_places_that_a_site_named_go_by_the_notes(sparks: list[Spark]) -> None:
    """Whatever is declared when they are removed: here the defaults."""
    state, data_root = "/srv/site/state", "/var/lib/docker/elsewhere"
    named = ("--data", f"state_dir={state}", "--data", f"docker_data_root={data_root}")
    run = pyinfra("-y", "--data", "only=docker,conda", *named)
    assert run.code == 0, run.output
    for spark in sparks:
        assert spark.run("docker info -f '{{.DockerRootDir}}'") == data_root
        assert spark.run(f"ls {state}")
    removed()
    as_fresh(sparks)
    for spark in sparks:
        assert spark.run(f"ls -A /srv; ls -d {data_root} 2>/dev/null; true") == ""
        assert spark.run("docker info -f '{{.DockerRootDir}}'") == "/var/lib/docker"
    assert removed().changed() == {}


def test_dockers_unit_goes_back_to_how_it_was(sparks: list[Spark]) -> None:
    head = sparks[0]
    head.run("systemctl disable --quiet docker.service")
    deployed("only=docker")
    assert head.run("systemctl is-enabled docker.service") == "enabled"
    removed()
    assert head.run("systemctl is-enabled docker.service; true") == "disabled"
    head.run("systemctl enable --quiet docker.service")
    as_fresh(sparks)


@pytest.mark.parametrize("seconds", [4, 8])
def test_a_deploy_that_was_killed_is_taken_back(sparks: list[Spark], seconds: int) -> None:
    before = [left(spark) for spark in sparks]
    controller = start_pyinfra("-y", "--data", "only=host,docker,conda,fabric")
    time.sleep(seconds)
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    time.sleep(5)  # what a host was doing just then goes on to its end
    removed("--data", "checkpoints=yes")
    assert [left(spark) for spark in sparks] == before
    assert removed().changed() == {}


def test_another_word_for_checkpoints_is_a_mistake() -> None:
    run = pyinfra("-y", "--data", "checkpoints=all", script="remove.py")
    assert run.code != 0
    assert "--data checkpoints: found 'all'; wanted yes or no" in run.output
    assert "Traceback" not in run.output
