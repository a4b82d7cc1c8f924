"""The ConnectX-7 fabric: addresses on both twins through netplan, and this rank's NCCL/Gloo names."""

from __future__ import annotations

import time
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import differences, launch, machine, netplan, routes
from sparkstack.fabric import Interface
from tasks import drift, undo
from tasks.facts import Addresses, Ask, FileStates, Hcas, Routes
from tasks.files import Commands, ManagedFile
from tasks.machine import MachineState
from tasks.operations import managed_files
from tasks.remote import fail, report_failure, shell
from tasks.site import Site

# Losing an address for some seconds while netplan applies is normal.
SETTLE_SECONDS = 20
# Outside of /etc/netplan: netplan reads every file there.
BEFORE = "/run/sparkstack-netplan-before"


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    twins: list[Ask] = [(Addresses, {}), (Routes, {}), (FileStates, {"paths": [netplan.PATH]})]
    return [
        *(twins if site.interfaces else []),
        (Hcas, {}),
        (FileStates, {"paths": [f"{site.data.config_dir}/fabric.env"]}),
    ]


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
    found = host.get_fact(Routes)
    problems = routes.collisions(site.fabric, {host.name: found})
    if problems:
        yield fail(*map(str, problems))
        return
    file = ManagedFile.text(netplan.PATH, netplan.render(interfaces), "600")
    states = host.get_fact(FileStates, paths=[netplan.PATH])
    as_declared = states.get(netplan.PATH) == file.wanted()
    if as_declared and all(i.cidr in present[i.name] for i in interfaces):
        host.noop("both twins have their addresses")
        return
    _tell(file, states.get(netplan.PATH), interfaces, present)
    # netplan has systemd read its files again.
    if refused := machine.reload_refused(host.get_fact(MachineState, packages=[], units=[])):
        yield fail(f"{host.name}: fabric: {refused}")
        return
    for interface in interfaces:
        mtu = f"cat /sys/class/net/{interface.name}/mtu"
        yield StringCommand(undo.did("mtu", interface.name, ask=mtu))
    yield StringCommand(f"rm -f {BEFORE}; ! test -e {netplan.PATH} || cp -p {netplan.PATH} {BEFORE}")
    if not as_declared:
        yield file.write()
    yield FunctionCommand(_apply, (interfaces,), {})


def _tell(
    file: ManagedFile,
    found: dict[str, str] | None,
    interfaces: tuple[Interface, ...],
    present: dict[str, list[str]],
) -> None:
    """What of the file and the addresses is not as declared."""
    if found != file.wanted():
        drift.differs(file.path, *differences.of_file(found, file.wanted()))
    for i in interfaces:
        if i.cidr not in present[i.name]:
            drift.differs(i.name, ", ".join(present[i.name]) or "no address", i.cidr)


def _apply(state: Any, host: Any, interfaces: tuple[Interface, ...]) -> bool:
    """Apply the file and wait for the addresses; where netplan refuses, the file before comes back."""
    ok, said = shell(host, "netplan generate")
    if not ok:
        shell(host, f"rm -f {netplan.PATH}; ! test -e {BEFORE} || mv {BEFORE} {netplan.PATH}")
        words = " ".join(said.split())[-300:]
        return report_failure(
            host,
            f"{host.name}: fabric: found netplan refusing: {words}; wanted files that it can read; "
            "mend the one that it names; ours is taken back",
        )
    shell(host, f"netplan apply; rm -f {BEFORE}")
    return _settled(host, interfaces)


def _settled(host: Any, interfaces: tuple[Interface, ...]) -> bool:
    """Wait until every interface carries its address."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        _, text = shell(host, "ip -o -4 addr show")
        lines = text.splitlines()
        missing = [i for i in interfaces if not any(f" {i.name} " in x and f" {i.cidr} " in x for x in lines)]
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
