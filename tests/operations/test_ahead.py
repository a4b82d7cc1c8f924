"""Facts asked ahead are what their own commands would have said, and never older than what was done since."""

from __future__ import annotations

import functools
import hashlib
import inspect
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gevent
import pytest
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host

from sparkstack import conda as conda_core
from sparkstack import daemon_json, docker_settings, launch, links, netplan
from sparkstack.docker_settings import DaemonFile
from sparkstack.fabric_state import FabricState, Link
from sparkstack.machine import Machine, Unit
from sparkstack.peers import Peer
from tasks import ahead, conda, docker, fabric, fabric_facts, link_gate, peer_files, peers, preflight
from tasks import host as host_task
from tasks.fabric_facts import FabricFacts
from tasks.facts import (
    CondaEnvironment,
    FileStates,
    ImageId,
    Json,
    Survey,
    Text,
)
from tasks.files import ManagedFile
from tasks.link_facts import LinkState
from tasks.machine import MachineState
from tasks.site import ROOT, Site, management_address

Sites = Callable[..., list[Site]]


class Shell:
    """A connector of pyinfra's to this machine's shell."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(is_executing=False)
        self.ran: list[str] = []
        self.meanwhile: Callable[[], Any] = lambda: None

    def run_shell_command(
        self, command: Any, print_output: bool = False, print_input: bool = False, **arguments: Any
    ) -> tuple[bool, CommandOutput]:
        text = command if isinstance(command, str) else command.get_raw_value()
        stdin = arguments.pop("_stdin", "")
        assert set(arguments) <= {"_sudo"}
        self.ran.append(text)
        done = subprocess.run(["sh", "-c", text], input=stdin, capture_output=True, text=True, check=False)
        self.meanwhile()
        lines = [line.rstrip("\n") for line in done.stdout.splitlines(keepends=True)]
        return done.returncode == 0, CommandOutput([OutputLine("stdout", line) for line in lines])

    def put_file(self, *words: Any) -> bool:
        return True


def asked(*commands: str) -> tuple[ahead.Connector, Shell]:
    """A connector that has asked for `commands`, and the shell behind it, which forgets what it ran."""
    shell = Shell()
    connector = ahead.Connector(shell)
    connector.ask_ahead([*commands], {"_sudo": True})
    assert shell.ran == ["sh"]
    shell.ran.clear()
    return connector, shell


def say(connector: ahead.Connector, command: str, **arguments: Any) -> list[str]:
    ok, output = connector.run_shell_command(command, **{"_sudo": True, **arguments})
    assert ok
    return output.stdout_lines


ODD = (
    "printf 'no end'",
    "printf 'a\\n\\n\\n'",
    "printf '\\n'",
    "true",
    "echo \"it's\"; echo '$HOME' \"\\\\n\"",
    "cat; echo read all of it",
    "cd /tmp; x=1; echo $x",
    "echo ${x:-nothing from another}; pwd | grep -c .",
    "echo to nobody >&2",
    "exec printf 'word 0\\n'",
    "head -c 200000 /dev/zero | tr '\\0' y",
)


def test_answers_are_those_of_the_commands_themselves() -> None:
    connector, shell = asked(*ODD)
    answers = [say(connector, command) for command in ODD]
    assert shell.ran == []
    assert answers == [say(ahead.Connector(Shell()), command) for command in ODD]


def test_what_failed_is_run_again_and_says_so() -> None:
    connector, shell = asked("echo before", "echo half; exit 3", "if", "echo after")
    assert say(connector, "echo before") == ["before"] and say(connector, "echo after") == ["after"]
    ok, output = connector.run_shell_command("echo half; exit 3", _sudo=True)
    assert (ok, output.stdout_lines) == (False, ["half"])
    assert shell.ran == ["echo half; exit 3"]


def test_whatever_else_runs_on_the_host_makes_it_forget(tmp_path: Any) -> None:
    look, also = f"ls {tmp_path}", "echo also"
    connector, shell = asked(look, also)
    assert say(connector, look) == say(connector, look) == [] and shell.ran == []
    say(connector, f"touch {tmp_path}/new")
    assert say(connector, look) == ["new"]
    # What is still to come was asked again with it.
    assert say(connector, also) == ["also"] and shell.ran == [f"touch {tmp_path}/new", "sh"]
    connector.put_file("x", "/x")
    assert say(connector, also) == ["also"] and shell.ran.count("sh") == 2


def test_answers_age() -> None:
    connector, shell = asked("echo one", "echo two")
    time.sleep(ahead.MAX_AGE_SECONDS - 1)
    assert say(connector, "echo one") == ["one"] and shell.ran == []
    time.sleep(2)
    assert say(connector, "echo two") == ["two"] and shell.ran == ["sh"]


def test_what_a_fact_asks_by_itself_does_not_make_it_forget() -> None:
    connector, shell = asked("echo one")
    assert connector.reading(lambda: say(connector, "echo by itself")) == ["by itself"]
    assert say(connector, "echo one") == ["one"] and shell.ran == ["echo by itself"]
    # A fact that cannot be had ends the reading, too.
    with pytest.raises(ZeroDivisionError):
        connector.reading(lambda: 1 / 0)
    say(connector, "echo something else")
    assert say(connector, "echo one") == ["one"] and shell.ran[-1] == "sh"


def test_who_asks_while_an_answer_is_on_its_way_waits_for_it() -> None:
    """Hosts ask one another's keys, each in its own greenlet."""
    connector, shell = asked("echo one", "echo two")
    connector.put_file("x", "/x")
    shell.meanwhile = lambda: gevent.sleep(0.01)
    both = [gevent.spawn(say, connector, f"echo {word}") for word in ("one", "two", "one")]
    assert [one.get(5) for one in both] == [["one"], ["two"], ["one"]] and shell.ran == ["sh"]
    # What another greenlet's fact asks does not make one's own command a fact's.
    reading = gevent.spawn(connector.reading, lambda: say(connector, "echo by itself"))
    gevent.sleep(0)
    say(connector, "echo something else")
    reading.get(5)
    say(connector, "echo one")
    assert shell.ran.count("sh") == 2


def test_another_users_answer_is_not_ones_own() -> None:
    connector, shell = asked("id")
    say(connector, "id", _sudo=False)
    assert shell.ran == ["id"]


def test_answers_on_their_way_while_something_else_ran_are_not_kept() -> None:
    connector, shell = asked("echo one", "echo two")
    connector.put_file("x", "/x")
    shell.meanwhile = lambda: connector.put_file("x", "/x")
    assert say(connector, "echo one") == ["one"] and shell.ran == ["sh", "echo one"]


def test_a_connection_that_breaks_meanwhile_is_told_by_the_next_command() -> None:
    def breaks() -> None:
        raise OSError("broken")

    shell = Shell()
    connector = ahead.Connector(shell)
    shell.meanwhile = breaks
    connector.ask_ahead(["echo one"], {"_sudo": True})
    with pytest.raises(OSError, match="broken"):
        say(connector, "echo one")
    assert shell.ran == ["sh", "sh", "echo one"]


def test_the_execution_asks_all_again_in_one_command_once_the_look_has_used_it() -> None:
    connector, shell = asked("echo one", "echo two")
    say(connector, "echo one")
    say(connector, "echo two")
    shell.state.is_executing = True
    time.sleep(ahead.MAX_AGE_SECONDS + 1)
    say(connector, "echo one")
    say(connector, "echo two")
    assert shell.ran == ["sh"]


def test_the_source_of_a_deploy_file_is_found_without_a_search(tmp_path: Path) -> None:
    file = tmp_path / "deploy.py"
    file.write_text("import inspect\nframe = inspect.currentframe()\n")
    ran: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), ran)
    assert inspect.getmodule(ran["frame"], str(file)) is None
    try:
        ahead.register(str(file))
        found = inspect.getmodule(ran["frame"], str(file))
        assert found is not None and found.__file__ == str(file)
    finally:
        del sys.modules[str(file)]


def as_declared(site: Site) -> dict[type, Any]:
    """What a host says that is as this site wants it."""
    data, prefix = site.data, site.data.install_dir
    files = [one for one in host_task.host_files(data, site.user).values() if one]
    files += [ManagedFile.text(netplan.PATH, netplan.render(site.interfaces), "600")]
    files += [ManagedFile.text(f"{data.config_dir}/fabric.env", launch.env_file(site.rank_env([])))]
    keys = {"key": "ssh-ed25519 K", "host_key": "ssh-ed25519 H"}
    peers = {one.name: Peer(one.name, n, management_address(one), **keys) for n, one in enumerate(site.hosts)}
    files += peer_files.files(site, peers) if len(site.hosts) > 1 else []
    found = {file.path: file.wanted() for file in files}
    runs = Unit("enabled", "active")
    _, sha256 = conda_core.installer("aarch64", data.conda_installers, None, None)
    definition = (ROOT / "files/environment.yml").read_text()
    build, _ = conda.source_script(data.source_build, prefix, data.pip_environment)
    texts = {
        f"{prefix}/conda/.sparkstack": sha256,
        f"{prefix}/env/.sparkstack-onhost": "0123456789ab",
        f"{prefix}/vllm/.sparkstack": build,
    }
    settings = docker_settings.wanted(data, False)
    port = {"carrier": True, "speed_mbps": 200_000, "mtu": 9000, "changes": 2}
    link = {"boot": "one", "ports": {i.name: port for i in site.interfaces}, "perftest": True}
    states = {one.name: links.HostState.model_validate(link) for one in site.hosts}
    key = links.key(site.fabric, states, link_gate.wanted_of(site))
    measured = {"key": key, "ok": True, "when": "now", "lines": []}
    return {
        LinkState: {**link, "result": measured},
        Survey: {"clock": str(time.time()), "docker": "29.0"},
        Json: None,
        ImageId: None,
        docker.Mirrors: lambda mirrors: dict.fromkeys(mirrors, "200"),
        MachineState: Machine(
            container=True,
            units={"ssh.service": runs, "earlyoom.service": runs},
            installed=frozenset([*data.packages, "earlyoom"]),
        ),
        host_task.Account: {"exists": True, "groups": ["docker"], "docker": True},
        FileStates: lambda paths: {path: found[path] for path in paths if path in found},
        docker.DaemonState: "enabled active",
        docker.DaemonJson: DaemonFile("file", daemon_json.merge(None, settings), ours=settings),
        conda.Arch: "aarch64",
        CondaEnvironment: hashlib.sha256(definition.encode()).hexdigest()[:12],
        Text: lambda path: texts[path],
        FabricFacts: FabricState(
            links={one.name: Link((one.cidr,), one.mtu) for one in site.interfaces},
            files=found,
            reach={one.name: "jumbo" for one in site.interfaces},
            peer_user=True,
            **keys,
        ),
    }


def of(ask: tuple[Any, dict[str, Any]]) -> tuple[str, str]:
    return ask[0].__name__, str(sorted(ask[1].items()))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("stage", "module", "data"),
    [
        ("preflight", preflight, {"docker_data_root": "/data"}),
        ("host", host_task, {}),
        ("docker", docker, {"docker_mirrors": ["https://m.example"]}),
        ("docker", docker, {}),
        ("conda", conda, {"runtime_install": "source"}),
        ("conda", conda, {}),
        ("fabric", fabric, {}),
        ("link", link_gate, {}),
        ("link", link_gate, {"link_gate": "off"}),
    ],
)
def test_a_stage_plans_what_its_operations_ask(
    sites: Sites,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    stage: str,
    module: ModuleType,
    data: dict[str, Any],
) -> None:
    """Else a run with nothing to do would be slow, and nobody would see why."""
    site, *others = sites(count, **data)
    heard: list[tuple[Any, dict[str, Any]]] = []
    for rank in site.hosts:
        rank.facts = as_declared(site)
    plain = site.host.get_fact

    def get_fact(fact: type, **arguments: Any) -> Any:
        heard.append((fact, arguments))
        return plain(fact, **arguments)

    told: list[Any] = []

    def evaluate(generator: Any, name: str, **words: Any) -> None:
        told.extend(generator(**words))

    monkeypatch.setattr(site.host, "get_fact", get_fact)
    if stage == "preflight":
        monkeypatch.setattr(preflight.preflight, "check", lambda *_: [])
        monkeypatch.setattr(preflight.preflight, "across", lambda *_: [])
    for other in others:
        fabric_facts._known[other.host.name] = as_declared(other)[FabricFacts]
    for place in (module, peers):
        for name, operation in vars(place).copy().items():
            # Operations only; managed_files is used by its inner function.
            if hasattr(operation, "_inner") and not name.startswith(("deploy_", "managed_files")):
                monkeypatch.setattr(place, name, functools.partial(evaluate, operation._inner))
    with ctx_host.use(site.host):
        getattr(module, f"deploy_{stage}")._inner(site)
    assert told == []
    assert set(map(of, heard)) == set(map(of, ahead.STAGES[stage](site)))
