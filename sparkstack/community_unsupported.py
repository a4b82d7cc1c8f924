"""What a community recipe asks for and we cannot do: Ray, mods, hooks, builders."""

from __future__ import annotations

from collections.abc import Iterator

from sparkstack.community import Community, ExecutorConfig, RecipeV2
from sparkstack.community_command import RUNTIMES
from sparkstack.description import VLLM_KINDS
from sparkstack.findings import Finding, unsupported, warning
from sparkstack.yamlfile import Document


def unsupported_parts(
    document: Document, recipe: Community, runtime: str, ray: str | None
) -> Iterator[Finding]:
    """`ray` says where Ray is asked for, None where it is not."""
    if runtime not in RUNTIMES:
        pass  # told as a mistake
    elif runtime in VLLM_KINDS and ray is not None:
        remedy = "it is left out: one process a host, without Ray"
        yield warning("ray", ray, "distributed_executor_backend ray", "none, or mp", remedy)
    for mod in recipe.mods:
        where = document.where(("mods",))
        remedy = "we have none; put what it does into the image"
        yield unsupported("mod", where, f"mod {mod!r}", "no mods", remedy)
    if recipe.build_args:
        found = f"build_args {' '.join(recipe.build_args)}"
        remedy = "name an image that is built so, by digest"
        yield unsupported("build-args", document.where(("build_args",)), found, "a ready image", remedy)
    if not recipe.container:
        remedy = "name the image that the runtime shall use"
        yield unsupported("image", document.where(("runtime",)), "no container", "an image", remedy)
    if isinstance(recipe, RecipeV2):
        yield from _parts_of_v2(document, recipe)


def _parts_of_v2(document: Document, recipe: RecipeV2) -> Iterator[Finding]:
    for key in ("pre_exec", "post_exec", "post_commands"):
        if hooks := getattr(recipe, key):
            first = hooks[0] if isinstance(hooks[0], str) else f"copy {hooks[0]['copy']}"
            shown = " ".join(str(first).split())
            shown = shown if len(shown) <= 50 else shown[:49] + "…"
            more = f" and {len(hooks) - 1} more" if len(hooks) > 1 else ""
            remedy = "we run no hooks; put what it does into the image"
            yield unsupported("hook", document.where((key,)), f"{key} ({shown}{more})", "no hooks", remedy)
    if recipe.stop_after_post:
        found, remedy = "stop_after_post", "a server is kept running; remove it"
        yield unsupported("hook", document.where(("stop_after_post",)), found, "a service", remedy)
    if recipe.builder:
        remedy = "name an image that is built so, by digest"
        yield unsupported(
            "builder", document.where(("builder",)), f"builder {recipe.builder}", "a ready image", remedy
        )
    for key, home in (
        ("runtime_version", "container"),
        ("distribution_config", "the inventory"),
        ("runtime_config", "defaults"),
    ):
        if getattr(recipe, key):
            yield warning("ignored", document.where((key,)), key, f"it from {home}", "it has no effect here")
    if recipe.executor_config is not None:
        yield from _executor(document, recipe.executor_config)


def _executor(document: Document, config: ExecutorConfig) -> Iterator[Finding]:
    usual = {
        "auto_remove": (True,),
        "restart_policy": ("no", "always", "on-failure", "unless-stopped"),
        "gpus": ("all",),
        "ipc": ("host",),
        "network": ("host",),
        "entrypoint": ("",),
    }
    for key, fine in usual.items():
        value = getattr(config, key)
        if value is not None and value not in fine:
            where = document.where(("executor_config", key))
            found = f"executor_config.{key} {value!r}"
            wanted = repr(fine[0])
            yield unsupported("executor", where, found, wanted, "containers are started so here; remove it")
