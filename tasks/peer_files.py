"""The files by which the hosts of a cluster reach one another (sparkstack/peers.py), on a host."""

from __future__ import annotations

from collections.abc import Mapping

from sparkstack import peers
from tasks.files import ManagedFile, render
from tasks.site import UNIT, Site

SUDOERS = "/etc/sudoers.d/sparkstack-peer"


def folder(site: Site) -> str:
    """Root's alone: the key of this host, and what it knows of the others."""
    return f"{site.data.config_dir}/ssh"


def home(site: Site) -> str:
    """The home of the user as whom the others come; nothing in it is that user's own."""
    return f"{site.data.config_dir}/peer"


def paths(site: Site) -> list[str]:
    """Every file of `files`; the last one lets the others in."""
    return [
        f"{folder(site)}/known_hosts",
        f"{folder(site)}/config",
        f"{home(site)}/command",
        f"{home(site)}/serve",
        SUDOERS,
        f"{home(site)}/.ssh/authorized_keys",
    ]


def files(site: Site, known: Mapping[str, peers.Peer]) -> list[ManagedFile]:
    """In the order in which they are written: who may come is last. Errors: SparkstackError."""
    fabric, me, mine, keys = site.fabric, site.host.name, home(site), folder(site)
    contents = [
        (peers.known_hosts(fabric, me, known), "600"),
        (peers.config(fabric, me, known, keys), "600"),
        (render("peer-command.sh.j2", folder=mine), "755"),
        (render("peer-serve.sh.j2", unit=UNIT, config_dir=site.data.config_dir), "755"),
        (render("peer-sudoers.j2", user=peers.USER, folder=mine), "440"),
        (peers.authorized_keys(fabric, me, known, f"{mine}/command"), "644"),
    ]
    return [
        ManagedFile.text(path, text, mode) for path, (text, mode) in zip(paths(site), contents, strict=True)
    ]
