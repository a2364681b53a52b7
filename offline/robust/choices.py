"""The policies: each answers every scenario with one of 16 configurations, [scenarios] int64; the last sets no flags.

Only oracles see outcomes. Whatever ranks candidates leaves out those that would not start, as the service does.
"""

import numpy as np
from numpy.typing import NDArray

from offline.policies import heuristic_candidate, safest_fastest
from offline.robust.lists import DEFAULT_ROW, Lists, Outcomes
from offline.robust.network import FitSettings, utilities_of
from offline.trees import TreePair
from service.domain.candidate import FIXED_INDEX, INDEX_BY_CONFIG_ID
from service.domain.scenario import Workload

Choices = NDArray[np.int64]


def fixed(lists: Lists) -> Choices:
    """Candidate 0, always."""
    return np.full(len(lists), FIXED_INDEX, dtype=np.int64)


def engine_default(lists: Lists) -> Choices:
    """No flag set, always."""
    return np.full(len(lists), DEFAULT_ROW, dtype=np.int64)


def single(lists: Lists, index: int) -> Choices:
    """One and the same candidate, always."""
    return np.full(len(lists), index, dtype=np.int64)


def heuristic(lists: Lists) -> Choices:
    """The rule of thumb of the reference."""
    names = ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
    rows = zip(*(lists.columns[name] for name in names), strict=True)
    chosen = [
        heuristic_candidate(
            Workload(
                prompt_tokens=int(prompt),
                max_new_tokens=int(new),
                shared_prefix_ratio=float(ratio),
                concurrency=int(concurrency),
            )
        )
        for prompt, new, ratio, concurrency in rows
    ]
    return np.array([INDEX_BY_CONFIG_ID[one.config_id] for one in chosen], dtype=np.int64)


def best_on_average(train: Lists, settings: FitSettings) -> int:
    """The candidate with the highest mean utility over the training lists."""
    mean = utilities_of(train.outcomes, settings).mean(axis=0)
    return int(mean[:DEFAULT_ROW].argmax())


def trees(lists: Lists, pair: TreePair) -> Choices:
    """Among candidates with P(SLO met) ≥ threshold the highest predicted throughput; if none, the highest P."""
    chance, throughput = pair.predict(lists.features()[:, :DEFAULT_ROW])
    starts = lists.starts[:, :DEFAULT_ROW]
    chance = np.where(starts, chance, -1.0)
    return safest_fastest(chance=chance, throughput=throughput, threshold=pair.threshold)


def highest_candidate(lists: Lists, scores: NDArray[np.float32]) -> Choices:
    """The highest of 15 scores (a 16th is ignored), ties to the lower index; the engine's default if none starts."""
    eligible = np.where(lists.starts[:, :DEFAULT_ROW], scores[:, :DEFAULT_ROW], -np.inf)
    return np.where(np.isfinite(eligible).any(axis=1), eligible.argmax(axis=1), DEFAULT_ROW)


def with_abstention(lists: Lists, scores: NDArray[np.float32], *, margin: float) -> Choices:
    """The highest candidate if its score exceeds the engine default's by more than the margin; else set no flags."""
    top = highest_candidate(lists, scores)
    gain = scores[np.arange(len(top)), top] - scores[:, DEFAULT_ROW]
    return np.where(gain > margin, top, DEFAULT_ROW)


def oracle(outcomes: Outcomes, settings: FitSettings) -> Choices:
    """The highest mean utility over the draws it is shown, [scenarios, draws, 16]; ties keep the engine's default."""
    mean = utilities_of(outcomes, settings).mean(axis=1)
    best = mean.argmax(axis=1)
    rows = np.arange(len(best))
    return np.where(mean[rows, best] > mean[:, DEFAULT_ROW], best, DEFAULT_ROW)
