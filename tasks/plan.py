"""The plan: before a run, and by itself (`sparkstack recipe plan`). It asks the hosts and touches nothing.

Each operation that deploy.py declares is evaluated as the doctor does; what the release's own parts are
compared with is what the head keeps.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from pyinfra import host, logger
from pyinfra.api import FactBase
from rich.console import Console

from sparkstack import disk_need, knobs, plan
from sparkstack.doctor import Line
from sparkstack.plan import Plan, Step
from sparkstack.units import GIB, bytes_text
from tasks import doctor, serve
from tasks.activation import Releases
from tasks.benchmark import settled
from tasks.facts import ImageId, Json, ServeState
from tasks.site import Site

RELEASE_STAGES = ("image", "checkpoint", "serve", "benchmark")

# What each host said, by stage; the last one shows the plan.
_lines: dict[str, dict[str, list[Line]]] = {}


class Downloaded(FactBase[int]):
    """Returns how many bytes are in a folder, its parts that are under way included."""

    default = int

    def command(self, path: str) -> str:
        return f"du -sbc {shlex.quote(path)} {shlex.quote(path)}.parts 2>/dev/null | tail -n 1; true"

    def process(self, output: list[str]) -> int:
        word = output[0].split()[0] if output and output[0].split() else "0"
        return int(word) if word.isdigit() else 0


def look(site: Site, stages: list[str]) -> None:
    """Look at what this host's declared operations would do; the last host shows the plan of all.

    Nothing with `--data plan=no`: looking takes about as long as a run that changes nothing.
    """
    if "plan" in site.data.dict() and not knobs.switched_on(site.data, "plan"):
        return
    _note(site, stages, lambda stage: doctor.declared_lines(site, stage))
    if _all_looked(site):
        _made(site, stages).render(Console(stderr=True))


def only(site: Site, stages: list[str]) -> None:
    """The plan and nothing else: the run ends before anything is declared. Status 1 where a stage fails."""
    site.host.state.check_for_changes = False
    _note(site, stages, lambda stage: doctor.drifts(site, stage))
    if _all_looked(site):
        made = _made(site, stages)
        made.render(Console())
        sys.stdout.flush()
        sys.exit(1 if made.fails else 0)


def _all_looked(site: Site) -> bool:
    return set(_lines) >= {one.name for one in site.host.state.activated_hosts}


def _note(site: Site, stages: list[str], ask: Callable[[str], list[Line]]) -> None:
    with doctor.hearing(logger):
        found: dict[str, list[Line]] = {}
        for stage in stages:
            if stage in doctor.DEPLOYS:
                found[stage] = doctor.guarded(stage, "declaration", lambda stage=stage: ask(stage))  # type: ignore[misc]
    _lines[host.name] = found


def _made(site: Site, stages: list[str]) -> Plan:
    """The plan of all hosts, from what they said and what the head keeps."""
    seen = site.at_head()
    lines = {
        stage: [line for found in _lines.values() for line in found.get(stage, [])]
        for stage in stages
        if stage != "preflight"
    }
    kept = site.head.get_fact(Releases, config_dir=site.data.config_dir)
    refused = serve.refusal(seen, kept)
    steps: list[Step] = []
    for stage in stages:
        if stage == "preflight":
            steps.append(Step(stage, "asks", "what each host is, and changes nothing"))
        elif stage == "serve" and refused:
            steps.append(plan.serve_step(seen.about, kept, False, refused, False))
        elif stage == "link" and any(line.status == "drift" for line in lines.get("fabric", [])):
            # As they are now says nothing: ports that are down, or have another MTU, are the stage's before.
            steps.append(Step(stage, "changes", "links are measured once the fabric is as declared"))
        elif any(line.status == "failed" for line in lines[stage]) or stage not in RELEASE_STAGES:
            steps.append(plan.of_lines(stage, lines[stage]))
        elif stage == "image":
            steps.append(plan.in_place_of(_image(seen, lines[stage]), kept, seen.image_tag))
        elif stage == "checkpoint":
            steps.append(plan.in_place_of(_checkpoint(seen, lines[stage]), kept, seen.checkpoint_id))
        elif stage == "serve":
            changes = any(
                line.status == "drift" and "fabric.env" in line.check for line in lines.get("fabric", [])
            )
            serves = all(line.status == "ok" for line in lines[stage])
            steps.append(plan.serve_step(seen.about, kept, serves, None, changes))
        else:
            steps.append(_benchmark(seen, steps))
    stops = any(step.stage == "serve" and step.verdict in ("changes", "new") for step in steps)
    stops |= any(
        line.status == "drift" and line.check == "docker.service" for line in lines.get("docker", [])
    )
    active = kept.current is not None and _is_active(site)
    seconds, like = plan.interruption(kept, site.release_id)
    interrupts = stops and active
    return Plan(
        site.recipe.name,
        site.release_id,
        steps,
        interrupts,
        seconds if interrupts else None,
        like if interrupts else "",
    )


def _is_active(site: Site) -> bool:
    state = site.head.get_fact(ServeState, config_dir=site.data.config_dir)
    return bool(state.get("unit") == "active")


def _image(site: Site, lines: list[Line]) -> Step:
    if all(line.status == "ok" for line in lines):
        return Step("image", "keeps", site.image_tag)
    if site.head.get_fact(ImageId, tag=site.image_tag):
        others = sorted({line.host for line in lines if line.status == "drift"} - {site.head.name})
        return Step(
            "image", "new", f"{site.image_tag} to {', '.join(others)} over the fabric" if others else ""
        )
    how = {"layer": "built on", "source": "vLLM built from source on", "pull": "pulled as"}
    text = f"{site.image_tag}, {how[site.recipe.image.build]} {site.image_base}"
    if site.head.get_fact(ImageId, tag=site.image_base):
        return Step("image", "new", text + ", which is there")
    return Step("image", "new", text, _need(site).image)


def _need(site: Site) -> disk_need.Need:
    """What the head writes where nothing is there yet."""
    return disk_need.need(
        site.recipe.budget,
        transformed=bool(site.transforms),
        head=True,
        staged=disk_need.Staged(),
        keep_source=site.recipe.checkpoint.keep_source,
    )


def _checkpoint(site: Site, lines: list[Line]) -> Step:
    source = site.recipe.checkpoint.source
    if all(line.status == "ok" for line in lines):
        return Step("checkpoint", "keeps", site.checkpoint_id)
    manifest = site.head.get_fact(Json, path=site.manifest_path)
    if manifest and manifest.get("id") == site.checkpoint_id:
        return Step("checkpoint", "new", f"{site.checkpoint_id} to the other hosts over the fabric")
    steps = ", ".join(step["name"] for step in site.transforms)
    text = f"{site.checkpoint_id} of {source.repo} at {source.revision[:12]}"
    text += f" with {steps}" if steps else ""
    whole = site.recipe.budget.download_gib
    if whole is None:
        return Step("checkpoint", "new", text, None)
    need = _need(site)
    text += f"; takes about {bytes_text(need.download + need.checkpoint)} of the head's disk at its peak"
    there = site.head.get_fact(Downloaded, path=site.downloads_dir)
    return Step("checkpoint", "new", text, max(int(whole * GIB) - int(there), 0))


def _benchmark(site: Site, steps: list[Step]) -> Step:
    starts = any(step.stage == "serve" and step.verdict in ("changes", "new") for step in steps)
    if not site.is_measured:
        return Step("benchmark", "keeps", "what is there: benchmark is off")
    measured = settled(site.head.get_fact(Json, path=site.measurement_path), site)
    if measured:
        again = " (measured before; it is judged again)" if starts else ""
        return Step("benchmark", "keeps", f"the measurement of release {site.release_id}{again}")
    return Step("benchmark", "new", f"measures release {site.release_id}")
