"""Every example inventory loads as pyinfra loads it, and makes a site; only its addresses are swapped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyinfra.api import Config, State
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from tasks import declaration, site, wheels

# Importing pyinfra's command line replaces threads and sockets by gevent's, for all other tests too.
with patch("gevent.monkey.patch_all"):
    from pyinfra_cli.inventory import make_inventory

HERE = Path(__file__).resolve().parent
EXAMPLES = sorted(path for path in (site.ROOT / "inventories").glob("*.py") if path.stem[:3] != "lab")
KINDS = {
    "single": ("single", 1),
    "pair": ("pair", 2),
    "ring": ("ring", 4),
    "switch": ("switch", 4),
    "local": ("single", 1),
    "local_pair": ("pair", 2),
}
# What a lab has in place of real hardware.
LAB = {"accelerator": "cpu", "recipe": str(HERE / "recipe.yaml"), "accepted_systems": ["debian:12"]}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    wheel = HERE / "fixtures" / "sparkstack_vllm-0.1.0-py3-none-any.whl"
    monkeypatch.setattr(wheels, "build", lambda source: (wheel, "0123456789ab"))
    monkeypatch.chdir(site.ROOT)
    declaration._recipe.cache_clear()
    yield
    declaration._recipe.cache_clear()


def swapped(path: Path, folder: Path) -> Path:
    """A copy of the inventory with the lab's addresses; a copy has the name, which is a group, too."""
    text = re.sub(r"192\.0\.2\.1(\d)", r"172.29.0.1\1", path.read_text())
    (folder / path.name).write_text(text)
    return folder / path.name


def load(path: Path, **data: Any) -> list[site.Site]:
    """The site as each host of the inventory sees it."""
    state = State(check_for_changes=False)
    state.cwd = str(site.ROOT)
    sites = []
    with ctx_state.use(state), ctx_config.use(Config()):
        inventory = make_inventory(str(path), cwd=state.cwd, override_data={**LAB, **data})
        state.init(inventory, Config())
        for host in inventory:
            host.connected = True  # nobody is asked anything here
        with ctx_inventory.use(inventory):
            for host in inventory:
                with ctx_host.use(host):
                    sites.append(declaration.load())
    return sites


def test_every_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_makes_a_site(path: Path, tmp_path: Path) -> None:
    sites = load(swapped(path, tmp_path))
    kind, count = KINDS[path.stem]
    assert [(one.fabric.kind, one.rank) for one in sites] == [(kind, rank) for rank in range(count)]
    assert {one.release_id for one in sites} == {sites[0].release_id}
    addresses = [site.management_address(one.host) for one in sites]
    assert addresses == [f"172.29.0.1{n}" for n in range(1, count + 1)]
    assert all(one.host.data.get("_sudo") for one in sites), "group_data/all.py was not read"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_addresses_of_examples_are_nobodys(path: Path) -> None:
    for address in re.findall(r"\d+\.\d+\.\d+\.\d+", path.read_text()):
        assert re.match(r"192\.0\.2\.|192\.168\.|10\.20\.|127\.0\.0\.1", address), address


def test_the_head_of_a_mixed_pair_is_found_over_the_fabric(tmp_path: Path) -> None:
    head, worker = load(swapped(site.ROOT / "inventories" / "local_pair.py", tmp_path))
    assert head.head_fabric_address == worker.head_fabric_address == head.interfaces[0].address
    assert "@local" not in " ".join([*head.argv(0), *head.argv(1)])


def test_this_machine_without_an_address(tmp_path: Path) -> None:
    inventory = tmp_path / "mine.py"
    inventory.write_text('sparks = ["@local"]\n')
    (alone,) = load(inventory)
    assert alone.endpoint == "http://127.0.0.1:8000"
    with pytest.raises(site.SiteError) as caught:
        load(inventory, serve_bind="management")
    assert str(caught.value) == (
        "@local: found no address; wanted the one by which others reach it; set `address` in the inventory"
    )


def test_an_endpoint_listens_on_an_address_and_not_on_a_name(tmp_path: Path) -> None:
    """To itself a host's name may be 127.0.1.1, and then nobody else would reach what listens on it."""
    inventory = tmp_path / "mine.py"
    inventory.write_text('sparks = [("spark-1", {})]\n')
    assert load(inventory, serve_bind="127.0.0.1")[0].bind == "127.0.0.1"
    with pytest.raises(site.SiteError) as caught:
        load(inventory, serve_bind="management")
    assert str(caught.value) == (
        "spark-1: found management address 'spark-1'; wanted an IP address, for the endpoint listens on it; "
        "set `address` in the inventory, or serve_bind to an address"
    )
    other = tmp_path / "other.py"  # pyinfra reads a file once
    other.write_text('sparks = [("spark-1", {"address": "192.0.2.7"})]\n')
    assert load(other, serve_bind="management")[0].bind == "192.0.2.7"
