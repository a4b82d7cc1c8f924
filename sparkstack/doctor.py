"""What the doctor found: a line for each check of each host, as a table, as plain lines and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkstack.host_facts import CheckResult

Status = Literal["ok", "warning", "drift", "failed", "not checked"]
STYLES: dict[str, str] = {
    "ok": "green",
    "warning": "magenta",
    "drift": "yellow",
    "failed": "red",
    "not checked": "dim",
}


@dataclass(frozen=True)
class Line:
    """One check of one host. "drift" is what the next `deploy.py` would change, "warning" what is wrong and
    stops nothing; `stage` is the part of a run that the check belongs to."""

    host: str
    stage: str
    check: str
    status: Status
    found: str
    wanted: str = ""
    remedy: str = ""

    @classmethod
    def of_check(cls, result: CheckResult) -> Line:
        return cls(
            result.host,
            "preflight",
            result.name,
            result.status,
            result.found,
            result.wanted,
            result.remedy,
        )

    @classmethod
    def of_failure(cls, host: str, stage: str, check: str, text: str) -> Line:
        """From the one line in which an operation fails a host ("where: found A; wanted B; remedy"). Where it
        names what it is about (a file with its line), that is the check's name."""
        text = " ".join(text.split()).removeprefix(f"{host}: ").removeprefix(f"{stage}: ")
        form = r"(?:(?P<where>.+?): )?found (?P<found>.+?); wanted (?P<wanted>.+?)(?:; (?P<remedy>.+))?"
        parts = re.fullmatch(form, text)
        if parts is None:
            return cls(host, stage, check, "failed", text)
        said = parts["found"], parts["wanted"], parts["remedy"] or ""
        return cls(host, stage, parts["where"] or check, "failed", *said)

    def __str__(self) -> str:
        text = "; ".join(self.details)
        return " ".join(f"{self.host}: {self.stage}: {self.check}: {self.status}: {text}".split())

    @property
    def details(self) -> list[str]:
        """What was found, what was wanted, what to do; of a good check only what was found."""
        if self.status == "ok":
            return [self.found]
        parts = [f"found {self.found}", f"wanted {self.wanted}" if self.wanted else "", self.remedy]
        return [part for part in parts if part]


@dataclass
class Diagnosis:
    """All lines of a run. `when` is UTC (YYYYmmddTHHMMSSZ)."""

    when: str
    recipe: str
    release: str
    lines: list[Line] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing failed and nothing drifted. What was not checked is neither good nor bad: it is shown, as
        warnings are."""
        return not any(line.status in ("failed", "drift") for line in self.lines)

    def to_json(self) -> str:
        value = {"format": 1, "ok": self.ok, **asdict(self)}
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8")

    def summary(self) -> str:
        """One line: how many checks, and how they ended."""
        counts = [
            f"{sum(line.status == status for line in self.lines)} {status}"
            for status in ("ok", "drift", "failed", "not checked", "warning")
            if status != "warning" or any(line.status == status for line in self.lines)
        ]
        return f"{'healthy' if self.ok else 'not as declared'}: {', '.join(counts)}"

    def render(self, console: Console) -> None:
        """A table on a terminal, a line a check elsewhere. The good ones are counted, the others are said."""
        if console.is_terminal:
            table = Table(title=self._title)
            for name in ("host", "status", "check", "found, wanted, what to do"):
                # Folded, never cut: a reader copies paths and commands out of it.
                table.add_column(name, overflow="fold", no_wrap=name == "status")
            for line in self._told():
                table.add_row(
                    Text(line.host),
                    Text(line.status, STYLES[line.status]),
                    Text(f"{line.stage}: {line.check}"),
                    Text("\n".join(line.details)),
                )
            console.print()  # below what pyinfra's spinner has left on its line
            console.print(table)
        else:
            for line in self._told():
                console.print(Text(str(line)), soft_wrap=True, highlight=False)
        style = STYLES["ok" if self.ok else "failed"]
        console.print(Text(self.summary(), style), soft_wrap=True, highlight=False)

    @property
    def _title(self) -> str:
        return f"doctor {self.when}, recipe {self.recipe}"

    def _told(self) -> Iterable[Line]:
        """What is wrong first, then what was not checked, then how much of each stage is well."""
        for status in ("failed", "drift", "warning", "not checked"):
            yield from (line for line in self.lines if line.status == status)
        counts: dict[tuple[str, str], int] = {}
        for line in self.lines:
            if line.status == "ok":
                counts[line.host, line.stage] = counts.get((line.host, line.stage), 0) + 1
        for (host, stage), count in counts.items():
            checks = "1 check" if count == 1 else f"{count} checks"
            yield Line(host, stage, checks, "ok", "as declared")
