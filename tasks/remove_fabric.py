"""The network as it was: our addresses off, the files of others back, applied once; for `remove.py`."""

from __future__ import annotations

import shlex

from pyinfra import host
from pyinfra.api import StringCommand, operation

from sparkstack import netplan
from tasks.facts import Addresses, Text
from tasks.files import Commands
from tasks.put_back import drop, forget, restore
from tasks.undo import Undo

NETWORK_MANAGER = "/etc/NetworkManager/system-connections/"


def is_theirs(path: str) -> bool:
    """A network file of others: it goes back before the network is applied, not with the rest."""
    folders = ("/etc/netplan/", NETWORK_MANAGER)
    return path.startswith(folders) and path != netplan.PATH


@operation()
def fabric_back() -> Commands:
    """Take our netplan file and the addresses in it off the interfaces, put back the network files of others
    that the fabric took its ports out of, and apply what netplan has then.

    No-op when the file is not there, or is the one of before, and so are theirs.
    """
    notes = host.get_fact(Undo)
    text = host.get_fact(Text, path=netplan.PATH)
    noted = netplan.PATH in notes["files"] or netplan.PATH in notes["absent"]
    ours = text is not None and not notes["files"].get(netplan.PATH)
    ours = ours and (noted or (text or "").startswith(netplan.HEADER))
    theirs = sorted(path for path, same in notes["files"].items() if is_theirs(path) and not same)
    if not ours and not theirs:
        host.noop("no network file of ours is there")
        return
    present = host.get_fact(Addresses)
    off = [
        f"ip address del {shlex.quote(cidr)} dev {shlex.quote(name)} 2>/dev/null"
        for name, cidr in netplan.addresses(text or "")
        if cidr in present.get(name, [])
    ]
    back = [restore(path) for path in theirs]
    if ours:
        back.append(restore(netplan.PATH) if netplan.PATH in notes["files"] else drop(netplan.PATH))
    if any(path.startswith(NETWORK_MANAGER) for path in theirs):
        back.append("{ nmcli connection reload || true; }")
    # Before, so that none is forgotten when this is cut off; after, for what the network's daemon put back.
    words = " && ".join([*back, "netplan apply"])
    yield StringCommand("; ".join([*off, words, "s=$?", *off, "exit $s"]))
    for name, mtu in notes["did"].get("mtu", {}).items():
        yield StringCommand(
            f"ip link set dev {shlex.quote(name)} mtu {shlex.quote(mtu)} && {forget('mtu', name)}"
        )
