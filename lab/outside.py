"""What runs in the lab's outside container: registry (5000), hub (8080), files (8000).

Each of the three is needed: when one ends, so does the container, and `lab up` says what its log says.
Standard library only.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab.hub import Hub

REGISTRY = """\
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: /srv/registry}
  delete: {enabled: true}
http:
  addr: :5000
  headers: {X-Content-Type-Options: [nosniff]}
"""


class Files(SimpleHTTPRequestHandler):
    """A folder, with pages that list what is in it; pip reads those."""

    protocol_version = "HTTP/1.1"


def main() -> None:
    config = Path("/run/registry.yml")
    config.write_text(REGISTRY)
    hub = Hub(("0.0.0.0", 8080), Path("/srv/models"))
    files = ThreadingHTTPServer(("0.0.0.0", 8000), functools.partial(Files, directory="/srv/files"))
    for server in (hub, files):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    registry = subprocess.Popen(["docker-registry", "serve", str(config)])

    def end(*_: object) -> None:
        registry.terminate()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("registry :5000, hub :8080, files :8000", flush=True)
    sys.exit(f"docker-registry ended with {registry.wait()}")


if __name__ == "__main__":
    main()
