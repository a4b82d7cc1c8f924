"""Volumes with what engines compiled: whose image is gone go, and one's own after three failed starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onhost import caches
from sparkstack import engine_cache


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
                gone = self.gone and words[-1] == "sparkstack/vllm:0b"
                code, error = (1, "Error: No such image: x") if gone else (0, "")
            case ("volume", "rm"):
                code = int(self.busy)
                self.removed += [] if self.busy else [words[2]]
        return subprocess.CompletedProcess(list(words), code, out, error)


def went_down(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host finds whose power went while its engine ran."""
    boot = state_dir / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(caches, "BOOT", boot)
    caches.begins(state_dir)
    boot.write_text("two\n")


@pytest.mark.parametrize(
    ("docker", "down", "removed"),
    [
        (Docker(), False, ["old"]),
        (Docker(gone=False), False, []),
        # A release that was served before may be gone back to, so that all of them go.
        (Docker(gone=False), True, ["mine", "old"]),
        (Docker(), True, ["mine", "old"]),
        (Docker(busy=True), True, []),
        (Docker(works=False), True, []),
    ],
)
def test_what_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Docker, down: bool, removed: list[str]
) -> None:
    monkeypatch.setattr(caches, "docker", docker)
    if down:
        went_down(tmp_path, monkeypatch)
    said = caches.tidy(tmp_path)
    assert docker.removed == removed and len(said) == len(removed)
    assert all(line.endswith(": this host went down while its engine ran") for line in said) or not down
    # Where something is left that may be half there, the next start looks again.
    assert caches.broke_off(tmp_path) is (down and not removed)


def test_a_host_that_went_down_with_its_engine_is_known_until_that_is_dealt_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not caches.broke_off(tmp_path)  # no engine ran yet
    caches.begins(tmp_path)
    assert not caches.broke_off(tmp_path)  # an engine that was killed, on a host that runs on
    went_down(tmp_path, monkeypatch)
    assert caches.broke_off(tmp_path)
    caches.begins(tmp_path)
    assert caches.broke_off(tmp_path)
    caches.begins(tmp_path / "not there")  # nothing is raised


def test_the_core_gives_the_volumes_the_label_that_the_host_looks_for() -> None:
    assert engine_cache.LABEL == caches.LABEL
