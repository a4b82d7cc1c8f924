"""What each engine is started with on each rank."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sparkstack import engines
from sparkstack.errors import SparkstackError
from sparkstack.launch import Rank
from sparkstack.native import Recipe
from sparkstack.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
NATIVE = f"""\
name: x
model: a/b
checkpoint: {{source: {{repo: a/b, revision: '{"0" * 40}'}}}}
image: {{base: c@sha256:{"1" * 64}}}
budget: {{memory_gib: 1, disk_gib: 1}}
"""


def recipe(**serve: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "x",
            "model": "a/b",
            "served_model_name": "a name; $(of) 'trouble'",
            "checkpoint": {"source": {"repo": "a/b", "revision": "0" * 40}},
            "image": {"base": "c"},
            "serve": serve,
            "budget": {"memory_gib": 1, "disk_gib": 1},
        }
    )


def started(of: Recipe, rank: int = 0, world: int = 1) -> list[str]:
    place = Rank(rank, world, "10.0.0.1", f"10.0.0.{rank + 1}", 25123)
    return engines.started(of, place, bind="::1", port=8000).words


def load(tmp_path: Path, serve: str) -> list[str]:
    """The complaints about a recipe's `serve`."""
    path = tmp_path / "r.yaml"
    path.write_text(NATIVE + serve)
    try:
        load_recipe(path)
    except SparkstackError as error:
        return [line.replace(str(tmp_path), "") for line in error.lines]
    return []


def test_a_command_gets_what_the_run_works_out() -> None:
    every = recipe(
        engine="command",
        command="srv {model_path} {served_name} [{bind}]:{port} '{rank}/{world}' "
        "{head_address}:{master_port} --x={host_address} "
        """--json '{{"a": {{"b": 1}}}}' --plain '{"a": {"b": 1}}'""",
    )
    assert started(every, 1, 2) == [
        "srv",
        "/model",
        "a name; $(of) 'trouble'",
        "[::1]:8000",
        "1/2",
        "10.0.0.1:25123",
        "--x=10.0.0.2",
        "--json",
        '{"a": {"b": 1}}',
        "--plain",
        '{"a": {"b": 1}}',
    ]


def test_a_list_is_words_as_they_are() -> None:
    command = ["sh", "-c", 'exec srv "$0" ; true\n', "{port}", 8, "${HOME}", "a b"]
    assert started(recipe(engine="command", command=command)) == [
        "sh",
        "-c",
        'exec srv "$0" ; true\n',
        "8000",
        "8",
        "${HOME}",
        "a b",
    ]


def test_options_follow_the_command_by_the_one_rule() -> None:
    options = {"ctx_size": 4096, "mmap": False, "jinja": True, "x": None, "config": {"a": "b c"}}
    words = started(recipe(engine="command", command="srv", options=options))
    assert shlex.join(words) == """srv --ctx-size 4096 --no-mmap --jinja --config '{"a":"b c"}'"""


@pytest.mark.parametrize(
    ("serve", "lines"),
    [
        (
            "serve:\n  engine: command\n",
            ["/r.yaml:7: found engine command without serve.command; wanted what the container shall run; "
             "add serve.command"],
        ),
        (
            "serve:\n  command: srv\n",
            ["/r.yaml:7: found serve.command with engine vllm; wanted it only with engine: command; "
             "correct one of the two"],
        ),
        (
            "serve:\n  engine: command\n  command: ''\n",
            ["/r.yaml:8: found serve.command: no words; wanted a program and its arguments; "
             "write what the container shall run"],
        ),
        (
            "serve:\n  engine: command\n  command: |\n    srv \\\n      --port {prot}\n",
            ["/r.yaml:10: found serve.command: {prot}; wanted one of: {model_path}, {served_name}, {bind}, "
             "{port}, {rank}, {world}, {head_address}, {host_address}, {master_port}; did you mean {port}?"],
        ),
        (
            "serve:\n  engine: command\n  command: |\n    a \\\n    b && c $HOME\n",
            ["/r.yaml:10: found serve.command: more than one command (&&); wanted one command; end the line "
             'with \\, or run a shell: ["sh", "-c", "exec …"]',
             "/r.yaml:10: found serve.command: $HOME; wanted no shell variables; write the value, a {name}, "
             "or put it in '…'"],
        ),
        (
            "serve:\n  engine: command\n  command: srv 'x\n",
            ["/r.yaml:8: found serve.command: a ' that does not end; wanted a quote for each quote; "
             "close it"],
        ),
        (
            "serve:\n  engine: command\n  command:\n    - srv\n    - '{word}'\n",
            ["/r.yaml:10: found serve.command: {word}; wanted one of: {model_path}, {served_name}, {bind}, "
             "{port}, {rank}, {world}, {head_address}, {host_address}, {master_port}; did you mean {world}?"],
        ),
        (
            "serve:\n  engine: command\n  command: {a: b}\n",
            ["/r.yaml:8: found serve.command = {'a': 'b'}; wanted a command as text, or a list of its words"],
        ),
        (
            "min_nodes: 2\nserve:\n  engine: command\n  command: srv\n",
            ["/r.yaml:6: found min_nodes 2 and a command without {rank}; wanted 1 host, or a command that "
             "tells its ranks apart; correct one"],
        ),
        (
            "serve:\n  engine: atlas\n  options: {bind: 0.0.0.0, max_seq_len: 1}\n",
            ["/r.yaml:8: found serve.options.bind; wanted it only from serve_bind of group_data; "
             "remove the option"],
        ),
    ],
)  # fmt: skip
def test_mistakes_of_a_command(tmp_path: Path, serve: str, lines: list[str]) -> None:
    assert load(tmp_path, serve) == lines


def test_the_plugin_is_vllm_s(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    text = NATIVE.replace("image: {", "image: {plugin: {hybrid: true}, ")
    path.write_text(text + "serve: {engine: atlas}\n")
    with pytest.raises(SparkstackError, match=r"plugin\.hybrid with engine atlas; wanted no features"):
        load_recipe(path)


def test_a_command_that_knows_no_rank_is_for_one_host() -> None:
    one, many = recipe(engine="command", command="srv"), recipe(engine="command", command="srv {rank}")
    assert many.check_nodes(3) == [] == one.check_nodes(1)
    assert [str(problem) for problem in one.check_nodes(2)] == [
        "recipe x: found a command without {rank} on 2 hosts; wanted 1 host; tell its ranks apart by {rank}, "
        "{world}, {head_address}, or take one host"
    ]


def test_the_lab_s_stand_in_is_told_its_place() -> None:
    light = load_recipe(ROOT / "recipes" / "lab-light.yaml")
    assert light.check_nodes(8) == []
    words = shlex.join(started(light, 2, 3))
    assert "--rank 2 --world 3 --head 10.0.0.1 --meet 25123" in words
