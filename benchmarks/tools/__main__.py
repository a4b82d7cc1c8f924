"""`python -m benchmarks.tools`: ours, `vllm bench serve` and llama-benchy in turn on the same server.

Status 0 where the figures agree, 1 where they do not, 2 where a tool failed (one line says why).
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.tools import paced
from benchmarks.tools.runners import ROOT, TOOLS, Figures, Server, ToolError, Work, run
from benchmarks.tools.wire import Tap, tapped

AGREE = 0.03
STARTS = 600.0  # s that vLLM may take to serve
MODEL = ROOT / ".lab" / "models" / "sparkstack-lab" / "tiny-qwen3.5-moe"
IMAGE = "sparkstack-lab/vllm-cpu"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools", description=__doc__)
    parser.add_argument("--on", default="paced,vllm", help="paced, vllm (the lab's image), or a URL")
    parser.add_argument("--model", default="tiny", help="the served name at a URL")
    parser.add_argument(
        "--tokenizer", type=Path, default=MODEL, help="folder with the model's tokenizer.json"
    )
    parser.add_argument("--image", help="an image with vLLM (default: the lab's newest)")
    parser.add_argument("--streams", type=numbers, default=[1, 4], help="as 1,4")
    parser.add_argument("--prompt", type=int, default=384, help="tokens in")
    parser.add_argument("--tokens", type=int, default=96, help="tokens out")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="how often each tool runs, in turn")
    parser.add_argument("--write", type=Path, help="where to keep the result as JSON")
    options = parser.parse_args()
    try:
        found = [measured(place, options) for place in options.on.split(",")]
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2
    agree = all(one["agree"] for one in found)
    result = {
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "agree": agree,
        "within": AGREE,
        "servers": found,
    }
    if options.write:
        options.write.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if agree else 1


def numbers(text: str) -> list[int]:
    """The whole numbers from 1 up of "1,4". Errors: ValueError, which argparse makes a line of."""
    found = [int(one) for one in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def measured(place: str, options: argparse.Namespace) -> dict[str, Any]:
    """All tools on one server, for each number of streams."""
    image = options.image or _newest()
    if not (options.tokenizer / "tokenizer.json").is_file():
        raise ToolError(
            f"found no tokenizer.json in {options.tokenizer}; make the lab once, or name a folder"
        )
    works = []
    with ExitStack() as stack:
        server, tap = stack.enter_context(server_at(place, image, options)), None
        if place != "paced" and server.url.startswith("http://"):
            tap = stack.enter_context(tapped(server.url))
            server = replace(server, url=tap.url)
        for streams in options.streams:
            work = Work(options.prompt, options.tokens, streams, options.requests * streams)
            truth = asdict(paced.Truth.of(work.tokens)) if place == "paced" else None
            works.append(compared(server, work, options.rounds, truth, tap))
    return {"server": place, "agree": all(one["agree"] for one in works), "works": works}


def compared(
    server: Server, work: Work, rounds: int, truth: Figures | None, tap: Tap | None = None
) -> dict[str, Any]:
    """Medians over the rounds of each tool, ours and their ratios to ours; what is true comes from `truth`,
    or from a `tap` for each run of each tool: then ratios are of what each tool said to what passed when it
    asked.
    """
    seen: dict[str, list[Figures]] = {name: [] for name in TOOLS}
    true: dict[str, list[Figures]] = {name: [] for name in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for name, tool in TOOLS.items():  # in turn: what slows the machine slows all of them
                if tap:
                    tap.exchanges.clear()
                seen[name].append(tool(server, work, Path(folder)))
                passed = tap.figures(work.requests, work.tokens) if tap else truth
                if tap and passed is None:
                    raise ToolError(
                        f"{name}: fewer than {work.requests} whole streams of {work.tokens} tokens passed"
                    )
                true[name].append(passed or {})
                print(f"round {turn + 1}, {name}: {_words(seen[name][-1])}", file=sys.stderr, flush=True)
    figures = {name: _middles(runs) for name, runs in seen.items()}
    held = {
        name: _middles([_beside(said, was) for said, was in zip(runs, true[name], strict=True)])
        for name, runs in seen.items()
    }
    others = [name for name in TOOLS if name != "sparkstack"]
    base = held if tap else figures
    ratios = {name: _beside(base[name], base["sparkstack"]) for name in others}
    to_truth = held["sparkstack"]
    off = [abs(ratio - 1) for one in [to_truth, *ratios.values()] for ratio in one.values()]
    print(f"{server.url}, {work.streams} streams, {work.prompt} tokens in, {work.tokens} out")
    for name, values in figures.items():
        beside = _words(ratios.get(name, to_truth), " × ", ".3f")
        print(f"  {name}: {_words(values)}" + (f" ({beside})" if beside else ""), flush=True)
    return {
        "work": asdict(work),
        "rounds": rounds,
        "figures": figures,
        "wire": {name: _middles(runs) for name, runs in true.items()} if tap else None,
        "to_wire": held if tap else None,
        "ratios": ratios,
        "ours_to_truth": to_truth or None,
        "agree": max(off) <= AGREE,
    }


def _middles(runs: list[Figures]) -> Figures:
    return {key: statistics.median(one[key] for one in runs) for key in runs[0]}


def _beside(said: Figures, was: Figures) -> Figures:
    return {key: round(said[key] / was[key], 4) for key in said if key in was}


def _words(figures: Figures, between: str = " ", form: str = ".4g") -> str:
    return ", ".join(f"{key}{between}{value:{form}}" for key, value in sorted(figures.items()))


@contextmanager
def server_at(place: str, image: str, options: argparse.Namespace) -> Iterator[Server]:
    """The paced server, vLLM in a container of its own, or what answers at a URL."""
    if place == "paced":
        with paced.serving() as url:
            yield Server(url, paced.MODEL, options.tokenizer, image)
    elif place == "vllm":
        name = f"sparkstack-tools-{time.time_ns()}"
        try:
            yield Server(_vllm(name, image, options.tokenizer), "tiny", options.tokenizer, image)
        finally:
            run(["docker", "rm", "--force", name])
    else:
        yield Server(place.rstrip("/"), options.model, options.tokenizer, image)


def _newest() -> str:
    images = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", IMAGE]).split()
    if not images:
        raise ToolError(f"found no image {IMAGE}; make the lab once (sparkstack lab up), or give --image")
    return images[0]


def _vllm(name: str, image: str, model: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ["docker", "run", "--detach", "--name", name, "--network", "host", "--ipc", "host"]
    words += ["-v", f"{model}:/model:ro", image, "vllm", "serve", "/model", "--served-model-name", "tiny"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--max-num-seqs", "4"]
    words += ["--dtype", "bfloat16", "--enforce-eager", "--language-model-only"]
    words += ["--kv-cache-memory-bytes", "134217728"]
    run(words)
    ends = time.monotonic() + STARTS
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return url
        except OSError:
            time.sleep(1)
        if run(["docker", "inspect", "--format", "{{.State.Running}}", name]).strip() != "true":
            break
    raise ToolError(f"vLLM did not serve: {run(['docker', 'logs', '--tail', '5', name])}")


if __name__ == "__main__":
    raise SystemExit(main())
