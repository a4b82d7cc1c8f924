#!/usr/bin/env python3
"""A light stand-in for `vllm serve` over several hosts: it takes the same words and fails in the same ways.

Each token is a step that every rank must answer, as a tensor-parallel model's is: a rank that hangs hangs
all, without a word. Seen of vLLM and played here: a head whose worker is gone says 200 to /health until a
request comes, answers that one with 500 and ends with status 0; a worker whose head is gone stays up;
on SIGTERM the head takes no more requests and lets open ones end. Standard library only; runs in the image.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP_S = 0.02
DRAIN_S = 20.0
LOAD_S = 1.0


class Broken(Exception):
    """A rank is gone."""


class Engine:
    """The head's side of a group. `counts`: what /metrics shows."""

    def __init__(self, ranks: list[socket.socket]) -> None:
        self.ranks = [(one, one.makefile("rb")) for one in ranks]
        self.turn = threading.Lock()
        self.running = self.steps = self.tokens = self.prompts = 0
        self.ate: list[bytearray] = []

    def step(self) -> None:
        with self.turn:
            try:
                for sock, _ in self.ranks:
                    sock.sendall(b"step\n")
                for _, answers in self.ranks:
                    if not answers.readline():
                        raise Broken("a rank is gone")
            except OSError as error:
                raise Broken(str(error)) from None
            time.sleep(STEP_S)
            self.steps += 1
            self.tokens += 1

    def metrics(self) -> str:
        return (
            f"vllm:generation_tokens_total {self.tokens}\nvllm:prompt_tokens_total {self.prompts}\n"
            f"vllm:iteration_tokens_total_count {self.steps}\nvllm:num_requests_running {self.running}\n"
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine
    model = ""

    def log_message(self, *words: Any) -> None:
        pass

    def _answer(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, self.engine.metrics(), "text/plain")
        elif self.path == "/v1/models":
            self._answer(200, json.dumps({"object": "list", "data": [{"id": self.model}]}))
        else:
            self._answer(200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/fault/eat":  # more memory than there is: for the kernel to end this process
            while True:
                self.engine.ate.append(bytearray(os.urandom(1) * (16 << 20)))
        if body.get("model") != self.model:
            self._answer(404, json.dumps({"error": {"message": f"no model {body.get('model')!r}"}}))
            return
        self.engine.running += 1
        try:
            self._complete(body)
        except Broken as error:
            self._end(str(error))
        except OSError:
            pass  # the client went away
        finally:
            self.engine.running -= 1

    def _complete(self, body: dict[str, Any]) -> None:
        chat, count, stream = "chat" in self.path, int(body.get("max_tokens", 16)), body.get("stream")
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        self.begun = False

        def choice(text: str, done: bool) -> dict[str, Any]:
            part: dict[str, Any] = {"index": 0, "finish_reason": "length" if done else None}
            if chat:
                return part | {"delta" if stream else "message": {"role": "assistant", "content": text}}
            return part | {"text": text}

        def send(event: str) -> None:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        words = []
        for number in range(count):
            self.engine.step()
            # As vLLM counts: what its engine has done, not what its server was asked.
            self.engine.prompts += number == 0
            words.append(f" w{number % 7}")
            if not stream:
                continue
            if not self.begun:
                self.begun = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
            event = {"id": "c", "choices": [choice(words[-1], number == count - 1)]}
            send(json.dumps(event | ({"usage": usage} if number == count - 1 else {})))
        if stream:
            send("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._answer(200, json.dumps({"choices": [choice("".join(words), True)], "usage": usage}))

    def _end(self, why: str) -> None:
        """The engine is dead: the request gets an error, and the process ends as if all were well."""
        error = json.dumps({"error": {"message": why, "type": "EngineDeadError", "code": 500}})
        try:
            if getattr(self, "begun", False):
                data = f"data: {error}\n\n".encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            else:
                self._answer(500, error)
        except OSError:
            pass
        print(f"EngineDeadError: {why}", flush=True)
        threading.Timer(0.3, lambda: os._exit(0)).start()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def head(given: argparse.Namespace) -> None:
    ranks: list[socket.socket] = []
    if given.nnodes > 1:
        with socket.create_server((given.master_addr, given.master_port)) as meeting:
            while len(ranks) < given.nnodes - 1:
                ranks.append(meeting.accept()[0])
    time.sleep(LOAD_S)
    Handler.engine, Handler.model = Engine(ranks), given.served_model_name
    server = Server((given.host, given.port), Handler)

    def drain(*_: Any) -> None:
        def end() -> None:
            server.socket.close()
            until = time.monotonic() + DRAIN_S
            while Handler.engine.running and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.1)
            os._exit(0)

        threading.Thread(target=end).start()

    signal.signal(signal.SIGTERM, drain)
    print(f"serves on {given.host}:{given.port} with {given.nnodes} ranks", flush=True)
    try:
        server.serve_forever()
    except (OSError, ValueError):
        threading.Event().wait()  # the socket was closed to drain


def worker(given: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            sock = socket.create_connection((given.master_addr, given.master_port), 5)
            break
        except OSError:
            time.sleep(0.2)
    sock.settimeout(None)
    print(f"rank {given.node_rank} has joined", flush=True)
    try:
        for line in sock.makefile("rb"):
            sock.sendall(line)
    except OSError:
        pass
    print("the head is gone; waits for ever", flush=True)
    threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--served-model-name", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=25000)
    given, _ = parser.parse_known_args(sys.argv[1:])
    (worker if given.node_rank else head)(given)


if __name__ == "__main__":
    main()
