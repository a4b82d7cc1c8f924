"""LAB ONLY: a stand-in for an inference engine, in seconds and megabytes; it computes nothing.

One process a rank, as `vllm serve` is. The head answers a part of OpenAI's API (/v1/models, /v1/completions,
/v1/chat/completions, streamed or not, with usage), /health, and /metrics with vLLM's names. For each token
the head asks every other rank over TCP and waits for its answer, as tensor parallel ranks do over NCCL: a
rank that is stopped or cut off blocks all requests while /health stays 200, and a rank that ends ends the
group. Standard library only: it runs in a container that has nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RETRY_S = 0.2
BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Died(Exception):
    """Another rank is gone."""


class Group:
    """The head's side: one connection to each other rank."""

    def __init__(self, address: str, port: int, world: int, wait_s: float) -> None:
        self.lock = threading.Lock()
        self.ranks: dict[int, socket.socket] = {}
        if world == 1:
            return
        server = socket.create_server((address, port))
        deadline = time.monotonic() + wait_s
        while len(self.ranks) < world - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                one, _ = server.accept()
                one.settimeout(10)
                self.ranks[int(one.recv(16).decode() or "-1")] = one
                one.settimeout(None)
            except TimeoutError:
                missing = sorted(set(range(1, world)) - set(self.ranks))
                raise SystemExit(f"rendezvous: ranks {missing} did not come in {wait_s:.0f} s") from None
            except ValueError:
                continue
            say(f"rank {max(self.ranks)} joined, {len(self.ranks) + 1} of {world}")
        server.close()

    def step(self) -> None:
        """One token: every rank must answer. Blocks for as long as one does not."""
        with self.lock:
            try:
                for one in self.ranks.values():
                    one.sendall(b"t")
                for rank, one in self.ranks.items():
                    if one.recv(1) != b"t":
                        raise Died(f"rank {rank} is gone")
            except OSError as error:
                raise Died(f"a rank is gone ({error})") from None

    def watch(self, died: Callable[[str], None]) -> None:
        """Says when a connection ends while no request asks."""
        by_socket = {one: rank for rank, one in self.ranks.items()}
        while by_socket:
            ready, _, _ = select.select(list(by_socket), [], [], 1.0)
            for one in ready:
                with self.lock:
                    try:
                        gone = one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
                    except BlockingIOError:
                        gone = False
                    except OSError:
                        gone = True
                if gone:
                    died(f"rank {by_socket[one]} is gone")
                    return


def follow(rank: int, address: str, port: int, wait_s: float) -> None:
    """A rank that is not the head: answers each step, and ends when the head does."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            head = socket.create_connection((address, port), timeout=5)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                found = f"no head at {address}:{port} in {wait_s:.0f} s ({error})"
                raise SystemExit(f"rendezvous: {found}") from None
            time.sleep(RETRY_S)
    head.settimeout(None)
    head.sendall(f"{rank}\n".encode())
    say(f"rank {rank}: joined {address}:{port}")
    while True:
        try:
            asked = head.recv(1)
            if not asked:
                raise SystemExit(f"rank {rank}: the head is gone")
            head.sendall(asked)
        except OSError as error:
            raise SystemExit(f"rank {rank}: the head is gone ({error})") from None


class Counters:
    """What /metrics says, under vLLM's names."""

    def __init__(self, model: str) -> None:
        self.labels = f'engine="0",model_name="{model}"'
        self.lock = threading.Lock()
        self.values = dict.fromkeys(
            (
                "num_requests_running",
                "prompt_tokens_total",
                "generation_tokens_total",
                "request_success_total",
                "spec_decode_num_drafts_total",
                "spec_decode_num_draft_tokens_total",
                "spec_decode_num_accepted_tokens_total",
            ),
            0,
        )
        self.first: list[float] = []
        self.used = 0  # requests that held cache at the last step

    def add(self, **amounts: int) -> None:
        with self.lock:
            for name, amount in amounts.items():
                self.values[name] += amount

    def text(self, slots: int, speculation: bool) -> str:
        with self.lock:
            values, first = dict(self.values), list(self.first)
        running = values["num_requests_running"]
        lines = []
        for name, value in values.items():
            if name.startswith("spec_decode") and not speculation:
                continue
            kind = "counter" if name.endswith("_total") else "gauge"
            plain = name.removesuffix("_total")
            labels = self.labels + (',finished_reason="length"' if plain == "request_success" else "")
            lines += [f"# TYPE vllm:{plain} {kind}", f"vllm:{name}{{{labels}}} {float(value)}"]
        for name, level in (
            ("num_requests_waiting", float(max(running - slots, 0))),
            ("kv_cache_usage_perc", min(self.used / slots, 1.0)),
        ):
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{self.labels}}} {level}"]
        name = "vllm:time_to_first_token_seconds"
        lines.append(f"# TYPE {name} histogram")
        for bound in (*map(str, BUCKETS), "+Inf"):
            count = sum(value <= float(bound) for value in first)
            lines.append(f'{name}_bucket{{{self.labels},le="{bound}"}} {float(count)}')
        lines += [f"{name}_sum{{{self.labels}}} {sum(first)}", f"{name}_count{{{self.labels}}} {len(first)}"]
        return "\n".join(lines) + "\n"


class Engine:
    """What the handlers share."""

    def __init__(self, options: argparse.Namespace, group: Group) -> None:
        self.options, self.group = options, group
        self.counters = Counters(options.model)
        self.slots = threading.BoundedSemaphore(options.slots)
        self.key = os.environ.get("VLLM_API_KEY") or ""
        self.open = 0
        self.idle = threading.Condition()

    def tokens(self, count: int, prompt: int) -> Iterator[int]:
        """The ids of `count` tokens, each after one step of the whole group; `prompt`: how long that is."""
        for at in range(count):
            time.sleep(self.options.token_ms / 1000)
            self.group.step()
            # As vLLM's counters: they say what the ranks have done, and stand still when those do.
            self.counters.add(generation_tokens_total=1, prompt_tokens_total=0 if at else prompt)
            self.counters.used = self.counters.values["num_requests_running"]
            if self.options.accept and at % 10 < self.options.accept * 10:
                self.counters.add(spec_decode_num_accepted_tokens_total=1)
            if self.options.accept:
                self.counters.add(spec_decode_num_drafts_total=1, spec_decode_num_draft_tokens_total=1)
            yield 97 + at % 26

    def end(self, why: str) -> None:
        """As the real engine does it: a line, and the end of the process."""
        say(f"EngineDeadError: {why}")
        os._exit(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.engine
        if self.path == "/health":
            self._send(200, b"", "text/plain")
        elif self.path == "/metrics":
            text = engine.counters.text(engine.options.slots, bool(engine.options.accept))
            self._send(200, text.encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models" and self._allowed():
            one = {"id": engine.options.model, "object": "model", "owned_by": "light-engine"}
            self._json(200, {"object": "list", "data": [one]})
        elif self.path != "/v1/models":
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            return self._error(404, "Not Found")
        if not self._allowed():
            return None
        try:
            body = json.loads(raw)
            count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
            prompt = json.dumps(body["messages"]) if chat else str(body["prompt"])
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return self._error(400, f"a body that cannot be read: {error}")
        if body.get("model") not in (None, self.engine.options.model):
            return self._error(404, f"The model `{body['model']}` does not exist.")
        if count < 1:
            return self._error(400, "max_tokens must be at least 1")
        with self.engine.idle:
            self.engine.open += 1
        self.engine.counters.add(num_requests_running=1)
        try:
            with self.engine.slots:
                self._answer(body, chat, prompt, count)
        except Died as error:
            self.engine.end(str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.engine.counters.add(num_requests_running=-1)
            with self.engine.idle:
                self.engine.open -= 1
                self.engine.idle.notify_all()
        return None

    def _answer(self, body: dict[str, Any], chat: bool, prompt: str, count: int) -> None:
        engine, began = self.engine, time.monotonic()
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": count}
        usage["total_tokens"] = sum(usage.values())
        kind = "chat.completion" if chat else "text_completion"
        frame: dict[str, Any] = {"id": f"light-{time.monotonic_ns()}", "model": engine.options.model}
        frame["created"] = int(time.time())
        if not body.get("stream"):
            ids: list[int] = []
            for token in engine.tokens(count, usage["prompt_tokens"]):
                if not ids:
                    engine.counters.first.append(time.monotonic() - began)
                ids.append(token)
            choice = self._choice(chat, "message", ids, "length")
            engine.counters.add(request_success_total=1)
            return self._json(200, {**frame, "object": kind, "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at, token in enumerate(engine.tokens(count, usage["prompt_tokens"]), 1):
            if at == 1:
                engine.counters.first.append(time.monotonic() - began)
            choice = self._choice(chat, "delta", [token], "length" if at == count else None)
            self._event({**frame, "object": f"{kind}.chunk", "choices": [choice]})
        engine.counters.add(request_success_total=1)
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**frame, "object": f"{kind}.chunk", "choices": [], "usage": usage})
        self._event(None)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _choice(self, chat: bool, part: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        text = bytes(ids).decode()
        piece = {part: {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"index": 0, **piece, "token_ids": ids, "finish_reason": reason}

    def _event(self, value: dict[str, Any] | None) -> None:
        text = "[DONE]" if value is None else json.dumps(value)
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _allowed(self) -> bool:
        if not self.engine.key or self.headers.get("Authorization") == f"Bearer {self.engine.key}":
            return True
        self._error(401, "Unauthorized")
        return False

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "Error", "code": status}})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bind: str, port: int, handler: type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        super().__init__((bind, port), handler)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--model", required=True, help="the name that clients write")
    found.add_argument("--model-path", help="a folder that must hold config.json, as an engine would want it")
    found.add_argument("--bind", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8000)
    found.add_argument("--rank", type=int, default=0)
    found.add_argument("--world", type=int, default=1)
    found.add_argument("--head", default="127.0.0.1", help="the head's address, where the ranks meet")
    found.add_argument("--meet", type=int, default=25000, help="the port there")
    found.add_argument("--meet-s", type=float, default=600.0, help="how long ranks wait for one another")
    found.add_argument("--load-s", type=float, default=0.0, help="how long loading takes before they meet")
    found.add_argument("--token-ms", type=float, default=5.0, help="how long a token takes")
    found.add_argument("--slots", type=int, default=16, help="requests at a time; others wait")
    found.add_argument("--drain-s", type=float, default=0.0, help="how long SIGTERM waits for open requests")
    found.add_argument("--accept", type=float, default=0.0, help="part of draft tokens that is accepted")
    return found


def main() -> None:
    options = parser().parse_args()
    if options.model_path and not Path(options.model_path, "config.json").is_file():
        raise SystemExit(f"no config.json in {options.model_path}")
    # The container's main process gets no default action for signals, so both ranks' sides need one.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    time.sleep(options.load_s)
    if options.rank > 0:
        return follow(options.rank, options.head, options.meet, options.meet_s)
    engine = Engine(options, Group(options.head, options.meet, options.world, options.meet_s))
    server = Server(options.bind, options.port, type("Bound", (Handler,), {"engine": engine}))
    threading.Thread(target=engine.group.watch, args=(engine.end,), daemon=True).start()

    def drain() -> None:
        server.shutdown()
        server.server_close()
        with engine.idle:
            engine.idle.wait_for(lambda: not engine.open, options.drain_s)
        os._exit(0)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain).start())
    say(f"serving {options.model} at {options.bind}:{options.port}")
    server.serve_forever()
    threading.Event().wait()  # until `drain` ends the process


if __name__ == "__main__":
    main()
