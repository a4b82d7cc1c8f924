"""`python -m benchmarks.rerun`: a second run of ours against one of Ansible, on the same hosts, in turn.

Errors end it with one line and status 2; figures below the target with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rerun.paths import CACHE, HERE, RESULTS, ROOT

STAGES = "host,docker,conda,fabric"
FASTER = 5.0  # ours at least, as a ratio of medians
GROWTH = 1.5  # our time with all hosts, at most, as a ratio to that with the first two
ANSIBLE = CACHE / "ansible"
REQUIREMENTS = HERE / "requirements.txt"


class RerunError(Exception):
    """What a user can act on, in one line."""


class Spent(NamedTuple):
    """Seconds of a whole process: by the clock, and of processors on the controller (not on the hosts)."""

    wall: float
    cpu: float


@dataclass
class Series:
    """What the runs of each tool took, in the order in which they ran."""

    hosts: int
    spent: dict[str, list[Spent]] = field(default_factory=dict)

    def median(self, who: str) -> float:
        return statistics.median(one.wall for one in self.spent[who])


def run(words: list[str], **environment: str) -> tuple[str, Spent]:
    """(output, what it took) of a process that ends well. Errors: RerunError with the end of what it said."""
    began, used = time.perf_counter(), _cpu()
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    spent = Spent(time.perf_counter() - began, _cpu() - used)
    if done.returncode:
        raise RerunError(f"{Path(words[0]).name} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout, spent


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def ansible_ready() -> None:
    """Install Ansible in an environment of the benchmark's own, once for each content of its pins."""
    mark = ANSIBLE / "requirements.txt"
    if mark.exists() and mark.read_bytes() == REQUIREMENTS.read_bytes():
        return
    venv.create(ANSIBLE, with_pip=True, clear=True)
    run([str(ANSIBLE / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)])
    mark.write_bytes(REQUIREMENTS.read_bytes())


def first_hosts(inventory: Path, count: int | None) -> tuple[Path, int]:
    """(inventory, hosts) of the first `count` hosts; its name stays, for group_data goes by it."""
    found: dict[str, Any] = {"__file__": str(inventory), "__name__": inventory.stem}
    exec(compile(inventory.read_text(), str(inventory), "exec"), found)
    groups = {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and isinstance(value, (list, tuple))
    }
    if len(groups) != 1:
        raise RerunError(f"{inventory.name}: found {len(groups)} groups of hosts; wanted one")
    ((name, group),) = groups.items()
    hosts, data = group if isinstance(group, tuple) else (group, {})
    if count is not None and count > len(hosts):
        raise RerunError(
            f"{inventory.name}: found {len(hosts)} hosts; wanted {count}; name an inventory with more"
        )
    chosen = hosts[:count]
    path = CACHE / f"first-{len(chosen)}" / inventory.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name} = {(chosen, data)!r}\n")
    return path, len(chosen)


def pyinfra(inventory: Path, script: str, *words: str, **environment: str) -> tuple[str, Spent]:
    command = [str(Path(sys.executable).parent / "pyinfra"), str(inventory), script, "-y", *words]
    return run(command, **environment)


def ours(inventory: Path) -> tuple[Spent, int]:
    """(what it took, operations that changed something) of a run of ours, by its own report."""
    output, spent = pyinfra(inventory, "deploy.py", "--data", f"only={STAGES}")
    named = re.search(r"^report: (.+)$", output, re.MULTILINE)
    if named is None:
        raise RerunError(f"pyinfra wrote no report: {output[-500:]}")
    report = json.loads((ROOT / named[1]).read_text())
    return spent, sum(operation["status"] != "ok" for operation in report["operations"])


def ansible(inventory: Path) -> tuple[Spent, int]:
    """(what it took, tasks that changed something) of a run of the playbook, by Ansible's recap."""
    command = [str(ANSIBLE / "bin/ansible-playbook"), "-i", str(inventory), str(HERE / "playbook.yml")]
    output, spent = run(command, ANSIBLE_CONFIG=str(HERE / "ansible.cfg"), ANSIBLE_HOME=str(CACHE / "home"))
    recap = re.findall(r"^\S+ +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", output, re.MULTILINE)
    expected = len(json.loads(inventory.read_text())["all"]["hosts"])
    if len(recap) != expected:
        raise RerunError(
            f"ansible: found {len(recap)} hosts in its recap; wanted {expected}: {output[-500:]}"
        )
    return spent, sum(map(int, recap))


def translated(inventory: Path) -> Path:
    """Ansible's inventory of the same hosts, with what the site declares as variables."""
    folder = inventory.parent / "export"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    pyinfra(inventory, str(HERE / "export.py"), SPARKSTACK_RERUN_EXPORT=str(folder))
    hosts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    path = inventory.parent / "ansible.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}, indent=1))
    return path


def measure(inventory: Path, count: int | None, runs: int, peer: bool, say: Callable[[str], None]) -> Series:
    """Both are made no-ops, then run in turn; each run must change nothing. Errors: RerunError."""
    mine, hosts = first_hosts(inventory, count)
    tools: dict[str, Callable[[], tuple[Spent, int]]] = {"ours": lambda: ours(mine)}
    if peer:
        theirs = translated(mine)
        tools["ansible"] = lambda: ansible(theirs)
    # The second time shows that neither undoes what the other does.
    for attempt in range(2):
        for who, tool in tools.items():
            spent, changed = tool()
            say(f"{hosts} hosts, made ready: {who} {spent.wall:.1f} s, {changed} changed")
            if attempt and changed:
                raise RerunError(f"{who}: found {changed} changes in a second run; wanted none")
    series = Series(hosts, {who: [] for who in tools})
    for number in range(1, runs + 1):
        for who, tool in tools.items():
            spent, changed = tool()
            say(f"{hosts} hosts, run {number}: {who} {spent.wall:.2f} s, {changed} changed")
            if changed:
                raise RerunError(f"{who}: found {changed} changes; wanted a run with nothing to change")
            series.spent[who].append(spent)
    return series


def growth(inventory: Path, few: int, many: int, runs: int, say: Callable[[str], None]) -> list[Series]:
    """Ours alone on the first `few` and on the first `many` hosts, in turn.

    Hosts know those that they serve with by name and key, so each turn begins with a run that is not counted.
    """
    made = [first_hosts(inventory, count) for count in (few, many)]
    series = [Series(hosts, {"ours": []}) for _, hosts in made]
    for number in range(1, runs + 1):
        for (path, hosts), one in zip(made, series, strict=True):
            ours(path)
            spent, changed = ours(path)
            say(f"growth, {hosts} hosts, run {number}: ours {spent.wall:.2f} s, {changed} changed")
            if changed:
                raise RerunError(f"growth: found {changed} changes with {hosts} hosts; wanted none")
            one.spent["ours"].append(spent)
    return series


def figures(series: Series) -> dict[str, dict[str, Any]]:
    return {
        who: {
            "min_s": round(min(spent).wall, 3),
            "median_s": round(series.median(who), 3),
            "max_s": round(max(spent).wall, 3),
            "controller_cpu_median_s": round(statistics.median(one.cpu for one in spent), 3),
            "runs_s": [round(one.wall, 3) for one in spent],
        }
        for who, spent in series.spent.items()
    }


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        f"# A second run with nothing to change, {result['when']}",
        "",
        f"{result['machine']['cores']} cores, load {result['machine']['load_before']} before and "
        f"{result['machine']['load_after']} after; {result['versions']}. Whole processes, in turn. "
        "`python -m benchmarks.rerun`; what is compared: benchmarks/README.md.",
        "",
        "| hosts | who | min | median | max | CPU of the controller |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    keys = ("min_s", "median_s", "max_s", "controller_cpu_median_s")
    for part in ("comparison", "growth"):
        for one in result[part]:
            for who, found in one["figures"].items():
                cells = " | ".join(f"{found[key]:.2f} s" for key in keys)
                label = f"{who} (growth)" if part == "growth" else who
                lines.append(f"| {one['hosts']} | {label} | {cells} |")
    lines.append("")
    for verdict in result["verdicts"]:
        sign = "≥" if verdict["at_least"] else "≤"
        word = "met" if verdict["met"] else "NOT met"
        lines.append(
            f"- {verdict['what']}: {verdict['found']:.2f}, wanted {sign} {verdict['wanted']}: {word}"
        )
    return "\n".join(lines) + "\n"


def verdict(what: str, found: float, wanted: float, at_least: bool) -> dict[str, Any]:
    met = found >= wanted if at_least else found <= wanted
    return {"what": what, "found": round(found, 3), "wanted": wanted, "at_least": at_least, "met": met}


def versions() -> str:
    output, _ = run([str(Path(sys.executable).parent / "pyinfra"), "--version"])
    mine = output.strip().splitlines()[0].replace(":", "").replace(" v", " ")
    return f"{mine}, {REQUIREMENTS.read_text().strip().replace('==', ' ')}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerun", description=__doc__)
    parser.add_argument(
        "--inventory", type=Path, default=ROOT / "inventories/lab.py", help="any of pyinfra's"
    )
    parser.add_argument("--hosts", type=int, default=2, help="compare on the first N hosts (default 2)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn (default 5)")
    parser.add_argument("--growth", type=int, default=8, help="our time on the first N against 2; 0: skip")
    words = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        inventory = words.inventory.resolve()
        if not inventory.is_file():
            raise RerunError(f"--inventory: found no file {words.inventory}; wanted an inventory of pyinfra")
        ansible_ready()
        before = os.getloadavg()
        compared = measure(inventory, words.hosts, words.runs, True, say)
        grown = growth(inventory, 2, words.growth, words.runs, say) if words.growth else []
        verdicts = [
            verdict(
                f"Ansible's time / ours, {compared.hosts} hosts",
                compared.median("ansible") / compared.median("ours"),
                FASTER,
                True,
            )
        ]
        if grown:
            few, many = grown
            ratio = many.median("ours") / few.median("ours")
            verdicts.append(
                verdict(f"our time, {many.hosts} hosts / {few.hosts} hosts", ratio, GROWTH, False)
            )
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        result = {
            "when": today,
            "stages": STAGES,
            "versions": versions(),
            "machine": {
                "cores": os.cpu_count(),
                "load_before": round(before[0], 1),
                "load_after": round(os.getloadavg()[0], 1),
            },
            "comparison": [{"hosts": compared.hosts, "figures": figures(compared)}],
            "growth": [{"hosts": one.hosts, "figures": figures(one)} for one in grown],
            "verdicts": verdicts,
        }
    except RerunError as error:
        print(f"rerun: {error}", file=sys.stderr)
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = f"rerun-{today}"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(table(result))
    print(table(result))
    return 0 if all(one["met"] for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
