"""The hub stand-in, asked by the real client: what it serves, how it refuses, and each of its faults."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lab.hub import Hub, serve

REPO = "lab/model"
REVISION = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": b'{"a": 1}',
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "empty.txt": b"",
    "deep/er/name with space.txt": b"x",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "models"
    for name, data in FILES.items():
        (root / REPO / name).parent.mkdir(parents=True, exist_ok=True)
        (root / REPO / name).write_bytes(data)
    (root / "revisions.json").write_text(json.dumps({REPO: REVISION}))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what the client writes, and resumes, by
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    hub = serve(root, page=2)
    yield hub
    hub.stop()


def fetch(hub: Hub, tmp_path: Path, **more: Any) -> Path:
    return Path(
        snapshot_download(
            REPO, endpoint=hub.url, local_dir=tmp_path / "got", token=more.pop("token", False), **more
        )
    )


def one(hub: Hub, tmp_path: Path, name: str, **more: Any) -> bytes:
    more = {"token": False, "local_dir": tmp_path / "one", **more}
    return Path(hf_hub_download(REPO, name, endpoint=hub.url, **more)).read_bytes()


def arm(hub: Hub, **fault: Any) -> None:
    assert httpx.post(f"{hub.url}/__faults", json=fault).status_code == 200


def test_a_snapshot_is_the_folder(hub: Hub, tmp_path: Path) -> None:
    got = fetch(hub, tmp_path)
    found = {
        path.relative_to(got).as_posix(): path.read_bytes()
        for path in got.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    assert found == FILES


def test_info_refs_tree_and_paths(hub: Hub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    info = api.model_info(REPO, files_metadata=True)
    assert (info.sha, info.gated) == (REVISION, False)
    weights = next(one for one in info.siblings or [] if one.rfilename == "model-00001-of-00002.safetensors")
    assert weights.size == len(WEIGHTS)
    assert weights.lfs is not None and weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert api.list_repo_refs(REPO).branches[0].target_commit == REVISION
    tree = [entry.path for entry in api.list_repo_tree(REPO, recursive=True)]
    assert tree == sorted([*FILES, "deep", "deep/er"])
    assert [entry.path for entry in api.list_repo_tree(REPO, "deep")] == ["deep/er"]
    assert len([r for r in hub.requests.listed() if "/tree/" in r["path"]]) > 3, "in pages"
    (path,) = api.get_paths_info(REPO, ["config.json", "absent"])
    assert (path.path, getattr(path, "size", None)) == ("config.json", 8)


def test_ranges(hub: Hub) -> None:
    url = f"{hub.url}/{REPO}/resolve/main/model-00001-of-00002.safetensors"
    with httpx.Client(follow_redirects=True) as client:
        for asked, wanted in {
            "bytes=10-19": WEIGHTS[10:20],
            "bytes=102390-": WEIGHTS[102390:],
            "bytes=-5": WEIGHTS[-5:],
        }.items():
            answer = client.get(url, headers={"Range": asked})
            assert (answer.status_code, answer.content) == (206, wanted)
        assert client.get(url, headers={"Range": f"bytes={len(WEIGHTS)}-"}).status_code == 416
        stale = {"Range": "bytes=10-", "If-Range": '"other"'}
        assert client.get(url, headers=stale).content == WEIGHTS


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("lab/other")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="f" * 40)
    with pytest.raises(EntryNotFoundError):
        one(hub, tmp_path, "absent.json")
    assert httpx.get(f"{hub.url}/{REPO}/resolve/main/..%2f..%2frevisions.json").status_code == 404


def test_a_gated_repository(hub: Hub, tmp_path: Path) -> None:
    rules = {"gated": [REPO], "tokens": {"hf_member": [REPO], "hf_stranger": []}}
    (hub.store.root / "access.json").write_text(json.dumps(rules))
    assert HfApi(endpoint=hub.url, token=False).model_info(REPO).gated == "manual"
    for token in (False, "hf_stranger"):
        with pytest.raises(GatedRepoError, match="Access to model lab/model is restricted"):
            one(hub, tmp_path, "config.json", token=token)
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(endpoint=hub.url, token="hf_made_up").model_info(REPO)
    assert one(hub, tmp_path, "config.json", token="hf_member") == FILES["config.json"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_fault_status_passes_after_count(hub: Hub, tmp_path: Path, status: int) -> None:
    arm(hub, path="/api/models/*/revision/*", kind="status", status=status, headers={"Retry-After": "0"})
    url = f"{hub.url}/api/models/{REPO}/revision/main"
    assert [httpx.get(url).status_code for _ in range(2)] == [status, 200]
    assert httpx.get(url).json()["sha"] == REVISION


def logged(hub: Hub, count: int, prefix: str = "/") -> list[dict[str, Any]]:
    """The GETs below `prefix`, once there are `count`: an answer's line is written after its last byte, and
    the client can be ahead of it."""
    until = time.monotonic() + 5
    while True:
        found = [r for r in hub.requests.listed() if r["method"] == "GET" and r["path"].startswith(prefix)]
        if len(found) >= count or time.monotonic() > until:
            return found
        time.sleep(0.01)


def test_fault_cut_is_resumed_by_the_client(hub: Hub, tmp_path: Path) -> None:
    arm(hub, path="*model-00001*", kind="cut", after_bytes=70000)
    assert one(hub, tmp_path, "model-00001-of-00002.safetensors") == WEIGHTS
    gets = logged(hub, 2, "/__objects/")
    assert [(r["range"], r["status"]) for r in gets] == [(None, 200), ("bytes=70000-", 206)]
    assert [r["bytes"] for r in gets] == [70000, len(WEIGHTS) - 70000]


def test_fault_stall_ends_with_the_clients_patience(hub: Hub, tmp_path: Path) -> None:
    arm(hub, path="*model-00001*", kind="stall", after_bytes=1000)
    began = time.monotonic()
    assert one(hub, tmp_path, "model-00001-of-00002.safetensors") == WEIGHTS
    assert 0.9 < time.monotonic() - began < 5


def test_fault_slow_takes_its_time(hub: Hub, tmp_path: Path) -> None:
    arm(hub, path="*model-00001*", kind="slow", bytes_per_second=len(WEIGHTS) * 4)
    began = time.monotonic()
    assert one(hub, tmp_path, "model-00001-of-00002.safetensors") == WEIGHTS
    assert 0.2 < time.monotonic() - began < 2


def test_fault_corrupt_flips_one_byte(hub: Hub, tmp_path: Path) -> None:
    arm(hub, path="*model-00001*", kind="corrupt", after_bytes=5)
    got = one(hub, tmp_path, "model-00001-of-00002.safetensors")
    assert [i for i, (a, b) in enumerate(zip(got, WEIGHTS, strict=True)) if a != b] == [5]


def test_faults_are_listed_cleared_and_checked(hub: Hub) -> None:
    arm(hub, path="*", kind="cut", count=None)
    (listed,) = httpx.get(f"{hub.url}/__faults").json()
    assert (listed["kind"], listed["count"]) == ("cut", None)
    assert httpx.delete(f"{hub.url}/__faults").json() == []
    answer = httpx.post(f"{hub.url}/__faults", json={"path": "*", "kind": "rust"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "fault kind 'rust'; wanted one of status, cut, stall, slow, corrupt"


def test_the_log_of_requests(hub: Hub, tmp_path: Path) -> None:
    one(hub, tmp_path, "config.json")
    logged(hub, 1)
    (seen,) = [r for r in httpx.get(f"{hub.url}/__requests").json() if r["method"] == "GET"]
    assert (seen["path"], seen["status"], seen["bytes"]) == (f"/{REPO}/resolve/main/config.json", 200, 8)
    assert httpx.delete(f"{hub.url}/__requests").json() == []
