"""Stops before any change when something cannot work: every host says all that is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pyinfra import host, logger
from pyinfra.api import deploy, operation

from sparkstack import disk_need, preflight
from sparkstack.host_facts import CheckResult, Gpu, HostFacts, Wanted
from sparkstack.kernel import Grub, Kernel
from sparkstack.units import GIB
from tasks import report
from tasks.facts import Ask, ImageId, Json, Survey
from tasks.files import Commands
from tasks.remote import fail
from tasks.site import Site

# Certificates and logs of a cluster want clocks that agree; the asking itself takes up to a second.
MAX_SKEW_SECONDS = 2.0

# What each host said in this run: the first operation asks, the second compares.
_asked: dict[str, HostFacts] = {}


def _clock_offset(first: float, last: float, asked: float, answered: float) -> float:
    """Seconds by which a host's clock differs from ours at least: it was read some time between asking
    and answer, and hosts are asked at different moments. `first` and `last`: it was read as the first thing
    and as the last, so that the time that a survey takes hides nothing."""
    return max(last - answered, 0.0) + min(first - asked, 0.0)


def host_facts(name: str, survey: dict[str, Any], asked: float, answered: float) -> HostFacts:
    """A survey's words as the core's facts; `asked` and `answered` are our clock around it."""
    gpu = None
    # Without a GPU nvidia-smi prints a sentence where its three fields would be.
    fields = [part.strip() for part in survey.get("gpu", "").split(",")]
    if len(fields) == 3:
        gpu = Gpu(fields[0], fields[1], fields[2], survey.get("cuda", ""))
    system, _, version = survey.get("system", "").partition(":")
    clock = survey.get("clock")
    return HostFacts(
        name=name,
        os_id=system,
        os_version=version,
        arch=survey.get("arch", ""),
        memory_available_bytes=int(survey.get("memory_available", 0)),
        memory_total_bytes=int(survey.get("memory_total", 0)),
        disk_free=survey.get("disk", {}),
        file_systems=survey.get("file_system", {}),
        port_owner=survey.get("port") or None,
        sudo_ok=survey.get("user") == "root",
        python_version=survey.get("python") or None,
        serving=survey.get("serving") == "yes",
        account_exists=survey["account"] != "none" if survey.get("account") else None,
        docker_version=survey.get("docker"),
        container_toolkit=survey.get("nvidia_ctk"),
        gpu=gpu,
        kernel=survey.get("kernel", ""),
        clock_epoch_s=_clock_offset(float(clock), float(survey.get("clock_last") or clock), asked, answered)
        if clock
        else None,
        container=survey.get("container", ""),
        kernels=[
            Kernel(version, "bootable" in words, "nvidia" in words)
            for version, words in survey.get("kernels", {}).items()
        ],
        grub=Grub(*(survey.get(f"grub_{key}", "") for key in ("first", "default", "saved", "once"))),
        cma_total_bytes=_number(survey, "cma_total"),
        cma_free_bytes=_number(survey, "cma_free"),
        kernel_log=survey.get("log", []) if survey.get("log_read") else None,
        connectx=survey.get("connectx", "").split(),
    )


def _number(survey: dict[str, Any], key: str) -> int | None:
    return int(survey[key]) if survey.get(key) else None


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host, with Docker or without."""
    return [
        (Survey, _survey_arguments(site)),
        (Json, {"path": site.manifest_path}),
        (ImageId, {"tag": site.image_tag}),
    ]


def _port(site: Site) -> int | None:
    """The endpoint is the head's; the other ranks listen nowhere, and what listens there may stay."""
    return site.recipe.serve.port if site.is_head else None


def _survey_arguments(site: Site) -> dict[str, Any]:
    # Where Docker will keep its images once this run has told it so.
    data_root = site.data.get("docker_data_root")
    paths = [*_places(site), *([data_root] if data_root else [])]
    return {
        "paths": paths,
        "port": _port(site),
        "downloads": f"{site.downloads_dir}:{site.downloads_dir}.parts:{site.checkpoint_dir}.partial",
        "account": site.user,
    }


def _places(site: Site) -> tuple[str, str, str]:
    return site.data.state_dir, f"{site.data.state_dir}/downloads", site.checkpoints_dir


def _image_root(site: Site, survey: dict[str, Any]) -> str:
    """Where images land. containerd's store has a place of its own, which no data root moves."""
    declared = site.data.get("docker_data_root") if survey.get("image_store") != "containerd" else None
    return str(declared or survey.get("docker_root") or "/var/lib/docker")


def _wanted(site: Site, survey: dict[str, Any]) -> Wanted:
    """What this host must offer; room for what is there already is not asked for again."""
    manifest = host.get_fact(Json, path=site.manifest_path)
    staged = disk_need.Staged(
        checkpoint=bool(manifest),
        image=bool(survey.get("docker") and host.get_fact(ImageId, tag=site.image_tag)),
        downloaded_bytes=_number(survey, "downloaded") or 0,
    )
    # Sites mount disks where the large things are; a folder that is on its parent's is told by the parent.
    on = survey.get("file_system", {})
    state_dir, downloads, checkpoints = _places(site)
    at_downloads, at_checkpoints = (
        path if on.get(path) not in (None, on.get(state_dir)) else state_dir
        for path in (downloads, checkpoints)
    )
    need = disk_need.need(
        site.recipe.budget,
        transformed=bool(site.transforms),
        head=site.is_head,
        staged=staged,
        keep_source=site.recipe.checkpoint.keep_source,
        one_file_system=on.get(at_downloads) == on.get(at_checkpoints),
    )
    disk = {state_dir: 0}
    disk[at_downloads] = disk.get(at_downloads, 0) + need.download
    disk[at_checkpoints] = disk.get(at_checkpoints, 0) + need.checkpoint
    if need.image is not None:
        disk[_image_root(site, survey)] = need.image
    declared = site.recipe.host.model_dump(exclude_none=True)
    return Wanted(
        systems=[tuple(system.split(":", 1)) for system in site.data.accepted_systems],
        accelerator=site.data.accelerator,
        port=_port(site),
        memory_bytes=int(site.recipe.budget.memory_gib * GIB),
        disk_bytes=disk,
        account=site.user,
        from_recipe=[*declared],
        **declared,
    )


def judged(site: Site) -> list[CheckResult]:
    """Ask this host, and judge what it says; what it said is kept for `compared`."""
    asked = time.time()
    survey = host.get_fact(Survey, **_survey_arguments(site))
    facts = host_facts(host.name, survey, asked, time.time())
    _asked[host.name] = facts
    report.note_host(host, facts.versions)
    return preflight.check(facts, _wanted(site, survey))


def compared(names: Iterable[str]) -> list[CheckResult]:
    """The hosts against one another, as far as they were asked."""
    return preflight.across([_asked[name] for name in names if name in _asked], MAX_SKEW_SECONDS)


@operation()
def checks_pass(site: Site) -> Commands:
    """Compare what the host is with what the recipe needs.

    No-op when nothing is wrong (it never changes anything); else fails the host with a line a problem.
    """
    yield from _show(judged(site))


@operation()
def hosts_agree(site: Site) -> Commands:
    """Compare the hosts with one another (architecture, driver, kernel, clock), from the head.

    No-op when they agree (it never changes anything); else fails with a line a difference.
    """
    if not site.is_head:
        return
    yield from _show(compared([one.name for one in site.hosts]))


def _show(results: list[CheckResult]) -> Commands:
    open_ones = [f"{result.name} ({result.found})" for result in results if result.status == "not checked"]
    if open_ones and host.state.is_executing:
        where = results[0].host
        host.log_styled(f"{where}: not checked: {', '.join(open_ones)}", fg="yellow", log_func=logger.info)
    problems = [str(result) for result in results if result.status == "failed"]
    if problems:
        if not host.state.is_executing:  # a dry run stops here; the lines are all that it can say
            for line in problems:
                host.log_styled(line, fg="red", log_func=logger.error)
        yield fail(*problems)


@deploy("preflight")
def deploy_preflight(site: Site) -> None:
    """Ask each host once, judge, stop before any change."""
    checks_pass(name="host can carry the recipe", site=site)
    hosts_agree(name="hosts agree with one another", site=site)
