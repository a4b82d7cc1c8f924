"""How far long work is: moving bars on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from sparkstack.figures import HEADINGS
from sparkstack.units import bytes_text, seconds_text

WINDOW_S = 30.0
"""The rate is that of the last so many seconds: it follows a link that slows down, and does not flicker."""

ROWS = 12
"""A table of more would not fit under what a terminal shows already; the last ones are shown."""


@dataclass
class _Work:
    """One piece of work: where it is, and (time, done) of late."""

    stage: str
    began: float
    samples: deque[tuple[float, float]] = field(default_factory=deque)
    printed_at: float | None = None
    printed_end: bool = False
    bar: bars.TaskID | None = None

    def note(self, now: float, done: float) -> None:
        if self.samples and done < self.samples[-1][1]:
            self.samples.clear()  # a job that was begun anew
        self.samples.append((now, done))
        while self.samples[-1][0] - self.samples[0][0] > WINDOW_S and len(self.samples) > 2:
            self.samples.popleft()

    def rate(self) -> float | None:
        """Units a second; None as long as nothing moved."""
        (began, first), (now, last) = self.samples[0], self.samples[-1]
        return (last - first) / (now - began) if now > began and last > first else None


class _Bars(bars.Progress):
    """Bars, and above them a table of what there is so far."""

    rows: Sequence[tuple[str, ...]] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.rows:
            table = Table(*HEADINGS)
            for row in self.rows[-ROWS:]:
                table.add_row(*map(Text, row))
            yield table
        yield from super().get_renderables()


class Progress:
    """The display of one program. Several pieces of work, each with its label, may go on at a time and be
    reported from several threads. `interval_s` is the pause between two plain lines of one label."""

    def __init__(
        self,
        console: Console | None = None,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._interval, self._clock = interval_s, clock
        self._works: dict[str, _Work] = {}
        self._bars: _Bars | None = None
        self._tables: dict[str, int] = {}
        self._lock = threading.RLock()

    def task(self, stage: str, done: float, total: float | None, unit: str, note: str = "") -> None:
        """`update` for work that has no name but its stage."""
        self.update(stage, stage, done, total, unit, note)

    def update(
        self, label: str, stage: str, done: float, total: float | None, unit: str, note: str = ""
    ) -> None:
        """Say where the work `label` is. `unit` "B" is shown as sizes, "s" as time that passes; `total` is
        None where nobody knows it."""
        with self._lock:
            now = self._clock()
            work = self._works.get(label)
            changed = work is None or work.stage != stage
            if work is None:
                work = self._works[label] = _Work(stage, now)
            elif changed:
                work.stage, work.printed_end = stage, False
                work.samples.clear()
            work.note(now, done)
            figures = _figures(work, done, total, unit, note)
            heading = label if label == stage else f"{label}: {stage}"
            if self._console.is_terminal:
                self._draw(work, heading, done, total, figures)
            else:
                ended = total is not None and done >= total and not work.printed_end
                late = work.printed_at is None or now - work.printed_at >= self._interval
                if changed or ended or late:
                    self._print(f"{heading} {figures}".rstrip())
                    work.printed_at, work.printed_end = now, work.printed_end or ended

    def show(self, label: str, rows: Sequence[tuple[str, ...]]) -> None:
        """Figures that the work of `label` has so far, a row (of `figures.HEADINGS`) each: a table above the
        bars, or a line for each that is new."""
        with self._lock:
            known = self._tables.get(label, 0)
            known = known if known <= len(rows) else 0  # measured anew
            if self._console.is_terminal:
                if self._bars is not None:
                    self._bars.rows = [tuple(map(clean, row)) for row in rows]
            else:
                for row in rows[known:]:
                    said = [f"{what} {text}" for what, text in zip(HEADINGS, row, strict=True) if text]
                    self._print(f"{label}: {clean(', '.join(said))}")
            self._tables[label] = len(rows)

    def finish(self, label: str) -> None:
        """The work `label` has come to an end, good or bad: one line says how long it took."""
        with self._lock:
            work = self._works.pop(label, None)
            if work is None:
                return
            if self._bars is not None and work.bar is not None:
                self._bars.remove_task(work.bar)
            if not self._works:
                self.close()
            self._print(f"{label}: {seconds_text(self._clock() - work.began)} in all")

    def close(self) -> None:
        """Take the bars off the terminal; the next update brings them back."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None
            for work in self._works.values():
                work.bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self, work: _Work, heading: str, done: float, total: float | None, figures: str) -> None:
        if self._bars is None:
            self._bars = _Bars(
                bars.TextColumn("{task.description}", markup=False),
                bars.BarColumn(bar_width=24),
                bars.TextColumn("{task.fields[figures]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        if work.bar is None:
            work.bar = self._bars.add_task(heading, total=total, figures=figures)
        self._bars.update(work.bar, description=heading, completed=done, total=total, figures=figures)
        if total is None:
            self._bars._tasks[work.bar].total = None  # `update` takes None for "as it was"

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True, highlight=False)


def _figures(work: _Work, done: float, total: float | None, unit: str, note: str) -> str:
    """`1.2 GB of 4.0 GB, 30%, 12.3 MB/s, 3:50 min left, NOTE`: what is known of it."""
    parts = [_amount(done, total, unit)]
    if total:
        parts.append(f"{min(done / total, 1):.0%}")
    rate = work.rate()
    if rate is not None and unit != "s":  # seconds pass by one a second
        parts.append(f"{bytes_text(rate)}/s" if unit == "B" else f"{rate:.3g} {unit}/s")
        if total is not None and total > done:
            parts.append(f"{seconds_text((total - done) / rate)} left")
    return ", ".join(part for part in (*parts, clean(note)) if part)


def clean(text: str) -> str:
    """What comes from hosts, for a terminal: no line breaks, no control codes."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _amount(done: float, total: float | None, unit: str) -> str:
    if unit == "s":
        return seconds_text(done) + (f" of {seconds_text(total)}" if total is not None else "")
    if unit == "B":
        return bytes_text(done) + (f" of {bytes_text(total)}" if total is not None else "")
    return f"{done:g}" + (f" of {total:g}" if total is not None else "") + (f" {unit}" if unit else "")
