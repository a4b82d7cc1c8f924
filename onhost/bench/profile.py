"""What a benchmark does: the three named profiles, and a recipe's own values on top of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from onhost.bench.prompts import CATEGORIES
from onhost.plan import JobError, Plan

ENDPOINTS = ("chat", "completions")
QUALITY = (
    "sane",
    "exact",
    "json",
    "tool",
    "arithmetic",
    "gsm8k",
    "needle",
    "prefix_cache",
    "determinism",
    "agreement",
)
MOST_STREAMS = 1024


@dataclass(frozen=True)
class Profile:
    """The keys of docs/interfaces.md; defaults are those of "custom". `given` is the plan's own, unknown
    keys included, so that a later run can tell whether the same was asked."""

    name: str = "custom"
    streams: tuple[int, ...] = (1,)
    max_tokens: int = 64
    requests: int = 1
    repeats: int = 3
    warmup: int = 1
    categories: tuple[str, ...] = ()
    category_streams: tuple[int, ...] = (1,)
    thinking: tuple[bool | None, ...] = (None,)
    contexts: tuple[int, ...] | str = ()
    rates: tuple[float, ...] = ()
    rate_requests: int = 20
    saturation: bool = False
    quality: tuple[str, ...] = ()
    arithmetic: int = 100
    agreement: int = 16
    agreement_tokens: int = 128
    needle_lengths: tuple[int, ...] | str = ()
    needle_depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    seconds: float | None = None
    spread_limit: float = 0.15
    max_repeated: int = 2
    endpoint: str = "chat"
    timeout_s: float = 300.0
    judge_text: bool = False
    given: dict[str, Any] = field(default_factory=dict, compare=False)

    def as_dict(self) -> dict[str, Any]:
        mine = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        del mine["given"]
        return {**mine, **self.given, "name": self.name}


NAMED: dict[str, dict[str, Any]] = {
    "custom": {},
    # Ends within a minute on any server. 55 s: a few are the job's own start and end.
    "smoke": {
        "requests": 3,
        "seconds": 55,
        "quality": ["sane", "exact", "determinism", "agreement"],
        "agreement": 8,
        "agreement_tokens": 16,
    },
    "standard": {
        "streams": [1, 2, 4, 6, 8],
        "max_tokens": 128,
        "requests": 2,
        "categories": "all",
        "thinking": [True, False],
        "contexts": [1024, 8192, 32768],
        "quality": [name for name in QUALITY if name != "gsm8k"],
        "needle_lengths": [4096, 32768],
        "seconds": 2400,
    },
    "full": {
        "streams": [1, 2, 4, 6, 8],
        "max_tokens": 256,
        "requests": 4,
        "repeats": 5,
        "categories": "all",
        "category_streams": [1, 4],
        "thinking": [True, False],
        "contexts": "auto",
        "saturation": True,
        "rate_requests": 30,
        "quality": list(QUALITY),
        "needle_lengths": "auto",
        "needle_depths": [0.0, 0.25, 0.5, 0.75, 1.0],
    },
}


def read(plan: Plan) -> Profile:
    """The plan's profile, checked; JobError names the key."""
    name = plan.data.get("name", "custom")
    if name not in NAMED:
        raise _bad("name", name, f"one of {', '.join(NAMED)}")
    merged = Plan({**NAMED[name], **plan.data}, plan.where)
    data = merged.data
    default = Profile()
    endpoint = data.get("endpoint", default.endpoint)
    if endpoint not in ENDPOINTS:
        raise JobError(
            f"found the endpoint {endpoint!r} in the profile; wanted {' or '.join(ENDPOINTS)}; correct it"
        )
    return Profile(
        name=name,
        streams=_counts(data, "streams", default.streams),
        max_tokens=merged.integer("max_tokens", default.max_tokens, least=2),
        requests=merged.integer("requests", default.requests),
        repeats=merged.integer("repeats", default.repeats),
        warmup=merged.integer("warmup", default.warmup, least=0),
        categories=_names(data, "categories", CATEGORIES),
        category_streams=_counts(data, "category_streams", default.category_streams),
        thinking=_thinking(data, default),
        contexts=_lengths(data, "contexts"),
        rates=_numbers(data, "rates", (), 0.001, 1e6),
        rate_requests=merged.integer("rate_requests", default.rate_requests, least=5),
        saturation=merged.truth("saturation", default.saturation),
        quality=_names(data, "quality", QUALITY),
        arithmetic=merged.integer("arithmetic", default.arithmetic),
        agreement=merged.integer("agreement", default.agreement),
        agreement_tokens=merged.integer("agreement_tokens", default.agreement_tokens),
        needle_lengths=_lengths(data, "needle_lengths"),
        needle_depths=_numbers(data, "needle_depths", default.needle_depths, 0, 1),
        seconds=None if data.get("seconds") is None else merged.number("seconds", 1),
        spread_limit=merged.number("spread_limit", default.spread_limit),
        max_repeated=merged.integer("max_repeated", default.max_repeated, least=0),
        endpoint=endpoint,
        timeout_s=merged.number("timeout_s", default.timeout_s),
        judge_text=merged.truth("judge_text", default.judge_text),
        given=plan.data,
    )


def _bad(key: str, found: Any, wanted: str) -> JobError:
    return JobError(f"found {found!r} for the profile's {key}; wanted {wanted}; correct the recipe")


def _counts(data: dict[str, Any], key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = data.get(key, list(default))
    good = isinstance(value, list) and value and all(type(n) is int and 0 < n <= MOST_STREAMS for n in value)
    if not good:
        raise _bad(key, value, "a list of counts")
    return tuple(dict.fromkeys(value))


def _names(data: dict[str, Any], key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    value = data.get(key, [])
    if value == "all":
        return known
    if not isinstance(value, list) or any(name not in known for name in value):
        raise _bad(key, value, f"'all' or a list of {', '.join(known)}")
    return tuple(dict.fromkeys(value))


def _thinking(data: dict[str, Any], default: Profile) -> tuple[bool | None, ...]:
    value = data.get("thinking", list(default.thinking))
    if not isinstance(value, list) or not value or any(type(one) not in (bool, type(None)) for one in value):
        raise _bad("thinking", value, "a list of null, true and false")
    return tuple(dict.fromkeys(value))


def _lengths(data: dict[str, Any], key: str) -> tuple[int, ...] | str:
    value = data.get(key, [])
    if value == "auto":
        return "auto"
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        raise _bad(key, value, "'auto' or a list of lengths in tokens")
    return tuple(sorted(set(value)))


def _numbers(
    data: dict[str, Any], key: str, default: tuple[float, ...], least: float, most: float
) -> tuple[float, ...]:
    value = data.get(key, list(default))
    if not isinstance(value, list) or not all(
        isinstance(n, int | float) and not isinstance(n, bool) and least <= n <= most for n in value
    ):
        raise _bad(key, value, f"a list of numbers from {least:g} to {most:g}")
    return tuple(sorted(float(n) for n in set(value)))


def lengths(asked: tuple[int, ...] | str, longest: int | None, room: int) -> list[int]:
    """Lengths of input that fit the model with `room` tokens kept; "auto": 1024, × 4, and the most."""
    most = None if longest is None else max(0, longest - room)
    if isinstance(asked, str):
        if most is None:
            return [1024, 4096]  # nobody says how long the model's context is
        asked = tuple(sorted({n for n in (1024 * 4**step for step in range(11)) if n < most} | {most}))
    return [n for n in asked if n > 0 and (most is None or n <= most)]


KEYS = frozenset(one.name for one in fields(Profile)) - {"given"}
