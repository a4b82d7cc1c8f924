"""The doctor's result: as plain lines, as a table and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sparkstack.differences import of_file, of_settings
from sparkstack.doctor import Diagnosis, Line
from sparkstack.host_facts import CheckResult

OK = Line("spark-1", "serve", "unit file", "ok", "as declared")
DRIFT = Line(
    "spark-2", "docker", "/etc/docker/daemon.json", "drift", "no file", "the settings", "run deploy.py"
)
FAILED = Line("spark-1", "preflight", "gpu", "failed", "no GPU", "one", "see `nvidia-smi`")
OPEN = Line("spark-2", "preflight", "cuda", "not checked", "accelerator is cpu", "13.0 or newer")


def diagnosis(*lines: Line) -> Diagnosis:
    return Diagnosis("20261129T120000Z", "lab-tiny", "0123456789ab", list(lines))


def rendered(found: Diagnosis, **console: object) -> str:
    out = io.StringIO()
    found.render(Console(file=out, **console))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize(
    ("lines", "ok"),
    [([OK], True), ([OK, OPEN], True), ([OK, DRIFT], False), ([OK, FAILED], False), ([], True)],
)
def test_ok_is_no_failure_and_no_drift(lines: list[Line], ok: bool) -> None:
    found = diagnosis(*lines)
    assert found.ok is json.loads(found.to_json())["ok"] is ok


def test_json_holds_every_line(tmp_path: Path) -> None:
    diagnosis(OK, DRIFT).write(tmp_path / "reports" / "doctor.json")
    value = json.loads((tmp_path / "reports" / "doctor.json").read_text())
    assert value["lines"][1] == {
        "host": "spark-2",
        "stage": "docker",
        "check": "/etc/docker/daemon.json",
        "status": "drift",
        "found": "no file",
        "wanted": "the settings",
        "remedy": "run deploy.py",
    }


def test_piped_it_is_a_line_a_check_and_what_is_wrong_comes_first() -> None:
    assert rendered(diagnosis(OK, OK, OPEN, DRIFT, FAILED)).splitlines() == [
        "spark-1: preflight: gpu: failed: found no GPU; wanted one; see `nvidia-smi`",
        "spark-2: docker: /etc/docker/daemon.json: drift: found no file; wanted the settings; run deploy.py",
        "spark-2: preflight: cuda: not checked: found accelerator is cpu; wanted 13.0 or newer",
        "spark-1: serve: 2 checks: ok: as declared",
        "not as declared: 2 ok, 1 drift, 1 failed, 1 not checked",
    ]


def test_on_a_terminal_it_is_a_table() -> None:
    text = rendered(diagnosis(OK, DRIFT), force_terminal=True, width=200, no_color=True)
    assert "what to do" in text and "doctor 20261129T120000Z" in text
    narrow = rendered(diagnosis(OK, DRIFT), force_terminal=True, width=60, no_color=True)
    assert "…" not in narrow, "nothing is cut"


def test_words_of_a_host_are_no_markup() -> None:
    strange = Line("spark-1", "host", "[bold]x", "drift", "[red]a[/nonsense]", "b")
    assert "[bold]x: drift: found [red]a[/nonsense]" in rendered(diagnosis(strange))
    assert "[red]a" in rendered(diagnosis(strange), force_terminal=True, width=200)


def test_a_check_of_preflight_as_a_line() -> None:
    result = CheckResult("spark-1", "gpu", "failed", "no GPU", "one", "see `nvidia-smi`")
    assert Line.of_check(result) == FAILED


def test_an_operations_failure_as_a_line() -> None:
    text = "spark-1: user: found no user x; wanted the one that works; create it; or correct `user`"
    line = Line.of_failure("spark-1", "host", "user", text)
    assert (line.check, line.found, line.wanted) == ("user", "no user x", "the one that works")
    assert line.remedy == "create it; or correct `user`"
    plain = Line.of_failure("spark-1", "host", "user", "no\nanswer")
    assert (plain.status, plain.found, plain.wanted) == ("failed", "no answer", "")


def test_how_a_file_differs() -> None:
    wanted = {"sha256": "a" * 64, "mode": "644", "owner": "root:root"}
    assert of_file(None, wanted) == ("no file", "the declared one")
    assert of_file({**wanted, "mode": "600"}, wanted) == ("mode 600", "mode 644")
    both = {**wanted, "sha256": "b" * 64, "owner": "nvidia:nvidia"}
    assert of_file(both, wanted) == (
        "content bbbbbbbbbbbb, owner nvidia:nvidia", "content aaaaaaaaaaaa, owner root:root"
    )  # fmt: skip


def test_how_settings_differ() -> None:
    wanted = {"registry-mirrors": ["http://m"], "live-restore": True}
    assert of_settings(None, wanted) == ("no file", "the declared settings")
    assert of_settings('{"live-restore": true, "other": 1}', wanted) == (
        "registry-mirrors not set",
        'registry-mirrors ["http://m"]',
    )
    assert of_settings("", wanted)[0] == "registry-mirrors not set, live-restore not set"
