"""What `remove.py` does in Docker: containers, images, the settings in daemon.json, the data's place."""

from __future__ import annotations

import base64
import json
import shlex

from pyinfra import host
from pyinfra.api import FunctionCommand, StringCommand, operation

from sparkstack import daemon_json
from sparkstack.errors import SparkstackError
from sparkstack.units import bytes_text
from tasks import undo
from tasks.facts import Text
from tasks.files import Commands
from tasks.put_back import drop, remove_image, restore, tell_once
from tasks.remote import fail
from tasks.remove_facts import DataRoots, DockerThings
from tasks.undo import Undo

BACKUP = f"{daemon_json.PATH}.before-sparkstack"
# Says that daemon.json went back and Docker has not read it yet; a boot, which restarts Docker, forgets it.
DUE = "/run/sparkstack-remove-restart-due"


@operation()
def images_gone(last: bool) -> Commands:
    """Remove our containers, what engines compiled, our images and those that we pulled.

    No-op when there are none. Declared before and after Docker's settings go back: a data root of ours has
    the images, and a daemon that our settings had stopped answers only afterwards.
    """
    pulled = list(host.get_fact(Undo)["did"].get("image", {}))
    things = host.get_fact(DockerThings, pulled=pulled)
    if things["docker"] == "silent":
        if last:
            yield fail(
                f"{host.name}: remove: found a Docker daemon that does not answer; wanted it running, for it "
                "has our images; see `systemctl status docker`, then run again"
            )
        else:
            host.noop("Docker does not answer; it is asked again with its settings of before")
        return
    # What the first pass is going to do is not announced twice.
    ours = things["containers"] or things["volumes"] or things["images"]
    if not ours or (last and not host.state.is_executing):
        host.noop("no container and no image of ours is there")
        return
    if things["containers"]:
        yield StringCommand("docker rm -f " + " ".join(map(shlex.quote, things["containers"])))
    if things["volumes"]:
        yield StringCommand("docker volume rm -f " + " ".join(map(shlex.quote, things["volumes"])))
    for image in things["images"]:
        yield FunctionCommand(remove_image, (image,), {})


@operation()
def daemon_json_back() -> Commands:
    """Take our settings out of Docker's daemon.json and restart a daemon that runs with them.

    No-op when nothing of ours is in it. A file that others changed since keeps what they set. One that is not
    JSON fails the host and is left alone.
    """
    path = daemon_json.PATH
    notes = host.get_fact(Undo)
    backup = host.get_fact(Text, path=BACKUP) is not None
    current = host.get_fact(Text, path=path)
    before = host.get_fact(Text, path=f"{undo.ROOT}/files{path}")
    lines = (host.get_fact(Text, path=f"{undo.ROOT}/settings{path}") or "").splitlines()
    try:
        wanted = daemon_json.unmerge(current, daemon_json.combined(map(json.loads, lines)), before)
    except SparkstackError as error:
        yield fail(*(f"{host.name}: remove: {line}" for line in error.lines))
        return
    changed = wanted != current
    due = changed or host.get_fact(Text, path=DUE) is not None
    if changed:
        yield StringCommand(f"touch {DUE}")
    if changed or (wanted is not None and wanted == before and notes["files"].get(path) is False):
        if wanted is None:
            yield StringCommand(drop(path))
        elif wanted == before:
            yield StringCommand(restore(path))
        else:
            quoted, new = shlex.quote(path), shlex.quote(path + ".sparkstack-new")
            yield StringCommand(
                f"cp -p {quoted} {new} && base64 -d > {new} && sync {new} && mv -fT {new} {quoted}",
                _stdin=base64.encodebytes(wanted.encode()).decode() or "\n",
            )
    if backup:
        yield StringCommand(f"rm -f {BACKUP}")
    if due:
        yield StringCommand(
            "case $(systemctl show -p ActiveState --value docker.service) in inactive) ;; "
            "*) systemctl reset-failed docker.service 2>/dev/null; systemctl restart docker.service ;; esac "
            f"&& rm -f {DUE}"
        )
    elif not backup:
        host.noop(f"nothing of ours is in {path}")


@operation()
def data_roots_gone() -> Commands:
    """Remove the folder that our settings gave Docker for its data, where we made it and nobody's things are
    left in it; else it stays, and is named with its size.

    No-op when Docker was given none, and when it has the folder by others' settings.
    """
    noted = host.get_fact(Undo)["did"].get("data-root", {})
    found = host.get_fact(DataRoots, paths=list(noted)) if noted else {}
    for path, about in found.items():
        if about["state"] == "bare" and noted[path] != path:
            yield StringCommand(f"rm -rf --one-file-system {shlex.quote(path)}")
        else:
            tell_once(
                host,
                f"{host.name}: remove: kept {path} ({bytes_text(int(about['bytes']))}), where Docker had its "
                "data: there may be more in it than ours; look, and remove it by hand",
            )
    if not found:
        host.noop("Docker has its data where it was")
