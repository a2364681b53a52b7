"""Engine arguments that are already set condition the ranking."""

from collections.abc import Callable
from typing import Any

import pytest

from service.domain.gpu import gpu_by_name
from service.domain.scenario import ModelArch, Scenario, Workload
from service.exclusion import engine_start

Ask = Callable[[object], dict[str, Any]]


def test_fixed_arguments_condition_the_ranking_and_are_not_set_again(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"max_num_batched_tokens": 8192, "enable_prefix_caching": True}})
    assert answer["decision"] == "recommended"
    assert set(answer["set"]) == {"max_num_seqs", "gpu_memory_utilization"}
    # 8192 with prefix caching: candidate 0 and half of the 12 of the grid.
    chosen, sunk = answer["ranked"][:7], answer["ranked"][7:]
    assert all(row["feasible"] and row["engine_args"]["max_num_batched_tokens"] == 8192 for row in chosen)
    assert {row["feasibility"]["reason"] for row in sunk} == {"contradicts_fixed"}
    twice_wrong = next(row for row in sunk if row["config_id"] == "s128-b2048-g0.85-p0")
    assert twice_wrong["feasibility"]["arguments"] == ["max_num_batched_tokens", "enable_prefix_caching"]
    assert "--max-num-batched-tokens" not in answer["command"]
    assert any("--max-num-batched-tokens=8192" in warning for warning in answer["warnings"])


def test_a_fixed_value_that_no_candidate_has_keeps_the_default(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"max_num_seqs": 100}})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "no_candidate_matches_fixed")
    assert answer["set"] == {}
    assert "max_num_seqs 100" in answer["summary"]


def test_a_fixed_utilization_of_one_is_flagged(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"gpu_memory_utilization": 1.0}})
    assert answer["decision"] == "keep_engine_default"
    assert any("may not start" in warning for warning in answer["warnings"])


def test_fixed_values_under_which_nothing_starts_are_none_feasible(ask: Ask, question: dict[str, Any]) -> None:
    # Qwen3-8B needs 24.4 GiB; at 0.45 an L40S of 44 GiB grants 19.8.
    answer = ask({**question, "gpu": "L40S", "fixed": {"gpu_memory_utilization": 0.45}})
    assert answer["decision"] == "none_feasible"
    assert answer["shortfall"]["available_gib"] == pytest.approx(19.8)


# 69.849 GiB of weights, 768 tokens · 147,456 B and 3.5 GiB are 73.455; an H100 has 79: 0.90 of it are 71.1, 0.95 75.05.
LARGE = {"weight_gb": 75.0, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147_456}
LARGE_GIB = 75e9 / 2**30 + 768 * 147_456 / 2**30 + 3.5


def test_where_all_contradict_what_is_fixed_it_is_what_is_fixed_that_has_to_start(
    ask: Ask, question: dict[str, Any]
) -> None:
    answer = ask({**question, "model": LARGE, "gpu": "H100", "fixed": {"gpu_memory_utilization": 0.95}})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "no_candidate_matches_fixed")
    assert not any("would not start" in warning for warning in answer["warnings"])
    # 0.9 agrees with two candidates, which lack 2.4 GiB; so does what vLLM starts with.
    agreeing = ask({**question, "model": LARGE, "gpu": "H100", "fixed": {"gpu_memory_utilization": 0.9}})
    assert agreeing["decision"] == "none_feasible"
    assert agreeing["shortfall"]["config_id"].startswith("s256-b8192-g0.90")


def test_a_shortfall_and_its_remedies_are_those_of_what_is_fixed(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "model": LARGE, "gpu": "H100", "fixed": {"gpu_memory_utilization": 0.5}})
    assert answer["decision"] == "none_feasible"
    shortfall = answer["shortfall"]
    assert shortfall["config_id"] == "s1024-b8192-g0.50-p1"
    assert shortfall["needed_gib"] == pytest.approx(LARGE_GIB)
    assert shortfall["available_gib"] == pytest.approx(39.5)
    assert "vLLM's default with what is fixed, s1024-b8192-g0.50-p1, needs 73.5 GiB" in answer["summary"]
    # Twice 73.455 GiB: the H200's 139 are too few.
    assert shortfall["remedy"]["gpus"] == ["NVIDIA-B200", "NVIDIA-GB200", "NVIDIA-B300-SXM6-AC"]


def test_a_context_that_would_start_with_what_is_fixed_counts_no_candidate(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask(
        {
            **question,
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "gpu": "A10",
            "fixed": {"gpu_memory_utilization": 0.95},
        }
    )
    # 0.95 · 22 − 14.957 − 3.5 = 2.443 GiB: 1,250 blocks of 16 · 131,072 B.
    remedy = answer["shortfall"]["remedy"]
    assert (remedy["max_model_len"], remedy["configurations"]) == (1250 * 16, 0)
    assert any("what is fixed would start, and the longest" in warning for warning in answer["warnings"])


def test_fixed_values_that_vllm_refuses_together_start_nothing(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "fixed": {"max_num_seqs": 1024, "max_num_batched_tokens": 512}})
    assert (answer["decision"], answer["reason"]) == ("none_feasible", "too_few_batched_tokens")
    assert "max_num_batched_tokens 512 below max_num_seqs 1,024" in answer["summary"]
    assert "Leave chunked prefill on." not in answer["warnings"]
    # vLLM lowers sequences of its own to the budget.
    alone = ask({**question, "fixed": {"max_num_batched_tokens": 512}})
    assert alone["reason"] == "no_candidate_matches_fixed"


def test_where_only_vllm_s_default_starts_it_is_kept(ask: Ask, question: dict[str, Any]) -> None:
    # 67.8 GiB of weights make 71.4: more than 0.90 of an H100's 79 GiB, less than the 72.68 of vLLM's 0.92.
    question |= {"model": {**LARGE, "weight_gb": 72.8}, "gpu": "H100", "render": ["vllm"]}
    answer = ask(question)
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "only_engine_default_starts")
    assert (answer["set"], answer["command"], answer["shortfall"]) == ({}, "vllm serve MODEL", None)
    assert not any(row["feasible"] for row in answer["ranked"])
    assert answer["engine_default_capacity"]["full_length_request_fits"] is True
    assert "s1024-b8192-g0.92-p1" in answer["summary"]
    # What is fixed goes before: 0.85 of it is too little.
    assert ask({**question, "fixed": {"gpu_memory_utilization": 0.85}})["decision"] == "none_feasible"


@pytest.mark.parametrize(
    ("fixed", "context", "chunked_prefill", "started"),
    [
        ({}, 40_960, True, "s1024-b8192-g0.92-p1"),
        # A prompt goes in one step: the budget is the context, where that is more.
        ({}, 40_960, False, "s1024-b40960-g0.92-p1"),
        ({}, 4096, False, "s1024-b8192-g0.92-p1"),
        # More than all sequences together can hold is of no use.
        ({"max_num_seqs": 2}, 1000, True, "s2-b2000-g0.92-p1"),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 8192}, 1000, True, "s2-b8192-g0.92-p1"),
        ({"max_num_batched_tokens": 512}, 1000, True, "s512-b512-g0.92-p1"),
        # Of a model with an unknown context only the load's 768 tokens are known.
        ({"max_num_seqs": 2}, None, True, "s2-b8192-g0.92-p1"),
        ({"enable_prefix_caching": False, "gpu_memory_utilization": 0.5}, None, False, "s1024-b8192-g0.50-p0"),
    ],
)
def test_what_vllm_starts_with_where_something_is_fixed(
    fixed: dict[str, Any], context: int | None, chunked_prefill: bool, started: str
) -> None:
    model = ModelArch(weight_gb=1.0, num_layers=1, hidden_size=64, kv_bytes_per_token=256, max_model_len=context)
    load = Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=1)
    scenario = Scenario(model=model, workload=load)
    assert engine_start(gpu_by_name("H100"), fixed, scenario, chunked_prefill=chunked_prefill).config_id == started
