"""What `sparkstack recipe check` says about a recipe: a problem, how grave it is, why, and who says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sparkstack.errors import Problem

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing about a recipe.

    An error is a mistake of the recipe. A warning is not, but may still be something that `deploy` refuses
    (`blocks`): a pin that is missing, or what is asked and not made yet. `code` names the check and stays
    the same when the words change.
    """

    problem: Problem
    severity: Severity
    code: str
    blocks: bool = False
    reason: str = ""
    source: str = ""

    @property
    def refused(self) -> bool:
        """Does this alone keep the recipe from being deployed?"""
        return self.blocks or self.severity == "error"

    @property
    def line(self) -> int:
        """The line in the recipe's file; 0 when it is about the file as a whole."""
        tail = self.problem.where.rpartition(":")[2]
        return int(tail) if tail.isdigit() else 0

    def __str__(self) -> str:
        where = self.problem.where
        text = str(self.problem).removeprefix(f"{where}: ")
        because = "; ".join(part for part in (self.reason, self.source and f"source: {self.source}") if part)
        return f"{where}: {self.severity}: {text}" + (f" ({because})" if because else "")

    def as_dict(self, path: str) -> dict[str, Any]:
        """For `--json`; `line` is null when the finding is about the file as a whole."""
        return {
            "file": path,
            "line": self.line or None,
            "severity": self.severity,
            "code": self.code,
            "blocks_deploy": self.refused,
            "found": self.problem.found,
            "wanted": self.problem.wanted,
            "remedy": self.problem.remedy,
            "reason": self.reason,
            "source": self.source,
            "text": str(self),
        }


def error(code: str, where: str, found: str, wanted: str, remedy: str = "", **why: str) -> Finding:
    return Finding(Problem(where, found, wanted, remedy), "error", code, **why)  # type: ignore[arg-type]


def warning(code: str, where: str, found: str, wanted: str, remedy: str = "", **why: str) -> Finding:
    return Finding(Problem(where, found, wanted, remedy), "warning", code, **why)  # type: ignore[arg-type]


def unsupported(code: str, where: str, found: str, wanted: str, remedy: str = "") -> Finding:
    """What the recipe may well ask and we cannot do: no mistake, but not deployed either."""
    return Finding(Problem(where, found, wanted, remedy), "warning", code, blocks=True)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By line, each once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line)
