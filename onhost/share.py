"""Gives a host's checkpoints and images to the other Sparks: HTTP with a token on the fabric's address.

`GET|HEAD /checkpoints/<id>/<path>` (ranges) for what a manifest names, `GET /images/<tag>` for a `docker
save`. A relay is itself receiving: files that it has not got yet are answered with 503 and `X-Not-Yet`.
"""

from __future__ import annotations

import hmac
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from onhost.docker_cli import ENVIRONMENT, check_tag, inspect_image
from onhost.plan import JobError, read_secret
from onhost.staging import manifest as manifests
from onhost.staging.fetch import RECEIVING
from onhost.staging.manifest import MANIFEST
from onhost.staging.ranged import NOT_YET

BLOCK = 1 << 20  # bytes of an image a chunk
IDLE = 120  # s after which a silent peer is let go


class Share(ThreadingHTTPServer):
    """The server. Each request must carry the token file's line, read anew: a later run may change it."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], token_file: Path, checkpoints: Path, relay: bool = False
    ) -> None:
        self.token_file = token_file
        self.checkpoints = checkpoints
        self.relay = relay
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection. Refusals say nothing about what exists until the token is right."""

    server: Share
    protocol_version = "HTTP/1.1"
    server_version = "onhost"
    sys_version = ""
    timeout = IDLE

    def do_GET(self) -> None:
        """Answers with a file, a range of it, or an image."""
        self._serve()

    def do_HEAD(self) -> None:
        """The same without a body."""
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """One short line a request in the journal; headers (the token) never."""
        print(f"{self.client_address[0]} {format % args}", file=sys.stderr)

    def _serve(self) -> None:
        if not self._allowed():
            self._refuse(HTTPStatus.UNAUTHORIZED)
            return
        path = unquote(urlsplit(self.path).path)
        try:
            if path.startswith("/checkpoints/"):
                id, _, name = path.removeprefix("/checkpoints/").partition("/")
                self._checkpoint(id, name)
            elif path.startswith("/images/"):
                self._image(path.removeprefix("/images/"))
            else:
                self._refuse(HTTPStatus.NOT_FOUND)
        except JobError as error:
            print(error, file=sys.stderr)
            self._refuse(HTTPStatus.NOT_FOUND)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the peer went away: it comes again with a range

    def _allowed(self) -> bool:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        try:
            wanted = read_secret(self.server.token_file)
        except JobError as error:
            print(error, file=sys.stderr)
            return False
        return scheme == "Bearer" and hmac.compare_digest(token.strip().encode(), wanted.encode())

    def _refuse(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _checkpoint(self, id: str, name: str) -> None:
        # Only finished checkpoints, and in them only names of the manifest: nothing else can be asked for.
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        folder = self._holder(id, name)
        if folder is None:
            # The first in a chain has not begun, or has not come to this file.
            if self.server.relay:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, {NOT_YET: "1", "Retry-After": "1"})
            else:
                self._refuse(HTTPStatus.NOT_FOUND)
            return
        try:
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        try:
            self._file(handle)
        finally:
            os.close(handle)

    def _holder(self, id: str, name: str) -> Path | None:
        """The folder that has the file; on a relay also the one that is being filled. JobError: none may."""
        folder = self.server.checkpoints / id
        partial = folder.with_name(f"{id}.partial")
        if not self.server.relay or (folder / MANIFEST).exists():
            if name != MANIFEST and name not in manifests.read(folder).files:
                raise JobError(f"found no {name} in the manifest of {id}; wanted one of its files; none")
            return folder
        receiving = partial / RECEIVING
        if not receiving.exists():
            return None
        if name not in manifests.parse(receiving.read_text(encoding="utf-8"), str(receiving)).files:
            raise JobError(f"found no {name} in the manifest of {id}; wanted one of its files; none")
        return partial if (partial / name).is_file() else None  # the fetcher moves only verified files there

    def _file(self, handle: int) -> None:
        size = os.fstat(handle).st_size
        try:
            span = parse_range(self.headers.get("Range"), size)
        except BeyondEnd:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
            return
        begin, end = (0, size) if span is None else span
        self.send_response(HTTPStatus.OK if span is None else HTTPStatus.PARTIAL_CONTENT)
        if span is not None:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
            sent = self.connection.sendfile(file, begin, end - begin) if end > begin else 0
        if sent != end - begin:
            self.close_connection = True  # the file shrank under us; the peer sees a short answer

    def _image(self, tag: str) -> None:
        found = inspect_image(check_tag(tag))
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("X-Image-Id", str(found["Id"]))
        self.send_header("X-Image-Size", str(found["Size"]))
        self.send_header("Content-Type", "application/x-tar")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.command == "HEAD":
            return
        command = ["docker", "save", tag]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=ENVIRONMENT) as process:
            assert process.stdout is not None
            try:
                buffer = memoryview(bytearray(BLOCK))
                while got := process.stdout.readinto(buffer):  # type: ignore[attr-defined]
                    self.wfile.write(b"%x\r\n" % got)
                    self.wfile.write(buffer[:got])
                    self.wfile.write(b"\r\n")
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            self.close_connection = True  # without the last chunk the peer knows that something is missing
        else:
            self.wfile.write(b"0\r\n\r\n")


class BeyondEnd(Exception):
    """A range that has no byte of the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """[begin, end) of a single byte range; None where the whole file is meant. BeyondEnd outside the file.

    Several ranges at once, or words that are not a range, count as no range, which HTTP allows.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", (header or "").strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        count = min(int(match[2]), size)
        if not count:
            raise BeyondEnd
        return size - count, size
    begin = int(match[1])
    end = min(int(match[2]) + 1, size) if match[2] else size
    if begin >= size:
        raise BeyondEnd
    return (begin, end) if begin < end else None


def main(binds: Sequence[str], port: int, token_file: Path, checkpoints: Path, relay: bool = False) -> int:
    """The command `share`: serves until it is stopped; 1 with a line where it cannot begin.

    Of several addresses those that this host does not have (now) are left out, as long as one remains.
    """
    servers = []
    try:
        read_secret(token_file)
    except JobError as error:
        print(error, file=sys.stderr)
        return 1
    for bind in binds:
        try:
            servers.append(Share((bind, port), token_file, checkpoints, relay))
        except OSError as error:
            print(
                f"found '{error.strerror}' on listening at {bind}:{port}; wanted the fabric's address and a "
                "free port; check the fabric",
                file=sys.stderr,
            )
        else:
            print(f"sharing {checkpoints} and images at http://{bind}:{port}", file=sys.stderr)
    if not servers:
        return 1
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
    with servers[0]:
        servers[0].serve_forever(0.2)
    return 0
