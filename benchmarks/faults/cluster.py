"""The lab's hosts as faults need them: reached by Docker and not by the network that a fault may cut."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import lab
from sparkstack import report_files

ROOT = Path(__file__).resolve().parent.parent.parent
UNIT = "sparkstack-serve"
UNITS = (UNIT, "sparkstack-watchdog")
CLOCK = "/run/lab-clock"
# libfaketime's stand-in for sleeping fails where the monotonic clock is left alone (0.9.10).
JUMPING = f"""\
import time
own = time.time
def jumped():
    with open("{CLOCK}/offset") as file:
        return own() + float(file.read())
time.time = jumped
time.time_ns = lambda: int(jumped() * 1e9)
"""
# Quick looks, for a fault to be seen within the time of a test; a light engine answers in milliseconds.
QUICK = {"enabled": True, "interval_s": 2, "timeout_s": 5, "misses": 2, "away_s": 30}


class Failed(Exception):
    """What was waited for did not come."""


def wait_for(what: str, seconds: float, true: Callable[[], Any]) -> Any:
    until = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.3)
    return found


@dataclass(frozen=True)
class Host:
    """One virtual Spark."""

    name: str
    address: str

    def run(self, command: str, check: bool = True, seconds: float = 120) -> str:
        """What a command run as root says. Errors: Failed."""
        try:
            done = subprocess.run(
                ["docker", "exec", self.name, "sh", "-c", command],
                capture_output=True, text=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: {command}: no end in {seconds:.0f} s") from None
        if check and done.returncode:
            raise Failed(f"{self.name}: {command}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout.strip()

    def show(self, *names: str) -> dict[str, str]:
        text = self.run(f"systemctl show -p {','.join(names)} {UNIT}", check=False)
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    @property
    def active(self) -> str:
        return self.show("ActiveState").get("ActiveState", "")

    @property
    def engine(self) -> str:
        """The pid of the container's main process."""
        return self.run(f"docker inspect -f '{{{{.State.Pid}}}}' {UNIT}")

    def power_off(self) -> None:
        subprocess.run(["docker", "kill", self.name], check=True, capture_output=True, timeout=60)

    def power_on(self) -> None:
        subprocess.run(["docker", "start", self.name], check=True, capture_output=True, timeout=60)
        lab.wait_booted(self.name)

    def reboot(self) -> None:
        subprocess.run(
            ["docker", "restart", "-t", "30", self.name], check=True, capture_output=True, timeout=120
        )
        lab.wait_booted(self.name)

    def cut(self) -> None:
        """No packet comes in or goes out, but within the host."""
        self.run("iptables -I INPUT ! -i lo -j DROP; iptables -I OUTPUT ! -o lo -j DROP")

    def join(self) -> None:
        self.run(
            "iptables -D INPUT ! -i lo -j DROP; iptables -D OUTPUT ! -o lo -j DROP; true", check=False
        )

    def jumping_clock(self) -> None:
        """From now on our units' processes have a wall clock that `jump` sets. Errors: Failed.

        A stand-in: containers share this machine's clock, so Python's `time.time` is replaced in these
        processes, which are all that our units run beside Docker's client. Time since boot stays what it is,
        as it does where a real clock is set.
        """
        self.run(f"mkdir -p {CLOCK} && cat > {CLOCK}/sitecustomize.py <<'END'\n{JUMPING}END")
        self.jump("+0")
        self.run(
            f"for unit in {' '.join(UNITS)}; do mkdir -p /run/systemd/system/$unit.service.d && "
            f"printf '[Service]\\nEnvironment=PYTHONPATH={CLOCK}\\n' "
            "> /run/systemd/system/$unit.service.d/lab-clock.conf || exit; done; "
            f"systemctl daemon-reload && systemctl restart --no-block {' '.join(UNITS)}"
        )

    def jump(self, offset: str) -> None:
        """Sets that clock, `offset` seconds ("+3600") off."""
        self.run(f"echo {offset} > {CLOCK}/new && mv {CLOCK}/new {CLOCK}/offset")

    def jumped(self) -> int:
        """Seconds by which the watchdog's clock is off, as a Python with its environment says."""
        pid = self.run("systemctl show -p MainPID --value sparkstack-watchdog")
        own = self.run(f"tr '\\0' '\\n' < /proc/{pid}/environ | grep ^PYTHONPATH=; true")
        ask = f"$(readlink /proc/{pid}/exe) -c 'import time; print(int(time.time()))'"
        return int(self.run(f"env {own} {ask}")) - int(self.run(ask))

    def own_clock(self) -> None:
        """What starts from now on has the host's clock."""
        self.run(f"[ ! -d {CLOCK} ] || echo +0 > {CLOCK}/offset")
        self.run("rm -rf /run/systemd/system/sparkstack-*.service.d && systemctl daemon-reload")


@dataclass(frozen=True)
class Cluster:
    """The lab's hosts with a release that serves."""

    hosts: tuple[Host, ...]
    port: int
    model: str

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def endpoint(self) -> str:
        return f"http://{self.head.address}:{self.port}"

    def token(self, seconds: float = 5) -> bool:
        """Does a completion come now?"""
        body = json.dumps({"model": self.model, "prompt": "One, two,", "max_tokens": 1}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.endpoint}/v1/completions", body, kind)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return int(json.load(answer)["usage"]["completion_tokens"]) > 0
        except (OSError, ValueError, KeyError):
            return False

    def says(self) -> tuple[int, str]:
        """What the endpoint answers to a completion: (status, message); (0, why) without an answer."""
        body = json.dumps({"model": self.model, "prompt": "One, two,", "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{self.endpoint}/v1/completions", body)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, str(json.load(error)["error"]["message"])
        except (OSError, ValueError) as error:
            return 0, str(error)

    def serves(self) -> bool:
        return all(host.active == "active" for host in self.hosts) and self.token()


def standing() -> Cluster:
    """The lab's cluster as its state and the head's release say it is. Errors: Failed."""
    state = lab.read_state()
    if state is None:
        raise Failed("found no lab; wanted one with a release; run: sparkstack lab up, then the deploy")
    hosts = tuple(Host(node["name"], node["address"]) for node in state["nodes"])
    about = json.loads(hosts[0].run("cat /etc/sparkstack/current/release.json"))
    return Cluster(hosts[: about["world"]], about["port"], about["model"])


def light_recipe(folder: Path, **options: Any) -> Path:
    """The light engine's recipe, with streams that last a second; `options` make another release of it."""
    recipe = yaml.safe_load((ROOT / "recipes" / "lab-light.yaml").read_text())
    recipe["serve"]["options"] |= {"token_ms": 20, "drain_s": 20, **options}
    path = folder / "lab-light.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def begin_deploy(*words: str) -> subprocess.Popen[str]:
    """pyinfra as a user starts it."""
    if len((lab.read_state() or {"nodes": []})["nodes"]) > 2:
        # The lab's rails are two networks, whatever the number of hosts.
        words += tuple(data(fabric=json.dumps({"kind": "switch", "port": 0, "base": "192.168.96.0/19"})))
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("pyinfra")), "inventories/lab.py", "deploy.py", "-y", *words],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(run: subprocess.Popen[str], seconds: float = 1800) -> subprocess.CompletedProcess[str]:
    """What a deploy said when it had ended. Errors: Failed."""
    try:
        said, _ = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        run.kill()
        raise Failed(f"a deploy has no end in {seconds:.0f} s") from None
    return subprocess.CompletedProcess(run.args, run.returncode, said, "")


def deploy(*words: str) -> subprocess.CompletedProcess[str]:
    """pyinfra as a user runs it."""
    return ended(begin_deploy(*words))


def changed() -> list[str]:
    """What the last run changed, by its own report."""
    report = json.loads(report_files.files(ROOT / "reports")[-1].read_text())
    return [
        f"{one['host']}: {one['stage']} | {one['name']}"
        for one in report["operations"]
        if one["status"] == "changed"
    ]


def data(**values: Any) -> list[str]:
    """`--data` words."""
    return [word for name, value in values.items() for word in ("--data", f"{name}={value}")]
