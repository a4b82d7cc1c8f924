"""What the plugin does as weights are loaded, with vLLM's own layers of one version: FP8 for BF16 linears,
and an n-gram table that stays on disk. `./test --vllm` runs it, as test_dispatch.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
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
from sparkstack_vllm import fp8_dense_at_load, plugin  # noqa: E402
from sparkstack_vllm.errors import PluginError  # noqa: E402
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod  # noqa: E402
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod  # noqa: E402

FEATURES = {feature.name: feature for feature in plugin.FEATURES}


def supports(name: str) -> bool:
    return plugin.parse_version(vllm.__version__) in FEATURES[name].supported


# FP8 as weights are loaded.


@pytest.fixture
def processed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The feature applied; vLLM's FP8 method makes its parameters and notes what it would prepare."""
    seen: list[Any] = []

    def init(self: Any, config: Any) -> None:
        self.quant_config, self.weight_block_size = config, config.weight_block_size
        self.block_quant, self.act_q_static, self.use_marlin = True, False, False
        self.is_scale_e8m0 = False
        self.activation_quant_key = self.weight_quant_key = self.input_dtype = self.out_dtype = None

    # From 0.20 on the kernel is chosen as weights are made.
    kernel = "vllm.model_executor.layers.quantization.fp8.init_fp8_linear_kernel"
    monkeypatch.setattr(kernel, lambda **_: None, raising=False)
    monkeypatch.setattr(Fp8LinearMethod, "__init__", init)
    monkeypatch.setattr(Fp8LinearMethod, "process_weights_after_loading", lambda _, layer: seen.append(layer))
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_tp_group", lambda: alone)
    usual = (UnquantizedLinearMethod.create_weights, UnquantizedLinearMethod.process_weights_after_loading)
    fp8_dense_at_load.apply()
    fp8_dense_at_load.loaded(None)  # what other tests made
    yield seen
    UnquantizedLinearMethod.create_weights, UnquantizedLinearMethod.process_weights_after_loading = usual


def made(prefix: str, outputs: list[int], inputs: int = 256) -> Any:
    """A linear of BF16, as vLLM makes it, with weights in it."""
    layer = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(layer)
    layer.prefix, layer.quant_method, layer.params_dtype = prefix, UnquantizedLinearMethod(), torch.bfloat16
    size = sum(outputs)
    layer.quant_method.create_weights(
        layer, inputs, outputs, inputs, size, torch.bfloat16, weight_loader=lambda *_: None
    )
    layer.weight.data = torch.randn(size, inputs).bfloat16()
    return layer


@pytest.mark.skipif(not supports("fp8_dense_at_load"), reason="vLLM does it by itself")
def test_chosen_linears_become_fp8(processed: list[Any]) -> None:
    layer = made("language_model.model.layers.3.self_attn.qkv_proj", [256, 128, 128])
    exact = layer.weight.data.float()
    layer.quant_method.process_weights_after_loading(layer)
    assert type(layer.quant_method) is Fp8LinearMethod and processed == [layer]
    assert layer.quant_method.quant_config.is_checkpoint_fp8_serialized
    assert layer.quant_method.quant_config.activation_scheme == "dynamic"
    assert layer.weight.dtype == torch.float8_e4m3fn and tuple(layer.weight_scale_inv.shape) == (4, 2)
    assert list(layer.logical_widths) == [256, 128, 128] and layer.weight_block_size == [128, 128]
    spread = layer.weight_scale_inv.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    assert ((layer.weight.float() * spread - exact).norm() / exact.norm()).item() < 0.03
    with pytest.raises(RuntimeError, match="restart the server"):
        layer.weight.weight_loader(layer.weight, exact)
    name = layer.prefix
    assert fp8_dense_at_load.loaded(None) == f"{name} is FP8 now"
    for _ in range(3):
        layer = made(name, [256, 128, 128])
        layer.quant_method.process_weights_after_loading(layer)
    assert fp8_dense_at_load.loaded(None) == f"{name} is FP8 now, and 2 others"


@pytest.mark.skipif(not supports("fp8_dense_at_load"), reason="vLLM does it by itself")
@pytest.mark.parametrize(
    ("prefix", "outputs"),
    [
        ("language_model.model.layers.3.mlp.gate", [256]),
        ("mtp.layers.0.self_attn.qkv_proj", [256, 128, 128]),
        ("language_model.model.layers.3.self_attn.qkv_proj", [192, 64]),  # a block across q and k
        ("visual.blocks.0.attn.qkv", [256]),
    ],
)
def test_other_linears_stay(processed: list[Any], prefix: str, outputs: list[int]) -> None:
    layer = made(prefix, outputs)
    layer.quant_method.process_weights_after_loading(layer)
    assert type(layer.quant_method) is UnquantizedLinearMethod and not processed
    assert layer.weight.dtype == torch.bfloat16
    said = fp8_dense_at_load.loaded(None)
    uneven = outputs == [192, 64]
    assert said.found.startswith("1 linear(s) named by *." if uneven else "no unquantised linear named by *.")
    assert said.found.endswith("do not cut evenly") is uneven
    assert said.remedy == "correct SPARKSTACK_FP8_DENSE_AT_LOAD_LAYERS"


@pytest.mark.skipif(supports("fp8_dense_at_load"), reason="vLLM does not do it by itself yet")
def test_where_vllm_does_it_the_feature_says_so() -> None:
    from vllm.config.quantization import QuantizationConfigArgs
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

    with pytest.raises(PluginError) as caught:
        plugin.check_versions(vllm.__version__, [FEATURES["fp8_dense_at_load"]])
    assert str(caught.value).endswith(
        "fp8_dense_at_load wants >=0.19,<0.30; set SPARKSTACK_FP8_DENSE_AT_LOAD=0; the option "
        'quantization_config: {targets: {"re:PATTERN": fp8_per_block}} does it there'
    )
    # What the line tells to write is what this vLLM takes.
    args = QuantizationConfigArgs(targets={r"re:.*self_attn\.qkv_proj": "fp8_per_block"})
    assert OnlineQuantizationConfig(args).args.targets


# The n-gram table on disk.

HEADS, COLUMNS, TOKENS = 4, 8, 6


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    for where in ("common.ngram_embedding", "nvidia.ngram_embedding"):
        for name in ("get_etp_group", "get_tp_group", "get_dp_group"):
            monkeypatch.setattr(f"vllm.models.qwen4_exp.{where}.{name}", lambda: alone, raising=False)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_tp_group", lambda: alone)


def vllm_config(folder: Path) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(folder)), engram_config=None, parallel_config=None
    )


def ngram_layer(module: Any) -> Any:
    """vLLM's own n-gram embedding with whatever embedding stands in its module, BF16."""
    config = SimpleNamespace(
        ngram_size=3,
        heads_per_ngram=HEADS // 2,
        eos_token_id=0,
        vocab_size=50,
        split_ngram_parts=3,
        seed=7,
        ngram_vocab_size_base=29,
        make_ngram_vocab_size_divisible_by=12,
    )
    return module.Qwen4ExpNGramEmbedding(
        config, HEADS * COLUMNS, 0, 16, data_parallel_rank=0, prefix="ple", params_dtype=torch.bfloat16
    )


@pytest.mark.skipif(not supports("ngram_table"), reason="no model with an n-gram table yet")
def test_rows_from_disk_are_those_of_vllms_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_rank: None
) -> None:
    from sparkstack_vllm import ngram_hook, ngram_table
    from vllm.models.qwen4_exp.nvidia import model_state, ngram_embedding

    monkeypatch.setattr(ngram_embedding, "get_current_vllm_config", lambda: vllm_config(tmp_path))
    monkeypatch.setattr("vllm.config.get_current_vllm_config", lambda: vllm_config(tmp_path))
    usual = ngram_layer(ngram_embedding)  # in memory
    rows = usual.ngram_embedding.org_vocab_size
    table = torch.randn(rows, COLUMNS).bfloat16()
    usual.ngram_embedding.weight.data[:rows] = table
    per_shard = -(-rows // 3)
    lead, row = 13, 2 * COLUMNS
    (tmp_path / "table").write_bytes(bytes(lead) + table.view(torch.uint8).numpy().tobytes())
    shards = [
        {"file": "table", "offset": lead + at * row, "rows": min(per_shard, rows - at)}
        for at in range(0, rows, per_shard)
    ]
    told = {"format": 1, "table": "ple", "rows": rows, "row_bytes": row, "rows_per_shard": per_shard}
    (tmp_path / "ngram_rows.json").write_text(json.dumps({**told, "shards": shards}))

    for name in ("Qwen4ExpPLEDeviceEmbedding", "Qwen4ExpPLEPinnedHostEmbedding"):
        monkeypatch.setattr(ngram_embedding, name, getattr(ngram_embedding, name))
    context = torch.tensor([[3, 9], [0, 0]], dtype=torch.int32)
    starts = torch.tensor([0, 4, TOKENS, TOKENS], dtype=torch.int32)
    context = torch.cat([context, torch.zeros(1, 2, dtype=torch.int32)])

    def prepare(self: Any, batch: Any, states: Any) -> dict[str, Any]:
        return {"query_start_loc": starts, "ngram_context": context}

    monkeypatch.setattr(model_state.Qwen4ExpModelState, "prepare_inputs", prepare)
    monkeypatch.setattr(model_state.Qwen4ExpModelState, "prepare_dummy_inputs", lambda self, *_: {})
    ngram_hook.install()
    ngram_hook.install()  # a second call adds nothing
    ours = ngram_layer(ngram_embedding)
    embedding = ours.ngram_embedding
    assert embedding.weight.is_meta  # no memory
    said = f"{rows} rows of {row} bytes stay on disk, cached, 32 threads"
    assert ngram_table.loaded(None) == said
    assert ngram_table.loaded(None).found == "no n-gram table in this model"

    # A runner that prepares nothing is found out; then as the V2 runner goes.
    tokens = torch.tensor([5, 7, 0, 12, 44, 49, 0, 0], dtype=torch.int32)  # two fill up a graph's batch
    with pytest.raises(PluginError, match="found a runner that did not prepare n-gram rows"):
        embedding.finalize_prefetch(TOKENS)
    model = torch.nn.Module()
    model.ple = ours
    state = SimpleNamespace(model=model)
    model_state.Qwen4ExpModelState.prepare_dummy_inputs(state, 1, 2)
    assert embedding.finalize_prefetch(2).shape == (2, HEADS * COLUMNS)
    batch = SimpleNamespace(input_ids=tokens, num_tokens=TOKENS)
    model_state.Qwen4ExpModelState.prepare_inputs(state, batch, None)
    got = embedding.finalize_prefetch(TOKENS)
    ids = usual.compute_ngram_ids(tokens[:TOKENS], starts, context)
    exact = table[ids].flatten(-2)
    assert got.dtype == torch.bfloat16 and torch.equal(got, exact)
    # The loader brings the table by and nothing is kept of it.
    embedding.weight.weight_loader(embedding.weight, table[:per_shard], checkpoint_start=0)
    assert embedding.weight.is_meta


@pytest.mark.skipif(not supports("ngram_table"), reason="no model with an n-gram table yet")
def test_a_table_of_another_model() -> None:
    from sparkstack_vllm import ngram_hook

    table: Any = SimpleNamespace(rows=100, row_bytes=160)
    ngram_hook.check(table, Path("/m"), 100, 160, torch.float8_e4m3fn)
    with pytest.raises(PluginError, match=r"a table of 100 rows of 160 bytes in /m; wanted 96 rows of 320"):
        ngram_hook.check(table, Path("/m"), 96, 160, torch.bfloat16)
    with pytest.raises(PluginError, match="found an n-gram table in NVFP4"):
        ngram_hook.check(table, Path("/m"), 100, 160, torch.uint8)
