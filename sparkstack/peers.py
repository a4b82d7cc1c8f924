"""How the hosts of a cluster reach one another by SSH: who is pinned, who may come, and for what.

Each host makes its own key and keeps it. A host lets the others in as a user that can do nothing but call
one script (`status` and `restart` of the serving unit), from their fabric addresses only. It knows their host
keys from the controller, which read them over connections that it trusts; nothing is learnt at first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from sparkstack.errors import Problem, SparkstackError
from sparkstack.fabric import FabricPlan

USER = "sparkstack-peer"
"""Without a password, and not root: where sshd refuses root, this works all the same, and what a mistake in
the list of keys would open is an account without rights. sudo lets it run the one script."""


@dataclass(frozen=True)
class Peer:
    """A host as others meet it. `management` is its address outside of the fabric, `port` its sshd's; `key`
    and `host_key` are public keys, "ssh-ed25519 AAAA…"."""

    name: str
    rank: int
    management: str
    key: str
    host_key: str
    port: int = 22


def addresses(plan: FabricPlan, of: Peer, seen_by: str) -> list[str]:
    """The addresses of a host on the links that it shares with `seen_by`; its management address where a ring
    lies between. Errors: SparkstackError for one that is a name, which a list of keys cannot hold."""
    shared = [i.address for i in plan.of(of.name) if seen_by in i.peers]
    if shared:
        return shared
    try:
        return [str(ip_address(of.management))]
    except ValueError:
        raise SparkstackError(
            Problem(
                of.name,
                f"management address {of.management!r}",
                f"an IP address, for no cable joins it to {seen_by}",
                "set `address` in the inventory",
            )
        ) from None


def known_hosts(plan: FabricPlan, node: str, peers: Mapping[str, Peer]) -> str:
    """The host keys of the others, by each of their addresses."""
    lines = []
    for peer in peers.values():
        if peer.name != node:
            names = addresses(plan, peer, node)
            if peer.port != 22:
                names = [f"[{name}]:{peer.port}" for name in names]
            lines.append(f"{','.join(names)} {peer.host_key}\n")
    return "".join(lines)


def authorized_keys(plan: FabricPlan, node: str, peers: Mapping[str, Peer], command: str) -> str:
    """Who may come to `node`, from where, and the only thing that then happens."""
    return "".join(
        f'restrict,from="{",".join(addresses(plan, peer, node))}",command="{command}" '
        f"{peer.key} sparkstack-rank-{peer.rank}\n"
        for peer in peers.values()
        if peer.name != node
    )


def config(plan: FabricPlan, node: str, peers: Mapping[str, Peer], folder: str) -> str:
    """For `ssh -F`: the others by rank ("rank-0" is the head), and by each further address that they have
    ("rank-0-rail-2"). Not by name, for a host may have one name in the inventory of another controller and be
    `@local` in its own."""
    lines = ["# managed by sparkstack: how this host reaches the others (ssh -F this-file rank-0 status)\n"]
    for peer in peers.values():
        if peer.name == node:
            continue
        for number, address in enumerate(addresses(plan, peer, node), 1):
            name = f"rank-{peer.rank}" + (f"-rail-{number}" if number > 1 else "")
            lines.append(f"Host {name}\n  HostName {address}\n  Port {peer.port}\n")
    lines.append(
        "Host *\n"
        f"  User {USER}\n"
        f"  IdentityFile {folder}/id_ed25519\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  HostKeyAlgorithms ssh-ed25519\n"
        "  BatchMode yes\n"
        # An emulated machine takes its time for the exchange of keys.
        "  ConnectTimeout 15\n"
        "  ServerAliveInterval 5\n"
        "  ServerAliveCountMax 3\n"
    )
    return "".join(lines)
