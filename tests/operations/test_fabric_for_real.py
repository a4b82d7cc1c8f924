"""The fabric's shell on this machine, with stand-ins for the tools that would change its network."""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_host import FakeHost

from sparkstack import topology
from sparkstack.fabric_state import Link, Profile, parse
from tasks import fabric_try
from tasks.fabric_facts import SCRIPT

TWINS = topology.plan("pair", ["a", "b"]).of("a")
OURS = "40-sparkstack.yaml"

IP = """
case "$*" in
*"addr show dev"*)
    for i; do last=$i; done
    echo "2: $last inet $(cat {folder}/has-$last 2>/dev/null) brd x" ;;
*"addr show") echo "2: eth9 inet 10.9.9.9/24 brd 10.9.9.255 scope global eth9" ;;
*"route show"*) echo "default via 10.9.9.1 dev eth9 linkdown" ;;
*) echo "ip $*" >>{folder}/heard ;;
esac
"""
NETPLAN = """
echo "netplan $*" >>{folder}/heard
[ "$1" != generate ] || ! grep -q refuse {folder}/netplan/* || {{ echo "bad file"; exit 1; }}
"""


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., str]:
    def make(**bodies: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, body in bodies.items():
            path = folder / name
            path.write_text(
                "#!/bin/sh\n" + body.replace("{folder}", str(tmp_path)).replace("{{", "{").replace("}}", "}")
            )
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"{folder}:{os.environ['PATH']}"

    return make


@pytest.fixture
def attempt(tmp_path: Path, tools: Callable[..., str]) -> Callable[..., subprocess.Popen[str]]:
    """Starts the try with these files; everything that it would touch lies in `tmp_path`."""
    path = tools(ip=IP, netplan=NETPLAN, timeout='shift; exec "$@"', nmcli='echo "nmcli $*" >>{folder}/heard')
    (tmp_path / "run").mkdir()
    (tmp_path / "netplan").mkdir()
    for twin in TWINS:
        (tmp_path / f"has-{twin.name}").write_text(twin.cidr)

    def start(
        files: dict[str, str], profiles: tuple[str, ...] = (), seconds: int = 0
    ) -> subprocess.Popen[str]:
        text = fabric_try.script(files, TWINS, ("bond0",), profiles, seconds)
        text = text.replace("/run/sparkstack-fabric", f"{tmp_path}/run").replace(
            "/run/netplan", f"{tmp_path}/netplan"
        )
        # Nobody waits for the seconds that a real network takes.
        text = (
            text.replace("sleep 3", ":").replace("settled 20", "settled 0").replace("sleep 0.2", "sleep 0.01")
        )
        return subprocess.Popen(
            ["sh", "-c", text], env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL
        )

    return start


def state(folder: Path) -> str:
    return (folder / "run" / "state").read_text().strip()


def heard(folder: Path) -> list[str]:
    return (folder / "heard").read_text().splitlines()


def until(look: Callable[[], bool]) -> None:
    for _ in range(500):
        if look():
            return
        threading.Event().wait(0.02)  # time.sleep takes no time in these tests
    raise AssertionError("never")


def test_a_try_that_is_kept(tmp_path: Path, attempt: Callable[..., subprocess.Popen[str]]) -> None:
    profile = tmp_path / "a port.nmconnection"
    profile.write_text("secret")
    shadow = tmp_path / "netplan" / "50-other.yaml"
    shadow.write_text("of another\n")
    running = attempt({OURS: "ours\n", "50-other.yaml": "hidden\n"}, (str(profile),), 30)
    until(lambda: (tmp_path / "run" / "state").exists() and state(tmp_path) == "applied")
    assert (tmp_path / "netplan" / OURS).read_text() == "ours\n"
    assert shadow.read_text() == "hidden\n" and not profile.exists()
    (tmp_path / "run" / "keep").touch()
    assert running.wait(20) == 0
    assert state(tmp_path) == "kept"
    # /etc has the files by now: what hid them is gone, and what else was in /run/netplan is there again.
    assert not (tmp_path / "netplan" / OURS).exists()
    assert shadow.read_text() == "of another\n" and not profile.exists()
    words = heard(tmp_path)
    assert (
        words.index("netplan generate")
        < words.index("ip link delete dev bond0")
        < words.index("netplan apply")
    )
    assert words.count("netplan apply") == 1


def test_a_try_that_nobody_keeps_goes_back(
    tmp_path: Path, attempt: Callable[..., subprocess.Popen[str]]
) -> None:
    profile = tmp_path / "a port.nmconnection"
    profile.write_text("theirs")
    running = attempt({OURS: "ours\n"}, (str(profile),))
    assert running.wait(20) == 0
    assert state(tmp_path) == "back applied"
    assert list((tmp_path / "netplan").iterdir()) == []
    assert profile.read_text() == "theirs"
    words = heard(tmp_path)
    assert words.count("netplan apply") == 2
    # What the kernel had, whoever had set it, comes back after that.
    after = words[len(words) - 1 - words[::-1].index("netplan apply") :]
    assert "ip addr add 10.9.9.9/24 brd 10.9.9.255 dev eth9" in after
    assert "ip route add default via 10.9.9.1 dev eth9" in after


def test_a_try_that_is_stopped_goes_back_at_once(
    tmp_path: Path, attempt: Callable[..., subprocess.Popen[str]]
) -> None:
    running = attempt({OURS: "ours\n"}, (), 30)
    until(lambda: (tmp_path / "run" / "state").exists() and state(tmp_path) == "applied")
    running.terminate()
    assert running.wait(20) == 0
    assert state(tmp_path) == "back stopped"
    assert list((tmp_path / "netplan").iterdir()) == []
    assert heard(tmp_path).count("netplan apply") == 2


def test_a_file_that_netplan_refuses_is_never_applied(
    tmp_path: Path, attempt: Callable[..., subprocess.Popen[str]]
) -> None:
    assert attempt({OURS: "refuse\n"}).wait(20) == 0
    assert state(tmp_path) == "refused bad file"
    assert list((tmp_path / "netplan").iterdir()) == []
    assert heard(tmp_path) == ["netplan generate", "netplan generate"]


def test_an_address_that_does_not_come(tmp_path: Path, attempt: Callable[..., subprocess.Popen[str]]) -> None:
    (tmp_path / f"has-{TWINS[1].name}").unlink()
    assert attempt({OURS: "ours\n"}).wait(20) == 0
    assert state(tmp_path) == f"back without {TWINS[1].name}"


LINK = json.dumps(
    [
        {
            "ifname": "enp1s0f0np0",
            "mtu": 9000,
            "flags": ["UP"],
            "addr_info": [
                {"family": "inet", "local": "10.0.0.1", "prefixlen": 24},
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64},
            ],
        }
    ]
)


def test_the_state_of_a_host(tmp_path: Path, tools: Callable[..., str]) -> None:
    etc, nm, keys = tmp_path / "netplan", tmp_path / "nm", tmp_path / "keys"
    for folder in (etc, nm, keys):
        folder.mkdir()
    mixed = "network:\n  ethernets:\n    enp1s0f0np0: {dhcp4: no}\n"
    (etc / "40-cx7.yaml").write_text(mixed)
    (etc / "50-wifi.yaml").write_text("wifis:\n  wlP9s9:\n    password: hush\n")
    (etc / "60-both.yaml").write_text("enp1s0f0np0: {}\npassword: hush\n")
    (etc / "70-near.yaml").write_text("ethernets:\n  enp1s0f0np01: {}\n")
    (etc / "80-glob.yaml").write_text("ethernets:\n  all:\n    match:\n      name: 'en*'\n")
    (nm / "a port.nmconnection").write_text("id=a port\ninterface-name=enp1s0f0np0\npsk=hush\n")
    (keys / "id_ed25519.pub").write_text("ssh-ed25519 AAAA comment\n")
    path = tools(
        ip=f"case $* in *-j*) echo {shlex.quote(LINK)} ;; *'route show table all'*) "
        "printf 'default via 1.2.3.4 dev x \\nlocal 1.2.3.5 dev x table local scope host\\n' ;; "
        "*) echo '2: enp1s0f0np0    inet 10.0.0.1/24 scope global enp1s0f0np0' ;; esac",
        ping='case "$*" in *8972*) exit 1 ;; esac; [ "$8" != "" ]',
        systemctl="exit 3",
        id="exit 1",
        sshd="printf 'port 2222\\nport 22\\nlistenaddress 0.0.0.0\\n'",
    )
    text = (
        SCRIPT
        .replace("/etc/netplan", str(etc))
        .replace("/etc/NetworkManager/system-connections", str(nm))
    )
    words = [
        "9000",
        str(keys),
        "enp1s0f0np0=10.0.0.2",
        "enP2p1s0f0np0=",
        str(etc / "40-cx7.yaml"),
        "/no/such",
    ]
    done = subprocess.run(
        ["sh", "-c", text, "fabric", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    assert done.stderr == ""
    assert "hush" not in done.stdout, "a secret travelled"
    found = parse(done.stdout.splitlines())
    assert found.links == {"enp1s0f0np0": Link(("10.0.0.1/24",), 9000, carrier=False)}
    assert list(found.routes) == ["default via 1.2.3.4 dev x"]
    assert found.reach == {"enp1s0f0np0": "small"}
    assert found.netplan == {
        str(etc / "40-cx7.yaml"): mixed,
        str(etc / "60-both.yaml"): None,
        str(etc / "80-glob.yaml"): (etc / "80-glob.yaml").read_text(),
    }
    assert found.profiles == [Profile(str(nm / "a port.nmconnection"), "a port", interface="enp1s0f0np0")]
    assert found.key == "ssh-ed25519 AAAA" and not found.peer_user and not found.trying
    assert found.ssh_port == 2222
    assert len(found.files) == 5 and found.files[str(etc / "40-cx7.yaml")]["mode"] == "644"
    assert base64.b64encode(mixed.encode()).decode() in done.stdout


def test_two_runs_begin_a_try_at_the_same_moment(
    tmp_path: Path, tools: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One begins it, and the others are told that it is busy; nobody is told of folders or files."""
    unit = tmp_path / "unit"
    path = tools(
        **{
            "systemctl": f"[ -e {unit} ]",
            "mkdir": 'sleep 0.2; exec /bin/mkdir "$@"',
            "systemd-run": f"[ ! -e {unit} ] && touch {unit}",
        }
    )
    begun: list[str] = []

    def shell(host: object, command: str, stdin: str = "") -> tuple[bool, str]:
        begun.append(command)
        return False, ""

    monkeypatch.setattr(fabric_try, "shell", shell)
    monkeypatch.setattr(fabric_try, "report_failure", lambda *_: False)
    fabric_try.begin(None, FakeHost("spark-1"), "true", ())
    command = begun[0].replace("/run/", f"{tmp_path}/")
    runs = [
        subprocess.Popen(
            ["sh", "-c", command], env={**os.environ, "PATH": path}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(5)
    ]  # fmt: skip
    said = sorted(run.communicate(timeout=30)[0].strip() for run in runs)
    assert said == ["begun", "busy", "busy", "busy", "busy"]
