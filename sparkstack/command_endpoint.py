"""Where a recipe's own command listens: at what a run works out, or at an address and a port of its own.

The run asks the endpoint at `serve_bind` and `serve.port`, by HTTP: a server that listens elsewhere never
gets ready, and one at all interfaces is open to everybody. A command may hold other programs, and other
listeners of one: an error is what no other reading of it makes right, the rest is a warning.
"""

from __future__ import annotations

import re

from sparkstack import engine_command, option_words, placeholders
from sparkstack.endpoint import is_everywhere
from sparkstack.errors import Problem
from sparkstack.findings import Finding, error, warning
from sparkstack.native import Recipe
from sparkstack.recipe_fields import NOT_HTTP, argument_name
from sparkstack.yamlfile import Document, Loc

HOSTS = ("host", "bind", "bind-address", "listen", "listen-address", "address", "ip")
PORTS = ("port", "http-port", "listen-port")
TLS = ("ssl-cert-file", "ssl-key-file", *(argument_name(name).strip("-") for name in NOT_HTTP))
"""llama.cpp's two, and those of vLLM, which SGLang and uvicorn have, too."""
_NUL = "\0"  # between two words
_UNREAD = re.compile(r"(?:^|(?<=[\s;]))#[^\n]*|https?://[^\s\"']*")  # comments, and what is asked elsewhere
_COMMANDS = re.compile(r"(?<!\\)\n|[;&|]")
# In whatever option or variable: `--addr 0.0.0.0:80`, `OLLAMA_HOST=0.0.0.0`.
_EVERYWHERE = re.compile(r"(?<![\w.:\]])(0\.0\.0\.0|\[::\])(?::(\d+|\{port\}))?(?![\w.:])")
_FOR_A_PORT = re.compile(r"port|http|listen|bind|addr|host|server|endpoint", re.IGNORECASE)

Said = tuple[str, Loc]
"""What is said, and where in the recipe."""


class _Words:
    """What can be read of where a command listens. `text` is all its words, `last` those of the last command
    of a script, which is the engine as a rule; both with the options."""

    def __init__(self, recipe: Recipe, command: engine_command.Command) -> None:
        self.serve = recipe.serve
        words = [_UNREAD.sub("", word).rstrip(" \n;") for word in engine_command.words(command)]
        options = option_words.words(recipe.serve.options)
        self.text = _NUL.join([*words, *options])
        self.last = _NUL.join([_COMMANDS.split(_NUL.join(words))[-1], *options])
        names = dict.fromkeys(engine_command.NAMES, "")
        self.used = {name for word in words for name in placeholders.expand(word, names).used}
        variables = [(value, ("serve", "env", name)) for name, value in recipe.serve.env.items()]
        self.texts: list[Said] = [(self.text, ("serve", "command")), *variables]

    def given(self, names: tuple[str, ...], text: str) -> list[Said]:
        """The values of all of these options in `text`, in order; "" for one without."""
        one = "|".join(re.escape(name).replace("\\-", "[-_]") for name in names)
        flag = rf"(?<![\w-])--?({one})(?:(?:=|\s+|{_NUL})[\"']*([^\s\"'{_NUL}]*)|(?![\w.-]))"
        return [(found[2] or "", self.place(found[1])) for found in re.finditer(flag, text)]

    def place(self, flag: str) -> Loc:
        option = flag.replace("-", "_")
        among = self.serve.options.get(option) not in (None, False)
        return ("serve", "options", option) if among else ("serve", "command")

    def everywhere(self) -> list[tuple[Said, str | None]]:
        """All interfaces, in whatever option or variable, with the port behind them."""
        return [
            ((found[0], loc), found[2]) for text, loc in self.texts for found in _EVERYWHERE.finditer(text)
        ]

    def mentions(self, port: int) -> Loc | None:
        """Where the number stands so that it may be a port: not as `--max-model-len 8000`."""
        number = rf"(?:--?([\w.-]+)(?:=|\s+|{_NUL})[\"']*)?(?<![\w.]){port}(?![\w.])"
        for text, loc in self.texts:
            for found in re.finditer(number, text):
                if not found[1] or len(found[1]) == 1 or _FOR_A_PORT.search(found[1]):
                    return loc
        return None

    def open_endpoint(self) -> Said | None:
        """With what the endpoint itself is at all interfaces; None where that is not sure."""
        hosts = self.given(HOSTS, self.last)
        if hosts and all(_is_everywhere(host) for host, _ in self.given(HOSTS, self.text)):
            return hosts[-1]
        ours = (str(self.serve.port), "{port}")
        return next((said for said, port in self.everywhere() if port in ours), None)


def _is_everywhere(host: str) -> bool:
    found = _EVERYWHERE.fullmatch(host)
    return is_everywhere((found[1] if found else host).strip("[]"))


def _words(recipe: Recipe) -> _Words | None:
    """None for other engines, and for a command that is told to be none elsewhere."""
    command = recipe.serve.command
    if recipe.serve.engine != "command" or command is None or engine_command.mistakes(command):
        return None
    return _Words(recipe, command)


def findings(recipe: Recipe, document: Document) -> list[Finding]:
    """What is said of the address and the port of a recipe's command; [] for other engines."""
    words = _words(recipe)
    if words is None:
        return []
    result = []
    for name, value in recipe.serve.env.items():
        for taken in ("bind", "port"):
            if f"{{{taken}}}" in value and taken not in words.used:
                words.used.add(taken)  # said once
                where, found = document.where(("serve", "env", name)), f"{{{taken}}} in serve.env.{name}"
                remedy = f"begin serve.command with `env {name}={value}`"
                result.append(error("endpoint", where, found, "placeholders in serve.command alone", remedy))
    if "port" not in words.used:
        result.append(_port(words, document))
    if "bind" not in words.used:
        result.append(_host(words, document))
    for name in TLS:
        if given := words.given((name,), words.text):
            found, wanted = f"--{name}", f"it only from {NOT_HTTP['ssl_certfile']}"
            where = document.where(given[0][1])
            result.append(error("endpoint", where, found, wanted, "remove the option"))
    return result


def _port(words: _Words, document: Document) -> Finding:
    port = words.serve.port
    wanted = f"{{port}}, which is serve.port ({port})"
    ours = words.mentions(port)
    last = words.given(PORTS, words.last)
    if last and ours is None and all(value.isdigit() for value, _ in last):
        value, loc = last[-1]
        remedy = "write {port} in serve.command in its place; a run asks that port alone"
        return error("endpoint", document.where(loc), f"port {value}", wanted, remedy)
    others = [said for said in words.given(PORTS, words.text) if said[0]]
    others += [(at, loc) for (_, loc), at in words.everywhere() if at]
    said = (str(port), ours) if ours is not None else others[-1] if others else None
    remedy = "write `--port {port}`, or `env NAME={port} …` before a server that reads a variable"
    if said is None:
        where, found = document.where(("serve", "command")), "a command without {port}"
    else:
        where, found = document.where(said[1]), f"port {said[0]} written out"
    return warning("endpoint", where, found, wanted, remedy)


def _host(words: _Words, document: Document) -> Finding:
    wanted = "{bind}, which is serve_bind of group_data"
    hosts = [said for said in words.given(HOSTS, words.text) if said[0]]
    everywhere = [said for said in hosts if _is_everywhere(said[0])] + [at for at, _ in words.everywhere()]
    opened = words.open_endpoint() or (everywhere[0] if everywhere else None)
    if opened is not None:
        found = f"host {opened[0]}, all interfaces, whatever the site says"
        return warning(
            "endpoint", document.where(opened[1]), found, wanted, "write {bind} in serve.command in its place"
        )
    said = hosts[-1] if hosts else None
    found = "a command without {bind}" if said is None else f"host {said[0]} written out"
    remedy = "write `--host {bind}`, or `env NAME={bind} …` before a server that reads a variable"
    where = document.where(("serve", "command") if said is None else said[1])
    return warning("endpoint", where, found, wanted, remedy)


def against_site(recipe: Recipe, bind: str) -> list[Problem]:
    """Why a run refuses an endpoint that is surely at all interfaces where `serve_bind` is not; else []."""
    words = None if is_everywhere(bind) else _words(recipe)
    opened = None if words is None or "bind" in words.used else words.open_endpoint()
    if opened is None:
        return []
    remedy = "write {bind} in serve.command in its place, or set serve_bind"
    where, wanted = f"recipe {recipe.name}", f"serve_bind ({bind}) alone"
    return [Problem(where, f"host {opened[0]}, all interfaces", wanted, remedy)]
