"""What a benchmark has measured so far: shown while it runs, and kept where it does not come to its end."""

from __future__ import annotations

import json
import shlex
from typing import Any

from sparkstack.figures import table_of
from tasks.remote import progress, shell

INTERRUPTED = "wanted the whole measurement; the report has what was measured until then; run again"
# A measurement is some tens of kilobytes; whatever else may stand there is not shown.
MOST_BYTES = 4_000_000


def read(host: Any, path: str) -> dict[str, Any] | None:
    """The measurement at `path` on the host; None where there is none, or it cannot be read."""
    ok, text = shell(host, f"head -c {MOST_BYTES} {shlex.quote(path)} 2>/dev/null || true")
    try:
        value = json.loads(text) if ok else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def table(host: Any, folder: str) -> None:
    """Show the points that the job in `folder` has so far (docs/interfaces.md: it keeps them there)."""
    found = read(host, f"{folder}/measurement.json")
    if found is not None:
        progress.show(host.name, table_of(found))


def partial(host: Any, folder: str) -> dict[str, Any] | None:
    """What the job in `folder`, which did not come to its end, has measured. It keeps every point there as
    not complete, and what an earlier run left there was removed when it began."""
    found = read(host, f"{folder}/measurement.json")
    return found if found is not None and found.get("complete") is False else None
