"""Job checkpoint against the stand-in hub: what it makes, keeps after a kill, and says when it fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from deadly import Deadly, end_of, in_a_child
from making import EXTRA, FIRST, SECOND, contents, model_files, revision_of, safetensors
from spark import REPO, Host

from lab.hub import Hub
from onhost.locks import exclusive
from onhost.staging import chain, checkpoint, download, folder, manifest, ranged, verify

STEPS = ({"name": "register_mtp"}, {"name": "reshard", "max_shard_bytes": 600})


def arm(hub: Hub, path: str, kind: str, **rest: Any) -> None:
    hub.faults.arm({"path": path, "kind": kind, **rest})


def sent(hub: Hub, name: str) -> int:
    """Bytes that the hub has sent of a file."""
    return sum(r["bytes"] for r in hub.requests.listed() if r["path"].endswith(name) and r["method"] == "GET")


def settle(hub: Hub) -> None:
    """Waits until the answers to a killed client have ended, then empties the log."""
    seen = -1
    while seen != len(hub.requests.listed()):
        seen = len(hub.requests.listed())
        time.sleep(0.6)
    hub.requests.clear()


def leftovers(host: Host) -> list[str]:
    return sorted(p.name for p in host.checkpoints.glob("*")) if host.checkpoints.exists() else []


def test_makes_a_checkpoint(host: Host, hub: Hub) -> None:
    plan = host.checkpoint_plan(hub, *STEPS)
    result = host.run(plan)
    folder = host.checkpoints / "abc123"
    found = manifest.read(folder)
    assert result["value"] == {"id": "abc123", "bytes": found.bytes, "files": len(found.files)}
    assert manifest.faults(folder, found) == []
    assert found.raw["source"] == {"repo": REPO, "revision": revision_of(REPO)}
    assert found.raw["transforms"] == [
        {"name": "register_mtp", "version": 1},
        {"name": "reshard", "version": 2, "max_shard_bytes": 600},
    ]
    assert found.raw["format"] == 1
    assert found.raw["bytes"] == sum(file["size"] for file in found.raw["files"].values())
    weights: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        weights |= contents(path)
    assert weights == {**FIRST, **SECOND, **EXTRA}
    assert leftovers(host) == [".abc123.lock", "abc123"]
    stages = list(dict.fromkeys(line["stage"] for line in host.progress(plan)))
    assert stages == ["list", "headers", "plan", "download", "transform"]
    read_before = {"config.json", "model.safetensors.index.json"}  # a plan is made from these and headers
    last = {line["stage"]: line for line in host.progress(plan)}
    rest = sum(len(content) for name, content in model_files().items() if name not in read_before)
    assert last["download"]["done"] == last["download"]["total"] == rest
    assert last["transform"]["done"] == last["transform"]["total"] == found.bytes
    assert "to download, " in last["plan"]["note"] and "on the disk at a time" in last["plan"]["note"]
    [inputs] = found.raw["inputs"]
    assert inputs["files"]["config.json"]["size"] == 28
    assert len(inputs["files"]["config.json"]["git_sha1"]) == 40
    assert len(inputs["files"]["model_extra_tensors.safetensors"]["sha256"]) == 64
    home = host.downloads / "org--tiny"
    revision = revision_of(REPO)
    assert sorted(p.name for p in home.iterdir()) == [
        f".{revision}.lock", revision, f"{revision}.hub-metadata.json"
    ]  # fmt: skip
    assert chain.folder_view(home / revision_of(REPO)).keys() == model_files().keys()


def test_without_transforms_the_files_are_the_hubs(host: Host, hub: Hub) -> None:
    assert host.run(host.checkpoint_plan(hub))["ok"]
    made = chain.folder_view(host.checkpoints / "abc123")
    del made["manifest.json"]
    assert {name: path.read_bytes() for name, path in made.items()} == model_files()


def test_a_second_run_asks_nobody(host: Host, hub: Hub) -> None:
    plan = host.checkpoint_plan(hub, *STEPS)
    first = host.run(plan)
    hub.requests.clear()
    assert host.run(plan)["value"] == first["value"]
    assert [line["stage"] for line in host.progress(plan)] == ["done"]
    shutil.rmtree(host.checkpoints / "abc123")
    assert host.run(plan)["value"] == first["value"]  # from the downloads, offline
    assert hub.requests.listed() == []


def test_only_allowed_files(host: Host, hub: Hub) -> None:
    assert host.run(host.checkpoint_plan(hub, allow=["config.json", "assets/*"]))["value"]["files"] == 2
    assert sent(hub, ".safetensors") == 0
    shutil.rmtree(host.checkpoints)
    error = host.run(host.checkpoint_plan(hub, allow=["*.bin"]))["error"]
    assert error.startswith("found none of 6 files of org/tiny allowed by ['*.bin']; wanted some")


def test_a_kill_in_the_middle_of_a_download(host: Host, hub: Hub) -> None:
    """kill -9 while a large file comes in: the next run fetches only what was not there."""
    name, part = "model-00001-of-00002.safetensors", 1 << 16
    big = {"big.weight": ("U8", [20 * part], os.urandom(20 * part))}
    (hub.store.root / REPO / name).write_bytes(safetensors({**FIRST, **big}))
    size = (hub.store.root / REPO / name).stat().st_size
    arm(hub, f"*{name}", "slow", bytes_per_second=2 * part, count=None)
    plan = host.checkpoint_plan(hub, *STEPS)

    def prepare() -> None:
        download.SETTINGS = download.Settings(segment=part, streams=4)

    child = in_a_child(prepare, plan)
    journal = host.downloads / "org--tiny" / f"{revision_of(REPO)}.parts" / f"{name}.segments"
    deadline = time.monotonic() + 15
    while not (journal.exists() and journal.read_text().count("\n") > 4) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    assert end_of(child) == -signal.SIGKILL
    kept = journal.read_text().count("\n") - 1
    assert kept >= 4
    assert "abc123" not in leftovers(host)
    hub.faults.clear()
    settle(hub)
    assert end_of(in_a_child(prepare, plan)) == 0
    assert host.result(plan)["ok"]
    assert sent(hub, name) <= size - kept * part
    assert sent(hub, "config.json") == 0
    assert manifest.faults(host.checkpoints / "abc123", manifest.read(host.checkpoints / "abc123")) == []


@pytest.mark.parametrize("keep_source", [True, False])
def test_a_kill_at_every_moment(tmp_path: Path, hub: Hub, keep_source: bool) -> None:
    """kill -9 before each sync, rename, link and removal: old state or new, and the next run completes it."""
    for name in ("assets/chat.txt", "model-00002-of-00002.safetensors"):
        (hub.store.root / REPO / name).unlink()  # fewer moments, each of its kind still there
    index = {"weight_map": dict.fromkeys(FIRST, "model-00001-of-00002.safetensors")}
    (hub.store.root / REPO / "model.safetensors.index.json").write_text(json.dumps(index))

    def planned(host: Host) -> Path:
        plan = host.checkpoint_plan(hub, *STEPS)
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "keep_source": keep_source}))
        return plan

    def made(host: Host) -> dict[str, bytes]:
        return {n: p.read_bytes() for n, p in chain.folder_view(host.checkpoints / "abc123").items()}

    first = Host(tmp_path / "whole")
    assert end_of(in_a_child(lambda: Deadly(None, tmp_path / "count"), planned(first))) == 0
    moments, reference = int((tmp_path / "count").read_text()), made(first)
    assert moments > 30
    # All of them are a minute's work: ./test does it, ./test --fast takes some.
    step = 1 if os.environ.get("THOROUGH_TESTS") else 31
    for moment in range(1, moments + 1, step):
        host = Host(tmp_path / f"at-{moment}")
        plan = planned(host)
        ended = end_of(in_a_child(lambda moment=moment: Deadly(moment, tmp_path), plan))  # type: ignore[misc]
        assert ended in (-signal.SIGKILL, 0)  # 0: threads took another turn, and there was no such moment
        if (host.checkpoints / "abc123").exists():
            assert made(host) == reference
        assert host.run(plan)["ok"]
        assert made(host) == reference
        assert leftovers(host) == [".abc123.lock", "abc123"]
        downloads = host.downloads / "org--tiny"
        left = sorted(p.name for p in downloads.iterdir())
        revision = revision_of(REPO)
        whole = [f".{revision}.lock", *([revision] if keep_source else []), f"{revision}.hub-metadata.json"]
        assert left == whole, moment


def test_a_cut_stream_is_resumed(host: Host, hub: Hub) -> None:
    name = "model-00001-of-00002.safetensors"
    arm(hub, f"*{name}", "cut", after_bytes=70, count=5)
    assert host.run(host.checkpoint_plan(hub))["ok"]
    size = len(model_files()[name])
    assert sent(hub, name) == size  # not a byte twice


def test_a_stall_ends_and_is_retried(host: Host, hub: Hub) -> None:
    arm(hub, "*model-00001*", "stall", after_bytes=50, count=1)
    assert host.run(host.checkpoint_plan(hub))["ok"]


def test_a_stall_without_end_is_told(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    arm(hub, "*model-00001*", "stall", after_bytes=0, count=None)
    monkeypatch.setattr(ranged, "ATTEMPTS", 2)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(
        "found no byte for 0.5 s (ReadTimeout) for model-00001-of-00002.safetensors, 2 times;"
    )
    assert "wanted its bytes; check the network and run again, what is here is kept" in error


def test_wrong_bytes_once_are_fetched_again(host: Host, hub: Hub) -> None:
    arm(hub, "*model-00001*", "corrupt", after_bytes=100, count=1)
    arm(hub, "*config.json", "corrupt", after_bytes=3, count=1)
    assert host.run(host.checkpoint_plan(hub))["ok"]


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "config.json"])
def test_wrong_bytes_twice_are_told(host: Host, hub: Hub, name: str) -> None:
    arm(hub, f"*{name}", "corrupt", after_bytes=3, count=None)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(f"found {name} with ") and ", twice; wanted the content that" in error
    assert "abc123" not in leftovers(host)


@pytest.mark.parametrize(
    ("status", "headers", "found"),
    [
        (401, {}, "found HTTP 401 for org/tiny at {url} without a token; wanted access"),
        (403, {}, "found HTTP 403 for org/tiny at {url} without a token; wanted access; accept the"),
        (404, {}, "found HTTP 404 for org/tiny at revision "),
        (429, {"Retry-After": "7"}, "found HTTP 429 (too many requests) for org/tiny"),
        (500, {}, "found HTTP 500 for org/tiny at {url}; wanted 200; run again later"),
    ],
)
def test_refusals_of_the_list(
    host: Host, hub: Hub, status: int, headers: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    arm(hub, "/api/models/*", "status", status=status, headers=headers, count=None)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(found.format(url=hub.url))
    if status == 429:
        assert "run again in 7 s, or set a hub token" in error


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
@pytest.mark.parametrize("status", [401, 403, 404, 429])
def test_refusals_of_a_file(
    host: Host, hub: Hub, name: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    arm(hub, f"/org/tiny/resolve/*{name}", "status", status=status, count=None)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(f"found HTTP {status}") and "org/tiny" in error


@pytest.mark.parametrize("path", ["/api/models/*", "*model-00001*"])
def test_a_hub_that_asks_for_a_long_pause(host: Host, hub: Hub, path: str) -> None:
    """A short one is waited for; from a minute on the run ends at once, and says when to come again."""
    arm(hub, path, "status", status=429, headers={"Retry-After": "0"}, count=2)
    assert host.run(host.checkpoint_plan(hub))["ok"]
    shutil.rmtree(host.root / "checkpoints")
    shutil.rmtree(host.downloads)
    arm(hub, path, "status", status=429, headers={"Retry-After": "3600"}, count=None)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith("found HTTP 429 (too many requests) for org/tiny")
    assert "run again in 3600 s, or set a hub token" in error


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_a_mirror_that_sends_elsewhere_for_the_bytes(host: Host, hub: Hub, name: str) -> None:
    hub.data_url = "http://127.0.0.2:9"
    os.truncate(hub.store.root / REPO / "config.json", 11 << 20)  # a large file is no part of the repository
    error = host.run(host.checkpoint_plan(hub, allow=[name]))["error"]
    assert error.startswith(f"found {hub.url} sending to 127.0.0.2 for {name}, and 127.0.0.2 not reachable (")
    assert "; use a mirror that holds the files itself, or let this host reach 127.0.0.2" in error


def test_a_list_that_does_not_come(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from onhost.staging import hub as client

    monkeypatch.setattr(client, "API_TIMEOUT", 0.2)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    arm(hub, "/api/models/*", "stall", after_bytes=9, count=2)
    assert host.run(host.checkpoint_plan(hub))["ok"]
    shutil.rmtree(host.root / "checkpoints")
    shutil.rmtree(host.downloads)
    arm(hub, "/api/models/*", "cut", after_bytes=9, count=None)
    assert host.run(host.checkpoint_plan(hub))["error"].startswith(f"found {hub.url} unreachable (")


def test_a_page_of_the_list_that_fails(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six files in pages of three: the second page's refusal must not make a smaller repository."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    real, calls = hub.faults.take, []

    def take(method: str, path: str, *, body: bool) -> Any:
        if "/tree/" in path and not body:
            calls.append(path)
            if len(calls) > 1:
                hub.faults.arm({"path": path, "kind": "status", "status": 404})
        return real(method, path, body=body)

    monkeypatch.setattr(hub.faults, "take", take)
    assert host.run(host.checkpoint_plan(hub))["error"].startswith("found HTTP 404 for org/tiny")
    assert not list(host.downloads.rglob("*.hub-metadata.json"))


def test_a_trickle_is_a_stall(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes now and then are no progress; another connection is."""
    monkeypatch.setattr(ranged, "LEAST_RATE", 100)
    quick = download.Settings(segment=200, streams=4, stall=0.3, pause=0.01)
    monkeypatch.setattr(download, "SETTINGS", quick)
    name = "model-00001-of-00002.safetensors"
    arm(hub, f"/__objects/*{name}", "slow", bytes_per_second=20, count=3)
    assert host.run(host.checkpoint_plan(hub))["ok"]
    assert sent(hub, name) < len(model_files()[name]) + 60  # what came was kept


def test_a_hub_that_is_busy_for_a_moment(host: Host, hub: Hub) -> None:
    arm(hub, "*model-00001*", "status", status=503, count=2)
    assert host.run(host.checkpoint_plan(hub))["ok"]


def test_names_and_revisions_that_cannot_be(host: Host, hub: Hub) -> None:
    error = host.run(host.checkpoint_plan(hub, revision="main"))["error"]
    assert error.startswith("found the revision 'main' for org/tiny; wanted a commit (40 hex digits)")
    error = host.run(host.checkpoint_plan(hub, revision="0" * 40))["error"]
    assert error.startswith("found HTTP 404 for org/tiny at revision 000000000000; wanted that revision")
    error = host.run(host.checkpoint_plan(hub, repo="tiny"))["error"]
    assert error.startswith("found the repository 'tiny'; wanted org/name")
    error = host.run(host.checkpoint_plan(hub, repo="org/none"))["error"]
    assert error.startswith("found HTTP 401 for org/none") and "check the repository's name" in error


def test_tokens_are_sent_and_never_shown(host: Host, hub: Hub, tmp_path: Path) -> None:
    (hub.store.root / "access.json").write_text(json.dumps({"gated": [REPO], "tokens": {"hf_right": [REPO]}}))
    for value, good in (("hf_wrong", False), ("hf_right", True)):
        (tmp_path / "hf").write_text(value + "\n")
        plan = host.checkpoint_plan(hub, token_file=str(tmp_path / "hf"))
        result = host.run(plan)
        assert result["ok"] is good
        assert value not in (host.folder(plan) / "result.json").read_text()
        assert value not in (host.folder(plan) / "progress.jsonl").read_text()
        if not good:
            assert "with the site's token; wanted access" in result["error"]
    # Whoever may list a gated repository may not have its files: the hub says so with a word of its own.
    shutil.rmtree(host.checkpoints)
    shutil.rmtree(host.downloads)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(f"found HTTP 401 for {REPO}/")
    assert error.endswith(" without a token; wanted access; accept the repository's terms on its page and "
                          "set a hub token of that account")  # fmt: skip
    error = host.run(host.checkpoint_plan(hub, token_file=str(tmp_path / "none")))["error"]
    assert error.startswith(f"found no readable secret at {tmp_path / 'none'}")


def test_no_hub_there(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    plan = host.checkpoint_plan(hub, endpoint="http://127.0.0.1:9")
    assert host.run(plan)["error"].startswith("found http://127.0.0.1:9 unreachable (")


def test_a_disk_too_small_is_told_before(host: Host, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith("found 100 B free at ") and "for checkpoint abc123; free some space" in error
    assert sent(hub, ".safetensors") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("left", ["400k", "12k", "8k", "4k", "0"])
@pytest.mark.parametrize(("place", "steps"), [("downloads", ()), ("checkpoints", ()), ("checkpoints", STEPS)])
def test_a_disk_that_fills_up(
    host: Host,
    hub: Hub,
    place: str,
    steps: tuple[dict[str, Any], ...],
    left: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it happens: with some pages left in a weight, with none in the smallest note."""
    big = hub.store.root / REPO / "model-00003.safetensors"
    big.write_bytes(safetensors({"big": ("U8", [600_000], os.urandom(600_000))}))
    full = host.root / place
    full.mkdir()
    options = f"size={left}" if left != "0" else "size=4k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(full)], check=True)
    if left == "0":
        (full / "of somebody").write_bytes(bytes(4096))
    try:
        # As if others ate the space meanwhile.
        monkeypatch.setattr(checkpoint, "need_space", lambda *_: None)
        monkeypatch.setattr(download, "SETTINGS", download.Settings(streams=4, pause=0.01))
        error = host.run(host.checkpoint_plan(hub, *steps))["error"]
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
    assert error.startswith(f"found no space left at {full}")
    assert error.endswith("wanted room for the job's files; free some space and run again")


def test_a_download_damaged_later(host: Host, hub: Hub) -> None:
    plan = host.checkpoint_plan(hub)
    assert host.run(plan)["ok"]
    shutil.rmtree(host.checkpoints / "abc123")
    path = host.downloads / "org--tiny" / revision_of(REPO) / "model-00001-of-00002.safetensors"
    stat = path.stat()
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as bad flash does it: no new time
    error = host.run(plan)["error"]
    assert error.startswith(f"found {path.name} with another sha256 than the hub announced")
    assert "abc123" not in leftovers(host)
    assert host.run(plan)["ok"]
    blob[0] ^= 1
    path.unlink()
    path.write_bytes(blob)  # and with a new time: seen and mended within the run
    shutil.rmtree(host.checkpoints / "abc123")
    assert host.run(plan)["ok"]


def test_a_final_folder_that_is_not_whole(host: Host, hub: Hub) -> None:
    plan = host.checkpoint_plan(hub)
    folder = host.checkpoints / "abc123"
    assert host.run(plan)["ok"]
    whole = (folder / "manifest.json").read_text()
    (folder / "manifest.json").unlink()
    (folder / "left-over").write_text("of somebody")
    assert host.run(plan)["ok"], "without its manifest a folder is only parts"
    assert (folder / "manifest.json").read_text() == whole and not (folder / "left-over").exists()
    (folder / "left-over").write_text("of somebody")
    error = host.run(plan)["error"]
    assert error.startswith(f"found left-over in {folder}, which its manifest does not know; wanted only its")
    assert (folder / "left-over").read_text() == "of somebody"


def test_one_job_a_checkpoint(host: Host, hub: Hub) -> None:
    with folder.claimed(host.checkpoints, "abc123"):
        error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(f"found another job at work on checkpoint abc123 (process {os.getpid()} on ")
    assert "Z); wanted to be alone; wait for it and run again" in error  # since when
    host.downloads.joinpath("org--tiny").mkdir(parents=True)
    with exclusive(host.downloads / "org--tiny" / f".{revision_of(REPO)}.lock"):
        error = host.run(host.checkpoint_plan(hub))["error"]
    assert error.startswith(f"found another job at work on the files of org/tiny (process {os.getpid()} on ")


def damage(path: Path, at: int = -1) -> None:
    """One bit is wrong, in a file of its own (the download has the same inode)."""
    blob = bytearray(path.read_bytes())
    blob[at] ^= 1
    path.unlink()
    path.write_bytes(blob)


def test_verify(host: Host, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.run(host.checkpoint_plan(hub))["ok"]
    stands = host.checkpoints / "abc123"
    assert verify.verify(stands, hashes=True) == 0
    assert "6 files" in capsys.readouterr().out
    shutil.copy(stands / "config.json", stands / "more.json")
    (stands / "assets/chat.txt").unlink()
    damage(stands / "model-00001-of-00002.safetensors", at=9)  # within the header
    damage(stands / "model-00002-of-00002.safetensors")
    damage(stands / "model.safetensors.index.json")
    told = ["assets/chat.txt", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "model.safetensors.index.json", "more.json"]  # fmt: skip
    assert verify.verify(stands, hashes=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == told
    assert "missing" in lines[0] and "header" in lines[1] and "sha256" in lines[2] and "sha256" in lines[3]
    assert verify.verify(stands, hashes=False) == 1  # what the headers do not show is left to the hashes
    quick = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert quick == [name for name in told if name != "model-00002-of-00002.safetensors"]
    assert verify.verify(host.root, hashes=False) == 1
    assert "without manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a//b", "", ".", "a\\b", "./a"])
def test_names_that_leave_the_folder(name: str) -> None:
    from onhost.files import safe_relative
    from onhost.plan import JobError

    with pytest.raises(JobError, match="wanted a relative path inside the folder"):
        safe_relative(name)
