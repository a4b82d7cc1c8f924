"""Releases: activation, return, rollback, and a controller that is killed at each step of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from sparkstack.expectation import Expect
from sparkstack.releases import collected
from tasks import benchmark, remote, report
from tasks.site import Site

OLD, NEW, NEWER = {"max_model_len": 1024}, {"max_model_len": 512}, {"max_model_len": 256}


@pytest.fixture
def cluster(tmp_path: Path, sites: Callable[..., list[Site]]) -> Cluster:
    return Cluster(tmp_path, sites)


def under_way(cluster: Cluster) -> bool:
    return (cluster.hosts[0].folder / "etc/activation.json").exists()


def history(cluster: Cluster, site: Site) -> dict[str, Any]:
    path = cluster.hosts[0].folder / "etc/releases" / site.release_id / "history.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_first_then_next_then_back_and_back_again(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.serves(old[0].release_id)
    assert cluster.hosts[0].previous is None and not under_way(cluster)
    assert cluster.deploy(old) and cluster.hosts[0].noops
    assert cluster.deploy(new) and cluster.serves(new[0].release_id)
    assert [host.previous for host in cluster.hosts] == [old[0].release_id] * 2
    assert history(cluster, new[0])["served"]["seconds"] >= 0
    # No recipe is asked for: what is on the hosts is enough.
    for expected, left in ((old, new), (new, old), (old, new)):
        assert cluster.roll_back() and cluster.serves(expected[0].release_id)
        assert [host.previous for host in cluster.hosts] == [left[0].release_id] * 2
        assert not under_way(cluster)


def test_the_one_before_over_many_updates(cluster: Cluster) -> None:
    """What failed between two releases is the one before of neither; a rollback turns the pair around."""

    def stands(current: list[Site], before: list[Site] | None) -> bool:
        expected = before[0].release_id if before else None
        pairs = {(host.current, host.previous) for host in cluster.hosts}
        return cluster.serves(current[0].release_id) and pairs == {(current[0].release_id, expected)}

    a, b, c, d, e = (cluster.of({"max_model_len": length}) for length in (1, 2, 3, 4, 5))
    assert cluster.deploy(a) and cluster.judge(a, 20) and stands(a, None)
    assert cluster.deploy(b) and cluster.judge(b, 20) and stands(b, a)
    assert cluster.deploy(cluster.broken(c)) is False and stands(b, a)
    assert cluster.deploy(d) and cluster.judge(d, 1) is False and stands(b, a)
    assert cluster.deploy(e) and cluster.judge(e, 20) and stands(e, b)
    assert cluster.roll_back() and stands(b, e)
    assert cluster.roll_back() and stands(e, b)
    assert cluster.roll_back() and stands(b, e)
    # An old release that is wished again is one like any other.
    assert cluster.deploy(a) and stands(a, b)
    gone = collected([host.kept() for host in cluster.hosts], 2)
    assert set(gone) == {site[0].release_id for site in (c, d, e)}


def test_what_was_rolled_back_stays_away_until_it_is_asked_for(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new) and cluster.roll_back()
    assert cluster.deploy(new) is False
    assert cluster.said == [
        f"spark-1: serve: found release {new[0].release_id} (recipe test-recipe), which was rolled back by "
        f"hand on {history(cluster, new[0])['failed']['when']}; wanted one that has not failed; change the "
        "recipe, or run with --data retry=yes"
    ]
    assert cluster.serves(old[0].release_id)
    assert cluster.deploy(cluster.of(NEW, retry="yes")) and cluster.serves(new[0].release_id)
    assert history(cluster, new[0])["failed"] is None


def test_a_release_that_never_becomes_ready_goes_back(cluster: Cluster) -> None:
    old = cluster.of(OLD)
    assert cluster.deploy(old)
    new = cluster.broken(cluster.of(NEW))
    assert cluster.deploy(new) is False
    assert cluster.serves(old[0].release_id) and not under_way(cluster)
    assert cluster.hosts[0].previous is None, "as before the failure"
    assert cluster.said[-1] == (
        f"spark-1: serve: release {new[0].release_id} was taken back; release {old[0].release_id} "
        "(recipe test-recipe) serves again"
    )
    # Unchanged, the next run says so and touches nothing.
    heard = len(cluster.hosts[1].heard)
    assert cluster.deploy(new) is False and "did not become ready" in cluster.said[0]
    assert len(cluster.hosts[1].heard) == heard and cluster.serves(old[0].release_id)
    # What failed is no release to go back to.
    newer = cluster.broken(cluster.of(NEWER))
    assert cluster.deploy(newer) is False and cluster.serves(old[0].release_id)


def test_the_first_release_of_all_has_nothing_to_go_back_to(cluster: Cluster) -> None:
    new = cluster.broken(cluster.of(NEW))
    assert cluster.deploy(new) is False
    assert cluster.said[-1].endswith("to go back to; wanted one; serving is stopped")
    assert [host.state_of() for host in cluster.hosts] == ["inactive"] * 2
    for host in cluster.hosts:  # whatever it was is mended: a plain run tries again
        (host.folder / "etc/current/broken").unlink()
    assert cluster.deploy(new) and cluster.serves(new[0].release_id)
    assert cluster.roll_back() is False
    assert cluster.said == [
        f"spark-1: rollback: found no release before {new[0].release_id}; wanted one to go back to; "
        "deploy another recipe instead"
    ]


def test_a_failed_release_is_kept_where_one_asks_for_it(cluster: Cluster) -> None:
    old = cluster.of(OLD)
    assert cluster.deploy(old)
    new = cluster.broken(cluster.of(NEW, keep_failed="yes"))
    assert cluster.deploy(new) is False
    assert [host.current for host in cluster.hosts] == [new[0].release_id] * 2
    assert cluster.roll_back() and cluster.serves(old[0].release_id)


def test_one_that_has_served_and_is_started_again_keeps_trying(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new)
    cluster.broken(new)
    assert cluster.deploy(new) is False
    assert [host.current for host in cluster.hosts] == [new[0].release_id] * 2
    assert len(cluster.said) == 1


@pytest.mark.parametrize("step", ["stop rank", "switch rank", "start rank"])
def test_a_rank_that_cannot_be_switched(cluster: Cluster, step: str) -> None:
    """The old release serves again; nothing is held against the new one, which the next run tries."""
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old)
    cluster.hosts[1].fails = [step]
    assert cluster.deploy(new) is False
    assert cluster.said[0].startswith("spark-2: ") and "no space left" in cluster.said[0]
    assert cluster.serves(old[0].release_id) and not under_way(cluster)
    assert cluster.deploy(new) and cluster.serves(new[0].release_id)


def test_a_rank_that_lacks_something_stops_nothing(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new)
    cluster.hosts[1].images.clear()
    assert cluster.roll_back() is False
    assert cluster.said[0].startswith(f"spark-2: rollback: found no image {old[0].image_tag}; wanted all of ")
    assert cluster.serves(new[0].release_id) and not under_way(cluster)
    assert "failed" not in cluster.said[0] and history(cluster, new[0])["failed"] is None


def test_a_release_that_is_too_slow_makes_way(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(report, "note_serving", lambda *figures: noted.append(figures))
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.judge(old, 20)
    assert history(cluster, old[0])["passed"]
    assert cluster.deploy(new) and cluster.judge(new, 4.5) is False
    assert cluster.said == [
        "spark-1: benchmark: found decode_tok_s@1 4.5 (expected ≥ 10.0); wanted what recipe test-recipe "
        "expects; look at the report, or correct `expect`",
        f"spark-1: serve: release {new[0].release_id} was taken back; release {old[0].release_id} "
        "(recipe test-recipe) serves again",
    ]
    assert cluster.serves(old[0].release_id)
    ((_, release, about, measurement, verdict),) = noted
    assert release == about["release"] == measurement["release"] == old[0].release_id and verdict["ok"]
    # Unchanged, the next run says the figures again and touches nothing; with retry it measures anew.
    assert cluster.deploy(new) is False and "(decode_tok_s@1 4.5 (expected ≥ 10.0))" in cluster.said[0]
    again = cluster.of(NEW, retry="yes")
    assert cluster.deploy(again) and cluster.serves(new[0].release_id)
    assert not Path(new[0].measurement_path).exists()
    assert cluster.judge(again, 11) and history(cluster, new[0])["failed"] is None


@pytest.mark.parametrize("dies", [True, False])
def test_a_release_that_dies_while_it_is_measured(
    cluster: Cluster, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(
        state: Any, host: Any, plan: Any, path: str, failed: Callable[[Any], object], watch: Any
    ) -> bool:
        if dies:
            for one in cluster.broken(sites):
                one.host.unit = "started"
        failed(host)
        return False

    monkeypatch.setattr(remote, "start_and_follow", measure)
    for host in cluster.hosts:
        (host.folder / "var/plans").mkdir(parents=True)
    sites = old = cluster.of(OLD)
    assert cluster.deploy(old)
    # The first of all has nothing to go back to; systemd starts it again.
    assert cluster.measure(old) is False and cluster.hosts[0].current == old[0].release_id
    for host in cluster.hosts:
        (host.folder / "etc/current/broken").unlink(missing_ok=True)
    assert cluster.judge(old, 20)
    sites = new = cluster.of(NEW)
    assert cluster.deploy(new) and cluster.measure(new) is False
    if not dies:  # it may be anybody's fault: the benchmark's key, its profile
        assert cluster.serves(new[0].release_id) and history(cluster, new[0])["failed"] is None
        return
    assert cluster.serves(old[0].release_id)
    assert history(cluster, new[0])["failed"]["why"] == "it stopped answering while it was measured"
    assert cluster.deploy(new) is False and "which missed what its recipe expects" in cluster.said[0]


def test_what_met_its_gate_stays_when_it_dies_while_it_is_measured_again(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new) and cluster.judge(new, 20)
    cluster.broken(new)
    benchmark._not_measured(cluster.hosts[0], new[0], remote.Watch(lambda host, folder: None))
    assert cluster.hosts[0].current == new[0].release_id


def test_another_release_s_figures_are_nobody_s(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--data only=benchmark` with a recipe that was changed and not deployed."""
    monkeypatch.setattr(remote, "start_and_follow", lambda *given: pytest.fail("it was measured"))
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old)
    assert cluster.measure(new) is False
    assert cluster.said == [
        f"spark-1: benchmark: found release {old[0].release_id} serving; wanted {new[0].release_id}, that of "
        "recipe test-recipe; run the stage serve, too"
    ]


def test_a_corrected_expectation_is_enough(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new) and cluster.judge(new, 4.5) is False
    expect = Expect.model_validate({"decode_tok_s": {1: {"min": 4}}})
    recipe = new[0].recipe.model_copy(update={"expect": expect})
    lower = [replace(site, recipe=recipe) for site in new]
    for site in lower:
        site.__dict__["release_id"] = new[0].release_id
    assert cluster.deploy(lower) and cluster.serves(new[0].release_id)


def test_what_passed_once_goes_on_when_the_expectation_rises(cluster: Cluster) -> None:
    old, new = cluster.of(OLD), cluster.of(NEW)
    assert cluster.deploy(old) and cluster.deploy(new) and cluster.judge(new, 20)
    assert cluster.judge(new, 4.5) is False and cluster.serves(new[0].release_id)
    assert len(cluster.said) == 1


def test_the_first_release_of_all_goes_on_when_it_is_slow(cluster: Cluster) -> None:
    new = cluster.of(NEW)
    assert cluster.deploy(new) and cluster.judge(new, 4.5) is False
    assert cluster.serves(new[0].release_id) and cluster.said[1].endswith("it goes on serving")
    assert cluster.judge(new, 4.5) is False and cluster.deploy(new)


def test_killed_at_each_step_of_a_gate(tmp_path: Path, sites: Callable[..., list[Site]]) -> None:
    for cut in range(100):
        cluster = Cluster(tmp_path / str(cut), sites)
        old, new = cluster.of(OLD), cluster.of(NEW)
        assert cluster.deploy(old) and cluster.deploy(new)
        ended = cluster.judge(new, 4.5, cut=cut)
        # The same run again: serve, then benchmark, until one fails.
        assert not (cluster.deploy(new) and cluster.judge(new, 4.5))
        assert cluster.serves(old[0].release_id) and not under_way(cluster), cut
        if ended is False:
            break
    assert cut >= 14


# A controller that is killed after each of its commands.


@pytest.mark.parametrize("power", [False, True], ids=["killed", "killed, then the power went"])
def test_killed_at_each_step_of_a_deployment(
    tmp_path: Path, sites: Callable[..., list[Site]], power: bool
) -> None:
    for cut in range(100):
        cluster = Cluster(tmp_path / str(cut), sites)
        old, new = cluster.of(OLD), cluster.of(NEW)
        assert cluster.deploy(old)
        ended = cluster.deploy(new, cut=cut)
        if ended is None and power:
            cluster.power_cycle()
            # Each host has one whole release; where they are two, nothing serves.
            currents = {host.current for host in cluster.hosts}
            assert currents <= {old[0].release_id, new[0].release_id}
            active = [host.state_of() == "active" for host in cluster.hosts]
            assert all(active) if len(currents) == 1 else not any(active)
        # The next run brings the cluster to one release, whichever way the user goes on.
        if cut % 3 == 0:
            assert cluster.deploy(new) and cluster.serves(new[0].release_id)
            assert [host.previous for host in cluster.hosts] == [old[0].release_id] * 2
        elif cut % 3 == 1 and ended is None and cut > 2:
            assert cluster.roll_back() and cluster.serves(old[0].release_id)
        else:
            newer = cluster.of(NEWER)
            assert cluster.deploy(newer) and cluster.serves(newer[0].release_id)
            assert cluster.hosts[0].previous == (new if ended else old)[0].release_id
        assert not under_way(cluster)
        if ended:
            break
    assert cut >= 12, "it has at least so many steps"


def test_killed_at_each_step_of_a_return(tmp_path: Path, sites: Callable[..., list[Site]]) -> None:
    for cut in range(100):
        cluster = Cluster(tmp_path / str(cut), sites)
        old = cluster.of(OLD)
        assert cluster.deploy(old)
        new = cluster.broken(cluster.of(NEW))
        ended = cluster.deploy(new, cut=cut)
        # The same run again ends as it would have: failed, with the old release serving everywhere.
        assert cluster.deploy(new) is False
        assert cluster.serves(old[0].release_id) and not under_way(cluster), cut
        assert [host.previous for host in cluster.hosts] == [None] * 2
        if ended is False:
            break
    assert cut >= 20


def test_killed_at_each_step_of_a_rollback(tmp_path: Path, sites: Callable[..., list[Site]]) -> None:
    for cut in range(100):
        cluster = Cluster(tmp_path / str(cut), sites)
        old, new = cluster.of(OLD), cluster.of(NEW)
        assert cluster.deploy(old) and cluster.deploy(new)
        ended = cluster.roll_back(cut=cut)
        if ended:
            break
        assert cluster.roll_back() and cluster.serves(old[0].release_id), cut
        assert cluster.hosts[0].previous == new[0].release_id and not under_way(cluster)
    assert cut >= 12
