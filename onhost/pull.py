"""Pulling an image by digest through the daemon, and through its mirrors by name where that stalls.

The daemon goes through its mirrors by itself when one refuses. One that accepts and sends nothing keeps it
waiting; so a pull without a word for `STALL` seconds is given up, and each mirror is asked by its own name. A
digest is the same image wherever it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import httpx

from onhost.docker_cli import inspect_image
from onhost.jobs import Job
from onhost.plan import JobError

SOCKET = "/var/run/docker.sock"
CONNECT = 120.0  # s
STALL = 600.0  # s without a word; a daemon that extracts a layer of gigabytes says so every few seconds


class Failed(Exception):
    """This source did not give the image; the text says what it said."""


def by_mirrors(base: str, mirrors: Sequence[str]) -> list[str]:
    """The names under which mirrors of Docker Hub have `base`; [] for an image of another registry.

    "vllm/x@sha256:…" and "https://mirror.example/" → "mirror.example/vllm/x@sha256:…".
    """
    first, slash, _ = base.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return []
    path = base if slash else f"library/{base}"
    return [f"{mirror.partition('://')[2] or mirror}".rstrip("/") + f"/{path}" for mirror in mirrors]


def pull(job: Job, base: str, mirrors: Sequence[str] = ()) -> str:
    """The name by which the base (`repo@sha256:…`) is on this host; pulled where it is not there yet.

    JobError with the words of the first source, and how many others were tried, where none gives it.
    """
    names = [base, *by_mirrors(base, mirrors)]
    for name in names:
        if inspect_image(name) is not None:
            return name
    said = []
    for name in names:
        try:
            _pull(job, name)
            return name
        except Failed as error:
            said.append(str(error))
    more = f" (and {len(said) - 1} mirrors by name: '{said[-1]}')" if len(said) > 1 else ""
    raise JobError(
        f"found '{said[0]}' on pulling {base}{more}; wanted the base image; "
        "check the digest, the registry mirror and the network"
    )


def _pull(job: Job, name: str) -> None:
    """Pulls through the daemon's API, which tells bytes where the command line shows bars."""
    repository, _, digest = name.partition("@")
    job.progress.stage("pull", None, "B", name[:80])
    layers: dict[str, tuple[int, int]] = {}
    for line in _pull_lines(repository, digest):
        if "error" in line:
            raise Failed(line["error"])
        detail = line.get("progressDetail") or {}
        if line.get("status") == "Downloading" and detail.get("total"):
            layers[line["id"]] = (int(detail["current"]), int(detail["total"]))
        elif line.get("status") in {"Download complete", "Pull complete"} and line.get("id") in layers:
            total = layers[line["id"]][1]
            layers[line["id"]] = (total, total)
        if layers:
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            job.progress.set(done, total)
    if inspect_image(name) is None:
        raise JobError(f"found no {name} after the pull; wanted it; see the journal of docker")


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The lines that are not empty. httpx's own end at whatever Python takes for the end of one (U+0085,
    U+2028, …), and Docker leaves those in the text of its JSON as they are."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line.decode(errors="replace")
    if rest.strip():
        yield rest.decode(errors="replace")


def _pull_lines(name: str, digest: str) -> Iterator[dict[str, Any]]:
    transport = httpx.HTTPTransport(uds=SOCKET)
    timeout = httpx.Timeout(CONNECT, read=STALL)
    try:
        with (
            httpx.Client(transport=transport, base_url="http://docker", timeout=timeout) as client,
            client.stream("POST", "/images/create", params={"fromImage": name, "tag": digest}) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                with suppress(ValueError, KeyError):
                    yield {"error": answer.json()["message"]}
                    return
                yield {"error": f"HTTP {answer.status_code}"}
                return
            for line in _lines(answer.iter_bytes()):
                yield json.loads(line)
    except httpx.ReadTimeout:
        # Closing the connection makes the daemon give the pull up.
        yield {"error": f"no word for {STALL:.0f} s"}
    except json.JSONDecodeError as error:
        yield {"error": f"a line that is no JSON: {error.doc[:80]!r}"}
    except httpx.HTTPError as error:
        raise JobError(
            f"found '{error}' on the daemon's socket {SOCKET}; wanted a pull; see `systemctl status docker`"
        ) from None
