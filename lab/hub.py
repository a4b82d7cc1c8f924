"""A stand-in for the Hugging Face hub: the part of its API that the real client needs to fetch models.

`python3 -m lab.hub FOLDER [--host H] [--port P]`, or `serve()` in a test; FOLDER is a `hub_store.Store`.
Model info, refs, tree (in pages), paths-info, resolve with redirects for LFS objects, ranges, gated
repositories. For tests: `POST /__faults` arms a fault (`faults.Fault`), `DELETE` clears them, `GET` lists
them; `GET /__requests` is the log and `DELETE` empties it.

Standard library only: this runs inside the lab's outside container.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from lab.faults import Fault, Faults, Requests
from lab.hub_store import Entry, Store, folders

API = re.compile(
    r"^/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<call>revision|refs|tree|paths-info)(?:/(?P<rest>.*))?)?$"
)
RESOLVE = re.compile(r"^/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)$")
OBJECT = re.compile(r"^/__objects/(?P<repo>[^/]+/[^/]+)/(?P<sha256>[0-9a-f]{64})/(?P<path>.+)$")
RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")
BLOCK = 1 << 16


class Refusal(Exception):
    """An error answer: status, the hub's error code, its message, further headers."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


class Hub(ThreadingHTTPServer):
    """The server: `store`, `faults` and `requests` are for tests to look at."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], root: Path, page: int = 50) -> None:
        self.store, self.faults, self.requests = Store(root), Faults(), Requests()
        self.page = page
        self.data_url: str | None = None  # where large files are said to lie; None: here
        self.closing = threading.Event()
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def stop(self) -> None:
        """Ends stalled answers too."""
        self.closing.set()
        self.shutdown()
        self.server_close()


def serve(directory: Path, host: str = "127.0.0.1", port: int = 0, page: int = 50) -> Hub:
    """A hub over `directory` in a thread of its own; end it with `stop()`."""
    hub = Hub((host, port), directory, page)
    threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True, name="lab-hub").start()
    return hub


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    server_version = "sparkstack-lab-hub"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr: `/__requests` is the log."""

    def _answer(self) -> None:
        self.sent, self.status = 0, 0
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        split = urlsplit(self.path)
        path, query = unquote(split.path), parse_qs(split.query)
        if path in ("/__faults", "/__requests"):
            self._control(path)
            return
        try:
            if fault := self.server.faults.take(self.command, path, body=False):
                raise Refusal(fault.status, "", f"lab fault: status {fault.status}", fault.headers)
            self._route(path, split.path, query)
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message, **refusal.headers}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self._json({"error": refusal.message}, refusal.status, headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.server.requests.add(self.command, path, self.headers.get("Range"), self.status, self.sent)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer

    def _route(self, path: str, raw: str, query: dict[str, list[str]]) -> None:
        if found := API.match(raw):
            self._api(unquote(found["repo"]), found["call"] or "", found["rest"] or "", query)
        elif found := RESOLVE.match(raw):
            self._resolve(unquote(found["repo"]), unquote(found["revision"]), unquote(found["path"]))
        elif found := OBJECT.match(path):
            entry = self.server.store.entry(found["repo"], found["path"])
            if entry is None or entry.sha256 != found["sha256"]:
                raise Refusal(404, "", "no such object")
            # On the same host, so the client follows its HEAD to here and wants the hub's headers here too.
            commit = {"X-Repo-Commit": self.server.store.revision(found["repo"]) or ""}
            self._file(entry, path, {**commit, **_linked(entry), "ETag": f'"{entry.etag}"'})
        elif path == "/api/whoami-v2":
            if self._token() is None:
                raise Refusal(401, "", "Invalid username or password.")
            self._json({"type": "user", "name": "lab", "fullname": "lab", "orgs": []})
        else:
            raise Refusal(404, "", f"not in the lab's hub: {path}")

    def _api(self, repo: str, call: str, rest: str, query: dict[str, list[str]]) -> None:
        store = self.server.store
        revision, _, below = rest.partition("/")
        sha = self._commit(repo, "main" if call in ("", "refs") else unquote(revision))
        below = unquote(below)
        if call in ("", "revision"):
            entries = store.entries(repo)
            self._json(_info(repo, sha, entries, _true(query, "blobs"), store.gated(repo)))
        elif call == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": sha}
            self._json({"branches": [main], "tags": [], "converts": []})
        elif call == "tree":
            listed = folders(store.entries(repo), below, _true(query, "recursive"))
            if below and not listed:
                raise Refusal(404, "EntryNotFound", f"{below} does not exist on {revision!r}")
            start = int(query.get("cursor", ["0"])[0])
            limit = min(int(query.get("limit", ["1000"])[0]), self.server.page)
            headers = {}
            if start + limit < len(listed):
                asked = {key: values[0] for key, values in query.items()}
                more = urlencode(asked | {"cursor": str(start + limit)})
                headers["Link"] = f'<{self._base()}{urlsplit(self.path).path}?{more}>; rel="next"'
            self._json(listed[start : start + limit], headers=headers)
        else:
            wanted = set(self._posted().get("paths", []))
            listed = folders(store.entries(repo), "", recursive=True)
            self._json([one for one in listed if one["path"] in wanted])

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        sha = self._commit(repo, revision)
        if self.server.store.access(repo, self._token()) == "gated":
            message = f"Access to model {repo} is restricted. You must have access to it and be logged in."
            raise Refusal(401 if self._token() is None else 403, "GatedRepo", message)
        commit = {"X-Repo-Commit": sha}
        entry = self.server.store.entry(repo, path)
        if entry is None:
            raise Refusal(404, "EntryNotFound", "Entry not found", commit)
        if not entry.lfs:
            self._file(entry, unquote(urlsplit(self.path).path), {**commit, "ETag": f'"{entry.etag}"'})
            return
        where = f"{self.server.data_url or self._base()}/__objects/{repo}/{entry.sha256}/{quote(path)}"
        self._send(302, {**commit, **_linked(entry), "Location": where, "Content-Length": "0"})

    def _commit(self, repo: str, revision: str) -> str:
        """The revision's full name; refuses as the hub does where repository or revision is unknown."""
        if self.server.store.access(repo, self._token()) == "invalid":
            raise Refusal(401, "", "Invalid credentials in Authorization header")
        sha = self.server.store.revision(repo)
        if sha is None:
            status = 401 if self._token() is None else 404
            raise Refusal(status, "RepoNotFound", "Repository not found")
        if revision not in (sha, "main", "refs/heads/main"):
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def _file(self, entry: Entry, path: str, headers: dict[str, str]) -> None:
        """Sends a file or the range of it that was asked for, with a fault where one is armed."""
        start, end, status = 0, entry.size, 200
        asked = RANGE.match(self.headers.get("Range") or "")
        if asked and self.headers.get("If-Range") in (None, headers["ETag"]):
            first, last = asked[1], asked[2]
            start = int(first) if first else max(0, entry.size - int(last or 0))
            end = min(entry.size, int(last) + 1) if first and last else entry.size
            if start >= end:
                raise Refusal(416, "", "range not satisfiable", {"Content-Range": f"bytes */{entry.size}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size}"
        headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - start)}
        headers["Content-Type"] = "application/octet-stream"
        self._send(status, headers)
        if self.command == "GET":
            fault = self.server.faults.take("GET", path, body=True)
            with entry.file.open("rb") as stream:
                stream.seek(start)
                if fault is None:
                    self.sent += self.connection.sendfile(stream, start, end - start) if end > start else 0
                else:
                    self._faulty(stream.read(end - start), fault)

    def _faulty(self, data: bytes, fault: Fault) -> None:
        if fault.kind == "corrupt" and data:
            at = min(fault.after_bytes, len(data) - 1)
            self._write(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        elif fault.kind == "slow":
            block = max(1, min(BLOCK, fault.bytes_per_second // 10))
            for offset in range(0, len(data), block):
                self._write(data[offset : offset + block])
                if self.server.closing.wait(block / fault.bytes_per_second):
                    break
        else:
            self._write(data[: fault.after_bytes])
            if fault.kind == "stall":
                self.server.closing.wait(fault.seconds)
            self.close_connection = True

    def _control(self, path: str) -> None:
        held = self.server.faults if path == "/__faults" else self.server.requests
        try:
            if self.command == "POST" and path == "/__faults":
                self.server.faults.arm(json.loads(self.body))
            elif self.command == "DELETE":
                held.clear()
        except (TypeError, ValueError) as error:
            self._json({"error": str(error)}, 400)
            return
        self._json(held.listed())

    def _posted(self) -> dict[str, list[str]]:
        if "json" in (self.headers.get("Content-Type") or ""):
            return dict(json.loads(self.body))
        return parse_qs(self.body.decode())

    def _token(self) -> str | None:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" and token.strip() else None

    def _base(self) -> str:
        return f"http://{self.headers.get('Host') or self.server.url.removeprefix('http://')}"

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._send(status, {**kind, **(headers or {})})
        if self.command == "HEAD":
            return
        path = unquote(urlsplit(self.path).path)
        fault = self.server.faults.take("GET", path, body=True) if path.startswith("/api/") else None
        if fault is None:
            self._write(body)
        else:
            self._faulty(body, fault)

    def _send(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.sent += len(data)


def _linked(entry: Entry) -> dict[str, str]:
    return {"X-Linked-Size": str(entry.size), "X-Linked-Etag": f'"{entry.etag}"'}


def _true(query: dict[str, list[str]], key: str) -> bool:
    return query.get(key, [""])[0].lower() in ("true", "1")


def _info(repo: str, sha: str, entries: list[Entry], blobs: bool, gated: bool) -> dict[str, Any]:
    siblings: list[dict[str, Any]] = []
    for entry in entries:
        one: dict[str, Any] = {"rfilename": entry.path}
        if blobs:
            one |= {"size": entry.size, "blobId": entry.git_sha1}
            if entry.lfs:
                one["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": 134}
        siblings.append(one)
    day = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(0))
    return {
        "_id": sha[:24], "id": repo, "modelId": repo, "author": repo.split("/")[0], "sha": sha,
        "private": False, "gated": "manual" if gated else False, "disabled": False, "downloads": 0,
        "likes": 0, "tags": [], "createdAt": day, "lastModified": day, "siblings": siblings,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.hub", description="The lab's stand-in for the hub.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    Hub((arguments.host, arguments.port), arguments.folder).serve_forever()


if __name__ == "__main__":
    main()
