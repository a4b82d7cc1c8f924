"""A wrong declaration is one line that names what there is instead."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from fake_host import FakeHost
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_config, ctx_host, ctx_inventory

from tasks import declaration, declared, site

with patch("gevent.monkey.patch_all"):  # as in test_fixtures.py
    from pyinfra_cli import cli
    from pyinfra_cli.util import parse_cli_arg

RECIPE = str(Path(__file__).resolve().parent / "recipe.yaml")


def load(
    count: int, at: int = 0, gone: tuple[str, ...] = (), limit: tuple[str, ...] = (), **data: Any
) -> site.Site:
    """What the host at place `at` loads; `gone` do not answer, `limit` are those of --limit."""
    hosts = [FakeHost(f"spark-{n}", **{"recipe": RECIPE, **data}) for n in range(1, count + 1)]
    for host in hosts:
        host.connected = host.name not in gone and (not limit or host.name in limit)
        host.state.is_host_in_limit = lambda host: not limit or host.name in limit
    with ctx_inventory.use(hosts), ctx_host.use(hosts[at]):  # type: ignore[arg-type]
        return declaration.load()


def mistake(count: int, **data: Any) -> str:
    with pytest.raises(site.SiteError) as caught:
        load(count, **data)
    assert isinstance(caught.value, PyinfraError)  # pyinfra shows it as one line
    assert caught.value.__traceback__ is None  # and finds no place in our source to put before it
    return str(caught.value)


@pytest.fixture(autouse=True)
def forget_recipes() -> Iterator[None]:
    declaration._recipe.cache_clear()
    yield
    declaration._recipe.cache_clear()


def test_a_password_in_pyinfras_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never its value. The option that asks for it on the terminal sets the same."""
    host = FakeHost("spark-1")
    host.state.config = SimpleNamespace(SUDO_PASSWORD="s3cr3t")
    assert [str(one) for one in declared.problems(host)] == [
        "config.py: found SUDO_PASSWORD; wanted no password in a file or an argument; take it out; set "
        "SPARKSTACK_SUDO_PASSWORD, or type it on the terminal"
    ]
    monkeypatch.setattr("sys.argv", ["pyinfra", "--same-sudo-password", "x.py", "deploy.py"])
    assert declared.problems(host) == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"api_key_file": "/no/key"},
            "api_key_file: found /no/key: no such file or directory; wanted a file with the key; correct "
            "group_data",
        ),
        (
            {"api_key_env": "NO_SUCH_KEY"},
            "api_key_env: found no variable NO_SUCH_KEY; wanted one with the key; export NO_SUCH_KEY, or "
            "correct group_data",
        ),
        (
            {"api_key_file": "x", "api_key_env": "X"},
            "group_data: found api_key_file and api_key_env; wanted one of the two; set the other to None",
        ),
    ],
)
def test_an_api_key_that_is_not_there(data: dict[str, str], line: str) -> None:
    pins = {"image_bases": {"sparkstack-lab/vllm-cpu": f"sparkstack-lab/vllm-cpu@sha256:{'0' * 64}"}}
    assert mistake(1, **data, **pins) == line


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
    assert line.startswith(f"{path}:{number}: found unknown key 'serve.prot'; wanted one of: engine, ")


def test_three_hosts_need_a_kind() -> None:
    line = mistake(3)
    assert line == (
        "fabric: found 3 hosts and no kind; wanted ring, switch or auto; set `fabric` in group_data"
    )


def test_hosts_of_a_ring_need_addresses() -> None:
    """vLLM listens on them, and not on names."""
    assert mistake(3, fabric={"kind": "ring"}) == (
        "spark-1: found management address 'spark-1'; wanted an IP address for a ring; set `address` in the "
        "inventory"
    )
    assert load(3, fabric={"kind": "ring"}, address="10.0.0.1").fabric.kind == "ring"
    assert load(3, fabric={"kind": "switch"}).fabric.kind == "switch"


def test_hosts_with_different_fabrics() -> None:
    hosts = [FakeHost(f"spark-{n}", recipe=RECIPE) for n in (1, 2)]
    hosts[1].data.fabric = {"kind": "pair", "port": 1}
    with ctx_inventory.use(hosts), ctx_host.use(hosts[0]), pytest.raises(site.SiteError) as caught:  # type: ignore[arg-type]
        declaration.load()
    assert str(caught.value) == (
        "spark-2: found another `fabric` than spark-1 has; wanted one for all hosts; set it in group_data, "
        "not for a host"
    )


def test_ports_of_a_host_by_other_names() -> None:
    hosts = [FakeHost(f"spark-{n}", recipe=RECIPE) for n in (1, 2)]
    hosts[1].data.fabric_ports = {0: [["cx0", "mlx5_0"], ["cx1", "mlx5_1"]]}
    with ctx_inventory.use(hosts), ctx_host.use(hosts[1]):  # type: ignore[arg-type]
        here = declaration.load()
    assert [i.name for i in here.interfaces] == ["cx0", "cx1"]
    hosts[1].data.fabric_ports = {0: [["cx0", "mlx5_0"]]}
    with ctx_inventory.use(hosts), ctx_host.use(hosts[0]), pytest.raises(site.SiteError) as caught:  # type: ignore[arg-type]
        declaration.load()
    assert "found fabric_ports = " in str(caught.value) and "\n" not in str(caught.value)


def test_a_recipe_with_an_empty_gid_index(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = Path(RECIPE).read_text()
    path.write_text(text.replace("env: {VLLM_NO_USAGE_STATS: \"1\"}", "env: {NCCL_IB_GID_INDEX: ''}"))
    line = mistake(2, recipe=str(path))
    assert line == (
        "recipe test-recipe: found NCCL_IB_GID_INDEX without a value; wanted a value, or no such line; "
        "remove it from serve.env"
    )


def test_a_recipe_that_drains_longer_than_the_site(tmp_path: Path) -> None:
    text = Path(RECIPE).read_text().replace("options: {", "options: {shutdown_timeout: 300, ")
    path = tmp_path / "r.yaml"
    path.write_text(text)
    assert mistake(1, recipe=str(path)).endswith(
        "found serve.options.shutdown_timeout 300; wanted at most 25, the site's drain_s, after which the "
        "engine is killed; raise drain_s in group_data, or lower it"
    )
    assert load(1, recipe=str(path), drain_s=300).argv(0).count("--shutdown-timeout") == 1


def test_a_command_at_all_interfaces_against_the_site(tmp_path: Path) -> None:
    about = yaml.safe_load(Path(RECIPE).read_text())
    about["serve"] = {"engine": "command", "command": "srv --host 0.0.0.0 --port {port}"}
    path = tmp_path / "open.yaml"
    path.write_text(yaml.safe_dump(about))
    assert mistake(1, recipe=str(path)) == (
        f"recipe {about['name']}: found host 0.0.0.0, all interfaces; wanted serve_bind (127.0.0.1) alone; "
        "write {bind} in serve.command in its place, or set serve_bind"
    )
    assert load(1, recipe=str(path), serve_bind="0.0.0.0").bind == "0.0.0.0"


def test_unknown_kind() -> None:
    line = mistake(3, fabric={"kind": "rign"})
    assert line.startswith("topology: found 'rign'; wanted one of: single, pair, ring, switch, auto; ")
    assert line.endswith("did you mean 'ring'?")


def test_too_many_hosts_for_the_recipe() -> None:
    line = mistake(5, fabric={"kind": "switch"})
    assert line == "recipe test-recipe: found 5 hosts; wanted 1 to 4; change the inventory or the recipe"


def test_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(site.SiteError) as caught:
        declaration.stages("docker,sevre")
    line = str(caught.value)
    assert line.startswith("stage: found 'sevre'; wanted one of: preflight, host, docker, ")
    assert line.endswith("did you mean 'serve'?")


@pytest.mark.parametrize("typed", ["5", "true", "false", "2.5", "[1]", ""])
def test_a_stage_that_pyinfra_reads_as_another_type_is_an_unknown_one(typed: str) -> None:
    with pytest.raises(site.SiteError) as caught:
        declaration.stages(parse_cli_arg(typed))
    line = str(caught.value)
    assert line.lower().startswith(f"stage: found '{typed}'; wanted one of: preflight, host, docker, ")
    assert line.endswith("; name one of these")


@pytest.mark.parametrize(
    ("gone", "names"), [(("spark-2",), "spark-2"), (("spark-1", "spark-3"), "spark-1, spark-3")]
)
def test_a_host_without_connection_stops_the_run(gone: tuple[str, ...], names: str) -> None:
    line = mistake(3, gone=gone, fabric={"kind": "switch"}, recipe="lab-tyni")
    assert line == (
        f"{names}: found no connection; wanted all hosts of the inventory; check power, cable and ssh, "
        "or name the others with --limit"
    )


def test_a_host_that_is_left_out_needs_no_connection() -> None:
    here = load(2, limit=("spark-1",))
    assert (here.fabric.kind, [host.name for host in here.hosts]) == ("pair", ["spark-1", "spark-2"])


def test_a_host_that_is_asked_for_needs_one() -> None:
    assert mistake(3, limit=("spark-1", "spark-2"), gone=("spark-2",)).startswith(
        "spark-2: found no connection;"
    )


def test_a_failed_host_ends_the_run_unasked() -> None:
    """pyinfra asks "continue?" where this says False."""
    here = load(2)
    assert here.host.state.should_raise_failed_hosts(here.host.state) is True


def test_a_secret_among_the_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(Path(RECIPE).read_text().replace("{max_model_len: 1024}", "{api_key: s3cr3t}"))
    line = mistake(1, recipe=str(path))
    assert line == (
        "recipe test-recipe: found api_key among the options; wanted no secrets in a recipe; "
        "remove it; arguments can be read by every user of a host"
    )


def test_a_combination_that_is_known_to_be_harmful_is_refused(tmp_path: Path) -> None:
    # As `recipe check` calls it an error, with its reason.
    path = tmp_path / "mine.yaml"
    text = Path(RECIPE).read_text().replace("org/model", "Qwen/Qwen3.5-9B")
    harmful = "options: {kv_cache_dtype: turboquant_k8v4, speculative_config: {method: mtp}, "
    path.write_text(text.replace("options: {", harmful))
    line = mistake(1, recipe=str(path))
    assert "found turboquant_k8v4 together with MTP on a hybrid model; wanted one of the two" in line
    assert "(the output degenerates without any error; source: vllm#53180" in line
    path.write_text(path.read_text() + "accept: {turboquant-mtp: measured here}\n")
    declaration._recipe.cache_clear()
    load(1, recipe=str(path))


def test_stages_come_in_the_order_of_a_run() -> None:
    assert declaration.stages("serve, docker") == ["docker", "serve"]
    assert declaration.stages(None)[0] == "preflight"


@pytest.mark.parametrize(("count", "kind"), [(1, "single"), (2, "pair")])
def test_one_or_two_hosts_need_no_kind(count: int, kind: str) -> None:
    here = load(count, at=count - 1)
    assert (here.fabric.kind, here.rank, here.is_head) == (kind, count - 1, count == 1)


def test_all_ranks_agree_on_the_ids(sites: Any) -> None:
    head, worker = sites(2)
    assert head.release_id == worker.release_id
    assert head.argv(1) == worker.argv(1) != head.argv(0)


def test_a_run_that_nobody_can_say_yes_to_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script, cron or CI without -y: pyinfra asks, and there is no terminal."""

    def nobody(message: str) -> bool:
        raise EOFError("EOF when reading a line")

    monkeypatch.setattr("sys.argv", ["pyinfra", "x.py", "deploy.py"])
    monkeypatch.setattr(cli, "_do_confirm", nobody)
    monkeypatch.setattr(cli, "connect_all", cli.connect_all)  # put back what the file changes
    with ctx_config.use(SimpleNamespace()):  # type: ignore[arg-type]
        runpy.run_path(str(Path(__file__).parents[2] / "config.py"))
    with pytest.raises(site.SiteError) as caught:
        cli._do_confirm("Detected changes displayed above, skip this step with -y")
    assert str(caught.value) == "found nobody at a terminal to say yes; wanted a yes; run again with -y"
    monkeypatch.setattr(cli, "_do_confirm", lambda message: True)
    with ctx_config.use(SimpleNamespace()):  # type: ignore[arg-type]
        runpy.run_path(str(Path(__file__).parents[2] / "config.py"))
    assert cli._do_confirm("?") is True
