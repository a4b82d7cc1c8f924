"""How a group forms, what its head waits for, and what the endpoint says meanwhile."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

import pytest

from onhost import __main__ as command
from onhost import docker_cli, group, prestart
from onhost.group import Peers, Served, State
from onhost.limits import Limits
from onhost.plan import JobError
from onhost.prestart import Start
from onhost.unready import Unready

RELEASE = "0123456789ab"
STATUS = """ActiveState=activating
SubState=start-pre
NRestarts=2
InvocationID=aa
Release=0123456789ab
Rank=aa ready
Group=0123456789ab 0=hh 1=aa
"""


def served(rank: int = 0, world: int = 2, port: int = 0, **more: Any) -> Served:
    about: dict[str, Any] = {"memory_gib": 0.0, "api_key_file": None, "priority": False, **more}
    return Served(
        RELEASE, rank, world, ("spark-1", "spark-2", "spark-3")[:world], f"http://127.0.0.1:{port}",
        "127.0.0.1", port, "m", f"sparkstack/vllm:{RELEASE}", "c", **about,
    )  # fmt: skip


def state(**changes: Any) -> State:
    good: dict[str, Any] = {"active": "activating", "sub": "start-pre", "invocation": "aa", "note": "ready"}
    return State(**{"answered": True, "release": RELEASE, **good, **changes})


def test_what_a_rank_says_is_read() -> None:
    found = group.read_state(STATUS)
    assert found == state(restarts=2, members={0: "hh", 1: "aa"}, members_release=RELEASE)
    # What a start before this one left says nothing of this one.
    assert group.read_state(STATUS.replace("Rank=aa", "Rank=zz")).note == ""
    assert group.read_state("ssh: connect to host: timed out\n").said == "ssh: connect to host: timed out"
    assert group.read_group(group.group_line("r", {1: "b", 0: "a"})) == ("r", {0: "a", 1: "b"})
    assert group.read_group("") == ("", {})


@pytest.mark.parametrize(
    ("found", "why", "restart"),
    [
        (state(), None, False),
        (State(said="timed out"), "no answer (timed out)", False),
        (state(release="ffff"), f"it has release ffff, the head {RELEASE}; deploy again", False),
        (state(active="active", sub="running"), "it ends what is left of the group before", True),
        (state(sub="start-post"), "it ends what is left of the group before", True),
        (state(active="deactivating", sub="stop-sigterm"), "it stops", False),
        (state(sub="auto-restart"), "it starts again in a moment", False),
        (state(note="waiting for 90.0 GiB of memory"), "waiting for 90.0 GiB of memory", False),
        (state(note=""), "it begins", False),
        (
            state(active="inactive", sub="dead"),
            "its unit is inactive; start it there: systemctl start sparkstack-serve.service",
            False,
        ),
    ],
)
def test_what_the_head_waits_for(found: State, why: str | None, restart: bool) -> None:
    wait = group.waiting_for(found, RELEASE)
    assert (wait and wait.why, bool(wait and wait.restart)) == (why, restart)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (state(active="active", sub="running"), None),
        (state(sub="start-post"), None),
        (state(), None),  # it was let go this moment
        (State(said="timed out"), None),  # tokens decide about a rank that cannot be asked
        (state(invocation="bb"), "started anew"),
        (state(sub="auto-restart"), "has ended"),
        (state(active="failed", sub="failed"), "is failed"),
        (state(active="deactivating"), "is deactivating"),
    ],
)
def test_who_has_left_a_group(found: State, why: str | None) -> None:
    assert group.lost(found, "aa") == why


# ── Rails ──

CONFIG = """Host rank-0
  HostName 10.0.0.1
  Port 22
Host rank-0-rail-2
  HostName 10.0.1.1
  Port 22
Host rank-1
  HostName 10.0.0.2
Host rank-1-rail-2
  HostName 10.0.1.2
Host rank-11
  HostName 10.0.0.12
Host *
  User x
"""


class Rails:
    """The addresses of the others, of which some are cut."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.said: list[str] = []
        (folder / "config").write_text(CONFIG)
        monkeypatch.setattr(group, "command", self.command)
        self.peers = Peers(folder / "config", lambda rank, words: self.said.append(f"rank {rank}: {words}"))

    def command(self, *words: str, seconds: float = 0) -> tuple[bool, str]:
        self.asked.append(f"{words[-2]} {words[-1]}")
        return (False, "timed out\n") if words[-2] in self.cut else (True, STATUS)

    def states(self) -> tuple[State, list[str]]:
        before = len(self.asked)
        found = self.peers.state(1)
        return found, sorted(name.split()[0] for name in self.asked[before:])


@pytest.fixture
def rails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rails:
    return Rails(tmp_path, monkeypatch)


def test_a_host_is_away_only_where_none_of_its_addresses_answers(rails: Rails) -> None:
    both = ["rank-1", "rank-1-rail-2"]
    assert rails.states()[1] == ["rank-1"]
    rails.cut = {"rank-1"}
    for _ in range(3):
        found, asked = rails.states()
        assert found.answered and found.silent == ("10.0.0.2",) and asked == both
    dead = "rank 1: no answer at 10.0.0.2 (timed out), but at 10.0.1.2; look at that cable or port"
    assert rails.said == [dead]
    rails.cut = {"rank-1", "rank-1-rail-2"}
    found, asked = rails.states()
    assert (found.answered, found.said, asked) == (False, "timed out", both)
    rails.cut = {"rank-1-rail-2"}
    assert rails.states()[0].answered
    rails.cut = set()
    assert rails.states()[0] == group.read_state(STATUS)
    assert rails.said == [
        dead,
        "rank 1: no answer at 10.0.1.2 (timed out), but at 10.0.0.2; look at that cable or port",
        "rank 1: answers again",
    ]
    assert rails.states()[1] == ["rank-1"]


class Holding:
    """ssh, of which a held connection, a new one that is to be held, and one by itself may each fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "config").write_text(CONFIG)
        self.held = folder / "ssh" / "10.0.0.2"
        self.fails: dict[str, float] = {}  # which of them, and after how many s
        self.now = 0.0
        self.heard: list[str] = []
        monkeypatch.setattr(group, "command", self.command)
        monkeypatch.setattr(group.time, "monotonic", lambda: self.now)
        self.peers = Peers(folder / "config", hold=folder / "ssh")
        monkeypatch.setattr(self.peers, "ways", lambda rank: {"10.0.0.2": "rank-1"})

    def command(self, *words: str, seconds: float = group.SSH_SECONDS) -> tuple[bool, str]:
        assert words[:2] == ("ssh", "-F")
        kind = "held" if f"ControlPath={self.held}" in words else "plain"
        kind = "end" if "exit" in words else "new" if "ControlMaster=auto" in words else kind
        self.heard.append(f"{kind} {words[-1]}" if kind != "end" else kind)
        if kind in self.fails:
            self.now += min(self.fails[kind], seconds)
            return False, "broken\n"
        if kind == "new":
            assert self.held.parent.stat().st_mode & 0o77 == 0
            self.held.touch()
        return True, STATUS

    def ask(self) -> tuple[bool, list[str], float]:
        """(was there an answer, what was asked, s)."""
        self.heard, began = [], self.now
        return self.peers.state(1).answered, self.heard, self.now - began


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Holding:
    return Holding(tmp_path, monkeypatch)


def test_a_connection_is_held_from_one_question_to_the_next(holding: Holding) -> None:
    assert holding.ask() == (True, ["new status"], 0)
    assert holding.ask() == (True, ["held status"], 0)
    # Never a restart, which must be asked for once.
    holding.heard = []
    holding.peers.restart(1)
    assert holding.heard == ["plain restart"]


def test_a_held_connection_that_broke_says_nothing_of_the_host(holding: Holding) -> None:
    holding.ask()
    holding.fails = {"held": 0.1}
    assert holding.ask()[:2] == (True, ["held status", "end", "new status"])
    # One that hangs takes its own short time, and then as long as ever.
    holding.fails = {"held": 60, "new": 15}
    answered, asked, seconds = holding.ask()
    assert (answered, asked) == (False, ["held status", "end", "new status"])
    assert seconds == group.HELD_ANSWER_SECONDS + 15
    assert holding.ask() == (False, ["new status"], 15)  # nothing is held any more
    holding.fails = {}
    assert holding.ask() == (True, ["new status"], 0)


def test_where_nothing_can_be_held_each_question_is_asked_by_itself(holding: Holding) -> None:
    """No room on /run, or its folder was taken away while the watchdog runs."""
    holding.fails = {"new": 0.02}
    assert holding.ask()[:2] == (True, ["new status", "plain status"])
    holding.held.parent.rmdir()
    assert holding.ask()[:2] == (True, ["new status", "plain status"])
    holding.held.parent.rmdir()
    holding.held.parent.touch()
    assert holding.ask()[:2] == (True, ["new status", "plain status"])


def test_a_rank_is_started_anew_once_by_the_rail_that_answers(rails: Rails) -> None:
    rails.cut = {"rank-1"}
    rails.peers.restart(1)
    assert rails.asked == ["rank-1 restart", "rank-1-rail-2 restart"]
    rails.states()
    rails.asked.clear()
    rails.peers.restart(1)
    assert rails.asked == ["rank-1-rail-2 restart"]


def test_a_config_of_before_the_rails_is_asked_as_it_was(rails: Rails) -> None:
    rails.peers.config.write_text("Host rank-1\n  HostName 10.0.0.2\n")
    rails.cut = {"rank-1"}
    assert not rails.states()[0].answered and rails.asked == ["rank-1 status"]
    rails.peers.config.unlink()
    assert not rails.states()[0].answered and rails.said == []


@pytest.mark.parametrize(
    ("word", "meets"),
    [
        ("10.0.0.1", True),
        ("http://10.0.0.1:8000", True),
        ("--master-addr=10.0.0.1", True),
        ("10.0.0.12", False),
        ("110.0.0.1", False),
        ("10.0.0.1.5", False),
    ],
)
def test_where_the_engines_meet_is_in_their_command(word: str, meets: bool) -> None:
    assert (group.meets_at(["x", word], ["10.0.1.1", "10.0.0.1"]) == "10.0.0.1") is meets


def release_json(folder: Path, **changes: Any) -> Path:
    about = {
        "release": RELEASE, "rank": 1, "world": 2, "hosts": ["a", "b"], "endpoint": "http://[::1]:8000",
        "model": "m", "image": "i:t", "checkpoint": "c", "argv": ["--scheduling-policy", "priority"],
    } | changes  # fmt: skip
    (folder / "current").mkdir(exist_ok=True)
    (folder / "current" / "release.json").write_text(json.dumps(about))
    return folder


def test_a_release_of_before_these_notes_is_read_too(tmp_path: Path) -> None:
    found = group.read_release(release_json(tmp_path))
    assert (found.bind, found.port, found.memory_gib, found.api_key_file) == ("::1", 8000, 0, None)
    assert found.priority and list(found.workers) == [1] and found.name(1) == "rank 1 (b)"
    found = group.read_release(release_json(tmp_path, bind="0.0.0.0", port=9, argv=[], api_key_file="/k"))
    assert (found.bind, found.port, found.priority, found.api_key_file) == ("0.0.0.0", 9, False, Path("/k"))


@pytest.mark.parametrize(
    ("words", "takes"),
    [
        (["vllm", "serve", "/model", "--scheduling-policy", "priority"], True),
        (["--scheduling-policy=priority"], True),
        (["--scheduling_policy", "priority"], True),
        (["--scheduling-policy", "fcfs"], False),
        (["--scheduling-policy=fcfs"], False),
        (["--scheduling-policy", "fcfs", "--scheduling-policy=priority"], True),
        (["--scheduling-policy=priority", "--scheduling-policy", "fcfs"], False),
        (["--scheduling-policy"], False),
        (["a=--scheduling-policy", "priority"], False),
        (["--other", "priority"], False),
        ([], False),
    ],
)
def test_an_engine_that_takes_priorities_is_told_by_its_command(words: list[str], takes: bool) -> None:
    """Sent to another one, a priority is refused (400), and the engine would not be checked."""
    assert group.takes_priority(words) is takes


@pytest.mark.parametrize("text", ["", "[]", '{"release": "x"}', '{"rank": null}'])
def test_no_release_is_a_line(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "release.json").write_text(text)
    words = ["prestart", "--config-dir", str(tmp_path), "--state-dir", str(tmp_path)]
    assert command.main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"prestart: found no readable {tmp_path}") and said.count("\n") == 1


# ── A start ──


class Played(Peers):
    """Other ranks whose states a test says, one after the other."""

    def __init__(self, *answers: dict[int, State]) -> None:
        super().__init__(Path("/dev/null"))
        self.answers, self.restarted = list(answers), [0][:0]

    @property
    def known(self) -> bool:
        return True

    def state(self, rank: int) -> State:
        now = self.answers[0]
        if rank == max(now) and len(self.answers) > 1:
            self.answers.pop(0)
        return now[rank]

    def restart(self, rank: int) -> None:
        self.restarted.append(rank)


IMAGE_ID = "sha256:" + 64 * "0"


class Host:
    """What a start asks of this host."""

    def __init__(self) -> None:
        self.docker = {
            "rm": [(True, "")],
            "image": [CompletedProcess([], 0, f'{{"sparkstack.image": "{RELEASE}"}}\n', "")],
        }
        self.units = ["active"]  # the states of Docker's unit, one after the other
        self.numbers: dict[str, int] = {}  # what systemd says of the rank's unit
        self.said: list[str] = []
        self.faults: list[Any] = []
        self.done: list[str] = []

    def unit_state(self) -> str:
        return self.units.pop(0) if len(self.units) > 1 else self.units[0]

    def command(self, *words: str, seconds: float = 0) -> tuple[bool, str]:
        if words[:2] == ("systemctl", "show"):
            return True, f"{self.numbers.get(words[3], 0)}\n"
        self.done.append(" ".join(words))
        answers = self.docker["rm"]
        return answers.pop(0) if len(answers) > 1 else answers[0]  # type: ignore[return-value]

    def inspect(self, *words: str) -> Any:
        done = self.docker["image"][0]
        return CompletedProcess([], done.returncode, f"{IMAGE_ID} {done.stdout}", done.stderr)  # type: ignore[union-attr]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    made = Host()
    monkeypatch.setattr(group, "RUN", tmp_path / "run")
    monkeypatch.setattr(group, "command", made.command)
    monkeypatch.setattr(docker_cli, "unit_state", made.unit_state)
    monkeypatch.setattr(prestart, "docker", made.inspect)
    monkeypatch.setattr(prestart.caches, "tidy", lambda state_dir: [])
    monkeypatch.setattr(prestart.manifests, "read", lambda folder: None)
    monkeypatch.setattr(prestart.manifests, "quick_faults", lambda folder, manifest: made.faults)
    clock = [0.0]
    monkeypatch.setattr("time.sleep", lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return made


def start(host: Host, peers: Peers, limits: Limits | None = None, **about: Any) -> Start:
    said = host.said.append
    return Start(
        served(**about), peers, Path("/c"), drop_caches=False, invocation="hh", say=said, limits=limits
    )


def test_a_group_begins_when_every_rank_waits(host: Host) -> None:
    """A rank of the group before is started anew, once it answers, and the line names the new start."""
    dead = State(said="timed out")
    old = state(active="active", sub="running", invocation="old")
    peers = Played(
        {1: dead, 2: state(invocation="b")},
        {1: old, 2: state(invocation="b")},
        {1: state(), 2: state(invocation="b")},
    )
    start(host, peers, world=3).run()
    assert peers.restarted == [1]
    assert group.read_line("group") == f"{RELEASE} 0=hh 1=aa 2=b"
    assert group.read_line("rank") == "hh started"
    assert host.said == [
        "it begins",
        "waiting for rank 1 (spark-2): no answer (timed out)",
        "waiting for rank 1 (spark-2): it ends what is left of the group before",
    ]


def test_a_worker_begins_only_in_a_group_that_names_its_start(host: Host) -> None:
    heads = [
        State(said="timed out"),
        state(members={1: "old"}, members_release=RELEASE),
        state(members={1: "hh"}, members_release="other"),
        state(members={0: "x", 1: "hh"}, members_release=RELEASE),
    ]
    peers = Played(*({0: one} for one in heads))
    start(host, peers, rank=1).run()
    assert len(peers.answers) == 1 and host.said == ["it begins", "ready"]
    assert not (group.RUN / "group").exists()


def test_a_worker_that_cannot_meet_the_head_does_not_begin(host: Host) -> None:
    """The head's host answers, but not at the address at which the engines meet: they would hang there."""
    cut = state(silent=("10.0.0.1",))
    heads = [cut, cut, state(silent=("10.0.1.1",)), state(members={1: "hh"}, members_release=RELEASE)]
    start(host, Played(*({0: one} for one in heads)), rank=1, argv=("x", "--head", "10.0.0.1")).run()
    assert host.said == [
        "it begins",
        "waiting for the head at 10.0.0.1, where the engines meet; its host answers elsewhere; look at that "
        "cable or port",
        "ready",
    ]


def test_a_spark_alone_waits_for_nobody(host: Host) -> None:
    start(host, Peers(Path("/nowhere")), world=1).run()
    assert group.read_line("group") == f"{RELEASE} 0=hh"


def test_ranks_that_cannot_be_asked_are_said_not_to_be(host: Host) -> None:
    start(host, Peers(Path("/nowhere"))).run()
    assert (
        host.said[-1] == ("the other ranks are not asked: no /nowhere; run the deploy's fabric stage")
        and not (group.RUN / "group").exists()
    )


@pytest.mark.parametrize("labels", ["null\n", '{"sparkstack.image": "RELEASE"}\n'])
@pytest.mark.parametrize(("kept", "good"), [(IMAGE_ID, True), (f"sha256:{64 * '1'}", False), ("", True)])
def test_an_image_that_got_another_s_name(
    host: Host, tmp_path: Path, labels: str, kept: str, good: bool
) -> None:
    """By its id, for one that was taken as it is has no label of ours; a release of before has no id."""
    host.docker["image"] = [CompletedProcess([], 0, labels.replace("RELEASE", RELEASE), "")]
    (tmp_path / "current").mkdir()
    if kept:
        (tmp_path / "current" / "image-id").write_text(f"{kept}\n")
    made = start(host, Peers(Path("/nowhere")), world=1)
    made.image_id = prestart.image_id(tmp_path)
    if good:
        made.run()
        return
    with pytest.raises(JobError) as caught:
        made.run()
    assert str(caught.value) == (
        f"found image sparkstack/vllm:{RELEASE} with the id {IMAGE_ID}; wanted {kept}, the release's: "
        "somebody gave its name to another image; run the deploy again"
    )


@pytest.mark.parametrize("labels", ["null\n", "{}\n", '{"other": "x"}\n'])
def test_an_image_of_others_has_no_label_of_ours(host: Host, labels: str) -> None:
    host.docker["image"] = [CompletedProcess([], 0, labels, "")]
    start(host, Peers(Path("/nowhere")), world=1).run()
    assert group.read_line("group") != ""


def test_docker_is_waited_for(host: Host) -> None:
    host.docker["rm"] = [(False, "Cannot connect to the Docker daemon")] * 3 + [
        (False, "Error: No such container: sparkstack-serve")
    ]
    start(host, Peers(Path("/nowhere")), world=1).run()
    assert host.said == ["it begins", "waiting for Docker"]


@pytest.mark.parametrize("rank", [0, 1])
def test_after_a_long_wait_the_host_is_looked_at_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """What was good before the wait may be gone: the rank does not begin with it."""
    looks: list[float] = []
    images = [*["{}"] * 4, ""]

    def inspect(*words: str) -> CompletedProcess[str]:
        looks.append(time.monotonic())
        text = images.pop(0)
        return CompletedProcess([], 0 if text else 1, f"{IMAGE_ID} {text}", "No such image")

    monkeypatch.setattr(prestart, "docker", inspect)
    other = state(members={1: "hh"}, members_release=RELEASE) if rank else state()
    away = [{1 - rank: State(said="timed out")}] * 1000
    with pytest.raises(JobError, match="found no image"):
        start(host, Played(*away, {1 - rank: other}), rank=rank).run()
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert len(gaps) == 4 and max(gaps) <= Limits.again + 2 * prestart.SLOW


def test_a_worker_short_of_memory_is_not_ready_meanwhile(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head reads it, and forms no group with it."""
    free = [5.0, 1.0, 1.0, 5.0]
    monkeypatch.setattr(prestart, "available_gib", lambda text: free.pop(0) if len(free) > 1 else free[0])
    heads = [{0: State(said="timed out")}] * 200 + [{0: state(members={1: "hh"}, members_release=RELEASE)}]
    start(host, Played(*heads), rank=1, memory_gib=4.0).run()
    assert host.said == ["it begins", "ready", "waiting for 4.0 GiB of memory", "ready"]


def pause(host: Host, restarts: int = 1, active: bool = False, rank: int = 1) -> float:
    """How long the next start waits; `active`: the one before has served."""
    began = time.monotonic()
    host.numbers = {
        "NRestarts": restarts,
        "ActiveEnterTimestampMonotonic": int((began + 0.5) * 1e6) if active else 0,
    }
    time.sleep(1)
    start(host, Peers(Path("/nowhere")), rank=rank, world=1).run()
    return round(time.monotonic() - began - 1, 3)


def test_starts_that_fail_wait_longer_and_longer(host: Host) -> None:
    assert pause(host, restarts=0) == 0
    assert [pause(host) for _ in range(7)] == [5, 10, 20, 40, 60, 60, 60]
    assert pause(host, active=True) == 0  # it had served
    assert [pause(host), pause(host)] == [5, 10]
    assert pause(host, restarts=0) == 0  # somebody starts it
    group.write_line("anew", "by the watchdog")
    assert pause(host, restarts=0) == 5
    assert pause(host, restarts=0) == 0


@pytest.mark.parametrize(
    ("longest", "pauses"),
    [
        (60.0, [0, 5, 10, 20, 40, 60, 60]),
        (7.0, [0, 5, 7, 7, 7, 7, 7]),
        (1.0, [0, 1, 1, 1, 1, 1, 1]),
        (90.0, [0, 5, 10, 20, 40, 80, 90]),
    ],
)
def test_the_longest_pause_is_a_limit(longest: float, pauses: list[float]) -> None:
    assert [prestart.pause_after(failed, longest) for failed in range(7)] == pauses
    assert prestart.pause_after(100_000, longest) == longest


def test_how_long_a_start_waits_is_a_limit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(docker=7, port=5, memory=9)
    alone = Peers(Path("/nowhere"))

    def seconds(**about: Any) -> float:
        began = time.monotonic()
        with pytest.raises(JobError):
            start(host, alone, limits, **about).run()
        return time.monotonic() - began

    monkeypatch.setattr(prestart, "available_gib", lambda text: 1.0)
    assert 9 < seconds(world=1, memory_gib=2.0) <= 9 + prestart.SLOW
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert 5 < seconds(world=1, port=taken.getsockname()[1]) <= 5 + prestart.QUICK
    host.docker["rm"] = [(False, "no answer in 60 s")]
    assert 7 < seconds(world=1) <= 7 + prestart.QUICK


@pytest.mark.parametrize(
    ("text", "port", "said"),
    [
        (None, 60, []),
        ('{"port_s": 5}', 5, []),
        ('{"misses": 4, "interval_s": 15}', 60, []),
        ('{"port_s": "x"}', 60, ["found 'x' for the plan's key port_s"]),
        ("no json", 60, ["that is not JSON"]),
    ],
)
def test_a_start_reads_its_limits_and_begins_without_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    port: float,
    said: list[str],
) -> None:
    seen: list[Limits] = []

    class Begun(Start):
        def run(self) -> None:
            seen.append(self.limits)

    monkeypatch.setattr(prestart, "Start", Begun)
    if text is not None:
        (tmp_path / "watchdog.json").write_text(text)
    assert prestart.main(release_json(tmp_path), tmp_path, False) == 0
    assert [one.port for one in seen] == [port]
    heard = capsys.readouterr().err
    assert all(words in heard for words in said) and bool(heard) is bool(said)


def test_the_endpoint_says_why_starts_fail(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended the start before is said while the next one waits; and no more once an engine has begun."""
    heard: list[str] = []

    class Heard(Unready):
        def close(self) -> None:
            heard.append(self.why)
            super().close()

    monkeypatch.setattr(prestart, "Unready", Heard)
    monkeypatch.setattr(group, "read_release", lambda folder: served(world=1))
    image, host.docker["image"] = host.docker["image"], [CompletedProcess([], 1, "", "No such image")]
    assert prestart.main(tmp_path, tmp_path, False) == 1
    host.docker["image"] = image
    pause(host, rank=0)
    why = f"found no image sparkstack/vllm:{RELEASE}"
    assert host.said[1] == f"tries again after 5 s (1 start failed): {why}"
    assert heard[-1] == f"{host.said[1]}; in 1 s"
    pause(host)
    assert host.said[-1] == "tries again after 10 s (2 starts failed): its engine ended before it served"


def test_a_docker_that_was_stopped_is_waited_for_and_left_alone(host: Host) -> None:
    """For as long as it takes; the endpoint says so, on the head, and the other ranks read it."""
    host.units = ["deactivating", *["inactive"] * 300, "activating", "active"]
    begun = start(host, Peers(Path("/nowhere")), world=1)
    heard: set[str] = set()

    def say(line: str) -> None:
        host.said.append(line)
        if begun._unready is not None:
            heard.add(begun._unready.why)
            assert group.read_line("rank") == f"hh {line}" and host.done == []

    begun._say = say
    begun.run()
    stopped = "waiting for Docker: docker.service is inactive; start it: systemctl start docker"
    assert stopped in heard and host.said == [
        "it begins",
        "waiting for Docker: docker.service is deactivating",
        stopped,
        "waiting for Docker: docker.service is activating",
    ]
    assert host.done == ["docker rm -f sparkstack-serve"]


def test_a_docker_that_failed_is_started_again(host: Host) -> None:
    host.units = [*["failed"] * 32, "active"]
    start(host, Peers(Path("/nowhere")), world=1).run()
    assert host.done == [*["systemctl start --no-block docker.service"] * 2, "docker rm -f sparkstack-serve"]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("LoadState=loaded\nActiveState=active\n", "active"),
        ("LoadState=not-found\nActiveState=inactive\n", ""),  # Docker runs by another unit, or by hand
        ("", ""),
    ],
)
def test_the_state_of_dockers_unit(monkeypatch: pytest.MonkeyPatch, text: str, state: str) -> None:
    monkeypatch.setattr(docker_cli.subprocess, "run", lambda words, **more: CompletedProcess(words, 0, text))
    assert docker_cli.unit_state() == state


@pytest.mark.parametrize(
    ("fault", "about", "said"),
    [
        ("docker", {}, "found container sparkstack-serve not removed (no daemon); wanted none left; "),
        (
            "image",
            {},
            f"found no image sparkstack/vllm:{RELEASE}; wanted the release's; run the deploy again",
        ),
        (
            "daemon",
            {},
            f"found Docker not answering for image sparkstack/vllm:{RELEASE} (no answer in 120 s); ",
        ),
        ("label", {}, f"found image sparkstack/vllm:{RELEASE} with the content of 77; wanted its own; "),
        ("checkpoint", {}, "found checkpoint c damaged: a: missing; wanted it as its manifest says; run "),
        (
            "memory",
            {"memory_gib": 1e6},
            "GiB of memory available after 180 s; wanted 1000000.0 GiB, the recipe's",
        ),
        ("port", {}, " taken; wanted it free for the endpoint; see who has it: ss -ltnp 'sport = :"),
    ],
)
def test_what_ends_a_start(host: Host, fault: str, about: dict[str, Any], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        if fault == "docker":
            host.docker["rm"] = [(False, "no daemon")]
        elif fault == "image":
            host.docker["image"] = [CompletedProcess([], 1, "", "No such image")]
        elif fault == "daemon":
            host.docker["image"] = [CompletedProcess([], 124, "", "no answer in 120 s")]
        elif fault == "label":
            host.docker["image"] = [CompletedProcess([], 0, '{"sparkstack.image": "77"}\n', "")]
        elif fault == "checkpoint":
            host.faults = [prestart.manifests.Fault("b", "extra", unlisted=True)]
            host.faults += [prestart.manifests.Fault("a", "missing")]
        elif fault == "port":
            about = {"port": other.getsockname()[1]}
        with pytest.raises(JobError, match=r"^found .*; wanted ") as caught:
            start(host, Peers(Path("/nowhere")), world=1, **about).run()
    assert said in str(caught.value)
    assert group.read_line("group") == ""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/run/x"), JobError("found a; b")])
def test_the_command_ends_with_one_line(
    host: Host,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    """Also where a disk fails, which any step may hear of."""

    def fails(folder: Path) -> None:
        raise error

    monkeypatch.setattr(prestart.manifests, "read", fails)
    monkeypatch.setattr(group, "read_release", lambda folder: served(world=1))
    assert prestart.main(tmp_path, tmp_path, False) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"rank 0, release {RELEASE}: found ") and str(error) in last


def test_docker_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*words: Any, timeout: float, **more: Any) -> None:
        raise TimeoutExpired(words, timeout)

    monkeypatch.setattr(docker_cli.subprocess, "run", hangs)
    done = docker_cli.docker("image", "inspect", "x")
    assert (done.returncode, done.stderr) == (124, "no answer in 120 s")
    with pytest.raises(JobError, match=r"^found 'no answer in 120 s' from docker; wanted a running daemon"):
        docker_cli.inspect_image("x")


def test_memory_that_is_available_is_read() -> None:
    assert prestart.available_gib("MemFree: 1 kB\nMemAvailable:   2097152 kB\n") == 2
    assert prestart.available_gib("MemFree: 1 kB\n") == 0


# ── What the endpoint says ──


@pytest.fixture
def unready() -> Iterator[Unready]:
    made = Unready("127.0.0.1", 0, "waiting for rank 1 (spark-2): no answer")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None),
        ("POST", "/v1/chat/completions", b"x" * 70000),
        ("HEAD", "/", None),
        ("PUT", "/x?y", b""),
    ],
)
def test_every_path_is_503_with_the_reason(
    unready: Unready, method: str, path: str, body: bytes | None
) -> None:
    client = http.client.HTTPConnection(*unready.address, timeout=5)
    client.request(method, path, body)
    answer = client.getresponse()
    assert (answer.status, answer.getheader("Retry-After")) == (503, "5")
    if method != "HEAD":
        assert json.loads(answer.read())["error"] == {
            "message": "waiting for rank 1 (spark-2): no answer",
            "type": "service_unavailable",
            "param": None,
            "code": 503,
        }
    client.close()


def test_the_port_is_free_again_at_once() -> None:
    """Also where answers were given and a client holds its connection open: the engine must get it."""
    held = Unready("127.0.0.1", 0, "a")
    client = http.client.HTTPConnection(*held.address, timeout=5)
    client.request("GET", "/")
    client.getresponse().read()
    idle = socket.create_connection(held.address)
    held.close()
    again = socket.create_server(held.address)
    again.close()
    idle.close()
