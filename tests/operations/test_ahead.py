"""Facts asked ahead are what their own commands would have said, and never older than what was done since."""

from __future__ import annotations

import hashlib
import subprocess
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
from sparkstack import daemon_json, docker_settings, gates, launch, links, netplan, release
from sparkstack.docker_settings import DaemonFile
from sparkstack.fabric_state import FabricState, Link
from sparkstack.machine import Machine, Unit
from sparkstack.peers import Peer
from tasks import (
    ahead,
    benchmark,
    checkpoint,
    cleaning,
    conda,
    docker,
    fabric,
    fabric_facts,
    image,
    link_gate,
    link_nccl,
    peer_files,
    peers,
    preflight,
    serve,
    share,
    watchdog,
)
from tasks import host as host_task
from tasks.fabric_facts import FabricFacts
from tasks.facts import (
    CheckpointFaults,
    Completes,
    CondaEnvironment,
    FileStates,
    ImageCheck,
    ImageId,
    Json,
    ServeState,
    Survey,
    Text,
    UnitState,
)
from tasks.files import ManagedFile
from tasks.link_facts import LinkState
from tasks.machine import MachineState
from tasks.site import ROOT, UNIT, WATCHDOG, Site, management_address

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
    connector.ask_ahead([[*commands], []], {"_sudo": True})
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
    connector.ask_ahead([["echo one"], []], {"_sudo": True})
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


def test_a_batch_is_asked_when_its_first_fact_is_wanted_and_by_itself(tmp_path: Path) -> None:
    new, both = f"ls {tmp_path}", "echo both"
    shell = Shell()
    connector = ahead.Connector(shell)
    connector.ask_ahead([[both, "echo early"], [both, new, "echo late"]], {"_sudo": True})
    assert say(connector, both) == ["both"] and shell.ran == ["sh"]
    (tmp_path / "made").touch()
    assert say(connector, new) == ["made"] and shell.ran == ["sh", "sh"]
    # The first batch's answers are still there, and a question of both was asked once.
    assert say(connector, "echo early") == ["early"]
    assert say(connector, both) == ["both"] and shell.ran == ["sh", "sh"]
    connector.put_file("x", "/x")
    assert say(connector, "echo late") == ["late"] and shell.ran == ["sh"] * 3


def test_where_the_first_batch_is_empty_the_second_is_asked_at_once() -> None:
    shell = Shell()
    connector = ahead.Connector(shell)
    connector.ask_ahead([[], ["echo late"]], {"_sudo": True})
    assert shell.ran == ["sh"] and say(connector, "echo late") == ["late"] and shell.ran == ["sh"]
    connector.ask_ahead([[], []], {"_sudo": True}, ["echo kept"])
    assert shell.ran == ["sh"]
    # What is kept is asked by itself when it is wanted, and counts as long as any answer.
    assert say(connector, "echo kept") == say(connector, "echo kept") == ["kept"]
    assert shell.ran == ["sh"] * 2
    time.sleep(ahead.MAX_AGE_SECONDS + 1)
    assert say(connector, "echo kept") == ["kept"] and shell.ran == ["sh"] * 3


def test_a_host_that_takes_long_is_asked_for_each_alone() -> None:
    """All again with every next one would take as many times as long."""
    shell = Shell()
    connector = ahead.Connector(shell)
    shell.meanwhile = lambda: time.sleep(ahead.MAX_AGE_SECONDS + 1)
    words = [f"echo {number}" for number in range(4)]
    connector.ask_ahead([words, []], {"_sudo": True})
    scripts: list[str] = []
    plain = shell.run_shell_command
    shell.run_shell_command = lambda command, **more: (  # type: ignore[method-assign]
        scripts.append(more.get("_stdin", "")) or plain(command, **more)
    )
    assert [say(connector, word) for word in words] == [[word[5:]] for word in words]
    assert [script.count("eval") for script in scripts] == [1] * 4


def test_a_mistake_is_left_to_its_stage(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other stages ask ahead all the same, and the doctor says it once."""
    monkeypatch.delenv("A_KEY", raising=False)
    (site,) = sites(1, api_key_env="A_KEY")
    site.host.connector = Shell()
    planned: list[Any] = []
    monkeypatch.setattr(ahead.Connector, "ask_ahead", lambda self, *words: planned.append(words))
    monkeypatch.setattr(ahead, "pop_global_arguments", lambda *_: ({}, []))
    ahead.plan(site, ["docker", "image", "serve"])
    ((early, late), _, _) = planned[0]
    assert any("daemon.json" in text for text in early)
    assert any(site.image_tag in text for text in late)
    assert not any("sparkstack-serve" in text for text in late)


def as_declared(site: Site) -> dict[type, Any]:
    """What a host says that is as this site wants it."""
    data, prefix = site.data, site.data.install_dir
    files = [one for one in host_task.host_files(data, site.user).values() if one]
    files += [ManagedFile.text(netplan.PATH, netplan.render(site.interfaces), "600")]
    files += [ManagedFile.text(f"{data.config_dir}/fabric.env", launch.env_file(site.rank_env([])))]
    keys = {"key": "ssh-ed25519 K", "host_key": "ssh-ed25519 H"}
    peers = {one.name: Peer(one.name, n, management_address(one), **keys) for n, one in enumerate(site.hosts)}
    files += peer_files.files(site, peers) if len(site.hosts) > 1 else []
    files += [*site.release_files, site.unit_file, *site.watchdog_files, *site.secret_files]
    if site.hub_token_path:
        files.append(ManagedFile.local(site.hub_token_path, Path(data.hub_token_file), "600"))
    found = {file.path: file.wanted() for file in files}
    runs = Unit("enabled", "active")
    _, sha256 = conda_core.installer("aarch64", data.conda_installers, None, None)
    definition = (ROOT / "files/environment.yml").read_text()
    build, _ = conda.source_script(data.source_build, prefix, data.pip_environment)
    texts = {
        f"{prefix}/conda/.sparkstack": sha256,
        f"{prefix}/env/.sparkstack-onhost": "0123456789ab",
        f"{prefix}/vllm/.sparkstack": build,
        image.record_path(site): "{}",
        image.id_path(site): "sha256:1\n",
    }
    settings = docker_settings.wanted(data, False)
    port = {"carrier": True, "speed_mbps": 200_000, "mtu": 9000, "changes": 2}
    link = {"boot": "one", "ports": {i.name: port for i in site.interfaces}, "perftest": True}
    states = {one.name: links.HostState.model_validate(link) for one in site.hosts}
    key = links.key(site.fabric, states, link_gate.wanted_of(site))
    measured = {"key": key, "ok": True, "when": "now", "lines": []}
    wishes = link_gate.wanted_of(site)
    wishes = [wishes.nccl_gbytes, wishes.nccl_ring_gbytes, wishes.nccl_size_gib]
    gathered = release.content_id([key, site.image_id, wishes])
    spread = {"median": 20.0, "min": 20.0, "max": 20.0, "n": 3}
    point = {"streams": 1, "requests": 3, "failed": 0, "ttft_s": spread, "decode_tok_s": spread}
    figures = {"format": 1, "release": site.release_id, "when": "now", "profile": site.profile}
    figures |= {"points": [{**point, "total_tok_s": 20.0}], "sane": {"ok": True, "found": "all of it"}}
    documents = {
        f"{site.checkpoint_dir}/manifest.json": {"id": site.checkpoint_id},
        link_gate.result_path(site): measured,
        link_nccl._path(site): {**measured, "key": gathered},
        site.measurement_path: figures,
        site.verdict_path: gates.judge(figures, site.recipe.expect).as_dict(),
    }
    return {
        LinkState: {**link, "result": measured},
        Survey: {"clock": str(time.time()), "docker": "29.0"},
        Json: lambda path: documents[path],
        ImageId: "sha256:1",
        ImageCheck: {"ok": True, "profile": data.accelerator},
        CheckpointFaults: [],
        UnitState: "inactive",
        ServeState: {"release": site.release_id, "unit": "active", "fabric": "same"},
        Completes: True,
        docker.Mirrors: lambda mirrors: dict.fromkeys(mirrors, "200"),
        MachineState: Machine(
            container=True,
            units={
                **dict.fromkeys(("ssh.service", "earlyoom.service", UNIT), runs),
                WATCHDOG: runs if watchdog.wanted(site) else Unit("not-found", "inactive"),
            },
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


@pytest.mark.parametrize(("count", "at"), [(1, 0), (2, 0), (2, 1)])
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
        ("image", image, {}),
        ("nccl", link_nccl, {"accelerator": "gpu"}),
        ("nccl", link_nccl, {"link_gate": "off"}),
        ("checkpoint", checkpoint, {"hub_token_file": __file__}),
        ("checkpoint", checkpoint, {}),
        ("serve", serve, {"watchdog": {"enabled": False}}),
        ("serve", serve, {"api_key_env": "A_KEY"}),
        ("benchmark", benchmark, {"benchmark": "off"}),
        ("benchmark", benchmark, {}),
    ],
)
def test_a_stage_plans_what_its_operations_ask(
    sites: Sites,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    at: int,
    stage: str,
    module: ModuleType,
    data: dict[str, Any],
) -> None:
    """Else a run with nothing to do would be slow, and nobody would see why."""
    monkeypatch.setenv("A_KEY", "a-key-of-some-length")
    everybody = sites(count, **data)
    site = everybody[at]
    heard: list[tuple[Any, dict[str, Any]]] = []
    for one in everybody:
        one.host.facts = as_declared(one)
    plain = site.host.get_fact

    def get_fact(fact: type, **arguments: Any) -> Any:
        heard.append((fact, arguments))
        return plain(fact, **arguments)

    told: list[Any] = []

    class Evaluated:
        def __init__(self, operation: Any) -> None:
            self._inner = operation._inner

        def __call__(self, name: str, **words: Any) -> None:
            told.extend(self._inner(**words))

    monkeypatch.setattr(site.host, "get_fact", get_fact)
    if stage == "preflight":
        monkeypatch.setattr(preflight.preflight, "check", lambda *_: [])
        monkeypatch.setattr(preflight.preflight, "across", lambda *_: [])
    for one in everybody:
        if one is not site:
            fabric_facts._known[one.host.name] = as_declared(one)[FabricFacts]
    for place in (module, peers, share, image, watchdog, cleaning):
        for name, operation in vars(place).copy().items():
            if hasattr(operation, "_inner") and not name.startswith("deploy_"):
                monkeypatch.setattr(place, name, Evaluated(operation))
    for one in everybody:  # the head asks the others, too
        with ctx_host.use(one.host):
            getattr(module, f"deploy_{stage}")._inner(one)
    assert told == []
    assert set(map(of, heard)) == set(map(of, ahead.STAGES[stage](site)))
