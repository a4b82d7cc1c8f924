"""Volumes with what engines compiled: whose image is gone go, and one's own after three failed starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
    ("docker", "distrust", "removed"),
    [
        (Docker(), False, ["old"]),
        (Docker(gone=False), False, []),
        (Docker(gone=False), True, ["mine"]),
        (Docker(), True, ["mine", "old"]),
        (Docker(busy=True), True, []),
        (Docker(works=False), True, []),
    ],
)
def test_what_goes(
    monkeypatch: pytest.MonkeyPatch, docker: Docker, distrust: bool, removed: list[str]
) -> None:
    monkeypatch.setattr(caches, "docker", docker)
    said = caches.tidy("sparkstack/vllm:0a", distrust)
    assert docker.removed == removed and len(said) == len(removed)
    if removed == ["mine"]:
        assert said == ["what engines compiled in mine is removed: this host went down while its engine ran"]


def test_a_host_that_went_down_with_its_engine_is_known_at_its_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(caches, "BOOT", boot)
    assert not caches.broke_off(tmp_path)  # no engine ran yet
    caches.begins(tmp_path)
    assert not caches.broke_off(tmp_path)  # an engine that was killed, on a host that runs on
    boot.write_text("two\n")
    assert caches.broke_off(tmp_path)
    caches.begins(tmp_path)
    assert not caches.broke_off(tmp_path)
    caches.begins(tmp_path / "not there")  # nothing is raised
