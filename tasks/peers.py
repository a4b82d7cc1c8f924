"""SSH between the hosts of a cluster, for the group's watchdog: a key a host, pinned, with one command."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, operation

from sparkstack.errors import SparkstackError
from sparkstack.peers import USER, Peer
from tasks import drift, fabric_facts, peer_files, undo
from tasks.files import Commands
from tasks.remote import fail, report_failure, shell
from tasks.site import Site, management_address

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"

# Hosts whose files were written in this run: then all of them are asked whether the others answer.
_written: set[str] = set()


@operation()
def key_made(site: Site) -> Commands:
    """Make this host's key, there and nowhere else. No-op when it has one."""
    if fabric_facts.known(site).key:
        host.noop("this host has its key")
        return
    drift.differs(f"{peer_files.folder(site)}/id_ed25519", "no key", "one that this host made")
    yield FunctionCommand(_make, (site,), {})


def _make(state: Any, host: Any, site: Site) -> bool:
    folder = shlex.quote(peer_files.folder(site))
    comment = f"sparkstack-rank-{site.rank}"
    ok, said = shell(
        host,
        f"umask 022; mkdir -p $(dirname {folder}); umask 077; mkdir -p {folder} && cd {folder} && "
        f"rm -f new new.pub && ssh-keygen -q -t ed25519 -N '' -C {comment} -f new && sync new && "
        "mv -f new.pub id_ed25519.pub && mv -f new id_ed25519 && cut -d' ' -f1,2 id_ed25519.pub",
    )
    if ok:
        fabric_facts.learnt_key(site, said.strip())
    return ok or report_failure(
        host, f"{host.name}: peers: found ssh-keygen failing: {' '.join(said.split())[-200:]}; wanted a key"
    )


def _peers(site: Site) -> dict[str, Peer]:
    """The hosts as each of them says; a key that is not made yet is empty."""
    found = {}
    for rank, one in enumerate(site.hosts):
        about = fabric_facts.known(site.seen_by(rank))
        port = about.ssh_port
        # The port of the inventory is the controller's way, which may be forwarded; the others come directly.
        port = port or int(one.data.get("ssh_port") or 22)
        found[one.name] = Peer(one.name, rank, management_address(one), about.key, about.host_key, port)
    return found


@operation()
def peers_known(site: Site) -> Commands:
    """Pin the others' host keys, and let them in for one command.

    No-op when every file is as the others' keys and addresses ask for, and the user is there.
    """
    state = fabric_facts.known(site)
    if apart := [one.name for one in site.hosts if not one.connected]:
        host.noop(f"not looked at: {', '.join(apart)} left out of this run")
        return
    known = _peers(site)
    for peer in known.values():
        if not peer.host_key:
            yield fail(
                f"{peer.name}: peers: found no {HOST_KEY}; wanted sshd's key to pin; "
                "run `ssh-keygen -A` there"
            )
            return
    if without := [peer.name for peer in known.values() if not peer.key]:
        drift.differs("keys of the hosts", f"none on {', '.join(without)}", "one on each")
        line = f"{host.name}: peers: found no key on {', '.join(without)}; wanted one on each; run again"
        # Before a run has made them, that they will be known is all that can be said.
        yield fail(line) if host.state.is_executing else StringCommand("true")
        return
    try:
        files = peer_files.files(site, known)
    except SparkstackError as error:
        yield fail(*error.lines)
        return
    changed = [file for file in files if state.files.get(file.path) != file.wanted()]
    if not changed and state.peer_user:
        host.noop("the other hosts are known")
        return
    if not state.peer_user:
        drift.differs(f"user {USER}", "none", "the one as whom the others come")
        home = shlex.quote(peer_files.home(site))
        yield StringCommand(
            f"{undo.did('user', USER)} && useradd --system --home-dir {home} --no-create-home "
            f"--shell /bin/sh --password '*' {USER}"
        )
    if host.state.is_executing:
        _written.add(host.name)
    for file in changed:
        if file.path == peer_files.SUDOERS:
            # A mistake there locks everybody out of sudo, so it never lands.
            yield StringCommand("visudo -cqf -", _stdin=file.content.decode())
        yield file.write()
    fabric_facts.changed(site)


@operation()
def nobody_comes(site: Site) -> Commands:
    """Take back what a Spark that is alone now allowed the others when it was one of several.

    No-op where nobody is let in.
    """
    path = peer_files.paths(site)[-1]
    if path not in fabric_facts.known(site).files:
        host.noop("no other host is let in")
        return
    drift.differs(path, "keys of other hosts", "no such file on a Spark alone")
    yield StringCommand(f"rm -f {shlex.quote(path)}")
    fabric_facts.changed(site)


@operation()
def peers_answer(site: Site) -> Commands:
    """Ask each other host for its status. No-op where no host's files changed in this run."""
    if not _written:
        host.noop("nothing changed since they answered")
        return
    yield FunctionCommand(_ask, (site,), {})


def _ask(state: Any, host: Any, site: Site) -> bool:
    config = shlex.quote(f"{peer_files.folder(site)}/config")
    good = True
    for rank, one in enumerate(site.hosts):
        if rank == site.rank:
            continue
        ok, said = shell(host, f"timeout 60 ssh -F {config} rank-{rank} status </dev/null 2>&1")
        if not ok or "ActiveState=" not in said:
            words = " ".join(said.split())[-200:] or "no word in 60 s"
            good = report_failure(
                host,
                f"{host.name}: peers: found {one.name} not answering by SSH: {words}; wanted its status; see "
                f"`journalctl -u ssh` there, and that AllowUsers of sshd does not leave out {USER}",
            )
    return good
