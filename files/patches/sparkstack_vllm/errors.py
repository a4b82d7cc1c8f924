"""The plugin's one kind of error."""


class PluginError(RuntimeError):
    """The server must not start; the message says why and what to do, in one line."""
