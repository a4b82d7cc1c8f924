"""Back to the release before, with what is on the hosts and nothing else: no recipe, no hub, no registry."""

from __future__ import annotations

import sys
from typing import Any

from pyinfra import host, inventory, logger
from pyinfra.api import FunctionCommand, deploy, operation

from sparkstack import knobs, plan, releases
from sparkstack.errors import Problem
from sparkstack.releases import Activation, Kept, OnHost
from sparkstack.units import seconds_text
from tasks import access, activation, declared, drift
from tasks.activation import NotReady, Releases, Stuck, Target
from tasks.files import Commands
from tasks.remote import fail, report_failure
from tasks.site import SiteError


def asked(one: Any) -> bool:
    """Does this run go back? Errors: SiteError for a wrong declaration; the recipe is not looked at."""
    if "rollback" not in one.data.dict():
        return False
    if mistakes := declared.problems(one):
        raise SiteError("\n".join(map(str, mistakes)))
    if not knobs.switched_on(one.data, "rollback"):
        return False
    hosts = list(inventory)
    one.state.should_raise_failed_hosts = lambda state: True
    if gone := [each.name for each in hosts if not each.connected]:
        raise SiteError(
            f"{', '.join(gone)}: found no connection; wanted all hosts of the inventory: a release goes back "
            "on all ranks or on none; check power, cable and ssh"
        )
    return True


@operation()
def gone_back(hosts: list[Any]) -> Commands:
    """Activate the release before the current one on all ranks, from the head's place in the run.

    Never a no-op: run again, it goes back to where it was. An activation that was cut off is taken back; a
    rollback that was cut off is brought to its end.
    """
    if host.name != hosts[0].name:
        return
    kept = host.get_fact(Releases, config_dir=host.data.config_dir)
    name = releases.rollback_target(kept)
    problem: Problem | None = name if isinstance(name, Problem) else None
    if not isinstance(name, Problem):
        problem = releases.misfit(name, kept.releases[name], [one.name for one in hosts])
    if problem is not None:
        yield fail(f"{host.name}: {problem}")
        return
    if not host.state.is_executing:
        _announce(kept, str(name))
    drift.differs(f"{host.data.config_dir}/current", str(kept.current), str(name))
    yield FunctionCommand(_go_back, (str(name), kept.releases[str(name)], hosts), {})


def _announce(kept: OnHost, name: str) -> None:
    """What a dry run says."""
    recipes = {one: release.about.get("recipe") for one, release in kept.releases.items()}
    seconds, like = plan.interruption(kept, name)
    how_long = plan.NOT_KNOWN if seconds is None else f"about {seconds_text(seconds)} ({like})"
    line = (
        f"plan: back from release {kept.current} (recipe {recipes.get(str(kept.current))}) to {name} "
        f"(recipe {recipes[name]}); nothing is fetched; serving: interrupted; for how long: {how_long}"
    )
    host.log_styled(line, log_func=logger.info)


def _go_back(state: Any, host: Any, name: str, release: Kept, hosts: list[Any]) -> bool:
    kept = activation.kept_by(host)
    way = kept.under_way
    target = Target.of(name, release, hosts)
    # What is left: of a rollback that was cut off, what that one left.
    left = way.back if way is not None and way.kind == "rollback" and way.to == name else None
    left = left or (way.to if way is not None and way.to != name else kept.current)
    for rank in target.ranks:
        if lacks := activation.missing(rank, target):
            return report_failure(
                host,
                f"{rank.name}: rollback: found no {lacks}; wanted all of release {name} on the host; "
                "deploy its recipe instead",
            )
    # Written before the mark, so that a run that is cut off here is continued and not turned round.
    if not activation.begin(host, Activation("rollback", name, left)):
        return False
    known = left is not None and left in kept.releases and left != name
    if known and not activation.set_aside(host, str(left), "rolled back", ""):
        return False
    try:
        serves = activation.activate(host, target, "rollback", left)
    except NotReady as error:
        return report_failure(host, str(error)) or report_failure(
            host,
            f"{host.name}: rollback: release {name} does not serve; wanted it in place of {left}; "
            "look at its journal, or deploy a recipe",
        )
    except Stuck:
        return False
    if serves:
        activation.note_serving(host, name, release)
    return serves


@deploy("rollback")
def deploy_rollback() -> None:
    """After this the release before the current one serves, and that one is the one before."""
    gone_back(name="the release before serves on all ranks", hosts=list(inventory))


# What each host keeps, for the listing; the last one shows it.
_kept: dict[str, OnHost] = {}


def list_releases() -> None:
    """Show the releases of all hosts; the run ends before its execution."""
    access.ensure(host)
    _kept[host.name] = host.get_fact(Releases, config_dir=host.data.config_dir)
    if set(_kept) >= {one.name for one in host.state.activated_hosts}:
        names = [one.name for one in inventory if one.name in _kept]
        print("\n".join(releases.listed({name: _kept[name] for name in names})), flush=True)
        sys.exit(0)
