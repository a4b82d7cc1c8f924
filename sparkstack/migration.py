"""What an earlier tool left on the fabric's ports, and what has to change so that our netplan file is alone.

Vendors' scripts give both twins one subnet or link-local addresses; others bond them. netplan merges all its
files, so a stanza of theirs would add to ours. The old files are kept on the host for the removal
(tasks/undo.py); what they say of other interfaces stays.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkstack.errors import Problem
from sparkstack.fabric_state import FabricState, Profile

_STACKED = ("bonds", "bridges")


@dataclass(frozen=True)
class Migration:
    """`files`: netplan files and their new text, None where nothing is left of one; `profiles`: files of
    NetworkManager that go; `masters`: bonds and bridges that are taken apart."""

    files: Mapping[str, str | None]
    profiles: tuple[str, ...] = ()
    masters: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.profiles or self.masters)


def plan(node: str, ports: Sequence[str], state: FabricState, ours: str) -> tuple[Migration, list[Problem]]:
    """What of others is in the way on `node` (`ours` is the path of our own file); problems where it cannot
    be told apart from what has to stay."""
    problems: list[Problem] = []
    texts = {path: text for path, text in state.netplan.items() if path != ours}
    loaded = {path: _load(text) for path, text in texts.items() if text is not None}
    for path, text in texts.items():
        if text is None:
            problems.append(
                Problem(
                    f"{node}: {path}",
                    "a port of the fabric in a file with passwords",
                    "the port in no file but ours",
                    f"take {' and '.join(ports)} out of it by hand",
                )
            )
    ids = {
        one
        for path, network in loaded.items()
        for one in _ids_of(node, path, network, ports, state, problems)
    }
    masters = {
        name for path, network in loaded.items() for name in _stacks_of(node, path, network, ids, problems)
    }
    ids |= masters
    for path, network in loaded.items():
        for name, stanza in _stanzas(network, "vlans"):
            if stanza.get("link") in ids:
                problems.append(
                    Problem(
                        f"{node}: {path}",
                        f"VLAN {name} on {stanza['link']}",
                        "nothing on top of the fabric's ports",
                        "remove it, then run again",
                    )
                )
    files = {}
    for path, network in loaded.items():
        kept, changed = _without(network, ids)
        if changed:
            files[path] = _dump(kept)
    profiles = _profiles(ports, state)
    masters |= _live(node, ports, state, problems)
    return Migration(files, profiles, tuple(sorted(masters))), problems


def _load(text: str) -> dict[str, Any]:
    """`network` of a file, every value as it is written; {} where it cannot be read (netplan will say so)."""
    try:
        document = yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError:
        return {}
    network = document.get("network") if isinstance(document, dict) else None
    return network if isinstance(network, dict) else {}


def _stanzas(network: Mapping[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    found = network.get(section)
    items = found.items() if isinstance(found, dict) else []
    return [(name, stanza if isinstance(stanza, dict) else {}) for name, stanza in items]


def _ids_of(
    node: str,
    path: str,
    network: Mapping[str, Any],
    ports: Sequence[str],
    state: FabricState,
    problems: list[Problem],
) -> list[str]:
    """The names under which the file configures the ports."""
    found = []
    for name, stanza in _stanzas(network, "ethernets"):
        match = stanza.get("match")
        if not isinstance(match, dict):
            if name in ports:
                found.append(name)
            continue
        hit = [one for one, link in state.links.items() if not link.kind and _matches(match, one, link.mac)]
        mine = [one for one in hit if one in ports]
        if mine and set(hit) - set(mine):
            problems.append(
                Problem(
                    f"{node}: {path}",
                    f"{name!r} for {', '.join(sorted(hit))}",
                    "the fabric's ports in no file but ours",
                    f"narrow its `match` so that it leaves out {' and '.join(mine)}",
                )
            )
        elif mine:
            found.append(name)
    return found


def _matches(match: Mapping[str, Any], name: str, mac: str) -> bool:
    # All that is named must hold; what we cannot judge (driver) counts as holding.
    pattern, address = match.get("name"), match.get("macaddress")
    patterns = pattern if isinstance(pattern, list) else [pattern]
    if pattern is not None and not any(fnmatch.fnmatchcase(name, str(one)) for one in patterns):
        return False
    if address is not None and str(address).lower() != mac.lower():
        return False
    return pattern is not None or address is not None


def _stacks_of(
    node: str, path: str, network: Mapping[str, Any], ids: set[str], problems: list[Problem]
) -> list[str]:
    """Bonds and bridges that consist of nothing but the ports."""
    found = []
    for section in _STACKED:
        for name, stanza in _stanzas(network, section):
            members = stanza.get("interfaces")
            members = members if isinstance(members, list) else []
            strange = [one for one in members if one not in ids]
            if members and not strange:
                found.append(name)
            elif len(strange) < len(members):
                problems.append(
                    Problem(
                        f"{node}: {path}",
                        f"{name} of {', '.join(members)}",
                        "the fabric's ports in no bond or bridge",
                        "take them out of it by hand",
                    )
                )
    return found


def _without(network: Mapping[str, Any], ids: set[str]) -> tuple[dict[str, Any], bool]:
    kept: dict[str, Any] = {}
    changed = False
    for key, value in network.items():
        if key in ("ethernets", *_STACKED) and isinstance(value, dict):
            left = {name: stanza for name, stanza in value.items() if name not in ids}
            changed |= len(left) < len(value)
            if left or not value:
                kept[key] = left
        else:
            kept[key] = value
    return kept, changed


def _dump(network: Mapping[str, Any]) -> str | None:
    if set(network) <= {"version"}:
        return None
    body = yaml.dump({"network": dict(network)}, Dumper=yaml.SafeDumper, sort_keys=False)
    return "# sparkstack took its fabric ports out of this file; remove.py puts it back as it was\n" + body


def _profiles(ports: Sequence[str], state: FabricState) -> tuple[str, ...]:
    """NetworkManager's files for the ports, and for bonds that have no other members."""
    macs = {state.links[port].mac.lower() for port in ports if port in state.links}

    def is_ours(profile: Profile) -> bool:
        return profile.interface in ports or (bool(profile.mac) and profile.mac.lower() in macs)

    gone = [one for one in state.profiles if is_ours(one)]
    masters = {one.master for one in gone if one.master}
    for one in state.profiles:
        known = {one.id, one.uuid, one.interface} - {""}
        members = [other for other in state.profiles if other.master in known]
        if one.type in ("bond", "bridge") and known & masters and all(map(is_ours, members)):
            gone.append(one)
    return tuple(sorted(one.path for one in gone))


def _live(node: str, ports: Sequence[str], state: FabricState, problems: list[Problem]) -> set[str]:
    """Bonds and bridges that the ports belong to now, whoever made them."""
    found = set()
    for name in sorted({state.links[port].master for port in ports if port in state.links} - {""}):
        members = {one for one, link in state.links.items() if link.master == name}
        kind = state.links[name].kind if name in state.links else "bond"
        if members <= set(ports):
            found.add(name)
        else:
            problems.append(
                Problem(
                    f"{node}: {name}",
                    f"a {kind} of {', '.join(sorted(members))}",
                    "the fabric's ports in no bond or bridge",
                    "take them out of it by hand",
                )
            )
    return found
