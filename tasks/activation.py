"""Activation: the same release on every rank by one rename each, and back again where it does not serve.

All of it is done from the head's place in a run. `activation.json` is written before anything stops and goes
when the head has answered a completion, so that a run that was cut off anywhere between is continued.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyinfra.api import FactBase

from sparkstack import machine
from sparkstack.releases import Activation, History, Kept, Kind, OnHost, misfit
from tasks import report, undo
from tasks.facts import Json
from tasks.files import ManagedFile
from tasks.machine import MachineState
from tasks.remote import POLL_SECONDS, progress, report_failure, shell, write_now
from tasks.site import UNIT

CONTAINER = "sparkstack-serve"
DEFAULT_READY_SECONDS = 1800


class Releases(FactBase[OnHost]):
    """Returns which releases a host keeps, which is current, and whether an activation is under way."""

    default = OnHost

    def command(self, config_dir: str) -> str:
        # Our JSON has no line breaks in its texts, so one line a file is the same value.
        return (
            f"cd {shlex.quote(config_dir)} 2>/dev/null || exit 0; "
            'c=$(readlink current); echo "current ${c##*/}"; '
            "[ ! -f activation.json ] || echo \"activation $(tr -d '\\n' < activation.json)\"; "
            'for f in releases/*/release.json; do [ -f "$f" ] || continue; d=${f%/*}; '
            'p=$(readlink "$d/previous"); t=$(stat -c %Y "$d/fabric.env" 2>/dev/null); '
            'echo "release ${d##*/} ${t:-0} ${p##*/}|$(tr -d \'\\n\' < "$f")"; '
            '[ ! -f "$d/history.json" ] || echo "history ${d##*/} $(tr -d \'\\n\' < "$d/history.json")"; done'
        )

    def process(self, output: list[str]) -> OnHost:
        current: str | None = None
        way: Activation | None = None
        kept: dict[str, tuple[int, str | None, Any]] = {}
        histories: dict[str, History] = {}
        for line in output:
            word, _, rest = line.partition(" ")
            if word == "current":
                current = rest.strip() or None
            elif word == "activation":
                way = Activation.read(_json(rest))
            elif word == "history":
                name, _, text = rest.partition(" ")
                histories[name] = History.read(_json(text))
            elif word == "release":
                head, _, text = rest.partition("|")
                # No folder of ours has a blank in its name: a copy that somebody made is left alone.
                name, when, *previous = head.split()
                about = _json(text)
                if isinstance(about, dict) and when.isdigit():
                    kept[name] = (int(when), previous[0] if previous else None, about)
        return OnHost(
            current,
            {
                name: Kept(about, when, previous, histories.get(name, History()))
                for name, (when, previous, about) in kept.items()
            },
            way,
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Target:
    """A release as an activation needs it. `hosts` are all of the inventory; the first `world` serve."""

    release: str
    hosts: list[Any]
    world: int
    image: str
    checkpoint: str
    ready_seconds: int

    @classmethod
    def of(cls, name: str, kept: Kept, hosts: list[Any]) -> Target:
        seconds = kept.about.get("ready_timeout_s")
        return cls(
            name,
            hosts,
            kept.world,
            str(kept.about.get("image")),
            str(kept.about.get("checkpoint")),
            seconds if isinstance(seconds, int) else DEFAULT_READY_SECONDS,
        )

    @property
    def head(self) -> Any:
        return self.hosts[0]

    @property
    def ranks(self) -> list[Any]:
        return self.hosts[: self.world]

    def folder(self, rank: Any) -> str:
        return f"{rank.data.config_dir}/releases/{self.release}"


class NotReady(Exception):
    """A release that was started and does not serve; its text is the line that says why."""


class Stuck(Exception):
    """An activation that could not be done on some rank after others had been stopped; its line is shown."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def kept_by(host: Any) -> OnHost:
    """What a host keeps, asked now."""
    found: OnHost = host.get_fact(Releases, config_dir=host.data.config_dir)
    return found


def put(host: Any, path: str, value: Any) -> bool:
    """Write a small JSON file of ours on a host; a failure is shown."""
    ok, said = write_now(host, ManagedFile.text(path, json.dumps(value, sort_keys=True) + "\n"))
    return ok or report_failure(host, f"{host.name}: {path} could not be written; found: {said}")


def history_path(host: Any, release: str) -> str:
    return f"{host.data.config_dir}/releases/{release}/history.json"


def _way_path(host: Any) -> str:
    return f"{host.data.config_dir}/activation.json"


def begin(host: Any, what: Activation) -> bool:
    """Note that an activation is under way, before anything of it is done."""
    return put(host, _way_path(host), what.as_dict())


def missing(rank: Any, target: Target) -> str:
    """What a rank lacks to start a release, or "": asked before anything is stopped."""
    config, folder = rank.data.config_dir, target.folder(rank)
    manifest = f"{rank.data.state_dir}/checkpoints/{target.checkpoint}/manifest.json"
    wanted = {
        f"{folder}/run": f"test -x {folder}/run",
        f"{config}/fabric.env": f"test -f {config}/fabric.env",
        f"image {target.image}": f"docker image inspect {shlex.quote(target.image)} >/dev/null 2>&1",
        f"checkpoint {target.checkpoint}": f"test -f {manifest}",
    }
    asks = "; ".join(f"{command} || echo {shlex.quote(what)}" for what, command in wanted.items())
    ok, text = shell(rank, asks)
    return ", ".join(text.splitlines()) if ok else "answer"


def activate(host: Any, target: Target, kind: Kind, back: str | None) -> bool:
    """Stop all ranks (head first), switch `current` on each by one rename, start workers, then the head.

    `back` is the release that is left behind; it becomes `previous`, except by a return, which leaves
    everything as it was before. False (one line) where nothing was stopped, or the head stopped answering.
    Errors: NotReady; Stuck.
    """
    for rank in target.ranks:
        if lacks := missing(rank, target):
            return report_failure(
                host,
                f"{rank.name}: serve: found no {lacks}; wanted all of release {target.release} "
                "before the present one stops; run all stages on all hosts",
            )
    if not begin(host, Activation(kind, target.release, back)):
        return False
    began = time.monotonic()
    if not stop_ranks(host, target.hosts):
        raise Stuck
    for rank in target.hosts:
        if not _known(host, rank):
            raise Stuck
    for rank in target.hosts:
        ok, said = shell(rank, _switch(rank, target, kind, back))
        if not ok:
            report_failure(host, f"{rank.name}: `current` could not be switched; found: {said}")
            raise Stuck
    if not started(host, target.ranks):
        raise Stuck
    if not follow_start(target.ranks, target.ready_seconds):
        return False
    return completed(host, target.release, time.monotonic() - began)


def _switch(rank: Any, target: Target, kind: Kind, back: str | None) -> str:
    """Shell words that make a release the current one of a rank. The rename takes `previous` along: that is
    a link through `current`, so that both change in one moment."""
    config, folder = rank.data.config_dir, target.folder(rank)
    reset = f"systemctl reset-failed {UNIT} 2>/dev/null; "
    if rank not in target.ranks:
        return f"{reset}rm -f {config}/current && sync {config}"
    # A deployment takes the present names of the fabric; a release that comes back has what it ran with. The
    # file's time is that of the last activation.
    there = f"test -f {folder}/fabric.env && touch {folder}/fabric.env || "
    there = "" if kind == "deploy" else there
    words = f"{reset}{{ {there}cp {config}/fabric.env {folder}/fabric.env; }}"
    if back is not None and back != target.release and kind != "return":
        words += (
            f" && ln -sfn ../{back} {folder}/previous.new && mv -fT {folder}/previous.new {folder}/previous"
            f" && {{ [ -L {config}/previous ] || ln -s current/previous {config}/previous; }}"
        )
    return (
        # Files only: the link `previous` of an old release may lead to one that is gone.
        f"{words} && find {folder} -type f -exec sync {{}} + && sync {folder}"
        f" && ln -sfn {folder} {config}/current.new && mv -fT {config}/current.new {config}/current"
        f" && sync {config}"
    )


def completed(host: Any, release: str, seconds: float | None) -> bool:
    """Note that the release serves, and that nothing is under way any more."""
    kept = kept_by(host).releases.get(release)
    history = kept.history if kept else History()
    served = history.served if seconds is None else {"when": now(), "seconds": round(seconds, 1)}
    note = History(served or {"when": now(), "seconds": None}, history.passed, None)
    if note != history and not put(host, history_path(host, release), note.as_dict()):
        return False
    ok, said = shell(host, f"rm -f {_way_path(host)}")
    return ok or report_failure(host, f"{host.name}: {_way_path(host)} could not be removed; found: {said}")


def set_aside(host: Any, release: str, reason: str, why: str) -> bool:
    """Note that a release failed, so that no run activates it again unasked."""
    kept = kept_by(host).releases.get(release)
    history = kept.history if kept else History()
    note = History(history.served, history.passed, {"when": now(), "reason": reason, "why": why})
    return put(host, history_path(host, release), note.as_dict())


def give_back(host: Any, target: Target, back: str | None, reason: str, why: str) -> bool:
    """The release before serves again on all ranks. False in every case: the run has failed.

    With the reason "stuck" nothing is held against the release. Without one to go back to, a release that
    never answered is stopped, and one that answers goes on.
    """
    kept = kept_by(host).releases.get(back or "")
    names = [one.name for one in target.hosts]
    if back is None or kept is None or misfit(back, kept, names) is not None:
        if reason == "not ready":
            stop_ranks(host, target.hosts)
            shell(host, f"rm -f {_way_path(host)}")
            return report_failure(
                host,
                f"{host.name}: serve: found no release before {target.release} to go back to; wanted one; "
                "serving is stopped",
            )
        return report_failure(
            host,
            f"{host.name}: serve: found no release before {target.release} to go back to; wanted one; "
            + ("it goes on serving" if reason == "gate" else "run again"),
        )
    # Written before the mark, so that a run that is cut off here still knows where to go.
    if not begin(host, Activation("return", back)):
        return False
    if reason != "stuck" and not set_aside(host, target.release, reason, why):
        return False
    try:
        serves = activate(host, Target.of(back, kept, target.hosts), "return", None)
    except NotReady as error:
        serves = report_failure(host, str(error))
    except Stuck:
        serves = False
    if not serves:
        return report_failure(
            host,
            f"{host.name}: serve: release {back} does not serve again either; wanted it back in place of "
            f"{target.release}; run again, or with --data rollback=yes",
        )
    note_serving(host, back, kept)
    return report_failure(
        host,
        f"{host.name}: serve: release {target.release} was taken back; release {back} "
        f"(recipe {kept.about.get('recipe')}) serves again",
    )


def note_serving(host: Any, release: str, kept: Kept) -> None:
    """Tell the report that another release than this run's serves, and what was measured of it."""
    folder = f"{host.data.state_dir}/results/{release}"
    figures = [host.get_fact(Json, path=f"{folder}/{name}.json") for name in ("measurement", "verdict")]
    report.note_serving(host, release, kept.about, *figures)


def with_unit(hosts: list[Any]) -> list[Any]:
    """Those of `hosts` that have the unit: one that joins those that serve has none yet."""
    look = f"systemctl show -p LoadState --value {UNIT}"
    return [rank for rank in hosts if shell(rank, look)[1].strip() != "not-found"]


def stop_ranks(host: Any, hosts: list[Any]) -> bool:
    """Stop the units of all ranks, the head's first: it stops taking requests before a worker goes.

    A container that its engine's end left behind goes here, too."""
    gone = f"{{ timeout 60 docker rm -f {CONTAINER} >/dev/null 2>&1; true; }}"
    progress.update(f"{hosts[0].name} serve", "stop", 0, None, "s", "stopping the ranks")
    idle = False
    for rank in hosts:
        ok, said = shell(rank, f'{stop_words(idle)} && {gone} && echo "$s"')
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be stopped; found: {said}")
        # Requests come by the head: where that did not serve, no worker has one, though its unit is active.
        idle = idle or (rank is hosts[0] and said.strip() == "activating")
    return True


def stop_words(idle: bool = False) -> str:
    """Shell words that stop a rank's unit; `$s` is what it was. `idle`: it has no open request in any case.

    An engine that loads is killed first: a unit that starts gets no ExecStop, and the signal that it gets may
    never be heard (a container's first process ignores what it does not handle), so that the stop would take
    all the time that open requests may take."""
    kill = f"timeout 20 docker kill {CONTAINER} >/dev/null 2>&1"
    kill = f"{kill}; true" if idle else f'[ "$s" != activating ] || {kill}'
    return f's=$(systemctl show -p ActiveState --value {UNIT}); {kill}; systemctl stop {UNIT}'


def start_ranks(host: Any, ranks: list[Any], ready_seconds: int) -> bool:
    """Start the workers' units, then the head's, and wait until the head has answered a completion.

    Errors: NotReady.
    """
    return started(host, ranks) and follow_start(ranks, ready_seconds)


def started(host: Any, ranks: list[Any]) -> bool:
    """Start the workers' units, then the head's."""
    for rank in [*ranks[1:], ranks[0]]:
        ok, said = shell(rank, f"systemctl start --no-block {UNIT}")
        if not ok:
            return report_failure(host, f"{rank.name}: {UNIT} could not be started; found: {said}")
    return True


def make_known(unit: machine.Unit) -> str:
    """Shell words that make systemd read the unit's file and start it at boot."""
    note = undo.did("unit", UNIT, f"{unit.enabled or 'not-found'} {unit.active}")
    return f"{note} && systemctl daemon-reload && systemctl enable --quiet {UNIT}"


def _known(host: Any, rank: Any) -> bool:
    """What had to wait until the ranks are stopped."""
    state = rank.get_fact(MachineState, packages=[], units=[UNIT])
    unit = state.unit(UNIT)
    if not unit.stale and unit.enabled == "enabled":
        return True
    if refused := machine.reload_refused(state):
        return report_failure(host, f"{rank.name}: serve: {refused}")
    ok, said = shell(rank, make_known(unit))
    return ok or report_failure(host, f"{rank.name}: systemd could not read {UNIT} again; found: {said}")


def follow_start(ranks: list[Any], limit: int) -> bool:
    """Wait until the head's unit is active; a rank whose unit starts again and again ends the wait.

    False (one line) where the head stops answering. Errors: NotReady."""
    head = ranks[0]
    label = f"{head.name} serve"
    began = time.monotonic()
    last_line = f"docker logs --tail 1 {CONTAINER} 2>/dev/null | cut -c1-160"
    while True:
        ok, text = shell(head, f"systemctl show -p ActiveState --value {UNIT}; {last_line}; true")
        if not ok:
            progress.finish(label)
            return report_failure(head, f"{head.name}: serve: the host stopped answering; run again")
        state, *said = text.splitlines() or [""]
        if state == "active":
            progress.finish(label)
            return True
        waited = time.monotonic() - began
        progress.update(label, "start", waited, limit, "s", said[0] if said else "")
        counts = [restarts(rank) for rank in ranks]
        broken = [rank for rank, count in zip(ranks, counts, strict=True) if count >= 3]
        if broken or waited > limit:
            progress.finish(label)
            raise NotReady(_why_not(broken[0] if broken else head, limit))
        time.sleep(POLL_SECONDS)


def _why_not(rank: Any, limit: int) -> str:
    _, journal = shell(
        rank,
        f"journalctl -u {UNIT} -n 60 -o cat --no-pager | "
        "grep -iE 'error|exception|; wanted |: waiting for ' | "
        "grep -v 'No such container' | tail -n 2 | cut -c1-300; true",
    )
    found = " / ".join(journal.split("\n")) or "no error in its journal"
    return (
        f"{rank.name}: serve: found {found}; wanted a completion within {limit} s; "
        f"see `journalctl -u {UNIT}` there"
    )


def restarts(rank: Any) -> int:
    """How often systemd has started a rank's unit again by itself."""
    ok, text = shell(rank, f"systemctl show -p NRestarts --value {UNIT}")
    return int(text) if ok and text.strip().isdigit() else 0
