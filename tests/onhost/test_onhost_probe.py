"""The probe of the fabric's ports: its frames, and two of them at the ends of a real (virtual) cable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhost import probe

SOURCE = Path(probe.__file__)
MAC = bytes.fromhex("020000000001")


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_frame_is_heard_by_its_own_run_only(host: str, name: str) -> None:
    data = probe.frame(MAC, "run-1", host, name)
    assert len(data) >= 60 and data[:6] == b"\xff" * 6 and data[6:12] == MAC
    assert probe.heard(data, "run-1") == (host, name)
    assert probe.heard(data, "run-2") is None


@given(st.binary(max_size=120))
def test_other_frames_are_nothing(noise: bytes) -> None:
    whole = probe.frame(MAC, "r", "h", "n")
    for data in (noise, whole[:14] + noise, whole[:16] + probe.MAGIC + noise, whole[: len(noise)][:30]):
        assert probe.heard(data, "r") is None


def test_two_hosts_at_a_cable() -> None:
    """One end is down before: it is up meanwhile, and down again after it."""
    one, other = ("a", "enp1s0f0np0"), ("b", "enp1s0f1np1")
    run = f"{sys.executable} {SOURCE} run"
    done = subprocess.run(
        [
            *("unshare", "--net", "--mount", "sh", "-c"),
            f"mount -t sysfs sys /sys && ip link add {one[1]} type veth peer name {other[1]} && "
            f"ip link set {one[1]} up && {{ {run} a 0.9 {one[1]} absent & {run} b 0.9 {other[1]}; wait; "
            f"cat /sys/class/net/{other[1]}/flags; }}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "}" not in done.stdout:
        pytest.skip(f"not checked: {done.stderr.strip()[-100:]}")
    *answers, flags = done.stdout.splitlines()
    found = {name: port for answer in map(json.loads, answers) for name, port in answer["ports"].items()}
    assert found[one[1]]["heard"] == [list(other)] and found[other[1]]["heard"] == [list(one)]
    assert found[one[1]]["carrier"] and found[other[1]]["carrier"]
    assert found["absent"] == {"present": False, "carrier": False, "speed": None, "mtu": None, "heard": []}
    assert [json.loads(answer)["raised"] for answer in answers].count([other[1]]) == 1
    assert int(flags, 16) & probe.IFF_UP == 0
