"""Facts that pyinfra does not have: what the core needs to know of a host, each in one command.

A fact never fails a host: what is not there is None, and "could not be asked" is told apart from "absent".
"""

from __future__ import annotations

import base64
import json
import shlex
from pathlib import Path
from typing import Any

from pyinfra.api import FactBase

from sparkstack import file_states

# A fact and its arguments.
Ask = tuple[type[FactBase[Any]], dict[str, Any]]

SURVEY = Path(__file__).with_name("survey.sh")


class FileStates(FactBase[dict[str, dict[str, str]]]):
    """Returns `{path: {"sha256", "mode", "owner"}}` of the regular files among `paths`."""

    default = dict

    def command(self, paths: list[str]) -> str:
        names = shlex.join(paths)
        return f'set --; for f in {names}; do [ ! -f "$f" ] || set -- "$@" "$f"; done; {file_states.COMMAND}'

    def process(self, output: list[str]) -> dict[str, dict[str, str]]:
        return file_states.parse(output)


class Text(FactBase[str | None]):
    """Returns a file's text with its line ends, or None where there is none."""

    def command(self, path: str) -> str:
        # As it is, to the byte: pyinfra reads lines, and only UTF-8.
        quoted = shlex.quote(path)
        return f"if [ -f {quoted} ]; then base64 -w 0 {quoted}; echo; fi"

    def process(self, output: list[str]) -> str | None:
        return decoded(output[0]) if output else None


def decoded(encoded: str) -> str:
    """A file's bytes (base64) as text. A byte that is not UTF-8 becomes a character that no text has, so that
    who reads the file can refuse it and name its place."""
    return base64.b64decode(encoded).decode(errors="surrogateescape")


class CondaEnvironment(FactBase[str | None]):
    """Returns the word in an environment's marker, None without one, and BROKEN where its Python cannot
    import `packages` ("a, b"). Python sees only the environment there, and writes nothing.

    They were imported when the environment was built. That is done again where anything in it was touched
    after `last` was written, the marker of what was installed into it last; looking for that takes a tenth.
    """

    BROKEN = "broken"

    def command(self, path: str, marker: str, packages: str, last: str) -> str:
        python, note = shlex.quote(f"{path}/bin/python"), shlex.quote(f"{path}/{marker}")
        touched = (
            f"find {shlex.quote(path)}/bin {shlex.quote(path)}/lib -name __pycache__ -prune -o "
            f"-cnewer {shlex.quote(f'{path}/{last}')} -print -quit 2>&1 || echo not known"
        )
        return (
            f'if [ -f {note} ]; then if [ -z "$({touched})" ] || '
            f"{python} -IBc {shlex.quote(f'import {packages}')} >/dev/null 2>&1; "
            f"then cat {note}; else echo {self.BROKEN}; fi; fi"
        )

    def process(self, output: list[str]) -> str | None:
        return output[0].strip() if output else None


class Json(FactBase[Any]):
    """Returns what a JSON file of ours holds, or None where it is absent or broken."""

    def command(self, path: str) -> str:
        return f"cat {shlex.quote(path)} 2>/dev/null || true"

    def process(self, output: list[str]) -> Any:
        try:
            return json.loads("\n".join(output))
        except ValueError:
            return None


class CheckpointFaults(FactBase[list[str] | None]):
    """Returns what is wrong with a checkpoint's files, a line each, [] where nothing is; None where it could
    not be looked at. Headers, sizes and small files; `hashes`: all contents."""

    def command(self, python: str, folder: str, hashes: bool) -> str:
        words = [python, "-m", "onhost", "verify", "--checkpoint", folder, *(["--hashes"] if hashes else [])]
        return f"[ -x {shlex.quote(python)} ] && {{ {shlex.join(words)} 2>&1; echo status=$?; }}; true"

    def process(self, output: list[str]) -> list[str] | None:
        lines = [line.strip() for line in output if line.strip()]
        if not lines or lines[-1] not in ("status=0", "status=1"):
            return None
        return [] if lines[-1] == "status=0" else lines[:-1]


class UnitState(FactBase[str]):
    """Returns a unit's ActiveState: active, activating, inactive, failed, …"""

    def command(self, unit: str) -> str:
        return f"systemctl show -p ActiveState --value {shlex.quote(unit)}"

    def process(self, output: list[str]) -> str:
        return output[0].strip() if output else "inactive"


class ImageId(FactBase[str | None]):
    """Returns the id of a Docker image, None where it is absent, "" where the daemon does not answer."""

    def command(self, tag: str) -> str:
        return (
            f"docker image inspect --format '{{{{.Id}}}}' {shlex.quote(tag)} 2>/dev/null"
            " || { docker version >/dev/null 2>&1 && echo absent || echo silent; }"
        )

    def process(self, output: list[str]) -> str | None:
        word = output[-1].strip() if output else "silent"
        return {"absent": None, "silent": ""}.get(word, word)


class ImageCheck(FactBase[dict[str, Any] | None]):
    """Returns what an image's own check said when it was built (its label), None where it has not run."""

    def command(self, tag: str) -> str:
        label = '{{ index .Config.Labels "sparkstack.check" }}'
        return f"docker image inspect --format {shlex.quote(label)} {shlex.quote(tag)} 2>/dev/null || true"

    def process(self, output: list[str]) -> dict[str, Any] | None:
        try:
            found = json.loads("\n".join(output))
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


class Addresses(FactBase[dict[str, list[str]]]):
    """Returns `{interface: ["192.168.100.10/24", …]}` (IPv4; every interface is named)."""

    default = dict

    def command(self) -> str:
        return "ip -j -4 addr show; ip -j link show"

    def process(self, output: list[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for document in output:
            if not document.startswith("["):
                continue
            for link in json.loads(document):
                addresses = found.setdefault(link.get("ifname", ""), [])
                addresses += [
                    f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", []) if "local" in a
                ]
        found.pop("", None)
        return found


class Completes(FactBase[bool]):
    """Returns True when the endpoint answers a real completion now, within `seconds`, or works and is slow:
    one that has much to do is not to be started anew.

    A head whose worker has died looks alive in every other way: its unit is active, /health says 200.
    """

    default = bool

    def command(self, python: str, url: str, model: str, seconds: int, key_file: str | None = None) -> str:
        words = [python, "-m", "onhost", "serves", "--url", url, "--model", model, "--timeout", str(seconds)]
        words += ["--api-key-file", key_file] if key_file else []
        return shlex.join(words) + " >/dev/null 2>&1 && echo completes || true"

    def process(self, output: list[str]) -> bool:
        return output == ["completes"]


class ServeState(FactBase[dict[str, str]]):
    """Returns `{"release", "unit", "fabric"}`: the current release's id, the unit's state, and "same" where
    the rank was started with the fabric.env that is there now."""

    default = dict

    def command(self, config_dir: str) -> str:
        return (
            f'echo "release=$(basename "$(readlink {shlex.quote(config_dir)}/current)" 2>/dev/null)"; '
            'echo "unit=$(systemctl show -p ActiveState --value sparkstack-serve.service)"; '
            f"cd {shlex.quote(config_dir)} && cmp -s fabric.env current/fabric.env && echo fabric=same; true"
        )

    def process(self, output: list[str]) -> dict[str, str]:
        return dict(line.split("=", 1) for line in output if "=" in line)


class Survey(FactBase[dict[str, Any]]):
    """Returns what preflight judges: system, memory, disk, port owner, driver, kernels, clock.

    `paths`: folders whose file system must have room; "disk" has the bytes free on the nearest existing
    parent, "file_system" the name of what they are on; Docker's own root ("docker_root") is added.
    `port`: a TCP port, or None; its owner is "free", "sparkstack" (our serving unit) or the listening process
    with its unit or container; "serving" is "yes" where a rank of ours runs. `account`: a user; its number or
    "none". `downloads`: folders with ":" between; "downloaded" is how many bytes they take on the disk.
    "kernels" is `{version: words}` of /lib/modules, "log" the suspicious lines of the kernel's journal.
    """

    default = dict

    def command(self, paths: list[str], port: int | None, downloads: str = "", account: str = "") -> str:
        words = ["sh", "-c", SURVEY.read_text(), "survey", str(port or ""), downloads, account, *paths]
        return " ".join(shlex.quote(word) for word in words)

    def process(self, output: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"disk": {}, "file_system": {}, "kernels": {}, "log": []}
        for line in output:
            key, _, value = line.partition("=")
            kind, _, name = key.partition(":")
            if kind == "disk":
                free, _, system = value.partition(" ")
                if free:
                    found["disk"][name] = int(free)
                    found["file_system"][name] = system
            elif kind == "kernel" and name:
                found["kernels"][name] = value
            elif kind == "log":
                found["log"].append(line[4:])
            else:
                found[key] = value
        return found
