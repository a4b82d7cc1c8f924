"""What the hosts of an inventory say of what they serve, as one line of JSON each time they are asked."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
import httpx
from pyinfra import host, inventory

from sparkstack import serving_status
from tasks import access
from tasks.remote import shell
from tasks.site import UNIT, management_address

PROBE = Path(__file__).resolve().parent.parent / "onhost" / "status.py"
SECONDS = 1.0
"""Between the two readings of the engine's counters."""
ANSWER_SECONDS = 15.0
END_SECONDS = 2.0
ASKPASS = ("sudo_askpass_path", "su_askpass_path")
NO_CONNECTION = "no connection"

_here: set[str] = set()


def show() -> None:
    """Called for each host that is connected; with the last one all are asked, and the run ends."""
    _here.add(host.name)
    if not _here >= {one.name for one in host.state.activated_hosts}:
        return
    sys.exit(_look(list(inventory)))


def nobody_answers(hosts: Iterable[Any]) -> int:
    """The result where pyinfra reached no host at all; it ends the run before it loads status.py."""
    return _look(list(hosts))


def _look(hosts: list[Any]) -> int:
    """Ask the hosts, and print what they say. Returns the run's status.

    Data of the run: `status_interval` (s; asked again and again), `status_endpoint` (a URL, read from here).
    """
    interval, url = (hosts[0].data.get(f"status_{name}") for name in ("interval", "endpoint"))
    rights: dict[str, str] = {}
    for one in hosts:
        _look_at_rights(one, rights)
    while True:
        began = time.monotonic()
        refused = {name: why for name, why in rights.items() if why}
        found = _document(hosts, refused, None if url is None else str(url))
        print(json.dumps(found, ensure_ascii=False), flush=True)
        if interval is None:
            return 0 if found["ok"] else 1
        down = {row["host"] for row in found["hosts"] if row["state"] == "down"} - set(refused)
        gevent.joinall([gevent.spawn(_connect_again, one, rights) for one in hosts if one.name in down])
        gevent.sleep(max(float(interval) - (time.monotonic() - began), 0))


def _look_at_rights(one: Any, rights: dict[str, str]) -> None:
    """Note why a host that is reached gives no root rights, "" where it does. That is tried once: too many
    wrong passwords lock a user out."""
    if not one.connected or one.name in rights:
        return
    with contextlib.suppress(Exception):  # it is lost again, and asking it will say so
        problem = access.problem(one)
        if problem is None or problem.found != access.NO_ANSWER:
            rights[one.name] = f"{problem.found} ({problem.where})" if problem else ""


def _document(hosts: list[Any], refused: dict[str, str], url: str | None) -> dict[str, Any]:
    source = PROBE.read_text()
    asked = {
        one.name: gevent.spawn(_ask, one, source)
        for one in hosts
        if one.connected and one.name not in refused
    }
    other = None if url is None else _read(url.rstrip("/"))
    gevent.joinall(list(asked.values()), timeout=ANSWER_SECONDS)
    said: dict[str, Any] = {}
    for one in hosts:
        if one.name not in asked:
            said[one.name] = refused.get(one.name, NO_CONNECTION)
        elif not asked[one.name].ready():
            asked[one.name].kill(block=False)
            said[one.name] = f"no answer within {ANSWER_SECONDS:.0f} s"
        else:
            said[one.name] = asked[one.name].get()
    return serving_status.document(
        _now(),
        said,
        other,
        {one.name: management_address(one) for one in hosts},
        {one.name: _watched(one) for one in hosts},
    )


def _watched(one: Any) -> bool:
    """Does the site declare a watchdog?"""
    declared = one.data.get("watchdog")
    return isinstance(declared, dict) and declared.get("enabled", True) is True


def _connect_again(one: Any, rights: dict[str, str]) -> None:
    """A host that did not answer may have been started anew: its connection is then another one."""
    # The end of a dead connection may wait for an answer, too (pyinfra removes the password's helper).
    with contextlib.suppress(Exception), gevent.Timeout(END_SECONDS, False):
        one.disconnect()
    one.connected = False
    for key in [key for key in one.connector_data if key.startswith(ASKPASS)]:
        del one.connector_data[key]  # a file that a reboot may have taken; pyinfra makes another
    with contextlib.suppress(Exception), gevent.Timeout(ANSWER_SECONDS, False):
        one.connect(show_errors=False)
        _look_at_rights(one, rights)


def _ask(one: Any, source: str) -> dict[str, Any] | str:
    words = ["python3", "-", one.data.config_dir, UNIT, str(SECONDS)]
    try:
        ok, text = shell(one, shlex.join(words), source)
    except Exception as error:  # one host's broken connection is not the end of the others' status
        return f"no answer ({str(error) or type(error).__name__})"
    try:
        found = json.loads(text) if ok else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    return (text.strip().splitlines() or ["no answer"])[-1]


def _read(url: str) -> dict[str, Any]:
    """An endpoint as this machine sees it, in the words of onhost/status.py."""
    found: dict[str, Any] = {"url": url, "health": 0, "said": "", "readings": []}
    try:
        with httpx.Client(timeout=5, trust_env=False) as client:
            health = client.get(f"{url}/health")
            found["health"] = health.status_code
            found["said"] = "" if health.status_code == 200 else serving_status.reason(health.text)
            for pause in (SECONDS, 0):
                answer = client.get(f"{url}/metrics")
                found["readings"].append(
                    {"status": answer.status_code, "t": time.time(), "text": answer.text}
                )
                gevent.sleep(pause)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        found["said"] = found["said"] or str(error) or type(error).__name__
    return found


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
