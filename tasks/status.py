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
from tasks.site import UNIT

PROBE = Path(__file__).resolve().parent.parent / "onhost" / "status.py"
SECONDS = 1.0
"""Between the two readings of the engine's counters."""
ANSWER_SECONDS = 15.0
NO_CONNECTION = "no connection"

_here: set[str] = set()


def show() -> None:
    """Called for each host that is connected; with the last one all are asked, and the run ends.

    Data of the run: `status_interval` (s; asked again and again), `status_endpoint` (a URL, read from here).
    """
    _here.add(host.name)
    if not _here >= {one.name for one in host.state.activated_hosts}:
        return
    hosts, refused = list(inventory), {}
    for one in hosts:
        if one.connected and (problem := access.problem(one)):
            refused[one.name] = f"{problem.found} ({problem.where})"
    interval, url = host.data.get("status_interval"), host.data.get("status_endpoint")
    while True:
        began = time.monotonic()
        found = _document(hosts, refused, None if url is None else str(url))
        print(json.dumps(found, ensure_ascii=False), flush=True)
        if interval is None:
            sys.exit(0 if found["ok"] else 1)
        for one in hosts:
            if one.name not in refused:
                _connect_again(one, found)
        gevent.sleep(max(float(interval) - (time.monotonic() - began), 0))


def nobody_answers(hosts: Iterable[Any]) -> int:
    """The result where pyinfra reached no host at all."""
    found = serving_status.document(_now(), {one.name: NO_CONNECTION for one in hosts})
    print(json.dumps(found, ensure_ascii=False), flush=True)
    return 1


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
    return serving_status.document(_now(), said, other)


def _connect_again(one: Any, found: dict[str, Any]) -> None:
    """A host that did not answer may have been started anew: its connection is then another one."""
    if any(row["host"] == one.name and row["state"] == "down" for row in found["hosts"]):
        with contextlib.suppress(Exception), gevent.Timeout(ANSWER_SECONDS, False):
            one.disconnect()
            one.connect(show_errors=False)


def _ask(one: Any, source: str) -> dict[str, Any] | str:
    words = ["python3", "-", one.data.config_dir, UNIT, str(SECONDS)]
    ok, text = shell(one, shlex.join(words), source)
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
