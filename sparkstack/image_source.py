"""How an image comes about: a layer on a base, vLLM built from source, or a base taken as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sparkstack.recipe_fields import _pattern
from sparkstack.release import image_id
from sparkstack.schema import Strict, matching, refusal

Build = Literal["layer", "source", "pull"]
"""layer: the plugin on a base that has vLLM. source: vLLM built on a base with CUDA's compiler, and the
plugin. pull: the base itself, which somebody built with this project; nothing is built."""

_COMMIT = (r"[0-9a-f]{40}", "a commit (40 hex digits, in quotes)")
_SHA256 = (r"[0-9a-f]{64}", "a SHA-256 (64 hex digits, in quotes)")
_TORCH = (r"(torch|torchvision|torchaudio)==[0-9][0-9A-Za-z.+]*", "torch==VERSION, or its two companions")
_HTTPS = (r"https://[^\s'\"\\$]+", "an https URL")
_PYTHON = (r"3\.[0-9]{1,2}", "a version of Python such as 3.12, in quotes")
_TARGET = r"[0-9]+\.[0-9][af]?(\+PTX)?"
_ARCHITECTURES = (rf"{_TARGET}([ ;]{_TARGET})*", "CUDA targets such as 12.1a, in quotes")

Commit = Annotated[str, matching(*_COMMIT), _pattern(*_COMMIT)]
Sha256 = Annotated[str, matching(*_SHA256), _pattern(*_SHA256)]
Torch = Annotated[str, matching(*_TORCH), _pattern(*_TORCH)]
Https = Annotated[str, matching(*_HTTPS), _pattern(*_HTTPS)]
Python = Annotated[str, matching(*_PYTHON), _pattern(*_PYTHON)]
Architectures = Annotated[str, matching(*_ARCHITECTURES), _pattern(*_ARCHITECTURES)]

ENCODER_BACKEND = "TORCH_SDPA"
"""vLLM's FlashAttention 2, built for 12.1a, has no code for sm_121 but PTX of the builder's CUDA, which an
older driver cannot compile; the encoder of pictures would use it. torch's own attention has no such limit."""


UV = "0.13.9"
"""The installer in an image that is built from source."""


class Change(Strict):
    """A pull request of vLLM, as one commit of it: `REPOSITORY/commit/COMMIT.diff` with this SHA-256."""

    pull: int = Field(ge=1)
    commit: Commit
    sha256: Sha256


class SourceBuild(Strict):
    """vLLM at `commit` of `repository`, compiled for `cuda_arch` against `torch` of `torch_index`.

    `torch` names exact versions, of torch at least: they are held in every stage of the build. `jobs` is how
    many compilers run side by side; None: as many as vLLM takes.
    """

    repository: Https = "https://github.com/vllm-project/vllm"
    commit: Commit
    torch: list[Torch] = Field(min_length=1)
    torch_index: Https = "https://download.pytorch.org/whl/cu130"
    python: Python = "3.12"
    cuda_arch: Architectures = "12.1a"
    jobs: int | None = Field(default=None, ge=1)
    changes: list[Change] = Field(default_factory=list)

    @model_validator(mode="after")
    def _torch_itself(self) -> SourceBuild:
        names = [one.partition("==")[0] for one in self.torch]
        if "torch" not in names or len(set(names)) < len(names):
            raise refusal("torch==VERSION among `torch`, and each package once")
        return self


def dockerfile_values(source: SourceBuild | None, version: str | None) -> dict[str, Any]:
    """What templates/Dockerfile.source.j2 needs beside the plugin's; {} for the other ways."""
    if source is None:
        return {}
    (torch,) = (one for one in source.torch if one.startswith("torch=="))
    release = torch.partition("==")[2].partition("+")[0]  # 2.10.0+cu130 is torch.__version__ of 2.10.0
    return {**source.model_dump(), "torch_version": release, "version": version, "uv": UV}


def id_of(build: Build, base: str, plugin: str, dockerfile: str, build_args: Mapping[str, str]) -> str:
    """The image's id. What is pulled is its base alone: a changed plugin here is no other image there."""
    return image_id(base, "", "", {}) if build == "pull" else image_id(base, plugin, dockerfile, build_args)


def is_proved(report: Mapping[str, Any] | None, profile: str, version: str | None) -> bool:
    """Did an image with this result of its check (the label) pass for `profile`, and as vLLM `version` (None:
    any)? The version is no part of an image's id: it is what a recipe says of it, so another one has to be
    looked at anew. `onhost.image_check.proved` decides the same on the host."""
    if report is None or report.get("ok") is not True or report.get("profile") != profile:
        return False
    wanted = ("vllm_version", "ok", f"vLLM {version}")
    return version is None or any(
        (line.get("check"), line.get("status"), line.get("wanted")) == wanted
        for line in report.get("lines") or ()
    )
