"""Commands on hosts from inside an operation: plain calls, failures in one line, jobs that are followed.

Long work belongs to the host: a job is a named transient systemd unit that outlives the controller. Here it
is started, or joined where it is under way, and its progress file is shown until its result is there.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from paramiko import SSHException
from pyinfra import host as current_host
from pyinfra import logger
from pyinfra.api import FunctionCommand, StringCommand

from sparkstack.progress import Progress
from tasks import interrupts, report
from tasks.files import Commands, ManagedFile

POLL_SECONDS = 1.0
WATCH_SECONDS = 3.0

# One display for the run; several hosts report into it at the same time.
progress = Progress()


def shell(host: Any, command: str, stdin: str | None = None) -> tuple[bool, str]:
    """Run a command on any host with the site's privileges; returns (status 0?, standard output)."""
    arguments: dict[str, Any] = {"_sudo": bool(host.data.get("_sudo"))}
    if stdin is not None:
        arguments["_stdin"] = stdin
    try:
        ok, output = host.run_shell_command(StringCommand(command), **arguments)
    except (OSError, EOFError, SSHException) as error:
        return False, f"no answer ({str(error) or type(error).__name__})"
    return ok, output.stdout if ok else "\n".join([output.stdout, output.stderr]).strip()


def write_now(host: Any, file: ManagedFile) -> tuple[bool, str]:
    """Write a file from inside an operation; the result is as that of `shell`."""
    command = file.write()
    return shell(host, command.get_raw_value(), stdin=str(command.connector_arguments["_stdin"]))


def report_failure(host: Any, line: str) -> bool:
    """Show a failure's line; the value is what a FunctionCommand returns to fail its host."""
    host.log_styled(line, fg="red", log_func=logger.error)
    report.note_failure(host.name, line)
    return False


def fail(*lines: str) -> FunctionCommand:
    """A command that fails its host with these lines and no traceback."""

    def say(state: Any, host: Any) -> bool:
        return all([report_failure(host, line) for line in lines])

    say.lines = lines  # type: ignore[attr-defined]  # the doctor says them without running the command
    return FunctionCommand(say, (), {})


def plan_file(path: str, plan: dict[str, Any]) -> ManagedFile:
    """A job's plan, for root alone: it may name files of secrets."""
    return ManagedFile.text(path, json.dumps(plan, indent=1, sort_keys=True) + "\n", "600")


@dataclass
class Watch:
    """For a job whose parts are worth something: `look` is called every few seconds with the host and the
    job's folder, and Ctrl-C (or a signal to end) ends the job instead of leaving it to itself; `interrupted`
    says by what, else it is ""."""

    look: Callable[[Any, str], object]
    interrupted: str = ""


def job(
    plan: dict[str, Any],
    failed: Callable[[Any], object] | None = None,
    watch: Watch | None = None,
) -> Commands:
    """Commands that hand a plan (docs/interfaces.md) to the host, start or join its job, and follow it.

    `failed` is called with the host when the job has failed and its line is shown (or, where Ctrl-C ended
    it, none is); the host fails all the same.
    """
    path = f"{current_host.data.state_dir}/plans/{plan['job']}.json"
    yield plan_file(path, plan).write()
    yield FunctionCommand(start_and_follow, (plan, path, failed, watch), {})


def _unless_active(name: str) -> str:
    """Shell words before a block that begins a unit: not where it is active, and not while it still ends."""
    return (
        f'while [ "$(systemctl show -p ActiveState --value {name})" = deactivating ]; do sleep 0.2; done;'
        f" systemctl reset-failed {name} 2>/dev/null; systemctl is-active --quiet {name} ||"
    )


# Threads of a job would each keep a heap of what they have freed: 30 of the 200 MB that staging may take.
ONE_HEAP = "--setenv=MALLOC_ARENA_MAX=1 --setenv=MALLOC_MMAP_THRESHOLD_=131072"


def start_and_follow(
    state: Any,
    host: Any,
    plan: dict[str, Any],
    path: str,
    failed: Callable[[Any], object] | None = None,
    watch: Watch | None = None,
) -> bool:
    """Start the job's unit unless it is active, then follow it to its end. False (one line) on failure."""
    with interrupts.heard() if watch is not None else nullcontext() as interrupt:
        return _start_and_follow(host, plan, path, failed, watch, interrupt)


def _start_and_follow(
    host: Any,
    plan: dict[str, Any],
    path: str,
    failed: Callable[[Any], object] | None,
    watch: Watch | None,
    interrupt: interrupts.Heard | None,
) -> bool:
    name = plan["job"]
    folder = f"{plan['jobs_dir']}/{name}"
    python = f"{host.data.install_dir}/env/bin/python"
    # A part that another run of the job left is nothing of this one's.
    old = f"{folder}/result.json" + (f" {folder}/measurement.json" if watch is not None else "")
    ok, said = shell(
        host,
        f"{_unless_active(name)} {{ rm -f {old};"
        f" systemd-run --quiet --collect --unit={name} --property=OOMPolicy=continue {ONE_HEAP}"
        f" {python} -m onhost job {shlex.quote(path)}; }}",
    )
    if not ok:
        return report_failure(host, f"{name}: could not be started; found: {said}")
    look = (
        f"tail -n 1 {folder}/progress.jsonl 2>/dev/null; echo; systemctl show -p ActiveState --value {name};"
        f" cat {folder}/result.json 2>/dev/null; true"
    )
    label = f"{host.name} {plan['kind']}"
    silent_polls = 0
    looked_at = time.monotonic()
    while True:
        if watch is not None and interrupt is not None and interrupt.once():
            watch.interrupted = interrupt.name
            shell(host, f"systemctl stop --no-block {name}")
        ok, text = shell(host, look)
        if not ok:
            return report_failure(host, f"{name}: the host stopped answering; run again to join the job")
        lines = [line for line in text.splitlines() if line.strip()]
        states = [i for i, line in enumerate(lines) if not line.startswith("{")]
        active = bool(states) and lines[states[0]] in ("active", "activating", "deactivating")
        if states and states[0] > 0:
            show(label, lines[0])
        if active:
            if watch is not None and time.monotonic() - looked_at >= WATCH_SECONDS:
                watch.look(host, folder)
                looked_at = time.monotonic()
            time.sleep(POLL_SECONDS)
            continue
        if watch is not None and watch.interrupted:
            progress.finish(label)
            if failed is not None:
                failed(host)
            return False
        results = lines[states[0] + 1 :] if states else []
        if results:
            good = _finish(host, name, label, json.loads("\n".join(results)))
            if not good and failed is not None:
                failed(host)
            return good
        silent_polls += 1
        if silent_polls == 3:  # the unit is gone and left no result: killed, or never began
            _, journal = shell(host, f"journalctl -u {name} -n 3 -o cat --no-pager 2>/dev/null")
            tail = " / ".join(journal.split("\n")[-3:])
            return report_failure(host, f"{name}: ended without a result; its journal says: {tail}")
        time.sleep(POLL_SECONDS)


def show(label: str, line: str) -> None:
    """Show a line of a job's progress.jsonl."""
    try:
        step = json.loads(line)
    except ValueError:
        return  # a line that is being written just now
    progress.update(
        label,
        step.get("stage", ""),
        step.get("done", 0),
        step.get("total"),
        step.get("unit", ""),
        step.get("note", ""),
    )


def _finish(host: Any, name: str, label: str, result: dict[str, Any]) -> bool:
    progress.finish(label)
    if result.get("ok"):
        return True
    return report_failure(host, f"{name}: {result.get('error', 'failed without a word')}")


def shell_job(kind: str, ident: str, script: str) -> Commands:
    """Like `job`, for a script that must run before the package `onhost` is there."""
    name = f"sparkstack-{kind}-{ident}"
    path = f"{current_host.data.state_dir}/plans/{name}.sh"
    yield ManagedFile.text(path, script, "700").write()
    yield FunctionCommand(_run_script, (name, kind, path), {})


def _run_script(state: Any, host: Any, name: str, kind: str, path: str) -> bool:
    folder = f"{host.data.state_dir}/jobs/{name}"
    inner = f"sh {path} > {folder}/log 2>&1; echo $? > {folder}/status"
    ok, said = shell(
        host,
        f"{_unless_active(name)} {{ mkdir -p {folder}; rm -f {folder}/status;"
        f" systemd-run --quiet --collect --unit={name} /bin/sh -c {shlex.quote(inner)}; }}",
    )
    if not ok:
        return report_failure(host, f"{name}: could not be started; found: {said}")
    label = f"{host.name} {kind}"
    began = time.monotonic()
    while True:
        ok, text = shell(
            host,
            f"systemctl show -p ActiveState --value {name}; cat {folder}/status 2>/dev/null || echo -;"
            f" tail -n 1 {folder}/log 2>/dev/null | cut -c1-300",
        )
        if not ok:
            return report_failure(host, f"{name}: the host stopped answering; run again to join the job")
        active, status, *said_last = text.splitlines()
        note = said_last[0] if said_last else ""
        if active in ("active", "activating", "deactivating"):
            progress.update(label, kind, time.monotonic() - began, None, "s", note)
            time.sleep(POLL_SECONDS)
            continue
        progress.finish(label)
        if status == "0":
            return True
        return report_failure(host, f"{name}: {note or 'ended without a word'} (all of it: {folder}/log)")
