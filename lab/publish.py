"""Base images go into the lab's registry, once per image, and are known by their digests after."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import docker

from lab.paths import CACHE, LabError, Progress, digest


def storage(tag: str) -> Path:
    """Where the registry keeps image `tag`, and small ones beside it; folders of other images go, for each
    holds gigabytes."""
    top = CACHE / "registry"
    kept = top / digest(tag)
    kept.mkdir(parents=True, exist_ok=True)
    for other in top.iterdir():
        if other != kept:
            shutil.rmtree(other)
    return kept


def publish(
    client: docker.DockerClient, tag: str, home: Path, registry: str, port: int, progress: Progress
) -> str:
    """Pushes `tag` through 127.0.0.1:`port` unless `registry` (a URL), whose files are in `home`, has it;
    returns `repo@sha256:…`."""
    repository = tag.partition(":")[0]
    mark = home / f"published-{digest(tag)}.json"
    if mark.exists():
        found = str(json.loads(mark.read_text())["digest"])
        if _has(registry, repository, found):
            return f"{repository}@{found}"
    local = f"127.0.0.1:{port}/{repository}"
    client.images.get(tag).tag(local, tag="lab")
    try:
        found = _push(client, local, progress)
    finally:
        client.images.remove(f"{local}:lab", noprune=True)
    if not _has(registry, repository, found):
        raise LabError(f"the lab's registry has no {repository}@{found} after the push")
    mark.write_text(json.dumps({"digest": found}))
    return f"{repository}@{found}"


def _push(client: docker.DockerClient, local: str, progress: Progress) -> str:
    layers: dict[str, tuple[int, int]] = {}
    found = ""
    for event in client.api.push(local, tag="lab", stream=True, decode=True):
        if "error" in event:
            raise LabError(f"push to the lab's registry: {event['error']}")
        found = (event.get("aux") or {}).get("Digest", found)
        detail = event.get("progressDetail") or {}
        if "current" in detail:
            current = int(detail["current"])
            layers[event["id"]] = (current, max(current, int(detail.get("total", 0))))
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            progress("publish", done, total, local.partition("/")[2])
    return found


def _has(registry: str, repository: str, found: str) -> bool:
    kinds = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    url = f"{registry}/v2/{repository}/manifests/{found}"
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": kinds})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False
    except OSError as error:
        raise LabError(f"the lab's registry at {registry} does not answer: {error}") from None
