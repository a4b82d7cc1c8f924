"""The draft head in vLLM's own drafters of one version: `./test --vllm`, as test_dispatch.py.

vLLM's loaders, its MTP model, logits processor and proposer are the real ones; what they load is not, because
weights and forward passes want a GPU.
"""

from __future__ import annotations

import os
import socket
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
from safetensors.torch import save_file  # noqa: E402
from sparkstack_vllm import draft_head, draft_hook  # noqa: E402
from sparkstack_vllm.errors import PluginError  # noqa: E402
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.models.qwen3_5_mtp import Qwen3_5MTP  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

VOCABULARY, WIDTH, KEPT = 70, 32, (3, 5, 8, 40, 69)


def bare(cls: Any) -> Any:
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    return made


def lm_head(weight: torch.Tensor) -> Any:
    head = bare(ParallelLMHead)
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    head.quant_method = UnquantizedEmbeddingMethod()
    head.embedding_dim, head.tp_size = WIDTH, 1
    return head


def processor(scale: float = 1.0, soft_cap: float | None = None) -> Any:
    made = bare(LogitsProcessor)
    made.scale, made.soft_cap, made.logits_as_input = scale, soft_cap, False
    made.vocab_size = made.org_vocab_size = VOCABULARY
    made.use_all_gather, made.head_dtype = True, None
    return made


def drafter(head: Any, logits: Any | None = None) -> Any:
    made = bare(Qwen3_5MTP)
    made.lm_head, made.logits_processor = head, logits or processor()
    made.model = torch.nn.Module()
    return made


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.fixture
def config(tmp_path: Path, weight: torch.Tensor) -> Any:
    """Of a model whose checkpoint has a draft head."""
    (tmp_path / "draft_vocab").mkdir()
    kept = torch.tensor(KEPT)
    save_file({"ids": kept, "weight": weight[kept].clone()}, tmp_path / draft_head.FILE)
    speculative = SimpleNamespace(method="mtp", draft_lm_head_quantization=None)
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path)), speculative_config=speculative
    )


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "vllm.distributed.parallel_state.get_tensor_model_parallel"
    monkeypatch.setattr(f"{where}_rank", lambda: 0)
    monkeypatch.setattr(f"{where}_world_size", lambda: 1)


def loaders() -> list[Any]:
    return [draft_hook._loader(places) for places in draft_hook.LOADERS]


@pytest.mark.parametrize("which", [0, 1])
def test_a_loaded_drafter_gets_the_head(
    which: int, config: Any, weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the runner: its loader leaves a drafter, and logits are asked of it as vLLM asks."""
    cls = loaders()[which]
    head = lm_head(weight)
    target = SimpleNamespace(lm_head=head)

    def load_model(self: Any, target_model: Any) -> None:
        self.model = drafter(target_model.lm_head)

    monkeypatch.setattr(cls, "load_model", load_model)
    draft_hook.install()
    draft_hook.install()  # a second call adds nothing
    made = SimpleNamespace(
        vllm_config=config, use_local_argmax_reduction=False, use_heterogeneous_vocab=False
    )
    cls.load_model(made, target)
    assert draft_head.loaded(None) == f"{len(KEPT)} of {VOCABULARY} tokens, bf16, on 1 rank(s)"
    assert draft_head.loaded(None).found == "no drafter that MTP or EAGLE would load"

    x = torch.randn(6, WIDTH).bfloat16()
    logits = made.model.compute_logits(x)
    whole = x @ weight.T
    assert logits.shape == (6, VOCABULARY) and logits.dtype == torch.bfloat16
    assert torch.equal(logits[:, list(KEPT)], whole[:, list(KEPT)])
    assert int(torch.isfinite(logits).sum()) == 6 * len(KEPT)
    assert made.model.lm_head is head  # the model's own head is not touched

    greedy = loaders()[0]._greedy_sample(made, x)
    assert set(greedy.tolist()) <= set(KEPT) and torch.equal(greedy, logits.argmax(dim=-1))
    if hasattr(made.model, "get_top_tokens"):
        made.use_local_argmax_reduction = True
        assert torch.equal(loaders()[0]._greedy_sample(made, x), greedy)


def test_the_loader_gets_what_it_was_given(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = loaders()[0]
    monkeypatch.setattr(cls, "load_model", lambda self, target_model, *more, **named: (more, named))
    monkeypatch.setattr(draft_hook, "put", lambda *_: None)
    draft_hook.install()
    made = SimpleNamespace(vllm_config=config, model=None)
    assert cls.load_model(made, object(), 1, a=2) == ((1,), {"a": 2})


def test_a_second_copy_of_the_head_is_the_models(config: Any, weight: torch.Tensor) -> None:
    made = drafter(lm_head(weight.clone()))
    draft_hook.put(made, SimpleNamespace(lm_head=lm_head(weight)), config)
    assert isinstance(made.logits_processor, draft_head.DraftLogits)


def refused(config: Any, made: Any, target: Any) -> str:
    with pytest.raises(PluginError) as caught:
        draft_hook.put(made, target, config)
    return str(caught.value)


def test_what_the_head_is_not_for(config: Any, weight: torch.Tensor) -> None:
    head = lm_head(weight)
    target = SimpleNamespace(get_language_model=lambda: SimpleNamespace(lm_head=head))
    start = "sparkstack plugin: draft_head: found "
    other = drafter(lm_head(weight + 1))
    assert refused(config, other, target) == (
        f"{start}Qwen3_5MTP with an LM head of its own; wanted one that shares the model's; "
        "set SPARKSTACK_DRAFT_HEAD=0"
    )
    capped = drafter(head, processor(soft_cap=30.0))
    assert refused(config, capped, target).startswith(f"{start}a model that caps its logits")
    own = drafter(head)
    own.draft_id_to_target_id = torch.arange(3)
    assert refused(config, own, target).startswith(f"{start}a drafter with a draft vocabulary of its own")
    none = drafter(head)
    del none.logits_processor
    assert refused(config, none, target).startswith(f"{start}no LogitsProcessor in Qwen3_5MTP")
    config.speculative_config.method = "draft_model"
    assert refused(config, drafter(head), target).startswith(
        f"{start}speculative method 'draft_model'; wanted one of mtp, eagle, eagle3"
    )
    config.speculative_config.method = "mtp"
    config.speculative_config.draft_lm_head_quantization = "fp8"
    assert "draft_lm_head_quantization 'fp8' beside draft_head" in refused(config, drafter(head), target)


def test_a_head_of_another_model(config: Any, weight: torch.Tensor) -> None:
    wide = lm_head(weight)
    wide.embedding_dim = 2 * WIDTH
    said = refused(config, drafter(wide), SimpleNamespace(lm_head=wide))
    assert f"found a draft head of width {WIDTH}" in said and f"wanted {2 * WIDTH}, the width" in said
    small = processor()
    small.org_vocab_size = 60
    head = lm_head(weight)
    said = refused(config, drafter(head, small), SimpleNamespace(lm_head=head))
    assert "found token 69 in the draft head" in said and "wanted tokens below 60" in said


def test_mtp_layers_with_a_head_each(config: Any, weight: torch.Tensor) -> None:
    """DeepSeek's MTP: the processor is one level down, the head in each layer."""
    head = lm_head(weight)
    made = torch.nn.Module()
    made.model = torch.nn.Module()
    made.model.logits_processor = processor()
    layer = torch.nn.Module()
    layer.shared_head = torch.nn.Module()
    layer.shared_head.head = head
    made.model.layers = torch.nn.ModuleDict({"61": layer})
    draft_hook.put(made, SimpleNamespace(lm_head=head), config)
    assert isinstance(made.model.logits_processor, draft_head.DraftLogits)
    layer.shared_head.head = lm_head(weight + 1)
    made.model.logits_processor = processor()
    assert "LM head of its own" in refused(config, made, SimpleNamespace(lm_head=head))


RANK = """
import sys, torch
from types import SimpleNamespace
import vllm.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with set_current_vllm_config(VllmConfig()):
    dist.init_distributed_environment(2, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
    dist.initialize_model_parallel(2)
    from pathlib import Path
    from sparkstack_vllm import draft_head, draft_hook
    from vllm.distributed.communication_op import tensor_model_parallel_all_gather as all_gather
    head = draft_head.read(Path(folder))
    cpu = torch.device("cpu")
    logits = draft_head.DraftLogits(head, 700, cpu, rank, 2, draft_hook.gathered(all_gather))
    x = torch.randn(3, head.width, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(logits(None, x), draft_head.DraftLogits(head, 700, cpu)(None, x), atol=1e-4)
    print("same")
"""


@pytest.mark.skipif(not current_platform.is_cpu(), reason="this build of vLLM has no groups without a GPU")
def test_two_ranks_over_vllms_own_group(tmp_path: Path) -> None:

    (tmp_path / "draft_vocab").mkdir()
    size = 300
    save_file(
        {"ids": torch.arange(size) * 2, "weight": torch.randn(size, 64).bfloat16()},
        tmp_path / draft_head.FILE,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(TREE), str(PATCHES), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), port, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=240) for rank in ranks]
    for out, err in said:
        assert out.split()[-1:] == ["same"], err[-2000:]
