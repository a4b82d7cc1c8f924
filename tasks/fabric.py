"""The ConnectX-7 fabric: is it cabled as declared, addresses on both twins through netplan, this rank's
NCCL/Gloo names, and SSH between the hosts."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import differences, discovery, fabric_check, launch, machine, migration, netplan
from sparkstack.errors import SparkstackError
from sparkstack.fabric_state import FabricState
from tasks import discover, drift, fabric_facts, fabric_try, peers, undo
from tasks.facts import Ask
from tasks.files import Commands, ManagedFile
from tasks.machine import MachineState
from tasks.operations import write_unless
from tasks.remote import fail, report_failure
from tasks.site import Site

# What hides a netplan file of which nothing is left.
EMPTY = "network:\n  version: 2\n"


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    return [(fabric_facts.FabricFacts, fabric_facts.words(site))]


def _old(site: Site, state: FabricState) -> tuple[migration.Migration, list[str]]:
    names = [i.name for i in site.interfaces]
    found, problems = migration.plan(site.host.name, names, state, netplan.PATH)
    return found, list(map(str, problems))


def _file(site: Site) -> ManagedFile:
    return ManagedFile.text(netplan.PATH, netplan.render(site.interfaces), "600")


def _tell(site: Site, state: FabricState) -> list[tuple[str, str, str]]:
    """(thing, found, wanted) of all that is not as declared."""
    file, told = _file(site), []
    found = state.files.get(netplan.PATH)
    if site.interfaces and found != file.wanted():
        told.append((file.path, *differences.of_file(dict(found) if found else None, file.wanted())))
    return told + fabric_check.differences(site.interfaces, state, _old(site, state)[0])


@operation()
def possible(site: Site) -> Commands:
    """Look at the ports, and stop the run where the fabric cannot be brought up: no such interface, a network
    that is in use, a port that somebody else holds and that we cannot take out.

    Never changes anything; no-op when nothing speaks against it.
    """
    state = fabric_facts.ask(site)
    old, lines = _old(site, state)
    me = site.host.name
    management = site.data.management_interface
    lines += map(str, fabric_check.problems(site.fabric, me, state, old, site.reached_by, management))
    if lines:
        yield fail(*lines)
        return
    if state.trying:
        drift.differs("network", "a change under way, of another run", "none")
    for thing in fabric_check.silence(site.interfaces, state):
        drift.differs(*thing)
    host.noop("the ports can carry the fabric")


@operation()
def cabled(site: Site) -> Commands:
    """Ask all hosts, from the head, what their ports hear, and stop the run where that is not what is
    declared. Never changes anything (a port that is down is up for some seconds).

    No-op when every port has its address and hears its neighbour: then the cabling is as declared.
    """
    if not site.is_head:
        return
    states = fabric_facts.of_all(site)
    off = [
        one.name
        for one in site.hosts
        if one.name in states
        and (
            fabric_check.silence(site.fabric.of(one.name), states[one.name])
            or fabric_check.differences(site.fabric.of(one.name), states[one.name], migration.Migration({}))
        )
    ]
    if not off:
        host.noop("every port hears its neighbour")
        return
    if discover.found_now(site.fabric.cabling):
        host.noop("the cables were found in this run")
        return
    drift.differs("cabling", f"ports of {', '.join(off)} that differ or hear nobody", "as declared")
    yield FunctionCommand(_compare, (site,), {})


def _compare(state: Any, host: Any, site: Site) -> bool:
    if not all(one.connected for one in site.hosts):
        return True  # a part of the hosts says nothing about the cables; what they can mend they mend
    try:
        discovery.compare(site.fabric, discover.probed(site.hosts, site.fabric.names))
    except SparkstackError as error:
        for line in error.lines:
            report_failure(host, line)
        for line in getattr(error, "drawing", ()):
            host.log_styled(line, fg="red", log_func=logger.error)
        return False
    return True


@operation()
def addressed(site: Site) -> Commands:
    """Bring the twins' addresses up through a netplan file of ours, and take them out of everybody else's.

    No-op when the file is as declared, no other file speaks of the ports, and every port has its address, no
    other one, and its MTU. A host that cannot be reached afterwards goes back by itself.
    """
    state = fabric_facts.known(site)
    old, lines = _old(site, state)
    if lines:
        yield fail(*lines)
        return
    told = _tell(site, state)
    if not told:
        host.noop("both twins have their addresses")
        return
    for thing in told:
        drift.differs(*thing)
    # netplan has systemd read its files again.
    if refused := machine.reload_refused(host.get_fact(MachineState, packages=[], units=[])):
        yield fail(f"{host.name}: fabric: {refused}")
        return
    fabric_facts.changed(site)
    for interface in site.interfaces:
        mtu = f"cat /sys/class/net/{interface.name}/mtu"
        yield StringCommand(undo.did("mtu", interface.name, ask=mtu))
    for path in [*old.files, *old.profiles]:
        yield StringCommand(undo.keep(path))
    file = _file(site)
    trial = {PurePosixPath(path).name: text or EMPTY for path, text in old.files.items()}
    trial[PurePosixPath(netplan.PATH).name] = file.content.decode()
    script = fabric_try.script(trial, site.interfaces, old.masters, old.profiles)
    yield FunctionCommand(fabric_try.begin, (script, site.interfaces), {})
    # It answers with them: from here on the files are for the next boot.
    if state.files.get(netplan.PATH) != file.wanted():
        yield file.write()
    for path, text in old.files.items():
        if text is None:
            yield StringCommand(f"rm -f {shlex.quote(path)}")
        else:
            yield ManagedFile.text(path, text, "600").write()
    yield FunctionCommand(fabric_try.keep, (), {})


@operation()
def rank_environment(site: Site) -> Commands:
    """Write this rank's fabric.env. No-op when it names exactly the devices that are active now."""
    state = fabric_facts.known(site)
    active = [state.hcas[i.name] for i in site.interfaces if i.name in state.hcas]
    file = ManagedFile.text(f"{site.data.config_dir}/fabric.env", launch.env_file(site.rank_env(active)))
    yield from write_unless(file, state.files.get(file.path))


@deploy("fabric")
def deploy_fabric(site: Site) -> None:
    """One Spark alone has no fabric; its rank environment is written all the same."""
    possible(name="ports can carry the fabric", site=site)
    if site.interfaces:
        cabled(name="cables are as declared", site=site)
        addressed(name="twins have their addresses", site=site)
    rank_environment(name="rank environment", site=site)
    if len(site.hosts) > 1:
        peers.key_made(name="key for the other hosts", site=site)
        peers.peers_known(name="hosts know one another", site=site)
        peers.peers_answer(name="hosts answer one another", site=site)
    else:
        peers.nobody_comes(name="no other host is let in", site=site)
