"""The image: built on the head under a tag that is the hash of all its inputs, sent to the other hosts."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import StringCommand, deploy, operation

from tasks import drift, share, undo
from tasks.facts import ImageId
from tasks.files import Commands, ManagedFile
from tasks.remote import fail, job
from tasks.site import Site

SILENT = (
    "{}: image: found a Docker daemon that does not answer; wanted it running; see `systemctl status docker`"
)


@operation()
def built(site: Site) -> Commands:
    """Pull the base by digest and build the image on the head, as a job that a later run can join.

    No-op when the tag exists (the tag is the hash of base, plugin, Dockerfile and arguments).
    """
    if not site.is_head:
        return
    found = host.get_fact(ImageId, tag=site.image_tag)
    if found == "":
        yield fail(SILENT.format(host.name))
        return
    if found:
        host.noop(f"{site.image_tag} is built")
        return
    drift.differs(f"image {site.image_tag}", "absent", "built")
    if host.get_fact(ImageId, tag=site.image_base) is None:
        yield StringCommand(undo.did("image", site.image_base))
    context = f"{site.data.state_dir}/build/{site.image_id}"
    wheel, _ = site.plugin_wheel
    yield ManagedFile.text(f"{context}/Dockerfile", site.dockerfile).write()
    yield ManagedFile.local(f"{context}/{wheel.name}", wheel).write()
    yield from job(
        {
            "job": f"sparkstack-image-{site.image_id}",
            "kind": "image",
            "jobs_dir": site.jobs_dir,
            "tag": site.image_tag,
            "base": site.image_base,
            "context": context,
            "build_args": site.recipe.image.build_args,
        }
    )


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


@deploy("image")
def deploy_image(site: Site) -> None:
    """After this every host has the same image id."""
    built(name="image is built on the head", site=site)
    received(name="image is the head's", site=site)
    share.closed(name="share is closed", site=site)
