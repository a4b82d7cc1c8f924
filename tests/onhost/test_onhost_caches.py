"""Volumes with what engines compiled: whose image is gone go, and one's own after three failed starts."""

from __future__ import annotations

import subprocess

import pytest

from onhost import caches


class Docker:
    """Two volumes: of the release's image, and of one that is `gone` or not."""

    def __init__(self, gone: bool = True, works: bool = True, busy: bool = False) -> None:
        self.gone, self.works, self.busy = gone, works, busy
        self.removed: list[str] = []

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        code, out, error = 0, "", ""
        match words[:2]:
            case ("volume", "ls"):
                code = int(not self.works)
                out = "mine sparkstack/vllm:0a\nold sparkstack/vllm:0b\n" if self.works else ""
            case ("image", "inspect"):
                assert words[-1] == "sparkstack/vllm:0b"
                code, error = (1, "Error: No such image: x") if self.gone else (0, "")
            case ("volume", "rm"):
                code = int(self.busy)
                self.removed += [] if self.busy else [words[2]]
        return subprocess.CompletedProcess(list(words), code, out, error)


@pytest.mark.parametrize(
    ("docker", "failed", "removed"),
    [
        (Docker(), 0, ["old"]),
        (Docker(gone=False), 0, []),
        (Docker(gone=False), 2, []),
        (Docker(gone=False), 3, ["mine"]),
        (Docker(gone=False), 4, []),  # it was not the cache: what was compiled since then is kept
        (Docker(), 3, ["mine", "old"]),
        (Docker(busy=True), 3, []),
        (Docker(works=False), 3, []),
    ],
)
def test_what_goes(monkeypatch: pytest.MonkeyPatch, docker: Docker, failed: int, removed: list[str]) -> None:
    monkeypatch.setattr(caches, "docker", docker)
    said = caches.tidy("sparkstack/vllm:0a", failed)
    assert docker.removed == removed and len(said) == len(removed)
    if removed == ["mine"]:
        assert said == ["what engines compiled in mine is removed: 3 starts in a row failed"]
