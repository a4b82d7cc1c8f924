"""`sparkstack lab … --vm`: virtual Sparks with kernels of their own, for RDMA, cut cables and reboots.

Two networks of multicast on the loopback are the rails; QEMU's user network with a forwarded port is the way
in. Everything lies in `.lab/vm`; a machine is known by the disk in its command line.
"""

from __future__ import annotations

import contextlib
import json
import platform
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab import keys, qemu, ssh, vm_image
from lab.lab import alone
from lab.paths import LAB, ROOT, LabError, Progress, quiet

VM = LAB / "vm"
STATE = VM / "state.json"
KEY = VM / "id_ed25519"
KNOWN_HOSTS = VM / "known_hosts"
MANAGEMENT = "enP7s7"
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
LOCAL = "127.0.0.1"
GROUP = "239.193.77.1"
BOOT_S = 900
MOST = 4
# virtio reports what it is told; the MTU is the largest that a guest may set.
RAIL_DEVICE = ",speed=200000,duplex=full"


def up(count: int | None = None, progress: Progress = quiet) -> dict[str, Any]:
    """Make `count` machines stand (None: as many as there are, else 2); those that run are left alone."""
    with alone("vm.lock"):
        state = read_state()
        if state is not None and (count is None or count == len(state["nodes"])):
            return _awake(state, progress)
        if (count := count or 2) > MOST:
            raise LabError(f"found {count} nodes; wanted at most {MOST} virtual machines")
        if platform.machine() != "x86_64":
            raise LabError(f"found {platform.machine()}; wanted x86_64 for virtual machines; use containers")
        _remove()
        VM.mkdir(parents=True, exist_ok=True)
        root = vm_image.root(VM, progress)
        progress("probe", 0, None, "does KVM boot this kernel?")
        accelerator = qemu.probe(root.kernel, VM)
        keys.write_private(KEY, *keys.pair("sparkstack-lab-vm"))
        ports = _free_ports(count)
        state = {
            "format": 1,
            "accelerator": accelerator,
            "user": vm_image.USER,
            "key": str(KEY.relative_to(ROOT)),
            "known_hosts": str(KNOWN_HOSTS.relative_to(ROOT)),
            "root": str(root.folder.relative_to(ROOT)),
            "rail_ports": [random.randrange(20000, 30000, 2) + place for place in range(len(RAILS))],
            "nodes": [
                {"name": f"spark-{number}", "number": number, "address": LOCAL, "port": port}
                for number, port in enumerate(ports, start=1)
            ],
        }
        pinned = {}
        for node in state["nodes"]:
            progress("disks", node["number"], count, node["name"])
            machine = machine_of(node["name"])
            authorized = KEY.with_name(KEY.name + ".pub").read_bytes()
            public = vm_image.disk(root, machine.disk, node["name"], authorized, _nics(state, node))
            pinned[f"[{LOCAL}]:{node['port']}"] = public
        KNOWN_HOSTS.write_text(keys.known_hosts(pinned))
        STATE.write_text(json.dumps(state, indent=2) + "\n")
        return _awake(state, progress)


def down(everything: bool = False) -> None:
    """End the machines and remove their disks; `everything`: the root file system, too."""
    with alone("vm.lock"):
        _remove()
        if everything and VM.exists():
            vm_image.drop(VM)


def status() -> dict[str, Any]:
    """`{"up", "accelerator", "nodes": [{"name", "status", "address", "port", "pid"}]}`"""
    state = read_state() or {"nodes": [], "accelerator": None}
    found = []
    for node in state["nodes"]:
        pid = machine_of(node["name"]).pid()
        about = {key: node[key] for key in ("name", "address", "port")}
        found.append({**about, "status": "running" if pid else "off", "pid": pid})
    up = bool(found) and all(one["pid"] for one in found)
    return {"up": up, "accelerator": state["accelerator"], "nodes": found}


def power_cut(name: str, progress: Progress = quiet) -> None:
    """Take a machine's power away and give it back; returns when it answers again."""
    with alone("vm.lock"):
        state, node = _node(name)
        machine_of(name).stop()
        _start(state, node)
        _answers(state, node)
        progress("restart", 1, 1, f"{name} is back")


def cable(name: str, interface: str, on: bool) -> None:
    """Pull the cable of a machine's interface, or put it back."""
    _node(name)
    if interface not in RAILS:
        raise LabError(f"found {interface}; wanted one of {', '.join(RAILS)}")
    machine_of(name).link(f"rail{RAILS.index(interface)}", on)


def wait(name: str, seconds: float = BOOT_S) -> None:
    """Returns when a machine answers over SSH, as after a reboot from inside."""
    state, node = _node(name)
    _answers(state, node, seconds)


def read_state() -> dict[str, Any] | None:
    """The state file, None where there are no machines."""
    try:
        return dict(json.loads(STATE.read_text()))
    except FileNotFoundError:
        return None


def machine_of(name: str) -> qemu.Machine:
    return qemu.Machine(name, VM)


def _node(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    state = read_state()
    if state is None:
        raise LabError("no virtual machines stand; start them with: sparkstack lab up --vm")
    for node in state["nodes"]:
        if node["name"] == name:
            return state, node
    raise LabError(f"the lab has no machine {name}; see: sparkstack lab status --vm")


def _nics(state: dict[str, Any], node: dict[str, Any]) -> dict[str, qemu.Nic]:
    mac = f"52:54:00:5a:{node['number']:02x}:"
    user = f"user,restrict=off,hostfwd=tcp:{LOCAL}:{node['port']}-:22"
    nics = {MANAGEMENT: qemu.Nic("management", f"{mac}00", user)}
    for place, (name, port) in enumerate(zip(RAILS, state["rail_ports"], strict=True)):
        wire = f"socket,mcast={GROUP}:{port},localaddr={LOCAL}"
        nics[name] = qemu.Nic(f"rail{place}", f"{mac}{place + 1:02x}", wire, RAIL_DEVICE)
    return nics


def _start(state: dict[str, Any], node: dict[str, Any]) -> None:
    root = vm_image.Root(ROOT / state["root"])
    nics = list(_nics(state, node).values())
    machine_of(node["name"]).start(state["accelerator"], root.kernel, root.initrd, nics)


def _awake(state: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Start the machines that do not run, and wait for all of them."""
    for node in state["nodes"]:
        if machine_of(node["name"]).pid() is None:
            _start(state, node)
    count = len(state["nodes"])
    progress("machines", 0, count, f"starting under {state['accelerator']}")
    with ThreadPoolExecutor(max_workers=MOST) as pool:
        waits = [pool.submit(_answers, state, node) for node in state["nodes"]]
        for done, one in enumerate(waits, start=1):
            one.result()
            progress("machines", done, count, f"{state['nodes'][done - 1]['name']} answers")
    return state


def _answers(state: dict[str, Any], node: dict[str, Any], seconds: float = BOOT_S) -> None:
    until = time.monotonic() + seconds
    while True:
        if machine_of(node["name"]).pid() is None:
            raise LabError(f"{node['name']}: its machine has ended; see {VM / node['name']}.console")
        left = until - time.monotonic()
        with contextlib.suppress(LabError):
            # QEMU accepts the connection long before the guest does.
            ssh.wait(LOCAL, state["user"], KEY, KNOWN_HOSTS, min(left, 5), node["port"])
            return
        if left <= 0:
            raise LabError(f"{node['name']}: no SSH after {seconds:.0f} s; see {VM / node['name']}.console")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((LOCAL, 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def _remove() -> None:
    """Machines first, then what they leave; the root file system stays for the next time."""
    if not VM.exists():
        return
    for pidfile in VM.glob("*.pid"):
        machine_of(pidfile.stem).stop()
    for pattern in ("*.img", "*.partial", "*.console", "*.qmp", "root-partial"):
        for path in VM.glob(pattern):
            _drop(path)
    for path in (STATE, KEY, KEY.with_name(KEY.name + ".pub"), KNOWN_HOSTS):
        path.unlink(missing_ok=True)


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        vm_image.drop(path)
    else:
        path.unlink(missing_ok=True)
