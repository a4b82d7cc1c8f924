"""The plugin's frame: version gate, switches, and one log line. Features are in `features.py`."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.features import FEATURES, SUPPORTED, Feature

PREFIX = "SPARKSTACK_"

# A child of vLLM's own logger: vLLM configures that one only, and at INFO nothing else would be seen.
log = logging.getLogger("vllm.sparkstack")

_done = False


def parse_version(text: str) -> tuple[int, int, int]:
    """Release part of a version: "0.20.2rc1.dev3+g12ab" → (0, 20, 2)."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise PluginError(
            f"sparkstack plugin: found vLLM version {text!r}; wanted {SUPPORTED}; use a released vLLM image"
        )
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)


def wanted(features: Sequence[Feature], environ: Mapping[str, str]) -> list[Feature]:
    """Features that the environment switches on."""
    on = []
    for feature in features:
        value = environ.get(feature.switch, "1" if feature.default else "0")
        if value not in ("0", "1"):
            raise PluginError(f"sparkstack plugin: found {feature.switch}={value!r}; wanted 0 or 1")
        if value == "1":
            on.append(feature)
    return on


def check_versions(vllm: str, features: Sequence[Feature]) -> None:
    """Raise unless the plugin and all of `features` support this vLLM version."""
    version = parse_version(vllm)
    if version not in SUPPORTED:
        raise PluginError(
            f"sparkstack plugin: found vLLM {vllm}; wanted {SUPPORTED}; "
            "use a base image in that range, or start with VLLM_PLUGINS= to leave the plugin out"
        )
    for feature in features:
        if version not in feature.supported:
            instead = feature.instead if version[:2] >= feature.supported.end else ""
            raise PluginError(
                f"sparkstack plugin: found vLLM {vllm}; {feature.name} wants {feature.supported}; "
                f"set {feature.switch}=0" + (f"; {instead}" if instead else "")
            )


def module_of(feature: Feature) -> Any:
    return importlib.import_module(f"sparkstack_vllm.{feature.name}")


def checked(feature: Feature) -> Any:
    """The feature's module, after its self-check. Errors: PluginError."""
    module = module_of(feature)
    try:
        module.self_check()
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise PluginError(f"sparkstack plugin: self-check of {feature.name} failed: {said}") from error
    return module


def register(plugin_version: str) -> None:
    global _done
    if _done:
        return
    import vllm

    on = wanted(FEATURES, os.environ)
    check_versions(vllm.__version__, on)
    modules = [(feature, checked(feature)) for feature in on]
    for _, module in modules:
        module.apply()
    if modules:
        from sparkstack_vllm import loading

        loading.install(modules)
    _done = True

    log.info(
        "sparkstack plugin %s: vLLM %s, features: %s",
        plugin_version,
        vllm.__version__,
        ", ".join(feature.name for feature in on) or "none",
    )
    known = {name for feature in FEATURES for name in (feature.switch, *feature.knobs)}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            log.warning("sparkstack plugin: %s names no feature; known: %s", name, ", ".join(sorted(known)))
