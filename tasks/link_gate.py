"""The gate before anything is served: every link of the fabric is measured, and judged by what is wanted."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import gevent
from pyinfra import host, logger
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import knobs, link_gate, links
from sparkstack.host_facts import CheckResult
from sparkstack.links import Cable, HostState, LinkWanted, Ping, Rail, Rate
from tasks import drift, report
from tasks.facts import Ask
from tasks.files import Commands, ManagedFile
from tasks.link_facts import LinkState
from tasks.remote import fail, progress, report_failure, shell, write_now
from tasks.site import ROOT, Site

SCRIPT = ROOT / "onhost" / "linkgate.py"
# A port needs some seconds until it has carrier again after netplan has touched it.
SETTLE_SECONDS = 20.0
# No command on a host takes longer than its own limits and this; then it is a line, and not a hang.
CALL_SECONDS = 240
LOOK_SECONDS = 30


class NoAnswer(Exception):
    """A host did not do what it was told; the text is the line for the user."""


def result_path(site: Site) -> str:
    return f"{site.data.state_dir}/results/link/links.json"


def wanted_of(site: Site) -> LinkWanted:
    return LinkWanted.model_validate(site.data.link_wanted)


def _words(site: Site, one: Any) -> dict[str, Any]:
    names = [interface.name for interface in site.fabric.of(one.name)]
    return {"names": names, "result": result_path(site)}


def asks(site: Site) -> list[Ask]:
    """The facts that the operation below asks of a host: the head asks them of all."""
    if site.data.link_gate == "off" or not site.interfaces:
        return []
    return [(LinkState, _words(site, site.host))]


def ask(site: Site) -> tuple[dict[str, HostState], Any]:
    """What every host of this run says of its links, and the result that the head keeps. Errors: NoAnswer."""
    said = {one: one.get_fact(LinkState, **_words(site, one)) for one in site.hosts if one.connected}
    return _read(said), said.get(site.head, {}).get("result")


def ask_now(site: Site) -> dict[str, HostState]:
    """The same, of all at once, and past what was asked ahead: for waiting. Errors: NoAnswer."""
    fact = LinkState()
    asked = {
        one: gevent.spawn(shell, one, fact.command(**_words(site, one)))
        for one in site.hosts
        if one.connected
    }
    gevent.joinall(asked.values(), timeout=LOOK_SECONDS)
    said = {}
    for one, call in asked.items():
        ok, text = call.get() if call.ready() else (False, "")
        call.kill(block=False)
        said[one] = fact.process(text.splitlines()) if ok else {}
    return _read(said)


def _read(said: dict[Any, dict[str, Any]]) -> dict[str, HostState]:
    for one, state in said.items():
        if not state.get("boot"):
            raise NoAnswer(
                f"{one.name}: link: found no answer; wanted the state of its links; see that the host is "
                "well and run again"
            )
    return {one.name: HostState.model_validate(state) for one, state in said.items()}


@operation()
def measured(site: Site) -> Commands:
    """Measure every link, and stop the run where one is not as wanted.

    No-op when the links were measured as they are now (same boots, same carrier, addresses and devices) and
    passed; in mode "warn" also where they did not pass: their lines are then shown again. With
    `--data measure_links=yes` they are measured whatever was.
    """
    if not site.is_head:
        return
    mode = site.data.link_gate
    if mode == "off" or not site.interfaces:
        why = "link_gate is off" if mode == "off" else "one Spark has no links"
        host.noop(f"links are not checked: {why}")
        drift.not_checked("links", why)
        return
    try:
        states, stored = ask(site)
    except NoAnswer as error:
        yield fail(str(error))
        return
    wanted = wanted_of(site)
    known = isinstance(stored, dict) and stored.get("key") == links.key(site.fabric, states, wanted)
    again = knobs.switched_on(site.data, "measure_links")
    if known and not again and (stored["ok"] or mode == "warn"):
        host.noop(f"links were measured at {stored['when']}")
        lines = [CheckResult(**line) for line in stored["lines"]]
        report.note_links(stored)
        _warn(lines)
        return
    drift.differs("links", _why(stored, states, known), "a measurement of them as they are now")

    def measure(state: Any, host: Any) -> bool:
        return _measure(host, site)

    if mode == "stop":
        # What is seen without measuring is said by the doctor, too, which does not run the command.
        failed = [line for line in link_gate.seen(site.fabric, states, wanted) if line.status == "failed"]
        measure.lines = [str(line) for line in failed]  # type: ignore[attr-defined]
    yield FunctionCommand(measure, (), {})


def _why(stored: Any, states: dict[str, HostState], known: bool) -> str:
    if not isinstance(stored, dict):
        return "never measured"
    if known:
        return "measured, and failed" if not stored["ok"] else "measured"
    changed = links.changes(stored.get("states", {}), states)
    return "; ".join(changed) or "measured against other wishes"


def _measure(host: Any, site: Site) -> bool:
    try:
        result, lines = Measurement(site).result()
    except NoAnswer as error:
        return report_failure(host, str(error))
    finally:
        progress.finish("links")
    report.note_links(result)
    return conclude(host, lines, site.data.link_gate)


def conclude(host: Any, lines: list[CheckResult], mode: str) -> bool:
    """Show what failed; in mode "stop" that fails the host, and the run with it."""
    if mode == "warn":
        _warn(lines)
        return True
    failed = [line for line in lines if line.status == "failed"]
    return all([report_failure(host, f"link: {line}") for line in failed])


def _warn(lines: list[CheckResult]) -> None:
    for line in lines:
        if line.status == "failed":
            logger.warning("link: %s (link_gate is warn: the run goes on)", line)


class Measurement:
    """One measurement of all links, led by the head; every command has an end."""

    def __init__(self, site: Site) -> None:
        self.site, self.wanted = site, wanted_of(site)
        self.script = f"{site.data.state_dir}/plans/linkgate.py"
        self.began = time.monotonic()
        self.states = self._settled()
        self.hosts = {one.name: one for one in site.hosts if one.name in self.states}

    def result(self) -> tuple[dict[str, Any], list[CheckResult]]:
        """Measure; what was found is kept on every host, too. Errors: NoAnswer."""
        site, states = self.site, self.states
        for one in self.hosts.values():
            put(one, self.script, SCRIPT.read_text())
        pings = [ping for one in self.hosts.values() for ping in self._pings(one)]
        rates = [rate for cable in links.cables(site.fabric) for rate in self._rates(cable, pings)]
        lines = link_gate.judge(site.fabric, states, self.wanted, pings, rates)
        result = {
            "format": links.FORMAT,
            "key": links.key(site.fabric, states, self.wanted),
            "ok": link_gate.passed(lines),
            "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lines": [asdict(line) for line in lines],
            "states": {name: state.model_dump(mode="json") for name, state in states.items()},
            "pings": [ping.model_dump(mode="json") for ping in pings],
            "rates": [rate.model_dump(mode="json") for rate in rates],
        }
        for one in self.hosts.values():
            put(one, result_path(site), json.dumps(result) + "\n")
        return result, lines

    def _tell(self, note: str) -> None:
        progress.update("links", "measuring", time.monotonic() - self.began, None, "s", note)

    def _settled(self) -> dict[str, HostState]:
        """The hosts' state once nothing fails any more, or as it is when the time is over."""
        until = self.began + SETTLE_SECONDS
        while True:
            states = ask_now(self.site)
            lines = link_gate.seen(self.site.fabric, states, self.wanted)
            if link_gate.passed(lines) or time.monotonic() > until:
                return states
            self._tell("waiting for carrier")
            time.sleep(2)

    def _call(self, one: Any, command: str, plans: list[dict[str, Any]]) -> list[Any]:
        """What linkgate.py says to a command: an answer for each plan. Errors: NoAnswer."""
        words = ["timeout", "-k", "5", str(CALL_SECONDS), "python3", self.script, command]
        ok, said = shell(one, shlex.join([*words, *([json.dumps(plans)] if plans else [])]))
        try:
            answers = json.loads(said) if ok else None
        except ValueError:
            answers = None
        if isinstance(answers, list) and len(answers) == len(plans):
            return answers
        last = " ".join(said.split())[-200:] or f"no end in {CALL_SECONDS} s"
        raise NoAnswer(
            f"{one.name}: link: found {last}; wanted an answer of {self.script}; see that the host is well "
            "and run again"
        )

    def _pings(self, one: Any) -> list[Ping]:
        """To each neighbour on each rail, as far as there is carrier."""
        sent = []
        for end in self.site.fabric.of(one.name):
            here = links.port_of(self.states, one.name, end.name)
            for peer in end.peers:
                far = next((far for far in self.site.fabric.of(peer) if far.subnet == end.subnet), None)
                there = links.port_of(self.states, peer, far.name) if far else None
                if far and here and here.carrier and there and there.carrier:
                    sent.append((end, peer, far.address))
        if not sent:
            return []
        self._tell(f"{one.name} pings")
        plans = [{"interface": end.name, "target": address, "bytes": end.mtu} for end, _, address in sent]
        return [
            Ping.model_validate(
                {"source": one.name, "target": peer, "interface": end.name, "bytes": end.mtu, **answer}
            )
            for (end, peer, _), answer in zip(sent, self._call(one, "ping", plans), strict=True)
        ]

    def _rates(self, cable: Cable, pings: list[Ping]) -> list[Rate]:
        """Each rail of a cable alone, then all of them at once."""
        rails = [rail for rail in cable.rails if not links.unmeasurable(cable, rail, self.states, pings)]
        rdma = [rail for rail in rails if links.rdma_on(cable, rail, self.states)]
        found = [self._rate(cable, [rail], "ib_write_bw" if rail in rdma else "tcp") for rail in rails]
        return [*found, self._rate(cable, rdma, "ib_write_bw")] if len(rdma) > 1 else found

    def _rate(self, cable: Cable, turn: list[Rail], tool: str) -> Rate:
        client, server = self.hosts[cable.client], self.hosts[cable.server]
        serve, send = [], []
        for place, (near, far) in enumerate(turn):
            about = {"tool": tool, "seconds": self.wanted.seconds, "port": self.wanted.port + place}
            here, there = (
                links.port_of(self.states, one.name, end.name) for one, end in ((client, near), (server, far))
            )
            assert here is not None and there is not None, "a rail without both ends is not measured"
            serve.append({**about, "address": far.address, "device": there.hca})
            send.append({**about, "address": near.address, "device": here.hca, "target": far.address})
        names = [near.name for near, _ in turn]
        self._tell(f"{client.name} → {server.name} on {' and '.join(names)} ({tool})")
        answers: list[Any]
        try:
            said = [answer["said"] for answer in self._call(server, "serve", serve)]
            if any(said):
                answers = [{"gbps": None, "problem": one or "its twin's server failed"} for one in said]
            else:
                answers = self._call(client, "send", send)
        finally:
            # Also where the client did not answer: a server must not wait for somebody else.
            self._call(server, "stop", [])
        return Rate.model_validate(
            {
                **{"client": client.name, "server": server.name, "rails": names, "tool": tool},
                "gbps": [answer["gbps"] for answer in answers],
                "problem": [answer["problem"] for answer in answers],
            }
        )


def put(one: Any, path: str, text: str) -> None:
    """Write a file of ours now. Errors: NoAnswer."""
    ok, said = write_now(one, ManagedFile.text(path, text))
    if not ok:
        raise NoAnswer(f"{one.name}: link: {said}")


@deploy("link")
def deploy_link(site: Site) -> None:
    """After this the fabric is as fast as it must be, or the run has ended."""
    measured(name="links are as fast as wanted", site=site)
