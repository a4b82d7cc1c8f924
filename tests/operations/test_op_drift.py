"""What each operation tells the doctor: the host, the exact thing, what it is and what it should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_host import commands_of

from sparkstack import netplan
from sparkstack.fabric_state import FabricState, Link
from tasks import benchmark, checkpoint, drift, fabric, fabric_facts, image, operations, serve
from tasks.fabric_facts import FabricFacts
from tasks.facts import ImageId, Json, ServeState, Text
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
    assert told(image.built, head) == [("spark-1", thing, "absent", "built and proved")]
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
    good = {"release": head.release_id, "unit": "active", "fabric": "same"}
    head.host.facts = {ServeState: good}
    worker.host.facts = {ServeState: {**good, **change}}
    ((host, what, is_now, _),) = told(serve.activated, head)
    assert (host, what, is_now) == ("spark-2", thing, found)


def test_addresses_and_the_netplan_file(sites: Sites) -> None:
    head, _ = sites(2)
    first, second = head.interfaces
    file = ManagedFile.text(netplan.PATH, netplan.render(head.interfaces), "600").wanted()

    def told_with(*addresses: str, state: dict[str, str] | None = file, **more: Any) -> list[Any]:
        links = {first.name: Link((first.cidr,), 9000), second.name: Link(addresses, 9000)}
        files = {netplan.PATH: state} if state else {}
        head.host.facts = {FabricFacts: FabricState(links=links, files=files, **more)}
        fabric_facts.changed(head)
        return told(fabric.addressed, head)

    assert told_with(second.cidr) == []
    assert told_with() == [("spark-1", second.name, "no address", second.cidr)]
    assert told_with("10.1.2.3/24") == [("spark-1", second.name, "10.1.2.3/24", second.cidr)]
    no_file = ("spark-1", netplan.PATH, "no file", "the declared one")
    assert told_with(second.cidr, state=None) == [no_file]
    mode = ("spark-1", netplan.PATH, "mode 644", "mode 600")
    assert told_with(second.cidr, state={**file, "mode": "644"}) == [mode]
    old = {"/etc/netplan/a.yaml": f"network: {{ethernets: {{{first.name}: {{}}}}}}"}
    assert told_with(second.cidr, netplan=old) == [
        ("spark-1", "/etc/netplan/a.yaml", "a port of the fabric in it", "none but in our file")
    ]
    told_with(second.cidr, reach={first.name: "none", second.name: "small"})
    assert told(fabric.possible, head) == [
        ("spark-1", first.name, f"no answer from {first.next_peer}", "answers to packets of 9000 bytes"),
        (
            *("spark-1", second.name, f"answers of {second.next_peer} to small packets only"),
            "answers to packets of 9000 bytes",
        ),
    ]


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
