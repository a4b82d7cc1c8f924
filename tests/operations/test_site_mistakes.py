"""A wrong declaration is one line that names what there is instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_host, ctx_inventory

from tasks import site

RECIPE = str(Path(__file__).resolve().parent / "recipe.yaml")


def load(count: int, at: int = 0, **data: Any) -> site.Site:
    hosts = [FakeHost(f"spark-{n}", **{"recipe": RECIPE, **data}) for n in range(1, count + 1)]
    with ctx_inventory.use(hosts), ctx_host.use(hosts[at]):  # type: ignore[arg-type]
        return site.load()


def mistake(count: int, **data: Any) -> str:
    with pytest.raises(site.SiteError) as caught:
        load(count, **data)
    assert isinstance(caught.value, PyinfraError)  # pyinfra shows it without a traceback
    return str(caught.value)


@pytest.fixture(autouse=True)
def forget_recipes() -> Iterator[None]:
    site._recipe.cache_clear()
    yield
    site._recipe.cache_clear()


def test_unknown_recipe_lists_the_known_ones() -> None:
    line = mistake(1, recipe="lab-tyni")
    known = sorted(path.stem for path in (site.ROOT / "recipes").glob("*.yaml"))
    assert line.startswith("recipe: found 'lab-tyni'; wanted ")
    assert all(name in line for name in known) and "lab-tiny" in known
    assert line.endswith("; correct `recipe` in group_data")


def test_recipe_that_is_no_recipe_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(Path(RECIPE).read_text().replace("port: 8000", "prot: 8000"))
    line = mistake(1, recipe=str(path))
    number = path.read_text().splitlines().index("  prot: 8000") + 1
    assert line.startswith(f"{path}:{number}: found unknown key 'serve.prot'; wanted one of: engine, port, ")


def test_three_hosts_need_a_kind() -> None:
    line = mistake(3)
    assert line == "fabric: found 3 hosts and no kind; wanted ring or switch; set `fabric` in group_data"


def test_unknown_kind() -> None:
    line = mistake(3, fabric={"kind": "rign"})
    assert line.startswith("topology: found 'rign'; wanted one of: single, pair, ring, switch; ")
    assert line.endswith("did you mean 'ring'?")


def test_too_many_hosts_for_the_recipe() -> None:
    line = mistake(5, fabric={"kind": "switch"})
    assert line == "recipe test-recipe: found 5 hosts; wanted 1 to 4; change the inventory or the recipe"


def test_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(site.SiteError) as caught:
        site.stages("docker,sevre")
    line = str(caught.value)
    assert line.startswith("stage: found 'sevre'; wanted one of: preflight, host, docker, ")
    assert line.endswith("did you mean 'serve'?")


def test_stages_come_in_the_order_of_a_run() -> None:
    assert site.stages("serve, docker") == ["docker", "serve"]
    assert site.stages(None)[0] == "preflight"


@pytest.mark.parametrize(("count", "kind"), [(1, "single"), (2, "pair")])
def test_one_or_two_hosts_need_no_kind(count: int, kind: str) -> None:
    here = load(count, at=count - 1)
    assert (here.fabric.kind, here.rank, here.is_head) == (kind, count - 1, count == 1)


def test_all_ranks_agree_on_the_ids(sites: Any) -> None:
    head, worker = sites(2)
    assert head.release_id == worker.release_id
    assert head.argv(1) == worker.argv(1) != head.argv(0)
