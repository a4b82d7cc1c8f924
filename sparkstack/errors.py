"""What a user reads when something cannot work: one line with where, what, what instead, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    `where` is a host, a file with its line, or a declaration; `remedy` is what the reader can do about it,
    and may be empty where `wanted` says it already.
    """

    where: str
    found: str
    wanted: str
    remedy: str = ""

    def __str__(self) -> str:
        parts = [f"found {self.found}", f"wanted {self.wanted}", self.remedy]
        line = f"{self.where}: " + "; ".join(part for part in parts if part)
        # Values come from files and hosts and may hold line breaks; a problem is one line whatever they hold.
        return " ".join(line.split())


class SparkstackError(Exception):
    """Raised with every problem that was found, or with one ready-made line.

    `str()` is one line a problem; `problems` is empty when a line was given.
    """

    def __init__(self, what: str | Problem | Iterable[Problem]) -> None:
        self.problems: list[Problem]
        if isinstance(what, str):
            self.problems, self.lines = [], [" ".join(what.split())]
        else:
            self.problems = [what] if isinstance(what, Problem) else list(what)
            self.lines = [str(problem) for problem in self.problems]
        super().__init__("\n".join(self.lines))
