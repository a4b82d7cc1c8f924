"""Docker's daemon: our settings merged into what is there, and a restart only when they changed.

A restart stops every container. Where a release serves, the run refuses it, or stops the ranks before and
starts them after, in rank order (`--data restart_serving=yes`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from pyinfra import host, logger
from pyinfra.api import FactBase, FunctionCommand, StringCommand, deploy, operation

from sparkstack import daemon_json, differences, docker_settings, knobs
from sparkstack.docker_settings import DaemonFile
from sparkstack.errors import SparkstackError
from tasks import activation, drift, undo
from tasks.facts import Ask, ServeState, decoded
from tasks.files import Commands, ManagedFile
from tasks.remote import fail, report_failure, shell
from tasks.site import Site

# Says that the file was written and the daemon not restarted since, and whether there had been a "file" or it
# had been "absent". A boot, which restarts the daemon, forgets it.
DUE = "/run/sparkstack-docker-restart-due"
BEFORE = "/run/sparkstack-docker-before"
TRIAL = "/run/sparkstack-docker-trial.json"
SERVICE = "docker.service"


class DaemonJson(FactBase[DaemonFile]):
    """Returns daemon.json as it is, and what of the host decides what it shall be."""

    default = DaemonFile

    def command(self, path: str) -> str:
        p = shlex.quote(path)
        return (
            f'p={p}; k=absent; [ ! -e "$p" ] || k=other; [ ! -d "$p" ] || k=directory; '
            '[ ! -f "$p" ] || k=file; '
            '[ ! -L "$p" ] || k=symlink; echo "kind=$k"; '
            '[ $k != symlink ] || echo "links_to=$(readlink "$p")"; '
            '[ $k != file ] || stat -c "stat=%a %u:%g" "$p"; '
            "command -v nvidia-smi >/dev/null && command -v nvidia-ctk >/dev/null && echo gpu=yes; "
            f"[ ! -e {DUE} ] || echo restart_due=yes; "
            f'echo "ours=$(tail -n 1 {undo.ROOT}/settings"$p" 2>/dev/null)"; '
            '[ ! -f "$p.before-sparkstack" ] || echo "before=$(base64 -w 0 "$p.before-sparkstack")"; '
            '[ $k != file ] || echo "text=$(base64 -w 0 "$p")"'
        )

    def process(self, output: list[str]) -> DaemonFile:
        found = dict(line.split("=", 1) for line in output if "=" in line)
        mode, _, owner = found.get("stat", "644 root:root").partition(" ")
        return DaemonFile(
            kind=found.get("kind", "absent"),
            text=decoded(found["text"]) if "text" in found else None,
            mode=mode.zfill(3),
            owner=owner,
            links_to=found.get("links_to", ""),
            gpu="gpu" in found,
            restart_due="restart_due" in found,
            ours=json.loads(found.get("ours") or "{}"),
            before=decoded(found["before"]) if "before" in found else None,
        )


class Validates(FactBase[bool]):
    """Returns True where dockerd can judge a file without being started by it. Asked only before a change,
    for dockerd takes its time even to say this."""

    default = bool

    def command(self) -> str:
        return "dockerd --help 2>/dev/null | grep -q -e --validate && echo yes; true"

    def process(self, output: list[str]) -> bool:
        return output == ["yes"]


class Mirrors(FactBase[Mapping[str, str]]):
    """Returns `{mirror: HTTP status of its /v2/}`, asked from the host; "000" where nothing answers."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self, mirrors: list[str]) -> str:
        ask = "curl -s -o /dev/null -m 5 -w '%{http_code}'"
        urls = {mirror: shlex.quote(mirror.rstrip("/") + "/v2/") for mirror in mirrors}
        # A host without curl has no answer, either.
        asks = [
            f"( s=$({ask} {url}); echo ${{s:-000}} {shlex.quote(mirror)} ) &" for mirror, url in urls.items()
        ]
        return " ".join([*asks, "wait"])

    def process(self, output: list[str]) -> dict[str, str]:
        return {mirror: status for status, _, mirror in (line.partition(" ") for line in output) if mirror}


class Others(FactBase[Mapping[str, bool]]):
    """Returns the containers of others that a restart of the daemon would stop, and whether each comes back
    by its restart policy; none where the daemon lets them live through it. Asked only before a restart."""

    @staticmethod
    def default() -> dict[str, bool]:
        return {}

    def command(self) -> str:
        return (
            "[ \"$(docker info -f '{{.LiveRestoreEnabled}}' 2>/dev/null)\" = true ] || "
            "docker ps -q 2>/dev/null | "
            "xargs -r docker inspect -f '{{.Name}} {{.HostConfig.RestartPolicy.Name}}' 2>/dev/null; true"
        )

    def process(self, output: list[str]) -> dict[str, bool]:
        # "on-failure" does not count: it looks at the container's own end, not at the daemon's.
        pairs = (line.removeprefix("/").partition(" ") for line in output if line.startswith("/"))
        return {
            name: policy in ("always", "unless-stopped")
            for name, _, policy in pairs
            if not name.startswith("sparkstack-")
        }


class DaemonState(FactBase[str]):
    """Returns `is-enabled` and `is-active` of Docker's unit, such as "enabled active"."""

    default = str

    def command(self) -> str:
        return f"systemctl show -p UnitFileState -p ActiveState {SERVICE}"

    def process(self, output: list[str]) -> str:
        found = dict(line.split("=", 1) for line in output if "=" in line)
        return f"{found.get('UnitFileState') or 'not-found'} {found.get('ActiveState') or 'inactive'}"


def asks(site: Site) -> list[Ask]:
    """The facts that the operations below ask of a host that is as declared."""
    mirrors = site.data.docker_mirrors
    return [
        *([(Mirrors, {"mirrors": mirrors})] if mirrors else []),
        (DaemonJson, {"path": daemon_json.PATH}),
        (DaemonState, {}),
    ]


def _serving(site: Site) -> dict[str, str]:
    """The ranks whose unit is active or about to be: host -> release."""
    states = {rank.name: rank.get_fact(ServeState, config_dir=site.data.config_dir) for rank in site.hosts}
    busy = ("active", "activating", "reloading")
    return {name: state.get("release", "") for name, state in states.items() if state.get("unit") in busy}


@operation()
def mirrors_answer(mirrors: list[str]) -> Commands:
    """Ask each mirror's /v2/ from the host; one that does not answer is a warning with its name.

    Always a no-op: Docker itself goes on to the next mirror.
    """
    yield from ()
    if mirrors:
        for problem in docker_settings.mirror_warnings(host.name, host.get_fact(Mirrors, mirrors=mirrors)):
            host.log_styled(str(problem), fg="yellow", log_func=logger.warning)
            drift.warns(problem)
    host.noop("mirrors were asked")


@operation()
def merged_daemon_json(site: Site, path: str) -> Commands:
    """Merge the site's settings into Docker's daemon.json; keys of others stay, lists become exactly ours,
    and what the last run put in and is not declared any more goes.

    No-op when the file already says so. Mode and owner stay; the file as it was before our first change stays
    beside it as `<path>.before-sparkstack`. The new text is tried with `dockerd --validate` where that
    exists. A file that is not JSON, a directory, a symlink, or a restart that would stop what serves fails
    the host with one line, and the file is left alone.
    """
    file = host.get_fact(DaemonJson, path=path)
    if problem := docker_settings.unusable(host.name, path, file):
        yield fail(str(problem))
        return
    settings = docker_settings.wanted(site.data, file.gpu, docker_settings.own_log_driver(file))
    try:
        gone = daemon_json.dropped(file.ours, settings)
        rest = daemon_json.unmerge(file.text, gone, file.before) if gone else file.text
        wanted = daemon_json.merge(rest, settings)
    except SparkstackError as error:
        yield fail(*(f"{host.name}: {line}" for line in error.lines))
        return
    if wanted == file.text:
        host.noop(f"{path} has the declared settings")
        return
    drift.differs(path, *differences.of_settings(file.text, settings))
    allowed = knobs.switched_on(site.data, "restart_serving")
    others = {host.name: host.get_fact(Others)}
    if refused := docker_settings.restart_refused(host.name, _serving(site), others, allowed):
        yield fail(str(refused))
        return
    if host.get_fact(Validates):
        yield FunctionCommand(_try, (path, wanted), {})
    quoted, backup = shlex.quote(path), shlex.quote(path + ".before-sparkstack")
    if file.text is not None:
        yield StringCommand(f"test -e {backup} || cp -p {quoted} {backup}")
    yield StringCommand(undo.sets(path, settings))
    if root := settings.get("data-root"):
        yield StringCommand(undo.did("data-root", str(root), ask=undo.nearest(str(root))))
    # The mark comes first: a run that is killed after the rename still restarts the daemon next time.
    yield StringCommand(
        f"rm -f {BEFORE}; ! test -e {quoted} || cp -p {quoted} {BEFORE}; echo {file.kind} > {DUE}"
    )
    yield ManagedFile(path, wanted.encode(), file.mode, file.owner).write()


def _try(state: Any, host: Any, path: str, text: str) -> bool:
    """Let dockerd itself judge the new text before it takes the old one's place."""
    ok, said = shell(
        host,
        f"umask 077; cat > {TRIAL} && dockerd --validate --config-file {TRIAL}; s=$?; rm -f {TRIAL}; exit $s",
        stdin=text,
    )
    if ok:
        return True
    words = " ".join(said.split())[-300:]
    return report_failure(
        host,
        f"{host.name}: {path}: found dockerd refusing the merged settings: {words}; wanted ones that it "
        "takes; correct docker_settings; the file is as it was",
    )


@operation()
def daemon_restarted(site: Site, path: str) -> Commands:
    """Restart Docker on the hosts whose settings changed, from the head's place in the run.

    No-op when no host has a restart due.
    """
    if not site.is_head:
        return
    due = [rank for rank in site.hosts if rank.get_fact(DaemonJson, path=path).restart_due]
    if not due:
        host.noop("no restart of Docker is due")
        return
    for rank in due:
        drift.differs("docker.service", "running with its settings of before", "restarted", host=rank.name)
    serving = _serving(site)
    allowed = knobs.switched_on(site.data, "restart_serving")
    others = {rank.name: rank.get_fact(Others) for rank in due}
    if refused := docker_settings.restart_refused(host.name, serving, others, allowed):
        yield fail(str(refused))
        return
    yield FunctionCommand(_restart, (site, path, due, bool(serving), others), {})


def _restart(
    state: Any,
    host: Any,
    site: Site,
    path: str,
    due: list[Any],
    serving: bool,
    others: Mapping[str, Mapping[str, bool]],
) -> bool:
    """Stop what serves, restart the daemons, start what served. A daemon that does not come back gets the
    file before back. Containers of others that stay stopped are named."""
    ranks = activation.with_unit(site.hosts) if serving else []
    if serving and not activation.stop_ranks(host, ranks):
        return False
    restart = "systemctl reset-failed docker.service; systemctl restart docker.service"
    for rank in due:
        ok, said = shell(rank, f"{restart} && rm -f {DUE} {BEFORE}")
        if not ok:
            _take_back(host, rank, path, said)
            # What served is not left stopped for a mistake in the settings; nobody waits for it here.
            if serving:
                activation.started(host, ranks)
            return False
        if stopped := ", ".join(name for name, back in others[rank.name].items() if not back):
            line = f"{rank.name}: docker: the restart stopped {stopped}; start what you still want of these"
            host.log_styled(line, fg="yellow", log_func=logger.warning)
    try:
        return not serving or activation.start_ranks(host, ranks, site.recipe.serve.ready_timeout_s)
    except activation.NotReady as error:
        return report_failure(host, str(error))


def _take_back(host: Any, rank: Any, path: str, said: str) -> bool:
    quoted = shlex.quote(path)
    words = "-e 'unable to' -e 'failed to start daemon' -e level=fatal"
    look = f"journalctl -u docker.service -n 20 -o cat --no-pager | grep -i -m 1 {words}; true"
    _, journal = shell(rank, look)
    # Only what is known to have been there before is put back: the mark alone says nothing of that.
    back = f"cp -p {BEFORE} {quoted}; elif grep -qx absent {DUE}; then rm -f {quoted}"
    shell(
        rank,
        f"if test -e {BEFORE}; then {back}; fi; rm -f {BEFORE} {DUE}; "
        "systemctl reset-failed docker.service; systemctl restart docker.service",
    )
    words = " ".join((journal or said).split())[:300]
    return report_failure(
        host,
        f"{rank.name}: docker: found the daemon not starting with the merged settings: {words}; wanted it to "
        f"run; correct docker_settings; {path} is as it was",
    )


@operation()
def daemon_runs() -> Commands:
    """Start Docker and have it start at boot. No-op when systemd says that it does both."""
    state = host.get_fact(DaemonState)
    enabled, _, active = state.partition(" ")
    todo = [
        *(["enable"] if enabled in ("disabled", "not-found") else []),
        *(["start"] if active not in ("active", "activating", "reloading") else []),
    ]
    if not todo:
        host.noop(f"{SERVICE} is {state}")
        return
    drift.differs(SERVICE, state.replace(" ", " and "), "enabled and active")
    # Without a reload, which would take the GPU away from containers (sparkstack/machine.py).
    words = " && ".join(f"systemctl {word} --quiet --no-reload {SERVICE}" for word in todo)
    yield StringCommand(f"{undo.did('unit', SERVICE, state)} && {words}")


@deploy("docker")
def deploy_docker(site: Site) -> None:
    """daemon.json says what is declared; the daemon runs with it and starts at boot."""
    path = daemon_json.PATH
    mirrors_answer(name="mirrors answer", mirrors=site.data.docker_mirrors or [])
    merged_daemon_json(name="daemon.json has our settings", site=site, path=path)
    daemon_restarted(name="daemon has read them", site=site, path=path)
    daemon_runs(name="daemon runs")
