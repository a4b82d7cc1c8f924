"""The plan of a run: what each stage keeps, changes or makes anew, what is fetched, whether serving stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkstack.doctor import Line
from sparkstack.releases import OnHost
from sparkstack.units import bytes_text, seconds_text

Verdict = Literal["keeps", "changes", "new", "fails", "asks"]
STYLES: dict[Verdict, str] = {
    "keeps": "green",
    "changes": "yellow",
    "new": "cyan",
    "fails": "bold red",
    "asks": "dim",
}
NOTHING = ("absent", "no ", "nothing", "inactive", "not installed", "not-found")
"""How a look at a host begins to say that there is none yet."""
DERIVED = ("--master-port", "--mount", "--name", "--env-file")
"""Words of a command that follow from the release itself or from another stage's part."""
NOT_KNOWN = "not known"
FETCHING = ("conda", "image", "checkpoint")
"""Stages that get something from outside whenever they change anything; `host` does for packages."""
SHOWN = 3


@dataclass(frozen=True)
class Step:
    """What a stage does. `fetch` is how many bytes it gets from outside (None: not known)."""

    stage: str
    verdict: Verdict
    text: str = ""
    fetch: int | None = 0


@dataclass(frozen=True)
class Plan:
    """All stages; `interrupts` says whether serving stops, `seconds` for how long (None: not known)."""

    recipe: str
    release: str
    steps: Sequence[Step] = field(default_factory=list)
    interrupts: bool = False
    seconds: float | None = None
    like: str = ""

    @property
    def fails(self) -> bool:
        return any(step.verdict == "fails" for step in self.steps)

    def summary(self) -> list[str]:
        """What is fetched, and what it means for those who use the endpoint."""
        known = sum(step.fetch or 0 for step in self.steps)
        unknown = [step.stage for step in self.steps if step.fetch is None]
        fetched = f"about {bytes_text(known)}" if known else "nothing"
        if unknown:
            more = f"for {' and '.join(unknown)} {NOT_KNOWN}"
            fetched = f"{fetched}, {more}" if known else more
        lines = [f"to fetch from outside: {fetched}"]
        if not self.interrupts:
            return [*lines, "serving: not interrupted"]
        how_long = NOT_KNOWN if self.seconds is None else f"about {seconds_text(self.seconds)}"
        return [
            *lines,
            f"serving: interrupted; for how long: {how_long}{f' ({self.like})' if self.like else ''}",
        ]

    def render(self, console: Console) -> None:
        """A table on a terminal, a line a stage elsewhere."""
        title = f"plan, recipe {self.recipe}, release {self.release}"
        if console.is_terminal:
            table = Table("stage", "", "what", title=title)
            for step in self.steps:
                table.add_row(step.stage, Text(step.verdict, STYLES[step.verdict]), Text(_what(step)))
            console.print(table)
        else:
            console.print(Text(title), soft_wrap=True, highlight=False)
            for step in self.steps:
                line = f"{step.stage:<12} {step.verdict:<8} {_what(step)}".rstrip()
                console.print(Text(line), soft_wrap=True, highlight=False)
        for line in self.summary():
            console.print(Text(line), soft_wrap=True, highlight=False)


def _what(step: Step) -> str:
    if not step.fetch:
        return step.text if step.fetch == 0 else f"{step.text}; bytes to fetch: {NOT_KNOWN}"
    return f"{step.text}; fetches about {bytes_text(step.fetch)}"


def of_lines(stage: str, lines: Iterable[Line]) -> Step:
    """A stage by what a look at the hosts found: `Line`s of the doctor, of all hosts."""
    lines = list(lines)
    failed = [line for line in lines if line.status == "failed"]
    if failed:
        text = "; ".join(dict.fromkeys(str(line) for line in failed))
        return Step(stage, "fails", text, None if stage in FETCHING else 0)
    drifts = [line for line in lines if line.status == "drift"]
    if not drifts:
        return Step(stage, "keeps")
    things: dict[str, list[str]] = {}
    for line in drifts:
        things.setdefault(_change(line), []).append(line.host)
    hosts = {line.host for line in lines}
    texts = [
        text + ("" if set(on) == hosts else f" ({', '.join(dict.fromkeys(on))})")
        for text, on in things.items()
    ]
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    # "absent, or of another kind" is no word on which of the two it is.
    new = all(line.found.startswith(NOTHING) and ", or" not in line.found for line in drifts)
    fetches = stage in FETCHING or any(line.check.startswith("package ") for line in drifts)
    return Step(stage, "new" if new else "changes", "; ".join(texts[:SHOWN]) + more, None if fetches else 0)


def _change(line: Line) -> str:
    if line.found.startswith("that ") and line.found.endswith(" would run"):
        return line.check
    return (
        f"{line.check} from {line.found} to {line.wanted}" if line.wanted else f"{line.check}: {line.found}"
    )


def words(argv: Sequence[Any]) -> dict[str, str]:
    """The options of a command by their flag, values joined; what stands before the first has the flag ""."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in map(str, argv):
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.setdefault(flag, []).extend([value] if equals else [])
        else:
            found.setdefault(flag, []).append(word)
    return {flag: " ".join(values) for flag, values in found.items()}


def differences(now: Mapping[str, Any], wish: Mapping[str, Any]) -> list[str]:
    """What differs between two releases (their release.json), as "X from A to B". Values of the environment
    are not told, only their names."""
    result = []
    for key, name in (
        ("recipe", "recipe"),
        ("image", "image"),
        ("checkpoint", "checkpoint"),
        ("hosts", "hosts"),
    ):
        result += _changed(name, _text(now.get(key)), _text(wish.get(key)))
    result += _changed("revision", _revision(now), _revision(wish))
    before, after = words(now.get("argv") or []), words(wish.get("argv") or [])
    images = {str(now.get("image")), str(wish.get("image"))}
    for flag in dict.fromkeys([*before, *after]):
        if flag in DERIVED or not flag:
            continue
        # The image stands behind the last of Docker's options; it is told already.
        old, new = (
            None if flag not in side else " ".join(w for w in side[flag].split(" ") if w not in images)
            for side in (before, after)
        )
        result += _changed(flag, old, new)
    env_before, env_after = now.get("env") or {}, wish.get("env") or {}
    for name in sorted({*env_before, *env_after}):
        if name not in env_before:
            result.append(f"env {name} is new")
        elif name not in env_after:
            result.append(f"env {name} goes")
        elif env_before[name] != env_after[name]:
            result.append(f"env {name} has another value")
    result += _changed(
        "ready_timeout_s", _text(now.get("ready_timeout_s")), _text(wish.get("ready_timeout_s"))
    )
    return result


def _text(value: Any) -> str | None:
    return ", ".join(map(str, value)) if isinstance(value, list) else None if value is None else str(value)


def _revision(about: Mapping[str, Any]) -> str | None:
    source = about.get("source")
    return f"{source.get('repo')}@{source.get('revision')}" if isinstance(source, Mapping) else None


def _changed(name: str, old: str | None, new: str | None) -> list[str]:
    if old == new:
        return []
    if old is None:
        return [f"{name} {new}".rstrip() + " is new"]
    if new is None:
        return [f"{name} goes"]
    return [f"{name} from {old or 'on'} to {new or 'on'}"]


def in_place_of(step: Step, kept: OnHost, wish: str) -> Step:
    """The step of an image or a checkpoint (`wish`), told as a change where the release that serves has
    another one. That one stays where it is, to go back to."""
    now = kept.releases.get(kept.current or "")
    before = now.about.get(step.stage) if now else None
    if step.verdict != "new" or not before or before == wish:
        return step
    rest = step.text.removeprefix(wish)
    return replace(step, verdict="changes", text=f"{step.stage} from {before} to {wish}{rest}")


def serve_step(
    wish: Mapping[str, Any], kept: OnHost, serves: bool, refused: str | None, env_changes: bool
) -> Step:
    """What activation does. `serves`: this very release serves on all ranks now; `env_changes`: the fabric's
    names on a rank change, with which it must be started anew."""
    release = str(wish.get("release"))
    if refused:
        return Step("serve", "fails", refused)
    if kept.current is None:
        return Step("serve", "new", f"release {release}")
    if kept.current == release:
        if serves and not env_changes:
            return Step("serve", "keeps", f"release {release}")
        why = "the fabric's names change" if env_changes else "it does not serve on every rank now"
        return Step("serve", "changes", f"starts release {release} again: {why}")
    now = kept.releases.get(kept.current)
    parts = differences(now.about, wish) if now else []
    told = "; ".join(parts) or "what systemd and the ready check are told"
    return Step("serve", "changes", f"release from {kept.current} to {release}: {told}")


def interruption(kept: OnHost, release: str) -> tuple[float | None, str]:
    """How long an activation keeps serving down, by past ones: this release's own, else the newest; and
    which one that was."""
    mine = kept.releases.get(release)
    if mine is not None and mine.history.start_seconds is not None:
        return mine.history.start_seconds, "the last start of this release"
    past = [
        (str((one.history.served or {}).get("when")), name, one.history.start_seconds)
        for name, one in kept.releases.items()
        if one.history.start_seconds is not None
    ]
    if not past:
        return None, ""
    _, name, seconds = max(past)
    return seconds, f"as the last start of release {name}"
