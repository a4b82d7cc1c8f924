"""The tiny Qwen3.5-MoE: its shapes, its `config.json` and its tensors.

The shape is that of Qwen3.5-122B-A10B as AutoRound exports it, 1/20000 of the size: a hybrid of gated delta
nets and full attention, routed experts and a shared one, a vision tower, one MTP layer.

Weights come from SHAKE-128 streams (one per tensor name), mapped onto 256 evenly spaced BF16 values: no
random number generator, no float that could round differently elsewhere.

The text it writes means nothing but is printable ASCII, one token a character, and does not end by itself:
channel 0 of the residual stream is a constant that no layer writes to, and column 0 of the LM head turns it
into a penalty for every token that is not a printable character, end-of-text included.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

# Shapes. Head counts and widths divide by 4, so TP = 1, 2 and 4 all work.
HIDDEN = 256
VOCAB = 512  # 256 bytes, the special tokens, the rest padding
LAYERS = 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
GDN_KEY_HEADS, GDN_VALUE_HEADS, GDN_HEAD_DIM, GDN_KERNEL = 4, 8, 64, 4
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 4, 2, 128
VISION_DEPTH, VISION_HIDDEN, VISION_WIDTH, VISION_POSITIONS = 1, 64, 128, 64
PATCH, PATCH_TIME, MERGE = 16, 2, 2

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
)
TOKEN_ID = {token: 256 + i for i, token in enumerate(SPECIAL_TOKENS)}


@dataclass(frozen=True)
class Tensor:
    """A BF16 tensor: its shape and its little-endian bytes, row-major."""

    shape: tuple[int, ...]
    data: bytes


# --- numbers -------------------------------------------------------------------------------------------


def bf16(value: float) -> bytes:
    """The two little-endian bytes of `value` in BF16, rounded to nearest even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", bits >> 16 & 0xFFFF)


def noise(name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Tensor:
    """Uniform noise with this mean and standard deviation; the stream is that of the tensor's name."""
    step = deviation * math.sqrt(3.0) / 128.0
    levels = [bf16(mean + (2 * i - 255) * step / 2.0) for i in range(256)]
    stream = hashlib.shake_128(f"sparkstack-lab:{name}".encode()).digest(math.prod(shape))
    data = bytearray(2 * len(stream))
    data[0::2] = stream.translate(bytes(level[0] for level in levels))
    data[1::2] = stream.translate(bytes(level[1] for level in levels))
    return Tensor(shape, bytes(data))


def constant(shape: tuple[int, ...], value: float) -> Tensor:
    return Tensor(shape, bf16(value) * math.prod(shape))


def with_row(tensor: Tensor, row: int, value: float) -> Tensor:
    """The same matrix with one row set to `value`."""
    width = 2 * tensor.shape[1]
    return Tensor(
        tensor.shape,
        tensor.data[: row * width] + bf16(value) * tensor.shape[1] + tensor.data[(row + 1) * width :],
    )


def with_column(tensor: Tensor, column: int, values: list[float]) -> Tensor:
    """The same matrix with one column replaced, one value a row."""
    data, width = bytearray(tensor.data), 2 * tensor.shape[1]
    for row, value in enumerate(values):
        at = row * width + 2 * column
        data[at : at + 2] = bf16(value)
    return Tensor(tensor.shape, bytes(data))


# --- the model -----------------------------------------------------------------------------------------


class _Weights(dict[str, Tensor]):
    """Names to tensors, filled layer by layer."""

    def linear(self, name: str, out: int, into: int, gain: float = 1.0) -> None:
        """A matrix that keeps the size of what passes through it, times `gain`."""
        self[name] = noise(name, (out, into), gain / math.sqrt(into))

    def writer(self, name: str, into: int) -> None:
        """A matrix that writes to the residual stream: it leaves channel 0 alone."""
        self.linear(name, HIDDEN, into, gain=0.7)
        self[name] = with_row(self[name], 0, 0.0)

    def norm(self, name: str, width: int = HIDDEN) -> None:
        self[name] = constant((width,), 0.0)  # Qwen3.5 multiplies by 1 + weight

    def mlp(self, prefix: str, width: int) -> None:
        self.linear(f"{prefix}.gate_proj.weight", width, HIDDEN, gain=1.5)
        self.linear(f"{prefix}.up_proj.weight", width, HIDDEN)
        self.writer(f"{prefix}.down_proj.weight", width)

    def attention(self, prefix: str) -> None:
        self.linear(f"{prefix}.q_proj.weight", 2 * HEADS * HEAD_DIM, HIDDEN)  # queries and their gates
        self.linear(f"{prefix}.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        self.linear(f"{prefix}.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        self.writer(f"{prefix}.o_proj.weight", HEADS * HEAD_DIM)
        self.norm(f"{prefix}.q_norm.weight", HEAD_DIM)
        self.norm(f"{prefix}.k_norm.weight", HEAD_DIM)

    def delta_net(self, prefix: str) -> None:
        keys, values = GDN_KEY_HEADS * GDN_HEAD_DIM, GDN_VALUE_HEADS * GDN_HEAD_DIM
        self.linear(f"{prefix}.in_proj_qkv.weight", 2 * keys + values, HIDDEN)
        self.linear(f"{prefix}.in_proj_z.weight", values, HIDDEN)
        self.linear(f"{prefix}.in_proj_b.weight", GDN_VALUE_HEADS, HIDDEN)
        self.linear(f"{prefix}.in_proj_a.weight", GDN_VALUE_HEADS, HIDDEN)
        name = f"{prefix}.conv1d.weight"
        self[name] = noise(name, (2 * keys + values, 1, GDN_KERNEL), 0.7)
        self[f"{prefix}.A_log"] = noise(f"{prefix}.A_log", (GDN_VALUE_HEADS,), 0.8)
        self[f"{prefix}.dt_bias"] = noise(f"{prefix}.dt_bias", (GDN_VALUE_HEADS,), 0.5, mean=-1.0)
        self[f"{prefix}.norm.weight"] = constant((GDN_HEAD_DIM,), 1.0)
        self.writer(f"{prefix}.out_proj.weight", values)

    def layer(self, prefix: str, *, full_attention: bool) -> None:
        self.norm(f"{prefix}.input_layernorm.weight")
        if full_attention:
            self.attention(f"{prefix}.self_attn")
        else:
            self.delta_net(f"{prefix}.linear_attn")
        self.norm(f"{prefix}.post_attention_layernorm.weight")
        self.linear(f"{prefix}.mlp.gate.weight", EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            self.mlp(f"{prefix}.mlp.experts.{expert}", EXPERT_WIDTH)
        self.mlp(f"{prefix}.mlp.shared_expert", EXPERT_WIDTH)
        self.linear(f"{prefix}.mlp.shared_expert_gate.weight", 1, HIDDEN)

    def affine(self, prefix: str, out: int, into: int) -> None:
        self.linear(f"{prefix}.weight", out, into)
        self[f"{prefix}.bias"] = constant((out,), 0.0)

    def layer_norm(self, prefix: str, width: int) -> None:
        self[f"{prefix}.weight"], self[f"{prefix}.bias"] = constant((width,), 1.0), constant((width,), 0.0)

    def vision(self, prefix: str) -> None:
        name = f"{prefix}.patch_embed.proj"
        self[f"{name}.weight"] = noise(f"{name}.weight", (VISION_HIDDEN, 3, PATCH_TIME, PATCH, PATCH), 0.02)
        self[f"{name}.bias"] = constant((VISION_HIDDEN,), 0.0)
        self.linear(f"{prefix}.pos_embed.weight", VISION_POSITIONS, VISION_HIDDEN)
        for index in range(VISION_DEPTH):
            block = f"{prefix}.blocks.{index}"
            self.layer_norm(f"{block}.norm1", VISION_HIDDEN)
            self.affine(f"{block}.attn.qkv", 3 * VISION_HIDDEN, VISION_HIDDEN)
            self.affine(f"{block}.attn.proj", VISION_HIDDEN, VISION_HIDDEN)
            self.layer_norm(f"{block}.norm2", VISION_HIDDEN)
            self.affine(f"{block}.mlp.linear_fc1", VISION_WIDTH, VISION_HIDDEN)
            self.affine(f"{block}.mlp.linear_fc2", VISION_HIDDEN, VISION_WIDTH)
        merged = VISION_HIDDEN * MERGE * MERGE
        self.layer_norm(f"{prefix}.merger.norm", VISION_HIDDEN)
        self.affine(f"{prefix}.merger.linear_fc1", merged, merged)
        self.affine(f"{prefix}.merger.linear_fc2", HIDDEN, merged)


def language_tensors() -> dict[str, Tensor]:
    """Everything that the index lists, in file order."""
    weights = _Weights()
    embedding = "model.language_model.embed_tokens.weight"
    weights[embedding] = with_column(noise(embedding, (VOCAB, HIDDEN), 1.0), 0, [8.0] * VOCAB)
    for index in range(LAYERS):
        weights.layer(f"model.language_model.layers.{index}", full_attention=index % 4 == 3)
    weights.norm("model.language_model.norm.weight")
    penalty = [0.0 if 32 <= token < 127 else -16.0 for token in range(VOCAB)]
    weights["lm_head.weight"] = with_column(noise("lm_head.weight", (VOCAB, HIDDEN), 0.15), 0, penalty)
    weights.vision("model.visual")
    return dict(weights)


def mtp_tensors() -> dict[str, Tensor]:
    """The MTP layer's tensors, under the names that Qwen3.5 gives them."""
    weights = _Weights()
    weights.linear("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        weights.norm(f"mtp.{name}.weight")
    weights.layer("mtp.layers.0", full_attention=True)
    return dict(weights)


def config() -> dict[str, Any]:
    """`config.json` of the tiny Qwen3.5-MoE."""
    text: dict[str, Any] = {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS)],
        "full_attention_interval": 4,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "initializer_range": 0.02,
        "linear_num_key_heads": GDN_KEY_HEADS,
        "linear_num_value_heads": GDN_VALUE_HEADS,
        "linear_key_head_dim": GDN_HEAD_DIM,
        "linear_value_head_dim": GDN_HEAD_DIM,
        "linear_conv_kernel_dim": GDN_KERNEL,
        "mamba_ssm_dtype": "float32",
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "shared_expert_intermediate_size": EXPERT_WIDTH,
        "router_aux_loss_coef": 0.001,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "eos_token_id": TOKEN_ID["<|endoftext|>"],
    }
    vision: dict[str, Any] = {
        "model_type": "qwen3_5_moe",
        "depth": VISION_DEPTH,
        "hidden_size": VISION_HIDDEN,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": VISION_WIDTH,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": PATCH_TIME,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": VISION_POSITIONS,
        "deepstack_visual_indexes": [],
        "initializer_range": 0.02,
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": TOKEN_ID["<|image_pad|>"],
        "video_token_id": TOKEN_ID["<|video_pad|>"],
        "vision_start_token_id": TOKEN_ID["<|vision_start|>"],
        "vision_end_token_id": TOKEN_ID["<|vision_end|>"],
        "tie_word_embeddings": False,
        "transformers_version": "5.16.1",
    }
