"""`python -m sparkstack_vllm`: does the plugin work in this environment? The image build asks this.

Prints one line; ends with 1 if vLLM would not find the plugin, does not suit it, or a self-check fails.
Needs no GPU.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

from sparkstack_vllm import __version__
from sparkstack_vllm.features import FEATURES
from sparkstack_vllm.plugin import PluginError, check_versions, checked


def whole(package: Path) -> None:
    """Compile every module, also those that only a feature at work imports. Errors: SyntaxError."""
    for path in sorted(package.rglob("*.py")):
        compile(path.read_bytes(), str(path), "exec")


def check() -> str:
    """Run all checks; return what was found in one line, raise `PluginError` on the first that fails."""
    found = entry_points(group="vllm.general_plugins", name="sparkstack")
    if len(found) != 1:
        raise PluginError(
            f"sparkstack plugin: found {len(found)} entry points vllm.general_plugins/sparkstack; wanted 1; "
            "install the wheel into the environment that vLLM runs in, once"
        )
    try:
        whole(Path(__file__).parent)
    except SyntaxError as error:
        raise PluginError(f"sparkstack plugin: found a module that is no Python: {error}") from error
    for entry in found:
        entry.load()()
    import vllm

    looked = []
    for feature in FEATURES:
        try:
            check_versions(vllm.__version__, [feature])
        except PluginError:
            continue  # not for this vLLM: whoever switches it on will be told
        checked(feature)
        looked.append(feature.name)
    names = ", ".join(looked) or "nothing"
    return f"sparkstack plugin {__version__}: vLLM {vllm.__version__}, checked: {names}"


if __name__ == "__main__":
    try:
        print(check())
    except PluginError as failure:
        sys.exit(str(failure))
