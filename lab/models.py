"""Tiny Hugging Face repositories, made from nothing, byte-identical on every machine.

The lab's hub serves what this module makes. A recipe can pin the revision, because it is a hash of the files.

The tiny Qwen3.5-MoE (lab/tiny_qwen.py) keeps its MTP tensors in `model_extra_tensors.safetensors`
**without naming them in the index**: that is what the transform `register_mtp` is there to mend.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab import tiny_qwen
from lab.tiny_qwen import SPECIAL_TOKENS, TOKEN_ID, Tensor

TINY_QWEN = "sparkstack-lab/tiny-qwen3.5-moe"

INDEX = "model.safetensors.index.json"
EXTRA = "model_extra_tensors.safetensors"

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}{{- part.text or '' }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

README = """# tiny-qwen3.5-moe

Random weights in the shape of Qwen3.5-MoE, made by sparkstack's lab to try out the whole chain from hub to
endpoint without a GPU. It writes random letters. `mtp.*` lies in `model_extra_tensors.safetensors`, which the
index does not name.
"""


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """One safetensors file: length of the header (u64 little-endian), header (JSON, padded to 8), data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        end = at + len(tensor.data)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.data for tensor in tensors.values())


def byte_alphabet() -> list[str]:
    """The printable character that a byte-level tokenizer uses for each byte 0..255.

    Printable Latin-1 bytes stand for themselves; the others are counted up from U+0100, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, spare = [], 0x100
    for byte in range(256):
        alphabet.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return alphabet


def _added(token: str) -> dict[str, Any]:
    special = token not in ("<think>", "</think>")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": token, **flags, "special": special}


def tokenizer() -> dict[str, Any]:
    """`tokenizer.json`: one token a byte, and the special tokens."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": TOKEN_ID[token], **_added(token)} for token in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {char: byte for byte, char in enumerate(byte_alphabet())},
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "added_tokens_decoder": {str(TOKEN_ID[token]): _added(token) for token in SPECIAL_TOKENS},
        "chat_template": CHAT_TEMPLATE,
    }


def _image_processor(kind: str) -> dict[str, Any]:
    return {
        **({"image_processor_type": kind} if "Image" in kind else {"video_processor_type": kind}),
        "processor_class": "Qwen3VLProcessor",
        "patch_size": tiny_qwen.PATCH,
        "temporal_patch_size": tiny_qwen.PATCH_TIME,
        "merge_size": tiny_qwen.MERGE,
        "size": {"shortest_edge": 1024, "longest_edge": 65536},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def tiny_qwen_files() -> dict[str, bytes]:
    """All files of `sparkstack-lab/tiny-qwen3.5-moe`, by name."""
    tensors, extra = tiny_qwen.language_tensors(), tiny_qwen.mtp_tensors()
    half = f"model.language_model.layers.{tiny_qwen.LAYERS // 2}."
    cut = next(i for i, name in enumerate(tensors) if name.startswith(half))
    names = list(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[:cut],
        "model-00002-of-00002.safetensors": names[cut:],
    }
    index = {
        "metadata": {"total_size": sum(len(tensor.data) for tensor in tensors.values())},
        "weight_map": {name: shard for shard, listed in shards.items() for name in listed},
    }
    return {
        "README.md": README.encode(),
        "config.json": _json(tiny_qwen.config()),
        "generation_config.json": _json(
            {
                "do_sample": True,
                "eos_token_id": [TOKEN_ID["<|im_end|>"], TOKEN_ID["<|endoftext|>"]],
                "pad_token_id": TOKEN_ID["<|endoftext|>"],
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.8,
            }
        ),
        "preprocessor_config.json": _json(_image_processor("Qwen2VLImageProcessorFast")),
        "video_preprocessor_config.json": _json(_image_processor("Qwen3VLVideoProcessor")),
        "tokenizer.json": _json(tokenizer()),
        "tokenizer_config.json": _json(tokenizer_config()),
        INDEX: _json(index),
        **{shard: safetensors({name: tensors[name] for name in listed}) for shard, listed in shards.items()},
        EXTRA: safetensors(extra),
    }


#: What the lab's hub offers.
MODELS: dict[str, Callable[[], dict[str, bytes]]] = {TINY_QWEN: tiny_qwen_files}


def revision(files: Mapping[str, bytes]) -> str:
    """The 40 hex digits that stand for these files: SHA-1 over `sha256  path` lines, sorted by path."""
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(files):
        digest.update(f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n".encode())
    return digest.hexdigest()


def build(directory: Path) -> dict[str, str]:
    """Write every model to `<directory>/<org>/<name>/`; returns repository → revision (40 hex digits).

    A folder that already holds exactly these files is left alone; any other is replaced as a whole.
    """
    revisions = {}
    for repo, make in MODELS.items():
        files, target = make(), directory / repo
        revisions[repo] = revision(files)
        if _holds(target, files):
            continue
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path, content in files.items():
            (partial / path).write_bytes(content)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    return revisions


def _holds(directory: Path, files: Mapping[str, bytes]) -> bool:
    if not directory.is_dir() or {path.name for path in directory.iterdir()} != set(files):
        return False
    return all((directory / path).read_bytes() == content for path, content in files.items())
