"""Where a recipe's own command listens: at what a run works out, or at an address and a port of its own.

The run asks the endpoint at `serve_bind` and `serve.port`, by HTTP: a server that listens elsewhere never
gets ready, and one at all interfaces is open to everybody.
"""

from __future__ import annotations

import re

from sparkstack import engine_command, placeholders
from sparkstack.endpoint import is_everywhere
from sparkstack.findings import Finding, error, warning
from sparkstack.native import Recipe
from sparkstack.recipe_fields import NOT_HTTP, argument_name
from sparkstack.yamlfile import Document, Loc

HOSTS = ("host", "bind", "bind-address", "listen", "listen-address", "address", "ip")
PORTS = ("port", "http-port", "listen-port")
TLS = ("ssl-cert-file", "ssl-key-file", *(argument_name(name).strip("-") for name in NOT_HTTP))
"""llama.cpp's two, and those of vLLM, which SGLang and uvicorn have, too."""
_NUL = "\0"  # between two words
# In whatever option or variable: `--addr 0.0.0.0:80`, `OLLAMA_HOST=0.0.0.0`.
_EVERYWHERE = re.compile(r"(?<![\w.:\]])(0\.0\.0\.0|\[::\])(?::(\d+))?(?![\w.:])")


def _given(names: tuple[str, ...], text: str) -> str | None:
    """The value of the first of these options in words, which a script may hold; None for none."""
    one = "|".join(re.escape(name).replace("\\-", "[-_]") for name in names)
    found = re.search(rf"(?<![\w-])--?(?:{one})(?:=|\s+|{_NUL})[\"']*([^\s\"'{_NUL}]+)", text)
    return found[1] if found else None


def findings(recipe: Recipe, document: Document) -> list[Finding]:
    """What is said of the address and the port of a recipe's command; [] for other engines, and for a command
    that is told to be none elsewhere."""
    command, options = recipe.serve.command, recipe.serve.options
    if recipe.serve.engine != "command" or command is None or engine_command.mistakes(command):
        return []
    words = engine_command.words(command)
    used = {
        name
        for word in words
        for name in placeholders.expand(word, dict.fromkeys(engine_command.NAMES, "")).used
    }
    text = _NUL.join(words)
    place: Loc = ("serve", "command")
    result = []
    for name, value in recipe.serve.env.items():
        for taken in ("bind", "port"):
            if f"{{{taken}}}" in value and taken not in used:
                used.add(taken)  # said once
                where, found = document.where(("serve", "env", name)), f"{{{taken}}} in serve.env.{name}"
                remedy = f"begin serve.command with `env {name}={value}`"
                result.append(error("endpoint", where, found, "placeholders in serve.command alone", remedy))

    def said(names: tuple[str, ...], part: int) -> tuple[str | None, Loc]:
        for name in names:
            value = options.get(name.replace("-", "_"))
            if value is not None:
                return str(value), ("serve", "options", name.replace("-", "_"))
        if (given := _given(names, text)) is not None:
            return given, place
        variables = [(value, ("serve", "env", name)) for name, value in recipe.serve.env.items()]
        for one, where in [(text, place), *variables]:
            if part and (found := _EVERYWHERE.search(one)) and found[part]:
                return found[part], where
        return None, place

    if "port" not in used:
        port, loc = said(PORTS, 2)
        wanted, number = f"{{port}}, which is serve.port ({recipe.serve.port})", str(recipe.serve.port)
        if port is not None and port.isdigit() and port != number:
            remedy = "write {port} in serve.command in its place; a run asks that port alone"
            result.append(error("endpoint", document.where(loc), f"port {port}", wanted, remedy))
        else:
            found = "a command without {port}" if port is None else f"port {port} written out"
            remedy = "write `--port {port}`, or `env NAME={port} …` before a server that reads a variable"
            result.append(warning("endpoint", document.where(loc), found, wanted, remedy))
    if "bind" not in used:
        host, loc = said(HOSTS, 1)
        wanted = "{bind}, which is serve_bind of group_data"
        if host is not None and is_everywhere(host.strip("[]")):
            found = f"host {host}, all interfaces, whatever the site says"
            remedy = "write {bind} in serve.command in its place"
            result.append(error("endpoint", document.where(loc), found, wanted, remedy))
        else:
            found = "a command without {bind}" if host is None else f"host {host} written out"
            remedy = "write `--host {bind}`, or `env NAME={bind} …` before a server that reads a variable"
            result.append(warning("endpoint", document.where(loc), found, wanted, remedy))
    for name in TLS:
        given, loc = said((name,), 0)
        if given is not None:
            found, wanted = f"--{name}", f"it only from {NOT_HTTP['ssl_certfile']}"
            result.append(error("endpoint", document.where(loc), found, wanted, "remove the option"))
    return result
