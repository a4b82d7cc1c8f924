"""The lab without Docker: labels, addresses, keys, conda stand-in, inventory, whose daemon it is."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
import yaml
from click.testing import CliRunner
from pyinfra.api.exceptions import PyinfraError

from lab import content, engine, images, keys, network, nodes, wheelhouse
from lab import lab as virtual
from lab.paths import CHECKOUT, LABEL, ROOT, LabError, digest, labels
from sparkstack import lab_cli


def test_labels_name_the_checkout() -> None:
    assert labels(more="x") == {"sparkstack.lab": CHECKOUT, "sparkstack.lab.checkout": str(ROOT), "more": "x"}
    assert digest("a", "bc") != digest("ab", "c")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_the_images_tag_is_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    base, spark = images.tags()
    files = images.context_files()
    assert {"Dockerfile", "lab-nics", "daemon.json"} <= files.keys()
    monkeypatch.setattr(images, "context_files", lambda: {**files, "daemon.json": b"{}"})
    assert (images.tags()[0], images.tags()[1] == spark) == (base, False)
    assert {"features", "log-driver"} <= json.loads(files["daemon.json"]).keys(), (
        "something to keep when merging"
    )


def test_the_management_network_is_where_no_route_leads() -> None:
    assert network.free(["default", "192.0.2.0/24"]) == network.CANDIDATES
    left = ["10.213.0.0/24", "10.213.8.7"]  # a bridge that an ended dockerd left, and a single host
    assert network.free(left) == network.CANDIDATES[2:]


def test_a_wider_route_is_second_best() -> None:
    assert network.free(["10.0.0.0/8"]) == network.CANDIDATES
    assert network.free(["10.213.0.0/17"])[0] == "10.213.128.0/24"
    assert network.free(["10.213.0.0/17"])[-1] == "10.213.120.0/24"


def test_no_subnet_left_is_no_candidate() -> None:
    assert network.free(network.CANDIDATES) == []


def test_addresses_are_the_same_at_every_start() -> None:
    subnet = network.CANDIDATES[0]
    assert network.outside_address(subnet) == "10.213.0.2"
    assert [network.node_address(subnet, number) for number in (1, 2)] == ["10.213.0.11", "10.213.0.12"]


@pytest.mark.parametrize("version", [1, 2])
def test_options_of_a_node(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: version == 2)
    options = nodes.node_options("image", 2, network.CANDIDATES[0], "nics")
    assert (options["name"], options["address"], options["host"]["shm_size"]) == (
        "spark-2",
        "10.213.0.12",
        "2g",
    )
    assert options["host"]["binds"]["sparkstack-lab-spark-2-docker"]["bind"] == "/var/lib/docker"
    assert options["host"]["cgroupns"] == {1: "host", 2: "private"}[version]
    assert ("/sys/fs/cgroup" in options["host"]["binds"]) is (version == 1)
    assert "/sbin/init" in options["container"]["command"][-1]


def test_keys_are_what_paramiko_reads(tmp_path: Path) -> None:
    private, public = keys.pair("lab")
    keys.write_private(tmp_path / "id", private, public)
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o600
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "id"))
    assert public.split()[1].decode() == key.get_base64()
    (tmp_path / "known").write_text(keys.known_hosts({"10.0.0.1": public}))
    pinned = paramiko.HostKeys(str(tmp_path / "known"))
    assert pinned.check("10.0.0.1", key) and not pinned.check("10.0.0.2", key)


def test_a_pid_that_is_no_dockerd_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PIDFILE", tmp_path / "pid")
    assert engine.ours() is None
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert engine.ours() is None
    assert engine.stop() is False


def test_another_checkouts_running_lab_is_named() -> None:
    marks = {LABEL: "0" * 12, "sparkstack.lab.checkout": "/there"}
    other = SimpleNamespace(name="spark-1", labels=marks, status="running")
    client: Any = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [other]))
    with pytest.raises(LabError) as refused:
        virtual._other_checkouts(client)
    assert str(refused.value) == "the lab of /there is up; end it there first: sparkstack lab down"


def test_the_environments_pins_are_among_the_labs_wheels() -> None:
    parts = yaml.safe_load((ROOT / "files/environment.yml").read_text())["dependencies"]
    pins = [pin for part in parts if isinstance(part, dict) for pin in part["pip"]]
    have = wheelhouse.requirements(wheelhouse.ONHOST)
    assert {tuple(wheelhouse.normal(pin).split("==")) for pin in pins} - {
        (name, wheelhouse.normal(version)) for name, version in have
    } == set()


def test_offered_wheels_are_exactly_the_fetched_ones(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "offered"
    for at, name in ((home, "a-1-py3-none-any.whl"), (folder, "old-1-py3-none-any.whl")):
        at.mkdir()
        (at / name).write_text("x")
    for _ in range(2):
        content._offer(home, folder)
        assert [wheel.name for wheel in folder.iterdir()] == ["a-1-py3-none-any.whl"]


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    done = subprocess.run(
        ["bash", str(content.CONDA), "-b", "-u", "-p", str(tmp_path / "conda")],
        capture_output=True,
        check=True,
    )
    assert b"stand-in" in done.stdout
    return tmp_path / "conda/bin/conda"


def ask(conda: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run([str(conda), *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_conda_stand_in_says_what_it_is(conda: Path) -> None:
    assert ask(conda, "--version") == (0, "conda 0-lab (the sparkstack lab's stand-in, not conda)\n")
    assert json.loads(ask(conda, "env", "list", "--json")[1]) == {"envs": [str(conda.parent.parent)]}


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ["install", "numpy"],
            2,
            "conda: the lab's stand-in does not know: conda install numpy; see conda --help",
        ),
        (["env", "create", "--solver=x"], 2, "conda: the lab's stand-in does not know the option --solver=x"),
        (["env", "create", "-f", "x"], 2, "conda: --prefix is needed; see conda --help"),
        (
            ["run", "-p", "/absent", "true"],
            1,
            "conda: EnvironmentLocationNotFound: Not a conda environment: /absent",
        ),
    ],
)
def test_conda_stand_in_refuses(conda: Path, words: list[str], status: int, said: str) -> None:
    found = ask(conda, *words)
    assert found[0] == status
    assert said in found[1]


def test_the_installer_refuses_what_stands(tmp_path: Path) -> None:
    line = ["bash", str(content.CONDA), "-b", "-p", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        f"ERROR: File or directory already exists: '{tmp_path}'",
    )


STATE = {
    "nodes": [{"name": "spark-1", "container": "c", "address": "10.213.0.11"}],
    "user": "nvidia",
    "key": ".lab/id_ed25519",
    "known_hosts": ".lab/known_hosts",
    "registry": "http://10.213.0.2:5000",
    "hub": "http://10.213.0.2:8080",
    "files": "http://10.213.0.2:8000",
    "image_base": {"a": "a@sha256:0"},
    "conda": {"url": "u", "sha256": "s"},
}


def inventory(tmp_path: Path, state: dict[str, Any] | None) -> dict[str, Any]:
    """Runs a copy of inventories/lab.py beside a state of our own."""
    for folder in ("inventories", ".lab"):
        (tmp_path / folder).mkdir()
    (tmp_path / "inventories/lab.py").write_text((ROOT / "inventories/lab.py").read_text())
    if state is not None:
        (tmp_path / ".lab/state.json").write_text(json.dumps(state))
    return runpy.run_path(str(tmp_path / "inventories/lab.py"))


def test_the_inventory_is_the_state(tmp_path: Path) -> None:
    (host,), site = inventory(tmp_path, STATE)["sparks"]
    assert host[0] == "spark-1"
    assert host[1]["ssh_hostname"] == "10.213.0.11"
    assert host[1]["ssh_known_hosts_file"] == str(tmp_path / ".lab/known_hosts")
    assert host[1]["ssh_strict_host_key_checking"] == "yes"
    assert site["docker_mirrors"] == ["http://10.213.0.2:5000"]
    assert site["pip_environment"] == {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "http://10.213.0.2:8000/wheels/",
        "PIP_TRUSTED_HOST": "10.213.0.2",
    }


def test_the_inventory_without_a_lab_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PyinfraError, match=r"^the lab is not up; start it with: sparkstack lab up$"):
        inventory(tmp_path, None)


def test_commands_end_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LabError("found a; wanted b")

    monkeypatch.setattr(virtual, "up", fail)
    result = CliRunner().invoke(lab_cli.lab, ["up"])
    assert (result.exit_code, result.output) == (1, "Error: found a; wanted b\n")
    monkeypatch.setattr(virtual, "read_state", lambda: None)
    result = CliRunner().invoke(lab_cli.lab, ["ssh", "spark-1"])
    assert result.output == "Error: the lab is not up; start it with: sparkstack lab up\n"
