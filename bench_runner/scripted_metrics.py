"""What a scripted server says at /metrics, under the names that vLLM 0.28 uses."""

from collections.abc import Mapping

from bench_runner.server_script import Script

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def exposition(values: Mapping[str, float], script: Script, *, served_model: str, block_tokens: int) -> str:
    """Prometheus text of the values and of the cache's size, with the names that the script hides or changes."""
    old_to_new = {old: new for new, old in script.metrics_renamed.items()}
    labels = f'engine="0",model_name="{served_model}"'
    lines = []
    for name, value in values.items():
        if name not in script.metrics_missing:
            shown = old_to_new.get(name, name)
            lines += [
                f"# TYPE {shown} {'gauge' if name in GAUGES else 'counter'}",
                f"{shown}{{{labels}}} {float(value)}",
            ]
    if "vllm:cache_config_info" not in script.metrics_missing:
        sizes = f'block_size="{block_tokens}",num_gpu_blocks="{script.num_gpu_blocks}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{{sizes},engine="0"}} 1.0']
    return "\n".join(lines) + "\n"
