"""The ConnectX-7 fabric: addresses on both twins through netplan, and this rank's NCCL/Gloo names."""

from __future__ import annotations

import shlex
import time
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import launch, netplan, routes
from sparkstack.fabric import Interface
from tasks.facts import Addresses, FileStates, Hcas, Routes
from tasks.files import Commands, ManagedFile
from tasks.operations import managed_files
from tasks.remote import fail, report_failure, shell
from tasks.site import Site

# Losing an address for some seconds while netplan applies is normal.
SETTLE_SECONDS = 20


@operation()
def addressed(site: Site) -> Commands:
    """Bring the twins' addresses up through a netplan file of ours.

    No-op when the file is as declared and every interface carries its address. A wanted subnet that
    another interface already routes fails the host before anything is written.
    """
    interfaces = site.interfaces
    present = host.get_fact(Addresses)
    missing = [i.name for i in interfaces if i.name not in present]
    if missing:
        yield fail(
            f"{host.name}: fabric: found no interface {', '.join(missing)}; wanted the "
            "ports of `fabric` in the inventory; check the cabling and the port number"
        )
        return
    problems = routes.collisions(site.fabric, {host.name: host.get_fact(Routes)})
    if problems:
        yield fail(str(problems[0]))
        return
    file = ManagedFile.text(netplan.PATH, netplan.render(interfaces), "600")
    as_declared = host.get_fact(FileStates, paths=[netplan.PATH]).get(netplan.PATH) == file.wanted()
    if as_declared and all(i.cidr in present[i.name] for i in interfaces):
        host.noop("both twins have their addresses")
        return
    if not as_declared:
        yield file.write()
    # A file of somebody else that netplan cannot read must not leave ours half applied.
    yield StringCommand(f"netplan generate || {{ rm -f {shlex.quote(netplan.PATH)}; exit 1; }}")
    yield StringCommand("netplan apply")
    yield FunctionCommand(_settled, (interfaces,), {})


def _settled(state: Any, host: Any, interfaces: tuple[Interface, ...]) -> bool:
    """Wait until every interface carries its address."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        _, text = shell(host, "ip -o -4 addr show")
        missing = [i for i in interfaces if f" {i.name} " not in text or f" {i.cidr} " not in text]
        if not missing:
            return True
        if time.monotonic() > until:
            return report_failure(
                host,
                f"{host.name}: fabric: found no address {missing[0].cidr} on {missing[0].name} after "
                f"{SETTLE_SECONDS} s; wanted it from {netplan.PATH}; see "
                f"`networkctl status {missing[0].name}`",
            )
        time.sleep(1)


@operation()
def rank_environment(site: Site) -> Commands:
    """Write this rank's fabric.env. No-op when it names exactly the devices that are active now."""
    environment = site.rank_env(host.get_fact(Hcas))
    yield from managed_files._inner(
        [ManagedFile.text(f"{site.data.config_dir}/fabric.env", launch.env_file(environment))]
    )


@deploy("fabric")
def deploy_fabric(site: Site) -> None:
    """One Spark alone has no fabric; its rank environment is written all the same."""
    if site.interfaces:
        addressed(name="twins have their addresses", site=site)
    rank_environment(name="rank environment", site=site)
