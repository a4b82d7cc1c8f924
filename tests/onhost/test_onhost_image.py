"""Jobs image and fetch-image against the local Docker daemon, with images of a few bytes from nothing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from spark import Host
from tiny_registry import image_blobs, registry

from onhost import docker_cli, image, pull
from onhost.docker_cli import check_tag, inspect_image
from onhost.plan import JobError, Plan


def docker(*arguments: str, data: bytes | None = None) -> str:
    done = subprocess.run(["docker", *arguments], input=data, capture_output=True, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


needs_docker = pytest.mark.skipif(
    not docker("version", "-f", "{{.Server.Version}}"), reason="no Docker daemon here"
)


@pytest.fixture
def tag() -> Iterator[str]:
    """A tag of this test alone; gone afterwards, with everything that was made under it."""
    name = f"onhost-test/{uuid.uuid4().hex[:12]}:t"
    yield name
    docker("image", "rm", "-f", name, name.replace(":t", ":base"))
    docker("image", "prune", "-f", "--filter", f"label=base={BASE}")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("ARG BASE=none\nFROM scratch\nARG BASE\nLABEL base=$BASE\nCOPY f /f\n")
    (folder / "f").write_text(uuid.uuid4().hex)
    return folder


BASE = "onhost-test/none@sha256:" + "0" * 64


@pytest.fixture
def based(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the base were on this host already."""
    real = inspect_image
    for module in (image, pull):
        monkeypatch.setattr(module, "inspect_image", lambda name: {"Id": "x"} if name == BASE else real(name))


def plan_of(host: Host, tag: str, context: Path, **keys: Any) -> Path:
    plan = {"tag": tag, "base": BASE, "context": str(context), "build_args": {}}
    return host.write_plan("image", **plan | keys)


@needs_docker
@pytest.mark.usefixtures("based")
def test_builds_and_tags_last(host: Host, tag: str, context: Path) -> None:
    plan = plan_of(host, tag, context, build_args={"X": "1"})
    result = host.run(plan)
    found = inspect_image(tag)
    assert found is not None
    assert result["value"] == {"tag": tag, "image_id": found["Id"], "bytes": found["Size"]}
    assert found["Config"]["Labels"]["base"] == BASE
    lines = [line for line in host.progress(plan) if line["stage"] == "build"]
    assert lines[-1]["unit"] == "steps" and lines[-1]["total"] >= 3
    (context / "Dockerfile").write_text("nonsense\n")
    again = host.run(plan)  # the tag stands for its inputs: nothing is built
    assert again["value"] == result["value"]
    assert [line["stage"] for line in host.progress(plan)] == ["done"]


@needs_docker
@pytest.mark.usefixtures("based")
def test_a_failing_build_gives_its_last_words(host: Host, tag: str, context: Path) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("COPY not-there /x\n")
    error = host.run(plan_of(host, tag, context))["error"]
    assert error.startswith("found a failing build: ") and "not-there" in error
    assert error.endswith("wanted an image; see this unit's journal for the whole output")
    assert inspect_image(tag) is None


def test_meaningful_words_of_builders() -> None:
    classic = [
        "Sending build context to Docker daemon  2.048kB",
        "Step 3/4 : RUN pip install nothing-such",
        " ---> Running in 0123456789ab",
        "ERROR: No matching distribution found for nothing-such",
        "",
        "Removing intermediate container 0123456789ab",
        "The command '/bin/sh -c pip install nothing-such' returned a non-zero code: 1",
    ]
    assert image.meaningful(classic) == (
        "ERROR: No matching distribution found for nothing-such | "
        "The command '/bin/sh -c pip install nothing-such' returned a non-zero code: 1"
    )
    buildkit = [
        "#7 [3/4] RUN pip install nothing-such",
        "#7 0.912 ERROR: No matching distribution found for nothing-such",
        '#7 ERROR: process "/bin/sh -c pip" did not complete successfully: exit code: 1',
        "------",
        "Dockerfile:3",
        "--------------------",
        "ERROR: failed to solve",
    ]
    said = image.meaningful(buildkit)
    assert said.startswith("ERROR: No matching distribution found for nothing-such | ERROR: process")
    assert image.meaningful(["", " ---> abc"]) == "no output"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("#9 3.1 error: write /x: no space left on device", "the disk is full"),
        ("#9 3.1 operation timed out", "the network failed"),
        ("#9 3.1 something else", None),
    ],
)
def test_what_buildkit_repeats_of_the_dockerfile_is_no_cause(said: str, cause: str | None) -> None:
    step = 'if ! python -c "import torch"; then echo "no CUDA, timeout"; fi'
    failed = f'process "/bin/sh -c {step}" did not complete successfully: exit code: 1'
    echo = ["  21 |     ENV UV_HTTP_TIMEOUT=600", f"  22 | >>> RUN {step}", "  23 |     "]
    again = ["-" * 6, f" > [builder 3/7] RUN {step}:", said.partition(" ")[2], "-" * 6]
    tail = [f"#9 [builder 3/7] RUN {step}", said, f"#9 ERROR: {failed}", *again]
    tail += ["Dockerfile.buildkit:22", "-" * 20, *echo, "-" * 20]
    tail += [f"ERROR: failed to build: failed to solve: {failed}"]
    found = image.likely_cause(tail)
    assert found is None if cause is None else found is not None and found.startswith(cause)
    assert said.partition(" ")[2].partition(" ")[2] in image.meaningful(tail)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("error: write /x: no space left on device", "the disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE", "a file is not the one that was pinned"),
        ("     Hash mismatch for wheel.whl", "a file is not the one that was pinned"),
        ("sha256sum: WARNING: 1 computed checksum did NOT match", "a file is not the one that was pinned"),
        ("ReadTimeoutError: HTTPSConnectionPool(host='pypi.org'): Read timed out.", "the network failed"),
        ("E: Temporary failure in name resolution", "the network failed"),
        ("ImportError: _C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "torch and what was built"),
        ("error: patch failed: csrc/quantization/a.cuh:25", "a change does not fit"),
        ("#9 1.52 error: csrc/libtorch_stable/a.cuh: No such file or directory", "a change does not fit"),
        ("error: csrc/a.cuh: patch does not apply", "a change does not fit"),
        ("a.cu:1:10: fatal error: cuda.h: No such file or directory", None),
        ("g++: fatal error: Killed signal terminated program cc1plus", "the compiler ran out of memory"),
        ("The command '/bin/sh -c ninja' returned a non-zero code: 2", None),
        ("Step 4/9 : ENV UV_HTTP_TIMEOUT=600", None),
        ("error: no such capability in _C.abi3.so", None),
    ],
)
def test_the_likely_cause_of_a_failed_build(line: str, cause: str | None) -> None:
    found = image.likely_cause(["Step 3/9 : RUN make", line, "", "make: *** [all] Error 2"])
    assert found is None if cause is None else found is not None and found.startswith(cause)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"tag": "-rm"}, "found the image tag '-rm'"),
        ({"tag": "A:b"}, "found the image tag 'A:b'"),
        ({"base": "vllm:latest"}, "found the base 'vllm:latest'; wanted repository@sha256:DIGEST"),
        ({"context": "/nowhere"}, "found no Dockerfile in /nowhere; wanted the build context"),
    ],
)
@needs_docker
def test_plans_are_checked(host: Host, tag: str, context: Path, keys: dict[str, Any], found: str) -> None:
    plan = {"tag": tag, "base": BASE, "context": str(context), **keys}
    assert host.run(host.write_plan("image", **plan))["error"].startswith(found)


@needs_docker
def test_pull_only_takes_the_base_as_it_is(
    host: Host, tag: str, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is built: the tag is the base's own id."""
    made = tag.replace(":t", ":base")
    assert docker("build", "-q", "-t", made, str(context))
    base = inspect_image(made)
    assert base is not None
    monkeypatch.setattr(image, "pull", lambda job, base, mirrors: made)
    result = host.run(host.write_plan("image", tag=tag, base=BASE, context=None))
    assert result["value"]["image_id"] == base["Id"]


@pytest.mark.parametrize(("base", "again"), [("sha256:b", True), ("sha256:t", False), (None, False)])
def test_a_base_s_name_on_another_image_is_put_back(
    monkeypatch: pytest.MonkeyPatch, base: str | None, again: bool
) -> None:
    """What is its base and is proved by nothing is that base; one that was removed cannot be compared."""
    name, ids = f"x@sha256:{64 * '1'}", {"sparkstack/command:1": "sha256:t"}
    if base is not None:
        ids[name] = base
    plan = Plan({"tag": "sparkstack/command:1", "base": name, "context": None})
    job: Any = SimpleNamespace(plan=plan, progress=SimpleNamespace(stage=lambda *_, **__: None))

    def inspected(tag: str) -> dict[str, Any] | None:
        return {"Id": ids[tag], "Size": 1} if tag in ids else None

    monkeypatch.setattr(image, "inspect_image", inspected)
    monkeypatch.setattr(image, "pull", lambda job, base, mirrors: base)
    monkeypatch.setattr(image, "_tag", lambda one, tag: ids.update({tag: ids[one]}))
    assert image.build(job)["image_id"] == ("sha256:b" if again else "sha256:t")


def test_buildkit_gets_the_file_with_cache_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / image.BUILDKIT).write_text("FROM scratch\n")
    started: list[list[str]] = []
    job: Any = SimpleNamespace(progress=SimpleNamespace(stage=lambda *_: None))

    class Ended:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)
            raise KeyboardInterrupt

    monkeypatch.setattr(image.subprocess, "Popen", Ended)
    for there in (False, True):
        monkeypatch.setattr(image, "has_buildkit", lambda there=there: there)
        with pytest.raises(KeyboardInterrupt):
            image._build(job, tmp_path, {})
    wanted = f"--file={tmp_path / image.BUILDKIT}"
    assert [wanted in command for command in started] == [False, True]


def test_tags() -> None:
    for good in ("a", "sparkstack/vllm:0123abc", "registry.local:5000/x/y:tag", "a/b:V1.2_x-3"):
        assert check_tag(good) == good
    for bad in ("", "-x", "a b", "a:b:c", "a;b", "A", "a:" + "x" * 129):
        with pytest.raises(JobError):
            check_tag(bad)


class Daemon:
    """What a pull's stream says; `pull.pull` is fed from it."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines

    def __call__(self, name: str, digest: str) -> Iterator[dict[str, Any]]:
        assert (name, digest) == tuple(BASE.split("@"))
        yield from self.lines


def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
    return {"status": "Downloading", "id": layer, "progressDetail": {"current": current, "total": total}}


@pytest.mark.usefixtures("based")
def test_a_pull_counts_bytes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = [
        {"status": "Pulling from x"},
        {"status": "Already exists", "id": "z", "progressDetail": {}},
        downloading("a", 10, 100),
        downloading("b", 5, 50),
        {"status": "Download complete", "id": "a", "progressDetail": {}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 1, "total": 100}},
        {"status": "Pull complete", "id": "b", "progressDetail": {}},
    ]
    monkeypatch.setattr(pull, "_pull_lines", Daemon(*lines))
    from io import StringIO

    from making import job

    from onhost.jobs import Progress

    text = StringIO()
    made = job(host.root, {})
    made.progress = Progress(text)
    pull._pull(made, BASE)
    made.progress.close()
    last = json.loads(text.getvalue().splitlines()[-1])
    assert (last["stage"], last["done"], last["total"], last["unit"]) == ("pull", 150, 150, "B")


@needs_docker
def test_a_pull_that_fails(host: Host, tag: str, context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "_pull_lines", Daemon({"error": "manifest unknown"}))
    error = host.run(plan_of(host, tag, context))["error"]
    assert error.startswith(f"found 'manifest unknown' on pulling {BASE}; wanted the base image; check")


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("base", "names"),
    [
        ("vllm/x", ["m.example/vllm/x", "n.example:5000/hub/vllm/x"]),
        ("debian", ["m.example/library/debian", "n.example:5000/hub/library/debian"]),
        ("nvcr.io/nvidia/x", []),
        ("localhost/x", []),
        ("127.0.0.1:5000/x", []),
    ],
)
def test_what_a_mirror_calls_an_image(base: str, names: list[str]) -> None:
    mirrors = ["https://m.example/", "http://n.example:5000/hub"]
    assert pull.by_mirrors(f"{base}@{DIGEST}", mirrors) == [f"{name}@{DIGEST}" for name in names]


def test_a_pull_that_stalls_goes_on_at_the_next_mirror(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from making import job

    here: set[str] = set()
    asked: list[str] = []

    def lines(name: str, digest: str) -> Iterator[dict[str, Any]]:
        asked.append(name)
        if name != "b.example/vllm/x":
            yield {"error": "no word for 600 s" if name == "vllm/x" else "connection refused"}
            return
        here.add(f"{name}@{digest}")
        yield {"status": "Pull complete", "id": "a"}

    monkeypatch.setattr(pull, "_pull_lines", lines)
    monkeypatch.setattr(pull, "inspect_image", lambda name: {"Id": "x"} if name in here else None)
    base, mirrors = f"vllm/x@{DIGEST}", ["https://a.example", "https://b.example", "https://c.example"]
    made = job(host.root, {})
    assert pull.pull(made, base, mirrors) == f"b.example/vllm/x@{DIGEST}"
    assert asked == ["vllm/x", "a.example/vllm/x", "b.example/vllm/x"]
    assert pull.pull(made, base, mirrors) == f"b.example/vllm/x@{DIGEST}"  # it is there: nobody is asked
    assert len(asked) == 3
    with pytest.raises(JobError) as caught:
        pull.pull(made, f"vllm/x@sha256:{'1' * 64}", mirrors[:1])
    assert str(caught.value).startswith(
        f"found 'no word for 600 s' on pulling vllm/x@sha256:{'1' * 64} (and 1 mirrors by name: 'connection "
        "refused'); wanted the base image"
    )


def test_a_daemon_that_says_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    path = host.root / "d.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    monkeypatch.setattr(pull, "SOCKET", str(path))
    monkeypatch.setattr(pull, "STALL", 0.05)
    assert list(pull._pull_lines("a", "b")) == [{"error": "no word for 0 s"}]
    listening.close()


def test_a_line_of_the_daemon_ends_at_a_line_feed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [{"status": text} for text in ("a\u2028b\u2029c\x85d é", "", "last")]
    body = b"\r\n".join(json.dumps(line, ensure_ascii=False).encode() for line in wanted)

    def answered(end: bytes, size: int) -> list[dict[str, Any]]:
        whole = body + end
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=iter(pieces)))
        monkeypatch.setattr(pull.httpx, "HTTPTransport", lambda uds: transport)
        return list(pull._pull_lines("a", "b"))

    for size in (1, 7, 4096):  # in the middle of a character, too
        assert answered(b"", size) == answered(b"\r\n\r\n", size) == wanted
    assert answered(b"\n<html>", 9)[-1] == {"error": "a line that is no JSON: '<html>'"}


@needs_docker
def test_pulls_the_base_from_a_registry_and_builds_on_it(host: Host, tag: str, context: Path) -> None:
    (context / "Dockerfile").write_text("ARG BASE\nFROM $BASE\nCOPY f /f\n")
    reference, blobs = image_blobs(3_000_000)
    with registry(blobs) as address:
        base = f"{address}/onhost-test/base@{reference}"
        plan = plan_of(host, tag, context, base=base)
        result = host.run(plan)
        try:
            assert result["ok"], result
            assert result["value"]["bytes"] > 3_000_000
            pulled = [line for line in host.progress(plan) if line["stage"] == "pull"]
            assert pulled[-1]["unit"] == "B" and pulled[-1]["done"] == pulled[-1]["total"] > 3_000_000
            found = inspect_image(tag)
            assert found is not None and len(found["RootFS"]["Layers"]) == 2
        finally:
            docker("image", "rm", "-f", tag, base)
        wrong = f"{address}/onhost-test/base@sha256:{'1' * 64}"
        error = host.run(plan_of(host, tag, context, base=wrong))["error"]
        assert f"on pulling {wrong}; wanted the base image; check the digest" in error


@needs_docker
def test_the_daemon_itself_refuses_a_pull(host: Host, tag: str, context: Path) -> None:
    base = "127.0.0.1:9/none@sha256:" + "0" * 64
    error = host.run(plan_of(host, tag, context, base=base))["error"]
    assert error.startswith("found '") and f"on pulling {base}" in error and "connection refused" in error


def test_no_daemon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "SOCKET", str(host.root / "none.sock"))
    with pytest.raises(JobError, match=r"on the daemon's socket .*none\.sock; wanted a pull"):
        list(pull._pull_lines("a", "b"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{host.root}/none.sock")
    monkeypatch.setitem(docker_cli.ENVIRONMENT, "DOCKER_HOST", f"unix://{host.root}/none.sock")
    with pytest.raises(JobError, match="from docker; wanted a running daemon; see `systemctl status docker`"):
        inspect_image("x")


def fetch_plan(host: Host, tag: str, image_id: str, url: str, token: Path) -> Path:
    return host.write_plan("fetch-image", tag=tag, image_id=image_id, url=url, token_file=str(token))


@pytest.fixture
def built(tag: str, context: Path) -> str:
    """An image under the tag; its id."""
    docker("build", "-t", tag, str(context))
    found = inspect_image(tag)
    assert found is not None
    return str(found["Id"])


@needs_docker
def test_an_image_over_the_share(worker: Host, share: str, token: Path, tag: str, built: str) -> None:
    plan = fetch_plan(worker, tag, built, share, token)
    assert worker.run(plan)["value"]["image_id"] == built  # stands already
    assert [line["stage"] for line in worker.progress(plan)] == ["done"]
    docker("tag", built, tag.replace(":t", ":base"))
    docker("rmi", tag)
    assert worker.run(plan)["ok"] and inspect_image(tag)  # there under another name: only tagged
    assert [line["stage"] for line in worker.progress(plan)] == []


class Saved(BaseHTTPRequestHandler):
    """Gives what a test has set as the image, cut short where it says so."""

    content, image_id, cut = b"", "", 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-Image-Id", self.image_id)
        self.send_header("X-Image-Size", str(len(self.content)))
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: len(self.content) - self.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def saved(tag: str, built: str) -> Iterator[str]:
    """A head that has saved the image, which is not on this host any more."""
    Saved.content = subprocess.run(["docker", "save", tag], capture_output=True, check=True).stdout
    Saved.image_id, Saved.cut = built, 0
    docker("image", "rm", "-f", built)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Saved)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@needs_docker
def test_loads_what_the_head_saved(worker: Host, saved: str, token: Path, tag: str, built: str) -> None:
    assert inspect_image(tag) is None
    plan = fetch_plan(worker, tag, built, saved, token)
    assert worker.run(plan)["value"]["image_id"] == built
    last = worker.progress(plan)[-1]
    assert (last["stage"], last["done"], last["total"]) == ("fetch", len(Saved.content), len(Saved.content))


@needs_docker
def test_another_image_than_announced(worker: Host, saved: str, token: Path, tag: str) -> None:
    wanted = "sha256:" + hashlib.sha256(b"another").hexdigest()
    error = worker.run(fetch_plan(worker, tag, wanted, saved, token))["error"]
    assert error.startswith(f"found image {Saved.image_id} for {tag} on the head; wanted {wanted}")
    Saved.image_id = wanted
    error = worker.run(fetch_plan(worker, tag, wanted, saved, token))["error"]
    assert error.startswith(f"found another image than {wanted} after loading {tag}; wanted the head's")
    assert inspect_image(tag) is None


@needs_docker
def test_an_image_cut_short_leaves_no_tag(
    worker: Host, saved: str, token: Path, tag: str, built: str
) -> None:
    Saved.cut = 700
    error = worker.run(fetch_plan(worker, tag, built, saved, token))["error"]
    assert error.startswith("found a stream that was cut; wanted the head's image")
    assert inspect_image(tag) is None
    Saved.cut, Saved.content = 0, b"no tar at all" * 100
    error = worker.run(fetch_plan(worker, tag, built, saved, token))["error"]
    assert error.startswith("found a failing docker load: ")
    assert inspect_image(tag) is None


@needs_docker
def test_refusals_of_the_share(worker: Host, share: str, token: Path, tag: str, tmp_path: Path) -> None:
    wanted = "sha256:" + "1" * 64
    error = worker.run(fetch_plan(worker, tag, wanted, share, token))["error"]
    assert "found HTTP 404 at" in error and "wanted the head's image; build it on the head first" in error
    (tmp_path / "wrong").write_text("wrong")
    error = worker.run(fetch_plan(worker, tag, wanted, share, tmp_path / "wrong"))["error"]
    assert "found HTTP 401 at" in error and "same token" in error
    error = worker.run(fetch_plan(worker, tag, wanted, "http://127.0.0.1:9", token))["error"]
    assert "Connection refused" in error and "check the fabric and run again" in error


@needs_docker
def test_the_share_streams_a_whole_image(share: str, tag: str, built: str) -> None:
    import http.client
    import io
    import tarfile
    from urllib.parse import quote, urlsplit

    connection = http.client.HTTPConnection(urlsplit(share).netloc)
    headers = {"Authorization": "Bearer s3cret-share-token"}
    connection.request("GET", f"/images/{quote(tag, safe='')}", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.getheader("X-Image-Id") == built and int(answer.getheader("X-Image-Size") or 0) > 0
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert "manifest.json" in tar.getnames()
