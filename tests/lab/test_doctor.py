"""The doctor on a cluster that serves: green, changes nothing, and names each of ten deliberate drifts.

Runs after test_end_to_end.py (pytest takes the files in the order that is given) or by itself: it deploys
first, which changes nothing where everything stands.
"""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import ROOT, Run, Spark, pyinfra

pytestmark = pytest.mark.lab

SERVE = "sparkstack-serve.service"
UNIT_FILE = f"/etc/systemd/system/{SERVE}"
NETPLAN = "/etc/netplan/40-sparkstack.yaml"
DAEMON = "/etc/docker/daemon.json"
TWIN = "enp1s0f0np0"
# Where the clock, and not the doctor, changes things: the journal, and what daemons keep for themselves.
OUTSIDE = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log", "/var/lib/docker", "/var/lib/containerd")
ALIVE = ("/var/lib/systemd", "/var/lib/sparkstack/jobs", "/var/cache", "/var/tmp")


def everything(spark: Spark) -> dict[str, str]:
    """Every file, folder and link outside of what daemons write: inode, mode, owner, size, times, target."""
    skipped = " -o ".join(f"-path {path}" for path in (*OUTSIDE, *ALIVE))
    listing = spark.run(
        f"find / -xdev \\( {skipped} \\) -prune -o -name __pycache__ -prune -o"
        " -printf '%p|%i %m %U:%G %s %T@ %C@ %l\\n'"
    )
    found = dict(line.split("|", 1) for line in listing.splitlines())
    # At the first session after a boot the system gives /var a new change time, and nothing in it.
    found.pop("/var")
    return found


def doctor(*words: str, inventory: str = "inventories/lab.py") -> tuple[Run, dict[str, Any]]:
    """A run of the doctor, and its report."""
    before = set((ROOT / "reports").glob("doctor-*.json"))
    run = pyinfra(*words, inventory=inventory, script="doctor.py")
    new = set((ROOT / "reports").glob("doctor-*.json")) - before
    assert len(new) == 1, run.output
    return run, json.loads(new.pop().read_text())


def bad(report: dict[str, Any]) -> list[dict[str, str]]:
    return [line for line in report["lines"] if line["status"] not in ("ok", "not checked")]


@pytest.fixture(scope="module", autouse=True)
def deployed(sparks: list[Spark]) -> Iterator[None]:
    run = pyinfra("-y")
    assert run.code == 0, run.output
    yield


@pytest.mark.parametrize("words", [("-y",), ("--dry",), ()], ids=["yes", "dry", "plain"])
def test_it_is_green_after_a_deployment_and_changes_nothing(sparks: list[Spark], words: tuple[str]) -> None:
    before = [
        (everything(spark), spark.serving(), spark.run("docker images -a -q | sort")) for spark in sparks
    ]
    run, report = doctor(*words)
    assert run.code == 0, run.output
    assert report["ok"] is True and bad(report) == []
    assert {line["host"] for line in report["lines"]} >= {"spark-1", "spark-2", "all hosts"}
    assert "Press enter" not in run.output and "Traceback" not in run.output
    assert [
        (everything(spark), spark.serving(), spark.run("docker images -a -q | sort")) for spark in sparks
    ] == before


def test_what_a_container_cannot_show_is_not_called_ok() -> None:
    _, report = doctor("-y", "--data", "only=preflight")
    status = {line["check"]: line["status"] for line in report["lines"] if line["host"] == "spark-1"}
    for check in ("gpu", "driver", "cuda", "next boot", "kernel log of ConnectX-7", "kernel log of the GPU"):
        assert status[check] == "not checked"
    for check in ("system", "architecture", "sudo", "memory", "port 8000"):
        assert status[check] == "ok"


# What is done to a host (0: the head), what the doctor must say of it, and the stage that mends it.
DRIFTS: dict[str, tuple[int, str, str, str, str]] = {
    "file edited": (0, f"echo '# mine' >> {UNIT_FILE}", UNIT_FILE, "content", "serve"),
    "mode changed": (1, f"chmod 666 {UNIT_FILE}", UNIT_FILE, "mode 666", "serve"),
    "unit disabled": (1, f"systemctl disable {SERVE}", SERVE, "disabled", "serve"),
    "unit stopped": (1, f"systemctl stop {SERVE}", SERVE, "inactive", "serve"),
    "group left": (0, "gpasswd -d nvidia docker", "user nvidia", "not in group docker", "host"),
    "mirror removed": (
        0,
        "python3 - <<END\nimport json\np = '/etc/docker/daemon.json'\nd = json.load(open(p))\n"
        "del d['registry-mirrors']\njson.dump(d, open(p, 'w'))\nEND",
        DAEMON,
        "registry-mirrors not set",
        "docker",
    ),
    "address removed": (1, f"ip -4 addr flush dev {TWIN}", TWIN, "no address", "fabric"),
    "image untagged": (1, "docker rmi -f {image}", "image {image}", "absent", "image"),
    "manifest removed": (
        1,
        "rm /var/lib/sparkstack/checkpoints/{checkpoint}/manifest.json",
        "/var/lib/sparkstack/checkpoints/{checkpoint}/manifest.json",
        "absent or another manifest",
        "checkpoint",
    ),
    "netplan file deleted": (0, f"rm {NETPLAN}", NETPLAN, "no file", "fabric"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRIFTS)
def test_a_drift_is_named_and_a_deployment_mends_it(sparks: list[Spark], name: str) -> None:
    at, command, check, found, stage = DRIFTS[name]
    about = json.loads(sparks[0].run("cat /etc/sparkstack/current/release.json"))
    ids = {"{image}": about["image"], "{checkpoint}": about["checkpoint"]}
    for word, value in ids.items():
        command, check = command.replace(word, value), check.replace(word, value)
    sparks[at].run(command)
    run, report = doctor("-y")
    assert run.code == 1, run.output
    assert report["ok"] is False and "Traceback" not in run.output
    lines = [
        line for line in bad(report)
        if (line["host"], line["stage"], line["check"]) == (sparks[at].name, stage, check)
    ]  # fmt: skip
    assert len(lines) == 1 and found in lines[0]["found"], bad(report)
    assert lines[0]["status"] == "drift" and f"only={stage}" in lines[0]["remedy"]
    # Nothing else is accused, but what follows from it: without its unit a rank does not serve.
    others = [line for line in bad(report) if line not in lines]
    assert all(line["stage"] in (stage, "serve") for line in others), others

    mended = pyinfra("-y", "--data", f"only={stage}", "--data", "restart_serving=yes")
    assert mended.code == 0, mended.output
    run, report = doctor("-y")
    if bad(report) and all(line["stage"] == "serve" for line in bad(report)):
        mended = pyinfra("-y", "--data", "only=serve")
        assert mended.code == 0, mended.output
        run, report = doctor("-y")
    assert (run.code, bad(report)) == (0, []), run.output


def test_a_host_that_asks_for_a_sudo_password_is_one_line(
    sparks: list[Spark], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a word of the test"
    sparks[1].run("cp -p /etc/shadow /root/shadow; cp -p /etc/sudoers.d/nvidia /root/sudoers")
    sparks[1].run(f"echo nvidia:{shlex.quote(secret)} | chpasswd")
    sparks[1].run("echo 'nvidia ALL=(ALL) ALL' > /etc/sudoers.d/nvidia")
    try:
        run, report = doctor("-y", "--data", "only=preflight,host")
        assert run.code == 1
        (line,) = bad(report)
        assert (line["host"], line["check"]) == ("spark-2", "sudo")
        monkeypatch.setenv("SPARKSTACK_SUDO_PASSWORD", secret)
        run, report = doctor("-y", "--data", "only=preflight,host")
        assert (run.code, bad(report)) == (0, []), run.output
        assert secret not in run.output and secret not in json.dumps(report)
    finally:
        # The test's own session needs sudo, too, so this goes past it.
        back = "mv /root/sudoers /etc/sudoers.d/nvidia; mv /root/shadow /etc/shadow"
        subprocess.run(["docker", "exec", sparks[1].name, "sh", "-c", back], check=True, timeout=60)


def lab_data(state: dict[str, Any]) -> list[str]:
    """What inventories/lab.py and group_data/lab.py add, as --data: the inventory stays the example."""
    values = {
        "recipe": "lab-tiny",
        "accelerator": "cpu",
        "accepted_systems": '["debian:12"]',
        "docker_mirrors": json.dumps([state["registry"]]),
        "image_bases": json.dumps(state["image_base"]),
        # What is on the hosts: the lab's, which leaves out RDMA's tools.
        "packages": json.dumps(runpy.run_path(str(ROOT / "group_data/lab.py"))["packages"]),
    }
    return [word for key, value in values.items() for word in ("--data", f"{key}={value}")]


def swapped(example: str, sparks: list[Spark]) -> str:
    text = (ROOT / "inventories" / f"{example}.py").read_text()
    for number, spark in enumerate(sparks, 1):
        text = text.replace(f"192.0.2.1{number}", spark.address)
    return text


@pytest.mark.parametrize("example", ["single", "pair"])
def test_an_example_inventory_with_only_its_addresses_swapped(
    example: str, sparks: list[Spark], state: dict[str, Any], tmp_path: Path
) -> None:
    inventory = tmp_path / f"{example}.py"
    inventory.write_text(swapped(example, sparks))
    words = [
        *("--data", f"ssh_key={ROOT / state['key']}"),
        *("--data", f"ssh_known_hosts_file={ROOT / state['known_hosts']}"),
        *("--data", "only=preflight,host,docker,fabric"),
        *lab_data(state),
    ]
    run, report = doctor("-y", *words, inventory=str(inventory))
    names = {line["host"] for line in report["lines"]} - {"all hosts"}
    assert names == {spark.name for spark in sparks[: 1 if example == "single" else 2]}
    # One Spark alone has another fabric than the lab's pair, which is a difference; nothing may fail.
    assert not any(line["status"] == "failed" for line in report["lines"]), run.output
    assert not [line for line in bad(report) if line["stage"] != "fabric"], run.output


def into(container: str, folder: Path, target: str, *words: str) -> None:
    """Copy a folder into a container, the files as nvidia's."""
    packed = subprocess.Popen(["tar", "c", "-C", str(folder), *words, "."], stdout=subprocess.PIPE)
    unpack = f"mkdir -p {target} && tar x --no-same-owner -C {target}"
    command = ["docker", "exec", "-i", "-u", "nvidia", container, "sh", "-c", unpack]
    subprocess.run(command, stdin=packed.stdout, check=True, timeout=300)
    assert packed.wait() == 0


@pytest.fixture(scope="module")
def controller(sparks: list[Spark], state: dict[str, Any]) -> Iterator[Callable[..., str]]:
    """`controller(EXAMPLE, ENTRY, STAGES)`: pyinfra on spark-1, from a checkout there, as its user; with the
    packages of this test run in place of an installation. The value is what it said; it must succeed."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the virtual Sparks have Python 3.11")
    head = sparks[0]
    skip = [f"--exclude=./{name}" for name in (".git", ".venv", ".lab", "reports", ".mypy_cache", ".cache")]
    into(head.name, ROOT, "/home/nvidia/self/checkout", *skip)
    site_packages = Path(sysconfig.get_path("purelib"))
    into(head.name, site_packages, "/home/nvidia/self/site", "--exclude=*.pth", "--exclude=__editable__*")
    inventories = "; ".join(
        f"echo {shlex.quote(swapped(example, sparks))} > checkout/inventories/{example}.py"
        for example in ("local", "local_pair")
    )
    key = shlex.quote((ROOT / state["key"]).read_text())
    head.run(f"cd /home/nvidia/self; echo {key} > key; chown nvidia key; chmod 600 key; {inventories}")

    def run(example: str, entry: str, stages: str) -> str:
        arguments = [
            *(f"inventories/{example}.py", entry, "-y"),
            *("--data", f"only={stages}", "--data", "ssh_key=/home/nvidia/self/key"),
            *lab_data(state),
        ]
        script = (
            "cd /home/nvidia/self/checkout && PYTHONPATH=$PWD:/home/nvidia/self/site python3 -c"
            f" 'from pyinfra_cli.main import main; main()' {shlex.join(arguments)} </dev/null 2>&1"
        )
        command = ["docker", "exec", "-u", "nvidia", "-e", "HOME=/home/nvidia", head.name, "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    yield run
    # pyinfra has noted the neighbour's key there; fresh hosts have no such file.
    head.run("rm -rf /home/nvidia/self; rm -f /home/nvidia/.ssh/known_hosts")


def changes_there(head: Spark) -> set[str]:
    """The hosts on which the newest run of spark-1's own controller changed something."""
    report = json.loads(head.run("cat $(ls -t /home/nvidia/self/checkout/reports/*/report.json | head -1)"))
    return {line["host"] for line in report["operations"] if line["status"] == "changed"}


MANAGED = "/etc/sysctl.d/90-sparkstack.conf"


@pytest.mark.parametrize(
    ("example", "stages", "hosts"),
    [
        # One Spark alone has another fabric than the lab's pair, so that stays out.
        ("local", "preflight,host,docker", ["@local"]),
        ("local_pair", "preflight,host,docker,fabric", ["@local", "spark-2"]),
    ],
)
def test_a_spark_provisions_itself_and_its_neighbour(
    controller: Callable[..., str], sparks: list[Spark], example: str, stages: str, hosts: list[str]
) -> None:
    """From inside spark-1: it mends what is broken, and then has nothing to do."""
    broken = sparks[: len(hosts)]
    before = [spark.run(f"cat {MANAGED}") for spark in broken]
    controller(example, "doctor.py", stages)
    for spark in broken:
        spark.run(f"rm {MANAGED}")
    said = controller(example, "deploy.py", stages)
    assert all(name in said for name in hosts)
    assert changes_there(sparks[0]) == set(hosts)
    assert [spark.run(f"cat {MANAGED}") for spark in broken] == before
    controller(example, "deploy.py", stages)
    assert changes_there(sparks[0]) == set()
    controller(example, "doctor.py", stages)
