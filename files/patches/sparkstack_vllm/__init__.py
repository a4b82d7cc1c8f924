"""sparkstack's plugin for vLLM.

vLLM calls `register` in every process it starts: API server, engine core, each worker, on every node.
It swallows errors that happen while this module is imported, so nothing is imported here: everything that
can fail is done inside `register`, where an exception stops the server.
"""

__version__ = "0.1.0"


def register() -> None:
    """Check vLLM's version, apply the features that are switched on, say so in one log line.

    May be called any number of times in a process; only the first call does anything.
    """
    from sparkstack_vllm import plugin

    plugin.register(__version__)
