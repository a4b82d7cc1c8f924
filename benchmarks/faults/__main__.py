"""`python -m benchmarks.faults`: every fault once, as a table; `--soak 30m`: at random, under load."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults import cases as known
from benchmarks.faults.cluster import (
    QUICK,
    ROOT,
    Cluster,
    Failed,
    changed,
    data,
    deploy,
    light_recipe,
    standing,
    wait_for,
)  # fmt: skip
from benchmarks.faults.load import SILENT, Load
from lab import lab

NOT_CHECKED = {
    "the kernel's own clock set": "the lab's hosts are containers and share this machine's clock; the fault "
    "above stands between it and our units' processes (their Python's `time.time`, a stand-in)",
}


def minutes(text: str) -> float:
    """Seconds of "30m", "90s" or "2h"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted a time such as 30m or 90s")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def prepare(engine: str, folder: Path) -> tuple[Cluster, list[str]]:
    """A cluster that serves with this engine, and the words by which it was deployed."""
    if lab.read_state() is None:
        raise Failed("found no lab; wanted one that is up; run: sparkstack lab up")
    words = data(plan="no", retry="yes", watchdog=json.dumps(QUICK))
    if engine == "light":
        words += data(recipe=light_recipe(folder))
    done = deploy(*words)
    if done.returncode:
        raise Failed(f"the deploy failed: {done.stdout[-1500:]}")
    return standing(), words


def deploy_under_load(cluster: Cluster, engine: str, folder: Path) -> dict[str, Any]:
    """Another release is deployed while requests stream: what becomes of them."""
    load = Load(cluster.head.address, cluster.port, cluster.model)
    load.begin()
    time.sleep(5)
    words = data(plan="no", retry="yes", watchdog=json.dumps(QUICK))
    if engine == "light":
        words += data(recipe=light_recipe(folder, token_ms=15))
    began = time.monotonic()
    done = deploy(*words)
    seconds = time.monotonic() - began
    time.sleep(5)
    return {"ok": done.returncode == 0, "seconds": round(seconds, 1), **load.end()}


def another_release(engine: str, folder: Path) -> list[str]:
    """The words of a deploy that brings another release; with vLLM, which has one recipe here, the same."""
    words = data(plan="no", retry="yes", watchdog=json.dumps(QUICK))
    return words + (data(recipe=light_recipe(folder, token_ms=18)) if engine == "light" else [])


def table(engine: str, long_cut: float, only: str | None, folder: Path) -> dict[str, Any]:
    """Every fault once."""
    cluster, _ = prepare(engine, folder)
    limit = known.RECOVERY_S * (1 if engine == "light" else 3)
    lines = []
    all_cases = known.cases(len(cluster.hosts), long_cut)
    all_cases.append(known.two_deploys(lambda: another_release(engine, folder)))
    for case in all_cases:
        if (case.light and engine != "light") or (only and not re.search(only, case.name)):
            continue
        result = known.play(cluster, case, limit)
        lines.append(_line(result))
        print(f"{result.name}: {result.seconds} s {result.said}", flush=True)
    streams = None
    if not only or re.search(only, "deploy"):
        streams = deploy_under_load(cluster, engine, folder)
        print(f"deploy while requests stream: {streams}", flush=True)
    again = deploy(*data(plan="no", watchdog=json.dumps(QUICK)), *_recipe(engine, folder))
    second = {"ok": again.returncode == 0, "changed": changed() if again.returncode == 0 else ["failed"]}
    return {"kind": "table", "lines": lines, "deploy_under_load": streams, "second_deploy": second}


def _line(result: known.Result) -> dict[str, Any]:
    return {
        "fault": result.name,
        "recovery_s": result.seconds,
        "outage": result.outage,
        "said": result.said,
    }


def _recipe(engine: str, folder: Path) -> list[str]:
    return data(recipe=folder / "lab-light.yaml") if engine == "light" else []


def soak(engine: str, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Random faults under load: what became of every request that was accepted."""
    cluster, _ = prepare(engine, folder)
    wait_for("tokens", 120, cluster.serves)
    rng = random.Random(seed)
    load = Load(cluster.head.address, cluster.port, cluster.model)
    load.begin()
    until = time.monotonic() + seconds
    lines = []
    choice = [c for c in known.cases(len(cluster.hosts)) if c.soak and (engine == "light" or not c.light)]
    while time.monotonic() < until:
        time.sleep(rng.uniform(2, 10))
        result = known.play(cluster, rng.choice(choice))
        lines.append(_line(result))
        print(f"{result.name}: {result.seconds} s {result.said}; {dict(load.counts)}", flush=True)
        if result.seconds is None:
            break
    counts = load.end()
    return {"kind": "soak", "seconds": round(seconds), "seed": seed, "lines": lines, "requests": counts}


def markdown(found: dict[str, Any]) -> str:
    """The result as a page."""
    head = f"# Faults: {found['kind']}, engine {found['engine']}, {found['hosts']} hosts, {found['when']}\n\n"
    rows = ["| fault | seconds to the next token | tokens stopped |", "| --- | --- | --- |"]
    for line in found["lines"]:
        took = "none came: " + line["said"] if line["recovery_s"] is None else f"{line['recovery_s']:.1f}"
        rows.append(f"| {line['fault']} | {took} | {'yes' if line['outage'] else 'no'} |")
    rows += [f"| {name} | not checked: {why} | |" for name, why in NOT_CHECKED.items()]
    rest = ""
    titles = {"deploy_under_load": "Deploy while requests stream", "requests": "Requests"}
    for name, counts in ((title, found.get(key)) for key, title in titles.items()):
        if counts:
            rest += f"\n{name}: {', '.join(f'{key} {value}' for key, value in counts.items())}.\n"
    if second := found.get("second_deploy"):
        rest += f"\nThe deploy after all this changed: {', '.join(second['changed']) or 'nothing'}.\n"
    return head + "\n".join(rows) + "\n" + rest


def good(found: dict[str, Any]) -> bool:
    """Did every fault end with tokens, every deploy well, and no request without a word?"""
    lost = sum((found.get(key) or {}).get(SILENT, 0) for key in ("requests", "deploy_under_load"))
    streams, second = found.get("deploy_under_load"), found.get("second_deploy")
    deploys = (not streams or streams["ok"]) and (not second or (second["ok"] and not second["changed"]))
    return lost == 0 and bool(deploys) and all(line["recovery_s"] is not None for line in found["lines"])


def main() -> int:
    """0 where `good` says so."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--engine", choices=["light", "vllm"], default="light")
    parser.add_argument("--soak", type=minutes, metavar="TIME", help="random faults under load for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="PATTERN", help="faults whose name has this")
    parser.add_argument("--long-cut", type=minutes, default=300.0, metavar="TIME", help="the long cut (5m)")
    given = parser.parse_args()
    os.chdir(ROOT)
    try:
        with tempfile.TemporaryDirectory() as name:
            if given.soak:
                found = soak(given.engine, given.soak, given.seed, Path(name))
            else:
                found = table(given.engine, given.long_cut, given.only, Path(name))
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    found |= {
        "format": 1,
        "engine": given.engine,
        "hosts": len((lab.read_state() or {"nodes": []})["nodes"]),
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cpus": os.cpu_count(),
        "not_checked": NOT_CHECKED,
    }
    if not given.only:
        stem = ROOT / "benchmarks" / "results" / f"faults-{found['kind']}-{given.engine}-{found['when'][:10]}"
        stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        stem.with_suffix(".md").write_text(markdown(found))
    print(markdown(found))
    return 0 if good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
