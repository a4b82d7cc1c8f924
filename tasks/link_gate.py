"""The gate before anything is served: every link of the fabric is measured, and judged by what is wanted."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import knobs, link_gate, links
from sparkstack.host_facts import CheckResult
from sparkstack.links import Cable, HostState, LinkWanted, Ping, Rate
from tasks import drift, report
from tasks.files import Commands, ManagedFile
from tasks.link_facts import LinkState
from tasks.remote import progress, report_failure, shell
from tasks.site import ROOT, Site

SCRIPT = ROOT / "onhost" / "linkgate.py"
# A port needs some seconds until it has carrier again after netplan has touched it.
SETTLE_SECONDS = 20.0
# No command on a host takes longer than its own limits and this; then it is a line, and not a hang.
CALL_SECONDS = 240


class NoAnswer(Exception):
    """A host did not do what it was told; the text is the line for the user."""


def result_path(site: Site) -> str:
    return f"{site.data.state_dir}/results/link/links.json"


def wanted_of(site: Site) -> LinkWanted:
    return LinkWanted.model_validate(site.data.link_wanted)


def ask(site: Site) -> tuple[dict[str, HostState], Any]:
    """What every host of this run says of its links, and the result that the head keeps."""
    states, result = {}, None
    for one in site.hosts:
        if not one.connected:
            continue
        names = [interface.name for interface in site.fabric.of(one.name)]
        said = one.get_fact(LinkState, names=names, result=result_path(site))
        states[one.name] = HostState.model_validate(said)
        if one is site.head:
            result = said["result"]
    return states, result


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
        host.noop("not checked: link_gate is off" if mode == "off" else "one Spark has no links")
        return
    states, stored = ask(site)
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
    wanted = wanted_of(site)
    try:
        states = _settled(site, wanted)
        for one in _hosts(site, states):
            put(one, _script(site), SCRIPT.read_text())
        pings = _pings(site, states)
        rates = [rate for cable in links.cables(site.fabric) for rate in _rates(site, cable, states, pings)]
        lines = link_gate.judge(site.fabric, states, wanted, pings, rates)
        result = {
            "format": links.FORMAT,
            "key": links.key(site.fabric, states, wanted),
            "ok": link_gate.passed(lines),
            "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lines": [asdict(line) for line in lines],
            "states": {name: one.model_dump(mode="json") for name, one in states.items()},
            "pings": [one.model_dump(mode="json") for one in pings],
            "rates": [one.model_dump(mode="json") for one in rates],
        }
        for one in _hosts(site, states):
            put(one, result_path(site), json.dumps(result) + "\n")
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


def _hosts(site: Site, states: dict[str, HostState]) -> list[Any]:
    return [one for one in site.hosts if one.name in states]


def _settled(site: Site, wanted: LinkWanted) -> dict[str, HostState]:
    """The hosts' state once nothing fails any more, or as it is when the time is over."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        states, _ = ask(site)
        if link_gate.passed(link_gate.seen(site.fabric, states, wanted)) or time.monotonic() > until:
            return states
        progress.update("links", "link", 0, None, "", "waiting for carrier")
        time.sleep(2)


# ── On the hosts ──


def _script(site: Site) -> str:
    return f"{site.data.state_dir}/plans/linkgate.py"


def put(one: Any, path: str, text: str) -> None:
    command = ManagedFile.text(path, text).write()
    ok, said = shell(one, command.get_raw_value(), stdin=str(command.connector_arguments["_stdin"]))
    if not ok:
        raise NoAnswer(f"{one.name}: link: {said}")


def _call(one: Any, site: Site, command: str, plans: list[dict[str, Any]]) -> list[Any]:
    """What linkgate.py says to a command. Errors: NoAnswer with the host's last words."""
    words = ["timeout", "-k", "5", str(CALL_SECONDS), "python3", _script(site), command]
    ok, said = shell(one, shlex.join([*words, *([json.dumps(plans)] if plans else [])]))
    try:
        if ok:
            return list(json.loads(said))
    except ValueError:
        pass
    last = " ".join(said.split())[-200:] or f"no end in {CALL_SECONDS} s"
    raise NoAnswer(
        f"{one.name}: link: found {last}; wanted an answer of {_script(site)}; see that the host is well "
        "and run again"
    )


def _pings(site: Site, states: dict[str, HostState]) -> list[Ping]:
    """From every host to each neighbour on each rail, as far as there is carrier."""
    found = []
    for one in _hosts(site, states):
        ports = states[one.name].ports
        sent = []
        for end in site.fabric.of(one.name):
            if end.name not in ports or not ports[end.name].carrier:
                continue
            for peer in end.peers:
                far = [other for other in site.fabric.of(peer) if other.subnet == end.subnet]
                if peer in states and far:
                    sent.append((end, peer, far[0].address))
        if not sent:
            continue
        progress.update("links", "link", 0, None, "", f"{one.name} pings")
        plans = [{"interface": e.name, "target": address, "bytes": e.mtu} for e, _, address in sent]
        for (end, peer, _), answer in zip(sent, _call(one, site, "ping", plans), strict=True):
            about = {"source": one.name, "target": peer, "interface": end.name, "bytes": end.mtu}
            found.append(Ping.model_validate({**about, **answer}))
    return found


def _rates(site: Site, cable: Cable, states: dict[str, HostState], pings: list[Ping]) -> list[Rate]:
    """Each rail of a cable alone, then all of them at once."""
    rails = [rail for rail in cable.rails if links.unmeasurable(cable, rail, states, pings) is None]
    tool = "ib_write_bw" if links.rdma_on(cable, states) else "tcp"
    turns = [[rail] for rail in rails]
    if len(rails) > 1 and tool == "ib_write_bw":
        turns.append(rails)
    return [_rate(site, cable, turn, tool, states) for turn in turns]


def _rate(site: Site, cable: Cable, turn: list[Any], tool: str, states: dict[str, HostState]) -> Rate:
    wanted = wanted_of(site)
    hosts = {one.name: one for one in site.hosts}
    client, server = hosts[cable.client], hosts[cable.server]
    about = {"tool": tool, "seconds": wanted.seconds}
    serve, send = [], []
    for place, (near, far) in enumerate(turn):
        port = {**about, "port": wanted.port + place}
        device = states[server.name].ports[far.name].hca
        serve.append({**port, "address": far.address, "device": device})
        device = states[client.name].ports[near.name].hca
        send.append({**port, "address": near.address, "device": device, "target": far.address})
    names = [near.name for near, _ in turn]
    progress.update("links", "link", 0, None, "", f"{client.name} → {server.name}: {' and '.join(names)}")
    answers: list[Any]
    try:
        said = [answer["said"] for answer in _call(server, site, "serve", serve)]
        if any(said):
            answers = [{"gbps": None, "problem": one or "its twin's server failed"} for one in said]
        else:
            answers = _call(client, site, "send", send)
    finally:
        # Also where the client did not answer: a server must not wait for somebody else.
        _call(server, site, "stop", [])
    return Rate(
        client=client.name,
        server=server.name,
        rails=names,
        tool=tool,  # type: ignore[arg-type]
        gbps=[answer["gbps"] for answer in answers],
        problem=[answer["problem"] for answer in answers],
    )


@deploy("link")
def deploy_link(site: Site) -> None:
    """After this the fabric is as fast as it must be, or the run has ended."""
    measured(name="links are as fast as wanted", site=site)
