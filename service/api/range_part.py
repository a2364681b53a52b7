"""How the choice holds over a range: the `range` of an answer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES
from service.domain.scenario import Workload
from service.load_range import Held, LoadRange, workload_of
from service.recommend import Query, Recommendation


def range_json(query: Query, found: Recommendation, *, compares: bool) -> dict[str, Any] | None:
    """None where no number is a range. compares: whether there is something to compare with."""
    scores, ends = found.range_scores, query.load_range
    if scores is None or ends is None:
        return None
    eligible = [False] * len(CANDIDATES)
    for row in found.ranked:
        eligible[row.candidate_index] = row.exclusion is None
    held = scores.held(eligible)
    # Where nothing can be chosen, all are shown as they would do.
    choosable = [i for i, can in enumerate(eligible) if can] or list(range(len(CANDIDATES)))

    def part(index: int) -> dict[str, Any] | None:
        # Scores say nothing where nothing was learnt.
        if found.out_of_range:
            return None
        return _held(index, held[index], scores.points, compares=compares)

    return {
        "ends": _ends(ends),
        "middle": load_json(query.scenario.workload),
        "points": len(scores.points),
        "first": part(found.ranked[0].candidate_index),
        "best_mean": part(max(choosable, key=lambda i: held[i].mean_gain)),
        "least_regret": part(min(choosable, key=lambda i: held[i].worst_regret)),
    }


def _held(index: int, held: Held, points: NDArray[np.float64], *, compares: bool) -> dict[str, Any]:
    return {
        "config_id": CANDIDATES[index].config_id,
        "mean_gain": held.mean_gain if compares else None,
        "worst_regret": held.worst_regret,
        "worst_at": load_json(workload_of(points[held.worst_at])),
    }


def _ends(ends: LoadRange) -> dict[str, Any]:
    names = ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
    return {name: list(getattr(ends, name)) for name in names}


def load_json(workload: Workload) -> dict[str, Any]:
    """The four numbers of a workload."""
    return {name: getattr(workload, name) for name in Workload.__slots__}
