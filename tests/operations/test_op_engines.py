"""Engines other than vLLM, and the endpoint's API key, as operations see them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_host import commands_of, follow, shell_lines
from pyinfra.api import StringCommand

from tasks import image, link_nccl, serve
from tasks.facts import FileStates, ImageId, Text
from tasks.site import Site

Sites = Callable[..., list[Site]]
KEY = "sesame-open-123"


def of_engine(site: Site, **served: Any) -> Site:
    settings = site.recipe.serve.model_copy(update={"options": {}, **served})
    return replace(site, recipe=site.recipe.model_copy(update={"serve": settings}))


@pytest.fixture
def light(sites: Sites) -> Site:
    (site,) = sites(1)
    return of_engine(site, engine="command", command="srv --port {port}")


# The image.


def test_an_image_without_our_plugin_is_built_and_not_proved(light: Site) -> None:
    light.host.facts = {ImageId: None}
    lines = commands_of(image.built, light.host, light)
    writes = [line for line in shell_lines(lines) if ".whl" in line]
    assert writes == [] and light.image_tag == f"sparkstack/command:{light.image_id}"
    text = light.dockerfiles["Dockerfile"]
    assert "COPY" not in text and light.image_id in text
    light.host.facts = {ImageId: "sha256:0a"}  # no label is asked for
    assert commands_of(image.built, light.host, light) == []
    assert light.host.noops == [f"{light.image_tag} is built"]


def test_an_image_that_is_its_base_is_compared_with_it(light: Site) -> None:
    """`docker tag other sparkstack/command:ID` is mended: the tag is all that says which image it is."""
    pulled = light.recipe.image.model_copy(update={"build": "pull", "build_args": {}})
    site = replace(light, recipe=light.recipe.model_copy(update={"image": pulled}))
    assert site.dockerfiles == {}
    mine, base = {"tag": site.image_tag}, {"tag": site.image_base}
    assert image.asks(site)[:2] == [(ImageId, mine), (ImageId, base)]
    for base_id, changes in (("sha256:0a", False), (None, False), ("", False), ("sha256:0b", True)):
        ids = {site.image_tag: "sha256:0a", site.image_base: base_id}
        site.host.facts = {ImageId: lambda tag, ids=ids: ids[tag]}
        assert bool(commands_of(image.built, site.host, site)) is changes


def test_the_release_says_that_nothing_looked_into_the_image(light: Site) -> None:
    light.host.facts = {Text: None}
    (command,) = commands_of(image.recorded, light.host, light)
    assert "image-check.json" in command.get_raw_value()
    said = image.not_checked(light)
    assert said["ok"] is None and [line["status"] for line in said["lines"]] == ["not checked"]
    light.host.facts = {Text: json.dumps(said)}
    assert commands_of(image.recorded, light.host, light) == []


def test_another_engine_s_image_has_another_name(sites: Sites) -> None:
    (site,) = sites(1)
    atlas = of_engine(site, engine="atlas")
    assert atlas.image_tag.startswith("sparkstack/atlas:") and atlas.image_id != site.image_id
    assert "--entrypoint" not in atlas.argv(0) and "--entrypoint" in site.argv(0)


def test_nccl_is_not_asked_in_an_image_that_need_not_have_torch(sites: Sites) -> None:
    head, _ = sites(2, accelerator="gpu")
    site = of_engine(head, engine="command", command="srv {rank}")
    site.host.facts = {}
    assert commands_of(link_nccl.collective, site.host, site) == []
    assert site.host.noops == [
        "NCCL's all_gather is not checked: the image of engine command need not have torch"
    ]


# The key.


@pytest.fixture
def keyed(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    monkeypatch.setenv("THE_KEY", KEY)
    return sites(2, api_key_env="THE_KEY")


def test_the_key_is_in_root_s_files_and_nowhere_else(keyed: list[Site]) -> None:
    for site in keyed:
        secrets = {file.path: file for file in site.secret_files}
        assert list(secrets) == ["/etc/sparkstack/secrets/api.env", "/etc/sparkstack/secrets/api.key"]
        assert {file.mode for file in secrets.values()} == {"600"}
        texts = [json.dumps([site.argv(site.rank), site.about]), site.ready_script(site.rank)]
        texts += [file.content.decode() for file in (site.unit_file, *site.release_files)]
        assert not any(KEY in text for text in texts)
        assert "/etc/sparkstack/secrets/api.env" in site.argv(site.rank)
    assert "--api-key-file /etc/sparkstack/secrets/api.key" in keyed[0].ready_script(0)
    asked = [keyed[0].host, keyed[0]]
    keyed[0].host.facts = {FileStates: {}}
    commands = commands_of(serve.api_key_known, *asked)
    assert len(commands) == 2 and all(isinstance(one, StringCommand) for one in commands)
    assert not any(KEY in one.get_raw_value() for one in commands)
    keyed[0].host.facts = {FileStates: {file.path: file.wanted() for file in keyed[0].secret_files}}
    assert commands_of(serve.api_key_known, *asked) == []


def test_another_key_is_another_release(sites: Sites, tmp_path: Path) -> None:
    file = tmp_path / "key"
    ids = set()
    for key in (KEY, KEY + "4"):
        file.write_text(key)
        ids.add(sites(1, api_key_file=str(file))[0].release_id)
    assert len({*ids, sites(1)[0].release_id}) == 3


def test_who_asks_the_endpoint_has_the_key(keyed: list[Site], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(serve, "host", keyed[0].host)
    monkeypatch.setattr(keyed[0].host, "get_fact", lambda fact, **words: asked.append(words) or True)
    assert serve.completes(keyed[0])
    assert asked[0]["key_file"] == "/etc/sparkstack/secrets/api.key"


def test_a_file_with_the_key_for_engines_that_take_one(keyed: list[Site]) -> None:
    light = of_engine(keyed[0], engine="command", command="srv {rank} {api_key_file}")
    mount = "type=bind,src=/etc/sparkstack/secrets/api.key,dst=/run/sparkstack/api.key,readonly"
    assert mount in light.argv(0) and "srv 0 /run/sparkstack/api.key" in shlex.join(
        ["srv", *light.argv(0)[-2:]]
    )
    assert mount not in keyed[0].argv(0)  # vLLM reads a variable


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "0:0::0"])
def test_without_a_key_nothing_is_written(sites: Sites, bind: str) -> None:
    (site,) = sites(1)
    site.host.facts = {}
    assert commands_of(serve.api_key_known, site.host, site) == []
    assert site.host.shown == []
    (site,) = sites(1, serve_bind=bind)
    site.host.facts = {}
    site.host.state.is_executing = False
    assert follow(commands_of(serve.api_key_known, site.host, site), site.host)
    assert site.host.shown == [
        f"spark-1: found the endpoint at {bind}, all interfaces, and no API key; wanted a key, or one "
        "address; set api_key_file, or serve_bind"
    ]


def test_a_served_name_is_one_word_to_who_asks_whether_it_serves(sites: Sites) -> None:
    """The script is a shell's: a blank, a quote or a `$` in the name stays what it is."""
    (site,) = sites(1)
    name = "My model's 3 (big) $(reboot)"
    odd = replace(site, recipe=site.recipe.model_copy(update={"served_model_name": name}))
    line = next(line for line in odd.ready_script(0).splitlines() if "onhost ready" in line)
    words = shlex.split(line)
    assert words[words.index("--model") + 1] == name
    assert words[words.index("--url") + 1] == odd.endpoint
