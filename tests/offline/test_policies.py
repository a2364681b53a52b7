"""Each policy's rule on cases decided by hand."""

import numpy as np
import pytest

from offline.dataset import ENGINE_DEFAULT_CHOICE, Development, Outcomes
from offline.policies import (
    engine_default_choices,
    fixed_choices,
    heuristic_candidate,
    heuristic_choices,
    oracle_choices,
    safest_fastest,
    tree_choices,
)
from offline.settings import TreeSettings
from offline.trees import TreePair, fit_trees
from service.domain.candidate import CANDIDATES
from service.domain.scenario import Workload


def _workload(*, prompt_tokens: int, concurrency: int) -> Workload:
    return Workload(prompt_tokens=prompt_tokens, max_new_tokens=1, shared_prefix_ratio=0.0, concurrency=concurrency)


@pytest.mark.parametrize(
    ("concurrency", "seqs"),
    # 80 lies as far from 32 as from 128, and 320 as far from 128 as from 512: the lower one is chosen.
    [(4, 32), (64, 32), (80, 32), (81, 128), (256, 128), (320, 128), (321, 512), (4096, 512)],
)
def test_the_heuristic_takes_the_grid_value_nearest_to_the_concurrency(concurrency: int, seqs: int) -> None:
    assert heuristic_candidate(_workload(prompt_tokens=1, concurrency=concurrency)).max_num_seqs == seqs


@pytest.mark.parametrize(("prompt_tokens", "budget"), [(2047, 2048), (2048, 8192)])
def test_the_heuristic_gives_long_prompts_a_big_step(prompt_tokens: int, budget: int) -> None:
    candidate = heuristic_candidate(_workload(prompt_tokens=prompt_tokens, concurrency=4))
    assert candidate.max_num_batched_tokens == budget
    assert candidate.gpu_memory_utilization == 0.85
    assert candidate.enable_prefix_caching


def test_the_heuristics_choice_is_one_of_the_15(synthetic_data: Development) -> None:
    questions = synthetic_data.dev.questions
    for scenario, choice in zip(questions.scenarios, heuristic_choices(questions), strict=True):
        assert CANDIDATES[choice] == heuristic_candidate(scenario.workload)


def test_fixed_is_candidate_0_and_the_engine_default_is_none_of_the_15(synthetic_data: Development) -> None:
    questions = synthetic_data.dev.questions
    assert set(fixed_choices(questions)) == {0}
    assert set(engine_default_choices(questions)) == {ENGINE_DEFAULT_CHOICE} == {15}


def test_the_tree_rule_takes_the_fastest_safe_candidate_or_else_the_safest() -> None:
    chance = np.array([[0.5, 0.9, 0.49], [0.1, 0.4, 0.3], [0.6, 0.6, 0.6]])
    throughput = np.array([[20.0, 10.0, 99.0], [1.0, 2.0, 3.0], [5.0, 7.0, 7.0]])
    # Row 0: 0.49 is below the threshold, 0.5 is not. Row 1: none is safe. Row 2: a tie goes to the lower index.
    assert safest_fastest(chance=chance, throughput=throughput, threshold=0.5).tolist() == [0, 1, 1]


def _outcomes(*, throughput: list[float], met: list[bool]) -> Outcomes:
    """One scenario whose first candidates are given; the rest and the engine's default are slow violators."""
    rest = 16 - len(throughput)
    slo_met = np.array([[*met, *[False] * rest]])
    return Outcomes(
        throughput_tps=np.array([[*throughput, *[1.0] * rest]]),
        ttft_p95_ms=np.ones((1, 16)),
        tpot_p95_ms=np.ones((1, 16)),
        slo_met=slo_met,
        failed=np.zeros((1, 16), dtype=np.bool_),
    )


def test_the_oracle_takes_the_fastest_candidate_that_meets_the_slo() -> None:
    assert oracle_choices(_outcomes(throughput=[10.0, 30.0, 90.0], met=[True, True, False])).tolist() == [1]


def test_the_oracle_takes_the_fastest_of_all_where_none_meets_the_slo() -> None:
    assert oracle_choices(_outcomes(throughput=[10.0, 30.0, 90.0], met=[False, False, False])).tolist() == [2]


def test_the_oracle_never_takes_the_engine_default() -> None:
    outcomes = _outcomes(throughput=[10.0], met=[True])
    outcomes.throughput_tps[0, ENGINE_DEFAULT_CHOICE] = 99.0
    outcomes.slo_met[0, ENGINE_DEFAULT_CHOICE] = True
    assert oracle_choices(outcomes).tolist() == [0]


def _trees(data: Development) -> TreePair:
    outcomes = data.train.outcomes
    return fit_trees(
        data.train.questions.features,
        throughput_tps=outcomes.throughput_tps[:, :15],
        slo_met=outcomes.slo_met[:, :15],
        settings=TreeSettings(rounds=20),
    )


def test_two_trainings_of_the_trees_are_identical(synthetic_data: Development) -> None:
    assert _trees(synthetic_data).sha256() == _trees(synthetic_data).sha256()


def test_the_trees_tell_violators_from_others_on_train(synthetic_data: Development) -> None:
    chance, _ = _trees(synthetic_data).predict(synthetic_data.train.questions.features)
    met = synthetic_data.train.outcomes.slo_met[:, :15]
    assert chance[met].mean() > chance[~met].mean() + 0.3
    assert tree_choices(synthetic_data.dev.questions, trees=_trees(synthetic_data)).shape == (16,)
