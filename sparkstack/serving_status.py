"""What `sparkstack status` shows, from what hosts say (onhost/status.py): pure, without asking anybody."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from sparkstack import metrics
from sparkstack.endpoint import url_for_others
from sparkstack.errors import Problem
from sparkstack.units import seconds_text

FORMAT = 1
NOT_CHECKED = "not checked"
READY = "ready"
"""The word of a rank whose checks are done (onhost/group.py)."""
WEDGED_MISSES = 2
"""So many tokens missed in a row, with counters that stand still: one alone proves little."""
FIRST_LOOK_S = 600.0
"""So long a first look may take, before the watchdog has noted how long the next one may."""
STATES = {"active": "serves", "activating": "starts", "deactivating": "stops", "failed": "failed"}


def document(
    when: str,
    said: Mapping[str, Mapping[str, Any] | str],
    other: Mapping[str, Any] | None = None,
    addresses: Mapping[str, str] | None = None,
    watched: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """The status as JSON (docs/interfaces.md). `said` holds each host of the inventory, the head first, with
    what it said, or with why it did not. `other` is an endpoint that was read from here, at its `url`.
    `addresses`: the hosts' on the management network, by which an endpoint on all interfaces is reached.
    `watched`: on which hosts a watchdog is declared."""
    hosts = [_host(name, found, (watched or {}).get(name, False)) for name, found in said.items()]
    releases = {host["release"] for host in hosts if host["release"]}
    name, head = next(((name, found) for name, found in said.items() if _is_head(found)), ("", None))
    if len(releases) > 1:
        usual = hosts[0]["release"]
        for host in hosts[1:]:
            if host["release"] not in (None, usual):
                _blame(host, f"release {host['release']}", f"{usual}, the head's", "run deploy.py again")
    endpoint = None
    if other is not None:
        about = (head or {}).get("release") or {}  # type: ignore[union-attr]
        own = (head or {}).get("endpoint") or {}  # type: ignore[union-attr]
        asked = {"completes": own.get("completes"), **other}
        endpoint = _endpoint(str(other["url"]), None, about.get("model"), asked)
    elif isinstance(head, Mapping) and head.get("endpoint"):
        own, bind = head["release"]["endpoint"], head["release"].get("bind")
        url = url_for_others(own, bind, (addresses or {}).get(name))
        endpoint = _endpoint(url, bind, head["release"]["model"], head["endpoint"])
    problems = [host["problem"] for host in hosts if host["problem"]]
    if endpoint is None:
        if not problems:
            problems.append(str(Problem("endpoint", "no head that serves", "one", "run deploy.py")))
    elif endpoint["problem"]:
        problems.append(endpoint["problem"])
    about = head["release"] if isinstance(head, Mapping) else {}
    return {
        "format": FORMAT,
        "when": when,
        "ok": not problems,
        "release": about.get("release"),
        "recipe": about.get("recipe"),
        "endpoint": endpoint,
        "hosts": hosts,
        "problems": problems,
    }


def _is_head(found: Mapping[str, Any] | str) -> bool:
    return isinstance(found, Mapping) and (found.get("release") or {}).get("rank") == 0


def _host(name: str, found: Mapping[str, Any] | str, watched: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "host": name,
        "rank": None,
        "release": None,
        "state": "down",
        "restarts": None,
        "uptime_s": None,
        "waits_for": None,
        "memory": None,
        "gpus": None,
        "watchdog": None,
        "problem": None,
    }
    if isinstance(found, str):
        _blame(row, found, "an answer", "check power, cable and ssh")
        return row
    about, unit = found.get("release") or {}, found.get("unit") or {}
    active = str(unit.get("ActiveState") or "inactive")
    row |= {"rank": about.get("rank"), "release": about.get("release"), "memory": found.get("memory")}
    row["gpus"] = _gpus(found.get("gpus"))
    row["state"] = STATES.get(active, "does not serve") if about else "no release"
    restarts = str(unit.get("NRestarts") or "")
    row["restarts"] = int(restarts) if restarts.isdigit() else None
    since = str(unit.get("ActiveEnterTimestampMonotonic") or "0")
    if active == "active" and since.isdigit() and int(since):
        row["uptime_s"] = max(round(float(found.get("now_s") or 0) - int(since) / 1e6, 1), 0.0)
    if not about:
        _blame(row, "no release", "one", "run deploy.py")
    elif active != "active":
        row["waits_for"] = _waits_for(found)
        told = f"{active} ({unit.get('SubState')}, last result {unit.get('Result')})"
        why = f": {row['waits_for']}" if row["waits_for"] else ""
        _blame(row, f"unit {told}{why}", "active", "see journalctl -u sparkstack-serve there")
    row["watchdog"] = _watchdog(row, found, watched)
    return row


def _watchdog(row: dict[str, Any], found: Mapping[str, Any], declared: bool) -> dict[str, Any] | None:
    """What a host's watchdog says; what is wrong by it is the row's problem. None where it was not asked."""
    said = found.get("watchdog")
    if not isinstance(said, Mapping):
        return None
    state, last = str(said.get("active") or "inactive"), said.get("last")
    see = "journalctl -u sparkstack-watchdog"
    shown: dict[str, Any] = {"state": state, "verdict": None, "said": None, "age_s": None}
    shown |= {"missed": None, "misses": None, "answer_s": None}
    if state not in ("active", "activating"):
        if declared and row["release"]:
            _blame(row, f"watchdog {state}", "active, as declared", f"run deploy.py, or see {see} there")
        return shown
    last = last if isinstance(last, Mapping) else {}
    now, at = _number(found.get("now_s")) or 0.0, _number(last.get("at_s"))
    within = _number(last.get("next_within_s")) or FIRST_LOOK_S
    # One whose code was replaced is started again after some seconds; one that always ends looks so for ever.
    since = said.get("since") if state == "active" else found["unit"].get("ActiveEnterTimestampMonotonic")
    began = int(str(since)) / 1e6 if str(since).isdecimal() else 0.0
    late = now - max(at or 0.0, began) > within
    if late:
        age = now - (began if at is None else at)
        told = "no look of the watchdog for" if at is None else "the watchdog's last look"
        ago = "" if at is None else " ago"
        _blame(row, f"{told} {age:.0f} s{ago}", f"one within {within:.0f} s", f"see {see} there")
    # What was found of an earlier start is none of this one.
    if state != "active" or at is None or last.get("invocation") != found["unit"].get("InvocationID"):
        return shown
    shown |= {"age_s": max(round(now - at, 1), 0.0), **{name: last.get(name) for name in ("verdict", "said")}}
    shown |= {name: _number(last.get(name)) for name in ("missed", "misses", "answer_s")}
    missed = shown["missed"] or 0
    # Without counters nothing but the site's patience tells a slow engine from a dead one.
    most = WEDGED_MISSES if last.get("counters") is True else max(WEDGED_MISSES, shown["misses"] or 0)
    if late:
        return shown
    if last.get("broken"):
        _blame(row, f"a watchdog that cannot look ({shown['said']})", "a look", f"see {see} there")
    elif shown["verdict"] == "dead" or missed >= most:
        if row["state"] == STATES["active"]:
            row["state"] = "wedged"
        told = f"no token {missed} times in a row ({shown['said']})"
        remedy = f"the watchdog starts the group again at {shown['misses']}; see {see} there"
        _blame(row, told, "tokens", remedy)
    elif shown["verdict"] == "gone" and row["state"] == STATES["active"]:
        remedy = f"the watchdog starts it again where that lasts; see {see} there"
        _blame(row, f"{shown['said']}, says the watchdog", "the group whole", remedy)
    return shown


def _number(value: Any) -> int | float | None:
    """A number that a host says; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return value if math.isfinite(value) else None
    return None


def _waits_for(found: Mapping[str, Any]) -> str | None:
    """Why a rank's unit is not active yet, or no more, in its own words where it has some; None for one that
    somebody stopped."""
    unit, rank = found["unit"], found["release"].get("rank")
    active, sub = str(unit.get("ActiveState")), str(unit.get("SubState"))
    last = str(found.get("last_error") or "")
    if sub.startswith("auto-restart"):
        return f"the next start, which comes by itself{f'; the last one ended: {last}' if last else ''}"
    if active == "failed":
        return f"the last start ended: {last}" if last else None
    if active != "activating":
        return None
    why = str(unit.get("StatusText") or "")
    if not why and sub == "start-pre":
        note = str(found.get("note") or "it begins")
        why = "its checks are done; waiting for the head to form the group" if note == READY else note
    if not why:
        why = "the engine starts: no completion yet" if rank == 0 else "its container starts"
    since = str(unit.get("InactiveExitTimestampMonotonic") or "")
    if since.isdigit() and int(since) and found.get("now_s"):
        why += f"; for {seconds_text(max(round(float(found['now_s']) - int(since) / 1e6), 0))}"
    return why


def _blame(row: dict[str, Any], found: str, wanted: str, remedy: str) -> None:
    if row["problem"] is None:
        row["problem"] = str(Problem(row["host"], found, wanted, remedy))


def _gpus(found: Any) -> list[dict[str, float | None]] | None:
    names = {
        "temperature.gpu": "temperature_c",
        "power.draw": "power_w",
        "utilization.gpu": "utilization_percent",
    }
    if not isinstance(found, list):
        return None
    return [{ours: gpu.get(theirs) for theirs, ours in names.items()} for gpu in found]


def _endpoint(url: str, bind: Any, model: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    health, readings = found.get("health"), list(found.get("readings") or [])
    problem = None
    answers = health == 200 or bool(found.get("completes"))
    if not answers:
        told = f"HTTP {health}" if health else "no answer"
        words = f" ({found['said']})" if found.get("said") else ""
        remedy = "see journalctl -u sparkstack-serve on the head"
        problem = str(Problem(url, f"{told}{words}", "HTTP 200 of /health", remedy))
    numbers = metrics.Figures()
    try:
        read = [metrics.read(one["text"], one["t"]) for one in readings if one.get("status") == 200]
        if read:
            numbers = metrics.figures(read[0] if len(read) > 1 else None, read[-1])
    except (ValueError, KeyError, TypeError):
        unread, wanted = "/metrics that cannot be read", "Prometheus's text format"
        problem = problem or str(Problem(url, unread, wanted, "check what listens there"))
    about = {"url": url, "bind": bind, "model": model, "answers": answers, "problem": problem}
    about["metrics"] = readings[-1].get("status") if readings else None
    return about | asdict(numbers)


def reason(text: str) -> str:
    """What an answer that is no success says, as onhost/status.py has it: an error's message, else all."""
    with suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:300]


# For people.


def lines(status: Mapping[str, Any]) -> list[str]:
    """The status as plain lines, for where there is no terminal."""
    titles, rows = _rows(status)
    widths = [max(len(row[at]) for row in [titles, *rows]) for at in range(len(titles))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [titles, *rows]
    ]
    return [*_about(status), *shown, *status["problems"]]


def table(status: Mapping[str, Any]) -> Table:
    """The status as a table, for a terminal."""
    titles, rows = _rows(status)
    shown = Table(*titles, title=Text("\n".join(_about(status))), title_justify="left")
    for row, host in zip(rows, status["hosts"], strict=True):
        shown.add_row(*map(Text, row), style="red" if host["problem"] else None)
    if status["problems"]:
        shown.caption = Text("\n".join(status["problems"]), style="red")
    return shown


def _about(status: Mapping[str, Any]) -> Iterable[str]:
    endpoint = status["endpoint"]
    yield f"release {status['release'] or 'none'}, recipe {status['recipe'] or 'none'}, {status['when']}"
    if endpoint is None:
        yield "endpoint: none"
        return
    answers = "answers" if endpoint["answers"] else "does not answer"
    yield f"endpoint: {endpoint['url']} {answers} for {endpoint['model'] or 'an unknown model'}"
    shown, not_told = [], endpoint["not_told"]
    for name, words, how, unit in _FIGURES:
        if name not in not_told:
            shown.append(words.format(_figure(endpoint[name], how, unit)))
    if not_told:
        names = {name: title for name, title in _TITLES.items() if name in not_told}
        shown.append(f"{endpoint['engine']} does not tell: {', '.join(names.values())}")
    elif endpoint["answers"] and endpoint["metrics"] != 200:
        shown.append(f"/metrics: {_METRICS.get(endpoint['metrics'], 'not read')}")
    elif endpoint["answers"] and endpoint["engine"] is None:
        shown.append("/metrics: no names that we know")
    yield "  " + ", ".join(shown)


_FIGURES = (
    ("generated_tok_s", "decode {} now", ".1f", " tok/s"),
    ("prompt_tok_s", "prompt {}", ".1f", " tok/s"),
    ("running", "requests {} running", "d", ""),
    ("waiting", "{} waiting", "d", ""),
    ("kv_use", "KV cache {}", ".0%", ""),
    ("acceptance", "drafts accepted {}", ".0%", ""),
    ("ttft_s", "first token {}", ".3f", " s"),
)
_TITLES = {
    "generated_tok_s": "decode",
    "prompt_tok_s": "prompt",
    "running": "running requests",
    "waiting": "waiting requests",
    "kv_use": "KV cache",
    "acceptance": "drafts accepted",
    "ttft_s": "first token",
}
_METRICS = {
    401: "asks for an API key",
    403: "asks for an API key",
    404: "the engine has none, or was started without (SGLang: --enable-metrics, llama.cpp: --metrics)",
    501: "the engine was started without (llama.cpp: --metrics)",
}


def _rows(status: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    titles: tuple[str, ...] = (
        "host", "rank", "state", "up", "restarts", "release", "memory used", "temperature",
    )  # fmt: skip
    rows = [_row(host) for host in status["hosts"]]
    if any(host["watchdog"] for host in status["hosts"]):
        titles = (*titles, "watchdog")
        rows = [(*row, _look(host["watchdog"])) for row, host in zip(rows, status["hosts"], strict=True)]
    if any(host["waits_for"] for host in status["hosts"]):
        titles = (*titles, "waits for")
        waits = [str(host["waits_for"] or "-") for host in status["hosts"]]
        rows = [(*row, why) for row, why in zip(rows, waits, strict=True)]
    return titles, rows


def _row(host: Mapping[str, Any]) -> tuple[str, ...]:
    memory, gib = host["memory"], 2**30
    used = NOT_CHECKED
    if memory:
        used = f"{(memory['total'] - memory['available']) / gib:.1f} of {memory['total'] / gib:.1f} GiB"
    up = "-" if host["uptime_s"] is None else seconds_text(host["uptime_s"])
    return (
        host["host"],
        "-" if host["rank"] is None else str(host["rank"]),
        host["state"],
        up,
        "-" if host["restarts"] is None else str(host["restarts"]),
        host["release"] or "-",
        used,
        _temperature(host["gpus"]),
    )


def _look(watchdog: Mapping[str, Any] | None) -> str:
    """What a watchdog found last, in a few words."""
    if watchdog is None:
        return NOT_CHECKED
    if watchdog["state"] != "active" or watchdog["verdict"] is None:
        return "no look yet" if watchdog["state"] == "active" else str(watchdog["state"])
    word = str(watchdog["verdict"])
    if word == "missed":
        word = f"missed {watchdog['missed']} of {watchdog['misses']}"
    elif watchdog["answer_s"] is not None:
        word += f", a token in {watchdog['answer_s']:.1f} s"
    return f"{word}; {watchdog['age_s']:.0f} s ago"


def _temperature(gpus: Sequence[Mapping[str, float | None]] | None) -> str:
    known = [gpu["temperature_c"] for gpu in gpus or [] if gpu.get("temperature_c") is not None]
    return ", ".join(f"{value:.0f} °C" for value in known) if known else NOT_CHECKED


def _figure(value: float | None, how: str, unit: str = "") -> str:
    return "not measured" if value is None else format(value, how) + unit
