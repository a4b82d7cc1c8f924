"""Options that documents found harmful on this hardware, each with the reason and who says so.

A rule is a function from what a recipe asks to what it found, or None. A recipe that breaks one knowingly
says so under `accept`, with its own reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkstack import plugin_rules
from sparkstack.description import Launch
from sparkstack.errors import Problem
from sparkstack.findings import Finding, Severity
from sparkstack.flags import canonical

SEED_BLOG = "blog post on Qwen3.5-122B NVFP4 on one GB10 (seed document 2)"
REFERENCE = "README of albond/DGX_Spark_Qwen3.5-122B-A10B-AR-INT4, troubleshooting"
UPSTREAM_TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
"""vLLM's own presets, from 0.20.0 on."""
REFERENCE_TURBOQUANT = ("turboquant35", "turboquant25", "turboquant_asym", "q8k_tq35v", "q8k_tq25v")
"""Those of the reference's build of vLLM 0.19.1, which no release has."""

Match = tuple[str, str]
"""The key in the file that it is about, and what was found."""


@dataclass(frozen=True)
class Rule:
    """`finds` looks; the rest is what a reader gets to know."""

    name: str
    severity: Severity
    finds: Callable[[Launch], Match | None]
    wanted: str
    remedy: str
    reason: str
    source: str
    blocks: bool = False


def _mtp_nvfp4(launch: Launch) -> Match | None:
    if launch.is_vllm and launch.uses_mtp and launch.is_nvfp4 and launch.min_nodes == 1:
        return "options.speculative_config", "MTP under vLLM with NVFP4 weights on one Spark"
    return None


def _prefix_caching(launch: Launch) -> Match | None:
    if launch.is_vllm and launch.is_hybrid and launch.options.get("enable_prefix_caching") is True:
        return "options.enable_prefix_caching", f"prefix caching with {launch.model}, which has GDN layers"
    return None


def _turboquant_mtp(launch: Launch) -> Match | None:
    hybrid = launch.is_vllm and launch.is_hybrid
    if hybrid and launch.uses_mtp and launch.kv_cache_dtype in UPSTREAM_TURBOQUANT:
        return "options.kv_cache_dtype", f"{launch.kv_cache_dtype} together with MTP on a hybrid model"
    return None


def _turboquant_version(launch: Launch) -> Match | None:
    old = launch.version and launch.version[:2] < (0, 21)
    if launch.is_vllm and launch.is_hybrid and launch.kv_cache_dtype in UPSTREAM_TURBOQUANT and old:
        version = ".".join(map(str, launch.version))
        return "options.kv_cache_dtype", f"{launch.kv_cache_dtype} on a hybrid model with vLLM {version}"
    return None


def _turboquant_reference(launch: Launch) -> Match | None:
    if launch.is_vllm and launch.kv_cache_dtype in REFERENCE_TURBOQUANT:
        return "options.kv_cache_dtype", f"kv_cache_dtype {launch.kv_cache_dtype}"
    if launch.is_vllm and launch.options.get("enable_turboquant"):
        return "options.enable_turboquant", "enable_turboquant"
    return None


def _pr_44700(launch: Launch) -> Match | None:
    if launch.is_vllm and 44700 in launch.changes:
        return "changes.44700", "vLLM pull request 44700, which cannot reach sm_121"
    return None


def _pr_38325(launch: Launch) -> Match | None:
    if launch.is_vllm and 38325 in launch.changes and launch.version and launch.version < (0, 20):
        version = ".".join(map(str, launch.version))
        return "changes.38325", f"pull request 38325 (swapAB) expected in vLLM {version}"
    return None


def _hybrid_checkpoint(launch: Launch) -> Match | None:
    if launch.is_vllm and "graft_fp8" in launch.transforms and not launch.plugin.get("hybrid"):
        return "transforms.graft_fp8", "an INT4+FP8 checkpoint without the plugin's hybrid"
    return None


def _ple_offload(launch: Launch) -> Match | None:
    alone = launch.min_nodes == 1 and launch.options.get("distributed_executor_backend") != "mp"
    if launch.is_vllm and launch.env.get("VLLM_PLE_CPU_OFFLOAD") == "1" and alone:
        return "env", "VLLM_PLE_CPU_OFFLOAD=1 on one Spark"
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        "mtp-nvfp4",
        "warning",
        _mtp_nvfp4,
        "no speculation there",
        "remove speculative_config, use an INT4 checkpoint, or accept the rule with a measurement",
        "15.2 tok/s with MTP against 17 without: bandwidth is the limit already, so drafting is added work; "
        "under Atlas the same model gains",
        SEED_BLOG,
    ),
    Rule(
        "prefix-caching-gdn",
        "warning",
        _prefix_caching,
        "enable_prefix_caching: false",
        "switch it off",
        "it was seen to crash the engine with GDN layers",
        f"{REFERENCE}; the public Qwen3.8-Flash-Next profiles switch it off",
    ),
    Rule(
        "turboquant-mtp",
        "error",
        _turboquant_mtp,
        "one of the two",
        "remove speculative_config or the KV preset",
        "the output degenerates without any error",
        "vllm#53180 (open, seen in 0.27.1)",
    ),
    Rule(
        "turboquant-hybrid-version",
        "error",
        _turboquant_version,
        "vLLM 0.21.0 or newer",
        "take a newer base",
        "0.20 refuses hybrid models with NotImplementedError",
        "vllm#39931",
    ),
    Rule(
        "turboquant-reference",
        "warning",
        _turboquant_reference,
        f"one of: {', '.join(UPSTREAM_TURBOQUANT)}",
        "take a preset of vLLM's own, without MTP",
        "no release of vLLM has this; it needs the reference's build of 0.19.1, which we do not make",
        "vllm#38479; the reference's patches/04-turboquant",
        blocks=True,
    ),
    Rule(
        "pr-44700",
        "warning",
        _pr_44700,
        "no such change",
        "leave it out",
        "it routes decoding to a recurrent kernel that GB10 does not have: 16.9 tok/s with it, 17 without "
        "(+24% on B200)",
        f"vllm#44700; {SEED_BLOG}",
    ),
    Rule(
        "pr-38325",
        "error",
        _pr_38325,
        "vLLM 0.20.0 or newer",
        "take a newer base",
        "0.19 has none of its kernels, 0.20.0 has them all",
        "symbols of the published wheels; vllm#38325",
    ),
    Rule(
        "hybrid-checkpoint",
        "error",
        _hybrid_checkpoint,
        "image.plugin.hybrid: true",
        "switch it on in image.plugin",
        "no vLLM up to 0.33 reads the FP8 scales of such a checkpoint: it answers garbage, without an error",
        "vllm#46311 (open)",
    ),
    Rule(
        "plugin-transform",
        "error",
        plugin_rules.without_its_transform,
        "both",
        "add the transform to checkpoint.transforms, or switch the feature off",
        "the feature reads what the transform writes, and stops the server where it is not there",
        "docs/image.md",
    ),
    Rule(
        "plugin-version",
        "error",
        plugin_rules.with_another_version,
        "a version that the feature is for",
        "switch it off, or take another base",
        "the plugin stops the server",
        "docs/image.md",
    ),
    Rule(
        "draft-head-alone",
        "error",
        plugin_rules.draft_head_without_drafting,
        "speculative_config with method mtp or eagle",
        "add it to serve.options, or switch the feature off",
        "without a drafter nothing reads the draft head",
        "docs/image.md",
    ),
    Rule(
        "drafting-options",
        "error",
        plugin_rules.drafting_option,
        "a vLLM that has it",
        "remove it, or take a newer base",
        "vLLM refuses to start",
        "vllm/config/speculative.py of the published wheels",
    ),
    Rule(
        "ple-cpu-offload",
        "warning",
        _ple_offload,
        "it unset, or distributed_executor_backend mp",
        "remove the variable",
        "it hangs with one GPU, and on unified memory it frees nothing",
        "public Qwen3.8-Flash-Next recipes for one Spark",
    ),
)


def apply(launch: Launch) -> list[Finding]:
    """What the rules find, without those that the recipe accepts; an unknown name under `accept` is told."""
    result = []
    names = [rule.name for rule in RULES]
    for name, reason in launch.accept.items():
        if not reason.strip():
            where, remedy = launch.where(f"accept.{name}"), "say why it does no harm here"
            problem = Problem(where, f"accept.{name} without a reason", "a reason", remedy)
            result.append(Finding(problem, "error", "accept"))
        if name not in names:
            where = launch.where(f"accept.{name}")
            found = f"accept.{name}"
            result.append(
                Finding(Problem(where, found, f"one of: {', '.join(names)}", "remove it"), "error", "accept")
            )
    for rule in RULES:
        match = None if rule.name in launch.accept else rule.finds(launch)
        if match:
            key, found = match
            problem = Problem(launch.where(key), found, rule.wanted, rule.remedy)
            result.append(Finding(problem, rule.severity, rule.name, rule.blocks, rule.reason, rule.source))
    return result


def spelled_twice(options: dict[str, object]) -> list[tuple[str, str]]:
    """Options of a native recipe that are one flag in two spellings: (first, again)."""
    seen: dict[str, str] = {}
    result = []
    for name in options:
        one = canonical(name).removeprefix("no_")
        if one in seen:
            result.append((seen[one], name))
        seen.setdefault(one, name)
    return result
