"""Fixtures of the tests of onhost: a hub, a share, plans and runs of the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from making import model_files, revision_of, write_repo

from lab.hub import Hub, serve
from onhost.share import Share

ROOT = Path(__file__).resolve().parent.parent.parent
REPO = "org/tiny"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with the model of `making.model_files` as org/tiny."""
    write_repo(tmp_path / "hub" / REPO, model_files())
    server = serve(tmp_path / "hub", page=3)
    yield server
    server.stop()


class Host:
    """A Spark's folders below a temporary one, and the command that runs there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs, self.checkpoints = root / "jobs", root / "checkpoints"
        self.downloads, self.home = root / "downloads", root / "home"
        for folder in (self.jobs, self.home):
            folder.mkdir(parents=True)

    def write_plan(self, kind: str, **keys: Any) -> Path:
        path = self.root / f"{kind}.json"
        path.write_text(
            json.dumps({"job": f"sparkstack-{kind}-1", "kind": kind, "jobs_dir": str(self.jobs), **keys})
        )
        return path

    def checkpoint_plan(self, hub: Hub, *transforms: dict[str, Any], **source: Any) -> Path:
        return self.write_plan(
            "checkpoint",
            id="abc123",
            source={"repo": REPO, "revision": revision_of(REPO), "endpoint": hub.url, **source},
            transforms=list(transforms),
            downloads_dir=str(self.downloads),
            checkpoints_dir=str(self.checkpoints),
        )

    def command(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "onhost", *arguments],
            cwd=ROOT,
            env={**os.environ, "HOME": str(self.home), **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, plan: Path) -> dict[str, Any]:
        """Runs a job in this process and returns its result."""
        from onhost import jobs

        status = jobs.main(str(plan))
        result = self.result(plan)
        assert status == (0 if result["ok"] else 1)
        return result

    def result(self, plan: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(plan) / "result.json").read_text())
        if not found["ok"]:
            assert "\n" not in found["error"]
            assert found["error"].startswith("found ") and found["error"].count("; ") >= 2, found["error"]
        return found

    def folder(self, plan: Path) -> Path:
        return self.jobs / str(json.loads(plan.read_text())["job"])

    def progress(self, plan: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder(plan) / "progress.jsonl").read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "head")


@pytest.fixture
def worker(tmp_path: Path) -> Host:
    return Host(tmp_path / "worker")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret-share-token\n")
    return path


@pytest.fixture
def share(host: Host, token: Path) -> Iterator[str]:
    """The head's share, by URL."""
    server = Share(("127.0.0.1", 0), token, host.checkpoints)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments and short pauses, so that small files show what large ones do."""
    from onhost.staging import download, fetch

    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test cuts the power, and a busy disk takes its time

    quick = download.Settings(large=500, segment=200, streams=4, stall=0.5, pause=0.01)
    monkeypatch.setattr(download, "SETTINGS", quick)
    monkeypatch.setattr(fetch, "SEGMENT", 200)
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
