"""The doctor evaluates what deploy.py declares, executes nothing, and ends the run with the right status."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra import logger
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_host

from sparkstack.doctor import Line
from sparkstack.stages import STAGES
from tasks import benchmark, docker, doctor, drift, remote
from tasks.docker import Mirrors
from tasks.facts import FileStates, Json
from tasks.files import ManagedFile
from tasks.site import ROOT, Site

Sites = Callable[..., list[Site]]
FILE = ManagedFile.text("/etc/a.conf", "a\n")
BROKEN = {FILE.path: {**FILE.wanted(), "mode": "600"}}


def test_the_doctor_knows_what_deploy_calls() -> None:
    calls = set()
    for node in ast.walk(ast.parse((ROOT / "deploy.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1].startswith("deploy_"):
            calls.add(ast.unparse(node.func).split(".")[-1])
    others = {"deploy_preflight", "deploy_rollback"}
    assert {function.__name__ for function in doctor.DEPLOYS.values()} | others == calls
    assert ["preflight", *doctor.DEPLOYS] == list(STAGES)


class Run:
    """One stage, "host", whose operations are what the test gives, on hosts that share a state."""

    def __init__(self, sites: list[Site], monkeypatch: pytest.MonkeyPatch, reports: Path) -> None:
        self.sites, self.reports = sites, reports
        hosts: list[Any] = [site.host for site in sites]
        self.state = SimpleNamespace(
            check_for_changes=True,
            is_executing=False,
            activated_hosts=set(),
            is_host_in_limit=lambda host: True,
            ops={},
            op_meta={},
        )
        for host in hosts:
            host.state, host.op_hash_order = self.state, []
            self.state.ops[id(host)] = {}
        self.state.ops = {host: {} for host in hosts}
        self.state.activated_hosts = set(hosts)
        self.operations: dict[str, Callable[[], Iterator[Any]]] = {}
        self.only_if: dict[str, Any] = {}
        self.names: dict[str, Any] = {}  # pyinfra's, where they are not the stage and the operation's
        monkeypatch.setattr(doctor, "DEPLOYS", {"host": self.declare})
        monkeypatch.setattr(doctor, "_done", {})
        monkeypatch.setattr(doctor, "REPORTS", reports)
        monkeypatch.setattr(doctor.access, "problem", lambda host: None)
        monkeypatch.setattr(doctor.ahead, "plan", lambda site, stages: None)

    def declare(self, site: Site) -> None:
        for name, generator in self.operations.items():
            arguments = {"_if": self.only_if.get(name)}
            self.state.ops[site.host][name] = SimpleNamespace(
                global_arguments=arguments, command_generator=generator
            )
            self.state.op_meta[name] = SimpleNamespace(names=self.names.get(name, {f"host | {name}"}))
            site.host.op_hash_order.append(name)

    def __call__(self, **operations: Callable[[], Iterator[Any]]) -> tuple[int, list[Line]]:
        self.operations = operations
        for site in self.sites:
            with ctx_host.use(site.host):
                if site is self.sites[-1]:
                    with pytest.raises(SystemExit) as ended:
                        doctor.examine(site, ["host"])
                else:
                    doctor.examine(site, ["host"])
        assert all(not site.host.op_hash_order and not self.state.ops[site.host] for site in self.sites)
        assert all(site.host.heard == [] for site in self.sites), "a command was run"
        (report,) = self.reports.glob("doctor-*.json")
        value = json.loads(report.read_text())
        assert value["ok"] is (ended.value.code == 0)
        return int(str(ended.value.code)), [Line(**line) for line in value["lines"]]


@pytest.fixture
def run(sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(sites(1), monkeypatch, tmp_path)


def nothing() -> Iterator[Any]:
    yield from ()


def test_as_declared(run: Run) -> None:
    assert run(quiet=nothing) == (0, [Line("spark-1", "host", "quiet", "ok", "as declared")])
    assert run.state.check_for_changes is False


def test_what_is_not_looked_at_is_not_ok(run: Run) -> None:
    def unchecked() -> Iterator[Any]:
        drift.not_checked("links", "link_gate is off")
        yield from ()

    assert run(links=unchecked) == (0, [Line("spark-1", "host", "links", "not checked", "link_gate is off")])


def test_a_file_is_named_with_what_differs(run: Run) -> None:
    run.sites[0].host.facts = {FileStates: BROKEN}

    def files() -> Iterator[Any]:
        yield FILE.write()

    remedy = "run deploy.py --data only=host"
    assert run(files=files) == (
        1,
        [Line("spark-1", "host", "/etc/a.conf", "drift", "mode 600", "mode 644", remedy)],
    )


def test_what_an_operation_says_comes_first_and_files_are_added_once(run: Run) -> None:
    run.sites[0].host.facts = {FileStates: BROKEN}

    def both() -> Iterator[Any]:
        drift.differs("a.service", "disabled", "enabled", host="spark-2")
        drift.differs(FILE.path, "odd", "even")
        yield FILE.write()
        yield ManagedFile.text("/var/lib/sparkstack/plans/x.json", "{}").write()  # only carries the work

    code, lines = run(both=both)
    assert code == 1
    assert [(line.host, line.check, line.found) for line in lines] == [
        ("spark-2", "a.service", "disabled"), ("spark-1", "/etc/a.conf", "odd")
    ]  # fmt: skip


@pytest.mark.parametrize("names", [["conda | other", "host | mine"], ["host | mine", "conda | other"]])
def test_an_operation_at_the_same_lines_as_one_of_another_stage_is_looked_at(
    run: Run, names: list[str]
) -> None:
    """pyinfra keeps the names of both in a set, whose order is another one in each process."""
    run.names = {"mine": names}

    def changes() -> Iterator[Any]:
        yield StringCommand("systemctl start a")

    code, (line,) = run(mine=changes)
    assert (code, line.check, line.status) == (1, "mine", "drift")


def test_an_operation_that_says_nothing_shows_its_command(run: Run) -> None:
    def shell() -> Iterator[Any]:
        yield StringCommand("( f=/etc/sparkstack/undo; touch $f ) && systemctl enable docker.service")

    def function() -> Iterator[Any]:
        yield FunctionCommand(_activate, (), {})

    _, lines = run(shell=shell, function=function)
    assert [(line.check, line.found) for line in lines] == [
        ("shell", "that `systemctl enable docker.service` would run"),
        ("function", "that activate would run"),
    ]


def _activate(state: Any, host: Any) -> bool:
    raise AssertionError("the doctor executes nothing")


def test_a_failure_is_told_and_not_run(run: Run) -> None:
    def fails() -> Iterator[Any]:
        yield remote.fail("spark-1: host: user: found no user x; wanted one; create it")

    assert run(fails=fails) == (
        1,
        [Line("spark-1", "host", "user", "failed", "no user x", "one", "create it")],
    )


def test_what_hangs_on_another_change_is_not_counted(run: Run) -> None:
    def reload() -> Iterator[Any]:
        yield StringCommand("systemctl daemon-reload")

    run.only_if["reload"] = lambda: True
    assert run(reload=reload) == (0, [])


def test_an_operation_that_breaks_is_a_line_and_the_next_one_is_looked_at(run: Run) -> None:
    def breaks() -> Iterator[Any]:
        raise OSError("no\nanswer")
        yield

    code, lines = run(breaks=breaks, quiet=nothing)
    assert code == 1
    assert [(line.check, line.status, line.found) for line in lines] == [
        ("breaks", "failed", "no answer"), ("quiet", "ok", "as declared")
    ]  # fmt: skip


def unloaded(name: str, *said: str) -> None:
    """What pyinfra logs where a fact cannot be loaded."""
    for line in (*said, "\x1b[31mError: \x1b[0mcould not load fact: facts.Text (path=/etc/x)"):
        logger.error(f"\x1b[0m[\x1b[1m{name}\x1b[0m]  {line}")


@pytest.mark.parametrize(
    ("said", "found"),
    [(("\x1b[31msh: 1: cat: not found\x1b[0m",), "sh: 1: cat: not found"), ((), "no answer")],
)
def test_a_fact_that_cannot_be_loaded_is_told_in_its_own_words(
    run: Run, said: tuple[str, ...], found: str
) -> None:
    def breaks() -> Iterator[Any]:
        unloaded("spark-2", "of another host")
        unloaded("spark-1", *said)
        raise PyinfraError("No hosts remaining!")
        yield

    def goes_on() -> Iterator[Any]:  # as with --fail-percent
        unloaded("spark-1", *said)
        drift.differs("/etc/x", "what a default looks like", "something")
        yield StringCommand("true")

    code, lines = run(breaks=breaks, goes_on=goes_on, quiet=nothing)
    assert code == 1
    failed = ("failed", found, "the fact facts.Text")
    assert [(line.check, line.status, line.found, line.wanted) for line in lines] == [
        ("breaks", *failed), ("goes_on", *failed), ("quiet", "ok", "as declared", "")
    ]  # fmt: skip


def test_a_release_that_was_never_measured_is_drift_and_no_failure(run: Run) -> None:
    (site,) = run.sites
    site.host.facts = {Json: None, FileStates: {}}

    def measured() -> Iterator[Any]:
        yield from benchmark.measured._inner(site)

    def judged() -> Iterator[Any]:
        yield from benchmark.judged._inner(site)

    code, lines = run(measured=measured, judged=judged)
    assert code == 1
    assert [(line.check, line.status) for line in lines] == [
        (site.measurement_path, "drift"), (site.verdict_path, "drift")
    ]  # fmt: skip


def test_only_the_last_host_ends_the_run(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, lines = Run(sites(2), monkeypatch, tmp_path)(quiet=nothing)
    assert (code, [line.host for line in lines]) == (0, ["spark-1", "spark-2"])


def test_a_host_without_connection_is_a_failure(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(sites(2), monkeypatch, tmp_path)
    gone = run.sites.pop()
    run.state.activated_hosts.discard(gone.host)
    code, lines = run(quiet=nothing)
    assert code == 1
    assert str(lines[1]) == (
        "spark-2: preflight: connection: failed: found no connection; wanted an answer by SSH; see that it "
        "is on, and that its address in the inventory is right"
    )


def test_where_no_host_answers_there_is_a_report_all_the_same(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "REPORTS", tmp_path)
    assert doctor.nobody_answers([site.host for site in sites(2)]) == 1
    (report,) = tmp_path.glob("doctor-*.json")
    value = json.loads(report.read_text())
    assert value["ok"] is False
    assert [(line["host"], line["found"]) for line in value["lines"]] == [
        ("spark-1", "no connection"), ("spark-2", "no connection")
    ]  # fmt: skip


def test_a_dead_mirror_is_a_warning_and_nothing_else(run: Run) -> None:
    (site,) = run.sites
    site.host.facts = {Mirrors: {"http://a": "200", "http://b": "000"}}
    code, lines = run(mirrors=lambda: docker.mirrors_answer._inner(["http://a", "http://b"]))
    assert (code, [(line.check, line.status, line.found) for line in lines]) == (
        0, [("mirror http://b", "warning", "no answer")]
    )  # fmt: skip
    assert lines[0].remedy == "correct docker_mirrors; Docker goes on to the next one"


def test_a_host_that_was_left_out_is_not_checked(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(sites(2), monkeypatch, tmp_path)
    gone = run.sites.pop()
    run.state.activated_hosts.discard(gone.host)
    run.state.is_host_in_limit = lambda host: host is not gone.host
    code, lines = run(quiet=nothing)
    assert (code, lines[1].host, lines[1].status) == (0, "spark-2", "not checked")


def test_without_root_rights_nothing_else_is_called_ok(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = doctor.access.Problem("spark-1: sudo", "no rights", "root rights", "add them")
    monkeypatch.setattr(doctor.access, "problem", lambda host: problem)
    code, lines = run(quiet=nothing)
    assert (code, [line.status for line in lines]) == (1, ["failed", "not checked"])
