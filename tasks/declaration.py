"""From what a user declared to a site, or to a line for each mistake.

Nothing is asked of a host here, but for `fabric` "auto": that is what the hosts say.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from pyinfra import host as current_host
from pyinfra import inventory

from sparkstack import command_endpoint, launch, nccl, recipe, topology
from sparkstack.check import refusals
from sparkstack.endpoint import no_bind
from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan
from sparkstack.stages import select
from tasks import declared, discover
from tasks.site import LOCAL, ROOT, Site, SiteError, management_address

WHERE = "correct `recipe` in group_data"


def _check_local(hosts: list[Any], kind: str, data: Any) -> None:
    """Others do not reach this machine by 127.0.0.1, so where they must, its address has to be declared."""
    if not any(host.name == LOCAL and management_address(host) == "127.0.0.1" for host in hosts):
        return
    if kind == "ring" or (hosts[0].name == LOCAL and data.serve_bind == "management"):
        raise SparkstackError(
            Problem(
                "@local", "no address", "the one by which others reach it", "set `address` in the inventory"
            )
        )


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_bind(head: Any, data: Any) -> None:
    """A host's own name is 127.0.1.1 to itself on Ubuntu: an endpoint bound to it would be nobody else's."""
    address = management_address(head)
    if data.serve_bind != "management" or (_is_ip(address) and no_bind(address) is None):
        return
    raise SparkstackError(
        Problem(
            head.name,
            f"management address {address!r}",
            (_is_ip(address) and no_bind(address)) or "an IP address, for the endpoint listens on it",
            "set `address` in the inventory, or serve_bind to an address",
        )
    )


@functools.cache
def _recipe(name: str, nodes: int) -> recipe.Recipe:
    try:
        path = recipe.recipe_file(name, ROOT / "recipes")
    except SparkstackError as error:
        hinted = [replace(one, remedy=f"{one.remedy}; {WHERE}") for one in error.problems]
        raise SparkstackError(hinted) from None
    if not path.is_file():
        raise SparkstackError(Problem("recipe", repr(name), "a recipe's file, or its name", WHERE))
    chosen = recipe.load_recipe(path)
    if refused := [] if chosen.check_nodes(nodes) else refusals(path, nodes):
        raise SparkstackError(refused)
    return chosen


def _fabric(hosts: list[Any], data: Any) -> FabricPlan:
    """The declared fabric; "auto" asks the hosts, once in a run. Errors: SparkstackError."""
    knob = dict(data.fabric)
    # The plan is of all hosts, so all must see the same one.
    for other in hosts:
        if dict(other.data.fabric) != knob:
            found = f"another `fabric` than {current_host.name} has"
            raise SparkstackError(
                Problem(other.name, found, "one for all hosts", "set it in group_data, not for a host")
            )
        if mistakes := [] if other is current_host else declared.problems(other):
            raise SparkstackError(mistakes)
    names = [host.name for host in hosts]
    ports = {host.name: topology.ports_of(host.data.get("fabric_ports") or {}) for host in hosts}
    kind = knob.get("kind") or ("single" if len(hosts) == 1 else "pair" if len(hosts) == 2 else None)
    if kind is None:
        found = f"{len(hosts)} hosts and no kind"
        raise SparkstackError(
            Problem("fabric", found, "ring, switch or auto", "set `fabric` in group_data")
        )
    if kind == "auto":
        return topology.plan_of(discover.cabling(hosts, ports), names, knob.get("base"), ports)
    return topology.plan(
        kind, names, knob.get("base"), knob.get("port", 0), knob.get("cables"), names=ports
    )


def unreached(hosts: Iterable[Any]) -> SiteError | None:
    """What to raise where a host of the run (`--limit` counts) is not connected; None where all are."""
    gone = [host.name for host in hosts if host.state.is_host_in_limit(host) and not host.connected]
    if not gone:
        return None
    return SiteError(
        f"{', '.join(gone)}: found no connection; wanted all hosts of the inventory; check power, cable "
        "and ssh, or name the others with --limit"
    )


def load(whole: bool = True) -> Site:
    """The site as the current host sees it; `whole`: every host of the inventory must be connected.

    Errors: SiteError, a line for each wrong declaration.
    """
    hosts = list(inventory)
    state = current_host.state
    # Without -y pyinfra asks after a failure whether to go on; a cluster with a rank missing cannot.
    state.should_raise_failed_hosts = lambda state: True
    if whole and (missing := unreached(hosts)):
        raise missing
    if mistakes := declared.problems(current_host):
        raise SiteError("\n".join(map(str, mistakes)))
    data = current_host.data
    names = [host.name for host in hosts]
    try:
        chosen = _recipe(str(data.recipe), len(hosts))
        problems = [
            *chosen.check_nodes(len(hosts)),
            *recipe.unsupported(chosen),
            *recipe.pins_missing(chosen, data.image_bases),
            *recipe.secrets_in(chosen),
            *nccl.empties(chosen.serve.env, f"recipe {chosen.name}"),
            *launch.drain_problems(chosen, data.drain_s),
            *command_endpoint.against_site(chosen, str(data.serve_bind)),
        ]
        if problems:
            raise SparkstackError(problems)
        fabric = _fabric(hosts, data)
        _check_local(hosts, fabric.kind, data)
        _check_bind(hosts[0], data)
        for host in hosts:
            nccl.host_address(fabric, host.name, management_address(host))
        rank = names.index(current_host.name)
        site = Site(hosts[rank], rank, hosts, chosen, fabric)
        _ = site.api_key  # what is wrong with it is told before anything is done
        return site
    except SparkstackError as error:
        raise SiteError(str(error)) from None


def stages(only: object) -> list[str]:
    """The stages of this run. Errors: SiteError naming the known ones."""
    try:
        # pyinfra reads `--data only=5` as a number; it is a name all the same, and an unknown one.
        return select(only if only is None else str(only))
    except SparkstackError as error:
        raise SiteError(str(error)) from None
