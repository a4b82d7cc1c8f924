"""What must be so before a rank's engine starts, each with a limit in time and one line when it is not.

The unit runs it as its ExecStartPre. A rank clears what an unclean end left, looks at its image, checkpoint
and memory, and then waits for its group (onhost/group.py); the head answers 503 meanwhile. Whoever waits for
another rank waits without limit: that is a state and not a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from onhost import caches, docker_cli, group, last_words
from onhost.docker_cli import docker
from onhost.group import CONTAINER, READY, STARTED, Peers, Served
from onhost.limits import Limits
from onhost.plan import JobError
from onhost.staging import manifest as manifests
from onhost.unready import Unready

DOCKER_AGAIN_SECONDS = 30.0  # between two starts of a daemon that failed
FIRST_PAUSE = 5.0
"""s before a start after one that has not served, and twice as many after each further one: here, and not
systemd's, so that the endpoint says so meanwhile."""
QUICK, SLOW, QUICK_SECONDS = 1.0, 3.0, 30.0  # s between two questions to another rank: first, after that long
GIB = 1 << 30


class Start:
    """One start of a rank; `say` hears each new reason to wait."""

    def __init__(
        self,
        served: Served,
        peers: Peers,
        checkpoints: Path,
        *,
        drop_caches: bool,
        invocation: str,
        say: Callable[[str], None],
        image_id: str = "",
        limits: Limits | None = None,
    ) -> None:
        self.image_id = image_id  # "": a release of before it was noted
        self.served, self.peers, self.checkpoints = served, peers, checkpoints
        self.limits = limits or Limits()
        self.drop_caches, self.invocation = drop_caches, invocation
        self._say = say
        self._said = ""
        self._unready: Unready | None = None
        self._looked = 0.0  # when image, checkpoint and memory were found good (monotonic)

    @property
    def is_head(self) -> bool:
        return self.served.rank == 0

    def run(self) -> None:
        """Returns when the engine may start. Errors: JobError."""
        if self.is_head:
            # What was the group is none any more, also for a worker that asks just now.
            (group.RUN / "group").unlink(missing_ok=True)
        self.tell("it begins")
        try:
            self._back_off()
            self._docker()
            self._container_gone()
            self._hold_port()
            self._look()
            for line in caches.tidy(self.checkpoints.parent):
                self._say(line)
            self._group()
        finally:
            if self._unready is not None:
                self._unready.close()
        (group.RUN / "ended").unlink(missing_ok=True)
        caches.begins(self.checkpoints.parent)
        group.write_line("rank", f"{self.invocation} {STARTED}")

    def tell(self, why: str, about: str = "") -> None:
        """Why this rank waits now: for the journal (once), the other ranks, and who asks the endpoint.

        `about` is what changes each time, such as a time; the journal does without it."""
        if self._unready is not None:
            self._unready.why = f"{why}{about}"
        if why != self._said:
            self._said = why
            group.write_line("rank", f"{self.invocation} {why}")
            self._say(why)

    def _back_off(self) -> None:
        """Wait the longer, the more starts in a row have not served; one that somebody asks for begins at
        once, and so does the next one after an engine that has served."""
        anew = group.RUN / "anew"
        failed, began = group.tries()
        by_itself = group.own_number("NRestarts") > 0 or anew.exists()
        served = group.own_number("ActiveEnterTimestampMonotonic") / 1e6 > began
        failed = failed + 1 if by_itself and not served else 0
        if failed and not group.read_line("ended"):
            # Who ended it did not say so: a release of before, whose `ready` does not.
            group.write_line("ended", last_words.why_ended(self.served))
        now = time.monotonic()
        group.write_line("tries", f"{failed} {now:.3f}")
        anew.unlink(missing_ok=True)
        pause = pause_after(failed, self.limits.back_off)
        # Without the remedy: the line itself, with that, is above it in the journal.
        why = group.read_line("ended").partition("; wanted")[0]
        while (left := now + pause - time.monotonic()) > 0:
            with contextlib.suppress(JobError):
                self._take_port()
            count = f"{failed} starts" if failed > 1 else "1 start"
            self.tell(f"tries again after {pause:.0f} s ({count} failed): {why}", f"; in {left:.0f} s")
            time.sleep(min(QUICK, left))

    def _docker(self) -> None:
        """Wait for Docker, without limit. One that somebody stopped is not started from here, not even by its
        socket, which every question to it would do; one that failed is."""
        again = time.monotonic()
        while (state := docker_cli.unit_state()) in (*docker_cli.STOPPED, "activating"):
            # An engine that still ends may have the port; later there is time to wait for that.
            with contextlib.suppress(JobError):
                self._take_port()
            if state == "failed" and time.monotonic() >= again:
                group.command("systemctl", "start", "--no-block", docker_cli.UNIT)
                again = time.monotonic() + DOCKER_AGAIN_SECONDS
            remedy = "; start it: systemctl start docker" if state == "inactive" else ""
            self.tell(f"waiting for Docker: {docker_cli.UNIT} is {state}{remedy}")
            time.sleep(QUICK)

    def _container_gone(self) -> None:
        """A container that an unclean end left behind would keep the name, the port and the memory."""
        until = time.monotonic() + self.limits.docker
        while True:
            gone, text = group.command("docker", "rm", "-f", CONTAINER, seconds=60)
            said = " ".join(text.split())
            if gone or "no such container" in said.lower():
                return
            if time.monotonic() > until:
                raise JobError(
                    f"found container {CONTAINER} not removed ({said[-200:]}); wanted none left; "
                    "see `systemctl status docker`"
                )
            self.tell("waiting for Docker")
            time.sleep(QUICK)

    def _take_port(self) -> None:
        """Answer 503 at the endpoint, on the head. Errors: JobError where somebody has the port."""
        if self.is_head and self._unready is None:
            self._unready = Unready(self.served.bind, self.served.port, "the engine starts")

    def _hold_port(self) -> None:
        until = time.monotonic() + self.limits.port
        while True:
            try:
                self._take_port()
                return
            except JobError as error:
                if time.monotonic() > until:
                    raise
                self.tell(f"waiting for the endpoint's port: {str(error).partition(';')[0]}")
            time.sleep(QUICK)

    def _look(self) -> None:
        """At what an engine needs of this host."""
        self._docker()
        self._image()
        self._checkpoint()
        self._memory()
        self._looked = time.monotonic()

    def _image(self) -> None:
        image = self.served.image
        done = docker("image", "inspect", "-f", "{{.Id}} {{json .Config.Labels}}", image)
        if done.returncode:
            said = " ".join(done.stderr.split())
            if "no such image" in said.lower():
                raise JobError(f"found no image {image}; wanted the release's; run the deploy again")
            raise JobError(
                f"found Docker not answering for image {image} ({said[-200:]}); wanted what it is; "
                "see `systemctl status docker`"
            )
        content, _, labels = done.stdout.partition(" ")
        if self.image_id and content != self.image_id:
            raise JobError(
                f"found image {image} with the id {content}; wanted {self.image_id}, the release's: somebody "
                "gave its name to another image; run the deploy again"
            )
        # An image that was taken as it is has no label of ours.
        label = (json.loads(labels) or {}).get("sparkstack.image")
        if label and label != image.rpartition(":")[2]:
            raise JobError(f"found image {image} with the content of {label}; wanted its own; deploy again")

    def _checkpoint(self) -> None:
        folder = self.checkpoints / self.served.checkpoint
        found = manifests.quick_faults(folder, manifests.read(folder))
        # A file that somebody put beside them does no harm.
        if faults := [fault for fault in found if not fault.unlisted]:
            more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
            raise JobError(
                f"found checkpoint {self.served.checkpoint} damaged: {faults[0]}{more}; wanted it as its "
                "manifest says; run the deploy with --data hashes=yes"
            )

    def _memory(self) -> None:
        """The page cache takes the memory that the engine asks the GPU for, and what an engine held before
        may take a while to come back."""
        wanted = self.served.memory_gib
        until = time.monotonic() + self.limits.memory
        while True:
            if self.drop_caches and not _in_container():
                os.sync()
                # Where the kernel refuses, what it gives back by itself may do.
                with contextlib.suppress(OSError):
                    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
            free = available_gib(Path("/proc/meminfo").read_text(encoding="ascii"))
            if free >= wanted:
                return
            found = f"{free:.1f} GiB of memory available"
            if time.monotonic() > until:
                raise JobError(
                    f"found {found} after {self.limits.memory:.0f} s; wanted {wanted:.1f} GiB, the recipe's "
                    "budget; end what uses it (`ps aux --sort -rss`), or restart the host"
                )
            self.tell(f"waiting for {wanted:.1f} GiB of memory", f"; found {found}")
            time.sleep(SLOW)

    def _group(self) -> None:
        if self.served.world == 1:
            group.write_line("group", group.group_line(self.served.release, {0: self.invocation}))
            return
        if not self.peers.known:
            self._say(f"the other ranks are not asked: no {self.peers.config}; run the deploy's fabric stage")
            return
        began = time.monotonic()
        while True:
            if time.monotonic() - self._looked > self.limits.again:
                self._look()
            waited = time.monotonic() - began
            if self._formed(waited) if self.is_head else self._joined():
                return
            # Each question is a connection to the head or from it.
            time.sleep(max(QUICK if waited < QUICK_SECONDS else SLOW, self.served.world / 4))

    def _formed(self, waited: float) -> bool:
        """The head: form the group where all workers wait."""
        states = self.peers.states(self.served.workers)
        waits = {rank: group.waiting_for(state, self.served.release) for rank, state in states.items()}
        missing = {rank: wait for rank, wait in waits.items() if wait is not None}
        if not missing:
            members = {0: self.invocation} | {rank: state.invocation for rank, state in states.items()}
            group.write_line("group", group.group_line(self.served.release, members))
            return True
        for rank, wait in missing.items():
            if wait.restart:
                self.peers.restart(rank)
        rank, wait = next(iter(missing.items()))
        others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        self.tell(f"waiting for {self.served.name(rank)}: {wait.why}{others}", f"; for {waited:.0f} s")
        return False

    def _joined(self) -> bool:
        """A worker: is it a member of the head's group? Else it waits, and says whether it can take part."""
        head = self.peers.state(0)
        mine = head.members.get(self.served.rank)
        if head.members_release == self.served.release and mine == self.invocation:
            return True
        # The engines would wait for one another there, with nobody to say why.
        dead = group.meets_at(self.served.argv, head.silent)
        self.tell(
            f"waiting for the head at {dead}, where the engines meet; its host answers elsewhere; "
            "look at that cable or port"
            if dead
            else READY
        )
        return False


def image_id(config_dir: Path) -> str:
    """The id that the release's image had when it was deployed; "" where that was not noted."""
    try:
        return (config_dir / "current" / "image-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def pause_after(failed: int, longest: float) -> float:
    """s before a start, where so many in a row have not served."""
    return min(FIRST_PAUSE * 2.0 ** min(failed - 1, 30), longest) if failed else 0.0


def available_gib(meminfo: str) -> float:
    """MemAvailable of /proc/meminfo in GiB."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / GIB
    return 0.0


def _in_container() -> bool:
    # A container has no cache of its own to drop.
    return group.command("systemd-detect-virt", "--container", "--quiet")[0]


def main(config_dir: Path, state_dir: Path, drop_caches: bool) -> int:
    """The command: 0 when the engine may start, else 1 and one line on standard error."""
    try:
        served = group.read_release(config_dir)
    except JobError as error:
        print(f"prestart: {error}", file=sys.stderr)
        return 1

    def say(line: str) -> None:
        print(f"rank {served.rank}, release {served.release}: {line}", file=sys.stderr, flush=True)

    try:
        limits = Limits.read(config_dir / "watchdog.json")
    except JobError as error:
        # A limit is no reason not to serve.
        limits = Limits()
        if (config_dir / "watchdog.json").exists():
            say(f"the limits of starts are the usual ones: {error}")
    start = Start(
        served,
        Peers(config_dir / "ssh" / "config", lambda rank, words: say(f"{served.name(rank)}: {words}")),
        state_dir / "checkpoints",
        drop_caches=drop_caches,
        invocation=os.environ.get("INVOCATION_ID", "by-hand"),
        say=say,
        image_id=image_id(config_dir),
        limits=limits,
    )
    try:
        start.run()
        return 0
    except JobError as error:
        line = " ".join(str(error).split())
    except OSError as error:  # a disk that cannot be read or written, of which any step may hear
        line = f"found {error}; wanted this host's own files to be read and written; see `dmesg` and `df`"
    say(line)
    with contextlib.suppress(OSError):
        group.write_line("ended", line)
    return 1
