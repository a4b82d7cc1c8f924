"""The releases that hosts keep: which one served before, which one may not come back, which ones can go.

A release's folder has what every start of it needs (`release.json` says what that is), a link `previous` to
the release that it replaced, and on the head `history.json`. `activation.json` on the head stands while an
activation is under way: whoever was cut off there is continued by the next run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkstack.errors import Problem
from sparkstack.release import content_id
from sparkstack.units import seconds_text

Kind = Literal["deploy", "rollback", "return"]
FORMAT = 2


@dataclass(frozen=True)
class Activation:
    """`kind` of it, the release that shall serve, and the one to go back to where it does not."""

    kind: Kind
    to: str
    back: str | None = None

    @property
    def home(self) -> str | None:
        """What serves once it is given up: a deployment is turned round, a way back is gone to its end."""
        return self.back if self.kind == "deploy" else self.to

    def as_dict(self) -> dict[str, Any]:
        return {"format": 1, "kind": self.kind, "to": self.to, "back": self.back}

    @classmethod
    def read(cls, value: Any) -> Activation | None:
        """What the file holds, None for what is not one: then nothing is known to be under way."""
        if not isinstance(value, Mapping) or not isinstance(value.get("to"), str):
            return None
        kind = value.get("kind")
        back = value.get("back")
        return cls(
            kind if kind in ("rollback", "return") else "deploy",
            value["to"],
            back if isinstance(back, str) else None,
        )


@dataclass(frozen=True)
class History:
    """What a release went through. `served`: `{"when", "seconds"}` of its last start, seconds from the stop
    of what served before to its first completion. `passed`: when it first met its expectations. `failed`:
    `{"when", "reason": "not ready" | "gate" | "rolled back", "why"}`, and it is not activated again unasked.
    """

    served: Mapping[str, Any] | None = None
    passed: str | None = None
    failed: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"format": 1, "served": self.served, "passed": self.passed, "failed": self.failed}

    @classmethod
    def read(cls, value: Any) -> History:
        if not isinstance(value, Mapping):
            return cls()
        served, passed, failed = (value.get(key) for key in ("served", "passed", "failed"))
        return cls(
            served if isinstance(served, Mapping) else None,
            passed if isinstance(passed, str) else None,
            failed if isinstance(failed, Mapping) else None,
        )

    @property
    def start_seconds(self) -> float | None:
        seconds = (self.served or {}).get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) else None


@dataclass(frozen=True)
class Kept:
    """A release on one host: `about` is its release.json, `activated` the time (epoch s) of its last
    activation there (0: never), `previous` the release that it replaced."""

    about: Mapping[str, Any]
    activated: int = 0
    previous: str | None = None
    history: History = History()

    @property
    def world(self) -> int:
        world = self.about.get("world")
        return world if isinstance(world, int) and world > 0 else 1

    @property
    def hosts(self) -> list[str] | None:
        hosts = self.about.get("hosts")
        return list(map(str, hosts)) if isinstance(hosts, list) else None


@dataclass(frozen=True)
class OnHost:
    """What one host keeps. `under_way` is read on the head only."""

    current: str | None = None
    releases: Mapping[str, Kept] = field(default_factory=dict)
    under_way: Activation | None = None


def before(head: OnHost, wish: str) -> str | None:
    """The release to go back to when `wish` does not serve; None when there is none on the head.

    A release that failed, or whose own activation never came to its end, is none to go back to.
    """
    way, current = head.under_way, head.current
    candidates: list[str | None] = []
    if way is not None:
        candidates += [way.back] if way.to == wish or way.kind == "deploy" else [way.to]
    settled = way is None or (way.kind == "deploy" and way.to != current)
    if current is not None and current != wish and settled:
        kept = head.releases.get(current)
        if kept is not None and kept.history.failed is None:
            candidates.insert(0 if way is None or way.to != wish else 1, current)
    for here in (current, wish):
        kept = head.releases.get(here or "")
        candidates.append(kept.previous if kept else None)
    for candidate in candidates:
        name = candidate or ""
        if name and name != wish and name in head.releases and not head.releases[name].history.failed:
            return name
    return None


def on_trial(head: OnHost, release: str) -> bool:
    """Does this release serve without ever having met what was expected of it? Only such a one is taken back
    for its figures: of what passed once it is the expectation that has changed."""
    mine = head.releases.get(release)
    return head.current == release and mine is not None and mine.history.passed is None


def rollback_target(head: OnHost) -> str | Problem:
    """The release that `rollback=yes` activates: the one before the current one. An activation that was cut
    off is taken back; a rollback or return that was cut off is brought to its end."""
    way = head.under_way
    serving: str | None
    if way is not None:
        name, serving = way.home, way.to
    else:
        kept = head.releases.get(head.current or "")
        name, serving = (kept.previous if kept else None), head.current
    where = "rollback"
    if serving is None:
        return Problem(where, "no release on the head", "one to go back from", "deploy first")
    if name is None:
        return Problem(
            where, f"no release before {serving}", "one to go back to", "deploy another recipe instead"
        )
    if name not in head.releases:
        found = f"release {name}, the one before {serving}, is not on the head any more"
        return Problem(where, found, "its folder", "deploy its recipe instead")
    return name


def misfit(name: str, kept: Kept, hosts: Sequence[str]) -> Problem | None:
    """Why a kept release cannot be activated on these hosts of an inventory (in order); None: it can."""
    were = kept.hosts
    if were is None:
        found = None if kept.world <= len(hosts) else f"release {name} of {kept.world} hosts"
    else:
        found = None if list(hosts[: len(were)]) == were else f"release {name} of {', '.join(were)}"
    if found is None:
        return None
    return Problem(
        "release", found, f"one of {', '.join(hosts)}", "use the inventory that it was deployed with"
    )


def collected(hosts: Sequence[OnHost], keep: int, wish: str | None = None) -> list[str]:
    """The releases that may go, oldest first: all but the newest `keep` by last activation.

    What is current or previous on any host, wished for, or part of an activation under way stays whatever
    its age. The head is first; its times count.
    """
    stay = {wish} if wish else set()
    for one in hosts:
        stay.add(one.current or "")
        kept = one.releases.get(one.current or "")
        stay.add((kept.previous if kept else None) or "")
        if one.under_way is not None:
            stay |= {one.under_way.to, one.under_way.back or ""}
    times: dict[str, int] = {}
    for one in hosts:
        for name, kept in one.releases.items():
            times.setdefault(name, kept.activated)
    newest = sorted(times, key=lambda name: (name in stay, times[name]), reverse=True)
    return [name for name in reversed(newest[keep:]) if name not in stay]


@dataclass(frozen=True)
class Leftovers:
    """What nothing needs once some releases are gone from a host: image tags, base images that were pulled
    for them, checkpoint ids, and (repository, revision) of downloads."""

    images: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    downloads: list[tuple[str, str]] = field(default_factory=list)


def leftovers(one: OnHost, gone: Sequence[str], also_needed: Sequence[Mapping[str, Any]] = ()) -> Leftovers:
    """What the releases `gone` needed on a host and no other one there does.

    `also_needed` are further release.json contents (that of the release this run wishes). What never was part
    of a release, such as a checkpoint that is staged ahead, is not touched.
    """

    def parts(
        abouts: Sequence[Mapping[str, Any]],
    ) -> tuple[set[str], set[str], set[str], set[tuple[str, str]]]:
        named = [one for about in abouts for one in [about.get("source"), *(about.get("donors") or [])]]
        sources = [one for one in named if isinstance(one, Mapping)]
        return (
            {str(about["image"]) for about in abouts if about.get("image")},
            {str(about["base"]) for about in abouts if about.get("base")},
            {str(about["checkpoint"]) for about in abouts if about.get("checkpoint")},
            {(str(source.get("repo")), str(source.get("revision"))) for source in sources},
        )

    going = parts([kept.about for name, kept in one.releases.items() if name in gone])
    staying = parts([*(kept.about for name, kept in one.releases.items() if name not in gone), *also_needed])
    images, bases, checkpoints, downloads = (
        sorted(there - needed)  # type: ignore[operator]
        for there, needed in zip(going, staying, strict=True)
    )
    return Leftovers(images, bases, checkpoints, downloads)


def env_marks(env: Mapping[str, str]) -> dict[str, str]:
    """Variables with a mark in place of each value: two releases can be compared, no value is told."""
    return {name: content_id([name, value]) for name, value in env.items()}


def listed(hosts: Mapping[str, OnHost]) -> list[str]:
    """The releases of a cluster, newest first, a line each; `hosts` by name, the head first."""
    head = next(iter(hosts.values()))
    lines = []
    for name, kept in sorted(head.releases.items(), key=lambda item: -item[1].activated):
        places = [host for host, one in hosts.items() if one.current == name]
        before_on = [
            host
            for host, one in hosts.items()
            if (now := one.releases.get(one.current or "")) is not None and now.previous == name
        ]
        words = [f"recipe {kept.about.get('recipe')}"]
        words += [_on("current", places, hosts)] if places else []
        words += [_on("previous", before_on, hosts)] if before_on else []
        if kept.history.failed:
            words.append(f"failed ({kept.history.failed.get('reason')}, {kept.history.failed.get('when')})")
        elif kept.history.passed:
            words.append(f"met its expectations {kept.history.passed}")
        if kept.history.start_seconds is not None:
            words.append(f"last start {seconds_text(kept.history.start_seconds)}")
        words += [] if kept.activated else ["never activated"]
        lines.append(f"{name}  {'; '.join(words)}")
    if (way := head.under_way) is not None:
        lines.append(f"an activation ({way.kind}) of {way.to} is under way, or was cut off")
    return lines or ["no releases"]


def _on(word: str, places: Sequence[str], hosts: Mapping[str, OnHost]) -> str:
    return word if len(places) == len(hosts) else f"{word} on {', '.join(places)}"
