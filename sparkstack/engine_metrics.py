"""Under which names each engine's `/metrics` tells what `sparkstack status` shows, and where they are from.

An engine is known by how its names begin. What has no name here the engine does not tell, or not so that a
reading a second later says how fast it is now.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """`generated` and `prompt` are counters of tokens that grow while an engine computes; `speed` is a gauge
    of tokens a second that it works out itself. Of several names the first that there is counts.
    `drafted` and `accepted` are counters, `acceptance` a gauge of the same (a part of 1); `first_token` is a
    histogram in s. `asks_key`: does `/metrics` ask for the API key where the endpoint has one? None: not
    known. `switched_on`: the option without which the engine has no such page."""

    engine: str
    prefix: str
    source: str
    asks_key: bool | None
    switched_on: str = ""
    generated: tuple[str, ...] = ()
    speed: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_use: tuple[str, ...] = ()
    drafted: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    acceptance: tuple[str, ...] = ()
    first_token: tuple[str, ...] = ()

    @property
    def not_told(self) -> list[str]:
        """The figures (fields of sparkstack.metrics.Figures) that this engine has no name for."""
        told = {
            "generated_tok_s": self.generated or self.speed,
            "prompt_tok_s": self.prompt,
            "running": self.running,
            "waiting": self.waiting,
            "kv_use": self.kv_use,
            "acceptance": self.drafted or self.acceptance,
            "ttft_s": self.first_token,
        }
        return [figure for figure, names in told.items() if not names]


VLLM = Names(
    "vLLM",
    "vllm:",
    "vLLM 0.32, vllm/v1/metrics/loggers.py (a test compares)",
    asks_key=False,
    generated=("vllm:generation_tokens_total",),
    prompt=("vllm:prompt_tokens_total",),
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    kv_use=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the second before 0.10
    drafted=("vllm:spec_decode_num_draft_tokens_total",),
    accepted=("vllm:spec_decode_num_accepted_tokens_total",),
    first_token=("vllm:time_to_first_token_seconds",),
)
SGLANG = Names(
    "SGLang",
    "sglang:",
    "sgl-project/sglang, python/sglang/srt/observability/metrics_collector.py (before: "
    "srt/metrics/collector.py); the key: srt/utils/auth.py",
    asks_key=False,
    switched_on="--enable-metrics",
    # Its counters of tokens grow when a request ends, so that they say nothing of a second.
    speed=("sglang:gen_throughput",),
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_use=("sglang:token_usage",),
    acceptance=("sglang:spec_accept_rate",),
    first_token=("sglang:time_to_first_token_seconds",),
)
LLAMA_CPP = Names(
    "llama.cpp",
    "llamacpp:",
    "ggml-org/llama.cpp, tools/server/README.md (GET /metrics); the key: tools/server/server-http.cpp",
    asks_key=True,
    switched_on="--metrics",
    # Tokens are counted when a request ends; the gauge is of the requests that ended since it was read last.
    speed=("llamacpp:predicted_tokens_seconds",),
    prompt=("llamacpp:prompt_tokens_total",),
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_use=("llamacpp:kv_cache_usage_ratio",),  # of servers before the middle of 2025 alone
    drafted=("llamacpp:spec_decode_num_draft_tokens_total",),
    accepted=("llamacpp:spec_decode_num_accepted_tokens_total",),
)
ATLAS = Names(
    "Atlas",
    "atlas_",
    "Atlas, spark-server/src/metrics.rs",
    asks_key=None,
    generated=("atlas_decoded_tokens_total",),
    prompt=("atlas_prompt_tokens_total",),
    running=("atlas_requests_active",),  # the server's own count, those that wait among them
    first_token=("atlas_time_to_first_token_seconds",),
)
ENGINES = (VLLM, SGLANG, LLAMA_CPP, ATLAS)


def of(names: Collection[str]) -> Names | None:
    """The engine that tells the names of a page; None where none of them is known."""
    counts = [sum(name.startswith(engine.prefix) for name in names) for engine in ENGINES]
    return ENGINES[counts.index(max(counts))] if any(counts) else None


def called(engine: str | None) -> Names | None:
    """By the name that a status has (`endpoint.engine`)."""
    return next((one for one in ENGINES if one.engine == engine), None)
