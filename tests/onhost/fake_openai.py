"""A small OpenAI-like server on loopback that behaves, or misbehaves, as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECES = ["Hel", "lo", " wor", "ld", "!"]


class Server(ThreadingHTTPServer):
    """`chunk`: tokens a chunk. `fault`: what goes wrong, for the next `faults` requests (None: all)."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.chunk, self.pause, self.ids, self.fault = "tiny", 1, 0.0, True, ""
        self.slots: list[Any] | None = None  # llama.cpp's answer to /slots; None for a server that has none
        self.metrics: list[str] = []  # pages, one after the other; the last one again and again
        self.key: str | None = None
        self.open_list = False  # are the models listed for who has no key, as llama.cpp's server does?
        self.text: str | None = None
        self.faults: int | None = None
        self.fault_from: int | None = None  # number of the request from which on the fault is there
        self.requests: list[dict[str, Any]] = []
        self.replicas: list[str | None] = []  # the data parallel replica that each request asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics" and (pages := self.server.metrics):
            self.raw(200, (pages.pop(0) if len(pages) > 1 else pages[0]).encode(), "text/plain")
            return
        if not self.server.open_list and self.refused():
            return
        if self.path == "/slots":
            self.json(200 if self.server.slots else 501, self.server.slots or {"error": {"code": 501}})
            return
        self.json(200, {"object": "list", "data": [{"id": self.server.model}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.replicas.append(self.headers.get("X-data-parallel-rank"))
        if self.refused():
            return
        if body["model"] != self.server.model:
            self.json(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
            return
        fault = self.fault()
        if fault == "hangs":
            time.sleep(5)  # in a thread that nobody waits for
            self.close_connection = True
        elif fault == "error 200":
            self.json(200, {"error": {"message": "engine is dead"}})
        elif fault == "odd usage 200":
            self.json(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": None}})
        elif fault == "error 500":
            self.json(500, {"error": {"message": "EngineCore\nfailed"}})
        elif fault == "error 400":
            self.json(400, {"object": "error", "message": "too long"})
        elif fault == "no json":
            self.raw(200, b"<html>", "text/html")
        elif body.get("stream"):
            self.stream(body, fault)
        elif fault == "empty":
            self.json(200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}})
        else:
            self.json(
                200, {"choices": [{"text": " four"}], "usage": {"completion_tokens": body["max_tokens"]}}
            )

    def fault(self) -> str:
        if self.server.fault_from is not None:
            return self.server.fault if len(self.server.requests) >= self.server.fault_from else ""
        if self.server.faults is None:
            return self.server.fault
        self.server.faults -= 1
        return self.server.fault if self.server.faults >= 0 else ""

    def refused(self) -> bool:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.json(401, {"error": "Unauthorized"})
            return True
        return False

    def stream(self, body: dict[str, Any], fault: str) -> None:
        chat = "messages" in body
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wanted = body["max_tokens"] - (3 if fault == "short" else 0)
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        at = 0
        while at < wanted:
            count = min(self.server.chunk, wanted - at)
            time.sleep(self.server.pause)
            text = "".join(self.server.text or PIECES[n % 5] for n in range(at, at + count))
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            if self.server.ids:
                choice["token_ids"] = [7 if self.server.text else n for n in range(at, at + count)]
            self.event({"choices": [choice]})
            at += count
            if fault == "cut" and at >= 3:
                self.close_connection = True
                return
            if fault == "error event":
                self.event({"error": {"message": "out of memory"}})
                self.end()
                return
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if fault != "no usage":
            self.event({"choices": [], "usage": {"completion_tokens": wanted + (fault == "odd usage")}})
        if fault != "no done":
            self.chunk(b"data: [DONE]\n\n")
        self.end()

    def event(self, data: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def json(self, status: int, data: Any) -> None:
        self.raw(status, json.dumps(data).encode(), "application/json")

    def raw(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
