"""Staging as a flow: made while others come, within the disk that was told, mended where it is damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from making import noise, revision_of, safetensors, write_repo
from spark import REPO, Host

from lab.hub import Hub
from onhost import files, jobs
from onhost.files import sha256_of
from onhost.staging import chain, download, manifest, pipeline, ranged, source, verify
from onhost.staging.catalog import SOURCE, FileInfo, Need
from onhost.staging.chain import Chained
from onhost.staging.graph import Ledger, disk_limit, graph_of
from onhost.staging.outputs import Copy, Output

SHARD = 120_000  # bytes of data a shard
RESHARD = {"name": "reshard", "max_shard_bytes": 90_000}


@pytest.fixture
def shards(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """org/tiny as eight shards of four tensors each; their names."""
    monkeypatch.setattr(download, "SETTINGS", download.Settings(segment=40_000, streams=4, pause=0.01))
    monkeypatch.setattr(download, "PROBE", 1000)
    shutil.rmtree(hub.store.root / REPO)
    files, weight_map = {}, {}
    names = [f"model-{at:05d}-of-00008.safetensors" for at in range(1, 9)]
    for at, name in enumerate(names):
        content = {f"layer.{at}.{n}": ("U8", [SHARD // 4], noise(SHARD // 4, f"{at} {n}")) for n in range(4)}
        files[name] = safetensors(content)
        weight_map |= dict.fromkeys(content, name)
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    files["config.json"] = b"{}"
    write_repo(hub.store.root / REPO, files)
    return names


def plan_of(host: Host, hub: Hub, *steps: dict[str, Any], **keys: Any) -> Path:
    plan = host.checkpoint_plan(hub, *steps)
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **keys}))
    return plan


def made(host: Host) -> dict[str, bytes]:
    return {n: p.read_bytes() for n, p in chain.folder_view(host.checkpoints / "abc123").items()}


def on_disk(host: Host) -> int:
    """Bytes that the weights take, however often they are linked."""
    sizes: dict[int, int] = {}
    for folder in (host.downloads, host.checkpoints):
        for path in folder.rglob("*.safetensors*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            sizes[stat.st_ino] = min(stat.st_blocks * 512, stat.st_size)
    return sum(sizes.values())


def test_the_disk_holds_the_output_and_two_shards(
    host: Host, hub: Hub, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured at each step with keep_source: false, against what the plan said beforehand."""
    seen = [0]

    def watched(target: type, name: str) -> None:
        real = getattr(target, name)

        def call(self: Any, *arguments: Any) -> Any:
            seen.append(on_disk(host))
            result = real(self, *arguments)
            seen.append(on_disk(host))
            return result

        monkeypatch.setattr(target, name, call)

    watched(ranged.Fetcher, "_one")
    watched(pipeline.Journal, "add")
    plan = plan_of(host, hub, RESHARD, keep_source=False)
    assert host.run(plan)["ok"]
    told = next(line["done"] for line in host.progress(plan) if line["stage"] == "plan")
    weights = sum(p.stat().st_size for p in (host.checkpoints / "abc123").glob("*.safetensors"))
    shard = (hub.store.root / REPO / shards[0]).stat().st_size
    assert max(seen) <= told
    assert max(seen) <= weights + 2 * shard
    assert told < weights + 2 * shard + 5_000  # the index and the configuration are in it
    assert not (host.downloads / "org--tiny" / revision_of(REPO)).exists()
    kept = Host(host.root.parent / "kept")
    plan = plan_of(kept, hub, RESHARD)
    assert kept.run(plan)["ok"]
    assert made(kept) == made(host)
    told = next(line["done"] for line in kept.progress(plan) if line["stage"] == "plan")
    assert told >= weights + 8 * shard


def test_made_while_others_come(
    host: Host, hub: Hub, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is finished before the last shard has been sent."""
    first, real = threading.Event(), pipeline.Journal.add
    folder = host.downloads / "org--tiny" / revision_of(REPO)
    here: list[int] = []

    def add(self: Any, name: str, sha256: str) -> None:
        if name.endswith(".safetensors"):
            here.append(sum((folder / shard).exists() for shard in shards))
            first.set()
        real(self, name, sha256)

    monkeypatch.setattr(pipeline.Journal, "add", add)
    seen = hub.faults.take

    def take(method: str, path: str, *, body: bool) -> Any:
        if shards[-1] in path and body and method == "GET" and folder.exists() and any(folder.glob("*of*")):
            first.wait(10)  # the last shard's bytes wait for the first file to be made
        return seen(method, path, body=body)

    monkeypatch.setattr(hub.faults, "take", take)
    assert host.run(plan_of(host, hub, RESHARD))["ok"]
    assert here[0] < len(shards)


@pytest.mark.parametrize("keep_source", [True, False])
def test_a_damaged_file_is_made_again_alone(
    host: Host, hub: Hub, shards: list[str], keep_source: bool
) -> None:
    plan = plan_of(host, hub, RESHARD, keep_source=keep_source)
    assert host.run(plan)["ok"]
    whole, folder = made(host), host.checkpoints / "abc123"
    kept = {path: path.stat().st_ino for path in folder.iterdir()}
    victims = sorted(folder.glob("model-*.safetensors"))[1:3]
    victims[0].rename(host.root / "aside")  # a file that is gone would give its number to the new one
    os.truncate(victims[1], 1000)
    hub.requests.clear()
    assert host.run(plan)["ok"]
    assert made(host) == whole
    changed = {path for path, inode in kept.items() if path.stat().st_ino != inode}
    assert changed == set(victims)
    fetched = {r["path"].rpartition("/")[2] for r in hub.requests.listed() if r["bytes"] > 10_000}
    assert fetched <= set(shards[:3])  # only what those two are made from
    assert bool(fetched) is not keep_source
    assert sorted(p.name for p in host.checkpoints.iterdir()) == [".abc123.lock", "abc123"]
    damage = next(line for line in host.progress(plan) if line["stage"] == "damage")
    assert damage["note"].startswith(f"{victims[0].name}: missing; {victims[1].name}: 1000 bytes, wanted ")


def test_bits_that_flipped_are_found_and_mended(host: Host, hub: Hub, shards: list[str]) -> None:
    """The file is one with the download's (a hard link), so that one is wrong as well, without a trace."""
    plan = plan_of(host, hub)
    assert host.run(plan)["ok"]
    whole, victim = made(host), host.checkpoints / "abc123" / shards[3]
    stat = victim.stat()
    with victim.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte[0] ^ 8]))
    os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    hub.requests.clear()
    assert host.run(plan)["ok"]
    assert hub.requests.listed() == []  # contents are not read in every run
    assert jobs.main(str(plan), hashes=True) == 0
    assert made(host) == whole
    assert {r["path"].rpartition("/")[2] for r in hub.requests.listed()} == {shards[3]}
    assert sha256_of(host.downloads / "org--tiny" / revision_of(REPO) / shards[3]) == sha256_of(victim)


def test_damage_offline_is_mended_from_the_downloads(host: Host, hub: Hub, shards: list[str]) -> None:
    plan = plan_of(host, hub, RESHARD)
    assert host.run(plan)["ok"]
    whole = made(host)
    (host.checkpoints / "abc123" / "model-00003-of-00016.safetensors").write_bytes(b"")
    hub.stop()
    assert host.run(plan)["ok"]
    assert made(host) == whole


def test_offline_with_a_donor_of_which_only_a_part_is_here(
    host: Host, hub: Hub, shards: list[str], tmp_path: Path
) -> None:
    """The donor's other files were never fetched; their headers are kept, so that a plan needs no network."""
    import models
    from staged import CUT, GRAFT

    shutil.rmtree(hub.store.root / REPO)
    write_repo(hub.store.root / REPO, models.hybrid_base())
    write_repo(hub.store.root / "org/donor", models.donor_files())
    graft = {**GRAFT, "donor": {"repo": "org/donor", "revision": revision_of("org/donor")}}
    plan = plan_of(host, hub, graft, CUT)
    assert host.run(plan)["ok"]
    whole = made(host)
    home = host.downloads / "org--donor" / revision_of("org/donor")
    headers = {path.name for path in home.with_name(f"{home.name}.headers").iterdir()}
    assert headers == {f"{n}.header" for n in models.donor_files() if n.endswith("2-of-00002.safetensors")}
    hub.stop()
    min((host.checkpoints / "abc123").glob("*.safetensors")).unlink()
    assert host.run(plan)["ok"]
    assert made(host) == whole
    assert host.run(plan_of(host, hub, graft, id="other"))["ok"]


def test_a_manifest_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path, **_: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    assert verify.verify(tmp_path, hashes=False) == 1
    assert capsys.readouterr().err == (
        f"found {tmp_path}/manifest.json that cannot be read (Permission denied); "
        "wanted to read it; run as root\n"
    )


@pytest.mark.parametrize("damage", ["dangling", "folder", "unreadable"])
def test_damage_that_is_no_content(
    host: Host,
    hub: Hub,
    shards: list[str],
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A link to nowhere, a folder in a file's place, a bad block: a line that names the file; then mended."""
    plan = plan_of(host, hub)
    assert host.run(plan)["ok"]
    whole, folder = made(host), host.checkpoints / "abc123"
    victim = folder / (shards[2] if damage == "unreadable" else "config.json")
    if damage == "unreadable":
        bad, real = victim.stat().st_ino, files.hashlib.sha256

        def digest(path: Path, *more: Any) -> str:
            if path.stat().st_ino == bad:  # under both of its names
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path.read_bytes()).hexdigest()

        for module in (manifest, source, pipeline):
            monkeypatch.setattr(module, "sha256_of", digest)
        kept = victim.open("rb")  # so that no new file gets its number
    else:
        victim.unlink()
        victim.mkdir() if damage == "folder" else victim.symlink_to("nowhere")
    assert verify.verify(folder, hashes=True) == 1
    what = {"dangling": "cannot be read (No such file or directory)", "folder": "missing"}
    expected = what.get(damage, "cannot be read (Input/output error)")
    assert capsys.readouterr().out == f"{victim.name}: {expected}\n"
    assert jobs.main(str(plan), hashes=True) == 0
    assert made(host) == whole
    if damage == "unreadable":
        kept.close()
        assert victim.stat().st_ino != bad


def test_what_a_recipe_no_longer_makes_is_not_mended(host: Host, hub: Hub, shards: list[str]) -> None:
    assert host.run(plan_of(host, hub, RESHARD))["ok"]
    (host.checkpoints / "abc123" / "config.json").unlink()
    error = host.run(plan_of(host, hub))["error"]
    assert error.startswith(f"found {host.checkpoints}/abc123 with other files than this recipe makes; ")


def test_a_noop_loads_no_hub_client(host: Host, hub: Hub, shards: list[str]) -> None:
    plan = plan_of(host, hub)
    assert host.run(plan)["ok"]
    program = (
        "import sys; from onhost import jobs; status = jobs.main(sys.argv[1]);"
        "sys.exit(status or 'huggingface_hub' in sys.modules)"
    )
    import subprocess
    import sys

    assert subprocess.run([sys.executable, "-c", program, str(plan)], check=False).returncode == 0


def chained(sizes: dict[str, list[str]], source: int) -> Chained:
    """Outputs by name, each from source files of `source` bytes; as large as what they are made from."""
    return Chained(
        tuple(
            Output(name, FileInfo(source), tuple(Copy(Need(SOURCE, file), 0, 1) for file in files))
            for name, files in sizes.items()
        ),
        {},
    )


def test_the_limit_of_the_disk() -> None:
    sizes = {Need(SOURCE, name): 10 for name in "abcd"}
    one_to_one = graph_of(chained({"w": ["a"], "x": ["b"], "y": ["c"], "z": ["d"]}, 10), sizes)
    assert disk_limit(one_to_one, keep_source=True) == 80
    assert disk_limit(one_to_one, keep_source=False) == 60
    # One that needs everything to the end: no two shards will do, and the truth is told.
    crossed = chained({"w": ["a", "d"], "x": ["b", "a"], "y": ["c", "b"], "z": ["d", "a"]}, 10)
    assert disk_limit(graph_of(crossed, sizes), keep_source=False) == 70
    linked = Chained(tuple(Output(n, FileInfo(10), link_of=Need(SOURCE, n)) for n in "abcd"), {})
    assert disk_limit(graph_of(linked, sizes), keep_source=False) == 40
    assert disk_limit(graph_of(linked, sizes, done="abcd"), keep_source=False) == 0


def test_the_ledger_frees_what_nobody_needs() -> None:
    sizes = {Need(SOURCE, name): 10 for name in "ab"}
    between = Output("m", FileInfo(5), (Copy(Need(SOURCE, "a"), 0, 1),))
    outputs = (
        Output("x", FileInfo(7), (Copy(Need("step0", "m"), 0, 1),)),
        Output("y", FileInfo(7), (Copy(Need(SOURCE, "b"), 0, 1),)),
    )
    graph = graph_of(Chained(outputs, {"step0": (between,)}), sizes)
    middle, first = Need("step0", "m"), Need("checkpoint", "x")
    assert list(graph.groups[0]) == [middle, first]
    ledger = Ledger(graph, keep_source=False)
    assert ledger.cost(graph.groups[0]) == 22
    ledger.begin(graph.groups[0])
    assert ledger.finish(middle) == [Need(SOURCE, "a")] and ledger.now == 12
    assert ledger.finish(first) == [middle] and ledger.now == 7
    rest = graph_of(Chained(outputs, {"step0": (between,)}), sizes, done=["x"])
    assert rest.sources == {Need(SOURCE, "b"): 10}


def test_a_header_that_came_wrong(host: Host, hub: Hub, shards: list[str]) -> None:
    """Headers are read by themselves, before there is a hash to hold them against."""
    hub.faults.arm({"path": f"/__objects/*{shards[2]}", "kind": "corrupt", "after_bytes": 11})
    plan = plan_of(host, hub, RESHARD)
    error = host.run(plan)["error"]
    assert error.startswith("found a header that is not JSON (") and f"in {shards[2]} of {REPO}" in error
    assert "; run again, and if it stays so pin another revision" in error
    # As if the bits had made another header that is just as valid.
    start = (hub.store.root / REPO / shards[2]).read_bytes()[:500]
    length = 8 + int.from_bytes(start[:8], "little")
    home = host.downloads / "org--tiny"
    kept = home / f"{revision_of(REPO)}.headers" / f"{shards[2]}.header"
    kept.write_bytes(start[:length].replace(b"U8", b"I8", 1))
    error = host.run(plan)["error"]
    assert error.startswith(f"found {shards[2]} of {REPO} with another header than was read before it came;")
    assert host.run(plan)["ok"]
    assert b"I8" not in b"".join(content[:600] for content in made(host).values())


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("content", [b"short", b"\xff" * 9, (2).to_bytes(8, "little") + b"[]"])
def test_a_hub_whose_file_is_no_safetensors(
    host: Host, hub: Hub, shards: list[str], here: bool, content: bytes
) -> None:
    """Nothing on the host can be mended, wherever the header is read."""
    (hub.store.root / REPO / shards[2]).write_bytes(content)
    ends = [host.run(plan_of(host, hub, id="as-it-is"))] if here else []
    for end in [*ends, host.run(plan_of(host, hub, RESHARD))]:
        if end["ok"]:
            assert end is ends[0] and content.endswith(b"[]")  # what no transform reads is as the hub has it
            continue
        assert f" in {shards[2]} of {REPO}; wanted a valid safetensors file; " in end["error"]
        assert end["error"].endswith("if it stays so pin another revision: the hub's file is broken")


@pytest.mark.parametrize("line", ['{"name": "config.json"', "[]", '{"name": "../x", "stat": [0, 0]}', "null"])
def test_a_journal_with_a_bad_line(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "abc.partial"
    journal = pipeline.Journal(tmp_path / "j", folder, "stamp")
    (folder / "a").write_bytes(b"1")
    journal.add("a", "f" * 64)
    with (tmp_path / "j").open("a") as file:
        file.write(line + "\n")
    (folder / "half").write_bytes(b"2")
    assert pipeline.Journal(tmp_path / "j", folder, "stamp").files == {"a": (1, "f" * 64)}
    assert not (folder / "half").exists()
    assert pipeline.Journal(tmp_path / "j", folder, "another").files == {}
    assert list(folder.iterdir()) == []


def test_the_manifest_says_what_went_in(host: Host, hub: Hub, shards: list[str]) -> None:
    assert host.run(plan_of(host, hub, RESHARD))["ok"]
    raw = manifest.read(host.checkpoints / "abc123").raw
    [inputs] = raw["inputs"]
    assert (inputs["repo"], inputs["revision"]) == (REPO, revision_of(REPO))
    # Each file that bytes came from, and none that only the plan read.
    assert set(inputs["files"]) == {*shards, "config.json"}
    first = hub.store.entry(REPO, shards[0])
    assert first is not None
    assert inputs["files"][shards[0]] == {"size": first.size, "sha256": first.sha256}


@pytest.mark.parametrize("keep_source", [True, False])
def test_a_donor_gives_only_the_files_that_hold_what_is_wanted(
    host: Host, hub: Hub, shards: list[str], tmp_path: Path, keep_source: bool
) -> None:
    """The graft of a hub's base and a hub's donor is the one of local folders; the experts stay away."""
    import models
    from staged import CUT, GRAFT, apply

    shutil.rmtree(hub.store.root / REPO)
    base = write_repo(hub.store.root / REPO, models.hybrid_base())
    donor = write_repo(hub.store.root / "org/donor", models.donor_files())
    graft = {**GRAFT, "donor": {"repo": "org/donor", "revision": revision_of("org/donor")}}
    plan = plan_of(host, hub, graft, CUT, keep_source=keep_source)
    assert host.run(plan)["ok"]
    folders = [next(iter(view.values())).parent for view in (base, donor)]
    expected = apply(folders[0], tmp_path / "local", GRAFT, CUT, donor=folders[1])
    found = made(host)
    raw = json.loads(found.pop("manifest.json"))
    local = {name: path.read_bytes() for name, path in chain.folder_view(expected).items()}
    differing = {name for name in {*found, *local} if found.get(name) != local.get(name)}
    assert differing <= {"config.json"}  # it names the donor
    files = sorted(name for name in models.donor_files() if name.endswith(".safetensors"))
    sent: dict[str, int] = {}
    for one in hub.requests.listed():
        if "donor" in one["path"] and "__objects" in one["path"]:
            name = one["path"].rpartition("/")[2]
            sent[name] = sent.get(name, 0) + one["bytes"]
    first, experts = (len(models.donor_files()[name]) for name in files)
    assert sent[files[0]] >= first and sent[files[1]] < experts / 4  # of the experts only the header
    assert [one["repo"] for one in raw["inputs"]] == [REPO, "org/donor"]
    assert set(raw["inputs"][1]["files"]) == {files[0]}
    assert raw["transforms"][0]["donor"]["revision"] == revision_of("org/donor")
    assert (host.downloads / "org--donor" / revision_of("org/donor")).exists() is keep_source
