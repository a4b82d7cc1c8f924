"""benchmarks.tools: the pace that is promised, and when tools are said to agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tools import __main__ as tools
from benchmarks.tools import paced
from benchmarks.tools.runners import Server, ToolError, Work, run
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
