"""The fabric of a host, asked once in a run: an operation that changed nothing hands the state on."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from pyinfra.api import FactBase

from sparkstack import fabric_state, file_states, netplan
from sparkstack.fabric import MTU
from sparkstack.fabric_state import FabricState
from tasks import peer_files
from tasks.site import Site

# Its last words are of the files that it found.
SCRIPT = (
    Path(__file__).with_name("fabric_state.sh").read_text()
    + f"{{ {file_states.COMMAND}; }} | sed 's/^/file /'\n"
)


class FabricFacts(FactBase[FabricState]):
    """Returns the state of the ports (`{interface: address that shall answer}`), of the files at `paths`, and
    of what others' files say of the ports. `keys` is the folder of the key for the other hosts."""

    default = FabricState

    def command(self, ports: dict[str, str], keys: str, paths: list[str]) -> str:
        asked = [f"{name}={peer}" for name, peer in ports.items()]
        return shlex.join(["sh", "-c", SCRIPT, "fabric", str(MTU), keys, *asked, *paths])

    def process(self, output: list[str]) -> FabricState:
        return fabric_state.parse(output)


# By host; what was true when it was asked last, and is still.
_known: dict[str, FabricState] = {}


def words(site: Site) -> dict[str, Any]:
    """The arguments with which the fact is asked."""
    return {
        "ports": {i.name: i.next_peer for i in site.interfaces},
        "keys": peer_files.folder(site),
        "paths": [netplan.PATH, f"{site.data.config_dir}/fabric.env", *peer_files.paths(site)],
    }


def ask(site: Site) -> FabricState:
    """Ask the host anew."""
    found: FabricState = site.host.get_fact(FabricFacts, **words(site))
    _known[site.host.name] = found
    return found


def known(site: Site) -> FabricState:
    """As the operation before left it, else asked."""
    return _known.get(site.host.name) or ask(site)


def of_all(site: Site) -> dict[str, FabricState]:
    """The states of the hosts that were asked so far."""
    return {one.name: _known[one.name] for one in site.hosts if one.name in _known}


def learnt_key(site: Site, key: str) -> None:
    """The host has made its key for the others."""
    _known[site.host.name] = dataclasses.replace(known(site), key=key)


def changed(site: Site) -> None:
    """Whoever looks next has to ask."""
    _known.pop(site.host.name, None)
