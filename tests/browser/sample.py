"""Reports made up for the tests of the page: one with all that there may be, and hostile ones."""

from __future__ import annotations

from typing import Any

from sparkstack import gates
from sparkstack.report import HostSeen, RunReport

KINDS = ("coding", "reasoning", "json", "html", "prose", "narrative", "summary", "format")


def figure(value: float) -> dict[str, Any]:
    low, high = value * 0.96, value * 1.03
    return {"median": value, "min": low, "max": high, "n": 12, "p90": high, "p99": high, "ci": [low, high]}


def point(streams: int, decode: float, **changes: Any) -> dict[str, Any]:
    return {
        "streams": streams,
        "category": "all",
        "thinking": None,
        "requests": 12,
        "failed": 0,
        "failures": [],
        "repeats": 3,
        "ttft_s": figure(0.2 + 0.11 * streams),
        "inter_token_s": figure(1 / decode),
        "decode_tok_s": figure(decode),
        "end_to_end_s": figure(64 / decode),
        "input_tok_s": 55.0,
        "output_tok_s": decode * streams * 0.9,
        "total_tok_s": round(decode * streams * 0.9, 2),
        "spread": 0.03,
        "acceptance": 0.71,
        "accepted_length": 2.4,
        **changes,
    }


def measurement(**changes: Any) -> dict[str, Any]:
    points = [point(streams, 24.5 / streams**0.4) for streams in (1, 2, 4, 6, 8)]
    points += [
        point(1, 18 + 3 * number + (4 if thinking else 0), category=kind, thinking=thinking)
        for number, kind in enumerate(KINDS)
        for thinking in (False, True)
    ]
    return {
        "format": 2,
        "release": "0260b409d371",
        "when": "2026-11-29T23:11:12Z",
        "complete": True,
        "profile": {
            "name": "standard", "streams": [1, 2, 4, 6, 8], "categories": "all", "category_streams": [1],
        },
        "server": {
            "url": "http://127.0.0.1:8000", "model": "org/m", "version": "0.32.1", "max_model_len": 1024,
        },
        "warmup": {"requests": 8, "seconds": 3.2},
        "points": points,
        "contexts": [
            {"input_tokens": n, "ttft_s": figure(n / 900), "prefill_tok_s": 900.0, "decode_tok_s": figure(20)}
            for n in (128, 512, 900)
        ],
        "open_loop": [
            {"rate_rps": r, "achieved_rps": min(r, 1.7), "ttft_s": figure(r), "output_tok_s": r}
            for r in (0.5, 1.0, 2.0)
        ],
        "saturation": {"rate_rps": 1.0, "output_tok_s": 60.0, "why": "at 2 requests/s 1.7 were served"},
        "speculation": None,
        "quality": [
            {"name": "arithmetic", "status": "pass", "found": "97 of 100", "wanted": "90", "score": 97.0},
            {"name": "gsm8k", "status": "not checked", "found": "no hub", "wanted": "a score", "score": None},
        ],
        "noise": {"spread": 0.03, "limit": 0.1, "repeated": 0, "verdict": "quiet"},
        "notes": ["contexts: the model's 1024 tokens have room for 128, 512 and 900"],
        "sane": {"ok": True, "found": "60 answers: 0 empty"},
        **changes,
    }  # fmt: skip


EXPECT: dict[str, Any] = {
    "decode_tok_s": {1: {"value": 25}, 4: {"min": 12}},
    "ttft_s": {1: {"max": 0.5}},
    "acceptance": {1: {"min": 0.6}},
    "categories": {"coding": {"min": 15}, "json": {"decode_tok_s": {4: {"min": 10}}}},
    "quality": {"arithmetic": {"min": 90}, "gsm8k": {"min": 95}},
}


def report(expect: dict[str, Any] | None = None, **changes: Any) -> RunReport:
    """A report with everything in it; `changes` are those of the measurement."""
    run = RunReport(
        when="20261129T231000Z",
        inventory="lab",
        recipe="lab-tiny",
        release="0260b409d371",
        hosts=[
            HostSeen(name="spark-1", address="172.29.0.11", versions={"system": "debian 12", "GPU": "none"}),
            HostSeen(name="spark-2", address="172.29.0.12"),
        ],
        versions={"Python": "3.11.2", "sparkstack": "0.1.0"},
        deployed={
            "image": "sparkstack/vllm:0123456789ab",
            "base": "vllm/vllm-openai@sha256:" + "0f" * 32,
            "checkpoint": "ba9876543210",
            "source": {"repo": "org/m", "revision": "ab" * 20},
            "transforms": ["register_mtp", "reshard"],
        },
    )  # fmt: skip
    for number, stage in enumerate(("host", "docker", "fabric", "link", "serve", "benchmark")):
        for host in ("spark-1", "spark-2"):
            status: Any = "changed" if number % 2 else "ok"
            run.add(stage, host, f"{stage} is as declared", status, 0.4 + 7 * number)
    line = {"host": "spark-1", "name": "both rails to spark-2", "status": "ok", "remedy": ""}
    run.links = {"lines": [{**line, "found": "92 + 97 = 189 Gb/s", "wanted": "≥ 160 Gb/s"}]}
    run.seconds, run.endpoint, run.model, run.head = 94.2, "http://10.0.0.1:8000", "org/m", "spark-1"
    run.measurement = measurement(**changes)
    run.verdict = gates.judge(run.measurement, EXPECT if expect is None else expect).as_dict()
    return run


EVIL = "\"><script>document.title='owned'</script><img src=http://evil.invalid/x onerror=alert(1)>{{7*7}}"


def hostile() -> RunReport:
    """Every text that comes from outside is markup, a template, a long word, or a control code."""
    word = EVIL + "\x1b[31m\x00 " + "w" * 300
    run = report()
    assert run.measurement is not None
    run.measurement["points"] += [point(1, 20, category=word), {"streams": "x"}, None]
    run.measurement["quality"] += [{"name": word, "status": word, "found": word, "wanted": word}]
    run.measurement["server"]["version"] = word
    run.measurement["notes"] = [word]
    run.measurement["profile"]["name"] = run.measurement["when"] = word
    run.measurement["saturation"]["why"] = word
    run.measurement["points"][0]["failures"], run.measurement["points"][0]["failed"] = [word], 1
    run.verdict = gates.judge({**run.measurement, "points": [run.measurement["points"][0]]}, EXPECT).as_dict()
    run.model, run.inventory, run.recipe, run.endpoint = word, word, word, f"http://{word}"
    run.hosts = [HostSeen(name=word, address=word, versions={word: word})]
    run.deployed = {"image": word, "source": {word: word}, "transforms": [word]}
    run.add("stage", word, word, "changed", 1)
    run.failures.append(word)
    run.links = {"lines": [{"host": word, "name": word, "status": word, "found": word, "wanted": word}]}
    run.serving, run.serving_measurement = word, {"points": []}
    return run
