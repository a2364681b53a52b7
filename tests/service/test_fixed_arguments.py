"""Engine arguments that are already set condition the ranking."""

from collections.abc import Callable
from typing import Any

import pytest

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
