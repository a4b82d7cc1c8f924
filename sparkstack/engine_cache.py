"""What an engine compiles at its first start, kept in a Docker volume of its image.

A first start may compile for half an hour, and would do so at each start again. On the host
`onhost/caches.py` looks after the volumes.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Sequence

from sparkstack.native import Recipe

PLACE = "/root/.cache"
"""Where vLLM and FlashInfer in a container keep what they compile."""
LABEL = "sparkstack.image"
KERNELS = {"CUDA_CACHE_PATH": f"{PLACE}/nv", "TRITON_CACHE_DIR": f"{PLACE}/triton"}
"""What CUDA and Triton compile goes there, too."""


def keeps(recipe: Recipe) -> bool:
    """Does the recipe's engine keep what it compiles? Not where its own `docker run` arguments mount
    something at that place, or have a user that may not write there."""
    if recipe.serve.engine != "vllm":
        return False
    for name, value in _given(recipe.serve.extra_docker_args):
        if name in ("-u", "--user") and value.partition(":")[0] not in ("0", "root"):
            return False
        if any(posixpath.normpath(target) == PLACE for target in _targets(name, value) if target):
            return False
    return True


def mount(image: str) -> str:
    """The value of `docker run --mount`: one volume an image (its tag is its content's hash), so that nothing
    compiled by one version is ever read by another."""
    volume = f"sparkstack-cache-{image.rpartition(':')[2]}"
    return f"type=volume,src={volume},dst={PLACE},volume-label={LABEL}={image}"


def env(recipe: Recipe) -> dict[str, str]:
    """Where the engine's parts look for what they compiled. vLLM's cache knows nothing of our plugin: models
    compiled with other features are in another folder."""
    if not keeps(recipe):
        return {}
    switches = {name: value for name, value in recipe.serve.env.items() if name.startswith("SPARKSTACK_")}
    if not switches:
        return KERNELS
    mark = hashlib.sha256(json.dumps(switches, sort_keys=True).encode()).hexdigest()[:12]
    return KERNELS | {"VLLM_CACHE_ROOT": f"{PLACE}/vllm/sparkstack-{mark}"}


def _given(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of `docker run` that matter here, with their values in either spelling."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in ("-v", "--volume", "--tmpfs", "--mount", "-u", "--user"):
            yield name, value if equals else next(rest, "")
        elif re.match(r"-[uv][^-]", word):
            yield word[:2], word[2:]


def _targets(name: str, value: str) -> list[str]:
    """Where in the container an option mounts something."""
    if name == "--mount":
        fields = [field.partition("=") for field in value.split(",")]
        return [what for key, _, what in fields if key in ("dst", "destination", "target")]
    if name == "--tmpfs":
        return [value.partition(":")[0]]
    return (value.split(":") * 2)[1:2] if name in ("-v", "--volume") else []
