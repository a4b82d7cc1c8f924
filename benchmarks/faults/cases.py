"""The faults: what each does to the lab, and how long until tokens come again with no hand touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.faults.cluster import UNIT, Cluster, Failed, Host, begin_deploy, ended, wait_for

RECOVERY_S = 300.0
"""Nothing may take longer on the lab; vLLM is given three times that."""

Do = Callable[[Cluster], float | None]


@dataclass(frozen=True)
class Case:
    """One fault. `do` returns when recovery begins to count (monotonic s), None for the moment of its call;
    `soak`: may it come at random under load; `light`: only the light engine can show it."""

    name: str
    do: Do
    soak: bool = True
    light: bool = False


@dataclass(frozen=True)
class Result:
    name: str
    seconds: float | None  # to the first token after it, None where none came
    outage: bool  # was there a moment without tokens?
    said: str = ""


def play(cluster: Cluster, case: Case, limit: float = RECOVERY_S) -> Result:
    """One fault on a cluster that serves, to tokens again. Errors: Failed where it does not serve before."""
    wait_for("tokens before the fault", limit, cluster.serves)
    began = time.monotonic()
    before = _starts(cluster)
    try:
        began = case.do(cluster) or began
    except Failed as error:
        return Result(case.name, None, True, str(error))
    # A dead group may look alive until its next request: either its starts change, or tokens never stopped.
    outage = False
    firm, first = 0, 0.0
    while time.monotonic() - began < limit:
        if cluster.token():
            first = first if firm else time.monotonic()
            firm += 1
            if firm >= 4 and cluster.serves():
                outage = outage or _starts(cluster) != before
                return Result(case.name, round(first - began, 1), outage)
        else:
            outage, firm = True, 0
        time.sleep(0.4)
    return Result(case.name, None, True, f"no tokens in {limit:.0f} s; {cluster.says()[1]}")


def _starts(cluster: Cluster) -> list[str]:
    return [host.show("InvocationID").get("InvocationID", "") for host in cluster.hosts]


def _kill(at: int, signal: str) -> Do:
    def do(cluster: Cluster) -> None:
        host = cluster.hosts[at]
        host.run(f"kill -{signal} {host.engine}")

    return do


def _run(at: int, command: str) -> Do:
    def do(cluster: Cluster) -> None:
        cluster.hosts[at].run(command)

    return do


def _reboot(at: int) -> Do:
    def do(cluster: Cluster) -> None:
        cluster.hosts[at].reboot()

    return do


def _power_cut_in_start(at: int) -> Do:
    def do(cluster: Cluster) -> None:
        cluster.head.run(f"docker kill {UNIT}")
        wait_for("a start", 60, lambda: cluster.head.active == "activating")
        cluster.hosts[at].power_off()
        time.sleep(2)
        cluster.hosts[at].power_on()

    return do


@contextmanager
def no_network(host: Host) -> Iterator[None]:
    host.cut()
    try:
        yield
    finally:
        host.join()


def _cut(at: int, seconds: float) -> Do:
    def do(cluster: Cluster) -> float:
        with no_network(cluster.hosts[at]):
            time.sleep(seconds)
        return time.monotonic()

    return do


def _out_of_memory(cluster: Cluster) -> None:
    """The kernel ends the engine: its container may have no more, and something in it asks for more."""
    head = cluster.head
    head.run(
        f"docker update --memory 96m --memory-swap 96m {UNIT}; echo 1000 > /proc/{head.engine}/oom_score_adj"
    )
    eat = "x = [bytearray(b'1' * (16 << 20)) for _ in range(64)]"
    head.run(f'docker exec {UNIT} python3 -c "{eat}"', check=False)
    wait_for("the engine's end", 60, lambda: head.active != "active" or not cluster.token())


def _full_log(cluster: Cluster) -> float:
    """The journal's disk is full when the engine dies."""
    head = cluster.head
    place = "/var/log/journal"
    head.run(
        f"mkdir -p {place}; mount -t tmpfs -o size=4m tmpfs {place}; systemctl restart systemd-journald; "
        f"dd if=/dev/zero of={place}/fill bs=64k 2>/dev/null; true"
    )
    try:
        began = time.monotonic()
        head.run(f"docker kill {UNIT}")
        wait_for("a new start", 60, lambda: head.active == "activating")
        wait_for("tokens with a full journal", RECOVERY_S, cluster.serves)
    finally:
        head.run(f"rm -f {place}/fill; umount -l {place}; systemctl restart systemd-journald", check=False)
    return began


def _port_taken(cluster: Cluster) -> float:
    """Somebody listens on the endpoint's port when the engine wants it again, for 20 s."""
    head = cluster.head
    thief = (
        "import socket, time\n"
        "until = time.monotonic() + 30\n"
        "while time.monotonic() < until:\n"
        " try: s = socket.socket(); s.setsockopt(1, 2, 1); "
        f"s.bind(('{head.address}', {cluster.port})); s.listen(); time.sleep(20); break\n"
        " except OSError: s.close(); time.sleep(0.002)\n"
    )
    quoted = thief.replace('"', '\\"')
    head.run(f'systemd-run --quiet --collect --unit=port-thief python3 -c "{quoted}"')
    head.run(f"docker kill {UNIT}")
    wait_for("the port's end", 60, lambda: head.run("systemctl is-active port-thief; true") != "active")
    return time.monotonic()


def _clock_jump(cluster: Cluster) -> float:
    """The head's wall clock jumps an hour ahead, then every host's to an hour behind, and nobody minds; then
    the engine dies with the clocks as they are."""
    hosts = cluster.hosts
    try:
        for host in hosts:
            host.jumping_clock()
        wait_for("tokens with clocks that can jump", RECOVERY_S, cluster.serves)
        before = _starts(cluster)
        for offset, who in ((3600, hosts[:1]), (-3600, hosts)):
            for host in who:
                host.jump(f"{offset:+d}")
                if abs(host.jumped() - offset) > 5:
                    raise Failed(f"{host.name}: its units' clock did not jump")
            until = time.monotonic() + 20  # the watchdog's patience is 9 s
            while time.monotonic() < until:
                if not cluster.token() or _starts(cluster) != before:
                    raise Failed(f"clocks jumped by {offset} s: the tokens stopped, or a rank began again")
        began = time.monotonic()
        cluster.head.run(f"docker kill {UNIT}")
        wait_for("a start", 60, lambda: _starts(cluster) != before)
        wait_for("tokens after the jump", RECOVERY_S, cluster.serves)
    finally:
        for host in hosts:
            host.own_clock()
    return began


LOCKED = "! flock -n /run/sparkstack/run.lock true && cat /run/sparkstack/run.lock"


def two_deploys(words: Callable[[], list[str]]) -> Case:
    """A second deploy while a first one is at work: the first brings another release, `words`; the second, of
    the same, is refused, and told who is first."""

    def do(cluster: Cluster) -> float:
        first = begin_deploy(*words())
        try:
            wait_for("the first run's lock", 120, lambda: cluster.head.run(f"{LOCKED}; true"))
            second = ended(begin_deploy(*words()))
        finally:
            done = ended(first)
        if done.returncode:
            raise Failed(f"the first deploy failed: {done.stdout[-600:]}")
        if second.returncode == 0 or "found another run at work (" not in second.stdout:
            raise Failed(f"the second deploy was not refused: {second.stdout[-600:]}")
        return time.monotonic()

    return Case("two deploys at once", do, soak=False)


def cases(hosts: int, long_cut: float = 300) -> list[Case]:
    """Every fault for so many hosts; the head is 0."""
    ranks = range(hosts)
    who = ["head" if rank == 0 else f"rank {rank}" for rank in ranks]
    found = [Case(f"SIGKILL of the engine, {who[at]}", _kill(at, "KILL")) for at in ranks]
    found += [Case(f"container killed, {who[at]}", _run(at, f"docker kill {UNIT}")) for at in ranks]
    found += [
        Case(f"SIGKILL of the unit's process, {who[at]}", _run(at, f"systemctl kill -s KILL {UNIT}"))
        for at in ranks
    ]
    found += [Case(f"SIGKILL of dockerd, {who[at]}", _run(at, "kill -9 $(pidof dockerd)")) for at in ranks]
    found += [Case(f"engine wedged (SIGSTOP), {who[at]}", _kill(at, "STOP")) for at in ranks]
    found += [Case("engine out of memory, head", _out_of_memory, light=True)]
    found += [Case(f"reboot, {who[at]}", _reboot(at)) for at in ranks]
    found += [
        Case(f"power cut during a start, {who[at]}", _power_cut_in_start(at), soak=False) for at in ranks
    ]
    for at in ranks:
        found += [Case(f"network cut for 10 s, {who[at]}", _cut(at, 10))]
    if hosts > 1:
        found += [Case(f"network cut for {long_cut:.0f} s, rank 1", _cut(1, long_cut), soak=False)]
    found += [
        Case("disk of the journal full, head", _full_log, soak=False),
        Case("port taken for 20 s, head", _port_taken, soak=False),
        Case("clocks jump by an hour, then the head's engine dies", _clock_jump, soak=False),
    ]
    return found
