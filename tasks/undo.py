"""What was there before us, kept on the host so that `remove.py` can put it back.

`/etc/sparkstack/undo/` (root only) holds
    files/<path>         a file or symlink as it was before our first change, with mode, owner and times
    absent/<path>        there was nothing; its line is the nearest folder that existed
    did/<kind>/<name>    something else that we did; its line is the state before
    settings/<path>      what we set in a file shared with others: one JSON object for each change of them
A note is made before the change that it is about, atomically, and once: the first one is the true one. Notes
go only when everything has been taken back.

For a task: `ManagedFile.write` keeps by itself; before a command that changes anything else, yield
`StringCommand(did(KIND, NAME, BEFORE))`, or put its words and ` && ` before the command's own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from pyinfra import host
from pyinfra.api import FactBase
from pyinfra.context import ctx_host

# A fixed place, so that it is found again whatever became of the site's folders.
ROOT = "/etc/sparkstack/undo"

# Folders that are ours as a whole, besides those of the site: nothing in them was there before us.
OWN = ("/etc/sparkstack", "/var/lib/sparkstack", "/opt/sparkstack")

KINDS = {
    "package": "NAME that we installed (see `installing`)",
    "hold": "NAME that we put on hold",
    "group": "NAME that we created",
    "user": "NAME that we created, without a home of its own",
    "member": "USER:GROUP that we added",
    "unit": "NAME.service; before: `is-enabled` and `is-active`, such as 'disabled inactive'",
    "restarted": "NAME.service that reads a file of ours: restarted once that is taken back",
    "target": "'default'; before: the target that `systemctl get-default` named",
    "sysctl": "NAME such as vm.swappiness; before: its value",
    "swap": "DEVICE OR FILE that we switched off",
    "mtu": "INTERFACE; before: its MTU",
    "image": "NAME of an image that we pulled",
    "folder": "PATH that a knob names in place of ours; before: the knob, and the nearest folder there was",
    "data-root": "PATH that the site gave Docker; before: the nearest folder that there was",
}


def own(path: str) -> bool:
    """True for what lies in a folder that is ours as a whole."""
    folders = [*OWN, *_named().values()]
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _named() -> dict[str, str]:
    """The folders that the site gave us in place of ours: knob -> path."""
    if not ctx_host.isset():  # type: ignore[no-untyped-call]
        return {}
    folders = {
        knob: str(host.data.get(knob) or OWN[0]).rstrip("/")
        for knob in ("state_dir", "config_dir", "install_dir")
    }
    return {knob: folder for knob, folder in folders.items() if folder not in OWN}


def nearest(path: str) -> str:
    """A shell command that prints the nearest folder of a path that is there."""
    return f'd={shlex.quote(path)}; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; echo "$d"'


def _begin() -> str:
    # The folder above is for everybody; what was in a file may have been root's alone.
    return f'u={shlex.quote(ROOT)}; umask 022; mkdir -p "$(dirname "$u")"; umask 077; n="$u/new.$$"'


def keep(path: str) -> str:
    """Shell words that remember `path` as it is; they do nothing where that is remembered already.

    A folder is not kept: nothing of ours replaces one. In our own folders there is nothing to remember; but
    where the site named them itself, which these are (`remove.py` may run with another declaration).
    """
    if own(path):
        notes = [
            did("folder", folder, ask=f"echo {knob} $({nearest(folder)})")
            for knob, folder in _named().items()
        ]
        return " && ".join(notes) or "true"
    return (
        f'( {_begin()}; p={shlex.quote(path)}; [ ! -e "$u/absent$p" ] || exit 0; '
        'for x in "$p" "$u/files$p"; do [ ! -d "$x" ] || [ -L "$x" ] || exit 0; done; '
        '[ ! -e "$u/files$p" ] && [ ! -L "$u/files$p" ] || exit 0; '
        'if [ -e "$p" ] || [ -L "$p" ]; then k=files; cp_ () { cp -a "$p" "$n"; }; '
        'else k=absent; d=$(dirname "$p"); while [ ! -d "$d" ]; do d=$(dirname "$d"); done; '
        'cp_ () { printf "%s\\n" "$d" > "$n"; }; fi; '
        'mkdir -p "$(dirname "$u/$k$p")" && cp_ && { [ -L "$n" ] || sync "$n"; } && mv -fT "$n" "$u/$k$p" )'
    )


def note(kind: str, name: str) -> str:
    """The path of the note of a deed."""
    return f"{ROOT}/did/{kind}/{quote(name, safe=':@+')}"


def did(kind: str, name: str, before: str = "", ask: str = "") -> str:
    """Shell words that note what we are about to do; the first note of a kind and name stays.

    `before` is the state before; or `ask` is a shell command that prints it (its status does not count).
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    value = f'"$({ask})"' if ask else shlex.quote(before)
    return (
        f'( {_begin()}; f={shlex.quote(note(kind, name))}; [ ! -e "$f" ] || exit 0; '
        f'mkdir -p "$u"/did/{kind} && printf "%s\\n" {value} > "$n" && sync "$n" && mv -fT "$n" "$f" )'
    )


def sets(path: str, settings: Mapping[str, Any]) -> str:
    """Shell words that note which settings in a shared file are ours; for `daemon_json.unmerge`.

    The file as it is now is kept before: without it, a value that others had set too would pass for ours.
    """
    line = shlex.quote(json.dumps(settings, sort_keys=True))
    return (
        f'{keep(path)} && ( {_begin()}; f="$u"/{shlex.quote("settings" + path)}; '
        f'[ "$(tail -n 1 "$f" 2>/dev/null)" != {line} ] || exit 0; mkdir -p "$(dirname "$f")" && '
        f'{{ cat "$f" 2>/dev/null; printf "%s\\n" {line}; }} > "$n" && sync "$n" && mv -fT "$n" "$f" )'
    )


def installing(packages: list[str]) -> str:
    """Shell words that note every package that installing these without recommendations would add."""
    names = " ".join(shlex.quote(package) for package in packages)
    # "Inst NAME (VERSION …" is new; "Inst NAME [VERSION] (…" is an upgrade, which is not taken back.
    return (
        f'( {_begin()}; mkdir -p "$u"/did/package && apt-get -s -q install --no-install-recommends {names} | '
        "sed -n 's/^Inst \\([^ ]*\\) (.*/\\1/p' | "
        'while read -r name; do f="$u/did/package/$name"; [ -e "$f" ] || echo > "$f"; done )'
    )


class Undo(FactBase[dict[str, Any]]):
    """Returns what is noted on the host and not yet taken back:

    `{"files": {path: same?}, "absent": {path: gone?}, "did": {kind: {name: before}}}`. `same`: the path is
    now as it was kept (content or link target, mode, owner, time); `gone`: there is nothing again.
    """

    @staticmethod
    def default() -> dict[str, Any]:
        return {"files": {}, "absent": {}, "did": {}}

    def command(self) -> str:
        return (
            f"cd {shlex.quote(ROOT)} 2>/dev/null || exit 0; "
            "find files \\( -type f -o -type l \\) 2>/dev/null | while IFS= read -r f; do p=${f#files}; "
            'a=$(stat -c "%F %a %u:%g %Y %N" "$f" | sed "s/\'files/\'/"); '
            'b=$(stat -c "%F %a %u:%g %Y %N" "$p" 2>/dev/null); s=differs; '
            'if [ "$a" = "$b" ] && { [ -L "$f" ] || cmp -s "$f" "$p"; }; then s=same; fi; '
            'echo "file $s $p"; done; '
            "find absent -type f 2>/dev/null | while IFS= read -r f; do p=${f#absent}; "
            'if [ -e "$p" ] || [ -L "$p" ]; then s=there; else s=gone; fi; echo "absent $s $p"; done; '
            "find did -type f 2>/dev/null | while IFS= read -r f; do "
            'echo "did ${f#did/} $(head -n 1 "$f")"; done'
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found = self.default()
        for line in output:
            word, state, rest = [*line.split(" ", 2), "", ""][:3]
            if word == "file":
                found["files"][rest] = state == "same"
            elif word == "absent":
                found["absent"][rest] = state == "gone"
            elif word == "did":
                kind, _, name = state.partition("/")
                found["did"].setdefault(kind, {})[unquote(name)] = rest.strip()
        return found
