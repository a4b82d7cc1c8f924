"""The drafter's logits from the checkpoint's pruned head: the most used tokens, in BF16, FP8 or NVFP4.

A draft that the model rejects costs little, so the drafter may guess among fewer tokens and with a coarser
head: 65,536 rows in NVFP4 are 94 MB to read a step where the whole head in BF16 has 1.27 GB. What is served
stays exact, because the model itself checks every token with its own head.

Transform `draft_vocab` puts the rows into `draft_vocab/head.safetensors`. vLLM's drafters (V1's proposers and
V2's speculators alike) ask a `LogitsProcessor` of their own for logits over the whole vocabulary, or for the
top token. That object is exchanged once the drafter is loaded: the logits of the kept rows go to their
tokens' places, all other places are −∞, which is also how vLLM fills up an EAGLE-3 draft vocabulary.

With tensor parallelism each rank has an equal part of the kept rows, and all ranks get the logits of all
parts: the same bits everywhere, whichever kernel each rank found fastest.

This module reads and multiplies, and needs torch alone; `draft_hook.py` is vLLM's side.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sparkstack_vllm.errors import PluginError
from sparkstack_vllm.loading import Nothing

if TYPE_CHECKING:
    from sparkstack_vllm.kernels.draft_head import Config

FILE = "draft_vocab/head.safetensors"
BLOCK = 128  # rows and columns of one FP8 scale; ranks' parts begin at multiples of it
GROUP = 16  # columns of one NVFP4 scale
ROW_BLOCKS = (8, 16, 32, 64)  # activations that one program of the kernels takes
PACK_ROWS = 4096  # of the weight that are packed at a time, 20 bytes a weight; a multiple of 256
PLAIN_ROWS = 4096  # rows of the weight that are float32 at a time where no kernel runs
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# Words for each drafter that got its head since `loaded` was last asked.
given: list[str] = []


def refuse(found: str, wanted: str, remedy: str) -> PluginError:
    return PluginError(f"sparkstack plugin: draft_head: found {found}; wanted {wanted}; {remedy}")


class Head(NamedTuple):
    """The file's content, or a rank's part of it.

    `weight` BF16 or FP8 [size, width] or, for NVFP4, uint8 [size, width / 2]; `scale` by 128×128 (float32) or
    by 16 columns (FP8); `scale_2` one number.
    """

    ids: Tensor
    weight: Tensor
    scale: Tensor | None
    scale_2: Tensor | None

    @property
    def kind(self) -> str:
        kinds = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8", torch.uint8: "nvfp4"}
        return kinds.get(self.weight.dtype, str(self.weight.dtype))

    @property
    def width(self) -> int:
        return self.weight.shape[1] * (2 if self.kind == "nvfp4" else 1)


STAGE_AGAIN = "stage the checkpoint again with the transform draft_vocab"


def read(folder: Path) -> Head:
    """The draft head of a checkpoint. Errors: PluginError where it is not there or not as described."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    if not path.is_file():
        raise refuse(
            f"no {FILE} in {folder}",
            "the head that the transform draft_vocab writes",
            "add draft_vocab to checkpoint.transforms of the recipe, or set SPARKSTACK_DRAFT_HEAD=0",
        )
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError) as error:
        raise refuse(f"{path}, which cannot be read: {error}", "a safetensors file", STAGE_AGAIN) from None
    if "ids" not in tensors or "weight" not in tensors:
        raise refuse(f"{', '.join(sorted(tensors)) or 'nothing'} in {path}", "ids and weight", STAGE_AGAIN)
    scale = tensors.get("weight_scale_inv", tensors.get("weight_scale"))
    head = Head(tensors["ids"], tensors["weight"], scale, tensors.get("weight_scale_2"))
    if wrong := fault(head):
        raise refuse(f"{wrong[0]} in {path}", wrong[1], STAGE_AGAIN)
    return head


def fault(head: Head) -> tuple[str, str] | None:
    """What is wrong with a head, and what was wanted; None when nothing is."""
    ids, weight = head.ids, head.weight
    if ids.dtype != torch.int64 or ids.dim() != 1 or weight.dim() != 2 or ids.shape[0] != weight.shape[0]:
        return f"ids {ids.dtype} {list(ids.shape)}, weight {list(weight.shape)}", "an id (int64) a row"
    if not ids.numel() or int(ids[0]) < 0 or not bool((ids[1:] > ids[:-1]).all()):
        return "ids that are not in rising order", "each token once, in rising order"
    rows, width = weight.shape[0], head.width
    if head.kind == "bf16":
        return None
    if head.kind == "fp8":
        wanted = ("weight_scale_inv", torch.float32, [-(-rows // BLOCK), -(-width // BLOCK)])
    elif head.kind == "nvfp4":
        wanted = ("weight_scale", torch.float8_e4m3fn, [rows, width // GROUP])
    else:
        return f"a weight of type {head.kind}", "bfloat16, float8_e4m3fn, or uint8 (NVFP4)"
    name, dtype, shape = wanted
    if head.scale is None or head.scale.dtype != dtype or list(head.scale.shape) != shape:
        said = "no scale" if head.scale is None else f"scale {head.scale.dtype} {list(head.scale.shape)}"
        return f"{said} beside a weight {weight.dtype} {list(weight.shape)}", f"{name} {dtype} {shape}"
    if head.kind == "nvfp4" and (head.scale_2 is None or head.scale_2.numel() != 1):
        return "no weight_scale_2", "one float32 number"
    return None


def part_rows(size: int, world: int) -> int:
    """Rows that each of `world` ranks holds: the same for all, so the last ones may hold rows of zeros."""
    return -(-size // (world * BLOCK)) * BLOCK if world > 1 else size


def part(head: Head, rank: int, world: int) -> Head:
    """Rank `rank`'s rows, filled up with zeros to `part_rows`. `ids` stay those of the whole head."""
    if world == 1:
        return head
    rows = part_rows(head.ids.shape[0], world)

    def cut(tensor: Tensor, size: int) -> Tensor:
        # By bytes: torch pads and copies FP8 as it does uint8.
        plain = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
        mine = plain[rank * size : (rank + 1) * size]
        full = torch.zeros(size, plain.shape[1], dtype=plain.dtype)
        full[: mine.shape[0]] = mine
        return full.view(tensor.dtype)

    scale = head.scale
    if scale is not None:
        scale = cut(scale, rows // BLOCK if head.kind == "fp8" else rows)
    return head._replace(weight=cut(head.weight, rows), scale=scale)


def restored(head: Head, start: int, end: int) -> Tensor:
    """Rows of the weight as float32 [end − start, width]. `start` must be a multiple of 128."""
    weight = head.weight[start:end]
    if head.kind == "bf16" or head.scale is None:
        return weight.float()
    if head.kind == "fp8":
        scale = head.scale[start // BLOCK : -(-end // BLOCK)]
        spread = scale.repeat_interleave(BLOCK, dim=0).repeat_interleave(BLOCK, dim=1)
        return weight.float() * spread[: weight.shape[0], : weight.shape[1]]
    assert head.scale_2 is not None
    byte = weight.to(torch.int64)
    nibble = torch.stack((byte & 15, byte >> 4), dim=-1).reshape(byte.shape[0], -1)
    value = torch.tensor(FP4, device=weight.device)[nibble & 7] * torch.where(nibble > 7, -1.0, 1.0)
    scale = head.scale[start:end].float().repeat_interleave(GROUP, dim=1)
    return value * scale * head.scale_2.float().reshape(())


class Rows:
    """A rank's rows on their device: multiplied by a kernel where one runs, by plain torch elsewhere."""

    def __init__(self, head: Head, device: torch.device) -> None:
        """Errors: PluginError where the card's kernel fails."""
        self.count = head.weight.shape[0]
        self.head = Head(*(None if t is None else t.to(device) for t in head))  # type: ignore[arg-type]
        self._kernel: Callable[[Tensor, Config], Tensor] | None = None
        self._configs: dict[int, Config] = {}
        if device.type != "cuda" or head.kind == "bf16" or find_spec("triton") is None:
            return
        try:
            self._tune(device)
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise refuse(
                f"{type(error).__name__} from its kernel: {said}",
                "a GPU and driver that run it",
                "set SPARKSTACK_DRAFT_HEAD=0, or stage the draft head as bf16",
            ) from error

    def _tune(self, device: torch.device) -> None:
        from sparkstack_vllm.kernels import draft_head as kernels
        from sparkstack_vllm.kernels import draft_pack, tuning

        head, width, count = self.head, self.head.width, self.count
        assert head.scale is not None
        if width % draft_pack.COLUMNS:
            return  # a width that the kernels do not cut evenly
        candidates = kernels.FP8_CANDIDATES if head.kind == "fp8" else kernels.NVFP4_CANDIDATES
        if head.kind == "fp8":
            scale = head.scale
            words = torch.cat([draft_pack.pack_fp8(weight) for weight in head.weight.split(PACK_ROWS)])

            def run(x: Tensor, config: Config) -> Tensor:
                return kernels.fp8_logits(x, words, scale, count, config)
        else:
            assert head.scale_2 is not None
            pairs = zip(head.weight.split(PACK_ROWS), head.scale.split(PACK_ROWS), strict=True)
            packed = [draft_pack.pack_nvfp4(weight, scale) for weight, scale in pairs]
            words, small = (torch.cat(parts) for parts in zip(*packed, strict=True))
            scale_2 = float(head.scale_2)

            def run(x: Tensor, config: Config) -> Tensor:
                return kernels.nvfp4_logits(x, words, small, scale_2, count, config)

        # The kernels read the packed form; what was published need not stay.
        self.head = head._replace(weight=words, scale=None)
        for block in ROW_BLOCKS:
            x = torch.randn(block, width, device=device).bfloat16()
            self._configs[block] = tuning.choose(
                kernels,
                f"draft-head-{head.kind}",
                (self.count, width, block),
                candidates,
                lambda config, x=x: run(x, config),  # type: ignore[misc]
                device,
            )
        self._kernel = run

    def logits(self, x: Tensor) -> Tensor:
        """x [rows, width] → [rows, count], in x's type."""
        if self._kernel is not None:
            from sparkstack_vllm.kernels.draft_head import row_block

            made = self._kernel(x.to(torch.bfloat16), self._configs[row_block(x.shape[0])])
            return made.to(x.dtype)
        if self.head.kind == "bf16" and x.dtype == torch.bfloat16:
            return torch.mm(x, self.head.weight.t())
        out = torch.empty(x.shape[0], self.count, dtype=x.dtype, device=x.device)
        for start in range(0, self.count, PLAIN_ROWS):
            end = min(start + PLAIN_ROWS, self.count)
            out[:, start:end] = torch.mm(x.float(), restored(self.head, start, end).t())
        return out


class DraftLogits(torch.nn.Module):
    """Stands where the drafter's LogitsProcessor stood, and answers as it does.

    The head that it is given with each call is not read.
    """

    def __init__(
        self,
        head: Head,
        vocabulary: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        gather: Callable[[Tensor], Tensor] | None = None,
        scale: float = 1.0,
    ) -> None:
        """`gather` joins the last dimension of all ranks' tensors in order; wanted where `world` is above 1.
        `scale` is what the model multiplies logits by."""
        super().__init__()
        self.vocab_size = self.org_vocab_size = vocabulary
        self.scale = scale
        self.soft_cap = None
        self._gather = gather
        # Plain attributes: neither the loader nor a reload of weights is to find parameters here.
        self._ids = head.ids.to(device)
        self._rows = Rows(part(head, rank, world), device)

    def _kept(self, hidden: Tensor) -> Tensor:
        """hidden [rows, width] → logits of the kept tokens [rows, size], the same on every rank."""
        logits = self._rows.logits(hidden)
        if self._gather is not None:
            logits = self._gather(logits)[:, : self._ids.shape[0]]
        return logits if self.scale == 1.0 else logits * self.scale

    def forward(self, lm_head: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """[rows, width] → [rows, vocabulary]: −∞ for every token that is not kept."""
        kept = self._kept(hidden_states)
        out = kept.new_full((kept.shape[0], self.org_vocab_size), float("-inf"))
        return out.index_copy_(1, self._ids, kept)

    def get_top_tokens(self, lm_head: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """[rows, width] → the best token of each row, int64 [rows]; the lowest of several that are equal."""
        return self._ids[self._kept(hidden_states).argmax(dim=-1)]


def apply() -> None:
    """Have the head put into every drafter that shares the model's, once it is loaded."""
    from sparkstack_vllm import draft_hook

    draft_hook.install()


def loaded(model: Any) -> str | Nothing:
    """What the drafter got."""
    found = list(given)
    given.clear()
    if found:
        return "; ".join(found)
    return Nothing(
        "no drafter that MTP or EAGLE would load", "add speculative_config to serve.options", in_last=True
    )


def _example(kind: str, size: int, width: int, generator: torch.Generator) -> Head:
    ids = torch.arange(size) * 3 + 1
    if kind == "bf16":
        weight = torch.randn(size, width, generator=generator).bfloat16()
        return Head(ids, weight, None, None)
    if kind == "fp8":
        weight = torch.randn(size, width, generator=generator).to(torch.float8_e4m3fn)
        blocks = (-(-size // BLOCK), -(-width // BLOCK))
        return Head(ids, weight, torch.rand(blocks, generator=generator) + 0.5, None)
    weight = torch.randint(0, 256, (size, width // 2), dtype=torch.uint8, generator=generator)
    scale = (torch.rand(size, width // GROUP, generator=generator) + 0.5).to(torch.float8_e4m3fn)
    return Head(ids, weight, scale, torch.tensor(0.25))


def self_check() -> None:
    """Each format on one rank, and cut over three: the same logits, at the right tokens, −∞ elsewhere."""
    generator = torch.Generator().manual_seed(0)
    size, width, world = 300, 256, 3
    x = torch.randn(2, width, generator=generator)
    for kind in ("bf16", "fp8", "nvfp4"):
        head = _example(kind, size, width, generator)
        assert fault(head) is None, f"{kind}: {fault(head)}"
        exact = x.double() @ restored(head, 0, size).double().t()
        device = torch.device("cpu")
        whole = DraftLogits(head, 3 * size + 5, device)
        logits = whole(None, x)
        error = ((logits[:, head.ids].double() - exact).norm() / exact.norm()).item()
        assert error < 1e-5, f"{kind}: logits are off by {error:.1e} of their size; wanted less than 1e-5"
        assert int(torch.isfinite(logits).sum()) == 2 * size, f"{kind}: a token outside has a logit"
        top = whole.get_top_tokens(None, x)
        assert torch.equal(top, logits.argmax(dim=-1)), f"{kind}: the top token is not that of the logits"
        parts = [Rows(part(head, rank, world), device).logits(x) for rank in range(world)]
        joined = torch.cat(parts, dim=-1)[:, :size]
        assert torch.allclose(joined.double(), exact, rtol=1e-4, atol=1e-3), f"{kind}: ranks' parts differ"
