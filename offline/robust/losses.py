"""Where a served answer loses expected utility against the best that was possible, by what it did instead.

The best is the best in hindsight, over the same draws that judge it, so a part of every loss is luck of the draws.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offline.robust.lists import DEFAULT_ROW

OUT_OF_SUPPORT = "out of support, nothing recommended"
ABSTAINED = "engine's default kept, flags would have gained"
SECOND_BEST = "flags better than the default, others better still"
WORSE = "flags worse than the default"
REASONS = (OUT_OF_SUPPORT, ABSTAINED, SECOND_BEST, WORSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """scenarios: share of all with a loss for that reason; lost: mean over all scenarios of what they lose, in units of
    utility; share: of everything that is lost.
    """

    scenarios: float
    lost: float
    share: float


def regrets(columns: dict[str, list[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[scenarios] expected utility of the best configuration that starts minus that of the choice, at least 0."""
    best, ours = (np.asarray(columns[name], dtype=np.float64) for name in ("gain_of_the_best", "gain_of_the_choice"))
    # Stored with five digits, so equals may differ in the last.
    return np.asarray(np.maximum(best - ours, 0.0))


def losses_of(columns: dict[str, list[Any]]) -> dict[str, Loss]:
    """By reason, each scenario under one. columns: of offline.robust.curves.scenario_rows."""
    lost = regrets(columns)
    kept = np.asarray(columns["chosen"]) == DEFAULT_ROW
    supported = np.asarray(columns["supported"], dtype=np.bool_)
    worse = np.asarray(columns["gain_of_the_choice"], dtype=np.float64) < 0
    of = {
        OUT_OF_SUPPORT: ~supported,
        ABSTAINED: supported & kept,
        SECOND_BEST: supported & ~kept & ~worse,
        WORSE: supported & ~kept & worse,
    }
    total = float(lost.sum())
    return {
        reason: Loss(
            scenarios=float((inside & (lost > 0)).mean()),
            lost=float(np.where(inside, lost, 0.0).mean()),
            share=float(lost[inside].sum()) / total if total > 0 else 0.0,
        )
        for reason, inside in of.items()
    }
