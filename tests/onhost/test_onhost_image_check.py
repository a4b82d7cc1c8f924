"""The proof of an image: a stand-in for docker runs the check, says what a real one says, and labels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onhost import image, image_check
from onhost.plan import JobError

ID = "sha256:" + "a" * 64
MADE = "sha256:" + "b" * 64
GOOD = {
    "check": "torch_cuda",
    "status": "ok",
    "found": "torch 2.11.0, CUDA 13.0",
    "wanted": "torch with CUDA",
}
BAD = {
    "check": "torch_cuda",
    "status": "failed",
    "found": "torch 2.11.0+cpu, no CUDA",
    "wanted": "torch with CUDA",
}


def report(*lines: dict[str, str], profile: str = "gpu") -> str:
    ok = all(line["status"] != "failed" for line in lines)
    return json.dumps({"format": 1, "ok": ok, "profile": profile, "lines": list(lines)})


class Docker:
    """What `docker run` of the check prints; labels that a build asks for are kept."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, stdout: str = "", stderr: str = "", code: int = 0
    ) -> None:
        self.stdout, self.stderr, self.code = stdout, stderr, code
        self.calls: list[list[str]] = []
        self.labels: dict[str, str] = {}
        monkeypatch.setattr(subprocess, "run", self.run)
        monkeypatch.setattr(image_check, "docker", self.docker)
        monkeypatch.setattr(image_check, "inspect_image", lambda name: {"Config": {"Labels": self.labels}})

    def run(self, command: list[str], **more: Any) -> Any:
        self.calls.append(command)
        if command[1] == "run":
            return SimpleNamespace(returncode=self.code, stdout=self.stdout, stderr=self.stderr)
        key, _, value = command[command.index("--label") + 1].partition("=")
        self.labels[key] = value
        return SimpleNamespace(returncode=0, stdout=MADE + "\n", stderr="")

    def docker(self, *arguments: str) -> Any:
        self.calls.append(["docker", *arguments])
        return SimpleNamespace(returncode=0, stdout="", stderr="")


JOB: Any = SimpleNamespace(progress=SimpleNamespace(stage=lambda *words: None))
GPU = {"profile": "gpu", "vllm": "0.20.2"}


def test_a_passed_check_becomes_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(monkeypatch, stdout="noise of a library\n" + report(GOOD) + "\n")
    assert image_check.prove(JOB, ID, "sparkstack/vllm:t", GPU) == MADE
    run = docker.calls[0]
    assert run[1:4] == ["run", "--rm", "--network"] and "--gpus" in run
    assert run[-5:] == [ID, "--profile", "gpu", "--vllm", "0.20.2"]
    found = {"Config": {"Labels": docker.labels}}
    assert image_check.proved(found, "gpu") and not image_check.proved(found, "cpu")
    # The version that a recipe says is no part of the image's id: another one is looked at anew.
    assert not image_check.proved(found, "gpu", "0.20.2")  # GOOD has no such line
    looked = {"check": "vllm_version", "status": "ok", "found": "vLLM 0.20.2+x", "wanted": "vLLM 0.20.2"}
    cases = [("ok", "0.20.2", True), ("ok", "0.19.1", False), ("not checked", "0.20.2", False)]
    for status, version, right in cases:
        label = {"sparkstack.check": report(looked | {"status": status})}
        assert image_check.proved({"Config": {"Labels": label}}, "gpu", version) is right
    assert ["docker", "image", "rm", "sparkstack/vllm:t-unproved"] in docker.calls


def test_no_gpu_is_asked_for_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker(monkeypatch, stdout=report(GOOD, profile="cpu"))
    image_check.prove(JOB, ID, "sparkstack/vllm:t", {"profile": "cpu", "vllm": None})
    assert "--gpus" not in docker.calls[0] and docker.calls[0][-3:] == [ID, "--profile", "cpu"]


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "error"),
    [
        (
            report(GOOD, BAD),
            "",
            1,
            "found torch 2.11.0+cpu, no CUDA in the image; wanted torch with CUDA; use a base built for this "
            "hardware; a dependency may have exchanged torch",
        ),
        (
            report(BAD, {**BAD, "check": "plugin"}),
            "",
            1,
            "found torch 2.11.0+cpu, no CUDA in the image (and 1 more); wanted torch with CUDA; use a base "
            "built for this hardware; a dependency may have exchanged torch",
        ),
        (
            "",
            'exec: "sparkstack-image-check": executable file not found in $PATH: unknown.',
            127,
            "found no sparkstack-image-check in the image; wanted the plugin in it; use a base with vLLM in "
            "a Python on PATH",
        ),
        (
            "",
            "could not select device driver with capabilities: [[gpu]]",
            125,
            "found no result of sparkstack-image-check: could not select device driver with capabilities: "
            "[[gpu]]; wanted one; see this unit's journal for the whole output",
        ),
        ('{"format": 1, "ok": false, "lines": []}', "", 1, "found sparkstack-image-check without a verdict"),
        ("Traceback", "", 1, "found no result of sparkstack-image-check: status 1 and no word"),
    ],
    ids=["CPU torch", "two faults", "no plugin", "no GPU runtime", "no verdict", "no JSON"],
)
def test_a_failed_check_gives_no_image(
    monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str, code: int, error: str
) -> None:
    docker = Docker(monkeypatch, stdout, stderr, code)
    with pytest.raises(JobError) as caught:
        image_check.prove(JOB, ID, "sparkstack/vllm:t", GPU)
    assert str(caught.value).startswith(error)
    assert [call[1] for call in docker.calls] == ["run"] and not docker.labels


def test_a_profile_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    Docker(monkeypatch)
    with pytest.raises(JobError, match="found the profile None; wanted gpu or cpu"):
        image_check.prove(JOB, ID, "sparkstack/vllm:t", {})


@pytest.mark.parametrize("label", [None, "yes", "[]", '{"ok": true, "profile": "gpu"}', report(BAD)])
def test_what_is_no_proof(label: str | None) -> None:
    labels = None if label is None else {"sparkstack.check": label}
    assert not image_check.proved({"Config": {"Labels": labels}}, "gpu")


def test_the_job_tags_only_what_is_proved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    base = "x/y@sha256:" + "0" * 64
    tagged: list[str] = []
    monkeypatch.setattr(image, "check_tag", lambda tag: tag)
    monkeypatch.setattr(
        image, "inspect_image", lambda name: {"Id": ID, "Size": 1} if name != "t" or tagged else None
    )
    monkeypatch.setattr(image, "pull", lambda job, name, mirrors: name)
    monkeypatch.setattr(image, "_build", lambda *words: ID)
    monkeypatch.setattr(image, "_tag", lambda made, tag: tagged.append(made))
    plan = {"tag": "t", "base": base, "context": str(tmp_path), "build_args": {}, "check": GPU}
    text = SimpleNamespace(text=plan.__getitem__, path=lambda key: Path(str(plan[key])), data=plan)
    job: Any = SimpleNamespace(plan=text, progress=JOB.progress)

    Docker(monkeypatch, stdout=report(BAD), code=1)
    with pytest.raises(JobError, match=r"found torch 2\.11\.0\+cpu, no CUDA in the image"):
        image.build(job)
    assert tagged == []
    Docker(monkeypatch, stdout=report(GOOD))
    image.build(job)
    assert tagged == [MADE]
