# ruff: noqa: E501
"""What each engine is started with on each rank."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkstack import engine_cache, engines
from sparkstack.check import check
from sparkstack.errors import SparkstackError
from sparkstack.launch import Rank
from sparkstack.native import Recipe, secrets_in
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


def test_where_the_api_key_s_file_is() -> None:
    place, inside = Rank(0, 1, "127.0.0.1", "127.0.0.1"), "/run/sparkstack/api.key"
    mine = recipe(engine="command", command="srv --api-key-file {api_key_file}")
    for asked, file in ((True, inside), (False, "/dev/null")):
        assert engines.started(mine, place, bind="::1", port=1, api_key=asked).words[-1] == file
    atlas = engines.started(recipe(engine="atlas"), place, bind="::1", port=1, api_key=True).words
    assert atlas[-3:] == ["--require-auth", "--auth-tokens-file", inside]
    assert "auth" not in " ".join(started(recipe(engine="atlas")))


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
    # An engine of which we know nothing may have no flag that denies; one that has is told by that flag's name.
    options = {"ctx_size": 4096, "disable_radix_cache": False, "jinja": True, "x": None, "config": {"a": "b c"}}
    options |= {"no_mmap": True, "allowed_origins": ["a", "b"]}
    words = started(recipe(engine="command", command="srv", options=options))
    assert shlex.join(words) == (
        """srv --ctx-size 4096 --jinja --config '{"a":"b c"}' """
        "--no-mmap --allowed-origins a b"
    )


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
             "{port}, {api_key_file}, {rank}, {world}, {head_address}, {host_address}, {master_port}; did you mean {port}?"],
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
             "{port}, {api_key_file}, {rank}, {world}, {head_address}, {host_address}, {master_port}; did you mean {world}?"],
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


# vLLM on several hosts.

DATA = {"data_parallel_size": 2, "pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    ("options", "world", "words"),
    [
        ({}, 4, "--tensor-parallel-size 4"),
        ({"pipeline_parallel_size": 3}, 3, "--tensor-parallel-size 1"),
        ({"data_parallel_size": 2}, 4, "--tensor-parallel-size 2"),
        (DATA, 8, "--tensor-parallel-size 2"),
        (DATA, 4, "--tensor-parallel-size 1"),
    ],
)
def test_tensor_parallel_is_what_the_other_sizes_leave(
    options: dict[str, Any], world: int, words: str
) -> None:
    text = shlex.join(started(recipe(options=options), 1, world))
    assert words in text
    assert f"--nnodes {world} --node-rank 1 --master-addr 10.0.0.1 --master-port 25123 --headless" in text
    assert ("--data-parallel-address 10.0.0.1" in text) is ("data_parallel_size" in options)
    assert "ray" not in text


@pytest.mark.parametrize(
    ("metadata", "options", "world", "sizes"),
    [
        ({"num_kv_heads": 2}, {}, 3, (1, 3)),
        ({"num_kv_heads": 2}, {}, 4, (4, None)),  # repeated on two ranks each
        ({"num_kv_heads": 8, "num_attention_heads": 32}, {}, 6, (2, 3)),
        ({"num_kv_heads": 2, "num_attention_heads": 16}, {}, 6, (2, 3)),
        ({"num_kv_heads": 8}, {}, 8, (8, None)),
        ({"num_kv_heads": 8}, {"data_parallel_size": 2}, 6, (1, 3)),
        ({"num_attention_heads": 24}, {}, 3, (3, None)),
        ({"num_attention_heads": 24}, {}, 6, (6, None)),
        ({"num_kv_heads": "8"}, {}, 3, (1, 3)),  # not said as a number: heads divide by powers of two
        ({}, {}, 3, (1, 3)),
        ({}, {}, 5, (1, 5)),
        ({}, {}, 6, (2, 3)),
        ({}, {}, 8, (8, None)),
        ({"num_kv_heads": 2}, {"pipeline_parallel_size": 1}, 3, (3, None)),  # the recipe knows better
    ],
)
def test_pipeline_parallel_where_heads_do_not_divide(
    metadata: dict[str, Any], options: dict[str, Any], world: int, sizes: tuple[int, int | None]
) -> None:
    made = recipe(options=options).model_copy(update={"metadata": metadata})
    words = started(made, 1, world)
    tensor, pipeline = sizes
    assert words[words.index("--tensor-parallel-size") + 1] == str(tensor)
    if "pipeline_parallel_size" not in options:
        assert ("--pipeline-parallel-size" in words) is (pipeline is not None)
        assert pipeline is None or words[words.index("--pipeline-parallel-size") + 1] == str(pipeline)


@pytest.mark.parametrize(("options", "world"), [(DATA, 6), ({"pipeline_parallel_size": 2}, 3)])
def test_sizes_that_do_not_divide_the_hosts(options: dict[str, Any], world: int) -> None:
    with pytest.raises(SparkstackError, match=f"wanted a divisor of {world}"):
        started(recipe(options=options), 0, world)


RAY = {"distributed_executor_backend": "ray"}


def test_ray_is_begun_in_the_containers_where_a_recipe_says_so() -> None:
    head, worker = started(recipe(options=RAY), 0, 2), started(recipe(options=RAY), 1, 2)
    assert head[:2] == worker[:2] == ["sh", "-c"]
    assert head[4:9] == [head[4], "10.0.0.1", "25123", "--num-gpus=1", "vllm"]
    assert '"VLLM_HOST_IP"' in head[4]
    assert "--nnodes" not in head and "--headless" not in head
    assert shlex.join(head[-4:]) == "--tensor-parallel-size 2 --distributed-executor-backend ray"
    assert worker[3:] == ["ray-worker", "10.0.0.1", "25123", "10.0.0.2", "--num-gpus=1"]
    assert engines.env(recipe(options=RAY), 2)["RAY_memory_monitor_refresh_ms"] == "0"
    # One host has nobody to meet.
    assert started(recipe(options=RAY))[0] == "vllm"
    assert engines.env(recipe(options=RAY), 1) == engine_cache.KERNELS


def test_replicas_over_ray_are_one_a_host() -> None:
    """Without the words for it vLLM would begin all of them on the head."""
    head = shlex.join(started(recipe(options=RAY | {"data_parallel_size": 2}), 0, 2))
    assert (
        "--tensor-parallel-size 1 --data-parallel-backend ray --data-parallel-size-local 1 "
        "--data-parallel-address 10.0.0.1 --distributed-executor-backend ray --data-parallel-size 2"
    ) in head
    assert "--nnodes" not in head
    span = recipe(options=RAY | {"data_parallel_size": 2}, env={"VLLM_RAY_DP_PACK_STRATEGY": "span"})
    assert "--data-parallel-backend ray" in shlex.join(started(span, 0, 4))


@pytest.mark.parametrize(
    ("options", "world", "line"),
    [
        (RAY | {"data_parallel_size": 2}, 4, "found data_parallel_size 2 over Ray with 2 hosts a replica; "),
        (RAY | {"data_parallel_size": 2, "data_parallel_backend": "mp"}, 2, "found data_parallel_backend 'mp' "),
        ({"data_parallel_size": 2, "data_parallel_backend": "ray"}, 2, "found data_parallel_backend ray on 2 "),
    ],
)
def test_what_ray_and_data_parallel_cannot_do_together(options: dict[str, Any], world: int, line: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        started(recipe(options=options), 0, world)
    [told] = caught.value.lines
    assert told.startswith(f"recipe x: {line}")


def test_models_compiled_with_other_features_are_kept_apart() -> None:
    def folder(**env: str) -> str | None:
        return engines.env(recipe(env=env), 1).get("VLLM_CACHE_ROOT")

    one, two = folder(SPARKSTACK_HYBRID="1"), folder(SPARKSTACK_HYBRID="0")
    assert folder(A="1") is None and one and two and one != two
    assert one.startswith("/root/.cache/vllm/sparkstack-")
    assert folder(SPARKSTACK_HYBRID="1", A="2") == one
    assert folder(SPARKSTACK_HYBRID="1", VLLM_CACHE_ROOT="/mine") == "/mine"


def test_the_scripts_around_ray_run_what_they_are_told(tmp_path: Path) -> None:
    said = tmp_path / "said"
    for name, text in (("ray", f'echo "ray $*" >> {said}'), ("vllm", f'echo "vllm $* $RAY_ADDRESS" >> {said}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").symlink_to("/bin/true")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for rank in (0, 1):
        subprocess.run(started(recipe(options=RAY), rank, 2), env=env, check=True, timeout=20)
    head, served, worker = said.read_text().splitlines()
    store = "--object-store-memory=1073741824"
    assert head == (
        f"ray start --head --node-ip-address=10.0.0.1 --port=25123 --num-gpus=1 {store} "
        "--include-dashboard=false"
    )
    assert served.startswith("vllm serve /model ") and served.endswith(" ray 10.0.0.1:25123")
    assert worker == f"ray start --address=10.0.0.1:25123 --node-ip-address=10.0.0.2 --num-gpus=1 {store} --block"
    names = json.loads((tmp_path / ".config/vllm/ray_non_carry_over_env_vars.json").read_text())
    assert "NCCL_IB_HCA" in names


# Atlas.


def test_atlas_on_one_and_on_two_hosts() -> None:
    options = {"max_seq_len": 4096, "speculative": True, "warm": False}
    one = engines.started(
        recipe(engine="atlas", options=options), Rank(0, 1, "127.0.0.1", "127.0.0.1"), bind="::1", port=8
    )
    assert not one.entrypoint
    assert shlex.join(one.words) == (
        "serve --model-from-path /model --port 8 --bind ::1 --oom-guard-mb 1024 --max-seq-len 4096 --speculative"
    )
    two = recipe(engine="atlas", options={"oom_guard_mb": 512})
    assert shlex.join(started(two, 1, 2)) == (
        "serve --model-from-path /model --port 8000 --oom-guard-mb 512 --rank 1 --world-size 2 "
        "--master-addr 10.0.0.1 --master-port 25123 --ep-size 2"
    )
    assert engines.env(two, 2)["ATLAS_SKIP_OOM_PREFLIGHT"] == "1" and engines.env(two, 1) == {}
    none = recipe(engine="atlas", options={"oom_guard_mb": None, "ep_size": None})
    assert "--oom-guard-mb" not in started(none, 0, 1)
    assert started(none, 0, 2)[-2:] == ["--ep-size", "2"]  # a size that is not said
    mine = recipe(engine="atlas", env={"NCCL_ALGO": "Tree"})
    assert engines.env(mine, 2)["NCCL_ALGO"] == "Tree"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"ep_size": 4}, "found ep_size or tp_size for 4 ranks; wanted 2, one a host; remove ep_size and tp_size"),
        ({"world_size": 2}, "found serve.options.world_size; wanted it only from the inventory; remove the option"),
    ],
)  # fmt: skip
def test_atlas_sizes(options: dict[str, Any], line: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        started(recipe(engine="atlas", options=options), 0, 2)
    assert caught.value.lines == [f"recipe x: {line}"]


# Recipes of the community for other engines.

V2 = "recipe_version: '2'\nmodel: a/b\nmodel_revision: " + "0" * 40 + f"\ncontainer: c@sha256:{'1' * 64}\n"


def foreign(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "r.yaml"
    path.write_text(V2 + text)
    return load_recipe(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "command: sglang serve --model-path={model} --host 0.0.0.0 --served-model-name nice --tp 1\n",
            "sglang serve --model-path /model --host ::1 --served-model-name nice --tp 1 --port 8000",
        ),
        (
            "runtime: sglang\ndefaults: {tensor_parallel: 1, max_model_len: 4096, disable_x: false, trust_remote_code: true}\n",
            "python3 -m sglang.launch_server --host ::1 --port 8000 --served-model-name a/b --model-path /model "
            "--tp-size 1 --context-length 4096 --trust-remote-code",
        ),
        (
            "command: trtllm-serve a/b --backend pytorch\n",
            "trtllm-serve /model --backend pytorch --host ::1 --port 8000",
        ),
        (
            """command: |\n  sglang serve --model-path a/b --json '{"a": {"b": {}}}' --jinja '{{ x }}'\n""",
            """sglang serve --model-path /model --json '{"a": {"b": {}}}' --jinja '{ x }' --host ::1 """
            "--port 8000 --served-model-name a/b",
        ),
    ],
)
def test_a_foreign_recipe_becomes_a_command(tmp_path: Path, text: str, words: str) -> None:
    made = foreign(tmp_path, text)
    assert (made.serve.engine, made.max_nodes) == ("command", 1)
    assert shlex.join(started(made)) == words


def test_llama_cpp_takes_the_file_of_its_quantization(tmp_path: Path) -> None:
    made = foreign(tmp_path, "command: llama-server -hf {model} --port 9 -ngl 99 -c 8192 -a nice\ndefaults: {port: 9}\n")
    assert made.checkpoint.source.allow == ["*Q4_K_M*.gguf", "*q4_k_m*.gguf"]
    assert made.served_name == "nice"
    words = engines.started(made, Rank(0, 1, "127.0.0.1", "127.0.0.1"), bind="::1", port=made.serve.port).words
    assert shlex.join(words[3:]) == "/model llama-server --port 9 -ngl 99 -c 8192 --alias nice --host ::1".replace(
        "--alias", "-a"
    )
    folder = tmp_path / "model" / "Q4"
    folder.mkdir(parents=True)
    for name in ("x-00002-of-00002.gguf", "x-00001-of-00002.gguf", "mmproj-a.gguf"):
        (folder / name).touch()
    asked = ["sh", "-c", words[2], str(tmp_path / "model"), "echo", "started"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == f"started --model {folder}/x-00001-of-00002.gguf\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "min_nodes: 2\ncommand: sglang serve --model-path {model}\n",
            "found runtime sglang on 2 hosts; wanted one host; several hosts take a native recipe, whose command "
            "tells its ranks apart by {rank}",
        ),
        ("runtime: trtllm\n", "found runtime trtllm without a command; wanted its command; add `command`"),
    ],
)
def test_what_no_command_is_made_of(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        foreign(tmp_path, text)
    assert [found.partition(": ")[2] for found in caught.value.lines] == [line]


# JSON, and secrets.


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("{speculative_config: mtp}", "r.yaml:7: error: found speculative_config = 'mtp' (expecting value: line 1 column 1 (char 0)); wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{hf_overrides: '{\"a\": NaN}'}", "r.yaml:7: error: found hf_overrides = '{\"a\": NaN}' (nan is no json); wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{hf_overrides: '[1]'}", "r.yaml:7: error: found hf_overrides = '[1]'; wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{limit_mm_per_prompt: 3}", "r.yaml:7: error: found limit_mm_per_prompt = 3; wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{my_option: \"{'a': 1}\"}", "r.yaml:7: error: found my_option = \"{'a': 1}\" (expecting property name enclosed in double quotes: line 1 column 2 (char 1)); wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{lora_modules: ['{}', '{\"a\": 1']}", "r.yaml:7: error: found lora_modules[1] = '{\"a\": 1' (expecting ',' delimiter: line 1 column 8 (char 7)); wanted a JSON object; write its keys below it, or one line of JSON"),
        ("{compilation_config: 3, chat_template: '{% x %}', hf_overrides: '{\"a\": 1}'}", None),
    ],
)  # fmt: skip
def test_json_options(tmp_path: Path, options: str, line: str | None) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{NATIVE}serve:\n  options: {options}\n")
    found = [str(finding).replace(f"{tmp_path}/", "") for finding in check(path).findings]
    assert found == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("serve", "found"),
    [
        ({"env": {"VLLM_API_KEY": "sesame"}}, "env.VLLM_API_KEY"),
        ({"extra_docker_args": ["-e", "HF_TOKEN=sesame"]}, "HF_TOKEN in extra_docker_args"),
        ({"engine": "command", "command": "srv --api-key=sesame"}, "--api-key in serve.command"),
        ({"options": {"api_key": "sesame"}}, "api_key among the options"),
    ],
)
def test_no_secret_stands_in_a_recipe(serve: dict[str, Any], found: str) -> None:
    [line] = [str(problem) for problem in secrets_in(recipe(**serve))]
    assert line.startswith(f"recipe x: found {found}; wanted no secrets in a recipe; remove it; ")
    assert "sesame" not in line
