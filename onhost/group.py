"""What a rank knows of its group: the release that it serves, and what each rank says of itself.

A group is formed by the head: when every rank waits, its checks done, the head writes `group`, a line that
names one start (systemd's invocation id) of each rank. A rank's engine starts only as a member of such a
line, so no engine ever meets what is left of an older group. Files below /run/sparkstack, a line each:
    rank     "INVOCATION ready" | "INVOCATION started" | "INVOCATION why it waits"
    group    "RELEASE 0=INVOCATION 1=INVOCATION …" (the head's)
    tries    "COUNT SECONDS": starts in a row that did not serve; when the last one began (monotonic)
    ended    why the last start ended, where it did not serve; anew: why the watchdog asks for the next start
`status`, one of the two words that a rank may ask of another, shows both beside the unit's state.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onhost.files import write_atomic
from onhost.plan import JobError

RUN = Path("/run/sparkstack")
UNIT = "sparkstack-serve.service"
CONTAINER = "sparkstack-serve"
SSH_SECONDS = 20.0
HELD_SECONDS = 300
"""For how long a connection that nobody asks by is held: longer than from one look to the next."""
HELD_ANSWER_SECONDS = 5.0
"""How long an answer by a held connection may take; a good one takes a tenth of a second."""
READY, STARTED = "ready", "started"
PROPERTIES = "ActiveState,SubState,NRestarts,InvocationID"


@dataclass(frozen=True)
class Served:
    """What release.json says of this rank. `bind`, `port`: where the head answers; `memory_gib`: what the
    engine takes of a host (0: not known)."""

    release: str
    rank: int
    world: int
    hosts: tuple[str, ...]
    endpoint: str
    bind: str
    port: int
    model: str
    image: str
    checkpoint: str
    memory_gib: float
    api_key_file: Path | None
    priority: bool  # does the engine take a request's priority?
    argv: tuple[str, ...] = ()  # the engine's command

    @property
    def workers(self) -> range:
        return range(1, self.world)

    def name(self, rank: int) -> str:
        """A rank as a user reads it."""
        return f"rank {rank} ({self.hosts[rank]})" if rank < len(self.hosts) else f"rank {rank}"


def read_release(config_dir: Path) -> Served:
    """The current release. Errors: JobError where there is none, or one that is broken."""
    path = config_dir / "current" / "release.json"
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        url = urlsplit(str(about["endpoint"]))
        argv = [str(word) for word in about.get("argv", [])]
        key = about.get("api_key_file")
        return Served(
            str(about["release"]),
            int(about["rank"]),
            int(about["world"]),
            tuple(map(str, about["hosts"])),
            str(about["endpoint"]),
            # A release of before these were noted: its endpoint has them, but for "all interfaces".
            str(about.get("bind") or url.hostname),
            int(about.get("port") or url.port or 80),
            str(about["model"]),
            str(about["image"]),
            str(about["checkpoint"]),
            float(about.get("memory_gib") or 0),
            None if key is None else Path(str(key)),
            takes_priority(argv),
            tuple(argv),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(
            f"found no readable {path} ({type(error).__name__}); wanted the release that serves; "
            "run the deploy again"
        ) from None


def takes_priority(argv: Sequence[str]) -> bool:
    """Does vLLM's command say that requests are served by priority? As its parser reads it: `--name value` or
    `--name=value`, with dashes or underscores, the last one counts."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    said = [value for name, value in itertools.pairwise(words) if _POLICY.fullmatch(name)]
    return bool(said) and said[-1] == "priority"


_POLICY = re.compile("--scheduling[-_]policy")


def stops_within(argv: Sequence[str]) -> float:
    """s in which a release lets its engine end (`docker run --stop-timeout`); 0: its command says none."""
    pairs = itertools.pairwise(part for word in argv for part in word.split("=", 1))
    said = (value for name, value in pairs if name == "--stop-timeout" and _WHOLE(value))
    return max(map(float, said), default=0.0)


_WHOLE = re.compile(r"\d{1,6}").fullmatch


@dataclass(frozen=True)
class State:
    """A rank as its host says; `said` is what came in place of an answer."""

    answered: bool = False
    active: str = ""
    sub: str = ""
    invocation: str = ""
    restarts: int = 0
    release: str | None = ""
    note: str = ""  # of the present invocation
    members: Mapping[int, str] = field(default_factory=dict)
    members_release: str = ""
    said: str = ""
    silent: tuple[str, ...] = ()  # of its addresses, where another one answered

    @property
    def between(self) -> bool:
        """Has it ended, to be started again by systemd?"""
        return self.sub.startswith("auto-restart")


def read_state(text: str) -> State:
    """What `status` prints, as a state."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if "ActiveState" not in found:
        words = " ".join(text.split())[-160:]
        return State(said=words or "no word")
    invocation = found.get("InvocationID", "")
    whose, _, note = found.get("Rank", "").partition(" ")
    release, members = read_group(found.get("Group", ""))
    count = found.get("NRestarts", "")
    return State(
        True,
        found["ActiveState"],
        found.get("SubState", ""),
        invocation,
        int(count) if count.isdigit() else 0,
        found.get("Release"),
        # What a start before this one left is no word of this one.
        note if invocation and whose == invocation else "",
        members,
        release,
    )


def read_group(line: str) -> tuple[str, dict[int, str]]:
    """The release and the members that a group's line names; ("", {}) for no such line."""
    release, *pairs = line.split() or [""]
    parts = [pair.partition("=") for pair in pairs]
    return release, {int(rank): invocation for rank, _, invocation in parts if rank.isdigit()}


def group_line(release: str, members: Mapping[int, str]) -> str:
    return " ".join([release, *(f"{rank}={members[rank]}" for rank in sorted(members))])


def write_line(name: str, text: str) -> None:
    """Put a line into a file of RUN, whole or not at all."""
    RUN.mkdir(mode=0o755, exist_ok=True)
    write_atomic(RUN / name, (" ".join(text.split()) + "\n").encode())


def read_line(name: str) -> str:
    try:
        return (RUN / name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def tries() -> tuple[int, float]:
    """How many starts in a row have not served, and when the last one began (s, monotonic)."""
    found = re.fullmatch(r"(\d+) (\d+\.\d+)", read_line("tries"))
    return (int(found[1]), float(found[2])) if found else (0, 0.0)


def command(*words: str, seconds: float = SSH_SECONDS) -> tuple[bool, str]:
    """(went well, all that it said) of a short command; one that hangs has failed."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {seconds:.0f} s"
    except OSError as error:
        return False, str(error)
    return done.returncode == 0, done.stdout


_WAY = re.compile(r"^Host (rank-(\d+)(?:-rail-\d+)?)\n\s+HostName (\S+)$", re.MULTILINE)


class Peers:
    """The other ranks by SSH, one word each; `config` is the file that `ssh -F` reads, with every address of
    a rank. `tell` hears once of each address that is silent while another one of its host answers, and once
    when all answer again. `hold`: a folder of root's own for connections that are held from one question to
    the next; a login takes five times what a question by one takes, and six lines of a journal."""

    def __init__(
        self,
        config: Path,
        tell: Callable[[int, str], None] = lambda rank, words: None,
        hold: Path | None = None,
    ) -> None:
        self.config, self._tell, self._hold = config, tell, hold
        self._silent: dict[int, frozenset[str]] = {}  # of each rank, when it was last asked

    @property
    def known(self) -> bool:
        return self.config.is_file()

    def ways(self, rank: int) -> dict[str, str]:
        """address -> the name by which `ssh -F` knows it, the first one first."""
        try:
            found = _WAY.findall(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = []
        return {address: name for name, number, address in found if int(number) == rank}

    def _ask(self, rank: int, word: str) -> tuple[dict[str, str], dict[str, str]]:
        """(what was answered, what came in place of an answer), by address. The first address is asked, and
        the others where it is silent; where one was silent before, all at once: a dead one takes long."""
        ways = self.ways(rank) or {"": f"rank-{rank}"}
        first = list(ways) if self._silent.get(rank) else list(ways)[:1]
        answers = self._at_once([(address, ways[address]) for address in first], word)
        if not any(ok for ok, _ in answers.values()):
            rest = [(address, name) for address, name in ways.items() if address not in answers]
            answers |= self._at_once(rest, word)
        good = {address: text for address, (ok, text) in answers.items() if ok}
        bad = {address: text for address, (ok, text) in answers.items() if not ok}
        self._heed(rank, good, bad)
        return good, bad

    def _at_once(self, ways: Sequence[tuple[str, str]], word: str) -> dict[str, tuple[bool, str]]:
        def ask(way: tuple[str, str]) -> tuple[bool, str]:
            address, name = way
            if self._hold is None or word != "status":
                return command("ssh", "-F", str(self.config), name, word)
            # By the address: a rank may become another host's.
            return self._ask_held(self._hold / (address or name), name, word)

        if len(ways) < 2:
            return {way[0]: ask(way) for way in ways}
        with ThreadPoolExecutor(max_workers=len(ways)) as pool:
            return dict(zip((way[0] for way in ways), pool.map(ask, ways), strict=True))

    def _ask_held(self, held: Path, name: str, word: str) -> tuple[bool, str]:
        """By the connection that is held since an earlier question, or by a new one, which is held then."""
        ssh = ("ssh", "-F", str(self.config))
        path = ("-o", f"ControlPath={held}")
        if held.exists():
            ok, said = command(*ssh, *path, name, word, seconds=HELD_ANSWER_SECONDS)
            if ok:
                return ok, said
            # One that broke, or hangs, says nothing of the host: a new one does.
            command(*ssh, *path, "-O", "exit", name, seconds=HELD_ANSWER_SECONDS)
        with contextlib.suppress(OSError):
            held.unlink(missing_ok=True)
            held.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hold = ("-o", "ControlMaster=auto", "-o", f"ControlPersist={HELD_SECONDS}")
        began = time.monotonic()
        ok, said = command(*ssh, *path, *hold, name, word)
        # ssh ends at once where it cannot make its socket (no room on /run): then nothing is held.
        quick = time.monotonic() - began < 2
        return command(*ssh, name, word) if quick and not ok else (ok, said)

    def _heed(self, rank: int, good: Mapping[str, str], bad: Mapping[str, str]) -> None:
        """A host of which no address answers is away, and none of its addresses is said to be dead."""
        silent = frozenset(bad)
        if good and silent and silent != self._silent.get(rank):
            what = ", ".join(f"{address} ({' '.join(text.split())[-160:]})" for address, text in bad.items())
            self._tell(rank, f"no answer at {what}, but at {', '.join(good)}; look at that cable or port")
        elif good and not silent and self._silent.get(rank):
            self._tell(rank, "answers again")
        self._silent[rank] = silent

    def states(self, ranks: Sequence[int]) -> dict[int, State]:
        """What each of these ranks says now, asked at once."""
        if not ranks:
            return {}
        with ThreadPoolExecutor(max_workers=min(len(ranks), 16)) as pool:
            return dict(zip(ranks, pool.map(self.state, ranks), strict=True))

    def state(self, rank: int) -> State:
        good, bad = self._ask(rank, "status")
        state = read_state(next(iter((good or bad).values())))
        return replace(state, silent=tuple(bad)) if good else state

    def restart(self, rank: int) -> None:
        """Ask a rank to start its unit anew where it runs; one that does not answer is asked again later."""
        ways = self.ways(rank) or {"": f"rank-{rank}"}
        silent = self._silent.get(rank, frozenset())
        # At one address after the other, so that no rank is started anew twice.
        for address in sorted(ways, key=lambda address: address in silent):
            if self._at_once([(address, ways[address])], "restart")[address][0]:
                return


def own_number(name: str) -> int:
    """A number that systemd knows of this host's unit; 0 where it says none."""
    _, text = command("systemctl", "show", "-p", name, "--value", UNIT)
    return int(text) if text.strip().isdigit() else 0


def own_state(config_dir: Path) -> State:
    """This host's own rank."""
    _, text = command("systemctl", "show", "-p", PROPERTIES, UNIT)
    release = (config_dir / "current").resolve().name if (config_dir / "current").exists() else ""
    lines = [f"Rank={read_line('rank')}", f"Group={read_line('group')}", f"Release={release}"]
    return read_state("\n".join([text, *lines]))


# ── Decisions ──


@dataclass(frozen=True)
class Wait:
    """Why a rank cannot take part in a new group yet; `restart`: it is to be started anew for it."""

    why: str
    restart: bool = False


def waiting_for(state: State, release: str) -> Wait | None:
    """Why the head cannot form a group with a worker; None where that waits, its checks done."""
    if not state.answered:
        return Wait(f"no answer ({state.said})")
    if state.release is None:
        return Wait("it does not say its release; run the deploy with all stages")
    if state.release != release:
        return Wait(f"it has release {state.release or 'none'}, the head {release}; deploy again")
    if state.active in ("inactive", "failed"):
        return Wait(f"its unit is {state.active}; start it there: systemctl start {UNIT}")
    if state.active == "deactivating":
        return Wait("it stops")
    if state.between:
        return Wait("it starts again in a moment")
    if state.sub != "start-pre":
        return Wait("it ends what is left of the group before", restart=True)
    return None if state.note == READY else Wait(state.note or "it begins")


def meets_at(argv: Sequence[str], addresses: Sequence[str]) -> str | None:
    """Which of the head's addresses the engine's command names: there the engines meet."""
    for address in addresses:
        if any(re.search(rf"(?<![\w.:]){re.escape(address)}(?![\w.])", word) for word in argv):
            return address
    return None


def lost(state: State, member: str) -> str | None:
    """Why a worker is no longer part of the head's group; None where it is, or cannot be asked."""
    if not state.answered:
        return None
    if state.active in ("inactive", "failed", "deactivating") or state.between:
        return f"is {state.active}" if not state.between else "has ended"
    return None if state.invocation == member else "started anew"


def apart(head: State, member: str) -> str | None:
    """Why a worker's start is no part of a group of the head's that runs; None where it is, or where the head
    does not say. One look proves little: a head that begins anew passes all of these."""
    if not head.answered:
        return None
    if head.active in ("inactive", "failed", "deactivating"):
        return f"is {head.active}"
    if head.between:
        return "has ended"
    # A line of an older start says nothing of this one.
    if head.invocation and head.members.get(0) == head.invocation:
        return None if member in head.members.values() else "runs a group without this rank"
    return f"waits ({head.note or 'it begins'})" if head.sub == "start-pre" else None
