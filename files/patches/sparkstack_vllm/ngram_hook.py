"""vLLM's side of `ngram_table`: the embedding that holds no table, and when its rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkstack_vllm.ngram_table import Stage, TableFile, on_disk, refuse, settings

LAYERS = "_sparkstack_ngram_layers"
OFF = "set SPARKSTACK_NGRAM_TABLE=0"


def install() -> None:
    """Put our embedding in the place of both of vLLM's, and read rows as a step's inputs are prepared.

    A second call changes nothing.
    """
    from vllm.config import get_current_vllm_config
    from vllm.models.qwen4_exp.nvidia import model_state, ngram_embedding

    usual = ngram_embedding.Qwen4ExpPLEDeviceEmbedding
    if getattr(usual, "sparkstack", False):
        return

    class DiskEmbedding(usual):  # type: ignore[misc, valid-type]
        """Rows of one table, read from the checkpoint by every rank for its own tokens: nothing to reduce."""

        sparkstack = True
        supports_prefetch = True  # the model asks finalize_prefetch, and not forward

        def __init__(self, num_embeddings: int, embedding_dim: int, **more: Any) -> None:
            super().__init__(num_embeddings, embedding_dim, **more)
            if not more.get("reduce_results", True):
                raise refuse("sequence parallelism over the n-gram table", "it off", OFF)
            mode, threads = settings()
            folder = Path(get_current_vllm_config().model_config.model)
            table = TableFile(folder, mode, threads)
            check(table, folder, num_embeddings, embedding_dim, self.weight.dtype)
            tokens, heads = int(more["max_total_tokens"]), int(more["num_ngram_heads"])
            # Where the model is being made: the device that vLLM has set as torch's default.
            self.stage = Stage(table, tokens, heads, torch.empty(0).device)
            self.prepared = False
            rows = f"{table.rows} rows of {table.row_bytes} bytes"
            on_disk.append(f"{rows} stay on disk, {mode}, {threads} threads")

        def allocate_embedding_weight(
            self, num_embeddings: int, embedding_dim: int, dtype: torch.dtype
        ) -> Tensor:
            return torch.empty(num_embeddings, embedding_dim, dtype=dtype, device="meta")

        def weight_loader(self, param: Tensor, loaded_weight: Tensor, *args: Any, **kwargs: Any) -> None:
            # The table's shards come by as mapped files, of which nothing is read unless it is copied.
            if param.device.type != "meta":
                super().weight_loader(param, loaded_weight, *args, **kwargs)

        def start_prefetch(self, ngram_ids: Tensor) -> None:
            """Nothing: the rows are there since the inputs were prepared."""

        def finalize_prefetch(self, total_tokens: int) -> Tensor:
            if not self.prepared:
                raise refuse("a runner that did not prepare n-gram rows", "vLLM's V2 runner", OFF)
            return self.stage.buffer[:total_tokens].view(self.weight.dtype).clone()

        def forward(self, *_: Any) -> Tensor:
            raise refuse("a lookup in a table that is not in memory", "finalize_prefetch", OFF)

    ngram_embedding.Qwen4ExpPLEDeviceEmbedding = DiskEmbedding
    ngram_embedding.Qwen4ExpPLEPinnedHostEmbedding = DiskEmbedding

    state = model_state.Qwen4ExpModelState
    prepare, prepare_dummy = state.prepare_inputs, state.prepare_dummy_inputs

    def layers(runner: Any) -> list[Any]:
        found = runner.__dict__.get(LAYERS)
        if found is None:  # a walk over thousands of modules, once
            every = runner.model.modules()
            found = [m for m in every if isinstance(getattr(m, "ngram_embedding", None), DiskEmbedding)]
            setattr(runner, LAYERS, found)
        return list(found)

    def prepare_inputs(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        made = prepare(self, input_batch, *args, **kwargs)
        if "ngram_context" in made:
            ids = input_batch.input_ids[: input_batch.num_tokens]
            for layer in layers(self):
                rows = layer.compute_ngram_ids(ids, made["query_start_loc"], made["ngram_context"])
                layer.ngram_embedding.stage.fill(rows)
                layer.ngram_embedding.prepared = True
        return made

    def prepare_dummy_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Profiling and capture: what the buffer holds does not matter.
        for layer in layers(self):
            layer.ngram_embedding.prepared = True
        return prepare_dummy(self, *args, **kwargs)

    state.prepare_inputs, state.prepare_dummy_inputs = prepare_inputs, prepare_dummy_inputs


def check(table: TableFile, folder: Path, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Errors: PluginError where the table on disk is not the one that the model has."""
    if dtype == torch.uint8:
        raise refuse("an n-gram table in NVFP4", "one in FP8 or BF16", OFF)
    wanted = columns * dtype.itemsize
    if (table.rows, table.row_bytes) != (rows, wanted):
        raise refuse(
            f"a table of {table.rows} rows of {table.row_bytes} bytes in {folder}",
            f"{rows} rows of {wanted}, as the model's config says",
            "check that model and checkpoint belong together",
        )
