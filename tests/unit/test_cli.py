
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from sparkstack.cli import main
from sparkstack.report import RunReport

RECIPES = Path(__file__).parents[2] / "recipes"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    for number, name in enumerate(("b", "a")):
        path = tmp_path / f"run-{name}.json"
        RunReport(when=name, recipe="tiny", release="x").write(path)
        os.utime(path, (number, number))
    return tmp_path


def test_the_newest_report_is_shown(reports: Path) -> None:
    result = run("report", "--reports", str(reports))
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "run a, recipe tiny"


def test_the_report_as_json(reports: Path) -> None:
    assert json.loads(run("report", "--json", "--reports", str(reports)).output)["when"] == "a"


def test_no_report_is_one_line_and_status_1(tmp_path: Path) -> None:
    result = run("report", "--reports", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr == (
        f"{tmp_path}: found no report; wanted the report of a run; run `pyinfra INVENTORY deploy.py` first\n"
    )
    assert "Traceback" not in result.output


def test_check_says_every_problem_of_every_file(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: x\nserve: {prot: 1}\n")
    good = RECIPES / "lab-tiny.yaml"
    result = run("recipe", "check", str(bad), str(good), str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    serves = "(serves sparkstack-lab/tiny-qwen3.5-moe)"
    assert result.stdout == f"{good}: no errors; deploy refuses it for 1 pin {serves}\n"
    lines = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert len(lines) == 6  # model, checkpoint, image, budget are missing; prot; the missing file
    assert f"{bad}: 5 errors" in result.stderr.splitlines()
    assert any(line.startswith(f"{good}:20: warning: found image ") for line in result.stderr.splitlines())
    assert any("did you mean 'port'?" in line for line in lines)
    assert isinstance(result.exception, SystemExit)


def test_check_of_good_files_is_status_0() -> None:
    assert run("recipe", "check", str(RECIPES / "lab-tiny.yaml")).exit_code == 0


def test_what_show_prints_is_a_recipe_again(tmp_path: Path) -> None:
    shown = run("recipe", "show", "lab-tiny", "--recipes", str(RECIPES)).stdout
    assert yaml.safe_load(shown)["serve"]["extra_docker_args"] == []
    (tmp_path / "again.yaml").write_text(shown)
    assert run("recipe", "check", str(tmp_path / "again.yaml")).exit_code == 0


def test_an_unknown_recipe_is_one_line() -> None:
    result = run("recipe", "show", "lab-tinny", "--recipes", str(RECIPES))
    assert result.exit_code == 1
    assert result.stderr.endswith("did you mean 'lab-tiny'?\n")


def test_the_lab_is_a_command() -> None:
    assert "lab" in run("--help").output
    assert run("lab", "--help").exit_code == 0


@pytest.mark.parametrize(
    ("words", "script", "more"),
    [
        (
            ("recipe", "plan", "lab-tiny", "@local", "--only", "serve"),
            "plan.py",
            ["--data", 'recipe="lab-tiny"', "--data", 'only="serve"'],
        ),
        (("release", "list", "@local"), "releases.py", []),
    ],
)
def test_what_asks_hosts_is_a_script_of_pyinfra(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], script: str, more: list[str]
) -> None:
    seen: list[list[str]] = []
    answers = [("the plan\n", "noise", 1), ("", "pyinfra error: why", 1), ("well\n", "", 0)]

    def played(command: list[str], **how: Any) -> Any:
        seen.append(command)
        out, err, code = answers.pop(0)
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(subprocess, "run", played)
    failed, broken, good = run(*words), run(*words), run(*words)
    assert (failed.stdout, failed.stderr, failed.exit_code) == ("the plan\n", "", 1)
    assert (broken.stderr, broken.exit_code) == ("pyinfra error: why", 1)
    assert (good.stdout, good.exit_code) == ("well\n", 0)
    assert seen[0][1:] == ["@local", script, "-y", *more]


def test_an_inventory_that_is_not_there_is_one_line() -> None:
    result = run("recipe", "plan", "lab-tiny", "inventories/mien.py")
    assert result.exit_code == 1
    assert result.stderr == (
        "inventory: found 'inventories/mien.py'; wanted a file; see inventories/ for examples\n"
    )


def test_flags_behind_two_dashes_win(tmp_path: Path) -> None:
    words = ("recipe", "render", "lab-tiny", "--recipes", str(RECIPES), "--")
    text = run(*words, "--max-model-len", "77", "--port", "9001", "--enable-x").stdout
    assert "--max-model-len \\\n  77 " in text and "--port \\\n  9001 " in text and "--enable-x" in text
    assert "1024" not in text
    result = run(*words, "a", "--nnodes", "3", "--port", "no")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-3:] == [
        "--: found 'a'; wanted the engine's flags; write --flag value",
        "--: found the flag --nnodes; wanted it only from the inventory; remove it",
        "--: found port 'no'; wanted 1 to 65535; correct it",
    ]
    foreign = tmp_path / "x.yaml"
    foreign.write_text("model: a/b\nruntime: sglang\ncontainer: c:1\ncommand: sglang serve --a 1\n")
    words = ("recipe", "render", str(foreign), "--", "--b", "{rank}")
    assert run(*words).stdout.endswith("--model-path \\\n  /model \\\n  --b \\\n  '{rank}'\n")
    refused = run(*words[:4], "--port=1").stderr.splitlines()[-1]
    assert refused == "--: found the flag --port=1; wanted it only from the recipe and group_data; remove it"
