"""Answers 503 in the engine's place while the head waits, so that a client reads why and may try again."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import socket
import threading
from typing import Any

from onhost.plan import JobError

RETRY_SECONDS = 5
BODY_LIMIT = 1 << 20  # B of a request that are read before it is answered


class Unready:
    """Holds the port of the endpoint; `why` is what it answers. Errors: JobError where the port is taken."""

    def __init__(self, bind: str, port: int, why: str) -> None:
        self.why = why
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                # A client that still sends when the connection closes reads no answer.
                with contextlib.suppress(OSError, ValueError):
                    self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_LIMIT))
                error = {"message": outer.why, "type": "service_unavailable", "param": None, "code": 503}
                body = json.dumps({"error": error}).encode()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.send_response(503)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.send_header("Retry-After", str(RETRY_SECONDS))
                    self.send_header("Connection", "close")
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body)

            do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_GET

            def log_message(self, *words: Any) -> None:
                pass  # a client that tries again and again would fill the journal

        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *words: Any) -> None:
                pass  # a client that went away

            def server_bind(self) -> None:
                # Without the look-up of the host's name that http.server does here.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.socket.bind(self.server_address)
                self.server_address = self.socket.getsockname()

        try:
            self._server = Server((bind, port), Handler)
        except OSError as error:
            found = f"found {bind}:{port} not to be had ({error.strerror})"
            remedy = "see whether this host has the address: ip address"
            if error.errno == errno.EADDRINUSE:
                found = f"found {bind}:{port} taken"
                remedy = f"see who has it: ss -ltnp 'sport = :{port}'"
            raise JobError(f"{found}; wanted it free for the endpoint; {remedy}") from None
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Let the port go."""
        self._server.shutdown()
        self._server.server_close()
