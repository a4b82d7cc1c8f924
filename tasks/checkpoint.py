"""The checkpoint: downloaded, verified and transformed on the head, sent to the other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import deploy, operation

from sparkstack.knobs import switched_on
from tasks import drift, share
from tasks.facts import Ask, CheckpointFaults, FileStates, Json
from tasks.files import Commands, ManagedFile
from tasks.operations import managed_files
from tasks.remote import fail, job
from tasks.site import Site


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    found: list[Ask] = [(Json, {"path": site.manifest_path})]
    if site.is_head and site.hub_token_path:
        found.append((FileStates, {"paths": [site.hub_token_path]}))
    if not _hashes(site):  # which takes long
        found.append((CheckpointFaults, _verified(site)))
    return found + share.asks(site)


def _verified(site: Site) -> dict[str, Any]:
    return {"python": site.python, "folder": site.checkpoint_dir, "hashes": _hashes(site)}


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

    No-op when the checkpoint's folder has its manifest, which is written last, and its files are as that
    says. The job makes damaged files anew, and only those.
    """
    if not site.is_head:
        return
    manifest = host.get_fact(Json, path=site.manifest_path)
    if not (manifest and manifest.get("id") == site.checkpoint_id):
        drift.differs(site.manifest_path, "absent or of another checkpoint", "staged")
    elif not _damaged(site):
        host.noop(f"checkpoint {site.checkpoint_id} is staged")
        return
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
            "keep_source": site.recipe.checkpoint.keep_source,
            "hashes": _hashes(site),
            "downloads_dir": f"{site.data.state_dir}/downloads",
            "checkpoints_dir": site.checkpoints_dir,
        }
    )


def _hashes(site: Site) -> bool:
    """Does this run read all contents (`--data hashes=yes`)?"""
    return switched_on(site.data, "hashes")


def _damaged(site: Site) -> bool:
    """Is a file of this host's checkpoint not as its manifest says? What is, is told as drift."""
    faults = host.get_fact(CheckpointFaults, **_verified(site))
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        drift.differs(site.checkpoint_dir, "; ".join(faults[:3]) + more, "files as its manifest says")
    return bool(faults)


@operation()
def received(site: Site) -> Commands:
    """Receive the head's checkpoint over the fabric, each file checked against the manifest.

    No-op when this host's manifest equals the head's and its files are as that says; of a damaged
    checkpoint the damaged files are received.
    """
    if site.is_head:
        return
    path = site.manifest_path
    wanted = site.head.get_fact(Json, path=path)
    if not (wanted and host.get_fact(Json, path=path) == wanted):
        drift.differs(
            path, "absent or another manifest", "the head's manifest" if wanted else "staged on the head"
        )
    elif not _damaged(site):
        host.noop(f"checkpoint {site.checkpoint_id} is the head's")
        return
    yield from share.fetch(
        site,
        {
            "job": f"sparkstack-fetch-checkpoint-{site.checkpoint_id}",
            "kind": "fetch-checkpoint",
            "jobs_dir": site.jobs_dir,
            "id": site.checkpoint_id,
            "checkpoints_dir": site.checkpoints_dir,
            "streams": 4,
            "hashes": _hashes(site),
        },
        chain=True,
    )


@deploy("checkpoint")
def deploy_checkpoint(site: Site) -> None:
    """After this every host has the same manifest."""
    hub_token(name="hub token is on the head", site=site)
    staged(name="checkpoint is staged on the head", site=site)
    received(name="checkpoint is the head's", site=site)
    share.closed(name="share is closed", site=site)
