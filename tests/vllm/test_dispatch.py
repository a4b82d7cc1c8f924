"""The plugin against vLLM's own code of one version, on a CPU: `./test --vllm` runs this file once a version.

VLLM_TREE names the folder with vLLM's Python files. Compiled extensions and a GPU are not there, so this
shows which class handles a layer, under which name, and what is refused; it does not multiply with vLLM's
kernels.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TREE = os.environ.get("VLLM_TREE")
if TREE is None:
    pytest.skip("VLLM_TREE is not set: ./test --vllm", allow_module_level=True)
PATCHES = Path(__file__).parents[2] / "files" / "patches"
sys.path[:0] = [TREE, str(PATCHES)]

import torch  # noqa: E402
import vllm  # noqa: E402
from sparkstack_vllm import hybrid, int8_lm_head, loading, plugin  # noqa: E402
from sparkstack_vllm.errors import PluginError  # noqa: E402
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod  # noqa: E402
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402
from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: E402
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig  # noqa: E402
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod  # noqa: E402
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.models.qwen3_5 import Qwen3_5MoeForConditionalGeneration  # noqa: E402
from vllm.v1.executor import multiproc_executor, uniproc_executor  # noqa: E402
from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: E402

IN_FILES = "model.language_model.layers.0"
IN_VLLM = "language_model.model.layers.0"
AUTOROUND = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "packing_format": "auto_round:auto_gptq",
    "data_type": "int",
    "block_name_to_quantize": "model.language_model.layers",
    "extra_config": {
        f"{IN_FILES}.mlp.{name}": {"bits": 16, "data_type": "float"}
        for name in ("gate", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj")
    },
}


def checkpoint(folder: Path, fp8: tuple[str, ...]) -> Path:
    """A folder with one safetensors file whose header is all that is read."""
    header: dict[str, Any] = {}
    for name in AUTOROUND["extra_config"]:  # type: ignore[attr-defined]
        is_fp8 = name.rsplit(".", 1)[1] in fp8
        header[f"{name}.weight"] = {"dtype": "F8_E4M3" if is_fp8 else "BF16", "shape": [256, 256]}
        if is_fp8:
            header[f"{name}.weight_scale_inv"] = {"dtype": "F32", "shape": [2, 2]}
    at = 0
    for info in header.values():
        size = info["shape"][0] * info["shape"][1] * {"BF16": 2, "F8_E4M3": 1, "F32": 4}[info["dtype"]]
        info["data_offsets"] = [at, at + size]
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder


@pytest.fixture(scope="module", autouse=True)
def applied() -> None:
    int8_lm_head.apply()
    hybrid.apply()


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FP8 method looks for its GPU kernels when it is made; which config it gets is what counts here."""
    monkeypatch.setattr(Fp8LinearMethod, "__init__", lambda self, made: setattr(self, "quant_config", made))


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    """Forget what other tests made."""
    hybrid.loaded(None)
    int8_lm_head.loaded(torch.nn.Module())


def config(folder: Path, *fp8: str) -> Any:
    """The quantisation config as vLLM makes it from a checkpoint's folder for Qwen3.5."""
    made = get_quantization_config("inc").from_config(AUTOROUND)
    # Its parameters say how this version calls it.
    names = inspect.signature(QuantizationConfig.maybe_update_config).parameters
    more = {key: None for key in ("hf_config", "revision") if key in names}
    made.maybe_update_config(str(checkpoint(folder, fp8)), **more)
    mapper = Qwen3_5MoeForConditionalGeneration.hf_to_vllm_mapper
    made.apply_vllm_mapper(mapper.get_rename_mapper() if hasattr(mapper, "get_rename_mapper") else mapper)
    made.packed_modules_mapping = Qwen3_5MoeForConditionalGeneration.packed_modules_mapping
    return made


def linear() -> Any:
    layer = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(layer)
    return layer


def test_the_version_is_one_that_the_plugin_takes() -> None:
    version = plugin.parse_version(vllm.__version__)
    for_it = [feature for feature in plugin.FEATURES if version in feature.supported]
    plugin.check_versions(vllm.__version__, for_it)
    assert {"int8_lm_head", "hybrid", "draft_head"} <= {feature.name for feature in for_it}


def test_inc_is_the_plugins(tmp_path: Path) -> None:
    from sparkstack_vllm.hybrid_config import HybridINCConfig

    assert get_quantization_config("inc") is HybridINCConfig
    assert HybridINCConfig.override_quantization_method({"quant_method": "auto-round"}, None) == "inc"


def test_fp8_layers_go_to_fp8_and_others_do_not(tmp_path: Path) -> None:
    made = config(tmp_path, "gate_proj", "up_proj", "down_proj")
    for name in ("gate_up_proj", "down_proj"):
        method = made.get_quant_method(linear(), f"{IN_VLLM}.mlp.shared_expert.{name}")
        assert type(method) is Fp8LinearMethod, name
        assert method.quant_config.weight_block_size == [128, 128]
        assert method.quant_config.is_checkpoint_fp8_serialized
        assert method.quant_config.activation_scheme == "dynamic"
    # `gate` is a beginning of `gate_proj`, and `mlp.gate` a layer of its own.
    method = made.get_quant_method(linear(), f"{IN_VLLM}.mlp.gate")
    assert isinstance(method, UnquantizedLinearMethod)
    assert hybrid.loaded(None) == "2 layers are FP8 as in the checkpoint's files"
    made.get_quant_method(linear(), f"{IN_VLLM}.mlp.gate")
    assert hybrid.loaded(None).found.startswith("3 FP8 modules in the checkpoint's files, and no layer")


def test_a_fused_layer_of_two_formats_stops_the_server(tmp_path: Path) -> None:
    made = config(tmp_path, "gate_proj", "down_proj")
    with pytest.raises(PluginError) as caught:
        made.get_quant_method(linear(), f"{IN_VLLM}.mlp.shared_expert.gate_up_proj")
    assert str(caught.value) == (
        f"sparkstack plugin: hybrid: found {IN_VLLM}.mlp.shared_expert.gate_up_proj, of which "
        f"{IN_VLLM}.mlp.shared_expert.up_proj is not FP8 and the rest is; wanted all parts of a fused layer "
        "in one format; make the checkpoint anew"
    )


def test_fp8_data_never_becomes_bf16_unscaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that vLLM knows by a name that no mapping led to."""
    group = "vllm.model_executor.parameter.get_tensor_model_parallel"
    monkeypatch.setattr(f"{group}_rank", lambda: 0)
    monkeypatch.setattr(f"{group}_world_size", lambda: 1)
    made = config(tmp_path, "gate_proj", "up_proj", "down_proj")
    method = made.get_quant_method(linear(), "elsewhere.mlp.gate")
    layer = torch.nn.Module()
    seen: list[Any] = []
    method.create_weights(
        layer, 4, [4], 4, 4, torch.bfloat16, weight_loader=lambda param, loaded, *more: seen.append(more)
    )
    layer.weight.weight_loader(layer.weight, torch.zeros(4, 4, dtype=torch.bfloat16), 1)
    assert seen == [(1,)]
    with pytest.raises(PluginError, match=r"found FP8 data for elsewhere\.mlp\.gate, which vLLM built"):
        layer.weight.weight_loader(layer.weight, torch.zeros(4, 4).to(torch.float8_e4m3fn))
    assert type(method).__name__ == "UnquantizedLinearMethod"  # what vLLM chooses the loader by


def test_fp8_in_the_files_and_int4_by_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(tmp_path, "gate_proj", "up_proj", "down_proj")
    monkeypatch.setattr(type(made).__mro__[1], "get_quant_method", lambda self, layer, prefix: object())
    with pytest.raises(PluginError, match=r"down_proj: FP8 in the files, object by the checkpoint's"):
        made.get_quant_method(linear(), f"{IN_VLLM}.mlp.shared_expert.down_proj")


def test_a_checkpoint_without_fp8_is_left_to_inc(tmp_path: Path) -> None:
    made = config(tmp_path)
    method = made.get_quant_method(linear(), f"{IN_VLLM}.mlp.gate")
    assert type(method) is UnquantizedLinearMethod
    assert hybrid.loaded(None).found == "no AutoRound (INC) checkpoint with FP8 layers"


def test_the_config_travels_to_other_processes(tmp_path: Path) -> None:
    """vLLM pickles it for engine and workers, where the plugin may not have run yet."""
    (tmp_path / "model").mkdir()
    pickled = tmp_path / "config"
    pickled.write_bytes(pickle.dumps(config(tmp_path / "model", "gate_proj", "up_proj", "down_proj")))
    code = f"import pickle; print(len(pickle.load(open({str(pickled)!r}, 'rb')).fp8_names))"
    path = os.pathsep.join([str(TREE), str(PATCHES), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert run.stdout.split()[-1:] == ["3"], run.stderr[-2000:]


@pytest.mark.parametrize("method", [UnquantizedEmbeddingMethod, UnquantizedLinearMethod])
def test_a_head_becomes_int8(method: Any) -> None:
    head = ParallelLMHead.__new__(ParallelLMHead)
    torch.nn.Module.__init__(head)
    head.weight = torch.nn.Parameter(torch.randn(70, 32).bfloat16(), requires_grad=False)
    x = torch.randn(3, 32).bfloat16()
    expected = x.float() @ head.weight.float().T
    head.quant_method = method()
    head.quant_method.process_weights_after_loading(head)
    assert head.weight.dtype == torch.int8
    got = head.quant_method.apply(head, x, bias=None).float()
    assert ((got - expected).norm() / expected.norm()).item() < 0.01
    head.quant_method.process_weights_after_loading(head)  # a drafter that shares it
    assert torch.equal(head.quant_method.apply(head, x, bias=None).float(), got)
    assert int8_lm_head.loaded(head) == "LM head of 70×32 is INT8 now"


def test_logits_ask_the_heads_method() -> None:
    """The hook that int8_lm_head relies on: every way to logits goes by quant_method.apply."""
    source = inspect.getsource(LogitsProcessor)
    assert "lm_head.quant_method.apply(" in source
    # Where logits of another type than the model's can be asked for, that is refused for a head like ours.
    assert "F.linear(" not in source or "supported for an unquantized lm_head" in source


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's wrapper around a worker whose load makes a head, or has none of its own. `said` is the log."""
    said: list[tuple[int, str]] = []
    log = SimpleNamespace(log=lambda level, form, text: said.append((level, form % text)))
    monkeypatch.setattr(plugin, "log", log)
    on = [(feature, int8_lm_head) for feature in plugin.FEATURES if feature.name == "int8_lm_head"]
    usual = vars(WorkerWrapperBase).get("load_model")
    loading.install(on)
    loading.install(on)  # a second call adds nothing
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_pp_group", lambda: alone)
    wrapper = WorkerWrapperBase(0)
    model = torch.nn.Module()

    def load_model(tied: bool) -> None:
        if not tied:
            model.lm_head = ParallelLMHead.__new__(ParallelLMHead)
            torch.nn.Module.__init__(model.lm_head)
            model.lm_head.weight = torch.nn.Parameter(torch.randn(70, 32).bfloat16(), requires_grad=False)
            UnquantizedEmbeddingMethod().process_weights_after_loading(model.lm_head)

    wrapper.worker = SimpleNamespace(load_model=load_model, get_model=lambda: model, rank=3, said=said)
    yield wrapper
    del WorkerWrapperBase.load_model
    if usual is not None:
        WorkerWrapperBase.load_model = usual


def test_each_load_of_a_worker_is_followed_by_a_line(worker: Any) -> None:
    assert worker.rank == 3  # whatever else is asked of a worker is passed on
    worker.load_model(tied=True)
    worker.load_model(tied=False)
    start = "sparkstack plugin: int8_lm_head: "
    assert worker.said == [
        (
            logging.WARNING,
            f"{start}found no LM head of its own in this model (one that is the embedding itself, or "
            "quantised already, stays as it is); nothing was changed; set SPARKSTACK_INT8_LM_HEAD=0",
        ),
        (logging.INFO, f"{start}LM head of 70×32 is INT8 now"),
    ]


def test_executors_load_by_the_wrapper() -> None:
    """What `loading` relies on: workers are reached by the wrapper, which hands `load_model` on."""
    assert "load_model" not in vars(WorkerWrapperBase)
    assert "return getattr(self.worker, attr)" in inspect.getsource(WorkerWrapperBase.__getattr__)
    for module in (multiproc_executor, uniproc_executor):
        source = inspect.getsource(module)
        assert "WorkerWrapperBase(" in source, module.__name__
        assert "worker.load_model()" in source, module.__name__
