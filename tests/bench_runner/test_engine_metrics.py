import pytest

from bench_runner.engine_metrics import EngineSample, cache_config, observe, parse_metrics

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="tiny"} 0.25
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",num_gpu_blocks="4096"} 1.0
"""


def sample(at_s: float, **values: float | None) -> EngineSample:
    numbers: dict[str, float | None] = dict.fromkeys(
        ("running", "waiting", "kv_usage", "preemptions", "prefix_queries", "prefix_hits", "generated")
    )
    return EngineSample(at_s=at_s, **(numbers | values))


def test_engines_are_added_up_and_older_names_are_known() -> None:
    found = parse_metrics(TEXT, at_s=1.0)
    assert (found.running, found.waiting, found.kv_usage, found.preemptions) == (5, 0, 0.25, 7)
    assert found.idle is False


def test_a_metric_that_is_missing_is_none_and_not_zero() -> None:
    found = parse_metrics(TEXT, at_s=1.0)
    assert found.prefix_hits is None
    assert parse_metrics("", at_s=1.0).idle is None


def test_the_cache_configuration_is_read_from_its_labels() -> None:
    assert cache_config(TEXT) == {"block_size": "128", "num_gpu_blocks": "4096"}
    assert cache_config("") == {}


def test_gauges_count_inside_the_timed_region_and_counters_from_its_start_to_its_end() -> None:
    samples = [
        sample(0.0, kv_usage=0.9, waiting=9, preemptions=0, prefix_queries=0, prefix_hits=0),
        sample(3.9, kv_usage=0.8, waiting=8, preemptions=10, prefix_queries=100, prefix_hits=50),
        sample(5.0, kv_usage=0.2, waiting=2, preemptions=11, prefix_queries=150, prefix_hits=60),
        sample(18.0, kv_usage=0.4, waiting=4, preemptions=14, prefix_queries=300, prefix_hits=100),
    ]
    found = observe(samples, start_s=4.0, end_s=19.0)
    assert (found.kv_usage_peak, found.waiting_mean, found.waiting_peak) == (0.4, 3, 4)
    assert found.preemptions == 14 - 10
    assert found.cached_token_ratio == pytest.approx((100 - 50) / (300 - 100))
    assert found.missing == ("running", "generated")


def test_one_sample_says_nothing_about_what_a_counter_gained() -> None:
    found = observe([sample(5.0, preemptions=3, kv_usage=0.1)], start_s=4.0, end_s=19.0)
    assert found.preemptions is None
    assert found.kv_usage_peak == 0.1
