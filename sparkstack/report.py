"""The report of a run: what changed, how long it took, where the endpoint is, and how fast it answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkstack.errors import Problem, SparkstackError
from sparkstack.units import seconds_text

Status = Literal["changed", "ok", "failed"]
LINK_STATUSES = ("ok", "failed", "not checked")
STYLES = {"changed": "yellow", "ok": "green", "failed": "bold red"}


@dataclass(frozen=True)
class Operation:
    """One operation on one host, and the seconds that it took."""

    stage: str
    host: str
    name: str
    status: Status
    seconds: float


@dataclass
class RunReport:
    """Filled while a run goes on, then written and shown. `when` is the run's start as the caller writes it;
    `links`, `collective`, `measurement` and `verdict` are as in docs/interfaces.md; `head` is the host that
    `endpoint` is on; `api_key` says whether it asks for one. `serving` is the release that answers there
    where it is another one than this run's `release`, with what was measured of it."""

    when: str
    recipe: str
    release: str
    operations: list[Operation] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
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
        self.operations.append(Operation(stage, host, name, status, seconds))

    @property
    def ok(self) -> bool:
        """Nothing failed, and the benchmark, where there was one, met what was expected."""
        failed = any(operation.status == "failed" for operation in self.operations)
        return not (failed or self.failures or (self.verdict and not self.verdict["ok"]))

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
        value = {"format": 1, "ok": self.ok, **asdict(self), "stages": self.stages()}
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "report") -> RunReport:
        """The report that `to_json` wrote. Errors: SparkstackError for any other text."""
        try:
            value = json.loads(text)
            if value.pop("format") != 1:
                raise ValueError("another format")
            operations = [Operation(**operation) for operation in value.pop("operations")]
            known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
            return cls(operations=operations, **known)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SparkstackError(
                Problem(where, f"no report ({error})", "a report of format 1", "run the deployment again")
            ) from error

    def write(self, path: Path) -> None:
        """Write the report to `path`, whose folder is made; from then on it knows where it lies."""
        self.path = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8")

    def render(self, console: Console) -> None:
        """Show the report: a table on a terminal, plain lines elsewhere."""
        rows = [self._row(stage) for stage in self.stages()]
        if console.is_terminal:
            table = Table("stage", "time", "what changed", title=f"run {self.when}, recipe {self.recipe}")
            for stage, seconds, what in rows:
                table.add_row(stage, seconds, what)
            console.print(table)
        else:
            _say(console, f"run {self.when}, recipe {self.recipe}")
            for stage, seconds, what in rows:
                _say(console, f"{stage:<12} {seconds:>10}  {what.plain}")
        for line in self._lines():
            _say(console, line)

    def _row(self, stage: str) -> tuple[str, str, Text]:
        # Hosts work side by side: the stage took as long as its slowest host.
        seconds = max(host["seconds"] for host in self.stages()[stage].values())
        what = Text()
        for status in ("failed", "changed"):
            hosts: dict[str, list[str]] = {}
            for operation in self.operations:
                if operation.stage == stage and operation.status == status:
                    hosts.setdefault(operation.name, []).append(operation.host)
            for name, on in hosts.items():
                what.append("; " if what else "")
                what.append(status, STYLES[status])
                what.append(f": {name} ({', '.join(dict.fromkeys(on))})")
        return stage, seconds_text(seconds), what or Text("nothing to do", STYLES["ok"])

    def _lines(self) -> Iterator[str]:
        for failure in self.failures:
            yield f"failed: {failure}"
        yield from _links((self.links or {}).get("lines", []) + (self.collective or {}).get("lines", []))
        if self.endpoint:
            yield f"endpoint: {self.endpoint} serves {self.model} (release {self.serving or self.release})"
            yield f"  {curl(self.endpoint, self.model or '', self.head, self.api_key)}"
        if self.serving is not None and self.measurement:
            yield f"release {self.release} of this run, which does not serve:"
        yield from _figures(self.measurement, self.verdict)
        if self.serving is not None:
            yield f"release {self.serving}, which serves:"
            yield from _figures(self.serving_measurement, self.serving_verdict)
            if not self.serving_measurement:
                yield "  not measured"
        if self.path:
            yield f"report: {self.path}"


def _figures(measurement: dict[str, Any] | None, verdict: dict[str, Any] | None) -> Iterator[str]:
    for point in (measurement or {}).get("points", []):
        ttft, decode = point["ttft_s"]["median"], point["decode_tok_s"]["median"]
        streams = f"{point['streams']} stream" + ("s" if point["streams"] != 1 else "")
        yield f"with {streams}: TTFT {_figure(ttft, 's')}, decode {_figure(decode, 'tok/s')}"
    for line in (verdict or {}).get("lines", []):
        expected = f", expected {line['expected']}" if line["expected"] else ""
        yield f"  {line['name']}: {_measured(line['measured'])}{expected}: {line['verdict']}"


def curl(endpoint: str, model: str, head: str | None = None, api_key: bool = False) -> str:
    """A command line that asks the endpoint something; through ssh where it listens on the head alone. A key
    is taken from the variable KEY of who runs it."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    url = endpoint.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    words = ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    line = shlex.join(words)
    if api_key:
        line = line.replace(" -d ", ' -H "Authorization: Bearer $KEY" -d ', 1)
    if head and urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        return shlex.join(["ssh", head, line])
    return line


def _links(lines: list[dict[str, Any]]) -> Iterator[str]:
    """How many checks of the links passed, and the figures; what failed has been said by then."""
    if not lines:
        return
    counts = {status: sum(line["status"] == status for line in lines) for status in LINK_STATUSES}
    yield "links: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    for line in lines:
        if line["status"] != "not checked" and line["wanted"].startswith("≥"):
            text = f"{line['host']}: {line['name']}: {line['found']}, wanted {line['wanted']}"
            yield f"  {text}: {line['status']}"


def _figure(value: float | None, unit: str) -> str:
    return "not measured" if value is None else f"{value:.3g} {unit}"


def _measured(value: Any) -> str:
    return "not measured" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(console: Console, line: str) -> None:
    # A line stays a line whatever the width: people copy the command out of it.
    console.print(Text(line), soft_wrap=True, highlight=False)
