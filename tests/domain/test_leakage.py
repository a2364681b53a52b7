import tracemalloc
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.request_schemas import PART_BY_LOCATION, SloPart
from service.domain.cell import CellResult
from service.domain.errors import LeakageError
from service.domain.features import FEATURE_NAMES, encode
from service.domain.leakage import (
    FORBIDDEN_FIELDS,
    check_feature_names,
    check_state_invariance,
    find_measured_fields,
    measured_field,
)
from service.domain.scenario import ModelArch, Scenario, Workload

# The 16 measured quantities, and spellings of each. Names with `vllm:` or ending in _total or _seconds are those of
# vLLM's /metrics (0.28, and gpu_cache_usage_perc from before); mean_…, median_…, std_… and p99_… are the keys of
# `vllm bench serve`, num_…_reqs the attributes of its scheduler's statistics.
SPELLINGS: dict[str, str] = {
    "kv_cache_usage": """
        kv_cache_usage kvCacheUsage KV-Cache-Usage KV_CACHE_USAGE kv.cache.usage kv_cache_usage_perc kv_cache_usage_pct
        kv_cache_usage_percent kv_usage_peak vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc gpu_cache_usage_perc
        cpu_cache_usage_perc measured_kv_cache_usage observedKvCacheUsage kv_utilization kv_utilisation
        kv_cache_utilization peak_kv_cache_usage max_kv_cache_usage""",
    "running_queue_length": """
        running_queue_length runningQueueLength num_requests_running vllm:num_requests_running vllm_num_requests_running
        requests_running running_requests num_running running running_at_end num_running_reqs""",
    "waiting_queue_length": """
        waiting_queue_length waitingQueueLength num_requests_waiting vllm:num_requests_waiting requests_waiting
        waiting_requests num_waiting waiting waiting_at_end queue_length queue_depth queueSize
        request_queue_time_seconds vllm:request_queue_time_seconds queue_time_ms num_waiting_reqs""",
    "prefix_cache_hit_rate": """
        prefix_cache_hit_rate prefixCacheHitRate prefix-cache-hit-ratio prefix_cache_hits_total cache_hit_rate hit_rate
        prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total
        vllm:gpu_prefix_cache_hit_rate cached_token_ratio cached_tokens prefix_hit_rate""",
    "ttft_p50": """
        ttft_p50 ttft_p50_ms ttftP50Ms TTFT-P50 p50_ttft_ms median_ttft_ms ttft_median time_to_first_token_p50
        p50_time_to_first_token_seconds measured_ttft_p50 ttft_p50_s vllm:ttft_p50""",
    "ttft_p95": """
        ttft_p95 ttft_p95_ms ttftP95Ms TTFT-P95-MS p95_ttft_ms ttft ttft_ms time_to_first_token_seconds
        vllm:time_to_first_token_seconds vllm:time_to_first_token_seconds_bucket vllm:time_to_first_token_seconds_sum
        vllm:time_to_first_token_seconds_count mean_ttft_ms p99_ttft_ms std_ttft_ms p99.9_ttft_ms max_ttft
        ttft_p95_p95_ms observed_ttft_p95_ms actual_ttft first_token_latency_ms""",
    "tpot_p50": """
        tpot_p50 tpot_p50_ms tpotP50Ms p50_tpot_ms median_tpot_ms median_itl_ms p50_itl_ms inter_token_latency_p50
        time_per_output_token_p50""",
    "tpot_p95": """
        tpot_p95 tpot_p95_ms tpotP95Ms p95_tpot_ms tpot itl itl_p95 p99_itl_ms mean_tpot_ms mean_itl_ms std_tpot_ms
        std_itl_ms inter_token_latency_seconds vllm:inter_token_latency_seconds time_per_output_token_seconds
        request_time_per_output_token_seconds vllm:request_time_per_output_token_seconds
        vllm:inter_token_latency_seconds_sum""",
    "e2e_latency_p95": """
        e2e_latency_p95 e2eLatencyP95 endToEndLatencyP95Ms end_to_end_latency_p95 e2el_p95_ms p95_e2el_ms e2el
        e2e_request_latency_seconds vllm:e2e_request_latency_seconds latency latency_ms latency_p95 p95_latency_ms
        request_latency mean_e2el_ms std_e2el_ms vllm:e2e_request_latency_seconds_bucket e2e_p95_ms""",
    "output_throughput": """
        output_throughput outputThroughput output_throughput_tps OUTPUT-THROUGHPUT throughput throughput_tps
        token_throughput tokens_per_second output_tokens_per_second generation_tokens_total vllm:generation_tokens_total
        generation_throughput goodput goodput_tps total_token_throughput output_tps
        vllm:avg_generation_throughput_toks_per_s""",
    "request_throughput": """
        request_throughput requestThroughput requests_throughput rps qps achieved_rps
        request_goodput""",
    "slo_met": "slo_met sloMet SLO-met slo_attainment slo_attained slo_violated slo_violation_rate slo_violations",
    "preemptions": """
        preemptions num_preemptions numPreemptions preemption_count preemption_rate preempted num_preemptions_total
        vllm:num_preemptions_total""",
    "error_rate": """
        error_rate errorRate error-rate errors error_count num_errors failure_rate failures failed_requests""",
    "completed_requests": """
        completed_requests completedRequests requests_completed completed num_completed num_completed_requests
        request_success_total vllm:request_success_total success_count successful_requests finished_requests""",
    "server_started": """
        server_started serverStarted started server-started startup_ok startup_failed startup_success start_failed""",
}
PAIRS = [(spelling, name) for name, spellings in SPELLINGS.items() for spelling in spellings.split()]

# Every name that a request may carry, now or as announced.
OWN_FIELDS = [
    "model",
    "workload",
    "gpu",
    "engine_version",
    "slo",
    "fixed",
    "explain",
    "extra_args",
    "gpu_memory_gib",
    "max_model_len",
    "render",
    "name",
    "config",
    "weight_gb",
    "num_layers",
    "hidden_size",
    "kv_bytes_per_token",
    "prompt_tokens",
    "max_new_tokens",
    "shared_prefix_ratio",
    "concurrency",
    "same_architecture_as",
    "adapter",
    "rank",
    "max_loras",
    "target_modules",
    "gpu_shared",
    "confidence",
    "output_tokens",
    "max_output_tokens",
    "shared_prefix_tokens",
    "preset",
    "replicas",
    "requests_per_second",
    "requests_per_second",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "items",
    "requests",
    "at_tokens",
    "request",
    "catalog_entry",
    "object",
    "operation",
    "namespace",
    "uid",
    "kind",
    "api_version",
]
# Engine arguments that `fixed` or a hook may carry one day.
ENGINE_ARGUMENTS = [
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "block_size",
    "enable_chunked_prefill",
    "enforce_eager",
    "num_gpu_blocks_override",
    "cpu_offload_gb",
    "max_num_partial_prefills",
    "stream_interval",
    "async_scheduling",
    "performance_mode",
    "served_model_name",
    "load_format",
    "seed",
    "trust_remote_code",
]


def test_there_are_16_measured_quantities() -> None:
    assert [field.name for field in FORBIDDEN_FIELDS] == list(SPELLINGS)
    assert len(SPELLINGS) == 16


@pytest.mark.parametrize(("spelling", "name"), PAIRS)
def test_a_measured_quantity_is_recognised_in_every_spelling(spelling: str, name: str) -> None:
    assert measured_field(spelling) == name


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize(
    "spell",
    [
        str.upper,
        str.title,
        lambda name: name.replace("_", "-"),
        lambda name: name.replace("_", ""),
        lambda name: name.replace("_", " "),
        lambda name: f"__{name}__",
        lambda name: f"vllm:{name}",
        lambda name: f"measured_{name}",
        lambda name: f"observed.{name}",
        lambda name: f"actual-{name}",
        lambda name: f"{name}_ms",
        lambda name: f"{name}_seconds",
        lambda name: f"{name}_percent",
        lambda name: f"vllm:measured_{name}_total_ms",
    ],
)
def test_case_separators_prefixes_and_units_hide_nothing(name: str, spell: Any) -> None:
    assert measured_field(spell(name)) == name


def test_every_measured_column_of_a_cell_is_recognised() -> None:
    known_before_launch = {"key", "workload", "plan_sha256", "provenance"}
    # How a cell ended is a word about the run, of which server_started and error_rate are the numbers.
    words = {"status", "failure_cause"}
    measured = {field.name for field in fields(CellResult)} - known_before_launch - words
    assert {name for name in measured if measured_field(name) is None} == set()


@pytest.mark.parametrize("name", [*OWN_FIELDS, *ENGINE_ARGUMENTS, *FEATURE_NAMES])
def test_no_field_of_a_request_is_mistaken_for_a_measurement(name: str) -> None:
    assert measured_field(name) is None


def test_the_list_of_request_fields_is_complete() -> None:
    asked = {name for part in PART_BY_LOCATION.values() if part is not SloPart for name in part.model_fields}
    assert asked <= set(OWN_FIELDS)


@pytest.mark.parametrize("name", ["", "_", "---", "vllm:", "measured", "ms", "total", "p95", "s", "ttftx", "x_ttft_y"])
def test_a_rest_without_a_quantity_is_no_measurement(name: str) -> None:
    assert measured_field(name) is None


# --- a whole body ---


def found(body: object, *, exempt: tuple[tuple[str, ...], ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    return list(find_measured_fields(body, exempt=exempt))


def test_an_honest_request_holds_no_measurement() -> None:
    body = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "gpu": "NVIDIA-B200",
        "workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 64},
        "fixed": {"max_num_seqs": 256, "enable_prefix_caching": None},
    }
    assert found(body) == []


def test_fields_are_found_in_objects_and_arrays_with_their_paths_in_order() -> None:
    body = {
        "ttft_p95": 1,
        "workload": {"concurrency": 4, "hints": [{"note": "x"}, {"deep": [[{"slo_met": None}]]}]},
        "fixed": {"kvCacheUsage": 0.5},
    }
    assert found(body) == [
        (("ttft_p95",), "ttft_p95"),
        (("workload", "hints", "1", "deep", "0", "0", "slo_met"), "slo_met"),
        (("fixed", "kvCacheUsage"), "kv_cache_usage"),
    ]


def test_an_array_at_the_top_is_searched_too() -> None:
    assert found([{"a": 1}, {"rps": 5}]) == [(("1", "rps"), "request_throughput")]


def test_a_measured_object_is_reported_once_and_not_entered() -> None:
    assert found({"latency": {"p50": 1, "ttft": 2}}) == [(("latency",), "e2e_latency_p95")]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_the_name_alone_counts_whatever_the_value(value: object) -> None:
    assert found({"slo_met": value}) == [(("slo_met",), "slo_met")]


@pytest.mark.parametrize("body", [None, 5, 0.5, "ttft_p95", True, [], {}, ["ttft_p95", "slo_met"]])
def test_values_are_no_names(body: object) -> None:
    assert found(body) == []


EXEMPT = (("slo",), ("model", "config"))


def test_exempt_paths_are_not_entered() -> None:
    body = {
        "slo": {"max_p95_ttft_ms": 3000, "max_p95_tpot_ms": 60, "max_error_rate": 0.01, "ttft_p95": 1},
        "model": {"config": {"error_rate": 1, "nested": [{"throughput": 2}]}},
    }
    assert found(body, exempt=EXEMPT) == []
    # Without the exemption the goals of an SLO do look like what they are goals for.
    assert (("slo", "max_p95_ttft_ms"), "ttft_p95") in found(body)


def test_an_exemption_holds_at_its_own_path_only() -> None:
    body = {
        "ttft": 1,
        "model": {"slo": {"tpot": 2}, "errors": 3},
        "workload": {"model": {"config": {"rps": 4}}},
        "config": {"hits": 5},
        "slo_met": 6,
    }
    assert [path for path, _ in found(body, exempt=EXEMPT)] == [
        ("ttft",),
        ("model", "slo", "tpot"),
        ("model", "errors"),
        ("workload", "model", "config", "rps"),
        ("config", "hits"),
        ("slo_met",),
    ]


def test_an_exempt_path_may_carry_a_measured_name() -> None:
    assert found({"latency": {"ttft": 1}}, exempt=(("latency",),)) == []


def test_what_the_service_parses_is_searched_to_the_bottom() -> None:
    # 200 levels are the deepest that its JSON parser accepts.
    body: object = {"slo_met": True}
    for _ in range(200):
        body = {"a": body}
    assert found(body) == [((*["a"] * 200, "slo_met"), "slo_met")]


# --- hostile names ---


@pytest.mark.parametrize(
    "name",
    [
        "p" * 80,
        "p1" * 40,
        "p" + "1" * 79,
        "tokens" * 13,
        "meanmedianmaxmin" * 5,
        "kvgpucpu" * 10,
        "s" * 80,
        "ms" * 40,
        "vllm" * 20,
        "ttft" * 20,
        "_" * 80,
        "x" * 1_000_000,
        "_" * 1_000_000,
        "ttft_p95_" * 100_000,
    ],
    ids=lambda name: f"{name[:12]}…{len(name)}",
)
def test_a_hostile_name_comes_back_at_once(name: str) -> None:
    # Anything that backtracks would take longer than the whole run may.
    assert all(measured_field(f"{name}{i}") is None for i in range(20))


def test_long_names_are_not_remembered() -> None:
    names = ["x" * 100_000 + str(i) for i in range(100)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        # Each name is a new string that nothing but a cache would keep.
        for name in names:
            measured_field(name + "y")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000


@settings(deadline=None)
@given(st.text(max_size=100))
def test_any_text_is_a_quantity_or_none(name: str) -> None:
    assert measured_field(name) in {*SPELLINGS, None}


# --- guard 1 over a feature list ---


def test_the_features_of_the_ranker_pass() -> None:
    check_feature_names(FEATURE_NAMES)


@pytest.mark.parametrize(("spelling", "name"), [(next(iter(s.split())), name) for name, s in SPELLINGS.items()])
def test_a_measured_feature_is_refused_by_name_with_the_reason(spelling: str, name: str) -> None:
    with pytest.raises(LeakageError, match=f"{spelling!r} is the measured quantity {name!r}.*only after launch"):
        check_feature_names([*FEATURE_NAMES, spelling])


# --- guard 2: the state does not depend on the candidate ---


def features(*concurrencies: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """[scenarios, 15, 12]: one model, chat, one scenario a concurrency."""
    model = ModelArch(weight_gb=16.38147072, num_layers=36, hidden_size=4096, kv_bytes_per_token=147_456)
    scenarios = [
        Scenario(
            model=model,
            workload=Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=concurrency),
        )
        for concurrency in concurrencies
    ]
    return np.stack([encode(scenario) for scenario in scenarios])


def test_encoded_scenarios_pass() -> None:
    check_state_invariance(features(4, 16, 64), ["c4", "c16", "c64"])


@pytest.mark.parametrize("column", range(8))
@pytest.mark.parametrize("candidate", [0, 7, 14])
def test_a_state_feature_that_differs_for_one_candidate_is_refused(column: int, candidate: int) -> None:
    leaking = features(4, 16, 64)
    leaking[1, candidate, column] += 1
    with pytest.raises(LeakageError, match=f"scenario 'c16': state feature {column} differs"):
        check_state_invariance(leaking, ["c4", "c16", "c64"])


def test_the_smallest_difference_counts() -> None:
    leaking = features(4)
    leaking[0, 3, 0] = np.nextafter(leaking[0, 3, 0], np.float32(100))
    with pytest.raises(LeakageError):
        check_state_invariance(leaking, ["c4"])


@pytest.mark.parametrize("candidates", [[3], list(range(15))])
def test_nan_is_no_equal_state_even_if_all_candidates_have_it(candidates: list[int]) -> None:
    leaking = features(4, 16)
    leaking[1, candidates, 2] = np.nan
    with pytest.raises(LeakageError, match="scenario 'c16': state feature 2"):
        check_state_invariance(leaking, ["c4", "c16"])


@pytest.mark.parametrize("column", range(8, 12))
def test_candidate_features_may_differ(column: int) -> None:
    varied = features(4)
    varied[0, :, column] = np.arange(15)
    check_state_invariance(varied, ["c4"])


@pytest.mark.parametrize(
    ("shape", "ids"),
    [((15, 12), ["a"]), ((1, 15, 7), ["a"]), ((2, 15, 12), ["a"]), ((1, 15, 12), []), ((1, 1, 15, 12), ["a"])],
)
def test_features_of_another_shape_are_refused(shape: tuple[int, ...], ids: list[str]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        check_state_invariance(np.zeros(shape, dtype=np.float32), ids)
