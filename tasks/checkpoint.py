"""The checkpoint: downloaded, verified and transformed on the head, sent to the other hosts."""

from __future__ import annotations

from pathlib import Path

from pyinfra import host
from pyinfra.api import deploy, operation

from tasks import drift, share
from tasks.facts import Json
from tasks.files import Commands, ManagedFile
from tasks.operations import managed_files
from tasks.remote import fail, job
from tasks.site import Site


@operation()
def hub_token(site: Site) -> Commands:
    """Put the site's hub token on the head as a root-only file.

    No-op when it is there, or none is declared.
    """
    if not site.is_head or not site.hub_token_path:
        return
    path = Path(site.data.hub_token_file).expanduser()
    if not path.is_file():
        yield fail(f"hub_token_file: found no file {path}; wanted one with the token; correct group_data")
        return
    yield from managed_files._inner([ManagedFile.local(site.hub_token_path, path, "600")])


@operation()
def staged(site: Site) -> Commands:
    """Download at the pinned revision and transform on the head, as a job that a later run can join.

    No-op when the checkpoint's folder has its manifest, which is written last.
    """
    if not site.is_head:
        return
    manifest = host.get_fact(Json, path=f"{site.checkpoint_dir}/manifest.json")
    if manifest and manifest.get("id") == site.checkpoint_id:
        host.noop(f"checkpoint {site.checkpoint_id} is staged")
        return
    drift.differs(f"{site.checkpoint_dir}/manifest.json", "absent or of another checkpoint", "staged")
    source = site.recipe.checkpoint.source
    yield from job(
        {
            "job": f"sparkstack-checkpoint-{site.checkpoint_id}",
            "kind": "checkpoint",
            "jobs_dir": site.jobs_dir,
            "id": site.checkpoint_id,
            "source": {
                "repo": source.repo,
                "revision": source.revision,
                "endpoint": site.data.hub_endpoint,
                "token_file": site.hub_token_path,
                "allow": source.allow,
            },
            "transforms": site.transforms,
            "downloads_dir": f"{site.data.state_dir}/downloads",
            "checkpoints_dir": site.checkpoints_dir,
        }
    )


@operation()
def received(site: Site) -> Commands:
    """Receive the head's checkpoint over the fabric, each file checked against the manifest.

    No-op when this host's manifest equals the head's.
    """
    if site.is_head:
        return
    path = f"{site.checkpoint_dir}/manifest.json"
    wanted = site.head.get_fact(Json, path=path)
    if wanted and host.get_fact(Json, path=path) == wanted:
        host.noop(f"checkpoint {site.checkpoint_id} is the head's")
        return
    drift.differs(
        path, "absent or another manifest", "the head's manifest" if wanted else "staged on the head"
    )
    yield from share.fetch(
        site,
        {
            "job": f"sparkstack-fetch-checkpoint-{site.checkpoint_id}",
            "kind": "fetch-checkpoint",
            "jobs_dir": site.jobs_dir,
            "id": site.checkpoint_id,
            "checkpoints_dir": site.checkpoints_dir,
            "streams": 4,
        },
    )


@deploy("checkpoint")
def deploy_checkpoint(site: Site) -> None:
    """After this every host has the same manifest."""
    hub_token(name="hub token is on the head", site=site)
    staged(name="checkpoint is staged on the head", site=site)
    received(name="checkpoint is the head's", site=site)
    share.closed(name="share is closed", site=site)
