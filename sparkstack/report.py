"""The report of a run: what was deployed, what changed, how long it took, and how fast it answers.

`reports/<UTC time>-<inventory>/report.json` is this model (docs/report.schema.json); `report_text` shows it
on a terminal, `report_page` as one HTML file beside it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from sparkstack.endpoint import is_loopback
from sparkstack.errors import Problem, SparkstackError

FORMAT = 2

Status = Literal["changed", "ok", "failed"]
Result = Literal["pass", "fail", "baseline", "inconclusive", "not measured"]


class Operation(BaseModel):
    """One operation on one host, and the seconds that it took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    host: str
    name: str
    status: Status
    seconds: float


class HostSeen(BaseModel):
    """A host of the run; the first one is the head. `versions`: what it said of itself, name by name."""

    model_config = ConfigDict(extra="forbid")

    name: str
    address: str = ""
    versions: dict[str, str] = Field(default_factory=dict)


class RunReport(BaseModel):
    """Filled while a run goes on, then written and shown.

    `when` is the run's start (UTC, YYYYmmddTHHMMSSZ), `seconds` how long it went on. `links`, `collective`,
    `measurement` and `verdict` are as in docs/interfaces.md; `head` is the host that `endpoint` is on.
    `serving` is the release that answers there where it is another one than this run's `release`, with what
    was measured of it. `deployed` is what the release was made of (release.json without command and
    environment), `versions` what the controller ran.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=False)

    format: Literal[2] = 2
    kind: Literal["deploy", "rollback", "bench"] = "deploy"
    when: str
    seconds: float | None = None
    inventory: str = ""
    recipe: str
    release: str
    hosts: list[HostSeen] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    deployed: dict[str, Any] | None = None
    operations: list[Operation] = Field(default_factory=list)
    failures: list[str] = Field(default_factory=list)
    endpoint: str | None = None
    head: str | None = None
    model: str | None = None
    api_key: bool = False
    links: dict[str, Any] | None = None
    collective: dict[str, Any] | None = None
    measurement: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    serving: str | None = None
    serving_measurement: dict[str, Any] | None = None
    serving_verdict: dict[str, Any] | None = None
    path: str | None = None

    def add(self, stage: str, host: str, name: str, status: Status, seconds: float) -> None:
        """Note how an operation ended on a host."""
        self.operations.append(
            Operation(stage=stage, host=host, name=name, status=status, seconds=round(seconds, 3))
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Nothing failed, and the benchmark, where there was one, met what was expected."""
        failed = any(operation.status == "failed" for operation in self.operations)
        return not (failed or self.failures or (self.verdict and not self.verdict.get("ok")))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def result(self) -> Result:
        """How the measurement was judged."""
        return result_of(self.verdict)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def stages(self) -> dict[str, dict[str, dict[str, float]]]:
        """stage → host → {"changed", "ok", "failed" (operations), "seconds"}, in the order of the run."""
        table: dict[str, dict[str, dict[str, float]]] = {}
        for operation in self.operations:
            empty: dict[str, float] = {"changed": 0, "ok": 0, "failed": 0, "seconds": 0.0}
            host = table.setdefault(operation.stage, {}).setdefault(operation.host, empty)
            host[operation.status] += 1
            host["seconds"] = round(host["seconds"] + operation.seconds, 3)
        return table

    def to_json(self) -> str:
        """The report as text; `from_json` reads it."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "report") -> RunReport:
        """The report that `to_json` wrote, of this format or the one before. Errors: SparkstackError for any
        other text."""
        try:
            value = json.loads(text)
            if value.pop("format") not in (1, FORMAT):
                raise ValueError("another format")
            for computed in ("ok", "result", "stages"):
                value.pop(computed, None)
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = str(error)
        raise SparkstackError(
            Problem(where, f"no report ({why})", "a report of format 1 or 2", "run the deployment again")
        )

    def write(self, path: Path) -> None:
        """Write the report to `path`, whose folder is made; from then on it knows where it lies."""
        self.path = str(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            # Half a character, which an answer may hold, becomes JSON's own escape.
            new.write_text(self.to_json(), encoding="utf-8", errors="backslashreplace")
            new.replace(path)
        except OSError:
            self.path = None
            raise


def result_of(verdict: dict[str, Any] | None) -> Result:
    """`result` of a verdict of either format; "not measured" for none."""
    if not verdict:
        return "not measured"
    result = verdict.get("result")
    if result in ("pass", "fail", "baseline", "inconclusive"):
        return result  # type: ignore[no-any-return]
    if not verdict.get("ok"):
        return "fail"
    lines = verdict.get("lines") or []
    met = any(line.get("verdict") == "pass" and line.get("name") != "sane" for line in lines)
    return "pass" if met else "baseline"


def curl(endpoint: str, model: str, head: str | None = None, api_key: bool = False) -> str:
    """A command line that asks the endpoint something; through ssh where it listens on the head alone. A key
    is taken from the variable KEY of who runs it."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    url = endpoint.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    words = ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    line = shlex.join(words)
    if api_key:
        line = line.replace(" -d ", ' -H "Authorization: Bearer $KEY" -d ', 1)
    if head and is_loopback(urlsplit(url).hostname or ""):
        return shlex.join(["ssh", head, line])
    return line


def changes(report: RunReport, stage: str) -> Iterator[tuple[Status, str, list[str]]]:
    """What failed and what changed in a stage: (status, operation, hosts)."""
    for status in ("failed", "changed"):
        hosts: dict[str, list[str]] = {}
        for operation in report.operations:
            if operation.stage == stage and operation.status == status:
                hosts.setdefault(operation.name, []).append(operation.host)
        for name, on in hosts.items():
            yield status, name, list(dict.fromkeys(on))


def seconds_of(report: RunReport, stage: str) -> float:
    """Hosts work side by side: a stage took as long as its slowest host."""
    return max(host["seconds"] for host in report.stages[stage].values())


def link_lines(report: RunReport) -> list[dict[str, Any]]:
    """The checks of the links and of NCCL, in one list."""
    found: list[dict[str, Any]] = []
    for part in (report.links, report.collective):
        found += (part or {}).get("lines", [])
    return found
