"""The policies that are compared. Each answers Questions with one choice per scenario: [scenarios] int64.

A choice is a candidate's index, or ENGINE_DEFAULT_CHOICE for "set no flags". Only the oracle sees outcomes.
"""

import numpy as np
from numpy.typing import NDArray

from offline.dataset import ENGINE_DEFAULT_CHOICE, Outcomes, Questions
from offline.ranker import Ranker
from offline.trees import TreePair
from offline.utility import best_feasible_tps
from service.domain.candidate import FIXED_INDEX, GRID_MAX_NUM_SEQS, INDEX_BY_CONFIG_ID, Candidate
from service.domain.ranking import rank
from service.domain.scenario import Workload

Choices = NDArray[np.int64]

FIXED, HEUR, ENGINE_DEFAULT, LIGHTGBM, MLP, ORACLE = "FIXED", "HEUR", "ENGINE_DEFAULT", "LightGBM", "MLP", "ORACLE"
# The order of every table.
POLICIES = (FIXED, HEUR, ENGINE_DEFAULT, LIGHTGBM, MLP, ORACLE)
# Those that dev chooses between; an exact tie goes to the first.
SELECTABLE = (MLP, LIGHTGBM)

_HEUR_LONG_PROMPT_TOKENS = 2048


def fixed_choices(questions: Questions) -> Choices:
    """Candidate 0, always."""
    return np.full(len(questions.scenario_ids), FIXED_INDEX, dtype=np.int64)


def engine_default_choices(questions: Questions) -> Choices:
    """No flag set, always."""
    return np.full(len(questions.scenario_ids), ENGINE_DEFAULT_CHOICE, dtype=np.int64)


def heuristic_candidate(workload: Workload) -> Candidate:
    """The rule of thumb: sequences near the clients (ties to the lower), a big step for long prompts."""
    return Candidate(
        max_num_seqs=min(GRID_MAX_NUM_SEQS, key=lambda seqs: (abs(seqs - workload.concurrency), seqs)),
        max_num_batched_tokens=8192 if workload.prompt_tokens >= _HEUR_LONG_PROMPT_TOKENS else 2048,
        gpu_memory_utilization=0.85,
        enable_prefix_caching=True,
    )


def heuristic_choices(questions: Questions) -> Choices:
    """heuristic_candidate of each scenario."""
    ids = (heuristic_candidate(scenario.workload).config_id for scenario in questions.scenarios)
    return np.array([INDEX_BY_CONFIG_ID[config_id] for config_id in ids], dtype=np.int64)


def mlp_choices(questions: Questions, *, ranker: Ranker) -> Choices:
    """The highest score; ties to the lower index."""
    return np.array([rank(scores)[0] for scores in ranker.score(questions.features)], dtype=np.int64)


def tree_choices(questions: Questions, *, trees: TreePair) -> Choices:
    """Among candidates with P(SLO met) ≥ threshold the highest predicted throughput; if none, the highest P."""
    chance, throughput = trees.predict(questions.features)
    return safest_fastest(chance=chance, throughput=throughput, threshold=trees.threshold)


def safest_fastest(*, chance: NDArray[np.float64], throughput: NDArray[np.float64], threshold: float) -> Choices:
    """The rule of tree_choices on predictions [lists, 15]; ties to the lower index."""
    safe = chance >= threshold
    fastest = np.where(safe, throughput, -np.inf).argmax(axis=1)
    return np.asarray(np.where(safe.any(axis=1), fastest, chance.argmax(axis=1)), dtype=np.int64)


def oracle_choices(outcomes: Outcomes) -> Choices:
    """The candidate that turned out best: fastest of those that meet the SLO; if none does, fastest of all."""
    throughput = outcomes.throughput_tps[:, :ENGINE_DEFAULT_CHOICE]
    met = outcomes.slo_met[:, :ENGINE_DEFAULT_CHOICE]
    none_feasible = np.isnan(best_feasible_tps(throughput_tps=throughput, slo_met=met))
    eligible = met | none_feasible[:, None]
    return np.asarray(np.where(eligible, throughput, -np.inf).argmax(axis=1), dtype=np.int64)
