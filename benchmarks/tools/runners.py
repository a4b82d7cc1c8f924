"""Runs each tool once on a server and reads the figures that they have in common from its own result."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from onhost.bench.prompts import filler

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "tools"
BENCHY = CACHE / "llama-benchy"


class ToolError(Exception):
    """What a user can act on, in one line."""


@dataclass(frozen=True)
class Server:
    """Where to measure: URL, the model's name there, its tokenizer's folder here, and the image with vLLM."""

    url: str
    model: str
    tokenizer: Path
    image: str


@dataclass(frozen=True)
class Work:
    """The same for all tools: tokens in (about), tokens out (exactly), requests at once and in all."""

    prompt: int
    tokens: int
    streams: int
    requests: int


Figures = dict[str, float]  # ttft_s, decode_tok_s, end_to_end_s where the tool tells it


def run(words: list[str], **environment: str) -> str:
    """What a process says; ToolError with the end of it where it fails."""
    try:
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
    except OSError as error:
        raise ToolError(f"found no {words[0]} ({error.strerror}); wanted it to run; install it") from None
    if done.returncode:
        raise ToolError(f"{Path(words[0]).name} ended with {done.returncode}: {done.stdout[-1500:].strip()}")
    return done.stdout


def _middle(figure: dict[str, Any]) -> float:
    """The median of a distribution of ours. ToolError where nothing was measured."""
    if figure["median"] is None:
        raise ToolError(f"our own benchmark measured nothing: {figure}")
    return float(figure["median"])


def ours(server: Server, work: Work, folder: Path) -> Figures:
    """The job itself, as a process of its own."""
    profile = {
        "streams": [work.streams],
        "max_tokens": work.tokens,
        "requests": work.requests // work.streams,
        "repeats": 1,
        "max_repeated": 0,
        "contexts": [work.prompt] if work.streams == 1 else [],
    }
    if work.streams == 1:
        # Inputs of the asked length, as the other tools have them; a point's prompts are short.
        profile |= {"requests": 1, "repeats": work.requests}
    plan: dict[str, Any] = {"job": "tools", "kind": "bench", "jobs_dir": str(folder), "profile": profile}
    plan |= {"url": server.url, "model": server.model, "api_key_file": None, "release": "tools"}
    plan |= {"result": str(folder / "measurement.json")}
    (folder / "plan.json").write_text(json.dumps(plan))
    run([sys.executable, "-m", "onhost", "job", str(folder / "plan.json")])
    found = json.loads((folder / "measurement.json").read_text())
    (point,) = found["points"]
    figures = {"decode_tok_s": _middle(point["decode_tok_s"]), "end_to_end_s": _middle(point["end_to_end_s"])}
    if work.streams == 1:
        (context,) = found["contexts"]
        figures = {name: _middle(context[name]) for name in ("ttft_s", "decode_tok_s")}
    return figures


def vllm_bench(server: Server, work: Work, folder: Path) -> Figures:
    """`vllm bench serve` of the image, with random prompts."""
    words = ["docker", "run", "--rm", "--network", "host", "-v", f"{server.tokenizer}:/tokenizer:ro"]
    words += ["-v", f"{folder}:/out", server.image, "vllm", "bench", "serve", "--backend", "openai"]
    words += ["--base-url", server.url, "--model", server.model, "--tokenizer", "/tokenizer"]
    words += ["--dataset-name", "random", "--random-input-len", str(work.prompt)]
    words += ["--random-output-len", str(work.tokens), "--ignore-eos", "--temperature", "0"]
    words += ["--num-prompts", str(work.requests), "--max-concurrency", str(work.streams)]
    words += ["--percentile-metrics", "ttft,tpot,e2el", "--disable-tqdm"]
    words += ["--seed", str(int.from_bytes(os.urandom(3), "big")), "--save-result"]
    words += ["--result-dir", "/out", "--result-filename", "vllm.json"]
    said = run(words)
    try:
        found = json.loads((folder / "vllm.json").read_text())
        if found["completed"] != work.requests:
            raise ToolError(f"vllm bench serve completed {found['completed']} of {work.requests} requests")
        return {
            "ttft_s": found["median_ttft_ms"] / 1000,
            "decode_tok_s": 1000 / found["median_tpot_ms"],
            "end_to_end_s": found["median_e2el_ms"] / 1000,
        }
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        raise ToolError(f"vllm bench serve left no result: {said[-800:].strip()}") from None


def benchy_ready() -> None:
    """Install llama-benchy in an environment of the benchmark's own, once for each content of its pins."""
    pins = HERE / "requirements.txt"
    mark = BENCHY / "pins"
    if mark.is_file() and mark.read_bytes() == pins.read_bytes():
        return
    venv.create(BENCHY, with_pip=True, clear=True)
    run([str(BENCHY / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(pins)])
    mark.write_bytes(pins.read_bytes())


def llama_benchy(server: Server, work: Work, folder: Path) -> Figures:
    """llama-benchy, with a text of ours instead of the book that it would download."""
    benchy_ready()
    (folder / "book.txt").write_text(" ".join(filler(12_000, 7)))
    with _giving(folder) as book:
        words = [str(BENCHY / "bin/llama-benchy"), "--base-url", f"{server.url}/v1", "--model", server.model]
        words += ["--tokenizer", str(server.tokenizer), "--pp", str(work.prompt), "--tg", str(work.tokens)]
        words += ["--runs", str(work.requests // work.streams), "--concurrency", str(work.streams)]
        words += ["--exact-tg", "--no-cache", "--skip-coherence", "--latency-mode", "none"]
        words += ["--book-url", f"{book}/book.txt", "--format", "json"]
        words += ["--save-result", str(folder / "benchy.json")]
        said = run(words, HOME=str(folder))
    try:
        (found,) = json.loads((folder / "benchy.json").read_text())["benchmarks"]
        speed = found["tg_throughput" if work.streams == 1 else "tg_req_throughput"]["values"]
        first = found["e2e_ttft"]["values"]  # ms
        return {"ttft_s": statistics.median(first) / 1000, "decode_tok_s": statistics.median(speed)}
    except (OSError, ValueError, KeyError, TypeError):
        raise ToolError(f"llama-benchy left no result: {said[-800:].strip()}") from None


@contextmanager
def _giving(folder: Path) -> Iterator[str]:
    """The URL of a folder's files on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


TOOLS: dict[str, Callable[[Server, Work, Path], Figures]] = {
    "sparkstack": ours,
    "vllm bench serve": vllm_bench,
    "llama-benchy": llama_benchy,
}
