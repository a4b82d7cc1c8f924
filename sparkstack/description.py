"""What any recipe asks for, whatever format it is written in: the checks and `render` look at this only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstack import parallel_sizes
from sparkstack.flags import scalar
from sparkstack.native import Recipe
from sparkstack.yamlfile import Document

GB = 10**9
VLLM_KINDS = ("vllm", "vllm-distributed", "vllm-ray", "eugr-vllm")
"""Runtimes that are vLLM: ours, and those that sparkrun tells apart. We start all of them in one way."""
UNIFIED_MEMORY_GB = 128
"""Of one Spark, shared by CPU and GPU."""
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
"""vLLM's own default."""
# GDN (gated delta net) layers beside full attention: Qwen3-Next and everything of Qwen from 3.5 on.
_HYBRID = re.compile(r"qwen3[-_.]?next|qwen3\.[5-9]|qwen4", re.IGNORECASE)


@dataclass(frozen=True)
class Launch:
    """`options` are the engine's flags as data, names in snake case. `command` holds the words of the
    author's command where there is one. `lines` says by key (`options.NAME`, `model`, `image`, …) where a
    thing stands in the file. `recipe` is what a run gets, None when that cannot be made."""

    format: str
    path: str
    name: str
    runtime: str
    model: str
    image: str
    served_name: str
    port: int = 8000
    revision: str | None = None
    min_nodes: int = 1
    max_nodes: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    plugin: dict[str, bool] = field(default_factory=dict)
    changes: tuple[int, ...] = ()
    version: tuple[int, ...] = ()
    accept: dict[str, str] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    recipe: Recipe | None = None

    def where(self, key: str) -> str:
        """`file:line` of a key; when it is not in the file, of what it belongs to, or of the first line."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, f"{self.path}:1")

    def size(self, option: str) -> int:
        """A parallel size, 1 when it is not said."""
        return parallel_sizes.size(self.options, option)

    @property
    def other_parallel(self) -> int:
        """The product of the parallel sizes beside tensor parallel."""
        return parallel_sizes.others(self.options)

    @property
    def is_vllm(self) -> bool:
        return self.runtime in VLLM_KINDS

    @property
    def is_hybrid(self) -> bool:
        """Has the model GDN layers? By its name, or by `metadata.hybrid`."""
        said = self.metadata.get("hybrid")
        return said if isinstance(said, bool) else _HYBRID.search(self.model) is not None

    @property
    def is_nvfp4(self) -> bool:
        words = (self.model, self.options.get("quantization"), self.metadata.get("quantization"))
        return any("nvfp4" in str(word).lower() or "modelopt_fp4" in str(word).lower() for word in words)

    @property
    def speculation(self) -> dict[str, Any]:
        config = self.options.get("speculative_config")
        if isinstance(config, str):  # JSON as one text is the same to the engine
            config = scalar(config)
        return config if isinstance(config, dict) else {}

    @property
    def uses_mtp(self) -> bool:
        return "mtp" in str(self.speculation.get("method", "")).lower()

    @property
    def kv_cache_dtype(self) -> str:
        return str(self.options.get("kv_cache_dtype") or "auto").lower()


def of_native(recipe: Recipe, document: Document) -> Launch:
    """A native recipe, described."""
    serve = recipe.serve
    lines = {f"options.{name}": document.where(("serve", "options", name)) for name in serve.options} | {
        "options": document.where(("serve", "options")),
        "model": document.where(("model",)),
        "image": document.where(("image", "base")),
        "revision": document.where(("checkpoint", "source", "revision")),
        "env": document.where(("serve", "env")),
        "metadata": document.where(("metadata",)),
        "budget": document.where(("budget", "memory_gib")),
        "min_nodes": document.where(("min_nodes",)),
        "max_nodes": document.where(("max_nodes",)),
        "runtime": document.where(("serve", "engine")),
        "changes": document.where(("image", "upstream_changes")),
        "transforms": document.where(("checkpoint", "transforms")),
        "plugin": document.where(("image", "plugin")),
        "accept": document.where(("accept",)),
        "expect": document.where(("expect",)),
    }
    for at, step in enumerate(recipe.checkpoint.transforms):
        lines[f"transforms.{step.name}"] = document.where(("checkpoint", "transforms", at, step.name))
    lines |= {f"changes.{pr}": document.where(("image", "upstream_changes", at))
              for at, pr in enumerate(recipe.image.upstream_changes)}  # fmt: skip
    lines |= {f"plugin.{name}": document.where(("image", "plugin", name)) for name in recipe.image.plugin}
    lines |= {f"accept.{rule}": document.where(("accept", rule)) for rule in recipe.accept}
    return Launch(
        format="3",
        path=document.path,
        name=recipe.name,
        runtime=serve.engine,
        model=recipe.model,
        image=recipe.image.base,
        served_name=recipe.served_name,
        port=serve.port,
        revision=recipe.checkpoint.source.revision,
        min_nodes=recipe.min_nodes,
        max_nodes=recipe.max_nodes,
        options=dict(serve.options),
        env=dict(serve.env),
        metadata=dict(recipe.metadata),
        transforms=tuple(step.name for step in recipe.checkpoint.transforms),
        plugin=dict(recipe.image.plugin),
        changes=tuple(recipe.image.changes_of_base),
        version=tuple(int(part) for part in (recipe.image.version or "").split(".") if part),
        accept=dict(recipe.accept),
        lines=lines,
        recipe=recipe,
    )
