"""The report as one HTML file that needs nothing else: no script, no network, no other file.

What a host, a model or a user named is text here, never markup: the template escapes all of it, and the page
forbids its browser to run or to fetch anything.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from sparkstack import plots
from sparkstack.figures import (
    contexts_of,
    interval,
    middle,
    notes_of,
    open_loop_of,
    percent,
    point_of,
    points_of,
    with_unit,
)
from sparkstack.history import Entry, measured
from sparkstack.report import RunReport, changes, curl, link_lines, seconds_of
from sparkstack.report_text import measured_text
from sparkstack.units import seconds_text

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"

MARKS = {
    "pass": "✓",
    "ok": "✓",
    "fail": "✗",
    "failed": "✗",
    "inconclusive": "?",
    "not checked": "–",
    "not measured": "–",
    "baseline": "•",
    "changed": "→",
}
HEADLINES = {
    "pass": "Meets what its recipe expects",
    "fail": "Misses what its recipe expects",
    "baseline": "Measured; nothing to compare it with",
    "inconclusive": "Measured, and no result to rely on",
    "not measured": "Not measured",
}
DEPLOYED = {
    "image": "Image",
    "base": "Base image",
    "checkpoint": "Checkpoint",
    "source": "Model source",
    "transforms": "Transforms",
}


def page(report: RunReport, earlier: Sequence[Entry] = ()) -> str:
    """The page of a report; `earlier` are the runs of its inventory before it, oldest first."""
    blocks = [_measured(report.measurement, report.verdict, "")]
    if report.serving is not None:
        blocks[0]["title"] = f"Release {report.release} of this run, which does not serve"
        title = f"Release {report.serving}, which serves"
        blocks.append(_measured(report.serving_measurement, report.serving_verdict, title))
    return _template().render(
        report=report,
        headline=_headline(report),
        status=_status(report),
        blocks=[block for block in blocks if block["measurement"] or block["title"]],
        command=curl(report.endpoint, report.model or "", report.head, report.api_key)
        if report.endpoint
        else None,
        deployed=_deployed(report),
        stages=_stages(report),
        stage_plot=_stage_plot(report),
        links=link_lines(report),
        history=[*reversed(earlier)],
        history_plot=_history_plot([*earlier, Entry.of(report)]),
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["time"] = time_text
    environment.filters["figure"] = figure_text
    environment.filters["seconds"] = seconds_text
    environment.globals["marks"] = MARKS
    return environment.get_template("report.html.j2")


def _status(report: RunReport) -> str:
    if report.failures or any(operation.status == "failed" for operation in report.operations):
        # A run that fails because its figures miss, or say nothing, is told by them.
        return report.result if report.result in ("fail", "inconclusive") else "failed"
    return report.result


def _headline(report: RunReport) -> str:
    status = _status(report)
    if status == "failed":
        return "The run failed"
    if status == "not measured":
        return "The run did what it had to; nothing was measured"
    return HEADLINES[status]


def _measured(
    measurement: Mapping[str, Any] | None, verdict: Mapping[str, Any] | None, title: str
) -> dict[str, Any]:
    found: Mapping[str, Any] = measurement or {}
    points = points_of(found)
    return {
        "title": title,
        "measurement": found,
        "why": (verdict or {}).get("why"),
        "partial": found.get("complete") is False,
        "lines": [
            {**line, "note": line.get("note"), "measured": measured_text(line.get("measured"))}
            for line in sorted((verdict or {}).get("lines", []), key=_bad_ones_first)
        ],
        "points": points,
        "plots": [plot for plot in _speed_plots(found) if plot],
        "quality": [_test(one) for one in _maps(found.get("quality"))],
        "contexts": contexts_of(found),
        "open_loop": open_loop_of(found),
        "saturation": _saturation(found.get("saturation")),
        "about": _about(found),
        "notes": notes_of(found),
    }


def _bad_ones_first(line: Mapping[str, Any]) -> int:
    order = ("fail", "inconclusive", "pass", "not checked", "baseline")
    return order.index(line["verdict"]) if line.get("verdict") in order else 0


def _about(found: Mapping[str, Any]) -> str:
    """How it was measured, in a sentence."""
    profile, server, noise = (_map(found.get(key)) for key in ("profile", "server", "noise"))
    parts = [f"Profile {profile.get('name', 'custom')}", f"measured {time_text(found.get('when', ''))}"]
    if server.get("version"):
        parts.append(f"server version {server['version']}")
    spread, limit = middle(noise.get("spread")), middle(noise.get("limit"))
    if spread is not None and limit is not None:
        parts.append(f"spread of the repeats {percent(spread)}, noise from {percent(limit)} on")
    elif noise.get("verdict") == "unknown":
        parts.append("nothing was repeated, so the spread is not known")
    return ", ".join(parts)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _test(one: Mapping[str, Any]) -> dict[str, str]:
    score = middle(one.get("score"))
    texts = {key: str(one.get(key, "")) for key in ("name", "status", "found", "wanted")}
    return {**texts, "score": "" if score is None else f"{score:.4g}"}


def _saturation(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    rate, output = middle(value.get("rate_rps")), middle(value.get("output_tok_s"))
    at = f"{with_unit(rate, 'requests/s')}, {with_unit(output, 'tok/s')}"
    if rate is None:
        at = "not reached"
    return f"Saturation: {at}. {value.get('why', '')}"


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _speed_plots(measurement: Mapping[str, Any]) -> list[Any]:
    """Speed over streams, time to the first token over streams, decode by kind of prompts, and over input."""
    raw = [point for point in _maps(measurement.get("points")) if point.get("category", "all") == "all"]
    each, total, ttft = _over(raw, "decode_tok_s"), _over(raw, "total_tok_s"), _over(raw, "ttft_s")
    kinds = [
        (point, interval(one.get("decode_tok_s")) or (None, None))
        for one in _maps(measurement.get("points"))
        if one.get("category", "all") != "all" and (point := point_of(one)) is not None
    ]
    kinds = [(point, ends) for point, ends in kinds if point.decode_tok_s is not None]
    fewest = min((point.streams for point, _ in kinds), default=1)
    rows = [
        plots.Bar(point.prompts, point.decode_tok_s or 0, with_unit(point.decode_tok_s, "tok/s"), *ends)
        for point, ends in kinds
        if point.streams == fewest
    ]
    streams = "1 stream" if fewest == 1 else f"{fewest} streams"
    # One number of streams is no curve: the table says it.
    several = len({point.get("streams") for point in raw}) > 1
    contexts = sorted(
        (int(one["input_tokens"]), value)
        for one in _maps(measurement.get("contexts"))
        if isinstance(one.get("input_tokens"), int) and (value := middle(one.get("ttft_s"))) is not None
    )
    return [
        several
        and _titled(
            "Speed by number of streams",
            [_series("all streams together", total), _series("each stream", each)],
            "streams",
            "tok/s",
        ),
        several
        and _titled("Time to the first token by number of streams", [_series("TTFT", ttft)], "streams", "s"),
        rows
        and {
            "title": f"Decode by kind of prompts, {streams}",
            "plot": plots.bars(f"Decode tokens/s by kind of prompts, {streams}", rows),
        },
        len(contexts) > 1
        and _titled(
            "Time to the first token by length of input",
            [plots.Series("TTFT", contexts)],
            "tokens of input",
            "s",
        ),
    ]


def _titled(title: str, series: Sequence[plots.Series], x_title: str, unit: str) -> dict[str, Any] | None:
    plot = plots.lines(f"{title}, {unit}", series, x_title, unit)
    return {"title": title, "plot": plot} if plot else None


Over = list[tuple[float, float, tuple[float, float] | None]]


def _over(points: Sequence[Mapping[str, Any]], figure: str) -> Over:
    found: dict[float, tuple[float, tuple[float, float] | None]] = {}
    for point in points:
        value, streams = middle(point.get(figure)), middle(point.get("streams"))
        if value is not None and streams is not None:
            found.setdefault(streams, (value, interval(point.get(figure))))
    return [(streams, *found[streams]) for streams in sorted(found)]


def _series(name: str, over: Over) -> plots.Series:
    return plots.Series(name, [(x, y) for x, y, _ in over], [ends for _, _, ends in over])


def _deployed(report: RunReport) -> list[tuple[str, str]]:
    about = report.deployed or {}
    rows = [("Recipe", report.recipe), ("Release", report.release or "not known")]
    if report.model:
        rows.append(("Model", report.model))
    for key, label in DEPLOYED.items():
        value = about.get(key)
        if isinstance(value, Mapping):
            value = " at ".join(str(part) for part in value.values())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        if value:
            rows.append((label, str(value)))
    return rows + [(name, version) for name, version in report.versions.items()]


def _stages(report: RunReport) -> list[dict[str, Any]]:
    return [
        {
            "name": stage,
            "seconds": seconds_text(seconds_of(report, stage)),
            "changes": list(changes(report, stage)),
        }
        for stage in report.stages
    ]


def _stage_plot(report: RunReport) -> Any:
    rows = [
        plots.Bar(stage, seconds, seconds_text(seconds))
        for stage in report.stages
        if (seconds := seconds_of(report, stage)) >= 0.05
    ]
    return plots.bars("Time of each stage", rows)


def _history_plot(entries: Sequence[Entry]) -> Any:
    runs = measured(entries)
    if len(runs) < 2:
        return ""
    single = [(number, run.decode_tok_s or 0) for number, run in enumerate(runs, 1)]
    total = [(number, run.total_tok_s) for number, run in enumerate(runs, 1) if run.total_tok_s is not None]
    series = [plots.Series("most of all streams", total), plots.Series("decode, one stream", single)]
    return plots.lines("Speed of the last runs, tok/s", series, "runs, the latest on the right", "tok/s")


def time_text(stamp: Any) -> str:
    """20260102T030405Z as 2026-01-02 03:04:05 UTC; any other text as it is."""
    text = str(stamp)
    for form in ("%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            moment = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return text


def figure_text(value: Any, unit: str) -> str:
    return with_unit(middle(value), unit)
