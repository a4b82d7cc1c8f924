"""Group data is held against the knobs: a wrong type or an unknown name is one line with the nearest name."""

from __future__ import annotations

import dataclasses
import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from onhost.limits import Limits
from sparkstack import knobs, launch

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {
    k: v for k, v in runpy.run_path(str(ROOT / "group_data/all.py")).items() if not k.startswith("__")
}
KNOWN = ["_sudo", "_sudo_password", "ssh_user", "ssh_hostname"]


def lines(**changes: Any) -> list[str]:
    homes = dict.fromkeys(changes, "group_data/lab.py")
    return [str(one) for one in knobs.problems({**DEFAULTS, **changes}, homes, KNOWN)]


def test_the_defaults_are_right_and_complete() -> None:
    assert lines() == []
    assert set(DEFAULTS) - {"_sudo"} == set(knobs.Knobs.model_fields)


def test_a_limit_has_one_name_and_one_default() -> None:
    """In group data, for who leaves it out there, and on the host for a file that an older version wrote."""
    on_host = {
        f"{one.name}_s" if one.name != "misses" else one.name: one.default
        for one in dataclasses.fields(Limits)
    }
    wanted = {"enabled": True, **on_host}
    assert DEFAULTS["watchdog"] == knobs.Watchdog().model_dump() == wanted
    assert DEFAULTS["drain_s"] == launch.DRAIN_SECONDS


def test_the_lab_is_right() -> None:
    lab = runpy.run_path(str(ROOT / "group_data/lab.py"))
    assert lines(**{k: v for k, v in lab.items() if not k.startswith("__")}) == []


def test_every_knob_of_the_host_is_on_the_page_for_users() -> None:
    page = (ROOT / "docs/host.md").read_text(encoding="utf-8")
    source = (ROOT / "group_data/all.py").read_text(encoding="utf-8")
    part = source[source.index("# ── Host ──") : source.index("# ── Downloads")]
    names = re.findall(r"^([a-z]\w+)(?=[ :])", part, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if f"`{name}" not in page] == []


SEE = "see its line in group_data/all.py"
WRONG: list[tuple[str, Any, str]] = [
    ("swap", "none", f"found swap = 'none' (text); wanted 'keep' or 'off'; {SEE}"),
    ("headless", "yes", f"found headless = 'yes' (text); wanted True or False; {SEE}"),
    ("packages", "curl", f"found packages = 'curl' (text); wanted a list; {SEE}"),
    ("packages", [7], f"found packages.0 = 7 (a number); wanted text; {SEE}"),
    ("share_port", "80", f"found share_port = '80' (text); wanted a whole number; {SEE}"),
    ("share_port", 99999, f"found share_port = 99999 (a number); wanted less than or equal to 65535; {SEE}"),
    ("vm_swappiness", "10", f"found vm_swappiness = '10' (text); wanted a whole number; {SEE}"),
    ("vm_swappiness", True, f"found vm_swappiness = True (yes or no); wanted a whole number; {SEE}"),
    (
        "link_gate",
        "on",
        f"found link_gate = 'on' (text); wanted 'stop', 'warn' or 'off'; {SEE}",
    ),
    (
        "link_wanted",
        {**DEFAULTS["link_wanted"], "rails_gbps": 1.0},
        "found unknown name 'link_wanted.rails_gbps'; wanted one of: speed_mbps, rail_gbps, both_gbps, "
        "tcp_gbps, rdma, nccl_gbytes, nccl_ring_gbytes, nccl_size_gib, seconds, port; "
        "did you mean 'rail_gbps'?",
    ),
    (
        "link_wanted",
        {**DEFAULTS["link_wanted"], "seconds": 0},
        f"found link_wanted.seconds = 0 (a number); wanted greater than or equal to 1; {SEE}",
    ),
    (
        "link_wanted",
        {key: value for key, value in DEFAULTS["link_wanted"].items() if key != "rdma"},
        "found no 'link_wanted.rdma'; wanted a value; copy its line from group_data/all.py",
    ),
    ("drain_s", "25", f"found drain_s = '25' (text); wanted a whole number; {SEE}"),
    ("drain_s", 2.5, f"found drain_s = 2.5 (a number); wanted a whole number; {SEE}"),
    ("drain_s", -1, f"found drain_s = -1 (a number); wanted greater than or equal to 0; {SEE}"),
    ("drain_s", 7200, f"found drain_s = 7200 (a number); wanted less than or equal to 3600; {SEE}"),
    ("watchdog", {"port_s": "a"}, f"found watchdog.port_s = 'a' (text); wanted a valid number; {SEE}"),
    ("watchdog", {"memory_s": -1}, "found watchdog.memory_s = -1 (a number); wanted greater than or equal"),
    ("watchdog", {"back_off_s": 0}, "found watchdog.back_off_s = 0 (a number); wanted greater than or"),
    (
        "watchdog",
        {"backoff_s": 5},
        "found unknown name 'watchdog.backoff_s'; wanted one of: enabled, interval_s, timeout_s, misses, "
        "away_s, busy_s, head_stops_s, docker_s, port_s, memory_s, again_s, back_off_s; "
        "did you mean 'back_off_s'?",
    ),
    ("packages", None, f"found packages = None (nothing); wanted a list; {SEE}"),
    (
        "fabric",
        {"port": "0"},
        f"found fabric.port = '0' (text); wanted a whole number, or one for each host as in "
        f'{{"spark-1": 0}}; {SEE}',
    ),
    (
        "fabric",
        {"cables": [["spark-1:0", "spark-2:1"]]},
        "found fabric.cables = [['spark-1:0', 'spark-2:1']] (a list); wanted a whole number, or a list such "
        f'as ["spark-1:0 spark-2:1"]; {SEE}',
    ),
    (
        "fabric_ports",
        {0: [["cx0", "mlx5_0"]]},
        "found fabric_ports = {0: [['cx0', 'mlx5_0']]} (a dictionary); wanted two twins for port 0 or 1, as "
        f'in {{0: [["cx0", "mlx5_0"], ["cx1", "mlx5_1"]]}}; {SEE}',
    ),
    (
        "fabric",
        {"prot": 1},
        "found unknown name 'fabric.prot'; wanted one of: kind, port, cables, base; did you mean 'port'?",
    ),
    (
        "conda_sha256",
        "abc",
        f"found conda_sha256 = 'abc' (text); wanted text that matches ^[0-9a-f]{{64}}$; {SEE}",
    ),
    ("serve_bind", "0.0.0", "found serve_bind = '0.0.0' (text); wanted an IP address, or 'management' for"),
    ("serve_bind", "managment", "found serve_bind = 'managment' (text); wanted an IP address, or"),
    ("serve_bind", "::ffff:0.0.0.0", "found serve_bind = '::ffff:0.0.0.0' (text); wanted 0.0.0.0, which"),
    ("serve_bind", "fe80::1%eth0", "found serve_bind = 'fe80::1%eth0' (text); wanted an address that is"),
    ("serve_bind", "fe80::1", "found serve_bind = 'fe80::1' (text); wanted an address that is more than one"),
    ("serve_bind", "fd00::1%2", "found serve_bind = 'fd00::1%2' (text); wanted an address that is more than"),
    ("serve_bind", "127.0.0.1:8000", "found serve_bind = '127.0.0.1:8000' (text); wanted an IP address, or"),
    (
        "management_interface",
        "enP7s7/24",
        "found management_interface = 'enP7s7/24' (text); wanted the name of an interface, as `ip",
    ),
    (
        "management_interface",
        "a-name-too-long-",
        "found management_interface = 'a-name-too-long-' (text); wanted the name of an interface",
    ),
    ("management_interface", "", "found management_interface = '' (text); wanted the name of an interface"),
    (
        "docker_mirrors",
        ["https://m.example", "m.example:5000"],
        "found docker_mirrors.1 = 'm.example:5000' (text); wanted a URL that begins with https:// or h",
    ),
    (
        "docker_mirrors",
        "https://m?k=s3cr3t",
        f"found docker_mirrors = 'https://m?…' (text); wanted a list; {SEE}",
    ),
    ("docker_mirrors", "https://m", f"found docker_mirrors = 'https://m' (text); wanted a list; {SEE}"),
    *(
        ("docker_mirrors", [url], f"found docker_mirrors.0 = '{url}' (text); wanted a URL {wanted}; {SEE}")
        for url, wanted in (
            ("https://m:x", "whose port is a number from 1 to 65535"),
            ("https://m:0", "whose port is a number from 1 to 65535"),
            ("https://m:99999/v2", "whose port is a number from 1 to 65535"),
            ("https:///v2/", "with a host's name or address in it"),
            ("https://[::1", "with a host's name or address in it"),
            ("https://m n", "without blanks in it"),
            ("https:/m", "that begins with https:// or http://"),
        )
    ),
    (
        "hub_endpoint",
        "https://h?key=s3cr3t's",
        "found hub_endpoint = 'https://h?…' (text); wanted a URL without a query",
    ),
    (
        "hub_endpoint",
        "https://h/#s3cr3t",
        "found hub_endpoint = 'https://h/#…' (text); wanted a URL without a fragment",
    ),
    ("hub_endpoint", "https://me:s3c/r3t@h", "found hub_endpoint = 'https://…@h' (text); wanted a URL "),
    ("conda_channel_alias", "h?key=s3cr3t", "found conda_channel_alias = 'h?…' (text); wanted a URL that "),
    (
        "hub_endpoint",
        "https://me:s3cr3t@hub.example",
        "found hub_endpoint = 'https://…@hub.example' (text); wanted a URL without user and password in it",
    ),
    ("conda_url", "ftp://m/x.sh", "found conda_url = 'ftp://m/x.sh' (text); wanted a URL that"),
    ("conda_channel_alias", "mirror", "found conda_channel_alias = 'mirror' (text); wanted a URL that "),
    (
        "accepted_systems",
        ["ubuntu 24.04"],
        "found accepted_systems.0 = 'ubuntu 24.04' (text); wanted ID:VERSION_ID of /etc/os-release, su",
    ),
    ("accepted_systems", ["Ubuntu:24.04"], "found accepted_systems.0 = 'Ubuntu:24.04' (text); wanted ID"),
    ("accepted_systems", [], f"found accepted_systems = [] (a list); wanted at least one; {SEE}"),
    ("state_dir", "/var/lib/../x", "found state_dir = '/var/lib/../x' (text); wanted an absolute path of"),
    ("docker_settings", {"a": {1}}, "found docker_settings = {"),
    ("docker_settings", {"a": {"b": [b"x"]}}, "found docker_settings = {"),
    ("docker_settings", {"a": {1: 2}}, "found docker_settings = {"),
    ("docker_settings", {"a": math.nan}, "found docker_settings = {"),
    ("docker_settings", {"a": "\ud800"}, "found docker_settings = {"),
    ("packages", ["curl; reboot"], "found packages.0 = 'curl; reboot' (text); wanted the name of a "),
    ("held_packages", ["linux image"], "found held_packages.0 = 'linux image' (text); wanted a package's"),
    (
        "pip_environment",
        {"PIP-INDEX": "x"},
        "found pip_environment.PIP-INDEX = 'PIP-INDEX' (text); wanted a variable's name",
    ),
    (
        "recipie",
        "x",
        "found unknown name 'recipie'; wanted a knob of group_data/all.py; did you mean 'recipe'?",
    ),
    (
        "_sudo_password",
        "s3cr3t",
        "found _sudo_password; wanted no password in a file or an argument; take it out; set "
        "SPARKSTACK_SUDO_PASSWORD, or type it on the terminal",
    ),
    (
        "user",
        "nvidia ALL=(ALL)",
        f"found user = 'nvidia ALL=(ALL)' (text); wanted text that matches {'^[a-z_]'}",
    ),
    (
        "state_dir",
        "var/lib",
        "found state_dir = 'var/lib' (text); wanted an absolute path of letters, digits",
    ),
    ("state_dir", "/a b", "found state_dir = '/a b' (text); wanted an absolute path of letters, digits"),
    ("swop", "off", "found unknown name 'swop'; wanted a knob of group_data/all.py; did you mean 'swap'?"),
    (
        "ssh_usr",
        "x",
        "found unknown name 'ssh_usr'; wanted a knob of group_data/all.py; did you mean 'ssh_user'?",
    ),
    (
        "zzz",
        1,
        "found unknown name 'zzz'; wanted a knob of group_data/all.py; the knobs are in group_data/all.py",
    ),
    (
        "restart_serving",
        "perhaps",
        "found restart_serving = 'perhaps'; wanted yes or no; --data restart_serving=yes",
    ),
]


@pytest.mark.parametrize(("name", "value", "line"), WRONG)
def test_what_is_wrong_is_one_line(name: str, value: Any, line: str) -> None:
    (found,) = lines(**{name: value})
    assert found.startswith(f"group_data/lab.py: {line}")


def test_what_is_no_json_is_told_with_its_place() -> None:
    (found,) = lines(docker_settings={"a": {"b": [b"x"]}})
    assert found == (
        "group_data/lab.py: found docker_settings = {'a': {'b': [b'x']}} (a dictionary); wanted at a.b.0 "
        f"what JSON has: text, numbers, True, False, None, lists, dictionaries with text as keys; {SEE}"
    )


def test_a_name_that_is_gone_is_said() -> None:
    rest = {key: value for key, value in DEFAULTS.items() if key != "user"}
    (found,) = knobs.problems(rest, {}, KNOWN)
    assert str(found) == "group_data: found no 'user'; wanted a value; copy its line from group_data/all.py"


GOOD: list[tuple[str, Any]] = [
    *(("serve_bind", value) for value in ("management", "0.0.0.0", "::", "192.0.2.7", "fd00::1")),
    *(("management_interface", value) for value in ("eth0", "enP7s7", "br-lan", "eth0.100", "wlP9s9")),
    ("docker_mirrors", ["http://192.0.2.1:5000", "https://m.example/docker/", "https://[fd00::1]:5000"]),
    ("docker_mirrors", ()),
    ("accepted_systems", ["ubuntu:24.04", "debian:12", "opensuse-leap:15.6"]),
    ("conda_url", "file:///srv/Miniforge3.sh"),
    ("conda_channel_alias", "https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud"),
    ("held_packages", ["linux-image-[0-9]*", "!libnvidia-container*"]),
    ("_sudo_password", None),
    ("ssh_password", "in a site's own inventory"),
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_what_is_right_is_taken(name: str, value: Any) -> None:
    assert [str(one) for one in knobs.problems({**DEFAULTS, name: value}, {}, [*KNOWN, "ssh_password"])] == []


@pytest.mark.parametrize("name", ["_sudo_password", "ssh_password", "ssh_key_password"])
@pytest.mark.parametrize("value", ["s3cr3t", 1234, 0])
def test_a_password_is_no_argument(name: str, value: Any) -> None:
    homes = {name: "--data"}
    (found,) = knobs.problems({**DEFAULTS, name: value}, homes, [*KNOWN, name])
    line = f"--data: found {name}; wanted no password in a file or an argument; take it out; "
    assert str(found).startswith(line)
    assert str(value) not in str(found)


def test_every_mistake_is_told() -> None:
    assert len(lines(swap=1, user=2, nothing=3)) == 3


@pytest.mark.parametrize(("said", "on"), [("yes", True), (True, True), ("no", False), (False, False)])
def test_a_switch_of_the_run(said: Any, on: bool) -> None:
    assert lines(restart_serving=said) == []
    assert knobs.switched_on({"restart_serving": said}, "restart_serving") is on
    assert knobs.switched_on({}, "restart_serving") is False
