"""How rankers that saw nothing of a list's model and workload score it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline.measured.lists import MeasuredLists
from offline.measured.training import Recipe
from service.domain.candidate import CANDIDATES
from service.domain.errors import UnknownNameError
from service.domain.gpu import gpu_by_name

MOST_FOLDS = 5
_OF_THE_15 = frozenset(candidate.config_id for candidate in CANDIDATES)


def folds_of(group: Iterable[str]) -> list[NDArray[np.bool_]]:
    """Up to five disjoint sets of lists ([lists] each) that together are all; a group is never in two of them."""
    named = np.array(list(group))
    groups = sorted(set(named.tolist()))
    count = min(MOST_FOLDS, len(groups))
    return [np.isin(named, groups[number::count]) for number in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScores:
    """scores: [lists, configurations], NaN where the other folds taught nothing. fold: [lists], by number.

    single: [lists], the configuration of the best mean utility in the other folds; the first where they taught nothing.
    """

    scores: NDArray[np.float64]
    fold: NDArray[np.int64]
    single: NDArray[np.int64]


def score_held_out(lists: MeasuredLists, recipe: Recipe, folds: Iterable[NDArray[np.bool_]]) -> HeldOutScores:
    """Trains once for each fold, on the others."""
    count = len(lists.group)
    scores = np.full(lists.throughput_tps.shape, np.nan)
    fold, single = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # The lists that teach nothing count alike for all configurations.
    worth = np.where(lists.teaches[:, None], lists.utilities(), 0.0)
    for number, held_out in enumerate(folds):
        fold[held_out] = number
        if lists.teaches[~held_out].any():
            scores[held_out] = recipe.fit(lists, ~held_out).score(lists.features[held_out])
            single[held_out] = int(worth[~held_out].mean(axis=0).argmax())
    return HeldOutScores(scores=scores, fold=fold, single=single)


def default_column(lists: MeasuredLists) -> int | None:
    """Where the engine's default of the cells' device stands among the configurations; None if it was not measured."""
    try:
        config_id = gpu_by_name(lists.provenance.gpu).engine_default.config_id
    except UnknownNameError:
        return None
    return lists.config_ids.index(config_id) if config_id in lists.config_ids else None


def columns_of_the_15(lists: MeasuredLists) -> NDArray[np.bool_]:
    """[configurations]: those that the service may recommend."""
    return np.array([config_id in _OF_THE_15 for config_id in lists.config_ids], dtype=np.bool_)
