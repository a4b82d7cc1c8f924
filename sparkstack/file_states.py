"""What files are: content's hash, mode and owner, of any number of them with two processes."""

from __future__ import annotations

from collections.abc import Iterable

# Shell: of the files in "$@". Two processes for all of them: forks for each would take longer than what is
# asked. A file that went away, or cannot be read, is left out.
COMMAND = '[ "$#" = 0 ] || { sha256sum -- "$@"; stat -c "stat %a %U:%G %n" -- "$@"; } 2>/dev/null || true'


def parse(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """`{path: {"sha256", "mode", "owner"}}` as COMMAND said it; nothing of a file of which it said half."""
    hashes: dict[str, str] = {}
    found = {}
    for line in lines:
        if line.startswith("stat "):
            _, mode, owner, path = line.split(" ", 3)
            if path in hashes:
                found[path] = {"sha256": hashes[path], "mode": mode.zfill(3), "owner": owner}
        else:
            # sha256sum doubles a backslash of a name, and marks the line with one.
            sha256, _, path = line.partition("  ")
            marked = sha256.startswith("\\")
            hashes[path.replace("\\\\", "\\") if marked else path] = sha256.removeprefix("\\")
    return found
