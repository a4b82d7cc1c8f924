"""Serving: a release's files on every rank, one unit a rank, and the release of this run made to serve."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, StringCommand, deploy, operation

from sparkstack import gates, knobs, machine, releases
from sparkstack.endpoint import is_everywhere
from sparkstack.errors import Problem, SparkstackError
from sparkstack.releases import OnHost
from tasks import activation, drift, image, report, watchdog
from tasks.activation import CONTAINER, NotReady, Releases, Stuck, Target
from tasks.facts import Ask, Completes, FileStates, ImageId, Json, ServeState, Text
from tasks.files import Commands
from tasks.machine import MachineState
from tasks.operations import managed_files
from tasks.remote import fail, report_failure, shell
from tasks.site import UNIT, Site

# A tiny completion takes well under a second; a head that waits for a dead worker answers never.
COMPLETION_SECONDS = 10


def target_of(site: Site) -> Target:
    """This run's release."""
    return Target(
        site.release_id,
        site.hosts,
        len(site.hosts),
        site.image_tag,
        site.checkpoint_id,
        site.recipe.serve.ready_timeout_s,
    )


def _states(site: Site) -> list[dict[str, str]]:
    return [rank.get_fact(ServeState, config_dir=site.data.config_dir) for rank in site.hosts]


def _is_this(state: dict[str, str], site: Site) -> bool:
    return state.get("release") == site.release_id and state.get("fabric") == "same"


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared (the last: the head asks)."""
    config_dir = {"config_dir": site.data.config_dir}
    written = [site.secret_files] if site.secret_files else []
    written += [site.release_files, [site.unit_file], watchdog.files(site)]
    return [
        *((FileStates, {"paths": [file.path for file in files]}) for files in written),
        (Text, {"path": image.record_path(site)}),
        (ImageId, {"tag": site.image_tag}),
        (Text, {"path": image.id_path(site)}),
        (MachineState, watchdog.UNITS),
        *([(Releases, config_dir)] if site.is_head else []),
        (ServeState, config_dir),
        *([(Completes, _completion(site))] if site.is_head else []),
    ]


@operation()
def unit_known() -> Commands:
    """Make systemd read the unit's file again, and start the unit at boot.

    No-op when it has read it and the unit is enabled; and while a container of ours would lose the GPU by it:
    then it is done when the ranks are stopped, which a changed unit makes a release of its own do. Another's
    container that uses the GPU fails the host.
    """
    state = host.get_fact(MachineState, **watchdog.UNITS)
    unit = state.unit(UNIT)
    if not unit.stale and unit.enabled == "enabled":
        host.noop("systemd knows the unit")
        return
    drift.differs(
        UNIT,
        f"{unit.enabled or 'unknown'}{', an older file in use' if unit.stale else ''}",
        "enabled, the present file in use",
    )
    if refused := machine.reload_refused(state, apart_from=[CONTAINER]):
        yield fail(f"{host.name}: serve: {refused}")
    elif machine.reload_refused(state):
        host.noop("waits until the ranks are stopped: the container that serves would lose the GPU")
    else:
        yield StringCommand(activation.make_known(unit))


@operation()
def activated(site: Site) -> Commands:
    """Make this release the one that serves, on all ranks, from the head's place in the run.

    No-op when on every rank `current` is this release, started with the present fabric.env, the unit is
    active, no activation is under way, and the endpoint answers a completion now. A start of this release
    that is under way is joined. A release that failed before fails the host, unless it is asked for again.
    """
    if not site.is_head:
        return
    kept = host.get_fact(Releases, config_dir=site.data.config_dir)
    if refused := refusal(site, kept):
        # What was cut off while it went back is brought to its end first.
        if kept.under_way is not None:
            drift.differs(f"{site.data.config_dir}/activation.json", "a return that was cut off", "its end")
            yield FunctionCommand(_finish_return, (site,), {})
        elif kept.current in kept.releases and host.state.is_executing:
            activation.note_serving(site.head, str(kept.current), kept.releases[str(kept.current)])
        yield fail(refused)
        return
    states = _states(site)
    units = [state.get("unit") for state in states]
    if all(_is_this(state, site) for state in states):
        if set(units) == {"active"} and completes(site):
            if kept.under_way is None:
                host.noop(f"release {site.release_id} serves on every rank")
            else:
                drift.differs(f"{site.data.config_dir}/activation.json", "left by a run", "none")
                yield FunctionCommand(_note_completed, (site,), {})
            return
        if units[0] == "activating" and set(units) <= {"active", "activating"}:
            yield FunctionCommand(_join_start, (site,), {})
            return
    _tell(site, states)
    yield FunctionCommand(_activate, (site,), {})


@operation()
def api_key_known(site: Site) -> Commands:
    """Put the endpoint's key into root's files on every host; a release with another key is another one.

    No-op when they hold it, or none is declared: what kept releases would start with is left to them.
    """
    if site.is_head and site.api_key is None and is_everywhere(site.bind) and not host.state.is_executing:
        found = f"the endpoint at {site.bind}, all interfaces, and no API key"
        problem = Problem(host.name, found, "a key, or one address", "set api_key_file, or serve_bind")
        host.log_styled(str(problem), fg="yellow", log_func=logger.warning)
    if site.secret_files:
        yield from managed_files._inner(site.secret_files)


def completes(site: Site) -> bool:
    """Does the endpoint answer a completion now?"""
    return bool(host.get_fact(Completes, **_completion(site)))


def _completion(site: Site) -> dict[str, Any]:
    key = {"key_file": site.api_key_path} if site.api_key_path else {}
    asked = {"python": site.python, "url": site.endpoint, "model": site.served_model}
    return {**asked, "seconds": COMPLETION_SECONDS, **key}


def refusal(site: Site, kept: OnHost) -> str | None:
    """Why this run's release is not activated: it failed before. None where it may be.

    A gate that was missed is looked at again with what the recipe expects now.
    """
    mine = kept.releases.get(site.release_id)
    failed = mine.history.failed if mine else None
    if failed is None or knobs.switched_on(site.data, "retry"):
        return None
    reason = str(failed.get("reason"))
    if reason == "gate" and _meets_now(site):
        return None
    said = {
        "rolled back": "which was rolled back by hand",
        "gate": "which missed what its recipe expects",
    }.get(reason, "which did not become ready")
    why = str(failed.get("why") or "")
    why = f" ({why})" if why and reason == "gate" else ""
    return (
        f"{site.head.name}: serve: found release {site.release_id} (recipe {site.recipe.name}), {said} on "
        f"{failed.get('when')}{why}; wanted one that has not failed; change the recipe, or run with "
        "--data retry=yes"
    )


def _meets_now(site: Site) -> bool:
    measurement = site.head.get_fact(Json, path=site.measurement_path)
    try:
        return bool(measurement) and gates.judge(measurement, site.recipe.expect).ok
    except SparkstackError:
        return False


def _tell(site: Site, states: list[dict[str, str]]) -> None:
    """Which rank does not serve this release, and why not."""
    for rank, state in zip(site.hosts, states, strict=True):
        for thing, key, wanted in (
            (f"{site.data.config_dir}/current", "release", site.release_id),
            (UNIT, "unit", "active"),
        ):
            if state.get(key) != wanted:
                drift.differs(thing, state.get(key) or "nothing", wanted, host=rank.name)
        if state.get("fabric") != "same":
            drift.differs(
                f"{site.data.config_dir}/fabric.env",
                "another one than the rank was started with",
                "the same",
                host=rank.name,
            )


def _note_completed(state: Any, host: Any, site: Site) -> bool:
    return activation.completed(host, site.release_id, None)


def _join_start(state: Any, host: Any, site: Site) -> bool:
    """Follow the start that an earlier run began; one that has failed already is begun anew."""
    if any(activation.restarts(rank) for rank in site.hosts):
        return _activate(state, host, site)
    target = target_of(site)
    try:
        serves = activation.follow_start(target.ranks, target.ready_seconds)
    except NotReady as error:
        return _not_ready(host, site, activation.kept_by(host), str(error))
    return serves and activation.completed(host, site.release_id, None)


def _activate(state: Any, host: Any, site: Site) -> bool:
    """Activate this run's release; where it does not become ready, the one before serves again."""
    kept = activation.kept_by(host)
    mine = kept.releases.get(site.release_id)
    if mine is not None and mine.history.failed is not None:
        # It is tried anew, so it is measured anew.
        ok, said = shell(host, f"rm -f {shlex.quote(site.measurement_path)} {shlex.quote(site.verdict_path)}")
        if not ok:
            return report_failure(
                host, f"{host.name}: an old measurement could not be removed; found: {said}"
            )
    back = releases.before(kept, site.release_id)
    try:
        return activation.activate(host, target_of(site), "deploy", back)
    except NotReady as error:
        return _not_ready(host, site, kept, str(error))
    except Stuck:
        return False if back is None else activation.give_back(host, target_of(site), back, "stuck", "")


def _not_ready(host: Any, site: Site, kept: OnHost, line: str) -> bool:
    """A release on trial goes back; one that has served before, and was only started again, keeps trying."""
    report_failure(host, line)
    report.note_not_ready()
    way, mine = kept.under_way, kept.releases.get(site.release_id)
    served = mine is not None and mine.history.served is not None
    on_trial = kept.current != site.release_id or way is not None or not served
    if not on_trial or knobs.switched_on(site.data, "keep_failed"):
        return False
    return activation.give_back(
        host, target_of(site), releases.before(kept, site.release_id), "not ready", line
    )


def _finish_return(state: Any, host: Any, site: Site) -> bool:
    """Bring the release that shall serve instead of this one back, after a run that was cut off."""
    kept = activation.kept_by(host)
    name = kept.under_way.home if kept.under_way else None
    if name is None or name not in kept.releases:
        return report_failure(
            host,
            f"{host.name}: serve: found no release to go back to; wanted one; run with --data retry=yes",
        )
    try:
        serves = activation.activate(host, Target.of(name, kept.releases[name], site.hosts), "return", None)
    except NotReady as error:
        return report_failure(host, str(error))
    except Stuck:
        return False
    if serves:
        activation.note_serving(host, name, kept.releases[name])
    return serves


@deploy("serve")
def deploy_serve(site: Site) -> None:
    """After this `current` is the release on every rank, and the head has answered a completion."""
    api_key_known(name="API key is known to root", site=site)
    managed_files(name="release files", files=site.release_files)
    image.recorded(name="image's check is in the release", site=site)
    image.identified(name="image's id is in the release", site=site)
    managed_files(name="unit file", files=[site.unit_file])
    unit_known(name="systemd knows the unit")
    managed_files(name="watchdog's files", files=watchdog.files(site))
    watchdog.watched(name="watchdog watches", site=site)
    activated(name="release serves on all ranks", site=site)
