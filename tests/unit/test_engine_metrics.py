# ruff: noqa: E501
"""What engines other than vLLM tell of themselves, in the words of their own pages."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from onhost import probe_engine
from onhost import status as probe
from sparkstack import engine_metrics, metrics, monitoring, serving_status

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m",tp_rank="0"}} {running}
sglang:num_queue_reqs{{model_name="m",tp_rank="0"}} 3.0
sglang:token_usage{{model_name="m",tp_rank="0"}} 0.28
sglang:gen_throughput{{model_name="m",tp_rank="0"}} {speed}
sglang:spec_accept_rate{{model_name="m",tp_rank="0"}} {accepted}
sglang:generation_tokens_total{{model_name="m"}} {tokens}
sglang:time_to_first_token_seconds_sum{{model_name="m"}} {tokens}
sglang:time_to_first_token_seconds_count{{model_name="m"}} {tokens}
"""
LLAMA_CPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {tokens}
llamacpp:tokens_predicted_total {tokens}
llamacpp:predicted_tokens_seconds {speed}
llamacpp:n_decode_total 5
llamacpp:requests_processing {running}
llamacpp:requests_deferred 3
llamacpp:spec_decode_num_draft_tokens_total 20
llamacpp:spec_decode_num_accepted_tokens_total {accepted}
"""
ATLAS = """\
# TYPE atlas_requests_active gauge
atlas_requests_active {running}
atlas_decoded_tokens_total {tokens}
atlas_prompt_tokens_total {tokens}
atlas_spec_decode_verify_total{{k="2",outcome="accept"}} 7
"""


def figures(page: str, *amounts: dict[str, float]) -> metrics.Figures:
    """Of pages a second apart."""
    usual: dict[str, float] = {"running": 2, "speed": 0, "accepted": 0, "tokens": 0}
    read = [metrics.read(page.format(**usual | one), at) for at, one in enumerate(amounts)]
    return metrics.figures(read[0] if len(read) > 1 else None, read[-1])


def test_sglang_says_its_speed_itself() -> None:
    found = figures(SGLANG, {"tokens": 5}, {"tokens": 9, "speed": 86.5, "accepted": 0.75})
    assert (found.engine, found.generated_tok_s, found.running, found.waiting) == ("SGLang", 86.5, 2, 3)
    assert (found.kv_use, found.acceptance, found.ttft_s) == (0.28, 0.75, 1.0)
    assert found.not_told == ["prompt_tok_s"] and found.prompt_tok_s is None
    # Nothing runs: it stands still. Something runs, and it says nothing of that yet: not measured.
    assert figures(SGLANG, {"running": 0}).generated_tok_s == 0.0
    assert figures(SGLANG, {"running": 1}).generated_tok_s is None
    assert figures(SGLANG, {}).acceptance is None


def test_llama_cpp_says_it_of_what_ended() -> None:
    found = figures(LLAMA_CPP, {"speed": 45.5, "tokens": 10}, {"tokens": 30, "accepted": 15})
    assert (found.engine, found.generated_tok_s, found.prompt_tok_s) == ("llama.cpp", 45.5, 20.0)
    assert (found.running, found.waiting, found.acceptance) == (2, 3, 0.75)
    assert found.not_told == ["ttft_s", "kv_use"]
    old = figures(LLAMA_CPP + "llamacpp:kv_cache_usage_ratio 0.5\n", {})
    assert (old.kv_use, old.not_told) == (0.5, ["ttft_s"])


def test_atlas_counts_as_it_decodes() -> None:
    found = figures(ATLAS, {"tokens": 10}, {"tokens": 50})
    assert (found.engine, found.generated_tok_s, found.prompt_tok_s, found.running) == ("Atlas", 40.0, 40.0, 2)
    assert found.not_told == ["waiting", "kv_use", "acceptance"]
    assert (found.waiting, found.kv_use, found.acceptance) == (None, None, None)


def test_an_engine_that_is_not_known() -> None:
    found = metrics.figures(None, metrics.read("go_goroutines 5\n", 0.0))
    assert found == metrics.Figures() and found.engine is None


def test_the_host_s_part_knows_the_same_engines() -> None:
    assert tuple(engine.prefix for engine in engine_metrics.ENGINES) == probe.PREFIXES
    for counter in probe_engine.COUNTERS:
        assert engine_metrics.of([counter]) is not None, counter
    for engine in engine_metrics.ENGINES:
        names = [name for value in vars(engine).values() if isinstance(value, tuple) for name in value]
        assert len(names) > 3 and all(name.startswith(engine.prefix) for name in names)
        assert engine.source


def document(page: str, status: int = 200) -> dict[str, Any]:
    text = page.format(running=1, speed=50, accepted=10, tokens=1)
    about = {"release": "r1", "recipe": "x", "rank": 0, "world": 1, "endpoint": "http://192.0.2.1:1", "model": "m"}
    readings = [{"status": status, "t": at, "text": text} for at in (0.0, 1.0)]
    said = {"release": about, "unit": {"ActiveState": "active"}, "endpoint": {"health": 200, "readings": readings}}
    return serving_status.document("now", {"a": said})


@pytest.mark.parametrize(
    ("page", "status", "line"),
    [
        (SGLANG, 200, "  decode 50.0 tok/s now, requests 1 running, 3 waiting, KV cache 28%, drafts accepted 1000%, first token not measured, SGLang does not tell: prompt"),
        (LLAMA_CPP, 200, "  decode 50.0 tok/s now, prompt 0.0 tok/s, requests 1 running, 3 waiting, drafts accepted 50%, llama.cpp does not tell: KV cache, first token"),
        (ATLAS, 200, "  decode 0.0 tok/s now, prompt 0.0 tok/s, requests 1 running, first token not measured, Atlas does not tell: waiting requests, KV cache, drafts accepted"),
        ("", 200, "/metrics: no names that we know"),
        ("", 401, "/metrics: asks for an API key"),
        ("", 404, "/metrics: the engine has none, or was started without (SGLang: --enable-metrics, llama.cpp: --metrics)"),
        ("", 501, "/metrics: the engine was started without (llama.cpp: --metrics)"),
        ("", 500, "/metrics: not read"),
    ],
)  # fmt: skip
def test_what_is_not_told_is_said(page: str, status: int, line: str) -> None:
    found = document(page, status)
    assert found["ok"]
    shown = serving_status.lines(found)[2]
    assert shown == line or (not line.startswith("  ") and shown.endswith(f"first token not measured, {line}"))
    json.dumps(found)


class Keyed(BaseHTTPRequestHandler):
    asked: ClassVar[list[str | None]] = []

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        key = self.headers.get("Authorization")
        if self.path == "/metrics":
            self.asked.append(key)
        good = self.path == "/health" or key == "Bearer sesame-1"
        self.send_response(200 if good else 401)
        self.end_headers()
        self.wfile.write(LLAMA_CPP.format(tokens=1, speed=1, running=1, accepted=1).encode() if good else b"no")


@pytest.fixture
def keyed() -> Iterator[str]:
    Keyed.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Keyed)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("key", ["sesame-1", "another-1", None])
def test_the_key_is_shown_where_it_is_asked_for(
    keyed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str | None
) -> None:
    (tmp_path / "current").mkdir()
    file = tmp_path / "api.key"
    about: dict[str, Any] = {"release": "r", "rank": 0, "endpoint": keyed}
    if key is not None:
        file.write_text(f"{key}\n")
        about["api_key_file"] = str(file)
    (tmp_path / "current/release.json").write_text(json.dumps(about))
    probe.main(str(tmp_path), "unit", "0")
    printed = capsys.readouterr().out
    readings = json.loads(printed)["endpoint"]["readings"]
    good = key == "sesame-1"
    assert [one["status"] for one in readings] == ([200, 200] if good else [401])
    assert (readings[0]["text"].count("llamacpp:") > 5) == good
    shown = [None, f"Bearer {key}"] if key else [None]
    assert Keyed.asked == shown * len(readings)
    assert "api_key_file" not in printed and (key is None or key not in printed)


@pytest.mark.parametrize("engine", [one.engine for one in engine_metrics.ENGINES])
def test_each_engine_has_a_dashboard_of_its_own_names(engine: str) -> None:
    names = engine_metrics.called(engine)
    assert names is not None
    board = json.loads(monitoring.dashboard(engine))
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:vllm:|sglang:|llamacpp:|atlas_)\w+", target["expr"])
    }
    assert len(asked) > 3 and all(name.startswith(names.prefix) for name in asked)
    assert board["panels"][-1]["title"] == "Endpoint answers"
    assert (monitoring.remark(engine) is None) == (engine == "vLLM")
    assert all(target["expr"].count("{") == target["expr"].count("}") for panel in board["panels"] for target in panel["targets"])


def test_an_unknown_engine_is_told_that_the_dashboard_is_for_vllm() -> None:
    assert monitoring.dashboard(None) == monitoring.dashboard()
    assert str(monitoring.remark(None)).startswith("the dashboard is for vLLM: ")


@pytest.mark.parametrize(
    ("engine", "remark"),
    [
        ("vLLM", "# /metrics asks for no API key."),
        ("SGLang", "# /metrics asks for no API key."),
        ("llama.cpp", "# /metrics of llama.cpp asks for the endpoint's API key, where it has one: "),
        ("Atlas", "# /metrics may ask for the endpoint's API key, where it has one: "),
        (None, "# /metrics may ask for the endpoint's API key, where it has one: "),
    ],
)
def test_what_is_said_of_the_key(engine: str | None, remark: str) -> None:
    text = monitoring.scrape("http://192.0.2.1:1", "r", "x", ["a"], None, engine)
    assert text.splitlines()[1].startswith(remark)
    assert yaml.safe_load(text)["scrape_configs"][0]["metrics_path"] == "/metrics"
