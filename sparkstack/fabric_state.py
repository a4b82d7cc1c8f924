"""The fabric's ports of a host as they are now, from the lines of tasks/fabric_state.sh."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkstack import file_states

Reach = Literal["jumbo", "small", "none"]


@dataclass(frozen=True)
class Link:
    """A network interface. `addresses` are IPv4 with prefix length; `kind` is "" for hardware, else "bond",
    "vlan", "veth", …; `master` the bond or bridge that it belongs to."""

    addresses: tuple[str, ...] = ()
    mtu: int = 0
    mac: str = ""
    kind: str = ""
    master: str = ""
    carrier: bool = True
    up: bool = True


@dataclass(frozen=True)
class Profile:
    """A NetworkManager profile in a file: which device it is for."""

    path: str
    id: str = ""
    uuid: str = ""
    type: str = ""
    interface: str = ""
    master: str = ""
    mac: str = ""


@dataclass(frozen=True)
class FabricState:
    """`hcas` are the RDMA devices with an active port, by interface. `netplan` are the texts of files that
    speak of the fabric's ports, None where a file holds passwords. `reach`: what of a planned port's peer
    came back, a packet of the full MTU or only a small one; no entry where it was not asked. `trying`: a
    change of the network is under way, of another run. `key` and `host_key` are public keys ("ssh-ed25519
    AAAA…"), "" where there is none: of this host towards the others, and of its sshd; `peer_user`: the user
    as whom the others come is there. `ssh_port`: where its sshd listens, None where it did not say."""

    links: Mapping[str, Link] = field(default_factory=dict)
    routes: Sequence[str] = ()
    hcas: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    netplan: Mapping[str, str | None] = field(default_factory=dict)
    profiles: Sequence[Profile] = ()
    reach: Mapping[str, Reach] = field(default_factory=dict)
    trying: bool = False
    key: str = ""
    host_key: str = ""
    peer_user: bool = False
    ssh_port: int | None = None


_KEYS = {"interface-name": "interface", "mac-address": "mac", "controller": "master"}


def parse(lines: Sequence[str]) -> FabricState:
    """What a host said; lines that are none of the script's are left out."""
    links: dict[str, Link] = {}
    routes, files, hcas, reach = [], [], {}, {}
    netplan: dict[str, str | None] = {}
    profiles: list[Profile] = []
    profile: dict[str, str] = {}
    trying = peer_user = False
    ssh_port = None
    public = {"id_ed25519.pub": "", "ssh_host_ed25519_key.pub": ""}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "links":
            links |= {name: link for name, link in map(_link, json.loads(rest)) if name}
        elif word == "route" and rest.strip():
            routes.append(rest.strip())
        elif word == "hca":
            name, _, hca = rest.partition(" ")
            hcas[name] = hca
        elif word == "file":
            files.append(rest)
        elif word == "netplan":
            text, _, path = rest.partition(" ")
            netplan[path] = base64.b64decode(text).decode(errors="replace")
        elif word == "secret":
            netplan[rest] = None
        elif word == "profile":
            key, _, value = rest.partition("=")
            profile[_KEYS.get(key, key)] = value
        elif word == "profile-of":
            profiles.append(Profile(rest, **profile))
            profile = {}
        elif word == "reach":
            name, _, how = rest.partition(" ")
            reach[name] = how
        elif word == "public":
            name, _, text = rest.partition(" ")
            public[name] = text
        elif word == "sshd-port":
            ssh_port = int(rest)
        elif word == "trying":
            trying = True
        elif word == "peer-user":
            peer_user = True
    return FabricState(
        links,
        routes,
        hcas,
        file_states.parse(files),
        netplan,
        profiles,
        reach,  # type: ignore[arg-type]
        trying,
        public["id_ed25519.pub"],
        public["ssh_host_ed25519_key.pub"],
        peer_user,
        ssh_port,
    )


def _link(one: Mapping[str, Any]) -> tuple[str, Link]:
    flags = one.get("flags", [])
    return str(one.get("ifname", "")), Link(
        tuple(
            f"{a['local']}/{a['prefixlen']}" for a in one.get("addr_info", []) if a.get("family") == "inet"
        ),
        int(one.get("mtu", 0)),
        str(one.get("address", "")),
        str(one.get("linkinfo", {}).get("info_kind", "")),
        str(one.get("master", "")),
        "LOWER_UP" in flags,
        "UP" in flags,
    )
