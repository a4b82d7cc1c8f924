"""The head's share: images and checkpoints for the other hosts, over the fabric, while somebody fetches.

Plain HTTP on the fabric address with a token of this run; what arrives is checked against hashes.
"""

from __future__ import annotations

import json
import secrets
import shlex
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, operation

from tasks.facts import UnitState
from tasks.files import Commands, ManagedFile
from tasks.remote import report_failure, shell, start_and_follow
from tasks.site import Site

UNIT = "sparkstack-share"
# The token of a share that this run opens: both ends get it, nobody keeps it.
TOKEN = secrets.token_hex(16)


def _token_file(site: Site) -> str:
    return f"{site.secrets_dir}/share.token"


def fetch(site: Site, plan: dict[str, Any]) -> Commands:
    """Commands on a worker that fetch something from the head: open the share, run the job."""
    path = f"{site.data.state_dir}/plans/{plan['job']}.json"
    plan = {
        **plan,
        "url": f"http://{site.head_fabric_address}:{site.data.share_port}",
        "token_file": _token_file(site),
    }
    yield ManagedFile.text(path, json.dumps(plan, indent=1, sort_keys=True) + "\n", "600").write()
    yield FunctionCommand(_open, (site,), {})
    yield FunctionCommand(start_and_follow, (plan, path), {})
    yield StringCommand(f"rm -f {shlex.quote(_token_file(site))}")


def _open(state: Any, host: Any, site: Site) -> bool:
    """Start the share on the head unless it runs, and hand its token to the worker.

    Where it runs, its token stays: a job that an earlier run began reads with it.
    """
    path = shlex.quote(_token_file(site))
    command = (
        f"{site.python} -m onhost share --bind {site.head_fabric_address} --port {site.data.share_port}"
        f" --token-file {path} --checkpoints-dir {site.checkpoints_dir}"
    )
    start = (
        # Read first: a closed standard input would look like a lost connection to the one who writes it.
        f"umask 077; new=$(cat); mkdir -p $(dirname {path});"
        f" systemctl is-active --quiet {UNIT} && test -s {path} ||"
        f' {{ printf %s "$new" > {path}.new && mv -f {path}.new {path} &&'
        f" {{ systemctl is-active --quiet {UNIT} ||"
        f" systemd-run --quiet --collect --unit={UNIT} --property=RuntimeMaxSec=12h {command}; }}; }} &&"
        f" cat {path}"
    )
    ok, token = shell(site.head, f"flock /run/{UNIT}.lock sh -c {shlex.quote(start)}", stdin=TOKEN)
    if not ok:
        return report_failure(host, f"{site.head.name}: the share did not start; found: {token}")
    put = f"umask 077; mkdir -p $(dirname {path}) && cat > {path}.new && mv -f {path}.new {path}"
    ok, said = shell(host, put, stdin=token)
    return ok or report_failure(
        host, f"{host.name}: the share's token could not be written to {path}; found: {said}"
    )


@operation()
def closed(site: Site) -> Commands:
    """Stop the share on the head and drop its token. No-op when it does not run."""
    if not site.is_head:
        return
    if host.get_fact(UnitState, unit=UNIT) == "inactive":
        host.noop("the share does not run")
        return
    yield StringCommand(f"systemctl stop {UNIT}; rm -f {shlex.quote(_token_file(site))}")
