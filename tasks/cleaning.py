"""Old releases go, and with each what only it needed: images, checkpoints, downloads, results."""

from __future__ import annotations

import re
import shlex
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FactBase, FunctionCommand, operation

from sparkstack import releases
from sparkstack.releases import Leftovers, OnHost
from tasks import activation, drift, undo
from tasks.activation import Releases
from tasks.files import Commands
from tasks.remote import report_failure, shell
from tasks.site import Site


class Sources(FactBase[dict[str, Any]]):
    """Returns `{"busy": bool, "sources": {checkpoint id: [(repository, revision)] or None}}`: whether a job
    that fetches or makes a checkpoint or an image is at work, and what each finished checkpoint was made of,
    donors too; None where its manifest does not say."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {"busy": False, "sources": {}}

    def command(self, checkpoints_dir: str) -> str:
        jobs = " ".join(f"'sparkstack-{kind}-*'" for kind in ("checkpoint", "fetch", "image"))
        return (
            f"systemctl list-units --no-legend --plain {jobs} | grep -q . && echo busy; "
            f"for f in {shlex.quote(checkpoints_dir)}/*/manifest.json; do "
            '[ -f "$f" ] || continue; d=${f%/*}; '
            # Wherever our own manifest names them; reading all of it as JSON would want Python on the host.
            """echo "${d##*/} $(tr -d '\\n' < "$f" |"""
            r""" grep -oE '"repo": *"[^"]*", *"revision": *"[^"]*"' | sort -u | tr '\n' ' ')"; done; true"""
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found = self.default()
        for line in output:
            if line == "busy":
                found["busy"] = True
                continue
            name, _, text = line.partition(" ")
            found["sources"][name] = re.findall(r'"repo": *"([^"]*)", *"revision": *"([^"]*)"', text) or None
        return found


@operation()
def collected(site: Site) -> Commands:
    """Remove all but the newest `keep_releases` releases from every rank, from the head's place in the run.

    No-op when the head has no more than these. What is current or previous on any rank stays, whatever its
    age, and so does what is staged and was never part of a release. A job at work keeps everything.
    """
    if not site.is_head:
        return
    keep = int(site.data.keep_releases)
    if len(host.get_fact(Releases, config_dir=site.data.config_dir).releases) <= keep:
        host.noop(f"no more than {keep} releases are kept")
        return
    kept = [rank.get_fact(Releases, config_dir=site.data.config_dir) for rank in site.hosts]
    gone = releases.collected(kept, keep, site.release_id)
    if not gone:
        host.noop("all of them are needed")
        return
    drift.differs(f"{site.data.config_dir}/releases", f"{', '.join(gone)} beyond the newest {keep}", "gone")
    yield FunctionCommand(_collect, (site, gone), {})


def _collect(state: Any, host: Any, site: Site, gone: list[str]) -> bool:
    # The head comes last: as long as it has a release, the next run looks for it on all ranks.
    for rank in [*site.hosts[1:], site.head]:
        found = rank.get_fact(Sources, checkpoints_dir=site.checkpoints_dir)
        if found["busy"]:
            return True  # the next run does it
        if not _collect_on(host, rank, site, gone, found["sources"]):
            return False
    return True


def _collect_on(host: Any, rank: Any, site: Site, gone: list[str], sources: dict[str, Any]) -> bool:
    kept: OnHost = activation.kept_by(rank)
    rest = releases.leftovers(kept, gone, [site.about])
    words = commands(rank, [name for name in gone if name in kept.releases], rest, sources)
    for what, command in words:
        ok, said = shell(rank, command)
        if not ok and what.startswith("image "):
            # A container of somebody else's uses it. The release that names it stays too, for a later run.
            line = f"{rank.name}: old releases are kept: {what} could not be removed; found: {said}"
            host.log_styled(line, fg="yellow", log_func=logger.info)
            return True
        if not ok:
            return report_failure(host, f"{rank.name}: {what} could not be removed; found: {said}")
    return True


def commands(
    rank: Any, gone: list[str], rest: Leftovers, sources: dict[str, Any]
) -> list[tuple[str, str]]:
    """(what, shell words that remove it); the releases' own folders last: they say what there is to remove.

    `sources`: what each finished checkpoint of the host was made of; a download that another one needs stays.
    """
    state_dir, config = rank.data.state_dir, rank.data.config_dir
    result = []
    for tag in rest.images:
        ident = shlex.quote(tag.rpartition(":")[2])
        quoted = shlex.quote(tag)
        result.append(
            (
                f"image {tag}",
                f"docker image inspect {quoted} >/dev/null 2>&1 || exit 0;"
                f" docker image rm {quoted} >/dev/null && rm -rf {state_dir}/build/{ident}"
                f" {state_dir}/plans/sparkstack-*image-{ident}.json"
                f" {state_dir}/jobs/sparkstack-*image-{ident}",
            )
        )
    for base in rest.bases:
        note = shlex.quote(undo.note("image", base))
        quoted = shlex.quote(base)
        # Only what we pulled; its note goes with it.
        result.append(
            (
                f"image {base}",
                f"[ -e {note} ] || exit 0; docker image inspect {quoted} >/dev/null 2>&1 || exit 0;"
                f" docker image rm {quoted} >/dev/null && rm -f {note}",
            )
        )
    for name in rest.checkpoints:
        folder = f"{state_dir}/checkpoints/{shlex.quote(name)}"
        result.append(
            (
                f"checkpoint {name}",
                # Its manifest first: a folder with a final name is whole.
                f"rm -f {folder}/manifest.json && rm -rf {folder} {folder}.partial* {folder}.repair*"
                f" {state_dir}/checkpoints/.{shlex.quote(name)}.lock"
                f" {state_dir}/checkpoints/.{shlex.quote(name)}.journal"
                f" {state_dir}/plans/sparkstack-*checkpoint-{shlex.quote(name)}.json"
                f" {state_dir}/jobs/sparkstack-*checkpoint-{shlex.quote(name)}",
            )
        )
    others = [made_of for name, made_of in sources.items() if name not in rest.checkpoints]
    for repo, revision in rest.downloads:
        if any(made_of is None or (repo, revision) in made_of for made_of in others):
            continue  # another checkpoint on the host is from it, or it cannot be told
        place = f"{state_dir}/downloads/{shlex.quote(repo.replace('/', '--'))}"
        one = f"{place}/{shlex.quote(revision)}"
        result.append(
            (
                f"download {repo} at {revision}",
                f"rm -rf {one} {one}.parts {one}.headers {one}.hub-metadata.json"
                f" {place}/.{shlex.quote(revision)}.lock && {{ rmdir {place} 2>/dev/null; true; }}",
            )
        )
    for name in gone:
        result.append(
            (
                f"release {name}",
                f"rm -rf {state_dir}/results/{name} {state_dir}/plans/sparkstack-bench-{name}.json"
                f" {state_dir}/jobs/sparkstack-bench-{name} && rm -rf {config}/releases/{name}",
            )
        )
    return result
