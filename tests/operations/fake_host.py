"""A host for tests of operations: it returns given facts, answers shell commands, notes what it hears.

`facts` maps a fact's class to its value, or to a function of the fact's arguments. `answers` maps a kind of
command (a key of COMMANDS) to what the host says to it: text, (False, text) for a failure, an exception to
raise, or a list of these for one call after the other (the last one stays). A command of no kind, one that
nobody scripted an answer to, and a loop without end fail the test.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyinfra.api import StringCommand
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host

from sparkstack.machine import Machine
from sparkstack.releases import OnHost
from tasks.activation import Releases
from tasks.docker import Others
from tasks.machine import MachineState

ROOT = Path(__file__).resolve().parents[2]
GROUP_DATA = runpy.run_path(str(ROOT / "group_data" / "all.py"))


JOB = r"sparkstack-[\w-]+"
SERVE = r"sparkstack-serve\.service"
STOP = (
    rf's=\$\(systemctl show -p ActiveState --value {SERVE}\); (\[ "\$s" != activating \] \|\| )?'
    rf"timeout 20 docker kill sparkstack-serve >/dev/null 2>&1(; true)?; systemctl stop {SERVE}"
)
WATCHDOG = r"sparkstack-watchdog\.service"
UNLESS_ACTIVE = (
    rf'while \[ "\$\(systemctl show -p ActiveState --value ({JOB})\)" = deactivating \]; '
    r"do sleep 0\.2; done; systemctl reset-failed \1 2>/dev/null; systemctl is-active --quiet \1 \|\| "
)
BEGIN = r"systemd-run --quiet --collect --unit=\1 "
# undo.py, before a change
DID = r"\( u=\S+/undo; .*?; f=\S+/undo/did/\S+; .*? && mv -fT \"\$n\" \"\$f\" \)"
KEEP = r"\( u=\S+/undo; umask 022; .* && mv -fT \"\$n\" \"\$u/\$k\$p\" \)"
TRY = r"sparkstack-fabric-try"

# Every command that tasks/ give to a host: what it looks like as a whole, and what the host says by itself;
# None: a test has to say it.
COMMANDS: dict[str, tuple[str, str | None]] = {
    # files.py, remote.py
    "write": (
        rf"(({KEEP}|{DID}( && {DID})*) \|\| exit 1; )?"
        r"umask 077; said=\$\( \{ \( umask 0[27]{2}; mkdir -p \S+ \) "
        r"&& base64 -d > .*"
        r" && mv -fT \S+ \S+; \} 2>&1 \) \|\| \{ rm -f .* exit 1; \}",
        "",
    ),
    "begin job": (
        rf"{UNLESS_ACTIVE}\{{ rm -f (\S+)/\1/result\.json( \2/\1/measurement\.json)?; "
        rf"{BEGIN}.* -m onhost job \S+; \}}",
        "",
    ),
    "look at job": (rf"tail -n 1 (\S+)/progress\.jsonl .* --value {JOB}; cat \1/result\.json .*; true", None),
    "read measurement": (r"head -c \d+ \S+/measurement\.json 2>/dev/null \|\| true", ""),
    "has environment": (r"test -x \S+/env/bin/python", ""),
    "drop key": (r"rm -f \S+/jobs/sparkstack-bench-\S+\.key", ""),
    "end job": (rf"systemctl stop --no-block {JOB}", ""),
    "journal of job": (rf"journalctl -u {JOB} -n 3 -o cat --no-pager 2>/dev/null", None),
    "begin script": (rf"{UNLESS_ACTIVE}\{{ mkdir -p (\S+); rm -f \2/status; {BEGIN}/bin/sh -c .*; \}}", ""),
    "look at script": (
        rf"systemctl show -p ActiveState --value {JOB}; cat (\S+)/status .*; tail -n 1 \1/log .*",
        None,
    ),
    # share.py
    "put token": (r"umask 077; mkdir -p \S+ \S+ && cat > (\S+)\.new && mv -f \1\.new \1", ""),
    "open share": (
        r"flock /run/sparkstack-share\.lock sh -c 'umask 077; .*systemctl is-active --quiet sparkstack-share"
        r".* systemd-run --quiet --collect --unit=sparkstack-share\S* .* -m onhost share [^']* cat \S+'",
        None,
    ),
    "read token": (r"cat \S+/share\.token", None),
    "reach share": (r"\S+/python -c 'import socket.*' \S+ \d+ \d+", ""),
    "drop token": (r"rm -f \S+/share\.token", ""),
    # host.py
    "install packages": (
        r"apt-get update -qq .*; \( .* \); DEBIAN_FRONTEND=noninteractive apt-get install .*",
        "",
    ),
    # docker.py
    "keep daemon.json": (r"test -e (\S+)\.before-sparkstack \|\| cp -p \1 \1\.before-sparkstack", ""),
    "note settings": (r"\( u=\S+/undo; .* f=\"\$u\"/settings\S+; .* \)", ""),
    "mark restart": (r"rm -f \S+; ! test -e (\S+) \|\| cp -p \1 \S+; echo (file|absent) > \S+-due", ""),
    "try settings": (r"umask 077; cat > (\S+) && dockerd --validate --config-file \1; .*", ""),
    "restart docker": (
        r"systemctl reset-failed docker\.service; systemctl restart docker\.service && rm -f \S+ \S+",
        "",
    ),
    "run docker": (rf"{DID}( && systemctl (enable|start) --quiet --no-reload docker\.service)+", ""),
    "journal of docker": (r"journalctl -u docker\.service .*; true", ""),
    "take settings back": (r"if test -e \S+; then cp -p .*; systemctl restart docker\.service", ""),
    # status.py
    "ask status": (r"python3 - \S+ sparkstack-serve\.service \S+", None),
    # fabric.py
    "keep file": (KEEP, ""),
    "remove file": (r"rm -f /etc/netplan/\S+", ""),
    "begin try": (rf"umask 077; cat > \S+; .*; if systemctl is-active --quiet {TRY}; .* busy; \}}", "begun"),
    "state of try": (r"cat /run/sparkstack-fabric/state 2>/dev/null \|\| true", None),
    "keep network": (rf"systemctl is-active --quiet {TRY} && touch /run/sparkstack-fabric/keep", ""),
    "go back": (r"touch /run/sparkstack-fabric/back", ""),
    "carriers": (r"echo \"\S+ \$\(cat /sys/class/net/\S+/carrier 2>&1\)\"(; echo .*)?", None),
    "probe": (r"python3 - [0-9a-f]{16} \S+ (3|12)\.0( \S+){4}", None),
    # peers.py
    "make key": (r"umask 022; mkdir -p .* ssh-keygen -q -t ed25519 -N '' .* id_ed25519\.pub", None),
    "add user": (r"\( u=\S+/undo; .*/did/user/\S+; .* \) && useradd --system .* sparkstack-peer", ""),
    "try sudoers": (r"visudo -cqf -", ""),
    "ask peer": (r"timeout 60 ssh -F \S+/ssh/config \S+ status </dev/null 2>&1", None),
    "let nobody in": (r"rm -f \S+/peer/\.ssh/authorized_keys", ""),
    "nothing yet": (r"true", ""),
    # link_gate.py, link_nccl.py
    "look at links": (r'echo "boot=\$\(cat /proc/sys/kernel/random/boot_id\)"; .* 2>/dev/null; true', None),
    "ping links": (r"timeout -k 5 240 python3 \S+/plans/linkgate\.py ping '\[.*\]'", None),
    "serve links": (r"timeout -k 5 240 python3 \S+/plans/linkgate\.py serve '\[.*\]'", None),
    "send over links": (r"timeout -k 5 240 python3 \S+/plans/linkgate\.py send '\[.*\]'", None),
    "stop links": (r"timeout -k 5 240 python3 \S+/plans/linkgate\.py stop", None),
    "begin nccl": (
        r"systemctl stop sparkstack-nccl 2>/dev/null; .* && systemd-run --quiet --collect "
        r"--unit=sparkstack-nccl .* -- docker run .*--name sparkstack-nccl .*",
        None,
    ),
    "state of nccl": (r"systemctl show -p ActiveState --value sparkstack-nccl", None),
    "log of nccl": (r"tail -c \d+ \S+/results/link/nccl\.log", None),
    "end nccl": (r"systemctl stop sparkstack-nccl 2>/dev/null; docker rm -f \S+ >/dev/null 2>&1; true", None),
    # serve.py
    "lacks": (
        r"test -x (\S+/run) \|\| echo \1; test -f (\S+/fabric\.env) \|\| echo \2; "
        r"docker image inspect (\S+) >/dev/null 2>&1 \|\| echo 'image \3'; "
        r"test -f \S+/(\S+)/manifest\.json \|\| echo 'checkpoint \4'",
        "",
    ),
    "stop rank": (
        rf"{STOP} && \{{ timeout 60 docker rm -f \S+ >/dev/null 2>&1; true; \}} && echo "
        r'"\$s"',
        "active",
    ),
    "unit of rank": (rf"systemctl show -p LoadState --value {SERVE}", "loaded"),
    "switch rank": (
        rf"systemctl reset-failed {SERVE} 2>/dev/null; "
        r"\{ (test -f \S+ && touch \S+ \|\| )?cp (\S+)/fabric\.env (\S+)/fabric\.env; \}"
        r"( && ln -sfn \.\./\S+ \3/previous\.new && mv -fT \3/previous\.new \3/previous"
        r" && \{ \[ -L \2/previous \] \|\| ln -s current/previous \2/previous; \})?"
        r" && find \3 -type f -exec sync \{\} \+ && sync \3"
        r" && ln -sfn \3 \2/current\.new && mv -fT \2/current\.new \2/current && sync \2",
        "",
    ),
    "leave rank out": (
        rf"systemctl reset-failed {SERVE} 2>/dev/null; rm -f (\S+)/current && sync \1",
        "",
    ),
    "drop activation": (r"rm -f \S+/activation\.json", ""),
    "drop measurement": (r"rm -f \S+/measurement\.json \S+/verdict\.json", ""),
    "know unit": (rf"\( .* \) && systemctl daemon-reload && systemctl enable --quiet {SERVE}", ""),
    "run watchdog": (
        rf"(systemctl daemon-reload && )?{DID} && systemctl enable --quiet --no-reload {WATCHDOG}"
        rf" && systemctl restart {WATCHDOG}",
        "",
    ),
    "end watchdog": (rf"systemctl disable --now --no-reload --quiet {WATCHDOG}", ""),
    "start rank": (rf"systemctl start --no-block {SERVE}", ""),
    "state of rank": (rf"systemctl show -p ActiveState --value {SERVE}; docker logs .*; true", None),
    "restarts of rank": (rf"systemctl show -p NRestarts --value {SERVE}", None),
    "journal of rank": (rf"journalctl -u {SERVE} -n 60 .*; true", None),
    # cleaning.py
    "remove release's part": (
        r"docker image inspect (\S+) .* docker image rm \1 .*|\[ -e \S+/undo/did/image/.* docker image rm .*"
        r"|rm -f \S+/manifest\.json && rm -rf .*|rm -rf \S+/downloads/.*"
        r"|rm -rf \S+/results/.* && rm -rf \S+/releases/\S+",
        "",
    ),
    # undo.py, remove.py
    "note deed": (DID, ""),
    "end serving": (rf"{STOP} && \{{ systemctl reset-failed {SERVE} .*; \}}", ""),
    "end jobs": (rf"systemctl stop (?!{SERVE}){JOB}\.service( {JOB}\.service)*", ""),
    "remove containers": (r"docker rm -f \S+( \S+)*", ""),
    "remove image": (r"docker image rm \S+", ""),
    "put back": (r"mkdir -p \S+ && rm -f \S+ && cp -a \S+/undo/files/\S+ \S+ && mv -fT \S+ \S+", ""),
    "drop": (r"rm -f \S+ && \{ d=\$\(dirname \S+\); .*/undo/absent/\S+ .*; true; \}", ""),
    "write others' settings": (r"cp -p (\S+) (\S+) && base64 -d > \2 && sync \2 && mv -fT \2 \1", ""),
    "drop backup": (r"rm -f /etc/docker/daemon\.json\.before-sparkstack", ""),
    "note restart": (r"touch /run/sparkstack-remove-restart-due", ""),
    "restart docker unless off": (r"case .* inactive\) .* restart docker.service ;; esac && rm -f \S+", ""),
    "take addresses off": (r"(ip address del .*; )?.* && netplan apply; s=\$\?; .*exit \$s", ""),
    "put mtu back": (r"ip link set dev \S+ mtu \d+ && rm -f \S+/did/mtu/\S+", ""),
    "end unit": (r"systemctl disable --now --quiet (\S+); systemctl reset-failed \1 2>/dev/null; true", ""),
    "systemd reads again": (r"systemctl daemon-reload", ""),
    "restart reader": (r"systemctl try-restart (\S+); rm -f \S+/undo/did/restarted/\1", ""),
    "undo deed": (r"\{ .*; \} && rm -f \S+/undo/did/\S+", ""),
    "purge": (r"p=\$\(dpkg-query .* dpkg --purge \$p 2>&1; s=\$\?; .*; exit \$s", ""),
    "remove volumes": (r"docker volume rm -f sparkstack-cache-\S+", ""),
    "remove site's folder": (r"d=\S+; while \[ \"\$d\" != \S+ \] && rmdir .*; done; true", ""),
    "remove folder": (r"rm -rf --one-file-system \S+", ""),
    "remove notes": (
        r"rm -rf /run/sparkstack-\*; find /run/sparkstack [^;]*; (rm -rf|find) \S+/undo .*&& rmdir .*; true",
        "",
    ),
}
# More than a wait of ten minutes takes, few enough for a loop without end to end at once.
MOST_COMMANDS = 2000


def kind_of(command: str) -> str:
    kinds = [kind for kind, (form, _) in COMMANDS.items() if re.fullmatch(form, command, re.DOTALL)]
    assert len(kinds) == 1, f"a command of {kinds or 'no kind'} in fake_host.COMMANDS: {command}"
    return kinds[0]


class Data(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def dict(self) -> dict[str, Any]:
        return vars(self)


class Layers:
    """An inventory whose data all stands with the hosts."""

    def get_data(self) -> dict[str, Any]:
        return {}

    get_override_data = get_data

    def get_group_data(self, group: str) -> dict[str, Any]:
        return {}

    get_host_data = get_group_data


class FakeHost:
    def __init__(self, name: str, facts: Any = None, answers: Any = None, **data: Any) -> None:
        known = {key: value for key, value in GROUP_DATA.items() if not key.startswith("__")}
        self.name, self.data = name, Data(**{**known, **data})
        self.facts, self.answers = dict(facts or {}), dict(answers or {})
        self.state = SimpleNamespace(is_executing=True, is_host_in_limit=lambda host: True)
        self.connected = True
        self.connector_data: dict[str, Any] = {}
        self.connector = SimpleNamespace(client=None)
        self.groups: list[str] = []
        self.inventory = Layers()
        self.heard: list[str] = []  # shell commands
        self.fed: list[str] = []  # what came on standard input
        self.shown: list[str] = []  # lines that the user sees
        self.noops: list[str] = []

    def get_fact(self, fact: type, **arguments: Any) -> Any:
        # Unless a test says otherwise, nobody's container runs, or uses the GPU, and no release is kept.
        quiet = {MachineState: Machine(), Others: {}, Releases: OnHost()}
        value = self.facts.get(fact, quiet[fact]) if fact in quiet else self.facts[fact]
        return value(**arguments) if callable(value) else value

    def run_shell_command(self, command: StringCommand, **arguments: Any) -> tuple[bool, CommandOutput]:
        text = command.get_raw_value()
        self.heard.append(text)
        self.fed += [arguments["_stdin"]] if "_stdin" in arguments else []
        assert len(self.heard) < MOST_COMMANDS, f"{self.name}: a loop without end around: {text}"
        assert set(self.answers) <= set(COMMANDS), f"{self.name}: answers to what is no kind: {self.answers}"
        kind = kind_of(text)
        answer = self.answers.get(kind, COMMANDS[kind][1])
        assert answer is not None, f"{self.name}: no answer to '{kind}': {text}"
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        ok, said = answer if isinstance(answer, tuple) else (True, answer)
        lines = [OutputLine("stdout" if ok else "stderr", line) for line in said.split("\n") if said]
        return ok, CommandOutput(lines)

    def disconnect(self) -> None:
        self.connected = False

    def connect(self, **how: Any) -> None:
        self.connected = True

    def kinds(self) -> list[str]:
        """The kinds of what was heard, one after the other; what repeats at once counts as one."""
        return [kind for kind, _ in itertools.groupby(kind_of(text) for text in self.heard)]

    def noop(self, line: str) -> None:
        self.noops.append(line)

    def log_styled(self, line: str, **style: Any) -> None:
        self.shown.append(line)


def commands_of(operation: Any, host: FakeHost, *arguments: Any) -> list[Any]:
    """What the operation would do to `host`."""
    with ctx_host.use(host):
        return list(operation._inner(*arguments))


def follow(commands: list[Any], host: FakeHost) -> bool:
    """Run the operation's commands in order, as pyinfra does, up to the first that fails the host."""
    for command in commands:
        if isinstance(command, StringCommand):
            if not host.run_shell_command(command, **command.connector_arguments)[0]:
                return False
        else:
            names = inspect.signature(command.function).parameters
            # pyinfra hands over the state and the host only where the parameters have just these names.
            assert "state" in names and "host" in names, f"{command.function.__name__}{tuple(names)}"
            if command.execute(None, host, {}) is False:
                return False
    return True


def shell_lines(commands: list[Any]) -> list[str]:
    return [command.get_raw_value() for command in commands if isinstance(command, StringCommand)]


def written(commands: list[Any]) -> dict[str, str]:
    """`{path: text}` of the files that the commands put in place."""
    files = {}
    for command in commands:
        stdin = command.connector_arguments.get("_stdin")
        target = re.search(r"&& mv -fT \S+ (\S+); ", str(command))
        if stdin is not None and target:
            files[target[1]] = base64.b64decode(stdin).decode(errors="replace")
    return files
