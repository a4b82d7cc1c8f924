# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkstack.errors import SparkstackError
from sparkstack.recipe import Recipe, detect_format, find_recipe, load_recipe, secrets_in

REVISION = "0123456789abcdef0123456789abcdef01234567"
GOOD = f"""\
name: tiny
model: org/tiny
checkpoint:
  source:
    repo: org/tiny
    revision: "{REVISION}"
  transforms:
    - register_mtp: {{}}
    - reshard: {{max_shard_bytes: 4GB}}
image:
  base: org/vllm
serve:
  options:
    max_model_len: 1024
budget:
  memory_gib: 3
  disk_gib: 6
"""

VALUES = (
    ("[1, true]", "stop[1] = True; wanted a text, a number or a JSON object; put it in quotes"),
    ("[null]", "stop[0] = None; wanted a text, a number or a JSON object; put it in quotes"),
    ("[[a]]", "stop[0] = ['a']; wanted a text, a number or a JSON object; write one list"),
    ("[a, -b]", "stop[1] = '-b'; wanted no '-' at the beginning of one value of several; an engine would read it as the next option"),
    ("[-1.0e-7]", "stop[0] = -1e-07; wanted no '-' at the beginning of one value of several; an engine would read it as the next option"),
    ("[{a: [.nan]}]", "stop[0].a[0] = nan; wanted what JSON has: text, a number, true, false, null; put it in quotes"),
    ("{a: {1: b}}", "stop.a = {1: 'b'}; wanted keys that are text, as JSON has them; put it in quotes"),
    ('"a\\0"', "stop = 'a\\x00'; wanted text without a NUL; no argument can hold one"),
)
"""Values of an option that cannot become words, and how the line about each goes on."""


def load(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return load_recipe(path)


def lines(tmp_path: Path, text: str) -> list[str]:
    """The problems of `text`, each without the folder's name."""
    with pytest.raises(SparkstackError) as caught:
        load(tmp_path, text)
    return [line.removeprefix(f"{tmp_path}/") for line in caught.value.lines]


def test_defaults(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    assert recipe.served_name == "org/tiny"
    assert (recipe.min_nodes, recipe.max_nodes, recipe.serve.port, recipe.serve.engine) == (
        1,
        None,
        8000,
        "vllm",
    )
    assert recipe.serve.ready_timeout_s == 3600
    profile = {"streams": [1], "max_tokens": 64, "warmup": 1, "repeats": 3}
    assert recipe.benchmark.model_dump(exclude_none=True) == profile


def test_transforms_are_written_as_in_a_plan(tmp_path: Path) -> None:
    plan = load(tmp_path, GOOD).checkpoint.plan()
    assert plan == [{"name": "register_mtp"}, {"name": "reshard", "max_shard_bytes": 4_000_000_000}]


def test_streams_may_be_numbers_or_texts(tmp_path: Path) -> None:
    expect = 'expect: {decode_tok_s: {1: {min: 2}}, ttft_s: {"1": {max: 3}}}\n'
    recipe = load(tmp_path, GOOD + expect)
    assert recipe.expect.decode_tok_s[1].min == 2
    assert recipe.expect.ttft_s[1].max == 3


def test_metadata_is_free(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "metadata: {a: [1, {b: 2.5}]}\n").metadata == {"a": [1, {"b": 2.5}]}


def test_every_problem_is_listed_with_its_line_in_order(tmp_path: Path) -> None:
    bad = GOOD.replace("name: tiny", "nmae: tiny").replace("memory_gib: 3", 'memory_gib: "3"')
    bad = bad.replace("  base: org/vllm", "  bsae: org/vllm")
    first, second, third = lines(tmp_path, bad)
    assert first.startswith("r.yaml:1: found unknown key 'nmae'; wanted one of: recipe_version, name,")
    assert first.endswith("did you mean 'name'?")
    assert (
        second
        == "r.yaml:11: found unknown key 'image.bsae'; wanted one of: base, build, source, version, upstream_changes, plugin, build_args; did you mean 'base'?"
    )
    assert third == "r.yaml:16: found budget.memory_gib = '3'; wanted a valid number; write it without quotes"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("model: org/tiny\n", "", "r.yaml:1: found no 'model'; wanted a value; add 'model' to the recipe"),
        (
            "    repo: org/tiny\n",
            "",
            "r.yaml:4: found no 'checkpoint.source.repo'; wanted a value; add 'repo' to checkpoint.source",
        ),
        (
            f'"{REVISION}"',
            "main",
            "r.yaml:6: found checkpoint.source.revision = 'main'; wanted 40 hex digits (a commit); "
            "pin the commit; branches and tags move",
        ),
        (
            f'"{REVISION}"',
            "1" * 40,
            f"r.yaml:6: found checkpoint.source.revision = {'1' * 40}; wanted 40 hex digits as text; "
            "put the revision in quotes",
        ),
        (
            "reshard: {max_shard_bytes: 4GB}",
            "reshrad: {}",
            "r.yaml:9: found checkpoint.transforms[1] = 'reshrad'; wanted one of: register_mtp, reshard, graft_fp8, "
            "turboquant_metadata, fp8_dense, draft_vocab, ngram_table; "
            "did you mean 'reshard'?",
        ),
        (
            "max_shard_bytes: 4GB",
            "max_bytes: 4GB",
            "r.yaml:9: found unknown key 'checkpoint.transforms[1].reshard.max_bytes'; wanted one of: "
            "max_shard_bytes; did you mean 'max_shard_bytes'?",
        ),
        (
            "4GB",
            "lots",
            "r.yaml:9: found checkpoint.transforms[1].reshard.max_shard_bytes = 'lots'; wanted bytes, or a "
            "size such as 4GB or 4GiB",
        ),
        (
            "- register_mtp: {}",
            "- register_mtp",
            "r.yaml:8: found checkpoint.transforms[0] = 'register_mtp'; wanted one transform with its "
            "arguments, as `reshard: {max_shard_bytes: 4GB}`",
        ),
        (
            "max_model_len",
            "max-model-len",
            "r.yaml:14: found serve.options.max-model-len = 'max-model-len'; wanted an option in snake case, "
            "as max_model_len for --max-model-len",
        ),
        (
            "max_model_len: 1024",
            "when: 2024-01-01",
            "r.yaml:14: found serve.options.when = datetime.date(2024, 1, 1); wanted text, a number, true, "
            "false, null, a list or a JSON object; put it in quotes",
        ),
        (
            "max_model_len: 1024",
            "stop: []",
            "r.yaml:14: found serve.options.stop = []; wanted a list of one or more texts, numbers or JSON "
            "objects; leave the option out for none",
        ),
        *[("max_model_len: 1024", f"stop: {value}", f"r.yaml:14: found serve.options.{line}") for value, line in VALUES],
        (
            "max_model_len",
            "max_model_len_",
            "r.yaml:14: found serve.options.max_model_len_ = 'max_model_len_'; wanted an option in snake case, "
            "as max_model_len for --max-model-len",
        ),
        (
            "max_model_len: 1024",
            'stop: "\\uD800"',
            "r.yaml:14: found '\\ud800', half of a character; wanted UTF-8 text; write the character itself",
        ),
        (
            "max_model_len: 1024",
            "port: 9000",
            "r.yaml:14: found serve.options.port; wanted it only from serve.port; remove the option",
        ),
        (
            "base: org/vllm",
            "base: org/vllm\n  build_args: {VERSION: 2.10}",
            "r.yaml:12: found image.build_args.VERSION = 2.1; wanted text; put it in quotes",
        ),
        (
            "serve:",
            "serve:\n  env: {FLAG: on}",
            "r.yaml:13: found serve.env.FLAG = True; wanted text; put it in quotes",
        ),
        ("serve:", "serve:\n  port: 70000", "r.yaml:13: found serve.port = 70000; wanted less than or equal to 65535"),
        ("serve:", "serve:\n  engine: sglang", "r.yaml:13: found serve.engine = 'sglang'; wanted 'vllm', 'atlas' or 'command'"),
        ("serve:", "serve:\n  shm_size: big", "r.yaml:13: found serve.shm_size = 'big'; wanted a size for Docker such as 2g"),
        ("disk_gib: 6", "disk_gib: 0", "r.yaml:17: found budget.disk_gib = 0; wanted greater than 0"),
        ("model: org/tiny", "model: tiny", "r.yaml:2: found model = 'tiny'; wanted a hub id, ORGANISATION/NAME"),
        ("name: tiny", "name: 5", "r.yaml:1: found name = 5; wanted a valid string; put it in quotes"),
        (
            "name: tiny",
            "name: tiny\nmin_nodes: 3\nmax_nodes: 2",
            "r.yaml:3: found max_nodes 2 below min_nodes 3; wanted max_nodes not below min_nodes; "
            "correct one of the two",
        ),
        (
            "name: tiny",
            "name: tiny\nexpect:\n  ttft_s:\n    4: {max: 1}",
            "r.yaml:4: found expect.ttft_s for 4 streams; wanted one of benchmark.streams [1]; "
            "add 4 to benchmark.streams",
        ),
        (
            "name: tiny",
            "name: tiny\nexpect:\n  ttft_s:\n    1: {}",
            "r.yaml:4: found expect.ttft_s[1] = {}; wanted min, max or both, or value",
        ),
        (
            "name: tiny",
            "name: tiny\nbenchmark: {streams: [2, 2]}",
            "r.yaml:2: found benchmark = {'streams': [2, 2]}; wanted each number of streams once, 1 or more",
        ),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert lines(tmp_path, GOOD.replace(old, new, 1)) == [expected]


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("name: [1\nmodel: x\n", "r.yaml:2", "YAML that cannot be read"),
        ("name: a\n\tmodel: b\n", "r.yaml:2", "YAML that cannot be read"),
        ("name: a\n---\nname: b\n", "r.yaml:2", "YAML that cannot be read"),
        ("a: &x [*x]\n", "r.yaml:1", "an alias inside of what it names"),
        ("name: a\nmodel: b\nname: c\n", "r.yaml:3", "key 'name' again (first in line 1)"),
        ("a: !!python/name:os.system x\n", "r.yaml:1", "YAML that cannot be read"),
        ("", "r.yaml:1", "an empty file"),
        ("# nothing\n", "r.yaml:1", "an empty file"),
        ("- a\n", "r.yaml:1", "a list at the top"),
        ("a: 2026-99-99\n", "r.yaml", "month must be in 1..12"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, where: str, found: str) -> None:
    [line] = lines(tmp_path, text)
    assert line.startswith(f"{where}: found {found}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SparkstackError, match="found no such file or directory; wanted a readable YAML file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(SparkstackError, match="is a directory"):
        load_recipe(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(SparkstackError, match="not UTF-8 at offset 6"):
        load_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"recipe_version": "1", "serve": {}}, "1"),
        ({"recipe_version": 2}, "2"),
        ({"serve": {}}, "3"),
        ({"checkpoint": {}}, "3"),
        ({"recipe_version": 2.0}, "2"),
        ({"model": "a/b", "container": "x"}, "2"),
        ({"name": "x", "container": "x", "command": "vllm serve a/b"}, "1"),
        ({"modle": "a/b"}, "3"),
    ],
)
def test_formats_are_told_apart(value: dict[str, Any], expected: str) -> None:
    assert detect_format(value) == expected


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    [line] = lines(tmp_path, "# theirs\nrecipe_version: '9'\nname: x\n")
    assert line.startswith("r.yaml:2: found recipe format '9'; wanted \"1\", \"2\" or \"3\" (ours); ")


def test_nodes(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD + "min_nodes: 2\nmax_nodes: 3\n")
    assert recipe.check_nodes(2) == recipe.check_nodes(3) == []
    [problem] = recipe.check_nodes(1)
    assert str(problem) == "recipe tiny: found 1 hosts; wanted 2 to 3; change the inventory or the recipe"
    assert recipe.check_nodes(4)
    assert load(tmp_path, GOOD).check_nodes(50) == []


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("max_model_len: 1024", []),
        ("api_key: s3cr3t", ["api_key"]),
        ("{hf_token: s3cr3t, max_model_len: 1024, api_key: [s3cr3t, more]}", ["api_key", "hf_token"]),
        ("api_key: null", []),  # gives no argument
    ],
)
def test_secrets_among_the_options_are_named(tmp_path: Path, options: str, names: list[str]) -> None:
    recipe = load(tmp_path, GOOD.replace("\n    max_model_len: 1024", f"\n    {options}"))
    assert [str(problem) for problem in secrets_in(recipe)] == [
        f"recipe tiny: found {name} among the options; wanted no secrets in a recipe; remove it; arguments can be read by every user of a host"
        for name in names
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("{http_proxy: 'http://proxy:3128'}", []),
        ("{http_proxy: 'http://ann:s3cr3t@proxy:3128'}", ["http_proxy"]),
        ("{HF_TOKEN: s3cr3t, PIP_INDEX_URL: 'https://a:b@index/simple'}", ["HF_TOKEN", "PIP_INDEX_URL"]),
    ],
)
def test_secrets_among_the_builds_arguments_are_named(
    tmp_path: Path, arguments: str, names: list[str]
) -> None:
    text = yaml.safe_load(GOOD)
    text["image"]["build_args"] = yaml.safe_load(arguments)
    recipe = load(tmp_path, yaml.safe_dump(text))
    assert [str(problem).split("; ")[0] for problem in secrets_in(recipe)] == [
        f"recipe tiny: found a secret in image.build_args.{name}" for name in names
    ]
    assert "s3cr3t" not in " ".join(map(str, secrets_in(recipe)))


def test_recipes_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "alpha.yaml").touch()
    assert find_recipe("alpha", tmp_path) == tmp_path / "alpha.yaml"
    with pytest.raises(SparkstackError) as caught:
        find_recipe("alhpa", tmp_path)
    assert str(caught.value) == "recipe: found 'alhpa'; wanted one of: alpha; did you mean 'alpha'?"
    with pytest.raises(SparkstackError):
        find_recipe("../x", tmp_path)
    # What `recipe list` shows can be named: below the folder, too, and with the other ending.
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "beta.yml").touch()
    assert find_recipe("beta", tmp_path) == tmp_path / "more/beta.yml"
    (tmp_path / "more" / "alpha.yaml").touch()
    with pytest.raises(SparkstackError, match=r"alpha.yaml and .*alpha.yaml; wanted one recipe 'alpha'"):
        find_recipe("alpha", tmp_path)


def test_our_own_recipes_load() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    for path in folder.glob("*.yaml"):
        assert load_recipe(path).name == path.stem


def test_a_recipe_says_the_same_when_written_out(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    again = recipe.model_dump(mode="json")
    again["checkpoint"]["transforms"] = [{s.pop("name"): s} for s in again["checkpoint"]["transforms"]]
    assert load(tmp_path, yaml.safe_dump(again)) == recipe
