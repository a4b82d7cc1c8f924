"""What may be done to a checkpoint's files, with the options of each. A recipe may name all of these;
which of them the staging code has is `sparkstack.release.TRANSFORM_VERSIONS`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparkstack.recipe_fields import HubId, Revision, ShardBytes
from sparkstack.schema import Strict, refusal

Side = Annotated[int, Field(ge=1)]


class RegisterMtp(Strict):
    """Name the MTP tensors that are in the files and not in the index."""

    name: Literal["register_mtp"] = "register_mtp"


class Reshard(Strict):
    """Write the weights anew in files of at most `max_shard_bytes` bytes; a weight and its scales stay in
    one file."""

    name: Literal["reshard"] = "reshard"
    max_shard_bytes: ShardBytes


class Donor(Strict):
    """The checkpoint that tensors are taken from, at one revision."""

    repo: HubId
    revision: Revision


class GraftFp8(Strict):
    """Replace tensors by the donor's FP8 ones with `weight_scale_inv` beside them. `tensors` are patterns of
    names; exactly `expect_tensors` must match, each in blocks of `block_size`."""

    name: Literal["graft_fp8"] = "graft_fp8"
    donor: Donor
    tensors: list[str] = Field(min_length=1)
    expect_tensors: int = Field(ge=1)
    block_size: list[Side] = Field(default=[128, 128], min_length=2, max_length=2)
    config_note: bool = True


class TurboquantMetadata(Strict):
    """Write `turboquant_kv.json`, which the reference's build of vLLM reads. `recipe` must be the serving
    option `kv_cache_dtype`."""

    name: Literal["turboquant_metadata"] = "turboquant_metadata"
    recipe: Literal[
        "turboquant35",
        "turboquant25",
        "turboquant_asym",
        "turboquant_q8k_tq35v",
        "turboquant_q8k_tq25v",
        "q8k_tq35v",
        "q8k_tq25v",
    ]


class Fp8Dense(Strict):
    """Store BF16 linear layers as FP8 in blocks with float32 scales, and say so in config.json and
    hf_quant_config.json. Exactly `expect_tensors` weights must match `tensors`."""

    name: Literal["fp8_dense"] = "fp8_dense"
    tensors: list[str] = Field(min_length=1)
    expect_tensors: int = Field(ge=1)
    block_size: list[Side] = Field(default=[128, 128], min_length=2, max_length=2)


class DraftVocab(Strict):
    """A draft head of the `size` most used token ids (FR-Spec). `counts` names the file with one count an
    id, of the checkpoint or of `donor`; without it the lowest ids are taken. Special and byte tokens are
    always among them unless `pin_special` is false."""

    name: Literal["draft_vocab"] = "draft_vocab"
    size: int = Field(default=65536, ge=1)
    output: Literal["bf16", "fp8", "nvfp4"] = "bf16"
    counts: str | None = Field(default=None, min_length=1)
    pin_special: bool = True
    donor: Donor | None = None


class NgramTable(Strict):
    """Leave the n-gram table in its files, and write the map from a row to its place. The last transform
    that writes those files anew must come before it."""

    name: Literal["ngram_table"] = "ngram_table"
    expect_rows: int | None = Field(default=None, ge=1)


def _named(value: Any) -> Any:
    """`{reshard: {…}}`, as a recipe has it, to `{name: reshard, …}`, as a plan has it."""
    if isinstance(value, Strict):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise refusal("one transform with its arguments, as `reshard: {max_shard_bytes: 4GB}`")
    [(name, arguments)] = value.items()
    if not isinstance(arguments, dict):
        raise refusal(f"the arguments of {name} as keys, `{name}: {{}}` when there are none")
    if "name" in arguments:
        raise refusal("no key 'name' among the arguments")
    return {**arguments, "name": name}


Transform = Annotated[
    RegisterMtp | Reshard | GraftFp8 | TurboquantMetadata | Fp8Dense | DraftVocab | NgramTable,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
