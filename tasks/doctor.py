"""The doctor: preflight's checks, and what a deployment would change. Nothing is executed, in any mode.

The very deploy functions of deploy.py declare their operations; each is evaluated as pyinfra does to detect
changes, which only asks for facts, and then all of them are dropped. What a deployment manages is so covered
by construction. The last host to be done shows the result and ends the run before its execution.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from pyinfra import host, logger
from pyinfra.api import FunctionCommand, StringCommand
from rich.console import Console

from sparkstack import differences
from sparkstack.doctor import Diagnosis, Line
from tasks import access, ahead, benchmark, checkpoint, conda, docker, drift, fabric, image, preflight, serve
from tasks import host as host_task
from tasks import link_gate as link_task
from tasks import link_nccl as nccl_task
from tasks.facts import FileStates
from tasks.files import WriteFile
from tasks.report import REPORTS
from tasks.site import Site

# What deploy.py calls for each stage; a test holds the two against each other.
DEPLOYS: dict[str, Any] = {
    "host": host_task.deploy_host,
    "docker": docker.deploy_docker,
    "conda": conda.deploy_conda,
    "fabric": fabric.deploy_fabric,
    "link": link_task.deploy_link,
    "image": image.deploy_image,
    "nccl": nccl_task.deploy_nccl,
    "checkpoint": checkpoint.deploy_checkpoint,
    "serve": serve.deploy_serve,
    "benchmark": benchmark.deploy_benchmark,
}

_done: dict[str, list[Line]] = {}

# What pyinfra logs as errors of a host while it is looked at: it says there what its exception leaves out.
_said: dict[str, list[str]] = {}
FACT = re.compile(r"Error: could not (?:load|process) fact: (\S+)")


class _Errors(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix, _, text = click.unstyle(record.getMessage()).partition("]")
        if (said := _said.get(prefix.removeprefix("["))) is not None:
            said.append(text.strip())


_errors = _Errors(logging.ERROR)


def examine(site: Site, stages: list[str]) -> None:
    """Examine the current host; with the last one the run ends: exit status 1 on any failure or drift."""
    state = site.host.state
    # Operations are evaluated here, once and to their end, and not by pyinfra.
    state.check_for_changes = False
    # A host that stops answering is a line of the result; nobody is asked whether to go on.
    state.should_raise_failed_hosts = lambda state: True
    try:
        with hearing(logger):
            _done[host.name] = _examined(site, stages)
    finally:
        _drop(state, site.host)
    if set(_done) >= {one.name for one in state.activated_hosts}:
        sys.exit(_conclude(site, stages))


@contextmanager
def hearing(log: logging.Logger) -> Iterator[None]:
    """What pyinfra logs as errors is heard; see `_said`. Hosts are looked at side by side, so it stays."""
    log.addHandler(_errors)
    yield


def _examined(site: Site, stages: list[str]) -> list[Line]:
    try:
        found = access.problem(site.host)
    except Exception as error:
        return [Line(host.name, "preflight", "connection", "failed", _words(error), "answers")]
    if found is not None:
        return [
            Line(host.name, "preflight", "sudo", "failed", found.found, found.wanted, found.remedy),
            Line(host.name, "preflight", "everything else", "not checked", "no root rights"),
        ]
    lines = guarded("preflight", "facts", lambda: _asked_ahead(site, stages))
    if "preflight" in stages:
        lines += guarded(
            "preflight", "facts", lambda: [Line.of_check(one) for one in preflight.judged(site)]
        )
    for stage in stages:
        if stage in DEPLOYS:
            lines += guarded(stage, "declaration", lambda stage=stage: drifts(site, stage))  # type: ignore[misc]
    return lines


def _asked_ahead(site: Site, stages: list[str]) -> list[Line]:
    ahead.plan(site, stages)
    return []


def guarded(stage: str, check: str, look: Callable[[], list[Line]]) -> list[Line]:
    """A look that breaks is a line, too: the other stages and hosts are looked at all the same."""
    said: list[str] = []
    around = _said.get(host.name)
    _said[host.name] = said
    try:
        lines = look()
    except Exception as error:
        lines = [Line.of_failure(host.name, stage, check, _words(error))]
    finally:
        del _said[host.name]
        if around is not None:
            _said[host.name] = around
    # pyinfra goes on with a default in place of a fact that it could not load: what was seen then is nothing.
    return _unloaded(stage, check, said) or lines


def _unloaded(stage: str, check: str, said: list[str]) -> list[Line]:
    """The first fact that could not be loaded, with what the host said to it; it is logged just before."""
    for at, line in enumerate(said):
        if fact := FACT.match(line):
            words = " / ".join(filter(None, said[:at][-3:]))[-300:] or "no answer"
            return [Line(host.name, stage, check, "failed", words, f"the fact {fact[1]}")]
    return []


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def drifts(site: Site, stage: str) -> list[Line]:
    """The operations of a stage, each as it stands on this host."""
    DEPLOYS[stage](site)
    lines = declared_lines(site, stage)
    _drop(site.host.state, site.host)
    return lines


def declared_lines(site: Site, stage: str) -> list[Line]:
    """The operations of a stage that are declared on this host, each as it stands there."""
    state, me = site.host.state, site.host
    lines: list[Line] = []
    for op_hash in me.op_hash_order:
        # pyinfra knows an operation by the line numbers of its calls. Those of two stages may be the same
        # here, where one line calls them all: then it has the names of both.
        named = [one for one in state.op_meta[op_hash].names if one.startswith(f"{stage} | ")]
        if not named:
            continue
        operation = state.ops[me][op_hash]
        name = named[0].removeprefix(f"{stage} | ")
        # Where an operation hangs on another one's change, that one says it.
        if not operation.global_arguments.get("_if"):
            lines += guarded(stage, name, lambda o=operation, n=name: _evaluated(site, stage, n, o))  # type: ignore[misc]
    return lines


def _evaluated(site: Site, stage: str, name: str, operation: Any) -> list[Line]:
    with drift.listen(host.name) as told:
        commands = list(operation.command_generator())
    remedy = f"run deploy.py --data only={stage}"
    things = {one.thing for one in told}
    told += [one for one in _files(site, commands) if one.thing not in things]
    lines = [
        Line(
            one.host,
            stage,
            one.thing,
            one.status,
            one.found,
            one.wanted,
            remedy if one.status == "drift" else one.remedy,
        )
        for one in told
    ]
    for command in commands:
        for said in getattr(getattr(command, "function", None), "lines", ()):
            lines.append(Line.of_failure(host.name, stage, name, said))
    if lines:
        return lines
    if commands:
        return [Line(host.name, stage, name, "drift", _would(commands[0]), "nothing to do", remedy)]
    return [Line(host.name, stage, name, "ok", "as declared")]


def _files(site: Site, commands: list[Any]) -> list[drift.Difference]:
    """The files that an operation would write, and how each differs; not those that only carry its work."""
    work = f"{site.data.state_dir}/"
    files = [command.file for command in commands if isinstance(command, WriteFile)]
    files = [file for file in files if not file.path.startswith(work)]
    states = host.get_fact(FileStates, paths=[file.path for file in files]) if files else {}
    return [
        drift.Difference(host.name, file.path, *differences.of_file(states.get(file.path), file.wanted()))
        for file in files
        if states.get(file.path) != file.wanted()
    ]


def _would(command: Any) -> str:
    """A command that a deployment would run, as the sign of what differs; without the notes for undoing."""
    if isinstance(command, FunctionCommand):
        return f"that {command.function.__name__.strip('_')} would run"
    # As text a command shows its secrets as stars.
    text = " ".join(str(command).split()) if isinstance(command, StringCommand) else type(command).__name__
    text = text.rpartition(" ) && ")[2]
    return f"that `{text[:160]}` would run"


def _drop(state: Any, me: Any) -> None:
    """Take this host's operations out of the run."""
    state.ops[me].clear()
    me.op_hash_order.clear()


def _conclude(site: Site, stages: list[str]) -> int:
    """Show and keep the result of all hosts; the exit status."""
    lines = [line for one in site.hosts for line in _done.get(one.name, [_not_examined(one)])]
    if "preflight" in stages:
        compared = preflight.compared([one.name for one in site.hosts])
        lines = [*map(Line.of_check, compared), *lines]
    return _tell(lines, site.recipe.name, site.release_id)


def nobody_answers(hosts: Iterable[Any]) -> int:
    """The result where pyinfra reached no host at all, and ends the run before it loads the declaration."""
    return _tell([_not_examined(one) for one in hosts], "", "")


def _tell(lines: list[Line], recipe: str, release: str) -> int:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    diagnosis = Diagnosis(stamp, recipe, release, list(dict.fromkeys(lines)))
    path = REPORTS / f"doctor-{stamp}.json"
    diagnosis.write(path)
    diagnosis.render(Console())
    print(f"report: {path}", flush=True)
    return 0 if diagnosis.ok else 1


def _not_examined(one: Any) -> Line:
    if not one.state.is_host_in_limit(one):
        return Line(one.name, "preflight", "everything", "not checked", "left out by --limit or --exclude")
    remedy = "see that it is on, and that its address in the inventory is right"
    return Line(one.name, "preflight", "connection", "failed", "no connection", "an answer by SSH", remedy)
