"""Group data is held against the knobs: a wrong type or an unknown name is one line with the nearest name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from sparkstack import knobs

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {
    k: v for k, v in runpy.run_path(str(ROOT / "group_data/all.py")).items() if not k.startswith("__")
}
KNOWN = ["_sudo", "ssh_user", "ssh_hostname"]


def lines(**changes: Any) -> list[str]:
    homes = dict.fromkeys(changes, "group_data/lab.py")
    return [str(one) for one in knobs.problems({**DEFAULTS, **changes}, homes, KNOWN)]


def test_the_defaults_are_right_and_complete() -> None:
    assert lines() == []
    assert set(DEFAULTS) - {"_sudo"} == set(knobs.Knobs.model_fields)


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
    ("packages", None, f"found packages = None (nothing); wanted a list; {SEE}"),
    (
        "fabric",
        {"prot": 1},
        "found unknown name 'fabric.prot'; wanted one of: kind, port, base; did you mean 'port'?",
    ),
    (
        "conda_sha256",
        "abc",
        f"found conda_sha256 = 'abc' (text); wanted text that matches ^[0-9a-f]{{64}}$; {SEE}",
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


def test_a_name_that_is_gone_is_said() -> None:
    rest = {key: value for key, value in DEFAULTS.items() if key != "user"}
    (found,) = knobs.problems(rest, {}, KNOWN)
    assert str(found) == "group_data: found no 'user'; wanted a value; copy its line from group_data/all.py"


def test_every_mistake_is_told() -> None:
    assert len(lines(swap=1, user=2, nothing=3)) == 3


@pytest.mark.parametrize(("said", "on"), [("yes", True), (True, True), ("no", False), (False, False)])
def test_a_switch_of_the_run(said: Any, on: bool) -> None:
    assert lines(restart_serving=said) == []
    assert knobs.switched_on({"restart_serving": said}, "restart_serving") is on
    assert knobs.switched_on({}, "restart_serving") is False
