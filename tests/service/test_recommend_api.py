"""POST /v1/recommend: the contract's members and what each kind of question gets."""

from collections.abc import Callable
from typing import Any

import pytest

from service.api.response_schemas import RecommendAnswer
from service.domain.candidate import CANDIDATES
from tests.service.conftest import Client

Ask = Callable[[object], dict[str, Any]]
ENGINE_ARGUMENTS = {"max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching"}
# Llama-3.1-70B: 70,553,706,496 parameters, 80 layers, 8 KV heads of 128: 2·80·8·128·2 = 327,680 bytes a token.
LLAMA_70B_GIB = 70_553_706_496 * 2 / 2**30
CONTEXT_131072_AT_327680_GIB = 40.0


def test_the_answer_has_exactly_the_members_of_the_contract(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask(question)
    assert set(answer) == {
        *("recommendation_id", "decision", "reason", "summary", "set", "command", "ranked", "engine_default"),
        *("engine_default_capacity", "memory", "expected", "shortfall", "support", "assumed", "warnings", "renders"),
        *("range", "holds_until", "explanation", "policy"),
    }
    RecommendAnswer.model_validate(answer)
    assert answer["decision"] == "recommended"
    assert answer["reason"] is None
    assert answer["expected"] is None
    assert answer["support"] == {"in_distribution": True, "out_of_range": []}
    assert set(answer["policy"]) == {
        "version",
        "sha256",
        "feature_schema",
        "gpu",
        "confidence",
        "engine_version",
        "evidence",
    }
    assert answer["policy"]["evidence"] == "simulated"


def test_a_plain_question_ranks_all_fifteen_best_first_and_the_same_twice(ask: Ask) -> None:
    llama_8b = {"weight_gb": 16.0, "num_layers": 32, "hidden_size": 4096, "kv_bytes_per_token": 131_072}
    question = {
        "model": llama_8b,
        "gpu": "B200",
        "workload": {"prompt_tokens": 1000, "max_new_tokens": 200, "shared_prefix_ratio": 0.0, "concurrency": 64},
    }
    first, second = ask(question), ask(question)
    rows = first["ranked"]
    assert [row["rank"] for row in rows] == list(range(1, 16))
    assert {row["config_id"] for row in rows} == {candidate.config_id for candidate in CANDIDATES}
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(set(row["engine_args"]) == ENGINE_ARGUMENTS for row in rows)
    assert all(row["feasible"] and row["feasibility"] is None for row in rows)
    assert first.pop("recommendation_id") != second.pop("recommendation_id")
    assert first == second


def test_the_command_sets_what_set_says_and_nothing_else(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask(question)
    top = answer["ranked"][0]
    assert answer["set"] == top["engine_args"]
    assert answer["command"] == " ".join(["vllm serve Qwen/Qwen3-8B", *top["cli_args"]])


def test_a_model_without_a_name_is_called_model_in_the_command(ask: Ask, question: dict[str, Any]) -> None:
    question["model"] = {"weight_gb": 8.0, "num_layers": 36, "hidden_size": 2560, "kv_bytes_per_token": 147456}
    answer = ask(question)
    assert answer["command"].startswith("vllm serve MODEL --max-num-seqs=")
    # Its context is unknown: only 512 + 256 tokens were checked, and the answer says so.
    assert any("--max-model-len=768" in warning for warning in answer["warnings"])


def test_a_name_its_config_and_its_numbers_are_ranked_alike(ask: Ask, question: dict[str, Any]) -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "max_position_embeddings": 40960,
        "some_future_key": {"ttft_p95": 1},
    }
    # 8,190,735,360 parameters of two bytes; 2 · 36 layers · 8 heads · 128 · 2 bytes.
    numbers = {"weight_gb": 16.38147072, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147_456}
    by_name = ask(question)["ranked"]
    assert ask({**question, "model": {"config": config}})["ranked"] == by_name
    assert ask({**question, "model": numbers})["ranked"] == by_name


def test_a_model_that_fits_nowhere_gets_a_typed_answer_with_the_gib(ask: Ask, question: dict[str, Any]) -> None:
    question |= {"model": {"name": "meta-llama/Llama-3.1-70B-Instruct"}, "gpu": "H100"}
    answer = ask(question)
    needed = LLAMA_70B_GIB + CONTEXT_131072_AT_327680_GIB + 3.5
    assert answer["decision"] == "none_feasible"
    assert answer["set"] is None
    assert answer["command"] is None
    # 0.90 of 79 GiB is the most that any of the 15 may use.
    assert answer["shortfall"]["needed_gib"] == pytest.approx(needed)
    assert answer["shortfall"]["available_gib"] == pytest.approx(71.1)
    assert answer["reason"] == f"kv_cache_too_small: {needed:.1f} GiB needed, 71.1 GiB available"
    assert f"{needed:.1f} GiB" in answer["summary"]
    assert "71.1 GiB" in answer["summary"]
    assert not any(row["feasible"] for row in answer["ranked"])
    # Foreign GPU and a 70B model: outside the training range as well, and the graver decision wins.
    assert answer["support"]["in_distribution"] is False


def test_on_a_small_gpu_the_rows_that_cannot_start_come_last(ask: Ask, question: dict[str, Any]) -> None:
    # Qwen3-8B by name: 15.26 weights + 40,960 tokens · 147,456 B = 5.63 + 3.5 = 24.4 GiB; L40S: 44 GiB.
    question["gpu"] = "L40S"
    answer = ask(question)
    assert answer["ranked"][0]["feasible"] is True
    infeasible = [row for row in answer["ranked"] if not row["feasible"]]
    assert [row["rank"] for row in infeasible] == list(range(10, 16))
    assert {row["engine_args"]["gpu_memory_utilization"] for row in infeasible} == {0.45}
    for row in infeasible:
        assert row["feasibility"]["reason"] == "kv_cache_too_small"
        assert row["feasibility"]["needed_gib"] == pytest.approx(16.38147072e9 / 2**30 + 5.625 + 3.5)
        assert row["feasibility"]["available_gib"] == pytest.approx(19.8)


def test_a_long_context_that_does_not_fit_is_said_with_the_way_out(ask: Ask, question: dict[str, Any]) -> None:
    # Llama-3.1-8B reserves 131,072 tokens · 131,072 B = 16 GiB beside 14.96 + 3.5; an A10 has 22 in all.
    # With 2,000 tokens it needs 18.70 GiB: more than 0.85 · 22 = 18.70, less than 0.90 · 22 = 19.8 (two candidates).
    workload = {"prompt_tokens": 1800, "max_new_tokens": 200, "shared_prefix_ratio": 0.0, "concurrency": 64}
    question |= {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}, "gpu": "A10", "workload": workload}
    answer = ask(question)
    assert answer["decision"] == "none_feasible"
    assert any("--max-model-len=2000" in text and "2 of 15" in text for text in answer["warnings"])


@pytest.mark.parametrize(
    ("gpu", "seqs", "tokens"), [("B200", 1024, 16384), ("H100", 1024, 8192), ("A100", 256, 2048), ("A10", 256, 2048)]
)
def test_the_engine_default_is_numbers_for_each_gpu(
    ask: Ask, question: dict[str, Any], gpu: str, seqs: int, tokens: int
) -> None:
    assert ask({**question, "gpu": gpu})["engine_default"] == {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "gpu_memory_utilization": 0.92,
        "enable_prefix_caching": True,
    }


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (
            {"gpu": "H200"},
            {"feature": "gpu", "value": "NVIDIA-H200", "low": None, "high": None, "trained_for": "NVIDIA-B200"},
        ),
        (
            {"engine_version": "0.21.0"},
            {"feature": "engine_version", "value": "0.21.0", "low": None, "high": None, "trained_for": "0.28.0"},
        ),
        (
            {"slo": {"max_p95_ttft_ms": 500}},
            {"feature": "slo.max_p95_ttft_ms", "value": 500.0, "low": None, "high": None, "trained_for": 3000.0},
        ),
        (
            {"workload": {"prompt_tokens": 9000, "max_new_tokens": 256, "shared_prefix_ratio": 0, "concurrency": 64}},
            {"feature": "prompt_tokens", "value": 9000.0, "low": 256.0, "high": 6000.0, "trained_for": None},
        ),
        (
            # Eight times the largest trained concurrency: 2^11 against 2^8.
            {"workload": {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0, "concurrency": 2048}},
            {"feature": "log2_concurrency", "value": 11.0, "low": 2.0, "high": 8.0, "trained_for": None},
        ),
    ],
)
def test_outside_the_training_range_the_engine_default_is_kept(
    ask: Ask, question: dict[str, Any], change: dict[str, Any], entry: dict[str, Any]
) -> None:
    answer = ask({**question, **change})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    assert answer["set"] == {}
    assert answer["command"] == "vllm serve Qwen/Qwen3-8B"
    assert answer["support"] == {"in_distribution": False, "out_of_range": [entry]}
    assert entry["feature"].removeprefix("log2_") in answer["summary"]


def test_an_unseen_engine_version_warns_about_the_default_too(ask: Ask, question: dict[str, Any]) -> None:
    answer = ask({**question, "engine_version": "0.20.0"})
    assert any("0.20.0" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("version", ["0.28", "0.28.0", "v0.28.0", "0.28.0+cu130", "v0.28+cpu"])
def test_spellings_of_the_trained_engine_version_are_in_range(ask: Ask, question: dict[str, Any], version: str) -> None:
    assert ask({**question, "engine_version": version})["decision"] == "recommended"


def test_what_is_left_out_is_assumed_and_listed(ask: Ask, question: dict[str, Any]) -> None:
    del question["gpu"]
    assert ask(question)["assumed"] == {
        "gpu": "NVIDIA-B200",
        "engine_version": "0.28.0",
        "slo.max_p95_ttft_ms": 3000.0,
        "slo.max_p95_tpot_ms": 60.0,
        "slo.max_error_rate": 0.01,
        "workload.confidence": "typical",
    }


def test_a_name_without_its_size_is_taken_for_one_device_and_that_is_said(ask: Ask, question: dict[str, Any]) -> None:
    assert ask({**question, "gpu": "A100"})["assumed"]["gpu"] == "NVIDIA-A100-SXM4-80GB"
    assert "gpu" not in ask({**question, "gpu": "A100-80GB"})["assumed"]
    assert "gpu" not in ask({**question, "gpu": "A100", "gpu_memory_gib": 39.0})["assumed"]


def test_what_is_given_is_not_assumed_and_the_trained_slo_is_in_range(ask: Ask, question: dict[str, Any]) -> None:
    question |= {
        "engine_version": "0.28.0",
        "slo": {"max_p95_ttft_ms": 3000, "max_p95_tpot_ms": 60, "max_error_rate": 0.01},
        "workload": {**question["workload"], "confidence": "typical"},
    }
    answer = ask(question)
    assert answer["assumed"] == {}
    assert answer["decision"] == "recommended"


def test_a_config_that_does_not_say_whether_it_ties_gets_an_assumption(ask: Ask, question: dict[str, Any]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    assert "model.config.tie_word_embeddings" in ask({**question, "model": {"config": config}})["assumed"]


def test_null_means_left_out(ask: Ask, question: dict[str, Any]) -> None:
    nothing = {"max_num_seqs": None, "gpu_memory_utilization": None}
    plain = ask(question)
    same = ask({**question, "engine_version": None, "slo": None, "fixed": nothing})
    assert same["ranked"] == plain["ranked"]
    assert same["set"] == plain["set"]


def test_the_answer_is_not_to_be_cached(client: Client, question: dict[str, Any]) -> None:
    assert client.recommend(question).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.example+json"])
def test_json_with_parameters_or_a_suffix_is_accepted(
    client: Client, question: dict[str, Any], content_type: str
) -> None:
    assert client.recommend(question, headers={"Content-Type": content_type}).status_code == 200
