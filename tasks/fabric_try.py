"""Applies network files on a host so that a mistake cannot lock us out: the host goes back by itself unless
the controller reaches it again (tasks/fabric_try.sh). Losing the management address for seconds is normal.
"""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent

from sparkstack.fabric import Interface
from tasks.remote import report_failure, shell

UNIT = "sparkstack-fabric-try"
SCRIPT = Path(__file__).with_name("fabric_try.sh")
FOLDER = "/run/sparkstack-fabric"

# How long the host waits for us before it goes back.
KEEP_SECONDS = 60
# Applying, waiting for addresses, waiting for us, and going back: after that a host has settled either way.
MOST_SECONDS = 90 + 60 + KEEP_SECONDS + 100
# An answer that takes longer is none: a connection whose peer lost its address says nothing for minutes.
ANSWER_SECONDS = 8


def script(
    files: Mapping[str, str],
    interfaces: Sequence[Interface],
    masters: Sequence[str] = (),
    profiles: Sequence[str] = (),
    seconds: int = KEEP_SECONDS,
) -> str:
    """The whole script for a host; `files` are netplan files by their name without folder."""
    encoded = (f"{base64.b64encode(text.encode()).decode()} {name}" for name, text in files.items())
    values = {
        "files": "\n".join(encoded),
        "ports": "\n".join(f"{one.name} {one.cidr} {one.mtu}" for one in interfaces),
        "masters": "\n".join(masters),
        "profiles": "\n".join(profiles),
        "seconds": str(seconds),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n" + SCRIPT.read_text()


def begin(state: Any, host: Any, text: str, interfaces: tuple[Interface, ...]) -> bool:
    """Start the try and wait until the host has its addresses; it then goes back unless `keep` follows.

    Another run's try is waited for. False, with one line, where it could not be done: the host is then as it
    was before, or goes there by itself.
    """
    start = (
        # Two runs may ask at the same moment: one of them makes the folder and the unit, the other is told.
        f"umask 077; cat > /run/{UNIT}.$$; exec 9> /run/{UNIT}.lock; flock 9; "
        f"if systemctl is-active --quiet {UNIT}; then rm -f /run/{UNIT}.$$; echo busy; exit 0; fi; "
        f"rm -rf {FOLDER} && mkdir {FOLDER} && mv -f /run/{UNIT}.$$ {FOLDER}/script && "
        # A stop is for the script alone, which then goes back, and takes its time for that.
        f"{{ systemd-run --quiet --collect --unit={UNIT} --property=KillMode=mixed"
        f" --property=TimeoutStopSec={MOST_SECONDS} /bin/sh {FOLDER}/script && echo begun || echo busy; }}"
    )
    until = time.monotonic() + MOST_SECONDS
    while True:
        ok, said = shell(host, start, stdin=text)
        if not ok or said.strip() != "busy":
            break
        if time.monotonic() > until:
            return report_failure(
                host,
                f"{host.name}: fabric: found another run at work on the network for {MOST_SECONDS} s; wanted "
                f"none; see `systemctl status {UNIT}`, then run again",
            )
        time.sleep(1)
    if not ok or said.strip() != "begun":
        return report_failure(
            host, f"{host.name}: fabric: found the network's try not starting: {said.strip()[-200:]}"
        )
    return _followed(host, interfaces)


def _followed(host: Any, interfaces: tuple[Interface, ...]) -> bool:
    found = _wait(host, ("applied", "without", "refused", "back"))
    word, _, more = found.partition(" ")
    if word == "applied":
        return True
    name = f"{host.name}: fabric:"
    if word == "refused":
        return report_failure(
            host,
            f"{name} found netplan refusing: {' '.join(more.split())[-300:]}; wanted files that it can read; "
            "mend the one that it names; ours is taken back",
        )
    if word == "without":
        _, carriers = shell(
            host,
            "; ".join(f'echo "{i.name} $(cat /sys/class/net/{i.name}/carrier 2>&1)"' for i in interfaces),
        )
        shell(host, f"touch {FOLDER}/back")
        _wait(host, ("back",))
        dead = [line.split()[0] for line in carriers.splitlines() if line.split()[1:2] != ["1"]]
        missing = more.split()
        if dead:
            cause = f"no carrier on {', '.join(dead)}"
            remedy = "check the cable and that the host at its other end is on"
        else:
            cause = f"no address on {', '.join(missing)} 20 s or more after netplan applied"
            remedy = f"see `journalctl -u systemd-networkd -u NetworkManager` and `ip addr show {missing[0]}`"
        wanted = ", ".join(f"{i.cidr} on {i.name}" for i in interfaces if i.name in missing)
        return report_failure(
            host,
            f"{name} found {cause}; wanted {wanted}; the host is back as it was; {remedy}, then run again",
        )
    if word == "back":
        return report_failure(
            host,
            f"{name} found no way to the host for {KEEP_SECONDS} s after netplan applied; wanted an answer; "
            "it went back to its files of before by itself; look in /etc/netplan for a change that was never "
            "applied (`netplan get`)",
        )
    return report_failure(
        host,
        f"{name} found no answer for {MOST_SECONDS} s after netplan applied; wanted it to answer, or to go "
        "back by itself; look at its console",
    )


def keep(state: Any, host: Any) -> bool:
    """Tell the host that its network stays. The files in /etc are the new ones by now."""
    ok, _ = shell(host, f"systemctl is-active --quiet {UNIT} && touch {FOLDER}/keep")
    if ok and _wait(host, ("kept", "back")) == "kept":
        return True
    return report_failure(
        host,
        f"{host.name}: fabric: found the host going back before it was told to keep its network; wanted it "
        "to wait; run again",
    )


def _wait(host: Any, words: tuple[str, ...]) -> str:
    """The state of the try, once it begins with one of the words; "" where the host never said so."""
    until = time.monotonic() + MOST_SECONDS
    while time.monotonic() < until:
        text = _asked(host, f"cat {FOLDER}/state 2>/dev/null || true")
        if text is None:
            _connect_again(host)
        elif text.split(" ", 1)[0] in words:
            return text
        time.sleep(0.5)
    return ""


def _asked(host: Any, command: str) -> str | None:
    """What the host says; None where it does not answer in time."""
    if not host.connected:
        return None
    call = gevent.spawn(shell, host, command)
    try:
        ok, text = call.get(timeout=ANSWER_SECONDS)
    except gevent.Timeout:
        call.kill(block=False)
        return None
    return str(text).strip() if ok else None


def _connect_again(host: Any) -> None:
    """A new connection: the old one may hang on an address that is gone."""
    old = getattr(host.connector, "client", None)
    if host.connected:
        host.disconnect()
    call = gevent.spawn(host.connect, reason="network changed", show_errors=False)
    call.join(timeout=ANSWER_SECONDS * 2)
    if not call.ready():
        call.kill(block=False)
    if host.connected and old is not None and old is not getattr(host.connector, "client", None):
        gevent.spawn(old.close)
