"""Options of `vllm serve` by which a mistyped one is told. Not all of them, and not of every version: a name
that is not here may well be right, so only one that is nearly one of these is worth a word."""

from __future__ import annotations

from difflib import get_close_matches

_NAMES = """
    aggregate_engine_logging allowed_headers allowed_local_media_path allowed_media_domains
    allowed_methods allowed_origins api_server_count async_scheduling attention_backend attention_config
    block_size calculate_kv_scales chat_template chat_template_content_format code_revision
    compilation_config config config_format cpu_offload_gb cudagraph_capture_sizes data_parallel_address
    data_parallel_backend data_parallel_rank data_parallel_rpc_port data_parallel_size
    data_parallel_size_local decode_context_parallel_size default_chat_template_kwargs device_ids
    disable_access_log_for_endpoints disable_cascade_attn disable_custom_all_reduce disable_log_requests
    disable_log_stats disable_sliding_window distributed_executor_backend download_dir dtype
    enable_auto_tool_choice enable_chunked_prefill enable_eplb enable_expert_parallel
    enable_force_include_usage enable_log_requests enable_lora enable_prefix_caching
    enable_prompt_tokens_details enable_server_load_tracking enable_sleep_mode enforce_eager eplb_config
    fully_sharded_loras generation_config gpu_memory_utilization guided_decoding_backend hf_config_path
    hf_overrides hf_token ignore_patterns kernel_config kv_cache_dtype kv_cache_memory_bytes
    kv_offloading_backend kv_offloading_size kv_transfer_config language_model_only limit_mm_per_prompt
    load_format logits_processors logprobs_mode long_prefill_token_threshold lora_modules
    mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype max_cpu_loras max_cudagraph_capture_size
    max_log_len max_logprobs max_long_partial_prefills max_lora_rank max_loras max_model_len
    max_num_batched_tokens max_num_partial_prefills max_num_seqs max_parallel_loading_workers
    max_seq_len_to_capture media_io_kwargs middleware mm_encoder_tp_mode mm_processor_cache_gb
    mm_processor_kwargs model_impl model_loader_extra_config moe_backend multi_step
    num_gpu_blocks_override optimization_level otlp_traces_endpoint override_generation_config
    pipeline_parallel_size pooler_config prefill_context_parallel_size prefix_caching_hash_algo
    quantization reasoning_config reasoning_parser response_role revision root_path rope_scaling
    rope_theta runner safetensors_load_strategy scheduler_cls scheduling_policy seed served_model_name
    skip_mm_profiling skip_tokenizer_init speculative_config stream_interval structured_outputs_config
    swap_space tensor_parallel_size tokenizer tokenizer_mode tokenizer_revision tool_call_parser
    tool_parser_plugin trust_remote_code trust_request_chat_template use_tqdm_on_load uvicorn_log_level
    worker_cls worker_extension_cls
"""
KNOWN = frozenset(_NAMES.split())
_OBJECTS = """
    additional_config attention_config aux_output_config compilation_config custom_histogram_buckets
    default_chat_template_kwargs default_mm_loras diffusion_config ec_manager_config ec_transfer_config
    engram_config eplb_config fault_tolerance_config hf_overrides ir_op_priority kernel_config
    kv_events_config kv_transfer_config limit_mm_per_prompt logging_config media_io_kwargs
    mm_processor_kwargs model_class_overrides model_loader_extra_config override_generation_config
    pooler_config profiler_config quantization_config reasoning_config rope_scaling speculative_config
    structured_outputs_config watermark_config weight_transfer_config
"""
JSON_OBJECTS = frozenset(_OBJECTS.split())
"""Options whose value is a JSON object, as keys of the recipe or as text."""
_SWITCHES = "aggregate_engine_logging data_parallel_multi_port_external_lb disable_log_stats grpc headless"
SWITCHES = frozenset(_SWITCHES.split())
"""Flags that only switch on (store_true). Every other flag of true and false has a `--no-…` beside it."""
# How lists are written: vllm/entrypoints/openai/cli_args.py (in newer ones entrypoints/launchers/cli_args.py)
# and vllm/engine/arg_utils.py; tests/vllm/test_options.py asks vLLM's own parser.
REPEATED = frozenset({"middleware"})
"""Lists whose flag is given again for each item (action append); of all others the last one counts."""
JSON_LISTS = frozenset({"allowed_headers", "allowed_methods", "allowed_origins"})
"""Lists that are one word of JSON (json.loads)."""
COMMA_LISTS = frozenset({"device_ids", "disable_access_log_for_endpoints", "tool_server"})
"""Lists that are one word with commas. Whatever other list vLLM has is words behind one flag (nargs "+":
allowed_media_domains, cudagraph_capture_sizes, ignore_patterns, logits_processors, lora_modules, …)."""
NEAR = 0.9
"""From here on a name is taken for a mistyped one: a letter or two of a usual name."""


def meant(name: str) -> str | None:
    """The known option that `name` is nearly, None for one that is known or like none."""
    plain = name.removeprefix("no_")
    if name in KNOWN or plain in KNOWN:
        return None
    near = get_close_matches(plain, KNOWN, 1, NEAR)
    return near[0] if near else None
