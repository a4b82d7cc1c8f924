"""What each operation tells the doctor: the host, the exact thing, what it is and what it should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of

from sparkstack import netplan
from tasks import benchmark, checkpoint, drift, fabric, image, operations, serve
from tasks.facts import Addresses, FileStates, ImageId, Json, Routes, ServeState, Text
from tasks.files import ManagedFile
from tasks.site import UNIT, Site

Sites = Callable[..., list[Site]]


def told(operation: Any, site: Site, *arguments: Any) -> list[tuple[str, str, str, str]]:
    with drift.listen(site.host.name) as heard:
        commands_of(operation, site.host, *(arguments or (site,)))
    return [(one.host, one.thing, one.found, one.wanted) for one in heard]


def test_nobody_listens_to_a_deployment(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {ImageId: None}
    assert commands_of(image.built, site.host, site)
    assert drift._heard == {}


def test_hosts_are_heard_apart(sites: Sites) -> None:
    head, worker = sites(2)
    for site in (head, worker):
        site.host.facts = {ImageId: None}
    with drift.listen("spark-1") as first, drift.listen("spark-2") as second:
        commands_of(image.received, worker.host, worker)
        commands_of(image.built, head.host, head)
    assert [one.host for one in first] == ["spark-1"] and [one.host for one in second] == ["spark-2"]


def test_image(sites: Sites) -> None:
    head, worker = sites(2)
    thing = f"image {head.image_tag}"
    head.host.facts = {ImageId: None}
    assert told(image.built, head) == [("spark-1", thing, "absent", "built")]
    worker.host.facts = {ImageId: None}
    head.host.facts = {ImageId: "sha256:1"}
    assert told(image.received, worker) == [("spark-2", thing, "absent", "the head's, sha256:1")]
    worker.host.facts = {ImageId: "sha256:1"}
    assert told(image.received, worker) == []


def test_manifest(sites: Sites) -> None:
    head, worker = sites(2)
    path = f"{head.checkpoint_dir}/manifest.json"
    head.host.facts = worker.host.facts = {Json: None}
    assert told(checkpoint.staged, head) == [("spark-1", path, "absent or of another checkpoint", "staged")]
    head.host.facts = {Json: {"id": head.checkpoint_id}}
    assert told(checkpoint.received, worker) == [
        ("spark-2", path, "absent or another manifest", "the head's manifest")
    ]


@pytest.mark.parametrize(
    ("change", "thing", "found"),
    [
        ({"unit": "inactive"}, UNIT, "inactive"),
        ({"release": "older"}, "/etc/sparkstack/current", "older"),
        ({"release": ""}, "/etc/sparkstack/current", "nothing"),
        ({"fabric": ""}, "/etc/sparkstack/fabric.env", "another one than the rank was started with"),
    ],
)
def test_the_rank_that_does_not_serve_is_named(
    sites: Sites, change: dict[str, str], thing: str, found: str
) -> None:
    head, worker = sites(2)
    good = {"release": head.release_id, "unit": "active", "container": "0a", "fabric": "same"}
    head.host.facts = {ServeState: good}
    worker.host.facts = {ServeState: {**good, **change}}
    ((host, what, is_now, _),) = told(serve.activated, head)
    assert (host, what, is_now) == ("spark-2", thing, found)


def test_addresses_and_the_netplan_file(sites: Sites) -> None:
    head, _ = sites(2)
    first, second = head.interfaces
    file = ManagedFile.text(netplan.PATH, netplan.render(head.interfaces), "600").wanted()
    there = {first.name: [first.cidr], second.name: [second.cidr]}
    head.host.facts = {Routes: [], Addresses: there, FileStates: {netplan.PATH: file}}
    assert told(fabric.addressed, head) == []
    head.host.facts |= {Addresses: {**there, second.name: []}}
    assert told(fabric.addressed, head) == [("spark-1", second.name, "no address", second.cidr)]
    head.host.facts |= {Addresses: {**there, second.name: ["10.1.2.3/24"]}}
    assert told(fabric.addressed, head) == [("spark-1", second.name, "10.1.2.3/24", second.cidr)]
    head.host.facts |= {Addresses: there, FileStates: {}}
    assert told(fabric.addressed, head) == [("spark-1", netplan.PATH, "no file", "the declared one")]
    head.host.facts |= {FileStates: {netplan.PATH: {**file, "mode": "644"}}}
    assert told(fabric.addressed, head) == [("spark-1", netplan.PATH, "mode 644", "mode 600")]


def test_measurement(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {Json: None}
    ((_, thing, found, _),) = told(benchmark.measured, site)
    assert (thing, found) == (site.measurement_path, "absent, or of another profile")


def test_wheel(sites: Sites) -> None:
    (site,) = sites(1)
    site.host.facts = {Text: "older\n"}
    wheel = site.plugin_wheel[0]
    ((_, thing, _, wanted),) = told(
        operations.wheel_installed, site, "/env/bin/python", wheel, "0123", "/env/.marker"
    )
    assert (thing, wanted) == ("/env/.marker", f"{wheel.name} of 0123")
