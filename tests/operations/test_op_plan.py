"""The plan of a run, from what the hosts say: it is true, and it gives no command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from sparkstack.doctor import Line
from sparkstack.plan import Plan
from tasks import plan, serve
from tasks.facts import ImageId
from tasks.plan import Downloaded
from tasks.site import Site

STAGES = ["preflight", "fabric", "image", "checkpoint", "serve", "benchmark"]


@pytest.fixture
def cluster(tmp_path: Path, sites: Callable[..., list[Site]], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(plan, "_lines", {})
    made = Cluster(tmp_path, sites)
    made.hosts[0].facts = {ImageId: None, Downloaded: 0}
    return made


def planned(cluster: Cluster, sites: list[Site], **drifts: str) -> Plan:
    """The plan where these stages are not as declared (`stage="thing"`)."""
    heard = [len(host.heard) for host in cluster.hosts]
    for host in cluster.hosts:
        plan._lines[host.name] = {
            stage: [
                Line(host.name, stage, drifts[stage], "drift", "absent", "there")
                if stage in drifts
                else Line(host.name, stage, "all of it", "ok", "as declared")
            ]
            for stage in STAGES
        }
    made = plan._made(sites[1], STAGES)
    assert [len(host.heard) for host in cluster.hosts] == heard
    return made


def steps(made: Plan) -> dict[str, tuple[str, int | None]]:
    return {step.stage: (step.verdict, step.fetch) for step in made.steps}


def test_a_first_deployment(cluster: Cluster) -> None:
    fabric = "/etc/sparkstack/fabric.env"
    made = planned(cluster, cluster.of(), fabric=fabric, image="i", checkpoint="c", serve="s")
    assert steps(made) == {
        "preflight": ("asks", 0),
        "fabric": ("new", 0),
        "image": ("new", None),
        # Staged by the fixture: only the other hosts get it, over the fabric.
        "checkpoint": ("new", 0),
        "serve": ("new", 0),
        "benchmark": ("new", 0),
    }
    assert not made.interrupts, "nothing serves yet"


def test_a_changed_option(cluster: Cluster) -> None:
    old = cluster.of({"max_model_len": 1024})
    assert cluster.deploy(old) and cluster.judge(old, 20)
    unchanged = planned(cluster, old)
    assert {verdict for verdict, _ in steps(unchanged).values()} == {"asks", "keeps"}
    assert unchanged.summary() == ["to fetch from outside: nothing", "serving: not interrupted"]
    made = planned(cluster, cluster.of({"max_model_len": 512}), serve="/etc/sparkstack/current")
    (text,) = [step.text for step in made.steps if step.stage == "serve"]
    assert text.endswith(": --max-model-len from 1024 to 512")
    assert made.interrupts and made.seconds is not None
    assert made.like == f"as the last start of release {old[0].release_id}"


def test_the_names_of_the_fabric_start_it_again(cluster: Cluster) -> None:
    old = cluster.of()
    assert cluster.deploy(old)
    made = planned(cluster, old, fabric="/etc/sparkstack/fabric.env")
    assert steps(made)["serve"] == ("changes", 0) and made.interrupts
    assert made.like == "the last start of this release"


def test_what_is_downloaded_already_is_not_fetched(cluster: Cluster) -> None:
    sites = cluster.of()
    (Path(sites[0].checkpoint_dir) / "manifest.json").unlink()
    budget = sites[0].recipe.budget.model_copy(update={"download_gib": 2.0})
    for site in sites:
        site.recipe.__dict__["budget"] = budget
    for there, left in ((0, 2 * 2**30), (2**30, 2**30), (3 * 2**30, 0)):
        cluster.hosts[0].facts[Downloaded] = there
        cluster.hosts[0].facts[ImageId] = lambda tag: "sha256:1" if tag == sites[0].image_base else None
        made = planned(cluster, sites, image="i", checkpoint="c")
        assert steps(made)["checkpoint"] == ("new", left) and steps(made)["image"] == ("new", 0)


@pytest.mark.parametrize(("keep_source", "peak"), [(True, "171.80 GB"), (False, "128.85 GB")])
def test_the_plan_says_the_disks_peak(cluster: Cluster, keep_source: bool, peak: str) -> None:
    """What the budget leaves beside the image, or the output and two source files."""
    sites = cluster.of()
    (Path(sites[0].checkpoint_dir) / "manifest.json").unlink()
    recipe = sites[0].recipe
    budget = recipe.budget.model_copy(update={"download_gib": 100.0, "disk_gib": 160.0})
    for site in sites:
        site.recipe.__dict__["budget"] = budget
        kept = recipe.checkpoint.model_copy(update={"keep_source": keep_source})
        site.recipe.__dict__["checkpoint"] = kept
    cluster.hosts[0].facts[Downloaded] = 0
    made = planned(cluster, sites, image="i", checkpoint="c")
    [text] = [step.text for step in made.steps if step.stage == "checkpoint"]
    assert text.endswith(f"; takes about {peak} of the head's disk at its peak")


def test_what_failed_before_fails_the_plan(cluster: Cluster) -> None:
    old = cluster.of({"max_model_len": 1024})
    assert cluster.deploy(old)
    new = cluster.broken(cluster.of({"max_model_len": 512}))
    assert cluster.deploy(new) is False
    made = planned(cluster, new, serve="s")
    assert made.fails and not made.interrupts
    assert serve.refusal(new[0], cluster.hosts[0].kept()) in [step.text for step in made.steps]


@pytest.mark.parametrize(
    ("output", "size"), [([], 0), (["4096\ttotal"], 4096), (["du: cannot"], 0), ([""], 0)]
)
def test_the_size_of_a_folder(output: list[str], size: Any) -> None:
    assert Downloaded().process(output) == size


def test_links_are_not_judged_before_the_fabric_is_set_up(cluster: Cluster) -> None:
    """Ports are down on a fresh host; whatever is seen of them now is what the stage before is there for."""
    sites = cluster.of()
    down = Line("spark-1", "link", "eth0 carrier", "failed", "an interface that is down", "carrier", "x")
    for drift, verdict in (("drift", "changes"), ("ok", "fails")):
        for host in cluster.hosts:
            fabric = Line(host.name, "fabric", "/etc/netplan/40-sparkstack.yaml", drift, "no file", "ours")  # type: ignore[arg-type]
            plan._lines[host.name] = {"fabric": [fabric], "link": [down]}
        made = plan._made(sites[1], ["fabric", "link"])
        assert steps(made)["link"][0] == verdict
