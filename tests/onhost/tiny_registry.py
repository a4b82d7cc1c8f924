"""The part of a registry that a pull by digest needs, on loopback (which Docker trusts without TLS)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def image_blobs(size: int) -> tuple[str, dict[str, bytes]]:
    """An image of one layer with one file of `size` random bytes: the manifest's digest, and all blobs."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        member = tarfile.TarInfo("noise")
        member.size = size
        archive.addfile(member, io.BytesIO(os.urandom(size)))
    layer = gzip.compress(tar.getvalue(), 1)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar.getvalue())]},
        }
    ).encode()

    def entry(kind: str, content: bytes) -> dict[str, object]:
        return {"mediaType": kind, "size": len(content), "digest": digest(content)}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": entry("application/vnd.docker.container.image.v1+json", config),
            "layers": [entry("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
        }
    ).encode()
    return digest(manifest), {digest(blob): blob for blob in (layer, config, manifest)}


@contextmanager
def registry(blobs: dict[str, bytes]) -> Iterator[str]:
    """Serves the blobs under any name; yields host:port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = blobs.get(self.path.rsplit("/", 1)[1])
            content = b"{}" if self.path == "/v2/" else known
            self.send_response(404 if content is None else 200)
            if "/manifests/" in self.path:
                self.send_header("Content-Type", MANIFEST)
            if known is not None:
                self.send_header("Docker-Content-Digest", digest(known))
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
