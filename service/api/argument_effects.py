"""What the arguments of vLLM 0.28 do to a ranking: which leave the question as it was, and under which values.

Whatever stands in none of these tables is taken to change what was measured, or the memory.
"""

from service.engine_options import (
    APPENDED,
    AUTOMATIC_SIZES,
    FLAGS,
    FLOATS,
    INTEGERS,
    LISTS,
    OPTIONAL_TEXTS,
    SIZES,
    SWITCHES,
    TEXTS,
)

Values = tuple[str | float | bool, ...]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN = frozenset(
    name.replace("-", "_")
    for names in (
        SWITCHES, FLAGS, INTEGERS, SIZES, AUTOMATIC_SIZES, FLOATS, TEXTS, OPTIONAL_TEXTS, LISTS, APPENDED,
    )
    for name in names
)  # fmt: skip
# Under every value.
NEUTRAL = _names(
    """
host port uds root_path ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh api_key
hf_token allow_credentials allowed_origins allowed_methods allowed_headers allowed_local_media_path
allowed_media_domains h11_max_incomplete_event_size h11_max_header_count enable_request_id_headers shutdown_timeout
disable_fastapi_docs enable_offline_docs enable_tokenizer_info_endpoint enable_server_load_tracking

served_model_name model tokenizer tokenizer_mode revision code_revision tokenizer_revision trust_remote_code seed
config_format download_dir ignore_patterns use_tqdm_on_load pt_load_map_location model_loader_extra_config
max_parallel_loading_workers safetensors_load_strategy safetensors_prefetch_num_threads
safetensors_prefetch_block_size

chat_template chat_template_content_format default_chat_template_kwargs trust_request_chat_template response_role
interleave_mm_strings enable_auto_tool_choice exclude_tools_when_tool_choice_none tool_call_parser tool_parser_plugin
tool_server reasoning_parser reasoning_parser_plugin structured_outputs_config cohere_format cohere_is_reasoning_model
return_tokens_as_token_ids enable_prompt_tokens_details enable_force_include_usage max_logprobs fingerprint_mode
fingerprint_value

log_config_file max_log_len uvicorn_log_level disable_uvicorn_access_log disable_access_log_for_endpoints
log_error_stack enable_log_outputs enable_log_deltas enable_log_requests enable_logging_iteration_details
disable_log_stats aggregate_engine_logging enable_per_request_metrics show_hidden_metrics_for_version
otlp_traces_endpoint fail_on_environ_validation
"""
)
# The engine's defaults that are switched off, so that --no-NAME changes nothing.
_OFF = _names(
    """
tokens_only allow_deprecated_quantization enable_return_routed_experts return_sampling_mask use_fp64_gumbel
disable_sliding_window skip_tokenizer_init enable_prompt_embeds enable_sleep_mode enable_cumem_allocator
enable_mamba_cache_stochastic_rounding numa_bind data_parallel_hybrid_lb data_parallel_external_lb
enable_expert_parallel enable_ep_weight_filter enable_dbo enable_elastic_ep enable_eplb ray_workers_use_nsight
disable_custom_all_reduce enable_fault_tolerance kv_sharing_fast_prefill use_replayssm language_model_only
enable_mm_embeds mm_encoder_only skip_mm_profiling enable_lora enable_tower_connector_lora fully_sharded_loras
specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras kv_cache_metrics cudagraph_metrics
enable_layerwise_nvtx_tracing enable_mfu_metrics jit_monitor_verbose disable_chunked_mm_input
enable_bf16x3_router_gemm
"""
)
# The values under which it stays the same question; the engine's own comes first.
SAME_QUESTION: dict[str, Values] = {
    **dict.fromkeys(sorted(_OFF), (False,)),
    "kv_cache_dtype": ("auto", "bfloat16"),
    "dtype": ("auto", "bfloat16", "float16", "half"),
    "cpu_offload_gb": (0.0,),
    "enable_chunked_prefill": (True,),
    "performance_mode": ("balanced",),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "model_impl": ("auto",),
    "generation_config": ("auto", "vllm"),
    "load_format": (
        "auto", "hf", "safetensors", "pt", "mistral", "npcache", "dummy", "fastsafetensors", "sharded_state",
        "runai_streamer", "runai_streamer_sharded", "tensorizer",
    ),
    "scheduling_policy": ("fcfs",),
    "worker_cls": ("auto",),
    "mamba_cache_mode": ("none",),
    "mamba_cache_dtype": ("auto",),
    "mamba_ssm_cache_dtype": ("auto",),
    "moe_backend": ("auto",),
    "linear_backend": ("auto",),
    "prefix_caching_hash_algo": ("sha256",),
    "disable_cascade_attn": (True,),
    "scheduler_reserve_full_isl": (True,),
    "node_rank": (0,),
    "ubatch_size": (0,),
    "stream_interval": (1,),
    "long_prefill_token_threshold": (0,),
    "prefill_schedule_interval": (1,),
    "watermark": (0.0,),
}  # fmt: skip
# The value that was learnt with, and what is said about any other.
WORTH_A_WARNING: dict[str, tuple[object, str]] = {
    "enforce_eager": (False, "--enforce-eager is set: the ranking was learnt with CUDA graphs."),
    "optimization_level": (None, "an optimisation level is set: the ranking was learnt with the engine's own."),
    "async_scheduling": (True, "async scheduling is off: the ranking was learnt with it on."),
    "max_num_scheduled_tokens": (
        None,
        "max_num_scheduled_tokens is set: it caps what max_num_batched_tokens allows.",
    ),
}
# By the names that the operator's catalogue gives them.
PARALLEL = {
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
    "decode_context_parallel_size": "decode_context_parallel",
    "prefill_context_parallel_size": "prefill_context_parallel",
    "nnodes": "nnodes",
}
# Set by a candidate, or part of the question itself.
_ASKED = _names("max_num_seqs max_num_batched_tokens gpu_memory_utilization enable_prefix_caching max_model_len config")
# Every other argument that the parser knows.
FOREIGN = KNOWN - NEUTRAL - WORTH_A_WARNING.keys() - PARALLEL.keys() - _ASKED
