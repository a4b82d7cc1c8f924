"""Fixtures of the tests of onhost: a hub, two Sparks, a share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from making import model_files, write_repo
from spark import REPO, Host

from lab.hub import Hub, serve
from onhost.share import Share


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with the model of `making.model_files` as org/tiny."""
    write_repo(tmp_path / "hub" / REPO, model_files())
    server = serve(tmp_path / "hub", page=3)
    yield server
    server.stop()


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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, `donor` and `next`, which no test may change."""
    where = tmp_path_factory.mktemp("models")
    write_repo(where / "base", models.hybrid_base())
    write_repo(where / "donor", models.donor_files())
    write_repo(where / "next", models.next_files())
    return where


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments and short pauses, so that small files show what large ones do."""
    from onhost.staging import download, fetch

    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test cuts the power, and a busy disk takes its time

    quick = download.Settings(segment=200, streams=4, stall=0.5, pause=0.01)
    monkeypatch.setattr(download, "SETTINGS", quick)
    monkeypatch.setattr(fetch, "SEGMENT", 200)
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
