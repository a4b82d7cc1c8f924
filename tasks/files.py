"""A file of ours on a host: its content, mode and owner, and the command that puts it in place."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import jinja2
from pyinfra.api import FunctionCommand, StringCommand

from tasks import undo

# What an operation yields.
Commands = Generator[StringCommand | FunctionCommand, None, None]


class WriteFile(StringCommand):
    """The command that writes `file`: from it the doctor knows which file differs."""

    def __init__(self, file: ManagedFile, command: str, _stdin: str) -> None:
        super().__init__(command, _stdin=_stdin)
        self.file = file


@dataclass(frozen=True)
class ManagedFile:
    """A file that is ours as a whole. `mode` is octal text ("644"), `owner` is "user:group"."""

    path: str
    content: bytes
    mode: str = "644"
    owner: str = "root:root"

    @classmethod
    def text(cls, path: str, content: str, mode: str = "644") -> ManagedFile:
        return cls(path, content.encode(), mode)

    @classmethod
    def local(cls, path: str, source: Path, mode: str = "644") -> ManagedFile:
        return cls(path, source.read_bytes(), mode)

    def wanted(self) -> dict[str, str]:
        digest = hashlib.sha256(self.content).hexdigest()
        return {"sha256": digest, "mode": self.mode, "owner": self.owner}

    def write(self) -> WriteFile:
        """The command that puts the file in place atomically; its content travels on standard input.

        What was there before our first write is kept for `remove.py`. Where it cannot be written (disk full,
        read-only, no such place) the old file stays, nothing is left beside it, and one line says why.
        """
        path, new = shlex.quote(self.path), shlex.quote(self.path + ".sparkstack-new")
        folder = shlex.quote(str(Path(self.path).parent))
        kept = undo.keep(self.path)
        before = "" if kept == "true" else f"{kept} || exit 1; "
        # What holds secrets is root's alone, the folder too.
        mask = "077" if self.mode == "600" else "022"
        # Where the connection ends in between, base64 takes what came for the whole.
        digest = self.wanted()["sha256"]
        whole = f"{{ [ \"$(sha256sum < {new})\" = '{digest}  -' ] || {{ echo a part of it only; false; }}; }}"
        put = (
            f"( umask {mask}; mkdir -p {folder} ) && base64 -d > {new} && {whole} && chmod {self.mode} {new}"
            f" && chown {self.owner} {new} && sync {new} && mv -fT {new} {path}"
        )
        return WriteFile(
            self,
            f"{before}umask 077; said=$( {{ {put}; }} 2>&1 )"
            f" || {{ rm -f {new} 2>/dev/null; {_say(path)}; exit 1; }}",
            _stdin=base64.encodebytes(self.content).decode() or "\n",
        )


def _say(path: str) -> str:
    """Shell words that make one line for the user of what tools wrote into $said."""
    line = "%s: found %s; wanted to write it; make room there, or mend its folder; the file is as it was"
    return f"printf '{line}\\n' {path} \"$(printf %s \"$said\" | tr '\\n' ' ')\" >&2"


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent.parent / "templates"),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["quote"] = lambda value: shlex.quote(str(value))


def render(template: str, **values: object) -> str:
    """A file of templates/ with its values; a name the template uses and nobody gave is an error."""
    return TEMPLATES.get_template(template).render(values)
