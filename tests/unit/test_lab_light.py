"""The lab's light engine: what it answers, and that a rank that stops or ends does what a real one does."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lab import light_engine, light_image
from lab.light_engine import Died, Engine, Group, Handler, Server, follow, parser
from onhost import ready
from onhost.bench import client as bench

MODEL = "light"
HERE = "127.83.1.1"
"""Where no other test takes the port that was free a moment ago."""


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    words = ["--model", MODEL, "--token-ms", "0", "--accept", "0.5", *getattr(request, "param", [])]
    engine = Engine(parser().parse_args(words), Group("", 0, 1, 1))
    server = Server("127.0.0.1", 0, type("Bound", (Handler,), {"engine": engine}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def measured(url: str) -> list[tuple[int, int | None]]:
    """Tokens by usage and by ids of an answer of each kind."""
    found = []
    async with httpx.AsyncClient() as client:
        for endpoint in ("chat", "completions"):
            sample = await bench.ask(client, bench.Target(url, MODEL, endpoint, 5), "One two", 12)
            found.append((sample.tokens, sample.ids))
    return found


def test_what_asks_a_real_engine_is_content_with_it(url: str) -> None:
    with httpx.Client() as client:
        assert ready.attempt({}, url, MODEL, 5) is None
        with pytest.raises(ready.JobError, match="HTTP 404 for model 'other'"):
            ready.attempt({}, url, "other", 5)
        assert asyncio.run(measured(url)) == [(12, 12), (12, 12)]
        assert client.get(f"{url}/v1/models").json()["data"][0]["id"] == MODEL
        assert client.get(f"{url}/health").status_code == 200
        text = client.get(f"{url}/metrics").text
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    assert f"vllm:generation_tokens_total{labels} 28.0" in text
    assert f"vllm:spec_decode_num_accepted_tokens_total{labels} 18.0" in text
    assert f"vllm:num_requests_waiting{labels} 0.0" in text


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b'{"prompt": "x", "max_tokens": -1}', 400), (b"[]", 400)]
)
def test_what_it_refuses(url: str, body: bytes, status: int) -> None:
    answer = httpx.post(f"{url}/v1/completions", content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_a_key_is_wanted_where_there_is_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k3y")
    engine = Engine(parser().parse_args(["--model", MODEL]), Group("", 0, 1, 1))
    assert engine.key == "k3y"
    Handler.engine = engine
    try:
        bound = Server("127.0.0.1", 0, Handler)
        threading.Thread(target=bound.serve_forever, args=(0.01,), daemon=True).start()
        place = f"http://127.0.0.1:{bound.server_address[1]}/v1/models"
        assert httpx.get(place).status_code == 401
        assert httpx.get(place, headers={"Authorization": "Bearer k3y"}).status_code == 200
        bound.shutdown()
        bound.server_close()
    finally:
        del Handler.engine


def test_ranks_meet_step_and_end_together() -> None:
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    ended: list[str] = []

    def worker(rank: int) -> None:
        try:
            follow(rank, HERE, port, 10)
        except SystemExit as error:
            ended.append(str(error))

    workers = [threading.Thread(target=worker, args=(rank,), daemon=True) for rank in (1, 2)]
    for one in workers:
        one.start()  # before the head: they wait for it
    group = Group(HERE, port, 3, 10)
    for _ in range(3):
        group.step()
    said: list[str] = []
    watcher = threading.Thread(target=group.watch, args=(said.append,), daemon=True)
    watcher.start()
    group.ranks[2].shutdown(socket.SHUT_RDWR)  # rank 2 dies
    watcher.join(10)
    assert said == ["rank 2 is gone"]
    with pytest.raises(Died):
        group.step()
    for one in group.ranks.values():
        one.close()
    for thread in workers:
        thread.join(10)
    assert sorted(line.partition(" (")[0] for line in ended) == [
        "rank 1: the head is gone",
        "rank 2: the head is gone",
    ]


def test_ranks_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_engine, "RETRY_S", 0.0)
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SystemExit, match=r"ranks \[1\] did not come in 0 s"):
        Group(HERE, port, 2, 0)
    with pytest.raises(SystemExit, match="no head at 127"):
        follow(1, HERE, port, 0)


def test_the_image_holds_the_script_and_nothing_that_runs() -> None:
    with tarfile.open(fileobj=io.BytesIO(light_image.archive())) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        assert [one.name for one in files] == [light_image.INSIDE]
        script = tar.extractfile(files[0])
        assert script is not None and script.read() == Path(light_engine.__file__).read_bytes()
    assert json.dumps(light_image.tag()).startswith('"sparkstack-lab/light:')
