"""Facts for `remove.py`: what of ours is on a host, besides what the notes of `tasks/undo.py` name."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api import FactBase

from sparkstack import engine_cache
from tasks import undo

DATA = ("checkpoints", "downloads")
# What lies in a folder that a site gave us and that does not bear our name: there only these are ours.
PARTS = {
    "install_dir": ("conda", "conda.*", "env", "environment-*.yml", "vllm", "vllm.*"),
    "state_dir": ("build", "jobs", "plans", "results", "wheels", *DATA),
    "config_dir": (
        "activation.json",
        "current",
        "current.new",
        "fabric.env",
        "peer",
        "previous",
        "releases",
        "secrets",
        "ssh",
    ),
}


class DockerThings(FactBase[dict[str, Any]]):
    """Returns `{"docker": "absent" | "silent" | "answers", "containers": [...], "images": [...],
    "volumes": [...]}`: ours, and which of the images `pulled` are there."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {"docker": "absent", "containers": [], "images": [], "volumes": []}

    def command(self, pulled: list[str]) -> str:
        names = " ".join(shlex.quote(name) for name in pulled)
        return (
            "command -v docker >/dev/null || exit 0; "
            "docker version >/dev/null 2>&1 || { echo docker=silent; exit 0; }; echo docker=answers; "
            "docker ps -a --format '{{.Names}} {{.Image}}' | "
            "sed -n -e 's/^\\(sparkstack-[^ ]*\\) .*/container=\\1/p' "
            "-e 's/^\\([^ ]*\\) sparkstack\\/[a-z]*:.*/container=\\1/p' | sort -u; "
            "docker images --format 'image={{.Repository}}:{{.Tag}}' 'sparkstack/*'; "
            f"docker volume ls --filter label={engine_cache.LABEL} --format 'volume={{{{.Name}}}}'; "
            f'for i in {names}; do ! docker image inspect "$i" >/dev/null 2>&1 || echo "image=$i"; done'
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found = self.default()
        for line in output:
            word, _, value = line.partition("=")
            if word == "docker":
                found["docker"] = value
            else:
                found[f"{word}s"].append(value)
        return found


class Jobs(FactBase[list[str]]):
    """Returns our transient units that have not ended: jobs and the share."""

    default = list

    def command(self) -> str:
        return (
            "systemctl list-units --plain --no-legend --state=active,activating,deactivating 'sparkstack-*' "
            "| while read -r unit rest; do [ ! -e /run/systemd/transient/$unit ] || echo $unit; done"
        )

    def process(self, output: list[str]) -> list[str]:
        return [line.strip() for line in output if line.strip()]


class Leavings(FactBase[dict[str, Any]]):
    """Returns what of ours is in the site's folders: `{"entries": [path], "data": {path: bytes}}`."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {"entries": [], "data": {}}

    def command(self, folders: list[list[str]]) -> str:
        """`folders`: [knob, path] of all that are or were ours."""
        names = " ".join(_words(knob, folder) for knob, folder in folders)
        data = " ".join(
            shlex.quote(f"{folder}/{name}")
            for knob, folder in folders
            for name in (DATA if knob == "state_dir" else ())
        )
        return (
            f"for f in {names} {shlex.quote(undo.ROOT)}; do "
            '[ ! -e "$f" ] && [ ! -L "$f" ] || echo "entry=$f"; done; '
            f'for f in {data}; do [ ! -d "$f" ] || echo "data=$(du -sb "$f" | cut -f1) $f"; done'
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found = self.default()
        for line in output:
            word, _, value = line.partition("=")
            if word == "entry":
                found["entries"].append(value)
            elif word == "data":
                size, _, path = value.partition(" ")
                found["data"][path] = int(size)
        return found


class DataRoots(FactBase[dict[str, dict[str, str]]]):
    """Returns `{path: {"bytes", "state"}}` of those `paths`, data roots that a site gave Docker, that are
    there and that Docker does not use now. State "bare": no container, volume or image of anybody is left."""

    default = dict

    def command(self, paths: list[str]) -> str:
        # A daemon that keeps images elsewhere (containerd's store) has no such list: that is not called bare.
        return (
            "now=$(docker info -f '{{.DockerRootDir}}' 2>/dev/null); "
            f"for d in {' '.join(map(shlex.quote, paths))}; do "
            '[ -d "$d" ] && [ "$d" != "$now" ] || continue; state=bare; '
            '[ -z "$(ls -A "$d/containers" 2>/dev/null)" ] || state=used; '
            '[ -z "$(find "$d/volumes" -mindepth 1 -maxdepth 1 -type d 2>/dev/null)" ] || state=used; '
            'r=$(cat "$d"/image/*/repositories.json 2>/dev/null); '
            '[ "$r" = \'{"Repositories":{}}\' ] || state=used; '
            '[ -z "$(find "$d"/image/*/imagedb/content/sha256 -type f 2>/dev/null)" ] || state=used; '
            'echo "$state $(du -sb "$d" | cut -f1) $d"; done'
        )

    def process(self, output: list[str]) -> dict[str, dict[str, str]]:
        found = (line.split(" ", 2) for line in output)
        return {path: {"bytes": size, "state": state} for state, size, path in found}


def is_ours(folder: str) -> bool:
    return folder.rstrip("/") in undo.OWN


def _words(name: str, folder: str) -> str:
    """Shell words (patterns) that match what is ours in a folder of the site: in one with our name, all."""
    quoted = shlex.quote(folder)
    if is_ours(folder):
        return f"{quoted}/* {quoted}/.[!.]*"
    return " ".join(f"{quoted}/{part}" for part in PARTS[name])
