"""A cluster whose releases are real files; its shell, systemd and Docker are played.

A rank is active when all ranks have the same `current`, all were started, and the release is not `broken`
(a file in its folder). After `cut` commands the controller is killed: everything from there on raises.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_host import FakeHost, commands_of, follow, kind_of
from pyinfra.api import StringCommand
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host

from sparkstack.machine import Machine, Unit
from sparkstack.releases import Activation, History, Kept, OnHost
from tasks import benchmark, rollback, serve
from tasks.activation import Releases
from tasks.facts import Completes, Json, ServeState
from tasks.machine import MachineState
from tasks.site import UNIT, Site


class Killed(BaseException):
    """The controller is gone."""


class RealHost(FakeHost):
    """A host below `folder`; `budget` (shared by all hosts) is how many more commands are given."""

    folder: Path
    budget: list[int]

    images: set[str]
    fails: list[str]  # kinds of commands, each to fail once
    together: list[RealHost]
    unit = "inactive"

    def get_fact(self, fact: type, **arguments: Any) -> Any:
        if fact is MachineState:
            return Machine(units={UNIT: Unit("enabled", "active")})
        if fact is Completes:
            return self.state_of() == "active"
        if fact is Releases:
            return self.kept()
        if fact is Json:
            return _json(Path(arguments["path"]))
        if fact is ServeState:
            same = self.etc / "current" / "fabric.env"
            return {
                "release": self.current or "",
                "unit": self.state_of(),
                "fabric": "same" if same.is_file() else "",
            }
        return super().get_fact(fact, **arguments)

    def kept(self) -> OnHost:
        """As the fact reads it (a test holds the two against each other)."""
        releases = {}
        for path in sorted(self.etc.glob("releases/*/release.json")):
            folder = path.parent
            env, before = folder / "fabric.env", folder / "previous"
            releases[folder.name] = Kept(
                _json(path),
                int(env.stat().st_mtime) if env.exists() else 0,
                before.readlink().name if before.is_symlink() else None,
                History.read(_json(folder / "history.json")),
            )
        return OnHost(self.current, releases, Activation.read(_json(self.etc / "activation.json")))

    def run_shell_command(self, command: StringCommand, **arguments: Any) -> tuple[bool, CommandOutput]:
        if self.budget[0] <= 0:
            raise Killed
        self.budget[0] -= 1
        text = command.get_raw_value()
        self.heard.append(text)
        assert len(self.heard) < 5000, self.heard[-9:]
        ok, out = self._played(kind_of(text), text, str(arguments.get("_stdin", "")))
        return ok, CommandOutput([OutputLine("stdout", line) for line in out.splitlines()])

    def _played(self, kind: str, text: str, stdin: str) -> tuple[bool, str]:
        if kind in self.fails:
            self.fails.remove(kind)
            return False, "no space left"
        match kind:
            case "stop rank":
                self.unit = "inactive"
            case "start rank":
                self.start()
            case "state of rank":
                return True, self.state_of()
            case "restarts of rank":
                return True, "3" if (self.etc / "current" / "broken").exists() else "0"
            case "journal of rank":
                return True, "ValueError: bad flag"
            case "read measurement":
                path = re.search(r"/\S+", text)
                assert path is not None
                return True, Path(path[0]).read_text() if Path(path[0]).exists() else ""
            case "lacks":
                image = re.search(r"image inspect (\S+)", text)
                assert image is not None
                return True, "" if image[1] in self.images else f"image {image[1]}"
            case "write":  # how it is written is tried in test_files_for_real.py
                target = re.search(r"&& mv -fT \S+ (\S+); ", text)
                assert target is not None
                Path(target[1]).write_bytes(base64.b64decode(stdin))
            case "drop activation" | "drop measurement":
                for path in re.findall(r"/\S+", text):
                    Path(path).unlink(missing_ok=True)
            case "switch rank":
                self._switch(text)
            case "leave rank out":
                (self.etc / "current").unlink(missing_ok=True)
            case _:
                raise AssertionError(f"nobody plays: {text}")
        return True, ""

    def _switch(self, text: str) -> None:
        """What the words do (they are tried in test_files_for_real.py)."""
        found = re.search(r"ln -sfn (\S+/releases/\S+) \S+/current\.new", text)
        assert found is not None
        folder = Path(found[1])
        env = folder / "fabric.env"
        if "test -f" not in text or not env.exists():
            env.write_text("A=1\n")
        if before := re.search(r"ln -sfn \.\./(\S+) ", text):
            (folder / "previous").unlink(missing_ok=True)
            (folder / "previous").symlink_to(f"../{before[1]}")
            if not (self.etc / "previous").is_symlink():
                (self.etc / "previous").symlink_to("current/previous")
        (self.etc / "current").unlink(missing_ok=True)
        (self.etc / "current").symlink_to(folder)

    def start(self) -> None:
        if (self.etc / "current" / "run").exists():
            self.unit = "started"

    # What is on the host, for a test.

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def state_of(self) -> str:
        if self.unit == "inactive":
            return "inactive"
        good = all(one.current == self.current and one.unit == "started" for one in self.together)
        return "active" if good and not (self.etc / "current" / "broken").exists() else "activating"

    def link(self, name: str) -> str | None:
        path = self.folder / "etc" / name
        return path.resolve().name if path.exists() else None

    @property
    def current(self) -> str | None:
        return self.link("current")

    @property
    def previous(self) -> str | None:
        return self.link("previous")


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None


class Cluster:
    """`make(**changes)` gives the sites of a recipe that differs from the test recipe by `serve` options."""

    def __init__(self, folder: Path, sites: Callable[..., list[Site]], count: int = 2) -> None:
        self.sites = sites(count)
        self.hosts: list[RealHost] = []
        self.budget = [10**6]
        for site in self.sites:
            old = site.host
            host = RealHost(old.name, **{**vars(old.data)})
            host.folder = folder / old.name
            host.budget = self.budget
            (host.folder / "etc").mkdir(parents=True)
            host.images, host.together, host.fails = set(), self.hosts, []
            (host.folder / "etc" / "fabric.env").write_text("A=1\n")
            host.data.config_dir = str(host.folder / "etc")
            host.data.state_dir = str(host.folder / "var")
            self.hosts.append(host)

    def of(self, options: dict[str, Any] | None = None, **data: Any) -> list[Site]:
        """The ranks' sites for the test recipe with these options, all of its parts staged on the hosts."""
        sites = []
        for site, host in zip(self.sites, self.hosts, strict=True):
            vars(host.data).update({"retry": False, "keep_failed": False, **data})
            options = options or {"max_model_len": 1024}
            serve_part = site.recipe.serve.model_copy(update={"options": options, "ready_timeout_s": 9})
            recipe = site.recipe.model_copy(update={"serve": serve_part})
            sites.append(Site(host, site.rank, list(self.hosts), recipe, site.fabric))
        # Every rank's paths are in its own folder; the id must not know.
        release = sites[0].release_id
        for site in sites:
            site.__dict__["release_id"] = release
            self._stage(site)
        return sites

    def _stage(self, site: Site) -> None:
        for file in site.release_files:
            path = Path(file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(int(file.mode, 8))
        manifest = Path(site.checkpoint_dir) / "manifest.json"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        source = site.about["source"]
        manifest.write_text(json.dumps({"id": site.checkpoint_id, "source": source, "files": {}}, indent=1))
        site.host.images.add(site.image_tag)

    def broken(self, sites: list[Site]) -> list[Site]:
        for site in sites:
            (Path(site.data.config_dir) / "releases" / site.release_id / "broken").touch()
        return sites

    def run(self, operation: Any, *arguments: Any, cut: int = 10**6) -> bool | None:
        """Run an operation of the head to its end: did it go well? None: killed after `cut` commands."""
        head = self.hosts[0]
        for host in self.hosts:
            host.shown.clear()
        self.budget[0] = cut
        try:
            with ctx_host.use(head):
                return follow(commands_of(operation, head, *arguments), head)
        except Killed:
            return None
        finally:
            self.budget[0] = 10**6

    def deploy(self, sites: list[Site], cut: int = 10**6) -> bool | None:
        return self.run(serve.activated, sites[0], cut=cut)

    def roll_back(self, cut: int = 10**6) -> bool | None:
        return self.run(rollback.gone_back, list(self.hosts), cut=cut)

    def judge(self, sites: list[Site], tok_s: float, cut: int = 10**6) -> bool | None:
        """The benchmark has measured `tok_s` tokens/s; it is judged."""
        spread = {"median": tok_s, "min": tok_s, "max": tok_s, "n": 3}
        point = {"streams": 1, "requests": 3, "failed": 0, "ttft_s": spread, "decode_tok_s": spread}
        path = Path(sites[0].measurement_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        measurement = {
            "format": 1,
            "release": sites[0].release_id,
            "when": "2026-01-02T03:04:05Z",
            "profile": sites[0].profile,
            "points": [{**point, "total_tok_s": tok_s}],
            "sane": {"ok": True, "found": "4 different answers"},
        }
        path.write_text(json.dumps(measurement))
        return self.run(benchmark.judged, sites[0], cut=cut)

    def measure(self, sites: list[Site]) -> bool | None:
        """The benchmark's operation, where nothing is measured yet (a test plays its job)."""
        Path(sites[0].measurement_path).unlink(missing_ok=True)
        return self.run(benchmark.measured, sites[0])

    def power_cycle(self) -> None:
        """Every host starts what its `current` names."""
        for host in self.hosts:
            host.start()

    def serves(self, release: str | None) -> bool:
        return all(host.current == release and host.state_of() == "active" for host in self.hosts)

    @property
    def said(self) -> list[str]:
        return self.hosts[0].shown
