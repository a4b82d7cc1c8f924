# ruff: noqa: E501 -- a message is compared with the whole line that a user reads
"""What `recipe check` says, word by word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from sparkstack import hosts, parallel_sizes, rules, vllm_options
from sparkstack.check import check, refusals
from sparkstack.cli import main
from sparkstack.native import PLUGIN_FEATURES, PLUGIN_KNOBS, Recipe, missing_pins, pins_missing, unsupported
from sparkstack.recipe import load_recipe
from sparkstack.recipe_schema import FILES, schema

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
ZEROS, DIGEST = "0" * 40, "0" * 64
V1 = f"recipe_version: '1'\nname: x\nmodel: a/b\ncontainer: c@sha256:{DIGEST}\n"
V2 = f"model: a/b\nmodel_revision: '{ZEROS}'\ncontainer: c@sha256:{DIGEST}\n"
NATIVE = f"""\
name: x
model: a/b
checkpoint:
  source: {{repo: a/b, revision: '{ZEROS}'}}
image: {{base: c@sha256:{DIGEST}}}
budget: {{memory_gib: 1, disk_gib: 1}}
"""


def said(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return [str(finding).removeprefix(f"{tmp_path}/") for finding in check(path).findings]


BROKEN: list[tuple[str, str, list[str]]] = [
    (
        "v1 typo required",
        "recipe_version: '1'\nname: x\ncontaner: c\ncommand: vllm serve a/b\n",
        [
            "r.yaml:1: warning: found no pinned revision of a/b; wanted a commit (40 hex digits); take a native recipe, which can pin it; deploy refuses the recipe until then",
            "r.yaml:1: warning: found image c without a digest; wanted NAME@sha256:…; add the digest that you have checked, here or in image_bases of group_data; deploy refuses the recipe until then",
            "r.yaml:3: error: found unknown key 'contaner'; wanted 'container'; correct its name",
        ],
    ),
    (
        "v1 missing",
        "recipe_version: '1'\nname: x\n",
        [
            "r.yaml:1: error: found no 'container'; wanted a value; add 'container' to the recipe",
            "r.yaml:1: error: found no 'command'; wanted a value; add 'command' to the recipe",
        ],
    ),
    (
        "v1 wrong types",
        V1 + "solo_only: yes please\nmods: {a: 1}\nenv: [1]\ncommand: vllm serve a/b {prot}\n",
        [
            "r.yaml:3: warning: found no pinned revision of a/b; wanted a commit (40 hex digits); take a native recipe, which can pin it; deploy refuses the recipe until then",
            "r.yaml:5: error: found solo_only = 'yes please'; wanted a valid boolean",
            "r.yaml:6: error: found mods = {'a': 1}; wanted a list of texts",
            "r.yaml:7: error: found env = [1]; wanted keys with values",
            "r.yaml:8: error: found {prot} without a value; wanted a key of defaults; did you mean {port}?",
        ],
    ),
    (
        "v1 unknown key",
        V1 + "cluster_olny: true\ncommand: vllm serve a/b\n",
        [
            "r.yaml:3: warning: found no pinned revision of a/b; wanted a commit (40 hex digits); take a native recipe, which can pin it; deploy refuses the recipe until then",
            "r.yaml:5: warning: found unknown key 'cluster_olny'; wanted one of: build_args, cluster_only, command, container, defaults, description, env, model, mods, name, pull_image, recipe_version, solo_only; did you mean 'cluster_only'?",
        ],
    ),
    (
        "v2 wrong types",
        V2 + "min_nodes: two\ndefaults: 5\ncommand: vllm serve {model} --port {prt}\n",
        [
            "r.yaml:4: error: found min_nodes = 'two'; wanted a valid integer",
            "r.yaml:5: error: found defaults = 5; wanted keys with values",
            "r.yaml:6: error: found {prt} without a value; wanted a key of defaults; did you mean {port}?",
        ],
    ),
    (
        "v2 executor typo",
        V2 + "executor_config: {shm_sise: 1g, privileged: maybe}\ncommand: vllm serve {model}\n",
        [
            "r.yaml:4: error: found executor_config.privileged = 'maybe'; wanted a valid boolean",
            "r.yaml:4: warning: found unknown key 'executor_config.shm_sise'; wanted one of: auto_remove, entrypoint, gpus, ipc, network, privileged, restart_policy, shm_size, user; did you mean 'shm_size'?",
        ],
    ),
    (
        "v2 hooks",
        V2 + "pre_exec: [{cpy: a}]\n",
        [
            "r.yaml:4: error: found pre_exec = [{'cpy': 'a'}]; wanted commands, or `{copy, dest}`",
        ],
    ),
    (
        "endless",
        V2 + "defaults: {a: '{b}', b: '{a}'}\ncommand: vllm serve {model} --x {a}\n",
        [
            "r.yaml:5: error: found {a}, whose value holds {a} again; wanted values that end; correct defaults",
        ],
    ),
    (
        "blank",
        V2 + "command: |\n  vllm serve {model} \\ \n    --port 1\n",
        [
            "r.yaml:5: warning: found a blank behind the backslash; wanted the backslash as the line's end; remove the blank (it is repaired here)",
        ],
    ),
    (
        "names in defaults",
        V2 + "defaults:\n  a: '{foo}'\n  b: '{b}'\n",
        [
            "r.yaml:5: error: found {foo} without a value; wanted a key of defaults; add 'foo' to defaults",
            "r.yaml:6: error: found {b}, whose value holds {b} again; wanted values that end; correct defaults",
        ],
    ),
    *(
        (
            f"port {port}",
            V2 + f"defaults:\n  port: {port}\n",
            [f"r.yaml:5: error: found port {yaml.safe_load(port)!r}; wanted a number from 1 to 65535; correct it"],
        )
        for port in ("none", "true", "0", "65536", "[8000]", "8000.5", "''")
    ),
    (
        "port in a command",
        V2 + "command: |\n  vllm serve {model} \\\n    --port http\n",
        ["r.yaml:6: error: found port 'http'; wanted a number from 1 to 65535; correct it"],
    ),
    (
        "port without a value",
        V2 + "defaults: {port: '{prt}'}\n",
        ["r.yaml:4: error: found {prt} without a value; wanted a key of defaults; did you mean {port}?"],
    ),
    (
        "folded with backslashes",
        V2 + "command: >\n  vllm serve {model} \\\n  --seed -1 \\ \n  --port {prt}\n",
        [
            "r.yaml:4: warning: found backslashes in a command whose lines are joined (>); wanted `command: |`; write it so, or leave them out (it is repaired here)",
            "r.yaml:4: error: found {prt} without a value; wanted a key of defaults; did you mean {port}?",
        ],
    ),
    (
        "no continuation",
        V2 + "command: |\n  vllm serve {model}\n    --port 1\n",
        [
            "r.yaml:5: warning: found more than one command (a line's end without a backslash); wanted one command; we start the engine without a shell; put the rest into the image",
        ],
    ),
    (
        "twice alias",
        V2 + "command: |\n  vllm serve {model} \\\n    -tp 2 \\\n    --tensor-parallel-size 4\n",
        [
            "r.yaml:7: error: found --tensor-parallel-size again, first in line 6 (as -tp), with another value; wanted each flag once; remove one",
        ],
    ),
    (
        "twice same",
        V2 + "command: |\n  vllm serve {model} \\\n    --max-model-len 5 --max_model_len=5\n",
        [
            "r.yaml:6: warning: found --max_model_len again, first in line 6 (as --max-model-len); wanted each flag once; remove one",
        ],
    ),
    (
        "twice on off",
        V2 + "command: vllm serve {model} --enable-prefix-caching --no-enable-prefix-caching\n",
        [
            "r.yaml:4: error: found --no-enable-prefix-caching again, first in line 4 (as --enable-prefix-caching), with another value; wanted each flag once; remove one",
        ],
    ),
    (
        "bare json",
        V2 + 'command: |\n  vllm serve {model} --speculative-config {"method":"mtp"}\n',
        [
            "r.yaml:5: error: found --speculative-config {method:mtp}; wanted a JSON object; put it in single quotes, with double quotes inside",
        ],
    ),
    (
        "bad json",
        V2 + "command: |\n  vllm serve {model} --speculative-config '{\"method\":mtp}'\n",
        [
            'r.yaml:5: error: found --speculative-config {"method":mtp}; wanted a JSON object; put it in single quotes, with double quotes inside',
        ],
    ),
    (
        "quote",
        V2 + "command: |\n  vllm serve {model} \\\n  --x 'a\n",
        [
            "r.yaml:6: error: found a ' that does not end; wanted a quote for each quote; close it",
        ],
    ),
    (
        "runtime typo",
        V2 + "runtime: sglnag\n",
        [
            "r.yaml:4: error: found runtime 'sglnag'; wanted vllm, vllm-distributed, vllm-ray, eugr-vllm, sglang, llama-cpp, trtllm, atlas; did you mean 'sglang'?",
        ],
    ),
    (
        "solo cluster",
        V2 + "solo_only: true\ncluster_only: true\n",
        [
            "r.yaml:4: error: found cluster_only and solo_only; wanted one of the two; remove one",
        ],
    ),
    (
        "solo min",
        V2 + "mode: solo\nmin_nodes: 2\n",
        [
            "r.yaml:4: error: found min_nodes 2 and solo_only; wanted one of the two; remove one",
        ],
    ),
    (
        "max below",
        V2 + "min_nodes: 3\nmax_nodes: 2\n",
        [
            "r.yaml:5: error: found max_nodes 2 below min_nodes 3; wanted max_nodes not below it; correct one of the two",
        ],
    ),
    (
        "tp solo",
        V2 + "solo_only: true\ndefaults: {tensor_parallel: 2}\n",
        [
            "r.yaml:5: error: found tensor_parallel 2 for at most 1 host; wanted 1 or less; one host is one GPU",
        ],
    ),
    (
        "tp literal",
        V2 + "max_nodes: 2\ncommand: vllm serve {model} -tp 4\n",
        [
            "r.yaml:5: error: found a recipe for 4 GPUs (tensor × pipeline × prefill context × data parallel size) on 1 to 2 hosts; wanted one GPU a host; correct the size, or min_nodes and max_nodes",
        ],
    ),
    (
        "pp",
        V2 + "min_nodes: 3\nmax_nodes: 3\ndefaults: {pipeline_parallel: 2}\n",
        [
            "r.yaml:6: error: found pipeline × prefill context × data parallel size 2 on 3 hosts; wanted a multiple of 2 hosts; correct one",
        ],
    ),
    (
        "memory",
        V2 + "metadata: {model_vram: 200}\n",
        [
            "r.yaml:4: error: found 200.0 GB of weights on 1 host; wanted at most 115.2 GB (128 GB × 1 × 0.9); min_nodes: 2, a shorter max_model_len, or a smaller model",
        ],
    ),
    (
        "memory2",
        V2
        + "max_nodes: 1\nmetadata: {model_vram: 100, kv_vram_per_token: 0.0001}\ndefaults: {max_model_len: 262144, gpu_memory_utilization: 0.9}\n",
        [
            "r.yaml:6: error: found 100.0 GB of weights + 26.2 GB of KV cache for 262144 tokens on 1 host; wanted at most 115.2 GB (128 GB × 1 × 0.9); 2 hosts could hold it; raise max_nodes, or take a smaller model",
        ],
    ),
    (
        "memory3",
        V2 + "metadata: {model_params: 235B, model_dtype: bfloat16}\n",
        [
            "r.yaml:4: error: found 470.0 GB of weights on 1 host; wanted at most 115.2 GB (128 GB × 1 × 0.9); min_nodes: 5, a shorter max_model_len, or a smaller model",
        ],
    ),
    (
        "gmu",
        V2 + "metadata: {model_vram: 10}\ndefaults: {gpu_memory_utilization: 1.5}\n",
        [
            "r.yaml:5: error: found gpu_memory_utilization 1.5; wanted more than 0, at most 1",
        ],
    ),
    (
        "model twice",
        V2 + "command: vllm serve a/c\n",
        [
            "r.yaml:4: error: found the model 'a/c' in the command and 'a/b' as model; wanted one of the two; write {model} in the command",
        ],
    ),
    (
        "no model",
        "recipe_version: '1'\nname: x\ncontainer: c\ncommand: vllm serve --port 1\n",
        [
            "r.yaml:3: warning: found image c without a digest; wanted NAME@sha256:…; add the digest that you have checked, here or in image_bases of group_data; deploy refuses the recipe until then",
            "r.yaml:4: error: found no model, neither as a key nor in the command; wanted a hub id; add 'model'",
        ],
    ),
    (
        "secret",
        V2 + "defaults: {api_key: sk-1}\n",
        [
            "r.yaml:4: error: found api_key among the options; wanted no secrets in a recipe; remove it; arguments can be read by every user of a host",
        ],
    ),
    (
        "variable",
        V2 + "command: vllm serve {model} --api-key $KEY\n",
        [
            "r.yaml:4: warning: found $KEY in the command; wanted no shell variables; write the value, or a {name} from defaults",
            "r.yaml:4: error: found api_key among the options; wanted no secrets in a recipe; remove it; arguments can be read by every user of a host",
        ],
    ),
    (
        "pins",
        "model: a/b\nmodel_revision: main\ncontainer: x:latest\n",
        [
            "r.yaml:2: warning: found model_revision 'main'; wanted a commit (40 hex digits); pin the commit; branches and tags move; deploy refuses the recipe until then",
            "r.yaml:3: warning: found image x:latest without a digest; wanted NAME@sha256:…; add the digest that you have checked, here or in image_bases of group_data; deploy refuses the recipe until then",
        ],
    ),
    (
        "nopins",
        "model: a/b\ncontainer: x:latest\n",
        [
            "r.yaml:1: warning: found no pinned revision of a/b; wanted a commit (40 hex digits); add model_revision; deploy refuses the recipe until then",
            "r.yaml:2: warning: found image x:latest without a digest; wanted NAME@sha256:…; add the digest that you have checked, here or in image_bases of group_data; deploy refuses the recipe until then",
        ],
    ),
    (
        "no container",
        "model: a/b\nruntime: vllm\nmodel_revision: '0000000000000000000000000000000000000000'\n",
        [
            "r.yaml:2: warning: found no container; wanted an image; name the image that the runtime shall use",
        ],
    ),
    (
        "path model",
        "model: /models/x\nmodel_revision: '0000000000000000000000000000000000000000'\ncontainer: c@sha256:0000000000000000000000000000000000000000000000000000000000000000\nruntime: vllm\n",
        [
            "r.yaml:1: warning: found the model '/models/x'; wanted a hub id, ORGANISATION/NAME; name the repository; files of a host are not staged",
        ],
    ),
    (
        "bad option value",
        V2 + "defaults: {x: [[1]]}\n",
        [
            "r.yaml:4: error: found x[0] = [1]; wanted a text, a number or a JSON object; correct it",
        ],
    ),
    (
        "bad option name",
        V2 + "defaults: {Bad-Name: 1}\n",
        [
            "r.yaml:4: error: found the name 'Bad_Name'; wanted an option in snake case, as max_model_len for --max-model-len; correct it",
        ],
    ),
    (
        "strange",
        V2 + "command: vllm serve {model} extra -Z --a.b 1\n",
        [
            "r.yaml:4: warning: found 'extra' in the command; wanted a long flag or its value; write it as --flag value",
            "r.yaml:4: warning: found '-Z' in the command; wanted a long flag or its value; write it as --flag value",
        ],
    ),
    (
        "echo",
        V2 + "command: ./run.sh {port}\n",
        [
            "r.yaml:4: warning: found a command that starts with './run.sh'; wanted `vllm serve …`; write it so",
        ],
    ),
    (
        "format",
        "recipe_version: 7\nmodel: a/b\n",
        [
            'r.yaml:1: error: found recipe format \'7\'; wanted "1", "2" or "3" (ours); correct it',
        ],
    ),
    (
        "native two",
        NATIVE.replace("memory_gib: 1", "memory_gib: '1'")
        + "serve:\n  options: {tensor_parallel_size: 2, kv_cache_dtype: turboquant_k8v4, speculative_config: {method: mtp}}\nmax_nodes: 1\nmetadata: {model_vram: 300, hybrid: true}\n",
        [
            "r.yaml:6: error: found budget.memory_gib = '1'; wanted a valid number; write it without quotes",
            "r.yaml:8: error: found a recipe for 2 GPUs (tensor × pipeline × prefill context × data parallel size) on 1 host; wanted one GPU a host; correct the size, or min_nodes and max_nodes",
            "r.yaml:8: error: found turboquant_k8v4 together with MTP on a hybrid model; wanted one of the two; remove speculative_config or the KV preset (the output degenerates without any error; source: vllm#53180 (open, seen in 0.27.1))",
            "r.yaml:10: error: found 300.0 GB of weights on 1 host; wanted at most 115.2 GB (128 GB × 1 × 0.9); 3 hosts could hold it; raise max_nodes, or take a smaller model",
        ],
    ),
    (
        "native env",
        NATIVE + "serve:\n  env: {SPARKSTACK_INT8_LMHEAD: '1'}\n",
        [
            "r.yaml:8: error: found serve.env.SPARKSTACK_INT8_LMHEAD, which our plugin does not read; wanted one of: SPARKSTACK_DRAFT_HEAD, SPARKSTACK_FP8_DENSE_AT_LOAD, SPARKSTACK_FP8_DENSE_AT_LOAD_LAYERS, SPARKSTACK_HYBRID, SPARKSTACK_INT8_LM_HEAD, SPARKSTACK_NGRAM_TABLE, SPARKSTACK_NGRAM_TABLE_IO, SPARKSTACK_NGRAM_TABLE_THREADS; did you mean 'SPARKSTACK_INT8_LM_HEAD'?",
        ],
    ),
    (
        "native plugin left out",
        NATIVE.replace("0}", "0, plugin: {int8_lm_head: true}}", 1)
        + "serve:\n  env: {VLLM_PLUGINS: 'lora_filesystem_resolver'}\n",
        [
            "r.yaml:8: error: found serve.env.VLLM_PLUGINS = 'lora_filesystem_resolver', which leaves our plugin out, and features of it; wanted sparkstack among them; add it, or remove the variable",
        ],
    ),
    (
        "native plugin conflict",
        NATIVE.replace("0}", "0, plugin: {int8_lm_head: true}}", 1)
        + "serve:\n  env: {SPARKSTACK_INT8_LM_HEAD: '0'}\n",
        [
            "r.yaml:8: error: found serve.env.SPARKSTACK_INT8_LM_HEAD = '0' against image.plugin.int8_lm_head; wanted it only from image.plugin; remove the variable",
        ],
    ),
    (
        "native accept",
        NATIVE + "serve: {}\naccept: {no-such: x}\n",
        [
            "r.yaml:8: error: found accept.no-such; wanted one of: mtp-nvfp4, prefix-caching-gdn, turboquant-mtp, turboquant-hybrid-version, turboquant-reference, pr-44700, pr-38325, hybrid-checkpoint, plugin-transform, plugin-version, draft-head-alone, drafting-options, ple-cpu-offload; remove it",
        ],
    ),
    (
        "native twice",
        NATIVE + "serve: {options: {tensor_parallel_size: 1, tp: 1}}\n",
        [
            "r.yaml:7: error: found serve.options.tp, which is tensor_parallel_size again; wanted each flag once; remove one",
            "r.yaml:7: warning: found tensor parallel size 1 written out on 1 or more hosts; wanted exactly 1 host; leave it out: it follows from the inventory",
        ],
    ),
    (
        "rules",
        NATIVE.replace("a/b", "Qwen/Qwen3.5-9B-NVFP4").replace(
            "{base: ", "{version: '0.19.1', upstream_changes: [38325, 44700], base: "
        )
        + "serve:\n  options:\n    enable_prefix_caching: true\n    kv_cache_dtype: turboquant_k8v4\n    speculative_config: {method: mtp}\n  env: {VLLM_PLE_CPU_OFFLOAD: '1'}\n",
        [
            "r.yaml:5: warning: found vLLM pull request 44700, which cannot reach sm_121; wanted no such change; leave it out (it routes decoding to a recurrent kernel that GB10 does not have: 16.9 tok/s with it, 17 without (+24% on B200); source: vllm#44700; blog post on Qwen3.5-122B NVFP4 on one GB10 (seed document 2))",
            "r.yaml:5: error: found pull request 38325 (swapAB) expected in vLLM 0.19.1; wanted vLLM 0.20.0 or newer; take a newer base (0.19 has none of its kernels, 0.20.0 has them all; source: symbols of the published wheels; vllm#38325)",
            "r.yaml:9: warning: found prefix caching with Qwen/Qwen3.5-9B-NVFP4, which has GDN layers; wanted enable_prefix_caching: false; switch it off (it was seen to crash the engine with GDN layers; source: README of albond/DGX_Spark_Qwen3.5-122B-A10B-AR-INT4, troubleshooting; the public Qwen3.8-Flash-Next profiles switch it off)",
            "r.yaml:10: error: found turboquant_k8v4 together with MTP on a hybrid model; wanted one of the two; remove speculative_config or the KV preset (the output degenerates without any error; source: vllm#53180 (open, seen in 0.27.1))",
            "r.yaml:10: error: found turboquant_k8v4 on a hybrid model with vLLM 0.19.1; wanted vLLM 0.21.0 or newer; take a newer base (0.20 refuses hybrid models with NotImplementedError; source: vllm#39931)",
            "r.yaml:11: warning: found MTP under vLLM with NVFP4 weights on one Spark; wanted no speculation there; remove speculative_config, use an INT4 checkpoint, or accept the rule with a measurement (15.2 tok/s with MTP against 17 without: bandwidth is the limit already, so drafting is added work; under Atlas the same model gains; source: blog post on Qwen3.5-122B NVFP4 on one GB10 (seed document 2))",
            "r.yaml:12: warning: found VLLM_PLE_CPU_OFFLOAD=1 on one Spark; wanted it unset, or distributed_executor_backend mp; remove the variable (it hangs with one GPU, and on unified memory it frees nothing; source: public Qwen3.8-Flash-Next recipes for one Spark)",
        ],
    ),
    (
        "not mapping",
        "- 1\n",
        [
            "r.yaml:1: error: found a list at the top; wanted keys with values; see recipes/ for examples",
        ],
    ),
]


@pytest.mark.parametrize(
    ("engine", "options", "lines"),
    [
        ("command", "{mmap: false}", ["serve.options.mmap: false, which is left out; wanted a flag that the engine has; write `no_mmap: true` if it has --no-mmap, else remove it"]),
        ("command", "{mmap: false, jinja: true, flash_attn: 'false', x: false}", ["serve.options.mmap", "serve.options.x"]),
        ("command", "{no_mmap: false}", ["serve.options.no_mmap: false, which is left out; wanted a flag that the engine has; remove it, or write `mmap: true` if it has --mmap"]),
        ("command", "{no_mmap: true, mmap: null, x: [false]}", []),
        ("vllm", "{enable_prefix_caching: false}", []),
        ("atlas", "{speculative: false}", []),
    ],
)  # fmt: skip
def test_false_of_an_engine_without_flags_that_deny(
    tmp_path: Path, engine: str, options: str, lines: list[str]
) -> None:
    command = "  command: srv --host {bind} --port {port}\n" if engine == "command" else ""
    found = said(tmp_path, f"{NATIVE}serve:\n  engine: {engine}\n{command}  options: {options}\n")
    found = [line for line in found if "which is left out" in line]
    assert len(found) == len(lines)
    where = "r.yaml:10: warning: found "
    assert all(line.startswith(where + begin) for line, begin in zip(found, lines, strict=True)), found


@pytest.mark.parametrize(("text", "lines"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_each_mistake_is_told_with_its_line(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert said(tmp_path, text) == lines


def test_more_mistakes(tmp_path: Path) -> None:
    assert said(tmp_path, V2 + "defaults:\n  tensor_parallel: 1\n  tensor_parallel_size: 1\n") == [
        "r.yaml:6: error: found defaults.tensor_parallel_size, which is tensor_parallel_size again; wanted each flag once; remove one"
    ]
    assert said(tmp_path, NATIVE.replace("{base:", "{version: new, base:") + "serve: {}\n") == [
        "r.yaml:5: error: found image.version = 'new'; wanted a version, as 0.20.2"
    ]


@pytest.mark.parametrize("name", parallel_sizes.SIZES)
@pytest.mark.parametrize("value", ["four", "0", "-1", "'2'", "true", "2.0"])
def test_a_parallel_size_is_a_count(tmp_path: Path, name: str, value: str) -> None:
    shown = repr(yaml.safe_load(value))
    assert said(tmp_path, NATIVE + f"serve:\n  options: {{{name}: {value}}}\n") == [
        f"r.yaml:8: error: found {name} {shown}; wanted a number from 1; correct it"
    ]


SIZES = "pipeline × prefill context × data parallel size"


@pytest.mark.parametrize(
    ("hosts", "options", "told"),
    [
        ("2", "prefill_context_parallel_size: 2", None),
        ("2", "decode_context_parallel_size: 2", None),
        ("3", "prefill_context_parallel_size: 2", f"{SIZES} 2 on 3 hosts; wanted a multiple of 2 hosts; correct one"),
        (
            "2",
            "tensor_parallel_size: 2, prefill_context_parallel_size: 2",
            f"a recipe for 4 GPUs (tensor × {SIZES}) on 2 hosts; wanted one GPU a host; "
            "correct the size, or min_nodes and max_nodes",
        ),
        (
            "2",
            "pipeline_parallel_size: 2, decode_context_parallel_size: 2",
            "decode_context_parallel_size 2 with tensor parallel size 1; wanted a divisor of 1; "
            "it shares the GPUs of tensor parallel; correct it",
        ),
        ("2", "data_parallel_size: 2, distributed_executor_backend: ray", None),
        ("2", "data_parallel_size: 2, distributed_executor_backend: ray, data_parallel_backend: ray", None),
        (
            "2",
            "data_parallel_size: 2, distributed_executor_backend: ray, data_parallel_backend: mp",
            "data_parallel_backend 'mp' over Ray; wanted ray; "
            "remove it: it follows from distributed_executor_backend",
        ),
        (
            "2",
            "data_parallel_size: 2, data_parallel_backend: ray",
            "data_parallel_backend ray on 2 hosts without Ray; "
            "wanted mp, or distributed_executor_backend: ray beside it; correct one of the two",
        ),
        (
            "4",
            "data_parallel_size: 2, distributed_executor_backend: ray",
            "data_parallel_size 2 over Ray with 2 hosts a replica; wanted replicas of one host; "
            "remove distributed_executor_backend, or set VLLM_RAY_DP_PACK_STRATEGY: span in serve.env",
        ),
    ],
)
def test_parallel_sizes_and_what_carries_them(
    tmp_path: Path, hosts: str, options: str, told: str | None
) -> None:
    text = NATIVE + f"serve:\n  options: {{{options}}}\nmin_nodes: {hosts}\nmax_nodes: {hosts}\n"
    lines = [line for line in said(tmp_path, text) if "error" in line]
    assert lines == ([] if told is None else [f"r.yaml:8: error: found {told}"])


@pytest.mark.parametrize("name", sorted(vllm_options.JSON_LISTS))
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("[a, b]", None),
        ("'[\"a\"]'", None),
        ("'[]'", None),
        ("null", None),
        ("a", "'a' (expecting value: line 1 column 1 (char 0))"),
        ("'[a]'", "'[a]' (expecting value: line 1 column 2 (char 1))"),
        ("'\"a\"'", "'\"a\"'"),
        ("[1]", "[1]"),
        ("'[1]'", "'[1]'"),
        ("{a: 1}", "{'a': 1}"),
        ("true", "True"),
    ],
)
def test_a_list_that_vllm_takes_as_json(tmp_path: Path, name: str, value: str, shown: str | None) -> None:
    lines = said(tmp_path, NATIVE + f"serve:\n  options: {{{name}: {value}}}\n")
    wanted = "wanted a JSON list of texts; write a list, or one line of JSON"
    assert lines == ([] if shown is None else [f"r.yaml:8: error: found {name} = {shown}; {wanted}"])
    # Another engine's option of this name is its own affair.
    other = "serve:\n  engine: command\n  command: x {bind} {port}\n"
    assert said(tmp_path, NATIVE + f"{other}  options: {{{name}: {value}}}\n") == []


def test_a_list_in_a_command_whose_quotes_a_shell_drops(tmp_path: Path) -> None:
    assert said(tmp_path, V2 + """command: 'vllm serve {model} --allowed-origins ["*"]'\n""") == [
        "r.yaml:4: error: found allowed_origins = '[*]' (expecting value: line 1 column 2 (char 1)); "
        "wanted a JSON list of texts; write a list, or one line of JSON"
    ]


def test_a_parallel_size_in_a_command_is_a_count(tmp_path: Path) -> None:
    assert said(tmp_path, V2 + "command: vllm serve {model} -tp four\n") == [
        "r.yaml:4: error: found tensor_parallel_size 'four'; wanted a number from 1; correct it"
    ]


def test_a_short_name_is_no_option(tmp_path: Path) -> None:
    # It would stand beside the long one, which follows from the number of hosts.
    assert said(tmp_path, NATIVE + "serve:\n  options: {tp: 2}\n") == [
        "r.yaml:8: error: found serve.options.tp; wanted tensor_parallel_size; write its long name"
    ]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpu_memory_utilzation", "gpu_memory_utilization"),
        ("max_modl_len", "max_model_len"),
        ("kv_cache_dtyp", "kv_cache_dtype"),
        ("no_enable_prefix_cachng", "enable_prefix_caching"),
        ("max_model_len", None),
        ("no_enable_prefix_caching", None),
        ("of_another_version", None),
        ("data_parallel_size_local", None),
    ],
)
def test_a_mistyped_option_of_vllm(tmp_path: Path, name: str, near: str | None) -> None:
    told = [] if near is None else [f"warning: found option {name}; wanted {near}; did you mean {near!r}?"]
    native = said(tmp_path, NATIVE + f"serve:\n  options: {{{name}: true}}\n")
    assert native == [f"r.yaml:8: {line}" for line in told]
    theirs = said(tmp_path, V2 + f"defaults:\n  {name}: true\n")
    assert theirs == [f"r.yaml:5: {line}" for line in told]


def test_no_option_is_denied_twice(tmp_path: Path) -> None:
    assert said(tmp_path, NATIVE + "serve:\n  options: {no_enable_prefix_caching: true}\n") == []
    assert said(tmp_path, NATIVE + "serve:\n  options: {no_enable_prefix_caching: false}\n") == [
        "r.yaml:8: error: found serve.options.no_enable_prefix_caching: false; wanted enable_prefix_caching: true; no option is denied twice"
    ]


MEMORY = [
    # On as many hosts as its parallel size says, where that is more than the least.
    ("defaults: {tensor_parallel: 2}\n", "{model_vram: 200}", None),
    ("max_nodes: 1\ndefaults: {tensor_parallel: 1}\n", "{model_vram: 200}", "200.0 GB of weights on 1 host"),
    ("defaults: {tensor_parallel: 2}\n", "{model_vram: 300}", "300.0 GB of weights on 2 hosts"),
    # By what the engine is told: it may quantize as it loads.
    ("defaults: {quantization: fp8}\n", "{model_params: 100B, model_dtype: bf16}", None),
    ("", "{model_params: 100B, model_dtype: bf16}", "200.0 GB of weights on 1 host"),
    ("", "{model_params: 300B, quantization: awq}", "159.4 GB of weights on 1 host"),
]


@pytest.mark.parametrize(("more", "metadata", "found"), MEMORY)
def test_memory_of_as_many_hosts_as_are_meant(
    tmp_path: Path, more: str, metadata: str, found: str | None
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{V2}{more}metadata: {metadata}\n")
    errors = [finding.problem.found for finding in check(path).findings if finding.severity == "error"]
    assert errors == ([] if found is None else [found])


def test_memory_on_the_hosts_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{V2}metadata: {{model_vram: 200}}\n")
    assert check(path).errors == 1 and check(path, 2).errors == 0
    assert run("render", str(path)).exit_code == 1
    assert run("render", str(path), "--nodes", "2").exit_code == 0
    assert refusals(path, 2) == [] and len(refusals(path, 1)) == 1


@pytest.mark.parametrize("share", ["1.5", "0", "-0.5", "high", "90", "true"])
@pytest.mark.parametrize("more", ["", "metadata: {model_vram: 1}\n"])
def test_a_share_of_the_memory(tmp_path: Path, share: str, more: str) -> None:
    lines = said(tmp_path, NATIVE + f"serve:\n  options: {{gpu_memory_utilization: {share}}}\n{more}")
    shown = str(yaml.safe_load(share))
    assert lines == [f"r.yaml:8: error: found gpu_memory_utilization {shown}; wanted more than 0, at most 1"]


def test_a_budget_is_one_spark_s(tmp_path: Path) -> None:
    lines = said(tmp_path, NATIVE.replace("memory_gib: 1,", "memory_gib: 120,") + "serve: {}\nmin_nodes: 2\n")
    assert lines == [
        "r.yaml:6: error: found budget.memory_gib 120; wanted at most 119 (128 GB, one Spark's); correct it, or spread the model over more hosts"
    ]


def test_deploy_refuses_what_check_calls_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    text = NATIVE.replace("a/b", "Qwen/Qwen3.5-9B") + "serve:\n  options: {kv_cache_dtype: turboquant_k8v4, "
    path.write_text(text + "speculative_config: {method: mtp}}\n")
    [problem] = refusals(path, 1)
    assert str(problem) == (
        f"{path}:8: found turboquant_k8v4 together with MTP on a hybrid model; wanted one of the two; remove "
        "speculative_config or the KV preset (the output degenerates without any error; source: vllm#53180 (open, "
        "seen in 0.27.1))"
    )
    path.write_text(path.read_text() + "accept: {turboquant-mtp: measured here}\n")
    assert refusals(path, 1) == []
    # A pin may be the site's, and is looked at there.
    path.write_text(NATIVE.replace(f"@sha256:{DIGEST}", ":1") + "serve: {}\n")
    assert check(path).pins == 1 and refusals(path, 1) == []


@pytest.mark.parametrize("text", [V1 + "command: vllm serve a/b\n", V2, NATIVE + "serve: {}\n"])
def test_nothing_is_said_of_a_good_recipe(tmp_path: Path, text: str) -> None:
    lines = [line for line in said(tmp_path, text) if "no pinned revision" not in line]
    assert lines == []


# The rules.


def test_each_rule_has_a_reason_and_a_source() -> None:
    names = [rule.name for rule in rules.RULES]
    assert len(set(names)) == len(names)
    assert all(rule.reason and rule.source and rule.remedy for rule in rules.RULES)


OPTIONS = "serve:\n  options: "


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("org/x-NVFP4", "{speculative_config: {method: mtp}}", {"mtp-nvfp4"}),
        (
            "org/x",
            "{quantization: modelopt_fp4, speculative_config: {method: qwen3_next_mtp}}",
            {"mtp-nvfp4"},
        ),
        ("org/x-NVFP4", "{speculative_config: {method: ngram}}", set()),
        ("org/x-int4", "{speculative_config: {method: mtp}}", set()),
        ("Qwen/Qwen3.5-35B", "{enable_prefix_caching: true}", {"prefix-caching-gdn"}),
        ("Qwen/Qwen3-Next-80B", "{enable_prefix_caching: true}", {"prefix-caching-gdn"}),
        ("Qwen/Qwen3-8B", "{enable_prefix_caching: true}", set()),
        ("Qwen/Qwen3.5-35B", "{enable_prefix_caching: false}", set()),
        (
            "Qwen/Qwen3.5-35B",
            "{kv_cache_dtype: turboquant_4bit_nc, speculative_config: {method: mtp}}",
            {"turboquant-mtp"},
        ),
        (
            "Qwen/Qwen3.5-35B",
            """{kv_cache_dtype: TurboQuant_4bit_NC, speculative_config: '{"method": "mtp"}'}""",
            {"turboquant-mtp"},
        ),
        ("org/x-NVFP4", """{speculative_config: '{"method": "qwen3_5_mtp"}'}""", {"mtp-nvfp4"}),
        ("Qwen/Qwen3.5-35B", "{kv_cache_dtype: turboquant_4bit_nc}", set()),
        ("Qwen/Qwen3-8B", "{kv_cache_dtype: turboquant_4bit_nc, speculative_config: {method: mtp}}", set()),
        ("Qwen/Qwen3.5-35B", "{kv_cache_dtype: turboquant35}", {"turboquant-reference"}),
        ("Qwen/Qwen3.5-35B", "{enable_turboquant: true}", {"turboquant-reference"}),
    ],
)
def test_rules(tmp_path: Path, model: str, options: str, expected: set[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(NATIVE.replace("a/b", model) + OPTIONS + options + "\n")
    assert {finding.code for finding in check(path).findings} == expected
    accepted = "".join(f"  {name}: measured\n" for name in expected)
    path.write_text(path.read_text() + f"accept:\n{accepted or '  {}'}\n")
    assert check(path).findings == []


def test_a_rule_is_broken_for_a_reason(tmp_path: Path) -> None:
    text = NATIVE.replace("a/b", "Qwen/Qwen3.5-35B") + OPTIONS + "{enable_prefix_caching: true}\n"
    assert said(tmp_path, text + "accept:\n  prefix-caching-gdn: ' '\n") == [
        "r.yaml:10: error: found accept.prefix-caching-gdn without a reason; wanted a reason; say why it does no harm here"
    ]


def test_several_sparks_may_draft(tmp_path: Path) -> None:
    text = (
        NATIVE.replace("a/b", "org/x-NVFP4") + OPTIONS + "{speculative_config: {method: mtp}}\nmin_nodes: 2\n"
    )
    assert said(tmp_path, text) == []


def test_a_hybrid_checkpoint_needs_the_plugin(tmp_path: Path) -> None:
    graft = f"  transforms: [graft_fp8: {{donor: {{repo: a/c, revision: '{ZEROS}'}}, tensors: ['*'], expect_tensors: 1}}]\n"
    path = tmp_path / "r.yaml"
    path.write_text(NATIVE.replace("image:", graft + "image:") + "serve: {}\n")
    [finding] = [finding for finding in check(path).findings if finding.severity == "error"]
    assert str(finding.problem).endswith(
        "r.yaml:5: found an INT4+FP8 checkpoint without the plugin's hybrid; wanted image.plugin.hybrid: true; "
        "switch it on in image.plugin"
    )
    assert finding.source == "vllm#46311 (open)"
    path.write_text(path.read_text().replace("{base:", "{plugin: {hybrid: true}, base:"))
    assert check(path).errors == 0


DRAFTING = """\
  options:
    speculative_config: {method: mtp, num_speculative_tokens: 4}
"""


@pytest.mark.parametrize(
    ("image", "transforms", "serve", "found"),
    [
        ("plugin: {draft_head: true}", "", DRAFTING, "the plugin's draft_head without the transform draft_vocab"),
        ("plugin: {draft_head: true}", "draft_vocab: {output: nvfp4}", "  {}\n", "draft_head without speculative_config"),
        ("plugin: {draft_head: true}", "draft_vocab: {output: nvfp4}", DRAFTING, None),
        ("plugin: {ngram_table: true}", "", "  {}\n", "ngram_table without the transform ngram_table"),
        (
            "version: '0.29.0', plugin: {ngram_table: true}",
            "ngram_table: {expect_rows: 3}",
            "  {}\n",
            "ngram_table with vLLM 0.29.0, which it is not made for (from 0.30 on)",
        ),
        ("version: '0.30.0', plugin: {ngram_table: true}", "ngram_table: {expect_rows: 3}", "  {}\n", None),
        ("version: '0.29.1', plugin: {fp8_dense_at_load: true}", "", "  {}\n", None),
        (
            "version: '0.30.0', plugin: {fp8_dense_at_load: true}",
            "",
            "  {}\n",
            "vLLM 0.30.0, which does that by its own option quantization_config",
        ),
        (
            "version: '0.25.0'",
            "",
            DRAFTING.replace("4}", "4, kv_cache_dtype: bfloat16}"),
            "speculative_config.kv_cache_dtype with vLLM 0.25.0, which does not know it (it is there from 0.26 on)",
        ),
        (
            "version: '0.23.0'",
            "",
            DRAFTING.replace("4}", "4, num_speculative_tokens_per_batch_size: [[1, 1, 4]]}"),
            "num_speculative_tokens_per_batch_size with vLLM 0.23.0, which does not know it",
        ),
        (
            "version: '0.26.0'",
            "",
            DRAFTING.replace("4}", "4, kv_cache_dtype: bfloat16, num_speculative_tokens_per_batch_size: [[1, 1, 4]]}"),
            None,
        ),
    ],
)
def test_what_the_plugins_features_go_with(
    tmp_path: Path, image: str, transforms: str, serve: str, found: str | None
) -> None:
    text = NATIVE.replace("image: {", f"image: {{{image}, ")
    if transforms:
        text = text.replace("image:", f"  transforms: [{transforms}]\nimage:")
    errors = [line for line in said(tmp_path, f"{text}serve:\n{serve}") if ": error: " in line]
    assert len(errors) == (found is not None), errors
    assert found is None or found in errors[0]


# Pins, and what is not made.


def native(**more: Any) -> Recipe:
    return Recipe.model_validate({**yaml.safe_load(NATIVE), "serve": {}, **more})


def test_pins_missing() -> None:
    assert pins_missing(native()) == []
    donor = {"donor": {"repo": "a/c", "revision": "unverified"}, "tensors": ["*"], "expect_tensors": 1}
    loose = native(
        image={"base": "x:1"},
        checkpoint={
            "source": {"repo": "a/b", "revision": "unverified"},
            "transforms": [{"graft_fp8": donor}],
        },
    )
    assert [problem.found for problem in pins_missing(loose)] == [
        "no pinned revision of a/b",
        "no pinned revision of a/c (donor of graft_fp8)",
        "image x:1 without a digest",
    ]
    assert str(pins_missing(loose)[0]) == (
        "recipe x: found no pinned revision of a/b; wanted a commit (40 hex digits); pin the commit that you have "
        "checked; deploy refuses the recipe until then"
    )
    site = {"x:1": f"x@sha256:{DIGEST}"}
    assert len(pins_missing(loose, site)) == 2


def test_unsupported() -> None:
    assert unsupported(native()) == []
    found = unsupported(
        native(serve={"engine": "atlas"}, image={"base": "x", "plugin": {"int8_lm_hed": True}})
    )
    assert [str(problem) for problem in found] == [
        f"recipe x: found feature int8_lm_hed of the vLLM plugin; wanted one of: {', '.join(sorted(PLUGIN_FEATURES))}; did you mean 'int8_lm_head'?",
    ]


def test_the_plugin_s_features_become_variables() -> None:
    recipe = native(image={"base": "x", "plugin": {"int8_lm_head": True, "hybrid": False}})
    assert recipe.serve.env == {"SPARKSTACK_INT8_LM_HEAD": "1", "SPARKSTACK_HYBRID": "0"}


def test_the_plugin_has_the_features_that_we_say() -> None:
    text = (ROOT / "files/patches/sparkstack_vllm/features.py").read_text()
    assert all(f'"{feature}"' in text for feature in PLUGIN_FEATURES)
    assert set(re.findall(r'^\s+(?:Feature\()?"([a-z0-9_]+)",', text, re.MULTILINE)) == PLUGIN_FEATURES
    assert set(re.findall(r'"(SPARKSTACK_\w+)"', text)) == PLUGIN_KNOBS


# The seed recipes.

SEEDS = {
    "qwen3.5-122b-nvfp4": 15.4,
    "qwen3.5-122b-int4": 28.3,
    "qwen3.5-122b-hybrid": 30.8,
    "qwen3.5-122b-hybrid-mtp": 38.4,
    "qwen3.5-122b": 51,
    "qwen3.5-122b-turboquant": 39,
    "qwen3.5-122b-atlas": 33.9,
    "qwen3.5-122b-atlas-mtp": 36.5,
    "qwen3.8-flash-next": 67.5,
}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_own_recipes_have_no_errors(path: Path) -> None:
    found = check(path)
    assert found.errors == 0, "\n".join(map(str, found.findings))
    assert {finding.code for finding in found.findings if not finding.refused} <= {"not-measured"}


@pytest.mark.parametrize(("name", "figure"), SEEDS.items())
def test_the_seeds_quote_their_figures(name: str, figure: float) -> None:
    metadata = load_recipe(RECIPES / f"{name}.yaml").metadata
    assert metadata["decode_tok_s"] == figure
    assert metadata["sources"]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("q*.yaml")), ids=lambda path: path.stem)
def test_what_is_not_pinned_is_marked(path: Path) -> None:
    recipe = load_recipe(path)
    told = " ".join(recipe.metadata.get("unverified", []))
    for loc, *_ in missing_pins(recipe):
        assert ("image" if loc[0] == "image" else "revision") in told or recipe.image.base in told, loc


# The commands.


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["recipe", *words])


def test_check_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(V2 + "min_nodes: two\n")
    (tmp_path / "models.yaml").write_text("- 1\n")
    result = run("check", "--json", str(tmp_path))
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert (first["errors"], first["deployable"], first["format"]) == (1, False, "2")
    assert first["findings"] == [
        {
            "file": str(tmp_path / "a.yaml"),
            "line": 4,
            "severity": "error",
            "code": "type",
            "blocks_deploy": True,
            "found": "min_nodes = 'two'",
            "wanted": "a valid integer",
            "remedy": "",
            "reason": "",
            "source": "",
            "text": f"{tmp_path}/a.yaml:4: error: found min_nodes = 'two'; wanted a valid integer",
        }
    ]
    assert second["skipped"] == "a list of models"


def test_warnings_alone_are_status_0(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("model: a/b\ncontainer: x:1\nmods: [y]\n")
    (tmp_path / "x.yaml.bak").touch()
    result = run("check", str(path), str(tmp_path / "x.yaml.bak"))
    assert result.exit_code == 0
    assert result.stdout == (
        f"{path}: no errors; deploy refuses it for 2 pins and 1 thing that we cannot do (serves a/b)\n"
        f"{tmp_path}/x.yaml.bak: skipped (a file that does not end in .yaml or .yml)\n"
    )


def test_what_is_not_there_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(V2)
    (tmp_path / "empty").mkdir()
    for name in ("nosuch", "nosuch.yaml", "nosuch.yaml.bak"):
        result = run("check", str(tmp_path / "good.yaml"), str(tmp_path / name))
        assert result.exit_code == 1
        assert (
            f"{tmp_path}/{name}: error: found no such file or directory; wanted a readable YAML file; check the path"
            in result.stderr
        )
    result = run("check", str(tmp_path / "empty"))
    assert (result.exit_code, result.stderr) == (
        1,
        f"{tmp_path}/empty: found no recipes; wanted *.yaml; name another folder\n",
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("plan", "qwen3.5-122", "inventories/single.py"), "recipe: found 'qwen3.5-122'; wanted one of: "),
        (
            ("plan", "no/such.yaml", "inventories/single.py"),
            "recipe: found 'no/such.yaml'; wanted a recipe's file; check the path\n",
        ),
        (("plan", "lab-tiny", "nosuch.py"), "inventory: found 'nosuch.py'; wanted a file; see inventories/"),
        (("plan", "lab-tiny", str(ROOT)), f"inventory: found '{ROOT}'; wanted a file; see inventories/"),
        (("plan", "lab-tiny", "nosuch"), "inventory: found 'nosuch'; wanted a file; see inventories/"),
    ],
)
def test_a_wrong_name_asks_no_host(
    words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts.subprocess, "run", lambda *words, **more: pytest.fail("pyinfra was started"))
    result = run(*words)
    assert result.exit_code == 1
    assert result.stderr.startswith(line), result.stderr


@pytest.mark.parametrize("inventory", ["@local", "@docker/ubuntu:24.04", "a,b", "spark.example", "fd00::1"])
def test_hosts_by_themselves_are_an_inventory(inventory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def started(command: list[str], **more: Any) -> Any:
        asked.append(command[1])
        return SimpleNamespace(stdout="x", returncode=0)

    monkeypatch.setattr(hosts.subprocess, "run", started)
    assert run("plan", "lab-tiny", inventory).exit_code == 0
    assert asked == [inventory]


def test_list(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(V2 + "min_nodes: 2\nmetadata: {decode_tok_s: 12}\n")
    (tmp_path / "loose.yaml").write_text("model: a/b\ncontainer: x:1\n")
    (tmp_path / "bad.yaml").write_text(V2 + "min_nodes: two\n")
    (tmp_path / "registry.yaml").write_text("recipes: []\n")
    assert run("list", "--recipes", str(tmp_path)).output.splitlines() == [
        "name   format  hosts  engine            tok/s  deploy    model",
        "bad    2       1+     vllm-distributed         1 error   a/b",
        "good   2       2+     vllm-distributed  12     ready     a/b",
        "loose  2       1+     vllm-distributed         unpinned  a/b",
    ]
    assert json.loads(run("list", "--json", "--recipes", str(tmp_path)).output)[1]["deploy"] == "ready"
    (tmp_path / "none").mkdir()
    assert "found no recipes" in run("list", "--recipes", str(tmp_path / "none")).stderr


def test_show_makes_a_native_recipe_of_a_foreign_one(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(V2 + "defaults: {max_model_len: 5}\n")
    ours = tmp_path / "ours.yaml"
    ours.write_text(run("show", str(path)).stdout)
    assert load_recipe(ours) == load_recipe(path)
    assert check(ours).findings == []


def test_render_of_one_and_of_two(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(V2 + "defaults: {max_model_len: 5}\nmax_nodes: 2\n")
    one = run("render", str(path)).output
    assert "# rank 0 of 1 (the head)" in one and "--tensor-parallel-size \\\n  1 \\\n" in one
    assert "VLLM_HOST_IP=127.0.0.1\n" in one and "<HEAD_ADDRESS>" not in one
    two = run("render", str(path), "--nodes", "2", "--set", "max-model-len=7").output
    assert "# rank 1 of 2\n#   <HEAD_ADDRESS>: the head's address on the fabric, from the inventory\n" in two
    assert two.count("--max-model-len \\\n  7\n") == 2 and two.count("--headless") == 1
    assert two.count("# --- /etc/systemd/system/sparkstack-serve.service") == 2
    assert run("render", str(path), "--nodes", "2", "--rank", "1").output.count("# rank") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--nodes", "3"), "recipe r: found 3 hosts; wanted 1 to 2; change the inventory or the recipe"),
        (("--rank", "1"), "--rank: found 1; wanted 0 to 0; ranks count from 0"),
        (("--set", "x"), "--set: found 'x'; wanted KEY=VALUE; as in --set port=9000"),
    ],
)
def test_what_cannot_be_rendered(tmp_path: Path, words: tuple[str, ...], line: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(V2 + "max_nodes: 2\n")
    result = run("render", str(path), *words)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, line)


def test_render_stops_at_errors(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(V2 + "command: vllm serve {modle}\n")
    result = run("render", str(path))
    assert result.exit_code == 1 and result.stdout == ""
    assert "did you mean {model}?" in result.stderr


def test_atlas_is_rendered() -> None:
    text = run("render", "qwen3.5-122b-atlas-mtp", "--recipes", str(RECIPES)).stdout
    assert "--entrypoint" not in text
    assert (
        "'sparkstack/atlas:<IMAGE_ID>' \\\n  serve \\\n  --model-from-path \\\n  /model \\\n  --port \\\n  8888"
        in text
    )
    assert "--speculative \\\n  --num-drafts \\\n  1\n" in text


# The JSON Schemas.


@pytest.mark.parametrize("version", FILES)
def test_the_schemas_in_docs_are_up_to_date(version: str) -> None:
    text = (ROOT / "docs" / FILES[version][0]).read_text(encoding="utf-8")
    assert text == schema(version), "run `sparkstack recipe schema --write docs`"


def test_the_schema_has_transforms_as_they_are_written() -> None:
    value = json.loads(schema("3"))
    forms = value["$defs"]["Checkpoint"]["properties"]["transforms"]["items"]["anyOf"]
    assert [form["required"] for form in forms][:2] == [["register_mtp"], ["reshard"]]
    assert "name" not in value["$defs"]["Reshard"]["properties"]


def test_the_page_for_users_names_every_rule_and_transform() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    forms = json.loads(schema("3"))["$defs"]["Checkpoint"]["properties"]["transforms"]["items"]["anyOf"]
    names = [rule.name for rule in rules.RULES] + [form["required"][0] for form in forms]
    assert [name for name in names if f"`{name}`" not in page] == []
