"""A Spark for tests of onhost: its folders, its plans, and runs of the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from making import revision_of

from lab.hub import Hub

ROOT = Path(__file__).resolve().parent.parent.parent
REPO = "org/tiny"


class Host:
    """A Spark's folders below a temporary one, and the command that runs there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs, self.checkpoints = root / "jobs", root / "checkpoints"
        self.downloads, self.home = root / "downloads", root / "home"
        for folder in (self.jobs, self.home):
            folder.mkdir(parents=True)

    def write_plan(self, kind: str, **keys: Any) -> Path:
        path = self.root / f"{kind}.json"
        path.write_text(
            json.dumps({"job": f"sparkstack-{kind}-1", "kind": kind, "jobs_dir": str(self.jobs), **keys})
        )
        return path

    def checkpoint_plan(self, hub: Hub, *transforms: dict[str, Any], **source: Any) -> Path:
        return self.write_plan(
            "checkpoint",
            id="abc123",
            source={"repo": REPO, "revision": revision_of(REPO), "endpoint": hub.url, **source},
            transforms=list(transforms),
            downloads_dir=str(self.downloads),
            checkpoints_dir=str(self.checkpoints),
        )

    def command(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "onhost", *arguments],
            cwd=ROOT,
            env={**os.environ, "HOME": str(self.home), **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, plan: Path) -> dict[str, Any]:
        """Runs a job in this process and returns its result."""
        from onhost import jobs

        status = jobs.main(str(plan))
        result = self.result(plan)
        assert status == (0 if result["ok"] else 1)
        return result

    def result(self, plan: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(plan) / "result.json").read_text())
        if not found["ok"]:
            assert "\n" not in found["error"]
            assert found["error"].startswith("found ") and found["error"].count("; ") >= 2, found["error"]
        return found

    def folder(self, plan: Path) -> Path:
        return self.jobs / str(json.loads(plan.read_text())["job"])

    def progress(self, plan: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder(plan) / "progress.jsonl").read_text().splitlines()]
