"""What Docker's daemon.json shall say on a host, and whether the daemon may be restarted for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstack.errors import Problem

NVIDIA_RUNTIME = {"path": "nvidia-container-runtime", "args": []}


@dataclass(frozen=True)
class DaemonFile:
    """daemon.json as it is on the host. `kind`: "file", "absent", "symlink", "directory" or "other".

    `gpu`: a GPU and nvidia-ctk are there. `restart_due`: the file was written and the daemon not restarted
    since. `links_to`: where a symlink leads. `ours`: the settings that the last run put in, `before` the text
    from before the first one.
    """

    kind: str = "absent"
    text: str | None = None
    mode: str = "644"
    owner: str = "root:root"
    links_to: str = ""
    gpu: bool = False
    restart_due: bool = False
    ours: Mapping[str, Any] = field(default_factory=dict)
    before: str | None = None


def wanted(data: Any, gpu: bool, log_driver: str | None = None) -> dict[str, Any]:
    """The settings of a site's knobs; `gpu`: the host has a GPU and NVIDIA's runtime. `log_driver` is what
    the file names by itself, None where it names none.

    `docker_settings` comes last: what a site says in Docker's own words wins.
    """
    settings: dict[str, Any] = {}
    if data.docker_mirrors is not None:
        settings["registry-mirrors"] = list(data.docker_mirrors)
    # Options belong to a driver: where somebody has chosen another one, its options are theirs as well.
    if data.docker_log_options is not None and log_driver in (None, "json-file"):
        settings |= {"log-driver": "json-file", "log-opts": dict(data.docker_log_options)}
    if gpu and data.docker_nvidia_default:
        settings |= {"default-runtime": "nvidia", "runtimes": {"nvidia": NVIDIA_RUNTIME}}
    if gpu and data.docker_cgroupfs:
        settings["exec-opts"] = ["native.cgroupdriver=cgroupfs"]
    if data.docker_data_root:
        settings["data-root"] = data.docker_data_root
    return settings | dict(data.docker_settings)


def own_log_driver(file: DaemonFile) -> str | None:
    """The log driver that the file names apart from us; None where it names none or cannot be read."""
    text = file.before if file.ours else file.text
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value.get("log-driver") if isinstance(value, dict) else None


def unusable(name: str, path: str, file: DaemonFile) -> Problem | None:
    """Why the file cannot be merged into; it is left as it is then."""
    if file.kind in ("file", "absent"):
        return None
    found = f"a symlink to {file.links_to}" if file.kind == "symlink" else f"a {file.kind}"
    remedy = "put a file in its place" if file.kind == "symlink" else "move it away"
    return Problem(f"{name}: {path}", found, "a regular file or nothing", f"{remedy}, then run again")


def restart_refused(
    name: str, serving: Mapping[str, str], others: Mapping[str, Mapping[str, bool]], allowed: bool
) -> Problem | None:
    """Why Docker must not be restarted now. `serving`: host -> release, of the ranks that serve; `others`:
    host -> container of others that runs there -> does its restart policy bring it back?"""
    if allowed or not (serving or any(others.values())):
        return None
    ranks = ", ".join(f"{rank} (release {release or 'unknown'})" for rank, release in serving.items())
    still = "else runs" if any(others.values()) else "serves"
    stops = [f"serving on {ranks}"] if serving else []
    for host, containers in others.items():
        after = {True: "comes back by itself", False: "stays stopped"}
        names = ", ".join(f"{container} ({after[back]})" for container, back in containers.items())
        stops += [f"on {host} the container{'s' * (len(containers) > 1)} {names}"] if names else []
    return Problem(
        f"{name}: docker",
        f"settings that need a restart of Docker, which would stop {' and '.join(stops)}",
        "a yes to that",
        f"run with --data restart_serving=yes, or when nothing {still}",
    )


def mirror_warnings(name: str, answers: Mapping[str, str]) -> list[Problem]:
    """One for each mirror that does not answer as a registry. `answers`: mirror -> HTTP status or "".

    401 is an answer: the registry is there and wants a login.
    """
    remedy = "correct docker_mirrors; Docker goes on to the next one"
    return [
        Problem(
            f"{name}: mirror {mirror}",
            f"HTTP status {status}" if status not in ("", "000") else "no answer",
            "a registry at its /v2/",
            remedy,
        )
        for mirror, status in answers.items()
        if status not in ("200", "401")
    ]
