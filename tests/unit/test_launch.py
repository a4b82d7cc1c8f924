import json
import shlex
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstack import engine_cache
from sparkstack.errors import SparkstackError
from sparkstack.launch import (
    ENV_LINE_LIMIT,
    Accelerator,
    Rank,
    docker_argv,
    drain_problems,
    env_file,
    run_script,
    serve_argv,
)
from sparkstack.recipe import Recipe

WORDS = st.text("ab \"'$\\\n`*;ü", max_size=6)


def recipe(options: dict[str, Any] | None = None, **more: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": "org/tiny",
            "checkpoint": {"source": {"repo": "org/tiny", "revision": "0" * 40}},
            "image": {"base": "x"},
            "serve": {"options": options or {}},
            "budget": {"memory_gib": 1, "disk_gib": 1},
            **more,
        }
    )


def argv(
    options: dict[str, Any] | None = None, rank: int = 0, world: int = 1, accelerator: Accelerator = "gpu"
) -> list[str]:
    place = Rank(rank, world, "192.168.100.10", f"192.168.100.{10 + rank}")
    return serve_argv(recipe(options), place, bind="0.0.0.0", port=8000, accelerator=accelerator)


def problems(*args: Any, **more: Any) -> list[str]:
    with pytest.raises(SparkstackError) as caught:
        argv(*args, **more)
    return caught.value.lines


def test_a_single_spark() -> None:
    assert shlex.join(argv({"max_model_len": 1024})) == (
        "vllm serve /model --served-model-name org/tiny --host 0.0.0.0 --port 8000 --shutdown-timeout 25 "
        "--scheduling-policy priority --tensor-parallel-size 1 --max-model-len 1024"
    )


@pytest.mark.parametrize(
    ("base", "version", "options", "drains"),
    [
        ("a/b@sha256:c", None, {}, True),
        ("a/b@sha256:c", "0.18.0", {}, True),
        ("a/b@sha256:c", "0.17.1", {}, False),
        ("a/b@sha256:c", "1.0", {}, True),
        ("docker.io/vllm/vllm-openai:v0.11.2", None, {}, False),
        ("vllm/vllm-openai:v0.20.2-cu130", None, {}, True),
        ("vllm/vllm-openai:v0.11.2", "0.19.1", {}, True),  # what the recipe says counts
        ("a/b@sha256:c", None, {"shutdown_timeout": None}, False),
        ("a/b@sha256:c", None, {"distributed_executor_backend": "ray"}, False),
        ("a/b@sha256:c", "0.20.2", {"distributed_executor_backend": "ray"}, True),
    ],
)
def test_a_vllm_that_knows_no_draining_is_not_told_to(
    base: str, version: str | None, options: dict[str, Any], drains: bool
) -> None:
    """It would end at once for a flag that it does not know."""
    one = recipe(options)
    image = one.image.model_copy(update={"base": base, "version": version})
    place = Rank(0, 2, "192.168.100.10", "192.168.100.10")
    words = serve_argv(one.model_copy(update={"image": image}), place, bind="::", port=8000)
    assert ("--shutdown-timeout" in words) is drains


@pytest.mark.parametrize(
    ("base", "version", "options", "said"),
    [
        ("a/b@sha256:c", None, {}, ["priority"]),
        ("a/b@sha256:c", "0.19.1", {}, ["priority"]),
        ("vllm/vllm-openai:v0.20.2-cu130", None, {}, ["priority"]),
        ("a/b@sha256:c", "0.12.0", {}, []),  # it ends at a request with n above 1
        ("vllm/vllm-openai:v0.11.2", None, {}, []),
        ("a/b@sha256:c", None, {"scheduling_policy": "fcfs"}, ["fcfs"]),
        ("a/b@sha256:c", "0.12.0", {"scheduling_policy": "priority"}, ["priority"]),
        ("a/b@sha256:c", None, {"scheduling_policy": None}, []),
    ],
)
@pytest.mark.parametrize("world", [1, 2])
def test_one_host_serves_by_priority_unless_the_recipe_says_another_policy(
    base: str, version: str | None, options: dict[str, Any], said: list[str], world: int
) -> None:
    """Several hosts have what the recipe says, and nothing else."""
    one = recipe(options)
    image = one.image.model_copy(update={"base": base, "version": version})
    if world > 1 and "scheduling_policy" not in options:
        said = []
    for rank in range(world):
        place = Rank(rank, world, "192.168.100.10", f"192.168.100.{10 + rank}")
        words = serve_argv(one.model_copy(update={"image": image}), place, bind="::", port=8000)
        assert [after for word, after in pairwise(words) if word == "--scheduling-policy"] == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (25, ""),
        (0, ""),
        (None, ""),
        ("20", ""),
        (300, "serve.options.shutdown_timeout 300"),
        ("300", "serve.options.shutdown_timeout 300"),
        (25.5, "serve.options.shutdown_timeout 25.5"),
        ("soon", ""),  # vLLM says so itself
        (True, ""),
    ],
)
def test_a_recipe_does_not_drain_longer_than_its_unit_lets_it(value: Any, said: str) -> None:
    found = [str(one) for one in drain_problems(recipe({"shutdown_timeout": value}), 25)]
    assert found == [
        f"recipe tiny: found {said}; wanted at most 25, the site's drain_s, after which the engine is "
        "killed; raise drain_s in group_data, or lower it"
    ] * bool(said)
    assert drain_problems(recipe({"shutdown_timeout": value}), 300) == []


def test_the_head_of_two() -> None:
    assert shlex.join(argv(world=2)) == (
        "vllm serve /model --served-model-name org/tiny --host 0.0.0.0 --port 8000 --shutdown-timeout 25 "
        "--tensor-parallel-size 2 "
        "--nnodes 2 --node-rank 0 --master-addr 192.168.100.10 --master-port 25000"
    )


def test_a_worker_is_headless_and_answers_nowhere() -> None:
    assert shlex.join(argv(rank=1, world=2)) == (
        "vllm serve /model --served-model-name org/tiny "
        "--tensor-parallel-size 2 "
        "--nnodes 2 --node-rank 1 --master-addr 192.168.100.10 --master-port 25000 --headless"
    )


def test_cpu_ranks_need_the_mp_backend_said() -> None:
    wanted = ["--distributed-executor-backend", "mp"]
    assert argv(world=2, accelerator="cpu")[-2:] == wanted
    assert wanted[0] not in argv(accelerator="cpu")
    assert wanted[0] not in argv(world=2)
    assert argv({"distributed_executor_backend": "ray"}, world=2, accelerator="cpu")[-1] == "ray"


def test_the_served_name_is_the_recipe_s() -> None:
    named = recipe(served_model_name="short")
    words = serve_argv(named, Rank(0, 1, "127.0.0.1", "127.0.0.1"), model_path="/m", bind="::", port=1)
    assert words[:5] == ["vllm", "serve", "/m", "--served-model-name", "short"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"quantization": None}, []),
        ({"gpu_memory_utilization": 0.8}, ["--gpu-memory-utilization", "0.8"]),
        ({"dtype": "bfloat16"}, ["--dtype", "bfloat16"]),
        ({"cudagraph_capture_sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        (
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
            ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'],
        ),
        ({"lora_modules": ["a=/b", {"name": "c"}]}, ["--lora-modules", "a=/b", '{"name":"c"}']),
        ({"middleware": ["a.B", "c.D"]}, ["--middleware", "a.B", "--middleware", "c.D"]),
        ({"middleware": "a.B"}, ["--middleware", "a.B"]),
        ({"allowed_origins": ["http://ui", "*"]}, ["--allowed-origins", '["http://ui","*"]']),
        ({"allowed_methods": '["GET"]'}, ["--allowed-methods", '["GET"]']),
        ({"device_ids": [0, 1]}, ["--device-ids", "0,1"]),
        ({"disable_log_stats": False}, []),
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"seed": -1}, ["--seed=-1"]),
        ({"chat_template": "--x"}, ["--chat-template=--x"]),
    ],
)
def test_how_options_are_written(option: dict[str, Any], words: list[str]) -> None:
    bare = argv()
    assert argv(option) == bare + words


@pytest.mark.parametrize(
    "option",
    [
        "model",
        "served_model_name",
        "host",
        "port",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "headless",
    ],
)
def test_derived_flags_are_refused_as_options(option: str) -> None:
    [line] = problems({option: 1})
    assert line.startswith(f"recipe tiny: found serve.options.{option}; wanted it only from ")


def test_all_duplicates_are_named_at_once() -> None:
    assert len(problems({"host": "x", "port": 1})) == 2


def test_parallel_sizes() -> None:
    def tensor(words: list[str]) -> str:
        return words[words.index("--tensor-parallel-size") + 1]

    assert tensor(argv(world=4)) == "4"
    assert tensor(argv({"pipeline_parallel_size": 2}, world=4)) == "2"
    assert tensor(argv({"data_parallel_size": 2}, world=2)) == "1"
    both = argv({"tensor_parallel_size": 1, "pipeline_parallel_size": 2}, world=2)
    assert tensor(both) == "1"
    assert both.count("--tensor-parallel-size") == 1
    assert tensor(argv({"tensor_parallel_size": 2}, accelerator="cpu")) == "2"


def test_parallel_sizes_that_do_not_fit_the_hosts() -> None:
    assert problems({"pipeline_parallel_size": 3}, world=4) == [
        "recipe tiny: found pipeline × prefill context × data parallel size 3 on 4 hosts; "
        "wanted a divisor of 4; correct serve.options"
    ]
    assert problems({"tensor_parallel_size": 4}, world=2) == [
        "recipe tiny: found serve.options for 4 GPUs "
        "(tensor × pipeline × prefill context × data parallel size); "
        "wanted 2, one a host; remove tensor_parallel_size"
    ]


def test_context_parallel_sizes() -> None:
    """Prefill context parallel takes GPUs of its own, decode context parallel those of tensor parallel."""

    def tensor(*args: Any, **more: Any) -> str:
        words = argv(*args, **more)
        return words[words.index("--tensor-parallel-size") + 1]

    prefill, decode = "prefill_context_parallel_size", "decode_context_parallel_size"
    assert tensor({prefill: 2}, world=2) == "1"
    assert tensor({prefill: 2}, world=4) == "2"
    assert tensor({prefill: 2, "tensor_parallel_size": 2}, world=4) == "2"
    assert tensor({decode: 2}, world=2) == "2"
    assert tensor({prefill: 2, decode: 2}, world=2) == "1"
    assert problems({prefill: 3}, world=4) == [
        "recipe tiny: found pipeline × prefill context × data parallel size 3 on 4 hosts; "
        "wanted a divisor of 4; correct serve.options"
    ]
    assert problems({prefill: 2, "tensor_parallel_size": 2}, world=2) == [
        "recipe tiny: found serve.options for 4 GPUs "
        "(tensor × pipeline × prefill context × data parallel size); "
        "wanted 2, one a host; remove tensor_parallel_size"
    ]
    assert problems({decode: 2, "pipeline_parallel_size": 2}, world=2) == [
        "recipe tiny: found decode_context_parallel_size 2 with tensor parallel size 1; "
        "wanted a divisor of 1; it shares the GPUs of tensor parallel; correct it"
    ]


def test_docker_for_a_gpu() -> None:
    words = docker_argv(
        ["vllm", "serve", "/model"], image="img:1", checkpoint_dir="/c/1", accelerator="gpu", shm_size="2g",
        extra=["--pids-limit", "4096"],
    )  # fmt: skip
    assert shlex.join(words) == (
        "docker run --rm --pull never --name sparkstack-serve --stop-timeout 30 "
        "--network host --ipc host --shm-size 2g "
        "--mount type=bind,src=/c/1,dst=/model,readonly --env-file /etc/sparkstack/fabric.env "
        "--env-file /etc/sparkstack/current/serve.env --gpus all --device /dev/infiniband --cap-add IPC_LOCK "
        "--ulimit memlock=-1 --entrypoint vllm --pids-limit 4096 img:1 serve /model"
    )


@pytest.mark.parametrize(
    ("extra", "has"),
    [
        ([], True),
        (["-v", "/root/.cache:/elsewhere"], True),
        (["--user", "0:0"], True),
        (["-e", "A=/root/.cache"], True),
        (["--user", "1000:1000"], False),
        (["-u1000"], False),
        (["--user=nobody"], False),
        (["-v/a:/root/.cache"], False),
        (["-v", "/root/.cache"], False),
        (["-v", "/a:/root/.cache/"], False),
        (["--mount", "dst=/root/.cache,type=volume"], False),
        (["--mount=type=tmpfs,destination=/root/.cache/"], False),
        (["--tmpfs=/root/.cache"], False),
        (["--tmpfs", "/root/.cache:size=1g"], False),
        (["-v", "/data/hub:/root/.cache/huggingface"], True),
        (["-v", "/data/cache:/root/.cache"], False),
        (["--volume=/data/cache:/root/.cache:rw"], False),
        (["--mount", "type=bind,src=/data,target=/root/.cache"], False),
        (["--tmpfs", "/root/.cache"], False),
    ],
)
def test_what_an_engine_compiled_is_kept_in_a_volume_of_its_image(extra: list[str], has: bool) -> None:
    assert engine_cache.keeps(recipe(serve={"extra_docker_args": extra})) is has
    words = docker_argv(
        ["vllm"], image="sparkstack/vllm:0a1b", checkpoint_dir="/c", accelerator="gpu", cache=has
    )
    volume = (
        "type=volume,src=sparkstack-cache-0a1b,dst=/root/.cache,"
        "volume-label=sparkstack.image=sparkstack/vllm:0a1b"
    )
    assert (volume in words) is has


def test_docker_for_a_cpu() -> None:
    words = docker_argv(
        ["vllm", "serve"], image="img", checkpoint_dir="/c", accelerator="cpu", env_files=["/e"]
    )
    assert shlex.join(words) == (
        "docker run --rm --pull never --name sparkstack-serve --stop-timeout 30 "
        "--network host --ipc host "
        "--mount type=bind,src=/c,dst=/model,readonly --env-file /e --cap-add SYS_NICE "
        "--entrypoint vllm img serve"
    )


def test_vllm_is_the_main_process() -> None:
    for accelerator in ("gpu", "cpu"):
        words = docker_argv(["vllm"], image="i", checkpoint_dir="/c", accelerator=accelerator)
        assert "--init" not in words
        assert "--privileged" not in words


def test_the_script_has_one_quoted_word_a_line() -> None:
    assert run_script(["a", "b c", '{"x":1}']) == "#!/bin/sh\nexec a \\\n  'b c' \\\n  '{\"x\":1}'\n"


@given(st.lists(WORDS, max_size=8))
def test_sh_runs_exactly_these_words(words: list[str]) -> None:
    script = run_script(["printf", "%s\\0", *words, "end"])
    out = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert out.decode().split("\0")[:-1] == [*words, "end"]


@pytest.mark.parametrize("words", [[], ["a\0"]])
def test_what_is_no_command(words: list[str]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        run_script(words)


def test_an_env_file_is_sorted_and_unquoted() -> None:
    text = env_file({"B": 'say "x" $y', "A": "", "_C": " #1 "})
    assert text == 'A=\nB=say "x" $y\n_C= #1 \n'
    assert env_file({}) == ""


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"A": "1\n2"}, "env A: found a line break; wanted one line; pass longer text by a file"),
        ({"A": "1\r"}, "env A: found a line break; wanted one line; pass longer text by a file"),
        ({"A B": "1"}, "env: found name 'A B'; wanted letters, digits and '_'; rename the variable"),
        ({"": "1"}, "env: found name ''; wanted letters, digits and '_'; rename the variable"),
        (
            {"A": "x" * ENV_LINE_LIMIT},
            "env A: found a longer value; wanted less than 65536 bytes; pass longer text by a file",
        ),
    ],
)
def test_what_an_env_file_cannot_hold(env: dict[str, str], line: str) -> None:
    with pytest.raises(SparkstackError) as caught:
        env_file(env)
    assert caught.value.lines == [line]


def test_json_options_stay_json_through_the_script() -> None:
    value = {"a": "it's", "b": [1, None, True]}
    words = argv({"compilation_config": value})
    assert json.loads(shlex.split(run_script(words).partition("exec ")[2].replace(" \\\n", " "))[-1]) == value
