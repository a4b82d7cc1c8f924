"""Which conda installer a host gets, and the job that builds vLLM from source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkstack.errors import Problem, SparkstackError


def installer(
    arch: str, installers: Mapping[str, Mapping[str, str | None]], url: str | None, sha256: str | None
) -> tuple[str, str]:
    """(URL, SHA-256) for a host of this architecture (`uname -m`).

    `url` and `sha256` are the site's own: an URL alone is another place for the pinned installer. Errors:
    SparkstackError where there is no hash to hold an installer against; none is run without.
    """
    pinned = installers.get(arch, {})
    chosen_url, chosen_hash = url or pinned.get("url"), sha256 or pinned.get("sha256")
    if sha256 and not url:
        raise SparkstackError(
            Problem("conda", "conda_sha256 without conda_url", "both, or the URL alone", "set conda_url")
        )
    if chosen_url and chosen_hash:
        return chosen_url, chosen_hash
    known = ", ".join(name for name, one in installers.items() if one.get("sha256")) or "none"
    raise SparkstackError(
        Problem(
            "conda",
            f"no installer with its SHA-256 for {arch} (pinned: {known})",
            "an installer to trust",
            "set conda_installers, or conda_url and conda_sha256, in group_data",
        )
    )


def source_values(build: Mapping[str, Any], install_dir: str) -> dict[str, Any]:
    """The values of templates/vllm-source.sh.j2. The override file pins torch for everything that is
    resolved later: a dependency that leaves torch open would else bring a CPU build."""
    return {
        **build,
        "conda": f"{install_dir}/conda/bin/conda",
        "prefix": f"{install_dir}/vllm",
        "source": f"{install_dir}/vllm-source",
    }


def variables(pip_environment: Mapping[str, str], channel_alias: str | None) -> dict[str, str]:
    """The environment of the jobs that install packages. A variable that the site names itself wins."""
    alias = {"CONDA_CHANNEL_ALIAS": channel_alias} if channel_alias else {}
    return {**alias, **pip_environment}
