"""Small checkpoints with the real models' names, types and proportions, for the transforms' tests."""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Iterable

from making import Content, index, noise, safetensors

HIDDEN, INTERMEDIATE, LAYERS, EXPERTS, VOCABULARY = 256, 128, 4, 2, 640


@functools.cache
def _weights(spread: float) -> bytes:
    """5003 BF16 weights as a model has them; a prime number, so that blocks do not repeat."""
    source = random.Random(spread)
    wide = struct.pack("<5003f", *(source.gauss(0, spread) for _ in range(5003)))
    return b"".join(wide[at + 2 : at + 4] for at in range(0, len(wide), 4))


def gauss(count: int, seed: str, spread: float = 0.02) -> bytes:
    """`count` BF16 weights, others for each seed."""
    start = random.Random(seed).randrange(5003) * 2
    weights = _weights(spread)
    return (weights[start:] + weights * (count // 5003 + 1))[: 2 * count]


def bf16(name: str, *shape: int) -> tuple[str, list[int], bytes]:
    size = 1
    for count in shape:
        size *= count
    return "BF16", list(shape), gauss(size, name)


def shared_expert(layer: int) -> dict[str, tuple[int, int]]:
    """The weights of the 122B's recipe in a layer, with their shapes."""
    base = f"model.language_model.layers.{layer}.mlp.shared_expert"
    return {
        f"{base}.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{base}.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{base}.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }


def attention(layer: int) -> dict[str, tuple[int, int]]:
    """The attention's weights: full attention in every fourth layer, GDN elsewhere."""
    base = f"model.language_model.layers.{layer}"
    if layer % 4 == 3:
        names = [f"self_attn.{name}_proj" for name in "qkvo"]
    else:
        names = [f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "out_proj")]
    return {f"{base}.{name}.weight": (INTERMEDIATE, HIDDEN) for name in names}


def int4(name: str, rows: int, columns: int) -> Content:
    """A GPTQ-packed linear layer as AutoRound writes it: groups of 128, no g_idx."""
    groups = columns // 128
    return {
        f"{name}.qweight": ("I32", [columns // 8, rows], noise(columns // 2 * rows, name)),
        f"{name}.qzeros": ("I32", [groups, rows // 8], noise(groups * rows // 2, f"{name}z")),
        f"{name}.scales": ("F16", [groups, rows], noise(groups * rows * 2, f"{name}s")),
    }


def mtp() -> Content:
    """The draft layer's tensors, which the exporter copies and the index forgets."""
    base = "mtp.layers.0"
    content = {f"mtp.{name}.weight": bf16(name, HIDDEN) for name in ("norm", "pre_fc_norm_hidden")}
    content["mtp.fc.weight"] = bf16("fc", HIDDEN, 2 * HIDDEN)
    content[f"{base}.self_attn.q_proj.weight"] = bf16("mq", HIDDEN, HIDDEN)
    for expert in range(EXPERTS):
        name = f"{base}.mlp.experts.{expert}.gate_proj.weight"
        content[name] = bf16(name, INTERMEDIATE, HIDDEN)
    return content


CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1,
    },
}
AUTOROUND = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "packing_format": "auto_round:auto_gptq",
}


def as_json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def parts(groups: Iterable[Content]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files of a model in parts, and the map of their names."""
    listed = list(groups)
    files, names = {}, {}
    for number, content in enumerate(listed, 1):
        file = f"model-{number:05d}-of-{len(listed):05d}.safetensors"
        files[file] = safetensors(content, {"format": "pt"})
        names |= dict.fromkeys(content, file)
    return files, names


def base_tensors() -> list[Content]:
    """The INT4 base by file: shared experts in BF16, attention and experts in INT4."""
    outer: Content = {
        "model.language_model.embed_tokens.weight": bf16("embed", VOCABULARY, HIDDEN),
        "lm_head.weight": bf16("head", VOCABULARY, HIDDEN),
        "model.language_model.norm.weight": bf16("norm", HIDDEN),
    }
    layers: list[Content] = []
    for layer in range(LAYERS):
        base = f"model.language_model.layers.{layer}"
        content: Content = {f"{base}.input_layernorm.weight": bf16(f"ln{layer}", HIDDEN)}
        for name, shape in shared_expert(layer).items():
            content[name] = bf16(name, *shape)
        for name, shape in attention(layer).items():
            content |= int4(name.removesuffix(".weight"), *shape)
        for expert in range(EXPERTS):
            content |= int4(f"{base}.mlp.experts.{expert}.gate_proj", INTERMEDIATE, HIDDEN)
        layers.append(content)
    return [{**outer, **layers[0]}, {**layers[1], **layers[2]}, layers[3]]


def hybrid_base() -> dict[str, bytes]:
    """The files of an AutoRound INT4 checkpoint with its MTP layer in a file of its own."""
    files, names = parts(base_tensors())
    return {
        **files,
        "model_extra_tensors.safetensors": safetensors(mtp()),
        "model.safetensors.index.json": index(names, 1),
        "config.json": as_json({**CONFIG, "quantization_config": AUTOROUND}),
        "quantization_config.json": as_json(AUTOROUND),
    }


def donor_tensors() -> list[Content]:
    """The FP8 donor by file: every linear layer in FP8 with scales (BF16, as its maker has them)."""
    content: Content = {}
    for layer in range(LAYERS):
        for name, (rows, columns) in {**shared_expert(layer), **attention(layer)}.items():
            content[name] = ("F8_E4M3", [rows, columns], noise(rows * columns, f"d{name}"))
            down, across = rows // 128, columns // 128
            content[f"{name}_scale_inv"] = ("BF16", [down, across], noise(2 * down * across, f"s{name}"))
        content[f"model.language_model.layers.{layer}.input_layernorm.weight"] = bf16(f"dln{layer}", HIDDEN)
    experts: Content = {
        f"model.language_model.layers.{layer}.mlp.experts.0.gate_proj.weight": (
            "F8_E4M3",
            [INTERMEDIATE, HIDDEN],
            noise(INTERMEDIATE * HIDDEN, f"e{layer}"),
        )
        for layer in range(LAYERS)
    }
    return [content, experts]


def donor_files() -> dict[str, bytes]:
    files, names = parts(donor_tensors())
    return {**files, "model.safetensors.index.json": index(names), "config.json": as_json(CONFIG)}


# Qwen3.8-Flash-Next in NVFP4 as NVIDIA publishes it.
TABLE = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
TABLE_ROWS, TABLE_COLUMNS, TABLE_PARTS = 50, 160, 4


def next_tensors() -> list[Content]:
    content: Content = {"lm_head.weight": bf16("head", VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        base = f"model.language_model.layers.{layer}"
        for name, shape in {**shared_expert(layer), **attention(layer)}.items():
            content[name] = bf16(name, *shape)
        content[f"{base}.mlp.gate.weight"] = bf16(f"gate{layer}", EXPERTS, HIDDEN)
        experts = f"{base}.mlp.experts.0.gate_proj"
        content[f"{experts}.weight"] = ("U8", [INTERMEDIATE, HIDDEN // 2], noise(INTERMEDIATE * 128, experts))
        content[f"{experts}.weight_scale"] = ("F8_E4M3", [INTERMEDIATE, 16], noise(INTERMEDIATE * 16, "ws"))
        content[f"{experts}.weight_scale_2"] = ("F32", [], noise(4, "ws2"))
    table: Content = {
        f"{TABLE}.shard_{part}.weight": (
            "F8_E4M3",
            [TABLE_ROWS, TABLE_COLUMNS],
            noise(TABLE_ROWS * TABLE_COLUMNS, f"t{part}"),
        )
        for part in (2, 0, 1, 3)
    }
    table[f"{TABLE}.weight_scale"] = ("BF16", [1], b"\x80\x3f")
    return [content, table]


def next_quantization(skipped: str) -> dict[str, object]:
    """The mixed quantisation, with the patterns that exclude what is BF16."""
    patterns = ["lm_head", "model.visual*"]
    for layer in range(LAYERS):
        base = f"model.language_model.layers.{layer}"
        kind = "self_attn" if layer % 4 == 3 else "linear_attn"
        patterns += [f"{base}.{kind}*", f"{base}.mlp.shared_expert*"]
    return {
        "quant_algo": "MIXED_PRECISION",
        skipped: patterns,
        "quantized_layers": {
            f"model.language_model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}
            for layer in range(LAYERS)
        },
    }


def tokenizer() -> dict[str, object]:
    """A byte-level tokenizer: 256 byte tokens from id 300 on, two special ones at the end."""
    from onhost.staging.vocabulary import byte_letters

    vocabulary = {f"word{number}": number for number in range(300)}
    vocabulary |= {letter: 300 + at for at, letter in enumerate(byte_letters())}
    added = [{"id": 600 + at, "content": name, "special": True} for at, name in enumerate(("<s>", "</s>"))]
    return {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": added}


def next_files() -> dict[str, bytes]:
    content, table = next_tensors()
    names = dict.fromkeys(content, "model-00001-of-00001.safetensors")
    names |= dict.fromkeys(table, "model-fp8-mtp-ple.safetensors")
    quantization = {"quant_method": "modelopt", **next_quantization("ignore")}
    return {
        "model-00001-of-00001.safetensors": safetensors(content, {"format": "pt"}),
        "model-fp8-mtp-ple.safetensors": safetensors(table),
        "model.safetensors.index.json": index(names, 5),
        "config.json": as_json({**CONFIG, "quantization_config": quantization}),
        "hf_quant_config.json": as_json({"quantization": next_quantization("exclude_modules")}),
        "tokenizer.json": json.dumps(tokenizer()).encode(),
    }
