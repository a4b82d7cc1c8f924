"""`recipe render` shows what a rank gets, but for what only an inventory or a build knows."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkstack import launch, nccl
from sparkstack.check import check
from sparkstack.launch import env_file
from sparkstack.render import render
from tasks.site import Site

RECIPE = Path(__file__).resolve().parent / "recipe.yaml"


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_rendered_is_what_is_deployed(sites: Callable[..., list[Site]], count: int) -> None:
    wish = check(RECIPE).launch
    assert wish is not None
    for site, shown in zip(sites(count), render(wish, count), strict=True):
        site.host.data.accelerator = "gpu"
        env = site.rank_env(["rocep1s0f0"])
        known = {
            "<HEAD_ADDRESS>": site.head_fabric_address,
            "<HOST_ADDRESS>": nccl.host_address(site.fabric, site.host.name, ""),
            "<MASTER_PORT>": str(launch.rendezvous_port(site.release_id, site.recipe.serve.port)),
            "<BIND_ADDRESS>": site.bind,
            "<IMAGE_ID>": site.image_id,
            "<RELEASE_ID>": site.release_id,
            "<FABRIC_INTERFACE>": env.get("NCCL_SOCKET_IFNAME", ""),
            "<RDMA_DEVICES>": "rocep1s0f0",
        }
        assert set(shown.placeholders) <= set(known)
        files = {path.rpartition("/")[2]: text for path, text in shown.files.items()}
        for name, value in known.items():
            files = {path: text.replace(name, value) for path, text in files.items()}
        made = {file.path.rpartition("/")[2]: file.content.decode() for file in site.release_files}
        assert shlex.split(files["run"]) == shlex.split(made["run"])
        assert files["serve.env"] == made["serve.env"]
        assert files["fabric.env"] == env_file(env)
        assert files["sparkstack-serve.service"] == site.unit_file.content.decode()
