"""What watches an endpoint from elsewhere: Prometheus's scrape configuration, and a dashboard for Grafana."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml

from sparkstack.endpoint import is_everywhere, is_loopback
from sparkstack.engine_metrics import VLLM, Names, called

SCRAPE, DASHBOARD = "prometheus.yml", "grafana-dashboard.json"
INTERVAL_S = 15
JOB = "sparkstack"
_MODEL = f'{{job="{JOB}",model_name=~"$model"}}'


def scrape(
    endpoint: str,
    release: str,
    recipe: str,
    hosts: list[str],
    bind: str | None = None,
    engine: str | None = VLLM.engine,
) -> str:
    """A configuration for Prometheus that reads the endpoint. `bind` is where it listens; None: where
    `endpoint` says. `engine` is whose names its `/metrics` has; None: not known."""
    parts = urlsplit(endpoint)
    labels = {"recipe": recipe, "hosts": str(len(hosts)), "head": hosts[0]}
    value = {
        "scrape_configs": [
            {
                "job_name": JOB,
                "scheme": parts.scheme,
                "metrics_path": "/metrics",
                "scrape_interval": f"{INTERVAL_S}s",
                "static_configs": [{"targets": [parts.netloc], "labels": labels}],
            }
        ]
    }
    lines = [
        f"# Made by `sparkstack monitoring` for release {release}. Take it as it is, or its job.",
        *_about_key(called(engine)),
    ]
    if is_loopback(parts.hostname or ""):
        if is_everywhere(bind or ""):
            lines += [
                f"# The endpoint listens on all interfaces of {hosts[0]}; the inventory names none that",
                f"# others reach: set `address` there, or write one in place of {parts.hostname}.",
            ]
        else:
            lines.append(f"# The endpoint listens on {hosts[0]} alone: Prometheus has to run there.")
    return "\n".join([*lines, yaml.safe_dump(value, sort_keys=False, allow_unicode=True)])


def _about_key(engine: Names | None) -> list[str]:
    if engine is not None and engine.asks_key is False:
        return ["# /metrics asks for no API key."]
    told = "may ask" if engine is None or engine.asks_key is None else f"of {engine.engine} asks"
    return [
        f"# /metrics {told} for the endpoint's API key, where it has one: put the key into a file that",
        "# Prometheus reads, and add to the job: authorization: {credentials_file: FILE}",
    ]


def remark(engine: str | None) -> str | None:
    """What is to be said of the dashboard; None for one that shows all that there is."""
    names = called(engine)
    if names is None:
        return (
            "the dashboard is for vLLM: what /metrics of this engine says is not known, or could not be read "
            "just now"
        )
    if names is VLLM:
        return None
    return f"the dashboard shows what {names.engine} tells; not tried: its names are from {names.source}"


def dashboard(engine: str | None = VLLM.engine) -> str:
    """A dashboard as Grafana imports it; which Prometheus is chosen in it, and of vLLM which model. An engine
    that is not known gets vLLM's: see `remark`."""
    names = called(engine)
    if names is not None and names is not VLLM:
        return _board(_panels(names), [_datasource()])
    return _board(_vllm_panels(), [_datasource(), _models()])


def _panels(names: Names) -> list[dict[str, Any]]:
    """Of an engine of which we know no more than what `sparkstack status` shows."""
    only, rate = f'{{job="{JOB}"}}', "[$__rate_interval]"

    def rates(several: Sequence[str]) -> str:
        return f"sum(rate({several[0]}{only}{rate}))"

    tokens = {"generated": f"sum({names.speed[0]}{only})"} if names.speed else {}
    tokens |= {"generated": rates(names.generated)} if names.generated else {}
    tokens |= {"prompt": rates(names.prompt)} if names.prompt else {}
    requests = {"running": f"sum({names.running[0]}{only})"} if names.running else {}
    requests |= {"waiting": f"sum({names.waiting[0]}{only})"} if names.waiting else {}
    accepted = {"accepted": f"max({names.acceptance[0]}{only})"} if names.acceptance else {}
    if names.drafted:
        accepted = {"accepted": f"{rates(names.accepted)} / {rates(names.drafted)}"}
    panels = (
        ("Tokens a second", "short", tokens),
        ("Requests", "short", requests),
        ("Time to the first token", "s", _quantiles(names.first_token[0], only) if names.first_token else {}),
        ("KV cache in use", "percentunit", {"most": f"max({names.kv_use[0]}{only})"} if names.kv_use else {}),
        ("Draft tokens that were accepted", "percentunit", accepted),
        ("Endpoint answers", "bool", {"up": f"up{only}"}),
    )
    return [_panel(title, unit, queries) for title, unit, queries in panels if queries]


def _vllm_panels() -> list[dict[str, Any]]:
    rate = "[$__rate_interval]"
    return [
        _panel("Tokens a second", "short", {
            "generated": f"sum(rate(vllm:generation_tokens_total{_MODEL}{rate}))",
            "prompt": f"sum(rate(vllm:prompt_tokens_total{_MODEL}{rate}))",
        }),
        _panel("Requests", "short", {
            "running": f"sum(vllm:num_requests_running{_MODEL})",
            "waiting": f"sum(vllm:num_requests_waiting{_MODEL})",
        }),
        _panel("Time to the first token", "s", _quantiles("vllm:time_to_first_token_seconds")),
        _panel("Time between tokens", "s", _quantiles("vllm:inter_token_latency_seconds")),
        _panel("Time of a whole request", "s", _quantiles("vllm:e2e_request_latency_seconds")),
        _panel("Time in the queue", "s", _quantiles("vllm:request_queue_time_seconds")),
        _panel("KV cache in use", "percentunit", {"most": f"max(vllm:kv_cache_usage_perc{_MODEL})"}),
        _panel("Draft tokens that were accepted", "percentunit", {
            "accepted": f"sum(rate(vllm:spec_decode_num_accepted_tokens_total{_MODEL}{rate}))"
            f" / sum(rate(vllm:spec_decode_num_draft_tokens_total{_MODEL}{rate}))",
        }),
        _panel("Prefix cache hits", "percentunit", {
            "hits": f"sum(rate(vllm:prefix_cache_hits_total{_MODEL}{rate}))"
            f" / sum(rate(vllm:prefix_cache_queries_total{_MODEL}{rate}))",
        }),
        _panel("Requests that ended, by reason", "reqps", {
            "{{finished_reason}}": "sum by (finished_reason) "
            f"(rate(vllm:request_success_total{_MODEL}{rate}))",
        }),
        _panel("Preemptions", "short", {"preempted": f"sum(rate(vllm:num_preemptions_total{_MODEL}{rate}))"}),
        _panel("Endpoint answers", "bool", {"up": f'up{{job="{JOB}"}}'}),
    ]  # fmt: skip


def _board(panels: list[dict[str, Any]], variables: list[dict[str, Any]]) -> str:
    for at, panel in enumerate(panels):
        panel |= {"id": at + 1, "gridPos": {"h": 8, "w": 12, "x": 12 * (at % 2), "y": 8 * (at // 2)}}
    value = {
        "title": "sparkstack",
        "uid": "sparkstack-serving",
        "schemaVersion": 39,
        "tags": ["sparkstack"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": f"{INTERVAL_S}s",
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(value, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _models() -> dict[str, Any]:
    query = f'label_values(vllm:num_requests_running{{job="{JOB}"}}, model_name)'
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "model"},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panel(title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query, "legendFormat": name}
            for at, (name, query) in enumerate(queries.items())
        ],
    }


def _quantiles(name: str, only: str = _MODEL) -> dict[str, str]:
    return {
        f"p{part:.0f}": f"histogram_quantile({part / 100}, "
        f"sum by (le) (rate({name}_bucket{only}[$__rate_interval])))"
        for part in (50, 95, 99)
    }
