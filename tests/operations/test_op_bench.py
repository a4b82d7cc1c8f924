"""bench.py: measures what serves or a URL, changes nothing but the job's files, fails where the gate does."""

# ruff: noqa: E501 -- messages are compared with the whole line that a user reads

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_host import FakeHost, commands_of, follow, written
from test_op_benchmark import measurement

from sparkstack.expectation import CATEGORIES, PROFILES, QUALITY, STANDARD_STREAMS
from sparkstack.releases import Kept, OnHost
from sparkstack.report import RunReport
from tasks import bench, bench_local, interrupts, report
from tasks.activation import Releases
from tasks.site import SiteError

HERE = Path(__file__).resolve().parent
ABOUT = {
    "recipe": "test-recipe",
    "endpoint": "http://127.0.0.1:8000",
    "model": "org/model",
    "image": "i",
    "argv": ["secret"],
}
ONE = {"median": 20.0, "min": 20.0, "max": 20.0, "n": 1, "ci": None}
JOB = "/var/lib/sparkstack/jobs/sparkstack-bench-now-abc-standard"


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> RunReport:
    run = RunReport(when="20260102T030405Z", recipe="none", release="", kind="bench")
    monkeypatch.setattr(report, "_report", run)
    return run


@pytest.fixture(autouse=True)
def plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bench.KEY_VARIABLE, raising=False)

    # A fake inventory keeps all its data with the hosts; what was said with --data is a test's to say.
    def homes(host: FakeHost) -> dict[str, str]:
        return dict.fromkeys(host.data.dict().get("said", ()), "--data")

    monkeypatch.setattr(bench.declared, "homes", homes)
    monkeypatch.setattr(bench.declared, "problems", lambda host, also: [])


def head(**data: Any) -> FakeHost:
    one = FakeHost(
        "spark-1", ssh_hostname="10.0.0.1", _sudo=True, **{"recipe": str(HERE / "recipe.yaml"), **data}
    )
    one.facts = {Releases: OnHost("abc", {"abc": Kept(ABOUT, 0, None)})}
    return one


def measured(host: FakeHost, tok_s: float = 20, **changes: Any) -> dict[str, Any]:
    class Site:
        release_id, profile = "abc", {"name": "standard", "streams": [1]}

    return measurement(Site, tok_s, format=2, **changes)  # type: ignore[arg-type]


def play(host: FakeHost, found: Any, result: str = '{"ok": true, "value": {}}') -> bool:
    host.answers = {"look at job": f"inactive\n{result}", "read measurement": json.dumps(found)}
    asked = bench.wish(host)
    return follow(commands_of(bench.measured, host, asked, [host]), host)


def test_what_serves_is_measured_by_a_job_and_judged_by_its_recipe(noted: RunReport) -> None:
    host = head()
    commands = commands_of(bench.measured, host, bench.wish(host), [host])
    files = written(commands)
    assert list(files) == ["/var/lib/sparkstack/plans/sparkstack-bench-now-abc-standard.json"]
    plan = json.loads(next(iter(files.values())))
    assert plan["url"], plan["model"] == ("http://127.0.0.1:8000", "org/model")
    assert (plan["result"], plan["profile"]) == (f"{JOB}/measurement.json", {"name": "standard"})
    assert play(host, measured(host))
    assert (noted.release, noted.recipe, noted.head) == ("abc", "test-recipe", "spark-1")
    assert noted.deployed is not None and "argv" not in noted.deployed and noted.result == "pass"
    # Nothing is put anywhere but where the job lives.
    places = {word for line in host.heard for word in shlex.split(line) if word.startswith("/var/lib/")}
    assert all("sparkstack-bench-now-abc-standard" in place or place.endswith("/plans") for place in places)


def test_a_job_that_was_joined_may_be_about_another_endpoint(noted: RunReport) -> None:
    host = head(url="http://h:1")
    there = {"url": "http://other:1", "model": "m", "version": None, "max_model_len": None}
    assert not play(host, measured(host, release="url", server=there)) and noted.measurement is None
    (line,) = host.shown
    assert line.endswith("found m at http://other:1 being measured from there; wanted http://h:1; run again")
    host = head(url="http://h:1")
    assert play(host, measured(host, release="url", server={**there, "url": "http://h:1"}))


def test_other_hosts_do_nothing(noted: RunReport) -> None:
    host, other = head(), FakeHost("spark-2")
    assert commands_of(bench.measured, other, bench.wish(host), [host, other]) == []


@pytest.mark.parametrize(
    ("changes", "tok_s", "line"),
    [
        (
            {}, 4.5,
            "found decode_tok_s@1 4.5 (expected ≥ 10.0); wanted what recipe test-recipe expects; look at the "
            "report, or correct `expect`",
        ),
        (
            {"noise": {"spread": 0.4, "limit": 0.1, "repeated": 0, "verdict": "noisy"}}, 20,
            "found no result (the machine is noisy: spread 40 % over 10 %); wanted figures that can be believed; "
            "run again when nothing else runs there",
        ),
        (
            {
                "points": [{"streams": 1, "requests": 1, "failed": 0, "decode_tok_s": ONE, "ttft_s": ONE, "total_tok_s": 20}],
                "noise": {"spread": None, "limit": 0.1, "repeated": 0, "verdict": "unknown"},
                "profile": {"name": "smoke", "streams": [1]},
            }, 20,
            "found no result (decode_tok_s@1: one sample: its spread is not known); wanted figures that can be believed; "
            "give it more time: --data profile=standard",
        ),
    ],
)  # fmt: skip
def test_the_gate_decides_the_status(
    noted: RunReport, changes: dict[str, Any], tok_s: float, line: str
) -> None:
    host = head()
    assert not play(host, measured(host, tok_s, **changes))
    assert host.shown == [f"spark-1: bench: {line}"] and not noted.ok


def test_a_release_of_an_unknown_recipe_is_a_baseline(noted: RunReport) -> None:
    host = head()
    host.facts = {Releases: OnHost("abc", {"abc": Kept({**ABOUT, "recipe": "gone"}, 0, None)})}
    assert play(host, measured(host, 0.1)) and noted.result == "baseline"


def test_a_recipe_that_was_named_is_the_one_that_counts(noted: RunReport) -> None:
    host = head(said=["recipe"])
    host.facts = {Releases: OnHost("abc", {"abc": Kept({**ABOUT, "recipe": "gone"}, 0, None)})}
    assert not play(host, measured(host, 0.1)) and noted.result == "fail"


def test_nothing_serves(noted: RunReport) -> None:
    host = head()
    host.facts = {Releases: OnHost()}
    assert not play(host, None)
    assert host.shown == [
        "spark-1: bench: found no release that serves; wanted one; run deploy.py first, or name an endpoint "
        "with --data url=http://…"
    ]


def test_a_key_is_a_file_of_root_while_the_job_runs(
    noted: RunReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    host = head(api_key_file=str(tmp_path / "key"))
    asked = bench.wish(host)
    commands = commands_of(bench.measured, host, asked, [host])
    assert written(commands)[f"{JOB}.key"] == "s3cret\n" and "s3cret" not in repr((asked, commands))
    assert play(host, measured(host))
    assert noted.api_key and host.heard.count(f"rm -f {JOB}.key") == 1
    assert not any("s3cret" in line for line in host.heard)
    monkeypatch.setenv(bench.KEY_VARIABLE, "other")
    assert bench.wish(head()).key == "other"
    # An HTTP client refuses a header of two lines in words that hold all of it.
    monkeypatch.setenv(bench.KEY_VARIABLE, "s3cret\nand more")
    (tmp_path / "key").write_text("s3cret\n# of the lab\n")
    for wrong in (head(), host):
        with pytest.raises(SiteError, match="found no key of one line; wanted printable ASCII") as caught:
            bench.wish(wrong)
        assert "s3cret" not in str(caught.value)


def test_a_host_without_the_environment_says_what_else(noted: RunReport) -> None:
    host = head()
    host.answers = {"has environment": (False, "")}
    assert not follow(commands_of(bench.measured, host, bench.wish(host), [host]), host)
    assert host.shown == [
        "spark-1: bench: found no /opt/sparkstack/env/bin/python; wanted the environment that measures; run "
        "deploy.py --data only=conda, or measure from here: pyinfra @local bench.py --data url=…"
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"url": "ftp://x"}, "--data: found url = 'ftp://x'; wanted a URL that begins with https:// or http://; such as"),
        ({"url": "http://h?api_key=s3cret"}, "--data: found url = 'http://h?…'; wanted a URL without a query (the ? and what follows), for logs and reports show it; a key comes from --data api_key_file=PATH or SPARKSTACK_API_KEY"),
        ({"url": "http://127.0.0.1:99999"}, "--data: found url = 'http://127.0.0.1:99999'; wanted a URL whose port is a number from 1 to 65535; such as --data url=http://192.0.2.1:8000"),
        ({"url": "h:8000?api_key=s3cret"}, "--data: found url = 'h:8000?…'; wanted a URL that begins with https:// or http://; such as"),
        ({"url": "http://a:b@c"}, "--data: found url = 'http://…@c'; wanted a URL without user and password"),
        ({"profile": "big"}, "--data: found profile = 'big'; wanted one of: smoke, standard, full; --data profile=smoke"),
        ({"model": "x"}, "--data: found model = 'x' without url; wanted url beside it"),
        ({"api_key_file": "/nope"}, "api_key_file: found /nope: No such file or directory; wanted a file with the API key"),
        ({"recipe": "nope"}, "recipe: found 'nope'; wanted one of: lab-light, lab-tiny"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(data: dict[str, Any], line: str) -> None:
    with pytest.raises(SiteError) as caught:
        bench.wish(head(**data))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_an_endpoint_of_somebody_is_compared_with_a_named_recipe_alone(noted: RunReport) -> None:
    assert bench.wish(head(url="http://h:1/v1/")).url == "http://h:1"
    assert bench.wish(head(url="http://h:1")).recipe is None
    assert bench.wish(head(url="http://h:1", said=["recipe"])).recipe is not None


@pytest.mark.parametrize(
    ("name", "data", "locked"),
    [
        ("spark-1", {}, ["spark-1 bench.py"]),
        ("spark-1", {"url": "http://h:1"}, ["spark-1 bench.py"]),
        ("@local", {"url": "http://h:1"}, []),
    ],
)
def test_on_an_inventory_it_is_the_only_run(
    name: str, data: dict[str, str], locked: list[str], noted: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, taken = head(**data), []
    host.name, host.connected, host.state = name, True, SimpleNamespace()
    monkeypatch.setattr(bench, "host", host)
    monkeypatch.setattr(bench, "inventory", [host])
    monkeypatch.setattr(bench.access, "ensure", lambda host: None)
    monkeypatch.setattr(bench.alone, "ensure", lambda host, script: taken.append(f"{host.name} {script}"))
    monkeypatch.setattr(bench.report, "begin", lambda **words: None)
    monkeypatch.setattr(bench, "_declare", lambda **words: None)
    bench.declare()
    assert taken == locked


@pytest.mark.parametrize(
    ("said", "tests"),
    [("gsm8k", ["gsm8k"]), ("sane, needle,sane", ["sane", "needle"]), ("none", []), (["json"], ["json"])],
)
def test_tests_that_are_named_take_the_place_of_the_profile_s(said: Any, tests: list[str]) -> None:
    assert bench.wish(head(quality=said)).plan_profile["quality"] == tests
    assert "quality" not in bench.wish(head()).plan_profile
    with pytest.raises(SiteError, match=r"found quality = 'gsm8'; wanted none, or of: sane, .*'gsm8k'"):
        bench.wish(head(quality="gsm8"))


CHILD = """
import json, pathlib, signal, sys, time
plan = json.loads(pathlib.Path(sys.argv[-1]).read_text())
job = pathlib.Path(plan["jobs_dir"]) / plan["job"]
key = plan["api_key_file"] and pathlib.Path(plan["api_key_file"])
files = [path for path in job.parent.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
good = key and key.stat().st_mode & 0o777 == 0o600 and key.read_text() == "s3cret\\n" and not files
found = {"format": 2, "release": "url", "complete": False, "key": bool(good)}
def write(name, value): (job / name).write_text(json.dumps(value))
def stop(*_):
    write("measurement.json", found); write("result.json", {"ok": False, "error": "found SIGTERM"}); sys.exit(1)
signal.signal(signal.SIGTERM, stop)
(job / "progress.jsonl").write_text('{"stage": "speed", "done": 1, "total": 2, "unit": "requests"}\\n')
MODE
write("measurement.json", {**found, "complete": True}); write("result.json", {"ok": True})
"""


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, which `heard` leaves as it is."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ("", signal.SIGINT),
        ("time.sleep(60)", signal.SIGINT),
        ("time.sleep(60)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGHUP),
        ("sys.exit('found a stone')", signal.SIGINT),
    ],
)
@pytest.mark.usefixtures("hangs_up")
def test_from_here_it_is_a_process(
    mode: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "onhost.py"
    script.write_text(CHILD.replace("MODE", mode))
    monkeypatch.setattr(bench_local, "ROOT", tmp_path)
    if mode.startswith("time"):
        plain = bench_local._show

        def pressed(path: Path) -> None:
            plain(path)
            if path.exists() and path.read_text().endswith("\n"):
                signal.raise_signal(number)
                if number == signal.SIGHUP:
                    signal.raise_signal(number)  # of the shell, and of the kernel
                monkeypatch.setattr(bench_local, "_show", plain)

        monkeypatch.setattr(bench_local, "_show", pressed)
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(one) for one in ends]
    end = bench_local.run({"job": "sparkstack-bench-x"}, "s3cret", tmp_path)
    assert [signal.getsignal(one) for one in ends] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["onhost.py", "sparkstack-bench-x.log"]
    if not mode:
        assert end == bench_local.End({"format": 2, "release": "url", "complete": True, "key": True})
    elif mode.startswith("time"):
        assert end.interrupted and end.measurement is not None and end.measurement["complete"] is False
        assert end.measurement["key"] and end.by == interrupts.NAMES[number]
    else:
        assert (end.measurement, end.error, end.interrupted) == (None, "found a stone", False)


def test_the_process_ends_with_the_one_that_began_it(tmp_path: Path) -> None:
    """A pipe between them: it breaks however ours ends, by SIGKILL as well."""
    (tmp_path / "onhost.py").write_text(
        CHILD.replace("MODE", "print('is there', flush=True); time.sleep(60)")
    )
    job = tmp_path / "job"
    job.mkdir()
    (job / "plan.json").write_text(
        json.dumps({"jobs_dir": str(tmp_path), "job": "job", "api_key_file": None})
    )
    words = [sys.executable, "-P", str(bench_local.WITH_PARENT), "onhost", "job", str(job / "plan.json")]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"is there\n"
        process.stdin.close()
        assert process.wait(15) == 1
    assert json.loads((job / "result.json").read_text())["error"] == "found SIGTERM"


def test_what_was_ignored_stays_ignored_and_a_second_sigterm_does_what_it_did() -> None:
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in interrupts.NAMES}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        with interrupts.heard() as note:
            signal.raise_signal(signal.SIGHUP)
            assert not note.once()
            signal.raise_signal(signal.SIGTERM)
            assert note.once() and not note.once() and note.name == "SIGTERM" and heard == []
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_names_are_those_that_are_measured() -> None:
    profile = pytest.importorskip("onhost.bench.profile")
    prompts = pytest.importorskip("onhost.bench.prompts")
    assert tuple(prompts.PROMPTS) == CATEGORIES and profile.QUALITY == QUALITY
    assert profile.NAMED.keys() >= set(PROFILES)
    assert tuple(profile.NAMED["standard"]["streams"]) == STANDARD_STREAMS
