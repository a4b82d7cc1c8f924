# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""The community's two formats: what is written in them, and what we make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstack import flags, launch, placeholders, shell_words, yamlfile
from sparkstack.check import Checked, check
from sparkstack.conversion import convert
from sparkstack.description import Launch
from sparkstack.errors import SparkstackError
from sparkstack.recipe import load_recipe, not_a_recipe
from sparkstack.render import render

DATA = Path(__file__).parent / "recipes"
V1 = sorted((DATA / "v1").glob("*.yaml"))
V2 = sorted((DATA / "v2").glob("*.yaml"))


def wish(path: str, nodes: int | None = None, **overrides: Any) -> Launch:
    found = check(DATA / f"{path}.yaml", nodes, overrides)
    assert found.launch is not None, found.findings
    return found.launch


def options(path: str, nodes: int | None = None, **overrides: Any) -> dict[str, Any]:
    return wish(path, nodes, **overrides).options


def codes(found: Checked) -> set[str]:
    return {finding.code for finding in found.findings if finding.code != "unpinned"}


def test_there_are_thirty_of_each() -> None:
    assert len(V1) >= 30 and len(V2) >= 30


@pytest.mark.parametrize("path", V1 + V2, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_loads_and_renders(path: Path) -> None:
    found = check(path)
    assert found.errors == 0, "\n".join(map(str, found.findings))
    assert found.launch is not None
    assert found.launch.format == path.parent.name.removeprefix("v")
    nodes = found.launch.min_nodes
    again = check(path, nodes)
    assert again.launch is not None
    ranks = render(again.launch, nodes)
    text = "".join(map(str, ranks))
    assert found.launch.model.partition("/")[2].partition(":")[0] in text or "/model" in text
    if found.launch.recipe is None:
        assert found.refused  # what cannot be deployed is told
        return
    assert len(ranks) == nodes
    if found.launch.recipe.serve.engine == "vllm":
        place = launch.Rank(0, nodes, "10.0.0.1", "10.0.0.1")
        argv = launch.serve_argv(found.launch.recipe, place, bind="::1", port=1)
        back = flags.parse([shell_words.Word(word, 0) for word in argv[2:]]).options
        assert back | found.launch.recipe.serve.options == back
        assert back["served_model_name"] == found.launch.served_name


def test_what_is_refused_does_not_load_as_a_recipe() -> None:
    with pytest.raises(SparkstackError) as caught:
        load_recipe(DATA / "v1" / "mods-two.yaml")
    assert [line.partition("recipes/v1/")[2] for line in caught.value.lines] == [
        "mods-two.yaml:6: found mod 'mods/fix-tokenizer'; wanted no mods; we have none; put what it does into "
        "the image",
        "mods-two.yaml:6: found mod 'mods/fix-chat-template'; wanted no mods; we have none; put what it does "
        "into the image",
    ]


def test_what_loads_is_a_native_recipe() -> None:
    recipe = load_recipe(DATA / "v2" / "qwen3-8b.yaml")
    assert recipe.name == "qwen3-8b"
    assert recipe.checkpoint.source.revision == "0123456789abcdef0123456789abcdef01234567"
    assert recipe.image.base.endswith("3210")
    assert recipe.serve.port == 8000
    assert recipe.serve.options == {"gpu_memory_utilization": 0.8, "max_model_len": 32768}
    assert recipe.budget.memory_gib == 95.4
    assert load_recipe(DATA / "v1" / "qwen3-8b.yaml").checkpoint.source.revision == "unverified"


@pytest.mark.parametrize(
    ("path", "runtime"),
    [
        ("v1/qwen3-8b", "eugr-vllm"),
        ("v1/sglang", "sglang"),
        ("v1/python-module", "eugr-vllm"),
        ("v2/minimal", "vllm-distributed"),
        ("v2/with-command", "vllm-distributed"),
        ("v2/ray", "vllm-ray"),
        ("v2/vllm-ray-runtime", "vllm-ray"),
        ("v2/vllm-distributed-runtime", "vllm-distributed"),
        ("v2/mods", "eugr-vllm"),
        ("v2/builder", "eugr-vllm"),
        ("v2/sglang-by-command", "sglang"),
        ("v2/sglang-serve", "sglang"),
        ("v2/sglang-runtime", "sglang"),
        ("v2/llama-cpp", "llama-cpp"),
        ("v2/trtllm", "trtllm"),
        ("v2/trtllm-mpirun", "trtllm"),
        ("v2/atlas", "atlas"),
    ],
)
def test_runtimes_are_told(path: str, runtime: str) -> None:
    assert wish(path).runtime == runtime


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("v1/json-doubled", {
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            "compilation_config": {"cudagraph_mode": "PIECEWISE", "pass_config": {"fuse_norm_quant": True}},
        }),
        ("v1/json-with-placeholder", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}),
        ("v1/dotted-options", {
            "compilation_config": {"cudagraph_mode": "PIECEWISE", "level": 3},
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        }),
        ("v1/several-values", {"cudagraph_capture_sizes": [1, 2, 4, 8], "max_num_seqs": 8}),
        ("v1/list-in-defaults", {"cudagraph_capture_sizes": [1, 2, 4]}),
        ("v1/negated-flags", {
            "enable_prefix_caching": False, "enable_flashinfer_autotune": False, "enable_chunked_prefill": True,
        }),
        ("v1/equals-form", {"max_model_len": 8192, "seed": -1, "dtype": "bfloat16"}),
        ("v1/optimization-level", {"optimization_level": 3, "quantization": "modelopt"}),
        ("v1/folded", {"max_model_len": 16384}),
        ("v1/trailing-blank", {"max_model_len": 4096}),
        ("v1/comment-lines", {}),
        ("v2/json-in-defaults", {
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            "compilation_config": {"cudagraph_mode": "PIECEWISE"},
            "cudagraph_capture_sizes": [1, 2, 4, 8],
        }),
        ("v2/object-in-defaults", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}),
        ("v2/expert-parallel", {
            "tensor_parallel_size": 2, "enable_expert_parallel": True, "trust_remote_code": True,
            "enable_prefix_caching": False,
        }),
        ("v2/atlas-two", {"ep_size": 2, "max_seq_len": 4096, "speculative": True, "num_drafts": 1}),
    ],
)  # fmt: skip
def test_options_as_data(path: str, expected: dict[str, Any]) -> None:
    assert options(path) == expected


def test_both_kinds_of_braces_mean_the_same() -> None:
    assert options("v1/json-single") == options("v1/json-doubled")


def test_the_number_of_hosts_fills_what_is_open() -> None:
    assert options("v2/with-command", 2)["tensor_parallel_size"] == 2
    assert options("v2/with-command", 1)["tensor_parallel_size"] == 1
    assert options("v2/pipeline", 4)["tensor_parallel_size"] == 2
    assert options("v2/with-command", 2, tensor_parallel=1)["tensor_parallel_size"] == 1
    assert load_recipe(DATA / "v2" / "with-command.yaml").serve.options == {"max_model_len": 40960}


def test_overrides_win_over_defaults() -> None:
    assert wish("v1/no-version-key").port == 9000
    assert wish("v1/no-version-key", port=1234).port == 1234
    assert options("v2/minimal", max_model_len=5) == {"max_model_len": 5}


@pytest.mark.parametrize(
    ("path", "limits"),
    [
        ("v1/qwen3-8b", (1, None)),
        ("v1/json-doubled", (1, 1)),
        ("v1/moe-cluster", (2, None)),
        ("v2/two-nodes", (2, 2)),
        ("v2/mode-solo", (1, 1)),
        ("v2/mode-cluster", (2, None)),
        ("v2/solo-only", (1, 1)),
    ],
)
def test_limits(path: str, limits: tuple[int, int | None]) -> None:
    found = wish(path)
    assert (found.min_nodes, found.max_nodes) == limits


def test_a_size_that_is_written_out_says_how_many_hosts() -> None:
    text = "recipe_version: '1'\nname: x\ncontainer: c\ncommand: vllm serve a/b -tp 2\n"
    found = convert(yamlfile.parse(text, "r.yaml"), "1").launch
    assert found is not None
    assert (found.min_nodes, found.max_nodes) == (2, 2)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("v1/build-args-tf5", {"build-args"}),
        ("v1/moe-cluster", {"ray"}),
        ("v1/two-commands", {"shell"}),
        ("v1/trailing-blank", {"trailing-blank"}),
        ("v2/builder", {"builder", "build-args", "pr-44700"}),
        ("v2/env-shell", {"env"}),
        ("v2/hooks", {"hook"}),
        ("v2/executor", set()),
        ("v2/executor-odd", {"executor"}),
        ("v2/gguf-vllm", {"model"}),
        ("v2/runtime-config", {"ignored", "unknown-key"}),
        ("v2/atlas", set()),
        ("v2/llama-cpp", set()),
        ("v2/sglang-runtime", set()),
        ("v2/trtllm-mpirun", {"runtime"}),
        ("v2/qwen3-8b", set()),
    ],
)
def test_what_is_told(path: str, expected: set[str]) -> None:
    assert codes(check(DATA / f"{path}.yaml")) == expected


def test_containers_and_benchmarks_are_carried_over() -> None:
    recipe = load_recipe(DATA / "v2" / "executor.yaml")
    assert recipe.serve.extra_docker_args == ["--privileged", "--user", "1000"]
    assert recipe.serve.shm_size == "16g"
    profile = load_recipe(DATA / "v2" / "benchmark.yaml").benchmark
    assert (profile.streams, profile.max_tokens) == ([1, 2, 4], 128)


def test_environment_as_text() -> None:
    assert wish("v1/env-mixed").env == {
        "VLLM_ATTENTION_BACKEND": "FLASHINFER",
        "VLLM_SLEEP": "0.5",
        "VLLM_USE_DEEP_GEMM": "0",
        "SOME_FLAG": "true",
    }
    assert wish("v2/env-shell").env == {}


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("models.yaml", None, "a list of models"),
        (".sparkrun/registry.yaml", None, "a file of the registry itself"),
        ("registry.yaml", None, "the list of a registry"),
        ("old.yaml.bak", None, "a file that does not end in .yaml or .yml"),
        ("README.md", None, "a file that does not end in .yaml or .yml"),
        ("fast.yaml", {"framework": "llama-benchy", "args": {}}, "a benchmark's profile"),
        ("deep.yaml", {"name": "x", "benchmark": {"args": {}}}, "a benchmark's profile"),
        ("x.yaml", {"models": []}, "a list"),
        ("r.yaml", {"model": "a/b", "benchmark": {}}, None),
        ("r.yaml", {"nmae": "x"}, None),
        ("r.yaml", {"command": "x", "args": []}, None),
    ],
)
def test_files_that_are_no_recipes(name: str, value: Any, what: str | None) -> None:
    assert not_a_recipe(Path("recipes") / name, value) == what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a}", "1"),
        ("{a}{a}", "11"),
        ("{{a}}", "{a}"),
        ("${a} $a", "${a} $a"),
        ("{nested}", "x1y"),
        ("{unknown} {a}", "{unknown} 1"),
        ('{{"k": {a}}}', '{"k": 1}'),
        ('{"k": {a}}', '{"k": 1}'),
        ('{{"k":{{"l":{{"m":{a}}}}}}}', '{"k":{"l":{"m":1}}}'),
        ('{"k":{"l":{"m":{a}}}}', '{"k":{"l":{"m":1}}}'),
        ("{{}} {}", "{} {}"),
        ("{list}", "1 2"),
        ("'{object}'", '\'{"k":[1]}\''),
        ("{yes}{no}{none}", "truefalse"),
    ],
)
def test_placeholders(text: str, expected: str) -> None:
    values = {
        "a": 1, "nested": "x{a}y", "list": [1, 2], "object": {"k": [1]}, "yes": True, "no": False, "none": None,
    }  # fmt: skip
    assert placeholders.expand(text, values).text == expected


def test_names_without_a_value_are_kept_and_told() -> None:
    found = placeholders.expand("a {x}\nb {y}\n{z}", {"x": "{deep}", "z": "{z}"})
    assert found.text == "a {deep}\nb {y}\n{z}"
    assert found.unknown == [("deep", 0), ("y", 1)]
    assert found.endless == [("z", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a \\\n  b", ["a", "b"]),
        ("a\\\nb", ["ab"]),
        ("'a b' \"c d\" e\\ f", ["a b", "c d", "e f"]),
        ("--x='{\"a\": 1}'", ['--x={"a": 1}']),
        ('"a\\"b" "a\\nb"', ['a"b', "a\\nb"]),
        ("a # b\n", ["a"]),
        ("a#b", ["a#b"]),
        ("''", [""]),
        ("a \\", ["a"]),
        ("a && b|c", ["a", "&&", "b", "|", "c"]),
        ("a\nb", ["a", "\n", "b"]),
        ("$A ${B} '$C'", ["$A", "${B}", "$C"]),
    ],
)
def test_shell_words(text: str, words: list[str]) -> None:
    assert [word.text for word in shell_words.split(text)] == words


@pytest.mark.parametrize(("port", "expected"), [("9000", 9000), ("'9000'", 9000), ("null", 8000)])
@pytest.mark.parametrize("command", ["", "command: vllm serve a/b\n"])
def test_a_port_in_defaults(port: str, expected: int, command: str) -> None:
    text = f"model: a/b\ncontainer: c\ndefaults: {{port: {port}}}\n{command}"
    found = convert(yamlfile.parse(text, "r.yaml"), "2")
    assert found.launch is not None and found.launch.port == expected
    assert not [finding for finding in found.findings if finding.severity == "error"]


def test_a_folded_command_with_backslashes_is_what_was_meant() -> None:
    text = "recipe_version: '1'\nname: x\ncontainer: c\ncommand: >\n  vllm serve a/b \\\n  --seed -1 \\\n  -tp 2\n"
    found = convert(yamlfile.parse(text, "r.yaml"), "1").launch
    assert found is not None and found.options == {"seed": -1, "tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # As vLLM reads them: JSON where it is some, else text; a plus adds to a list.
        ("-cc.pass_config.fuse=true -cc.a=null", {"compilation_config": {"pass_config": {"fuse": True}, "a": None}}),
        ("-cc.sizes=[1,2,4]", {"compilation_config": {"sizes": [1, 2, 4]}}),
        ("--hf-overrides.x '{\"a\": 1}'", {"hf_overrides": {"x": {"a": 1}}}),
        ("-cc.a=NaN -cc.b=1e999 -cc.c=007", {"compilation_config": {"a": "NaN", "b": "1e999", "c": "007"}}),
        ("-cc.custom_ops+=+x -cc.custom_ops+=-y,+z", {"compilation_config": {"custom_ops": ["+x", "-y", "+z"]}}),
    ],
)  # fmt: skip
def test_dotted_options(text: str, expected: dict[str, Any]) -> None:
    found = flags.parse(shell_words.split(text))
    assert (found.options, found.twice, found.strange) == (expected, [], [])


def test_shell_words_know_their_lines_and_variables() -> None:
    words = shell_words.split("a \\\n'b\nc' \\\n\"$D\" `e`")
    assert [word.line for word in words] == [0, 1, 3, 3]
    assert [word.variables for word in words[:3]] == [(), (), ("D",)]
    assert words[3].variables
    with pytest.raises(shell_words.ShellError, match="a ' that does not end") as caught:
        shell_words.split("a\n'b")
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-1", -1), ("0.80", 0.8), ("1.0", 1.0), ("007", "007"), ("1.2.3", "1.2.3"), ("{}", {}),
     ('{"a":[1]}', {"a": [1]}), ("{a}", "{a}"), ("fp8", "fp8"), ("", "")],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    assert flags.scalar(text) == value
    assert type(flags.scalar(text)) is type(value)


def test_json_values_survive_a_render() -> None:
    ranks = render(wish("v1/json-doubled", 1), 1)
    run = ranks[0].files["/etc/sparkstack/current/run"]
    line = next(line for line in run.splitlines() if "num_speculative_tokens" in line)
    assert json.loads(line.strip(" \\'")) == {"method": "mtp", "num_speculative_tokens": 2}
