"""Asks all hosts at once what their ports hear: for `fabric` "auto", and where a declared fabric differs."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent
from gevent.lock import Semaphore
from pyinfra import logger

from sparkstack import discovery
from sparkstack.cabling import Cabling
from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import Ports
from sparkstack.topology import plan_of
from tasks import access
from tasks.remote import shell

PROBE = Path(__file__).resolve().parent.parent / "onhost" / "probe.py"
# All hosts are asked at once; the time in which the first and the last one begin is less than that.
SECONDS = 3.0
# Where a port had to be set up first: until it has a carrier.
LONG_SECONDS = 12.0
# What a host may take besides, to begin and to answer.
SLACK_SECONDS = 30.0

# Found once in a run: every host's declaration is made from it.
_cablings: dict[tuple[str, ...], Cabling | SparkstackError] = {}
_one_at_a_time = Semaphore()

Reports = Mapping[str, Mapping[str, discovery.Port]]


def cabling(hosts: Sequence[Any], names: Mapping[str, Ports]) -> Cabling:
    """What is cabled between `hosts`. Errors: SparkstackError, drawn where it is no known kind."""
    key = tuple(host.name for host in hosts)
    with _one_at_a_time:
        if key not in _cablings:
            try:
                _cablings[key] = _found(hosts, names)
            except SparkstackError as error:
                _cablings[key] = error
    found = _cablings[key]
    if isinstance(found, SparkstackError):
        raise found
    return found


def found_now(cabling: Cabling) -> bool:
    """Whether this very cabling was found in this run."""
    return any(found == cabling for found in _cablings.values())


def _found(hosts: Sequence[Any], names: Mapping[str, Ports]) -> Cabling:
    for host in hosts:
        if not host.connected:
            raise SparkstackError(
                Problem(host.name, "no connection", "all hosts for fabric 'auto'", "or declare the cabling")
            )
        access.ensure(host)
    # The usual names of both cages, unless a host has others.
    named = plan_of(Cabling("single"), list(names), names=names).names
    reports = probed(hosts, named)
    made = discovery.proposed(named, discovery.found(named, reports))
    lines = [f"fabric: found {made.kind}; to declare it: fabric = {made.declaration()!r}"]
    for line in [*lines, *(f"    {one}" for one in discovery.drawing(made))]:
        hosts[0].log_styled(line, fg="green", log_func=logger.info)
    return made


def probed(hosts: Sequence[Any], names: Mapping[str, Ports]) -> Reports:
    """What each port of each host heard. Errors: SparkstackError for a host that could not be asked."""
    answers = _ask(hosts, names, SECONDS)
    if any(answer.get("raised") for answer in answers.values()):
        answers = _ask(hosts, names, LONG_SECONDS)
    return {name: discovery.ports_of_report(answer) for name, answer in answers.items()}


def _ask(hosts: Sequence[Any], names: Mapping[str, Ports], seconds: float) -> dict[str, dict[str, Any]]:
    """The answers of all hosts to a probe that they do at the same time."""
    run = secrets.token_hex(8)
    source = PROBE.read_text()
    asked = []
    for host in hosts:
        ports = [netdev for port in sorted(names[host.name]) for netdev, _ in names[host.name][port]]
        words = ["python3", "-", run, host.name, str(seconds), *ports]
        asked.append(gevent.spawn(shell, host, shlex.join(words), source))
    gevent.joinall(asked, timeout=seconds + SLACK_SECONDS)
    answers, problems = {}, []
    for host, answer in zip(hosts, asked, strict=True):
        ok, text = answer.get() if answer.ready() else (False, "")
        answer.kill(block=False)
        try:
            report = json.loads(text) if ok else {}
        except ValueError:
            report = {}
        if "ports" not in report:
            said = report.get("error") or " ".join(text.split())[-200:] or "no answer"
            problems.append(
                Problem(
                    f"{host.name}: fabric", f"a probe that ends with: {said}", "what its ports hear",
                    "it needs python3 and root rights there",
                )
            )  # fmt: skip
        answers[host.name] = report
    if problems:
        raise SparkstackError(problems)
    return answers
