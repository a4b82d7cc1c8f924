"""What all tests of operations share: no real waiting, no wheel builds, and a cluster of fake hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from pyinfra.context import ctx_host

from sparkstack import topology
from sparkstack.recipe import load_recipe
from tasks import fabric_facts, peers, preflight, undo, wheels
from tasks.site import Site

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sleeping takes no time but moves the clock, so that every wait with a limit ends; and no test that
    runs shell on this machine notes anything in its /etc."""
    monkeypatch.setattr(undo, "ROOT", str(tmp_path_factory.mktemp("etc") / "sparkstack" / "undo"))
    slept = [0.0]
    plain = time.monotonic
    monkeypatch.setattr("time.sleep", lambda seconds: slept.append(slept.pop() + seconds))
    monkeypatch.setattr("time.monotonic", lambda: plain() + slept[0])
    monkeypatch.chdir(HERE)  # fixtures name files beside them
    monkeypatch.setattr(preflight, "_asked", {})
    monkeypatch.setattr(fabric_facts, "_known", {})
    monkeypatch.setattr(peers, "_written", set())


@pytest.fixture(autouse=True)
def no_host_is_left() -> Iterator[None]:
    """pyinfra's `ctx_host.use` keeps its host where an exception leaves it, for every test that follows."""
    yield
    ctx_host.reset()  # type: ignore[no-untyped-call]


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Site]]:
    """`sites(2, **data)`: the site as each of two fake hosts sees it, the head first."""
    wheel = HERE / "fixtures" / "sparkstack_vllm-0.1.0-py3-none-any.whl"
    monkeypatch.setattr(wheels, "build", lambda source: (wheel, "0123456789ab"))

    def make(count: int, **data: Any) -> list[Site]:
        data = {"accelerator": "cpu", **data}
        hosts = [
            FakeHost(f"spark-{n}", ssh_hostname=f"10.0.0.{n}", _sudo=True, **data)
            for n in range(1, count + 1)
        ]
        kind = {1: "single", 2: "pair"}.get(count, "switch")
        plan = topology.plan(kind, [host.name for host in hosts])
        recipe = load_recipe(HERE / "recipe.yaml")
        return [Site(host, rank, hosts, recipe, plan) for rank, host in enumerate(hosts)]

    return make
