"""Shares: images and checkpoints from host to host, over the fabric, while somebody fetches.

Plain HTTP on fabric addresses with a token of this run; what arrives is checked against hashes. The
management network carries it only where no fabric joins two hosts, and then a line says so.
"""

from __future__ import annotations

import secrets
import shlex
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, StringCommand, operation

from sparkstack import distribution
from sparkstack.distribution import Sender
from tasks.facts import Ask, UnitState
from tasks.files import Commands
from tasks.remote import plan_file, report_failure, shell, start_and_follow, write_now
from tasks.site import Site, management_address

UNIT = "sparkstack-share"
START_SECONDS = 10  # for a share to accept connections
# The token of a share that this run opens: all ends get it, nobody keeps it.
TOKEN = secrets.token_hex(16)


def _token_file(site: Site, name: str = "share") -> str:
    return f"{site.secrets_dir}/{name}.token"


def _senders(site: Site, chain: bool) -> tuple[Sender, ...]:
    """Whom this host asks, the head last; without `chain` the head alone (an image is one stream)."""
    found = distribution.senders(site.fabric, site.names, site.host.name, site.distribution, site.management)
    return found if chain else found[-1:]


def _url(site: Site, address: str) -> str:
    return f"http://{address}:{site.data.share_port}"


def fetch(site: Site, plan: dict[str, Any], chain: bool = False) -> Commands:
    """Commands on a worker that fetch something from other hosts: open their shares, run the job."""
    path = f"{site.data.state_dir}/plans/{plan['job']}.json"
    urls = [_url(site, sender.address) for sender in _senders(site, chain)]
    plan = {**plan, "token_file": _token_file(site)} | ({"urls": urls} if urls[1:] else {"url": urls[0]})
    yield plan_file(path, plan).write()
    yield FunctionCommand(_open, (site,), {})
    if urls[1:]:
        yield FunctionCommand(_open_relay, (site,), {})
    yield FunctionCommand(_reach_and_follow, (site, plan, path, chain), {})
    yield StringCommand(f"rm -f {shlex.quote(_token_file(site))}")


def _start(site: Site, unit: str, token: str, addresses: tuple[str, ...], more: str = "") -> str:
    """Shell that starts a share unless it runs, and prints its token; the wished one comes on its input.

    Where it runs, its token stays: a job that an earlier run began reads with it.
    """
    path = shlex.quote(token)
    binds = " ".join(f"--bind {address}" for address in addresses)
    command = (
        f"{site.python} -m onhost share {binds} --port {site.data.share_port}"
        f" --token-file {path} --checkpoints-dir {site.checkpoints_dir}{more}"
    )
    start = (
        # Read first: a closed standard input would look like a lost connection to the one who writes it.
        f"umask 077; new=$(cat); mkdir -p $(dirname {path});"
        f" systemctl is-active --quiet {unit} && test -s {path} ||"
        f' {{ printf %s "$new" > {path}.new && mv -f {path}.new {path} &&'
        f" {{ systemctl is-active --quiet {unit} ||"
        f" systemd-run --quiet --collect --unit={unit} --property=RuntimeMaxSec=12h {command}; }}; }} &&"
        f" cat {path}"
    )
    return f"flock /run/{UNIT}.lock sh -c {shlex.quote(start)}"


def _listening(site: Site, sender: Any) -> tuple[str, ...]:
    return distribution.listening(site.fabric, site.names, sender.name, site.distribution, site.management)


def _open(state: Any, host: Any, site: Site) -> bool:
    """Start the share on the head unless it runs, and hand its token to the worker."""
    command = _start(site, UNIT, _token_file(site), _listening(site, site.head))
    ok, token = shell(site.head, command, stdin=TOKEN)
    if not ok:
        return report_failure(host, f"{site.head.name}: the share did not start; found: {token}")
    path = shlex.quote(_token_file(site))
    put = f"umask 077; mkdir -p $(dirname {path}) && cat > {path}.new && mv -f {path}.new {path}"
    ok, said = shell(host, put, stdin=token)
    return ok or report_failure(
        host, f"{host.name}: the share's token could not be written to {path}; found: {said}"
    )


def _open_relay(state: Any, host: Any, site: Site) -> bool:
    """Start the share of the host before this one in the chain. Where that fails, the head gives all."""
    before = next(one for one in site.hosts if one.name == _senders(site, chain=True)[0].node)
    ok, token = shell(site.head, f"cat {shlex.quote(_token_file(site))}")
    if ok:
        # A file of its own: what this host received with is dropped while it still gives.
        command = _start(site, UNIT, _token_file(site, "relay"), _listening(site, before), " --relay")
        ok, token = shell(before, command, stdin=token)
    if not ok:
        _warn(host, f"{before.name}: its share did not start ({token}); receiving from the head instead")
    return True


def _reach_and_follow(
    state: Any, host: Any, site: Site, plan: dict[str, Any], path: str, chain: bool
) -> bool:
    """Run the fetching job; over the management network where the head's fabric address does not answer."""
    head = _senders(site, chain)[-1]
    if not head.fabric:
        _warn(host, f"{host.name}: no cable to {head.node}: receiving over the management network")
    elif not _reaches(host, site, head.address):
        address = management_address(site.head)
        unit = f"{UNIT}-management"
        ok, _ = shell(site.head, _start(site, unit, _token_file(site), (address,)), stdin=TOKEN)
        if not ok or not _reaches(host, site, address):
            return report_failure(
                host,
                f"{host.name}: found no share of {head.node} at {head.address}, nor at {address} over the "
                "management network; wanted one of them to answer; run deploy.py --data only=fabric, and "
                f"see `journalctl -u {UNIT}` on {head.node}",
            )
        _warn(
            host,
            f"{host.name}: found no answer from {head.node} at its fabric address {head.address}; receiving "
            "over the management network, which is slower; run deploy.py --data only=fabric",
        )
        plan = {key: value for key, value in plan.items() if key != "urls"} | {"url": _url(site, address)}
        ok, said = write_now(host, plan_file(path, plan))
        if not ok:
            return report_failure(host, f"{host.name}: {path} could not be written; found: {said}")
    return start_and_follow(state, host, plan, path)


def _reaches(host: Any, site: Site, address: str) -> bool:
    """Does the share there accept a connection, within the seconds that it takes to start?"""
    program = (
        "import socket,sys,time\n"
        "end=time.monotonic()+float(sys.argv[3])\n"
        "while 1:\n"
        " try: socket.create_connection((sys.argv[1],int(sys.argv[2])),3); break\n"
        " except OSError:\n"
        "  if time.monotonic()>end: raise SystemExit(1)\n"
        "  time.sleep(0.2)"
    )
    words = f"{address} {site.data.share_port} {START_SECONDS}"
    ok, _ = shell(host, f"{site.python} -c {shlex.quote(program)} {words}")
    return ok


def _warn(host: Any, line: str) -> None:
    host.log_styled(line, fg="yellow", log_func=logger.warning)


def asks(site: Site) -> list[Ask]:
    """The facts that `closed` asks of a host."""
    return [(UnitState, {"unit": unit}) for unit in _units(site)]


def _units(site: Site) -> list[str]:
    """What may run on this host."""
    if not _listening(site, site.host):
        return []
    return [UNIT, f"{UNIT}-management"] if site.is_head else [UNIT]


@operation()
def closed(site: Site) -> Commands:
    """Stop this host's shares and drop their token. No-op when none runs, or it has none to run."""
    units = _units(site)
    if not units:
        return
    running = [unit for unit in units if host.get_fact(UnitState, unit=unit) != "inactive"]
    if not running:
        host.noop("the share does not run")
        return
    tokens = " ".join(shlex.quote(_token_file(site, name)) for name in ("share", "relay"))
    yield StringCommand(f"systemctl stop {' '.join(running)}; rm -f {tokens}")
