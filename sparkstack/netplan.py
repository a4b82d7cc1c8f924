"""The netplan file of a host's fabric interfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkstack.fabric import Interface

PATH = "/etc/netplan/40-sparkstack.yaml"
HEADER = "# managed by sparkstack: the next run undoes changes made here"


def render(interfaces: Sequence[Interface]) -> str:
    """The file's text for `FabricPlan.of(node)`; the same plan gives the same bytes.

    No renderer is named, so the system's own (NetworkManager on DGX OS) goes on. Without a link-local
    address the RoCE v2 entry of the GID table keeps its place. `optional` lets a Spark boot when the other
    end of a cable is off.
    """
    lines = [HEADER, "network:", "  version: 2"]
    if interfaces:
        lines.append("  ethernets:")
    for interface in interfaces:
        lines += [
            f"    {interface.name}:",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            "      optional: true",
            f"      mtu: {interface.mtu}",
            "      addresses:",
            f"        - {interface.cidr}",
        ]
    return "\n".join(lines) + "\n"


def addresses(text: str) -> list[tuple[str, str]]:
    """(interface, address with prefix) of a file that `render` wrote; nothing of any other text."""
    found, name = [], ""
    for line in text.splitlines() if text.startswith(HEADER) else []:
        if interface := re.fullmatch(r"    (\S+):", line):
            name = interface[1]
        elif address := re.fullmatch(r"        - (\S+)", line):
            found.append((name, address[1]))
    return found
