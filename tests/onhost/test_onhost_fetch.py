"""Share and fetch-checkpoint together: what comes over is the head's, and nothing else can be had."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from deadly import Deadly, end_of, in_a_child
from making import model_files, write_repo
from spark import Host

from onhost import share as sharing
from onhost.files import sha256_of, write_json
from onhost.staging import fetch, manifest, ranged, transfer
from onhost.staging.chain import folder_view

TOKEN = "s3cret-share-token"


@pytest.fixture
def staged(host: Host) -> Path:
    """A finished checkpoint on the head."""
    folder = host.checkpoints / "abc123"
    view = write_repo(folder, model_files())
    files = {name: (path.stat().st_size, sha256_of(path)) for name, path in view.items()}
    made = manifest.make("abc123", {"repo": "org/tiny", "revision": "0" * 40}, [], files)
    write_json(folder / "manifest.json", made.raw)
    return folder


def plan_of(worker: Host, url: str, token: Path, **keys: object) -> Path:
    return worker.write_plan(
        "fetch-checkpoint",
        **{"id": "abc123", "checkpoints_dir": str(worker.checkpoints), "url": url, "streams": 4}
        | {"token_file": str(token)}
        | keys,
    )


def get(
    url: str, path: str, token: str | None = TOKEN, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_fetches_the_heads_checkpoint(worker: Host, staged: Path, share: str, token: Path) -> None:
    plan = plan_of(worker, share, token)
    result = worker.run(plan)
    mine = worker.checkpoints / "abc123"
    assert result["value"] == manifest.read(staged).value()
    assert {n: p.read_bytes() for n, p in folder_view(mine).items()} == {
        n: p.read_bytes() for n, p in folder_view(staged).items()
    }
    assert sorted(p.name for p in worker.checkpoints.iterdir()) == [".abc123.lock", "abc123"]
    lines = worker.progress(plan)
    assert [line["stage"] for line in lines if line["done"] == line["total"]] == ["fetch"]
    again = worker.run(plan_of(worker, "http://127.0.0.1:9", token))  # stands already: asks nobody
    assert again["value"] == result["value"]


def test_goes_on_where_a_killed_run_was(worker: Host, staged: Path, share: str, token: Path) -> None:
    big = "model-00001-of-00002.safetensors"
    content = (staged / big).read_bytes()
    parts = worker.checkpoints / "abc123.partial" / ".parts"
    parts.mkdir(parents=True)
    # As a kill leaves them: two segments there, one file whole, one wrong, one that nobody wants any more.
    (parts / f"{big}.part").write_bytes(content[:400] + bytes(len(content) - 400))
    (parts / f"{big}.segments").write_text(f"{len(content)} 200\n0\n1\n9")
    for name, text in {"config.json": (staged / "config.json").read_bytes(), "old": b"x"}.items():
        (parts.parent / name).write_bytes(text)
    (parts.parent / "assets").mkdir()
    (parts.parent / "assets/chat.txt").write_bytes(b"HELLO\n")
    plan = plan_of(worker, share, token)
    assert worker.run(plan)["ok"]
    mine = worker.checkpoints / "abc123"
    assert manifest.faults(mine, manifest.read(mine)) == []
    check = [line for line in worker.progress(plan) if line["stage"] == "check"]
    assert check[0]["note"] == "2 files from an earlier run"


@pytest.mark.parametrize("journal", ["", "junk\n0\n", "999 200\n0\n1\n2\n3\n4\n5\n", "\xff\n"])
def test_a_journal_of_something_else_is_ignored(
    worker: Host, staged: Path, share: str, token: Path, journal: str
) -> None:
    big = "model-00001-of-00002.safetensors"
    parts = worker.checkpoints / "abc123.partial" / ".parts"
    parts.mkdir(parents=True)
    (parts / f"{big}.part").write_bytes(bytes((staged / big).stat().st_size))
    (parts / f"{big}.segments").write_bytes(journal.encode("latin-1"))
    assert worker.run(plan_of(worker, share, token))["ok"]


def test_a_wrong_hash_from_the_share(worker: Host, staged: Path, share: str, token: Path) -> None:
    path = staged / "config.json"
    blob = bytearray(path.read_bytes())
    path.unlink()
    blob[3] ^= 1
    path.write_bytes(blob)
    error = worker.run(plan_of(worker, share, token))["error"]
    assert error.startswith("found config.json with sha256 ")
    assert ", twice; wanted the content that its source announces" in error
    assert sorted(p.name for p in worker.checkpoints.iterdir()) == [".abc123.lock", "abc123.partial"]


def test_a_file_that_became_shorter_on_the_head(worker: Host, staged: Path, share: str, token: Path) -> None:
    os.truncate(staged / "model_extra_tensors.safetensors", 100)
    error = worker.run(plan_of(worker, share, token))["error"]
    assert "found 100 bytes announced for model_extra_tensors.safetensors; wanted" in error


def test_401_and_404_from_the_share(worker: Host, staged: Path, share: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("other-token")
    result = worker.run(plan_of(worker, share, wrong))
    where = f"{share}/checkpoints/abc123/manifest.json"
    assert result["error"].startswith(f"found HTTP 401 at {where}; wanted access")
    assert "other-token" not in json.dumps(result)
    wrong.write_text(TOKEN)
    error = worker.run(plan_of(worker, share, wrong, id="fff"))["error"]
    assert "found HTTP 404" in error and "stage it on the head first" in error
    (staged / "config.json").unlink()
    error = worker.run(plan_of(worker, share, wrong))["error"]
    assert error.startswith("found HTTP 404") and "config.json; wanted the head's checkpoint" in error


def test_nobody_shares(worker: Host, token: Path) -> None:
    error = worker.run(plan_of(worker, "http://127.0.0.1:9", token))["error"]
    assert "'[Errno 111] Connection refused' from 127.0.0.1:9" in error and "the head still shares" in error
    assert "wanted http://ADDRESS:PORT" in worker.run(plan_of(worker, "https://h", token))["error"]
    assert "wanted letters, digits" in worker.run(plan_of(worker, "http://h", token, id="../x"))["error"]


class Odd(BaseHTTPRequestHandler):
    """A server that answers each path once with what a test has set."""

    answers: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path.rsplit("/", 1)[1], (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"<html>", "found no manifest in"),
        (b'{"format": 2}', "found format 2 in"),
        (b'{"format": 1, "id": "zzz", "files": {}}', "found a manifest of zzz at"),
        (b'{"format": 1, "id": "abc123", "files": {"../../etc/x": {"size": 1, "sha256": "a"}}}',
         "found the file name '../../etc/x'; wanted a relative path inside the folder"),
        (b'{"format": 1, "id": "abc123", "files": {"x": {"size": 500, "sha256": "a"}}}',
         "found a server that ignores Range for x; wanted status 206"),
    ],
)  # fmt: skip
def test_a_head_that_sends_nonsense(worker: Host, odd: str, token: Path, text: bytes, found: str) -> None:
    Odd.answers = {"manifest.json": (200, text), "x": (200, bytes(500))}
    assert worker.run(plan_of(worker, odd, token))["error"].startswith(found)


def test_how_long_a_server_asks_to_wait() -> None:
    def asked(**headers: str) -> float:
        return transfer.asked_wait(transfer.Answer(429, headers, lambda: iter(())))

    assert asked() == 0
    assert asked(**{"retry-after": "7"}) == 7
    assert asked(ratelimit='"resolvers";r=0;t=41') == 41
    assert asked(**{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "ratelimit": '"api";r=0;t=9999'}) == 9999
    assert asked(**{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}) == 0  # has passed
    assert asked(**{"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}) > 1e9
    assert asked(**{"retry-after": "soon"}) == 0


def test_stop_ends_the_streams(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    wanted = transfer.Wanted(
        "x", ["http://127.0.0.1:9/x"], 10, lambda _: None, tmp_path / "x", tmp_path / "p",
        lambda *_: fetch._refusal(500, "x"),
    )  # fmt: skip
    fetcher = ranged.Fetcher(
        lambda *_: pytest.fail("asked"), streams=1, stop=stop, on_bytes=lambda _: None
    )
    with pytest.raises(Exception, match="found the job stopping"):
        fetcher.fetch([wanted])


def test_the_share_gives_ranges(staged: Path, share: str) -> None:
    path = "/checkpoints/abc123/config.json"
    content = (staged / "config.json").read_bytes()
    status, headers, body = get(share, path)
    assert (status, body, headers["accept-ranges"]) == (200, content, "bytes")
    spans = {"2-5": (2, 6), "3-": (3, 28), "-4": (24, 28), "20-999": (20, 28), "-999": (0, 28)}
    for asked, (begin, end) in spans.items():
        status, headers, body = get(share, path, Range=f"bytes={asked}")
        assert (status, body) == (206, content[begin:end])
        assert headers["content-range"] == f"bytes {begin}-{end - 1}/{len(content)}"
    for asked in ("28-", "99-100", "-0"):
        status, headers, _ = get(share, path, Range=f"bytes={asked}")
        assert (status, headers["content-range"]) == (416, "bytes */28")
    for asked in ("bytes=0-1,3-4", "bytes=5-2", "lines=1-2", "bytes=-", "bytes=a-b"):
        assert get(share, path, Range=asked)[2] == content
    status, headers, body = get(share, path, method="HEAD")
    assert (status, headers["content-length"], body) == (200, "28", b"")


def test_the_share_wants_its_token(staged: Path, share: str, token: Path) -> None:
    for wrong in (None, "", "s3cret", TOKEN + "x", "ünïcode".encode().decode("latin-1")):
        for path in ("/checkpoints/abc123/config.json", "/images/x", "/nothing"):
            assert get(share, path, wrong)[::2] == (401, b"")
    token.write_text("another-one")  # the next run's token counts at once
    assert get(share, "/checkpoints/abc123/config.json")[0] == 401
    assert get(share, "/checkpoints/abc123/config.json", "another-one")[0] == 200
    token.unlink()
    assert get(share, "/checkpoints/abc123/config.json", "another-one")[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/checkpoints/",
        "/checkpoints/abc123",
        "/checkpoints/abc123/",
        "/checkpoints/abc123/none",
        "/checkpoints/abc123/../../token",
        "/checkpoints/abc123/%2e%2e/%2e%2e/token",
        "/checkpoints/../x/y",
        "/checkpoints/%2e%2e/token",
        "/checkpoints/abc123//etc/passwd",
        "/checkpoints/abc123.partial/manifest.json",
        "/checkpoints/abc123/link",
        "/checkpoints/abc123/unlisted",
        "/images/",
        "/images/-h",
        "/images/..%2fx%20y",
        "/images/none-of-this:ever",
    ],
)
def test_nothing_else_can_be_had(staged: Path, share: str, path: str) -> None:
    (staged / "unlisted").write_text("x")
    (staged / "link").symlink_to("/etc/passwd")
    data = json.loads((staged / "manifest.json").read_text())
    data["files"]["link"] = {"size": 1, "sha256": "0"}
    (staged / "manifest.json").write_text(json.dumps(data))
    partial = staged.with_name("abc123.partial")
    partial.mkdir()
    (partial / "manifest.json").write_text("{}")
    assert get(share, path)[::2] == (404, b"")


def test_a_peer_that_goes_away(staged: Path, share: str) -> None:
    address = urlsplit(share)
    with socket.create_connection((str(address.hostname), address.port or 0)) as peer:
        head = f"GET /checkpoints/abc123/config.json HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        peer.sendall(head.encode())
    assert get(share, "/checkpoints/abc123/config.json")[0] == 200


def test_the_command_says_why_it_cannot_share(
    tmp_path: Path, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sharing.main(["127.0.0.1"], 0, tmp_path / "none", tmp_path) == 1
    assert "found no readable secret" in capsys.readouterr().err
    assert sharing.main(["203.0.113.7", "203.0.113.8"], 0, token, tmp_path) == 1
    assert "on listening at 203.0.113.7:0; wanted the fabric's address" in capsys.readouterr().err


Served = list[tuple[int, str, int]]  # (port, path, status)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """What the shares have answered."""
    log: Served = []

    def note(self: sharing.Handler, _format: str, *words: object) -> None:
        log.append((self.server.server_address[1], str(words[0]).split()[1], int(str(words[1]))))

    monkeypatch.setattr(sharing.Handler, "log_message", note)
    return log


@pytest.fixture
def relay(worker: Host, token: Path) -> Iterator[str]:
    """The first worker's share: it gives what it has received."""
    server = sharing.Share(("127.0.0.1", 0), token, worker.checkpoints, relay=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("order", ["together", "first is done", "first never comes"])
def test_a_chain(
    host: Host, worker: Host, staged: Path, share: str, relay: str, token: Path, served: Served, order: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """The second host takes from the first, also while that one still receives; from the head at need."""
    monkeypatch.setattr(fetch, "PATIENCE", 0.3 if order == "first never comes" else 30.0)
    second = Host(tmp_path / "second")
    first_plan = plan_of(worker, share, token)
    plan = second.write_plan(
        "fetch-checkpoint", id="abc123", checkpoints_dir=str(second.checkpoints), urls=[relay, share],
        streams=4, token_file=str(token),
    )  # fmt: skip
    if order == "first is done":
        assert worker.run(first_plan)["ok"]
        served.clear()
    results: list[dict[str, object]] = []
    other = threading.Thread(target=lambda: results.append(second.run(plan)))
    other.start()
    if order == "together":
        while not any(status == 503 for _, _, status in served):
            other.join(0.01)  # it asks the first, which says: not yet
        assert worker.run(first_plan)["ok"]
    other.join()
    assert results[0]["ok"]
    mine = second.checkpoints / "abc123"
    assert manifest.faults(mine, manifest.read(mine)) == []
    head, first = (urlsplit(url).port for url in (share, relay))
    from_first = [path for port, path, status in served if port == first and status in (200, 206)]
    if order == "first never comes":
        assert from_first == []
    else:
        asked_of_head = [path for port, path, _ in served if port == head and "manifest" not in path]
        assert len(from_first) >= 6
        assert asked_of_head == [] or order == "together"  # what the first itself has asked


def test_a_wrong_file_in_the_middle_of_a_chain(
    worker: Host, staged: Path, share: str, relay: str, token: Path, tmp_path: Path
) -> None:
    """What the first host's disk has spoiled comes from the head instead."""
    assert worker.run(plan_of(worker, share, token))["ok"]
    spoiled = worker.checkpoints / "abc123" / "model-00001-of-00002.safetensors"
    blob = bytearray(spoiled.read_bytes())
    blob[-3] ^= 4
    spoiled.write_bytes(blob)
    second = Host(tmp_path / "second")
    plan = second.write_plan(
        "fetch-checkpoint", id="abc123", checkpoints_dir=str(second.checkpoints), urls=[relay, share],
        streams=4, token_file=str(token),
    )  # fmt: skip
    assert second.run(plan)["ok"]
    mine = second.checkpoints / "abc123"
    assert manifest.faults(mine, manifest.read(mine)) == []


def test_a_relay_gives_nothing_that_it_has_not_looked_at(worker: Host, staged: Path, relay: str) -> None:
    path = "/checkpoints/abc123/config.json"
    status, headers, _ = get(relay, path)
    assert (status, headers["x-not-yet"]) == (503, "1")
    partial = worker.checkpoints / "abc123.partial"
    write_repo(partial, {"config.json": b"?", ".parts/manifest.json": b"{}"})
    (partial / ".parts/manifest.json").unlink()
    assert get(relay, path)[0] == 503  # a killed run's file, which nobody has hashed
    (partial / ".parts/manifest.json").write_bytes((staged / "manifest.json").read_bytes())
    assert get(relay, path)[::2] == (200, b"?")
    for name in ("%2e%2e/%2e%2e/token", ".parts/manifest.json", "none"):
        assert get(relay, f"/checkpoints/abc123/{name}")[0] == 404


def test_damage_on_a_worker_is_mended_from_the_head(
    worker: Host, staged: Path, share: str, token: Path, served: Served
) -> None:
    plan = plan_of(worker, share, token)
    assert worker.run(plan)["ok"]
    mine = worker.checkpoints / "abc123"
    os.truncate(mine / "model_extra_tensors.safetensors", 90)
    (mine / "assets/chat.txt").unlink()
    served.clear()
    assert worker.run(plan)["ok"]
    assert manifest.faults(mine, manifest.read(mine)) == []
    asked = {path.removeprefix("/checkpoints/abc123/") for _, path, _ in served}
    assert asked == {"manifest.json", "model_extra_tensors.safetensors", "assets/chat.txt"}
    assert sorted(p.name for p in worker.checkpoints.iterdir()) == [".abc123.lock", "abc123"]
    (mine / "config.json").write_bytes(b"other")
    raw = json.loads((staged / "manifest.json").read_text())
    raw["files"]["config.json"]["sha256"] = "0" * 64
    write_json(staged / "manifest.json", raw)
    error = worker.run(plan)["error"]
    assert error.startswith(f"found {mine} damaged (config.json) and of another content than the head's; ")


def test_a_kill_at_every_moment_of_a_fetch(
    tmp_path: Path, staged: Path, share: str, token: Path
) -> None:
    """kill -9 before each sync, rename and removal, while receiving and while mending."""
    for name in ("assets/chat.txt", "model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        raw = json.loads((staged / "manifest.json").read_text())
        del raw["files"][name]
        write_json(staged / "manifest.json", raw)

    def mine(host: Host) -> dict[str, bytes]:
        return {n: p.read_bytes() for n, p in folder_view(host.checkpoints / "abc123").items()}

    def hurt(host: Host, plan: Path) -> None:
        assert host.run(plan)["ok"]
        os.truncate(host.checkpoints / "abc123" / "model_extra_tensors.safetensors", 7)

    for mending in (False, True):
        first = Host(tmp_path / f"whole-{mending}")
        plan = plan_of(first, share, token)
        if mending:
            hurt(first, plan)
        assert end_of(in_a_child(lambda: Deadly(None, tmp_path / "count"), plan)) == 0
        moments, reference = int((tmp_path / "count").read_text()), mine(first)
        assert moments > 10
        for moment in range(1, moments + 1, 1 if os.environ.get("THOROUGH_TESTS") else 9):
            host = Host(tmp_path / f"at-{mending}-{moment}")
            plan = plan_of(host, share, token)
            if mending:
                hurt(host, plan)
            ended = end_of(in_a_child(lambda moment=moment: Deadly(moment, tmp_path), plan))  # type: ignore[misc]
            assert ended in (-signal.SIGKILL, 0)
            assert host.run(plan)["ok"]
            assert mine(host) == reference
            assert sorted(p.name for p in host.checkpoints.iterdir()) == [".abc123.lock", "abc123"]
