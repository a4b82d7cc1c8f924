"""Every operation is declared on every host, in one order; where it is not that host's, it does nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from fake_host import commands_of
from pyinfra.context import ctx_host

from tasks import (
    benchmark,
    checkpoint,
    cleaning,
    fabric,
    image,
    link_gate,
    link_nccl,
    preflight,
    serve,
    share,
)
from tasks.site import Site

Sites = Callable[..., list[Site]]
HEADS = [
    preflight.hosts_agree,
    fabric.cabled,
    link_gate.measured,
    image.built,
    link_nccl.collective,
    checkpoint.hub_token,
    checkpoint.staged,
    share.closed,
    serve.activated,
    benchmark.measured,
    benchmark.judged,
    cleaning.collected,
]
WORKERS = [image.received, checkpoint.received]


@pytest.mark.parametrize(
    ("operation", "at"),
    [*((one, 1) for one in HEADS), *((one, 0) for one in WORKERS)],
    ids=lambda value: f"{value.__module__}.{value.__name__}" if callable(value) else "",
)
def test_what_is_another_hosts_asks_and_does_nothing(sites: Sites, operation: Any, at: int) -> None:
    site = sites(2, hub_token_file="~/token")[at]
    site.host.facts = {}  # asking for one would be an error
    assert commands_of(operation, site.host, site) == []
    assert site.host.noops == site.host.shown == []


@pytest.mark.parametrize(
    ("stage", "deploy", "names"),
    [
        (preflight, "deploy_preflight", ["host can carry the recipe", "hosts agree with one another"]),
        (
            image,
            "deploy_image",
            ["image is built on the head", "image is the head's", "share is closed"],
        ),
        (
            checkpoint,
            "deploy_checkpoint",
            [
                "hub token is on the head",
                "checkpoint is staged on the head",
                "checkpoint is the head's",
                "share is closed",
            ],
        ),
        (link_gate, "deploy_link", ["links are as fast as wanted"]),
        (link_nccl, "deploy_nccl", ["NCCL gathers as fast as wanted"]),
        (
            benchmark,
            "deploy_benchmark",
            ["endpoint is measured", "figures meet the recipe", "old releases are gone"],
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
)
def test_every_host_has_the_same_operations(
    sites: Sites, stage: Any, deploy: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[str] = []
    for operation in [*HEADS, *WORKERS, preflight.checks_pass]:
        for module in (stage, share, cleaning):
            if getattr(module, operation.__name__, None) is operation:
                monkeypatch.setattr(module, operation.__name__, lambda name, site: declared.append(name))
    for site in sites(2):
        declared.clear()
        with ctx_host.use(site.host):
            getattr(stage, deploy)._inner(site)
        assert declared == names
