"""Old releases go from all ranks; what others need, and what is in use, stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, commands_of, follow

from sparkstack.releases import Kept, Leftovers, OnHost
from tasks import cleaning, undo
from tasks.activation import Releases
from tasks.cleaning import Sources
from tasks.site import Site

Sites = Callable[..., list[Site]]


def keeps(site: Site, count: int) -> OnHost:
    source = {"repo": "o/m", "revision": "r"}
    releases = {
        f"r{n}": Kept({"image": f"i:{n}", "checkpoint": f"c{n}", "source": source}, n) for n in range(count)
    }
    return OnHost(f"r{count - 1}", releases)


def test_no_more_than_declared_is_left_alone(sites: Sites) -> None:
    ranks = head, _ = sites(2, keep_releases=3)
    head.host.facts = {Releases: keeps(head, 3)}
    assert commands_of(cleaning.collected, head.host, head) == []
    assert head.host.noops == ["no more than 3 releases are kept"] and len(ranks) == 2


@pytest.mark.parametrize("busy", [False, True])
def test_workers_first_and_nothing_while_a_job_is_at_work(sites: Sites, busy: bool) -> None:
    ranks = sites(2, keep_releases=3)
    order: list[str] = []
    for rank in ranks:
        rank.host.facts = {Releases: keeps(rank, 5), Sources: {"busy": busy, "sources": {}}}
        run = rank.host.run_shell_command

        def heard(*given: Any, name: str = rank.host.name, run: Any = run, **more: Any) -> Any:
            order.append(name)
            return run(*given, **more)

        rank.host.run_shell_command = heard
    head = ranks[0]
    assert follow(commands_of(cleaning.collected, head.host, head), head.host)
    if busy:
        assert order == []
        return
    assert order == sorted(order, reverse=True) and set(order) == {"spark-1", "spark-2"}
    text = "\n".join(head.host.heard)
    for gone in "01":
        assert f"image rm i:{gone}" in text and f"checkpoints/c{gone}" in text and f"releases/r{gone}" in text
    assert "c2" not in text and "releases/r2" not in text
    assert "downloads" not in text, "newer releases are of the same download"


def test_an_image_in_use_keeps_its_release(sites: Sites) -> None:
    (site,) = sites(1, keep_releases=3)
    site.host.facts = {Releases: keeps(site, 5), Sources: {"busy": False, "sources": {}}}
    site.host.answers = {"remove release's part": (False, "image is being used by running container 0a")}
    assert follow(commands_of(cleaning.collected, site.host, site), site.host)
    assert site.host.shown == [
        "spark-1: old releases are kept: image i:0 could not be removed; found: image is being used by "
        "running container 0a"
    ]
    assert len(site.host.heard) == 1


def test_what_is_removed_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "ROOT", str(tmp_path / "undo"))
    host = FakeHost("spark-1", state_dir=str(tmp_path / "var"), config_dir=str(tmp_path / "etc"))
    var, etc = tmp_path / "var", tmp_path / "etc"
    note = Path(undo.note("image", "base@sha256:1"))
    going = [
        var / "checkpoints/c1/manifest.json",
        var / "checkpoints/.c1.lock",
        var / "checkpoints/.c1.journal",
        var / "checkpoints/c1.repair/a.safetensors",
        var / "jobs/sparkstack-fetch-checkpoint-c1/result.json",
        var / "plans/sparkstack-image-1.json",
        var / "build/1/Dockerfile",
        var / "downloads/o--m/r1/a.safetensors",
        var / "downloads/o--m/r1.hub-metadata.json",
        var / "downloads/o--m/r1.headers/b.safetensors.header",
        var / "downloads/o--m/.r1.lock",
        var / "results/r1/verdict.json",
        etc / "releases/r1/run",
        note,
    ]
    staying = [
        var / "checkpoints/c2/manifest.json",
        var / "downloads/o--n/r2/b",
        var / "jobs/sparkstack-image-2/result.json",
        etc / "releases/r2/run",
    ]
    for path in [*going, *staying]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    rest = Leftovers(["i:1"], ["base@sha256:1"], ["c1"], [("o/m", "r1"), ("o/n", "r2")])
    # A donor's files are downloads, too: c2 was made of two.
    sources = {"c1": [("o/m", "r1")], "c2": [("o/base", "r9"), ("o/n", "r2")]}
    words = cleaning.commands(host, ["r1"], rest, sources)
    assert words[-1][0] == "release r1", "it says what there is to remove, so it goes last"
    lines = "\n".join(f"( {text} ) || exit 1" for _, text in words)
    script = f'docker() {{ echo "$*" >> {tmp_path}/docker; }}\n{lines}'
    subprocess.run(["sh", "-c", script], check=True)
    assert [path for path in going if path.exists()] == []
    assert all(path.exists() for path in staying) and not (var / "downloads/o--m").exists()
    assert "image rm i:1" in (tmp_path / "docker").read_text()
    # Where it cannot be told what another checkpoint is from, downloads stay.
    assert not any("download" in what for what, _ in cleaning.commands(host, [], rest, {"c3": None}))


def test_where_checkpoints_are_from(tmp_path: Path) -> None:
    for name, text in {
        "aa": '{\n "files": {},\n "source": {\n  "repo": "o/m",\n  "revision": "r"\n }\n}',
        "bb": '{"source": {"repo": "o/n", "revision": "s"}, "inputs": [{"repo": "o/n", "revision": "s", '
        '"files": {"x": {"size": 1}}}, {"repo": "o/donor", "revision": "t", "files": {}}], "transforms": '
        '[{"name": "graft_fp8", "donor": {"repo": "o/donor", "revision": "t"}}]}',
        "cc": "{",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    fact = Sources()
    systemctl = "systemctl() { echo sparkstack-image-1.service; }\n"
    command = systemctl + fact.command(checkpoints_dir=str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert fact.process(done.stdout.splitlines()) == {
        "busy": True,
        "sources": {
            "aa": [("o/m", "r")],
            "bb": [("o/donor", "t"), ("o/n", "s")],
            "cc": None,
        },
    }
