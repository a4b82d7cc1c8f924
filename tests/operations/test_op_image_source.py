"""Images that are not a layer on a base: built from source, or pulled as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_host import commands_of, written

from sparkstack import launch
from sparkstack.image_source import ENCODER_BACKEND
from sparkstack.native import Image
from tasks import image
from tasks.facts import ImageId
from tasks.site import Site

Sites = Callable[..., list[Site]]
SOURCE: dict[str, Any] = {
    "commit": 40 * "a",
    "torch": ["torch==2.10.0", "torchvision==0.25.0"],
    "changes": [{"pull": 38325, "commit": 40 * "b", "sha256": 64 * "c"}],
    "jobs": 8,
}


def site_of(sites: Sites, **image_fields: Any) -> Site:
    """A single Spark whose recipe's image is changed."""
    (site,) = sites(1)
    changed = Image.model_validate({"base": site.recipe.image.base, **image_fields})
    return replace(site, recipe=site.recipe.model_copy(update={"image": changed}))


def from_source(sites: Sites, base: str | None = None, **changed: Any) -> Site:
    more = {} if base is None else {"base": base}
    return site_of(sites, build="source", version="0.19.1", source={**SOURCE, **changed}, **more)


def plan_of(files: dict[str, str]) -> dict[str, Any]:
    (text,) = [text for path, text in files.items() if "/plans/" in path]
    plan: dict[str, Any] = json.loads(text)
    return plan


def stages(dockerfile: str) -> dict[str, str]:
    """Text of each stage by its name."""
    parts = re.split(r"^FROM \S+ AS (\w+)$", dockerfile, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_what_is_built_is_pinned_in_every_stage(sites: Sites) -> None:
    text = from_source(sites).dockerfiles["Dockerfile"]
    made = stages(text)
    assert list(made) == ["tools", "builder", "runner"]
    for name, stage in made.items():
        assert "UV_HTTP_TIMEOUT=600" in stage, name
        assert "torch.version.cuda" in stage and '== "2.10.0"' in stage, name
    # Whatever is resolved after torch is there is held by the override, and torch is from the CUDA index.
    installs = re.findall(r"uv pip install.*", text)
    assert "--index-url https://download.pytorch.org/whl/cu130 torch==2.10.0" in installs[0]
    assert installs[1:] and all(
        "--override /opt/torch.txt" in line or "--no-index" in line for line in installs[1:]
    )
    assert "apt-get" not in made["runner"] and "COPY --from=builder /src/wheels" in made["runner"]
    assert made["runner"].index("torch.version.cuda") < made["runner"].index("sparkstack_vllm")


def test_sources_are_those_of_the_commit_and_changes_are_checked(sites: Sites) -> None:
    builder = stages(from_source(sites).dockerfiles["Dockerfile"])["builder"]
    order = [
        f"git fetch --quiet --depth 1 origin {40 * 'a'}",
        f'test "$(git rev-parse HEAD)" = {40 * "a"}',
        f"https://github.com/vllm-project/vllm/commit/{40 * 'b'}.diff",
        f'echo "{64 * "c"}  /src/38325.diff" | sha256sum --check -',
        "git apply /src/38325.diff",
        "python use_existing_torch.py",
        "TORCH_CUDA_ARCH_LIST=12.1a SETUPTOOLS_SCM_PRETEND_VERSION=0.19.1",
        "MAX_JOBS=8",
        "pip wheel --no-deps --no-build-isolation",
    ]
    places = [builder.index(words) for words in order]
    assert places == sorted(places)
    assert "MAX_JOBS" not in from_source(sites, jobs=None).dockerfiles["Dockerfile"]


def test_the_legacy_builder_gets_no_cache_mounts_and_the_same_build(sites: Sites) -> None:
    made = from_source(sites).dockerfiles
    plain, buildkit = made["Dockerfile"], made["Dockerfile.buildkit"]
    assert "--mount" not in plain and "<<" not in plain
    assert buildkit.count("--mount=type=cache,target=/root/.cache/uv ") == 3
    bare = re.sub(r"--mount=\S+ ", "", buildkit)
    # The cache that is mounted is the only difference: without one, nothing is kept of what was fetched.
    assert bare == re.sub(r" --no-cache(?= --(index-url|requirement|override))", "", plain)


@pytest.mark.parametrize(
    "changed",
    [
        {"commit": 40 * "d"},
        {"torch": ["torch==2.10.1"]},
        {"torch_index": "https://mirror.example/cu130"},
        {"changes": []},
        {"changes": [{**SOURCE["changes"][0], "sha256": 64 * "d"}]},
        {"repository": "https://git.example/vllm"},
        {"python": "3.11"},
        {"cuda_arch": "12.0f"},
        {"jobs": None},
        {"base": "example/cuda@sha256:" + 64 * "2"},
    ],
)
def test_each_input_makes_another_tag(sites: Sites, changed: dict[str, Any]) -> None:
    assert from_source(sites, **changed).image_tag != from_source(sites).image_tag


def test_the_job_gets_both_dockerfiles(sites: Sites) -> None:
    site = from_source(sites)
    site.host.facts = {ImageId: None}
    files = written(commands_of(image.built, site.host, site))
    context = f"/var/lib/sparkstack/build/{site.image_id}"
    assert {f"{context}/Dockerfile", f"{context}/Dockerfile.buildkit"} <= files.keys()
    plan = plan_of(files)
    assert plan["context"] == context and plan["check"]["vllm"] == "0.19.1"


def test_pull_only_builds_nothing(sites: Sites) -> None:
    site = site_of(sites, build="pull")
    site.host.facts = {ImageId: None}
    files = written(commands_of(image.built, site.host, site))
    assert not [path for path in files if "/build/" in path]
    plan = plan_of(files)
    assert plan["context"] is None and plan["base"] == site.image_base and plan["check"]
    other = site_of(sites, build="pull", base="example/vllm@sha256:" + 64 * "2")
    assert len({site.image_id, other.image_id, site_of(sites).image_id}) == 3


def test_what_is_pulled_does_not_change_with_our_plugin(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled, layered = site_of(sites, build="pull").image_id, site_of(sites).image_id
    wheel = site_of(sites).plugin_wheel[0]
    monkeypatch.setattr("tasks.wheels.build", lambda source: (wheel, "fedcba987654"))
    assert site_of(sites, build="pull").image_id == pulled and site_of(sites).image_id != layered


def test_encoders_use_torchs_attention_where_vllm_is_built_here(sites: Sites) -> None:
    def argv(site: Site, accelerator: launch.Accelerator = "gpu") -> list[str]:
        rank = launch.Rank(0, 1, "127.0.0.1", "127.0.0.1")
        return launch.serve_argv(site.recipe, rank, bind="::1", port=1, accelerator=accelerator)

    wanted = f"--mm-encoder-attn-backend={ENCODER_BACKEND}"
    said = " ".join(argv(from_source(sites))).replace("backend ", "backend=")
    assert wanted in said
    assert "mm-encoder" not in " ".join(argv(site_of(sites)))
    assert "mm-encoder" not in " ".join(argv(from_source(sites), "cpu"))
    own = from_source(sites)
    own.recipe.serve.options["mm_encoder_attn_backend"] = "FLASH_ATTN"
    assert ENCODER_BACKEND not in " ".join(argv(own))
    own.recipe.serve.options["mm_encoder_attn_backend"] = None  # null is nothing, of ours, too
    assert "mm-encoder" not in " ".join(argv(own))
