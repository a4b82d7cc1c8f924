"""daemon.json is merged and tried; Docker restarts when that changed something, around what serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_host import FakeHost, commands_of, follow, written

from sparkstack.docker_settings import DaemonFile
from sparkstack.machine import Machine, Unit
from tasks import docker, drift
from tasks.docker import DaemonJson, DaemonState, Mirrors, Others, Validates
from tasks.facts import ServeState
from tasks.machine import MachineState
from tasks.site import UNIT, Site

Sites = Callable[..., list[Site]]
PATH = "/etc/docker/daemon.json"
PLAIN: dict[str, Any] = {"docker_mirrors": ["https://m.example"], "docker_log_options": None}
IDLE = {"release": "", "unit": "inactive"}
SERVING = {"release": "abc", "unit": "active", "fabric": "same"}
REFUSAL = (
    "spark-1: docker: found settings that need a restart of Docker, which would stop serving on spark-1 "
    "(release abc), spark-2 (release abc); wanted a yes to that; run with --data restart_serving=yes, or "
    "when nothing serves"
)


def merge(site: Site, file: DaemonFile) -> list[Any]:
    site.host.facts = {Validates: False, **site.host.facts, DaemonJson: file}
    for host in site.hosts:
        host.facts.setdefault(ServeState, IDLE)
    return commands_of(docker.merged_daemon_json, site.host, site, PATH)


def test_foreign_keys_mode_and_owner_stay(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    text = '{"runtimes": {"nvidia": {"path": "x"}}, "registry-mirrors": ["https://old.example"]}'
    commands = merge(site, DaemonFile("file", text, "600", "root:docker"))
    assert follow(commands, site.host)
    assert site.host.kinds() == ["keep daemon.json", "note settings", "mark restart", "write"]
    (new,) = written(commands).values()
    assert json.loads(new) == {
        "runtimes": {"nvidia": {"path": "x"}},
        "registry-mirrors": ["https://m.example"],
    }
    assert "chmod 600 " in str(commands[-1]) and "chown root:docker " in str(commands[-1])


def test_what_is_not_declared_any_more_goes(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    ours = {"registry-mirrors": ["https://old"], "debug": True, "log-opts": {"max-size": "1m"}}
    before = '{"log-opts": {"max-size": "50m"}, "theirs": 1}'
    file = DaemonFile("file", json.dumps({"theirs": 1, **ours}), ours=ours, before=before)
    (new,) = written(merge(site, file)).values()
    assert json.loads(new) == {
        "theirs": 1,
        "registry-mirrors": ["https://m.example"],
        "log-opts": {"max-size": "50m"},
    }


def test_no_file_yet(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    commands = merge(site, DaemonFile())
    assert follow(commands, site.host)
    assert site.host.kinds() == ["note settings", "mark restart", "write"]
    assert "chmod 644 " in str(commands[-1])


def test_a_file_that_says_so_already(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    assert merge(site, DaemonFile("file", '{"x":1,"registry-mirrors":["https://m.example"]}')) == []
    assert site.host.noops == [f"{PATH} has the declared settings"]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            DaemonFile("file", '{\n  "log-driver": "local",\n}\n'),
            f"spark-1: {PATH}:3:1: found invalid JSON (Expecting property name enclosed in double quotes); "
            "wanted valid JSON; correct or remove the file",
        ),
        (
            DaemonFile("directory"),
            f"spark-1: {PATH}: found a directory; wanted a regular file or nothing; "
            "move it away, then run again",
        ),
        (
            DaemonFile("symlink", links_to="/srv/d.json"),
            f"spark-1: {PATH}: found a symlink to /srv/d.json; wanted a regular file or nothing; "
            "put a file in its place, then run again",
        ),
    ],
)
def test_what_cannot_be_merged_is_left_alone(sites: Sites, file: DaemonFile, line: str) -> None:
    (site,) = sites(1, **PLAIN)
    assert not follow(merge(site, file), site.host)
    assert (site.host.shown, site.host.heard) == ([line], [])


def test_dockerd_judges_the_new_text_first(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    site.host.answers = {
        "try settings": (False, "unable to configure: the following directives are unknown: x")
    }
    site.host.facts = {Validates: True}
    assert not follow(merge(site, DaemonFile("file", "{}")), site.host)
    assert site.host.kinds() == ["try settings"]
    (line,) = site.host.shown
    assert line.startswith(
        f"spark-1: {PATH}: found dockerd refusing the merged settings: unable to configure"
    )
    assert '"registry-mirrors"' in site.host.fed[0]


def test_a_gpu_gets_nvidias_runtime_and_cgroupfs(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    (text,) = written(merge(site, DaemonFile("absent", gpu=True))).values()
    assert '"default-runtime": "nvidia"' in text and "native.cgroupdriver=cgroupfs" in text


def test_a_restart_that_would_stop_serving_is_refused_before_the_write(sites: Sites) -> None:
    ranks = sites(2, **PLAIN)
    for rank in ranks:
        rank.host.facts[ServeState] = SERVING
    assert not follow(merge(ranks[0], DaemonFile("file", "{}")), ranks[0].host)
    assert (ranks[0].host.shown, ranks[0].host.heard) == ([REFUSAL], [])


def test_no_restart_is_due(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {DaemonJson: DaemonFile("file", "{}")}
    assert commands_of(docker.daemon_restarted, site.host, site, PATH) == []


def restart(ranks: list[Site], due: int, state: dict[str, str]) -> bool:
    for number, rank in enumerate(ranks):
        rank.host.facts = {
            DaemonJson: DaemonFile("file", "{}", restart_due=number == due),
            ServeState: state,
            MachineState: Machine(units={UNIT: Unit("enabled", "active")}),
        }
        rank.host.answers |= {"state of rank": "active", "restarts of rank": "0"}
    head = ranks[0].host
    return follow(commands_of(docker.daemon_restarted, head, ranks[0], PATH), head)


def test_only_the_changed_host_restarts(sites: Sites) -> None:
    ranks = head, worker = sites(2)
    assert restart(ranks, 1, IDLE)
    assert (head.host.kinds(), worker.host.kinds()) == ([], ["restart docker"])
    assert commands_of(docker.daemon_restarted, worker.host, worker, PATH) == []


def test_serving_stops_before_and_starts_after_on_all_ranks(sites: Sites, monkeypatch: Any) -> None:
    ranks = sites(2, restart_serving="yes")
    order: list[str] = []
    for rank in ranks:
        run = rank.host.run_shell_command

        def listen(command: Any, run: Any = run, name: str = rank.host.name, **arguments: Any) -> Any:
            text = command.get_raw_value()
            order.append(f"{name} {' '.join(text.split()[:3])}")
            return run(command, **arguments)

        monkeypatch.setattr(rank.host, "run_shell_command", listen)
    assert restart(ranks, 1, SERVING)
    assert order[:2] == [f"{rank.host.name} systemctl show -p" for rank in ranks]
    assert order[2:7] == [
        "spark-1 s=$(systemctl show -p",
        "spark-2 s=$(systemctl show -p",
        "spark-2 systemctl reset-failed docker.service;",
        "spark-2 systemctl start --no-block",
        "spark-1 systemctl start --no-block",
    ]


def test_a_host_that_joins_those_that_serve_has_no_unit_to_stop(sites: Sites) -> None:
    ranks = head, worker = sites(2, restart_serving="yes")
    worker.host.answers["unit of rank"] = "not-found"
    assert restart(ranks, 1, SERVING)
    assert "stop rank" in head.host.kinds() and "start rank" in head.host.kinds()
    assert worker.host.kinds() == ["unit of rank", "restart docker"]


def test_a_restart_left_over_from_a_killed_run_is_refused_too(sites: Sites) -> None:
    ranks = sites(2)
    assert not restart(ranks, 0, SERVING)
    assert ranks[0].host.shown == [REFUSAL]


def test_a_daemon_that_does_not_come_back_gets_the_file_before_back(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.answers = {
        "restart docker": (False, "Job for docker.service failed"),
        "journal of docker": "unable to configure the Docker daemon",
    }
    assert not restart([site], 0, IDLE)
    assert site.host.kinds() == ["restart docker", "journal of docker", "take settings back"]
    assert site.host.shown == [
        "spark-1: docker: found the daemon not starting with the merged settings: unable to configure the "
        f"Docker daemon; wanted it to run; correct docker_settings; {PATH} is as it was"
    ]


def test_what_served_starts_again_where_the_daemon_refused_the_settings(sites: Sites) -> None:
    ranks = head, worker = sites(2, restart_serving="yes")
    worker.host.answers = {"restart docker": (False, "failed"), "journal of docker": "unable to configure"}
    assert not restart(ranks, 1, SERVING)
    assert worker.host.kinds()[-2:] == ["take settings back", "start rank"]
    assert head.host.kinds()[-1] == "start rank"


def test_a_dead_mirror_is_a_warning_with_its_name(sites: Sites) -> None:
    (site,) = sites(1)
    answers = {"https://a.example": "200", "https://b.example": "401", "http://c": "000", "http://d": "404"}
    site.host.facts = {Mirrors: answers}
    assert commands_of(docker.mirrors_answer, site.host, list(answers)) == []
    assert [line.partition(";")[0] for line in site.host.shown] == [
        "spark-1: mirror http://c: found no answer",
        "spark-1: mirror http://d: found HTTP status 404",
    ]


def test_containers_of_others_are_named_before_the_write(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN)
    site.host.facts = {Others: {"webui": True, "training": False}}
    assert not follow(merge(site, DaemonFile("file", "{}")), site.host)
    assert (site.host.shown, site.host.heard) == (
        [
            "spark-1: docker: found settings that need a restart of Docker, which would stop on spark-1 the "
            "containers webui (comes back by itself), training (stays stopped); wanted a yes to that; run "
            "with --data restart_serving=yes, or when nothing else runs"
        ],
        [],
    )


def test_with_a_yes_those_that_stay_stopped_are_named(sites: Sites) -> None:
    head, worker = sites(2, restart_serving="yes")
    worker.host.facts[Others] = {"webui": True, "training": False}
    worker.host.facts[DaemonJson] = DaemonFile("file", "{}", restart_due=True)
    head.host.facts[DaemonJson] = DaemonFile("file", "{}")
    for rank in (head, worker):
        rank.host.facts[ServeState] = IDLE
    assert follow(commands_of(docker.daemon_restarted, head.host, head, PATH), head.host)
    assert worker.host.kinds() == ["restart docker"]
    assert head.host.shown == [
        "spark-2: docker: the restart stopped training; start what you still want of these"
    ]


def test_a_restart_left_over_names_the_containers_of_its_host(sites: Sites) -> None:
    head, worker = sites(2)
    head.host.facts = {DaemonJson: DaemonFile("file", "{}"), ServeState: SERVING, Others: {"not asked": True}}
    worker.host.facts = {
        DaemonJson: DaemonFile("file", "{}", restart_due=True),
        ServeState: SERVING,
        Others: {"webui": True},
    }
    assert not follow(commands_of(docker.daemon_restarted, head.host, head, PATH), head.host)
    (line,) = head.host.shown
    assert "spark-1 (release abc), spark-2 (release abc) and on spark-2 the container webui" in line


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("enabled active", []),
        ("static active", []),
        ("disabled active", ["enable"]),
        ("enabled inactive", ["start"]),
        ("disabled failed", ["enable", "start"]),
    ],
)
def test_docker_runs_and_how_it_was_is_noted(state: str, words: list[str]) -> None:
    host = FakeHost("spark-1", {DaemonState: state})
    with drift.listen("spark-1") as told:
        commands = commands_of(docker.daemon_runs, host)
    assert follow(commands, host)
    assert host.kinds() == (["run docker"] if words else [])
    assert [one.thing for one in told] == (["docker.service"] if words else [])
    if words:
        (said,) = host.heard
        assert f"'{state}'" in said and "/did/unit/docker.service" in said
        # A daemon-reload takes the GPU from containers.
        assert said.count("--no-reload") == len(words)
        assert [word for word in ("enable", "start") if f"systemctl {word} " in said] == words


def test_a_data_root_is_noted_for_the_removal(sites: Sites) -> None:
    (site,) = sites(1, **PLAIN, docker_data_root="/data/docker")
    commands = merge(site, DaemonFile("file", "{}"))
    assert follow(commands, site.host)
    assert site.host.kinds() == ["keep daemon.json", "note settings", "note deed", "mark restart", "write"]
    assert "/did/data-root/%2Fdata%2Fdocker" in site.host.heard[2]
