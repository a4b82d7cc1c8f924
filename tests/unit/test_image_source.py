"""What a recipe may say of how its image comes about, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstack.errors import SparkstackError
from sparkstack.recipe import load_recipe

RECIPE = """\
name: x
model: a/b
checkpoint: {{source: {{repo: a/b, revision: {0}}}}}
image:
  base: x/y@sha256:{1}
  version: "0.19.1"
  build: source
  source:
    commit: {0}
    torch: [torch==2.10.0]
    changes: [{{pull: 38325, commit: {0}, sha256: {1}}}]
serve: {{}}
budget: {{memory_gib: 1, disk_gib: 1}}
""".format(40 * "a", 64 * "b")


def told(tmp_path: Path, old: str = "", new: str = "") -> str:
    path = tmp_path / "r.yaml"
    assert old in RECIPE
    path.write_text(RECIPE.replace(old, new) if old else RECIPE)
    with pytest.raises(SparkstackError) as caught:
        load_recipe(path)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_source_build_as_a_recipe_has_it(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    image = load_recipe(path).image
    assert image.source is not None and image.source.changes[0].pull == 38325
    assert (image.source.cuda_arch, image.source.python, image.source.jobs) == ("12.1a", "3.12", None)


@pytest.mark.parametrize(
    ("old", "new", "line", "wanted"),
    [
        (f"    commit: {40 * 'a'}\n", "    commit: v0.19.1\n", 9, "a commit (40 hex digits, in quotes)"),
        (f"sha256: {64 * 'b'}}}", "sha256: abc}", 11, "a SHA-256 (64 hex digits, in quotes)"),
        ("torch==2.10.0", "torch>=2.10", 10, "torch==VERSION, or its two companions"),
        ("[torch==2.10.0]", "[numpy==1.0]", 10, "torch==VERSION, or its two companions"),
        ("[torch==2.10.0]", "[torchvision==0.25.0]", 8, "torch==VERSION among `torch`, and each"),
        ("  build: source\n", "", 4, "`build: source` and `source` together, or neither"),
        ('  version: "0.19.1"\n', "", 4, "`version` beside `build: source`, which the wheel is marked with"),
        ("  build: source\n", "  build: sources\n", 7, "'layer', 'source' or 'pull'"),
        ("38325", "0", 11, "1"),
    ],
)
def test_what_is_not_pinned_or_does_not_fit(
    tmp_path: Path, old: str, new: str, line: int, wanted: str
) -> None:
    said = told(tmp_path, old, new)
    assert said.startswith(f"r.yaml:{line}: found ") and f"{wanted}" in said.partition("; wanted ")[2]


def test_pull_only_takes_no_arguments(tmp_path: Path) -> None:
    start = RECIPE.index("  build: source")
    end = RECIPE.index("serve:")
    said = told(tmp_path, RECIPE[start:end], "  build: pull\n  build_args: {A: '1'}\n")
    assert "wanted no build_args with `build: pull`, which builds nothing" in said


@pytest.mark.parametrize("text", ["https://x.example/a b", "http://x.example", "https://x/$(reboot)", "https://x/'"])
def test_no_shell_in_an_url(tmp_path: Path, text: str) -> None:
    said = told(tmp_path, "    commit", f"    repository: \"{text}\"\n    commit")
    assert "wanted an https URL" in said


def test_only_vllm_is_built(tmp_path: Path) -> None:
    said = told(tmp_path, "serve: {}", "serve: {engine: atlas}")
    assert said == (
        "r.yaml:7: found image.build: source with engine atlas; wanted engine vllm, which is what is built; "
        "correct one of the two"
    )
