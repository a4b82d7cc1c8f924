"""benchmarks.tools: the pace that is promised, and when tools are said to agree."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tools import __main__ as tools
from benchmarks.tools import paced
from benchmarks.tools.runners import Server, ToolError, Work, run
from benchmarks.tools.wire import Exchange, Tap, tapped
from onhost.bench.client import Target, ask
from onhost.http_client import make_async_client

SERVER = Server("http://here", "tiny", Path("/none"), "image")
WORK = Work(100, 12, 1, 2)


def test_the_truth_of_a_pace() -> None:
    assert paced.chunks_of(12) == [1, 3, 2, 1, 3, 2] and paced.chunks_of(5) == [1, 3, 1]
    truth = paced.Truth.of(12)
    assert truth.decode_tok_s == pytest.approx(11 / (5 * paced.GAP)) and truth.ttft_s == paced.FIRST
    assert truth.end_to_end_s == pytest.approx(paced.FIRST + 5 * paced.GAP)


def test_the_paced_server_says_what_a_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "FIRST", 0.0)
    monkeypatch.setattr(paced, "GAP", 0.001)

    async def main(url: str) -> None:
        async with make_async_client(connections=1, headers=None) as client:
            assert (await client.get(f"{url}/v1/models")).json()["data"][0]["id"] == "paced"
            for endpoint in ("chat", "completions"):
                sample = await ask(client, Target(url, "paced", endpoint, 20), "a b c", 12)
                assert (sample.tokens, sample.ids, sample.first_tokens, sample.chunks) == (12, 12, 1, 6)
                assert sample.odd is None and sample.prompt_tokens

    with paced.serving() as url:
        asyncio.run(main(url))


@pytest.mark.parametrize(("other", "agree"), [(102.9, True), (97.1, True), (103.2, False), (96.0, False)])
def test_agreement(monkeypatch: pytest.MonkeyPatch, capsys: Any, other: float, agree: bool) -> None:
    def tool(rate: float) -> Any:
        return lambda *_: {"decode_tok_s": rate, "ttft_s": 0.5}

    monkeypatch.setattr(tools, "TOOLS", {"sparkstack": tool(100.0), "other": tool(other)})
    found = tools.compared(SERVER, WORK, 2, None)
    assert found["agree"] is agree and found["ratios"] == {
        "other": {"decode_tok_s": round(other / 100, 4), "ttft_s": 1}
    }
    assert f"other: decode_tok_s {other:.4g}, ttft_s 0.5" in capsys.readouterr().out
    # All of them agreeing on a wrong figure is not enough where the truth is known.
    assert tools.compared(SERVER, WORK, 1, {"decode_tok_s": 110.0, "ttft_s": 0.5})["agree"] is False


def test_a_tool_that_fails_is_one_line() -> None:
    with pytest.raises(ToolError, match=r"^found no no-such-tool \(No such file or directory\)"):
        run(["no-such-tool"])
    with pytest.raises(ToolError, match=r"^sh ended with 3: no such option$"):
        run(["sh", "-c", "echo no such option; exit 3"])


def _said(text: str, at: float, **more: Any) -> tuple[float, bytes]:
    data = {"choices": [{"delta": {"role": "assistant", "content": text}}], **more}
    return at, b"5f\r\ndata: " + json.dumps(data).encode() + b"\n\n\r\n"


def test_a_stream_is_read_off_the_wire() -> None:
    usage = (14.5, b'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\ndata: [DONE]\n\n')
    pieces = [_said("", 10.5), _said("a", 11.0), _said("b", 12.0), _said("c", 13.0), _said("d", 14.0), usage]
    assert Exchange(10.0, pieces).stream(4) == {"ttft_s": 1, "decode_tok_s": 1, "end_to_end_s": 4}
    # An event that comes in two pieces has come with the second one.
    at, last = pieces[4]
    cut = [*pieces[:4], (at, last[:20]), (15.0, last[20:]), usage]
    assert Exchange(10.0, cut).stream(4) == {"ttft_s": 1, "decode_tok_s": 0.75, "end_to_end_s": 5}
    # Another length, no stream, one text: not what was asked for.
    assert Exchange(10.0, pieces).stream(5) is None
    assert Exchange(10.0, [(11.0, b'{"choices": [{"text": "a"}]}')]).stream(1) is None
    assert Exchange(10.0, pieces[:2]).stream(1) is None


def test_a_tap_passes_all_on_and_keeps_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "FIRST", 0.0)
    monkeypatch.setattr(paced, "GAP", 0.001)
    with paced.serving() as url, tapped(url) as tap:
        body = {"prompt": "a", "max_tokens": 12, "stream": True}
        for _ in range(3):
            asked = urllib.request.Request(f"{tap.url}/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(asked, timeout=10) as answer:
                assert b"[DONE]" in answer.read()
        assert len(tap.exchanges) == 3
        found = tap.figures(2, 12)
        assert found is not None and found["end_to_end_s"] > found["ttft_s"] > 0
        assert tap.figures(1, 12) is None  # forgotten


def test_with_a_tap_a_server_that_slows_down_is_not_a_tool_that_disagrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tap, rates = Tap("http://here"), iter([100.0, 50.0, 90.0, 60.0])
    now = [0.0]

    def tool(wrong: float) -> Any:
        def asks(*_: Any) -> dict[str, float]:
            now[0] = next(rates)
            return {"decode_tok_s": now[0] * wrong}

        return asks

    monkeypatch.setattr(tap, "figures", lambda *_: {"decode_tok_s": now[0], "ttft_s": 1.0})
    monkeypatch.setattr(tools, "TOOLS", {"sparkstack": tool(1.0), "other": tool(1.01)})
    found = tools.compared(SERVER, WORK, 2, None, tap)
    assert found["agree"] is True and found["ratios"] == {"other": {"decode_tok_s": 1.01}}
    rates = iter([100.0, 100.0])
    monkeypatch.setattr(tools, "TOOLS", {"sparkstack": tool(1.0), "other": tool(0.96)})
    assert tools.compared(SERVER, WORK, 1, None, tap)["agree"] is False
    rates = iter([100.0, 100.0])
    monkeypatch.setattr(tap, "figures", lambda *_: None)
    with pytest.raises(ToolError, match=r"^sparkstack: fewer than 2 whole streams of 12 tokens passed$"):
        tools.compared(SERVER, WORK, 1, None, tap)
