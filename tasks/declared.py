"""The data of a host as the knobs' schema wants it: every name and its value, and where each was set."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyinfra.api.arguments import all_argument_meta
from pyinfra.connectors.ssh import ConnectorData

from sparkstack import knobs
from sparkstack.errors import Problem

# pyinfra's own names: how to connect, and arguments of every operation (`_sudo`).
PYINFRA_NAMES = (*ConnectorData.__annotations__, *all_argument_meta, "address")


def problems(host: Any, also: Iterable[str] = ()) -> list[Problem]:
    """What is wrong with the data of a host; a line a mistake. `also`: names that this program knows, too."""
    return [*_password(host), *knobs.problems(host.data.dict(), homes(host), (*PYINFRA_NAMES, *also))]


def _password(host: Any) -> list[Problem]:
    """pyinfra's own setting, which a file can make too; its `--same-sudo-password` asks on the terminal."""
    config = getattr(host.state, "config", None)
    if not getattr(config, "SUDO_PASSWORD", None) or "--same-sudo-password" in sys.argv:
        return []
    wanted = "no password in a file or an argument"
    return [Problem("config.py", "SUDO_PASSWORD", wanted, knobs.SECRETS["_sudo_password"])]


def homes(host: Any) -> dict[str, str]:
    """Where each name was set last, in pyinfra's order: all, a group, the host, the command line."""
    inventory = host.inventory
    layers = [("group_data/all.py", inventory.get_data())]
    layers += [(_home_of_group(group), inventory.get_group_data(group)) for group in host.groups]
    layers += [(f"inventory, host {host.name}", inventory.get_host_data(host.name))]
    layers += [("--data", inventory.get_override_data())]
    return {name: where for where, data in layers for name in data}


def _home_of_group(group: str) -> str:
    # Data of a group may stand in the inventory or in a file of the group's name; pyinfra has merged the two.
    file = Path("group_data") / f"{group}.py"
    return str(file) if file.is_file() else f"inventory, group {group}"
