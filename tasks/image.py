"""The image: built on the head under a tag that is the hash of all its inputs, sent to the other hosts."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra import host
from pyinfra.api import StringCommand, deploy, operation

from sparkstack.image_source import is_proved
from tasks import drift, share, undo
from tasks.facts import Ask, ImageCheck, ImageId, Text
from tasks.files import Commands, ManagedFile
from tasks.remote import fail, job
from tasks.site import Site

SILENT = (
    "{}: image: found a Docker daemon that does not answer; wanted it running; see `systemctl status docker`"
)


def asks(site: Site) -> list[Ask]:
    """The facts that the stage's operations ask of a host that is as declared."""
    tag = {"tag": site.image_tag}
    check: list[Ask] = [(ImageCheck, tag)] if site.is_head and site.has_plugin else []
    base: list[Ask] = [(ImageId, {"tag": site.image_base})] if site.is_head and _is_base(site) else []
    return [(ImageId, tag), *base, *check, *share.asks(site)]


def _is_base(site: Site) -> bool:
    """Is the image the base itself, with nothing built on it and nothing proved?"""
    return not site.has_plugin and not site.dockerfiles


@operation()
def built(site: Site) -> Commands:
    """Pull the base by digest, build the image on the head and prove it, as a job that a later run can join.

    No-op when the tag exists (the tag is the hash of base, plugin, Dockerfile and arguments) and carries the
    result of a passed check. An image of another engine than vLLM gets no plugin, and nothing proves it; one
    that is its base is compared with that.
    """
    if not site.is_head:
        return
    found = host.get_fact(ImageId, tag=site.image_tag)
    if found == "":
        yield fail(SILENT.format(host.name))
        return
    base = host.get_fact(ImageId, tag=site.image_base) if _is_base(site) else None
    if found and base and base != found:
        drift.differs(f"image {site.image_tag}", found, f"{base}, its base's")
    elif found and (not site.has_plugin or _proved(host.get_fact(ImageCheck, tag=site.image_tag), site)):
        host.noop(f"{site.image_tag} is built")
        return
    else:
        wanted = "built and proved" if site.has_plugin else "built"
        drift.differs(f"image {site.image_tag}", "not proved" if found else "absent", wanted)
    if host.get_fact(ImageId, tag=site.image_base) is None:
        yield StringCommand(undo.did("image", site.image_base))
    check = {"profile": site.data.accelerator, "vllm": _version(site)}
    context: str | None = None
    if site.dockerfiles:
        context = f"{site.data.state_dir}/build/{site.image_id}"
        for name, text in site.dockerfiles.items():
            yield ManagedFile.text(f"{context}/{name}", text).write()
        if site.has_plugin:
            wheel, _ = site.plugin_wheel
            yield ManagedFile.local(f"{context}/{wheel.name}", wheel).write()
    yield from job(
        {
            "job": f"sparkstack-image-{site.image_id}",
            "kind": "image",
            "jobs_dir": site.jobs_dir,
            "tag": site.image_tag,
            "base": site.image_base,
            "context": context,
            "mirrors": site.data.docker_mirrors or [],
            "build_args": site.recipe.image.build_args,
            **({"check": check} if site.has_plugin else {}),
        }
    )


def _version(site: Site) -> str | None:
    version = site.recipe.image.version
    return None if version is None else str(version)


def _proved(report: dict[str, Any] | None, site: Site) -> bool:
    return is_proved(report, site.data.accelerator, _version(site))


@operation()
def received(site: Site) -> Commands:
    """Receive the head's image over the fabric; the job compares the ids.

    No-op when this host has the same image id as the head.
    """
    if site.is_head:
        return
    wanted = site.head.get_fact(ImageId, tag=site.image_tag)
    found = host.get_fact(ImageId, tag=site.image_tag)
    if found == "":
        yield fail(SILENT.format(host.name))
        return
    if wanted and found == wanted:
        host.noop(f"{site.image_tag} is the head's")
        return
    drift.differs(
        f"image {site.image_tag}", found or "absent", f"the head's, {wanted or 'still to be built'}"
    )
    yield from share.fetch(
        site,
        {
            "job": f"sparkstack-fetch-image-{site.image_id}",
            "kind": "fetch-image",
            "jobs_dir": site.jobs_dir,
            "tag": site.image_tag,
            "image_id": wanted or "",
        },
    )


def record_path(site: Site) -> str:
    return f"{site.data.config_dir}/releases/{site.release_id}/image-check.json"


@operation()
def recorded(site: Site) -> Commands:
    """Keep what the image's check said as `image-check.json` in this host's folder of the release.

    No-op when the file is there: the release's id holds the image's.
    """
    path = record_path(site)
    if host.get_fact(Text, path=path):
        host.noop(f"{path} is there")
        return
    drift.differs(path, "absent", "what the image's check said")
    if not site.has_plugin:
        yield ManagedFile.text(path, json.dumps(not_checked(site)) + "\n").write()
        return
    quoted, label = shlex.quote(path), shlex.quote('{{ index .Config.Labels "sparkstack.check" }}')
    yield StringCommand(
        f"docker image inspect --format {label} {shlex.quote(site.image_tag)} > {quoted}.new"
        f" && mv -T {quoted}.new {quoted}"
    )


def id_path(site: Site) -> str:
    return f"{site.data.config_dir}/releases/{site.release_id}/image-id"


@operation()
def identified(site: Site) -> Commands:
    """Keep the id that the image has on this host as `image-id` in its folder of the release, for starts to
    compare; and of releases that are kept and have the same image.

    No-op when it is the one that stands there. The release's id holds what the image is made of, and an image
    that is made anew of that has another id.
    """
    path, found = id_path(site), host.get_fact(ImageId, tag=site.image_tag)
    kept = (host.get_fact(Text, path=path) or "").strip()
    if kept and (kept == found or found == ""):
        host.noop(f"{path} is the image's")
        return
    drift.differs(path, kept or "absent", found or "the image's id")
    quoted, wish = shlex.quote(path), shlex.quote("{{.Id}}")
    others = f"{shlex.quote(f'{site.data.config_dir}/releases')}/*/image-id"
    same = shlex.quote(f'"image": "{site.image_tag}"')
    yield StringCommand(
        f"docker image inspect --format {wish} {shlex.quote(site.image_tag)} > {quoted}.new"
        f" && mv -T {quoted}.new {quoted} && for f in {others}; do "
        f'if grep -qsF {same} "${{f%/*}}/release.json" && ! cmp -s {quoted} "$f"; then '
        f'cp {quoted} "$f.new" && mv -T "$f.new" "$f" || exit 1; fi; done'
    )


def not_checked(site: Site) -> dict[str, Any]:
    """What is said of an image that nothing looks into."""
    line = {
        "check": "image",
        "status": "not checked",
        "found": f"an image of engine {site.recipe.serve.engine}",
        "wanted": "one of vLLM, to look into it",
    }
    return {"format": 1, "ok": None, "profile": site.data.accelerator, "lines": [line]}


@deploy("image")
def deploy_image(site: Site) -> None:
    """After this every host has the same image id."""
    built(name="image is built on the head", site=site)
    received(name="image is the head's", site=site)
    share.closed(name="share is closed", site=site)
