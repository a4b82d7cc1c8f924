"""Takes back one thing for `remove.py`: shell words for a file or a deed, as `tasks/undo.py` noted it, and
functions for what may have to stay, such as an image or a package that somebody else uses."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from pyinfra import logger

from tasks import undo
from tasks.remote import report_failure, shell

SAID: set[str] = set()


def _kept(path: str) -> str:
    return shlex.quote(f"{undo.ROOT}/files{path}")


def restore(path: str) -> str:
    """Shell words that put the kept file or link back, atomically."""
    quoted, new = shlex.quote(path), shlex.quote(path + ".sparkstack-new")
    folder = shlex.quote(str(PurePosixPath(path).parent))
    return f"mkdir -p {folder} && rm -f {new} && cp -a {_kept(path)} {new} && mv -fT {new} {quoted}"


def drop(path: str) -> str:
    """Shell words that remove a path that was not there before, and the folders that came with it."""
    quoted, note = shlex.quote(path), shlex.quote(f"{undo.ROOT}/absent{path}")
    return (
        f'rm -f {quoted} && {{ d=$(dirname {quoted}); a=$(cat {note} 2>/dev/null || echo "$d"); '
        'while [ "$d" != "$a" ] && rmdir "$d" 2>/dev/null; do d=$(dirname "$d"); done; true; }'
    )


def forget(kind: str, name: str) -> str:
    return f"rm -f {shlex.quote(undo.note(kind, name))}"


def take_back(kind: str, name: str, before: str) -> str:
    """Shell words that undo one noted deed; they do nothing where it does not hold any more."""
    n, b = shlex.quote(name), shlex.quote(before)
    if kind == "member":
        user, _, group = name.partition(":")
        user, group = shlex.quote(user), shlex.quote(group)
        is_member = f"id -nG {user} 2>/dev/null | tr ' ' '\\n' | grep -qxF {group}"
        return f"! {is_member} || gpasswd -d {user} {group} >/dev/null"
    if kind == "group":
        return f'[ -n "$(getent group {n} | cut -d: -f4)" ] || ! getent group {n} >/dev/null || groupdel {n}'
    if kind == "user":
        # Another host may hold a connection as this user, and userdel wants it to have no process.
        gone = f"! id -u {n} >/dev/null 2>&1"
        again = f"{{ pkill -KILL -u {n}; sleep 0.5; userdel {n}; }}"
        return f"{gone} || userdel {n} || {again} || {again}"
    if kind == "hold":
        return f"! apt-mark showhold {n} | grep -q . || apt-mark unhold {n} >/dev/null"
    if kind == "sysctl":
        return f"[ ! -n {b} ] || sysctl -q -w {n}={b}"
    if kind == "swap":
        return f"grep -qF {shlex.quote(name + ' ')} /proc/swaps || swapon {n}"
    if kind == "target":
        return f"systemctl set-default --quiet {b}"
    if kind == "unit":
        words = before.split()
        turns = [
            word
            for state, word in (("disabled", "disable"), ("enabled", "enable"), ("masked", "mask"))
            if state in words
        ] + [word for state, word in (("inactive", "stop"), ("active", "start")) if state in words]
        each = " && ".join(f"systemctl {turn} --quiet {n}" for turn in turns) or "true"
        # A unit whose package or file went already has nothing to be put back.
        return f"! systemctl cat {n} >/dev/null 2>&1 || {{ {each}; }}"
    return "true"  # taken back with what it belongs to: images, restarts, MTUs


def undo_deed(state: Any, host: Any, kind: str, name: str, before: str, by: str) -> bool:
    """Run the words of `take_back`, then forget the deed; one that does not go back stays noted."""
    ok, said = shell(host, f"{{ {by}; }} && {forget(kind, name)}")
    if ok:
        return True
    words = " ".join(said.split())[-200:] or "no word"
    return report_failure(
        host,
        f"{host.name}: remove: found {kind} {name} not going back: {words}; wanted it as before"
        f"{f' ({before})' if before else ''}; mend that, then run again",
    )


def purge(state: Any, host: Any, packages: tuple[str, ...]) -> bool:
    """dpkg removes these and never what others need: such a package stays, and is named."""
    names = " ".join(map(shlex.quote, packages))
    notes = " ".join(shlex.quote(undo.note("package", name)) for name in packages)
    ok, said = shell(
        host,
        f"p=$(dpkg-query -W -f '${{db:Status-Status}} ${{binary:Package}}\\n' {names} 2>/dev/null | "
        "sed -n -e 's/^installed //p' -e 's/^config-files //p'); "
        '[ -z "$p" ] || DEBIAN_FRONTEND=noninteractive dpkg --purge $p 2>&1; s=$?; '
        # 2 is dpkg's own trouble, such as its lock; 1 means that it left some of them.
        f"[ $s = 2 ] || rm -f {notes}; exit $s",
    )
    if ok:
        return True
    words = " ".join(said.split())[-300:]
    if " lock" in words:
        return report_failure(
            host,
            f"{host.name}: remove: found dpkg at work for somebody else: {words}; wanted its lock; "
            "run again later",
        )
    tell_once(
        host, f"{host.name}: remove: of the packages {', '.join(packages)} some stay; dpkg says: {words}"
    )
    return True


def remove_image(state: Any, host: Any, image: str) -> bool:
    """One that somebody else's container uses stays, and is named."""
    ok, said = shell(host, f"docker image rm {shlex.quote(image)}")
    if not ok:
        words = " ".join(said.split())[-200:]
        tell_once(host, f"{host.name}: remove: image {image} stays; Docker says: {words}")
    return True


def tell_once(host: Any, line: str) -> None:
    """Show a line once a run (an operation may be prepared before it is executed)."""
    if line not in SAID:
        SAID.add(line)
        host.log_styled(line, fg="yellow", log_func=logger.warning)
