"""When to set no flags, by held-out measured lists, and how little that many lists can promise.

A choice is worse where its goodput is more than 5 % below that of the engine's default in the same scenario; an SLO
that it newly violates leaves it none. The margin is the largest gain in score at which a held-out choice was worse.
Such a margin has no worse choice behind it on the lists that chose it, so it is judged on others: each fold under the
margin of the other folds. Groups, not lists, are counted, because concurrencies of one workload resemble each other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline.bootstrap import binomial_upper_bound
from offline.measured.held_out import HeldOutScores, columns_of_the_15
from offline.measured.lists import MeasuredLists
from service.domain.manifest import NEVER_MARGIN, PROMISED_RISK

WORSE_BELOW = 0.95
CONFIDENCE = 0.95
# Advice that is not known to be good more often than not is not given: with none worse it takes 5 groups.
MOST_RISK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """margin: as the manifest has it. groups: of the lists; advised: in which the margin of other folds set flags.

    worse: of those, in which one list did worse than the engine's default; upper95: the bound of that share.
    served: [lists], the column that is run, under the margin of the other folds.
    """

    margin: float
    scenarios: int
    groups: int
    advised: int
    worse: int
    upper95: float
    served: NDArray[np.int64]

    @property
    def promises(self) -> bool:
        """Whether the bound is as low as that of the bundles of many scenarios."""
        return self.upper95 <= PROMISED_RISK


def choose_rule(lists: MeasuredLists, held_out: HeldOutScores, *, default: int) -> Rule:
    """default: the column of the engine's default. At least one column is among the 15."""
    able = columns_of_the_15(lists)
    able[default] = False
    # The default itself may be one of the 15, which is then nothing to gain from.
    best = np.where(able, np.nan_to_num(held_out.scores, nan=-np.inf), -np.inf).argmax(axis=1)
    rows = np.arange(len(best))
    gains = np.nan_to_num(held_out.scores[rows, best] - held_out.scores[:, default], nan=-np.inf)
    goodput = np.where(lists.slo_met, lists.throughput_tps, 0.0)
    worse = goodput[rows, best] < WORSE_BELOW * goodput[:, default]
    margins = np.array([_margin(gains, worse, held_out.fold != fold) for fold in held_out.fold])
    advised = gains > margins
    group = np.array(lists.group)
    # Where no configuration meets the SLO, no advice can be worse: that shows nothing.
    trials = sorted(set(group[advised & lists.teaches].tolist()))
    events = sorted(set(group[advised & worse].tolist()))
    upper95 = binomial_upper_bound(len(events), len(trials), confidence=CONFIDENCE)
    silent = upper95 >= MOST_RISK
    return Rule(
        margin=NEVER_MARGIN if silent else _margin(gains, worse, np.ones(len(best), np.bool_)),
        scenarios=len(best),
        groups=len(set(lists.group)),
        advised=len(trials),
        worse=len(events),
        upper95=upper95,
        served=np.full(len(best), default) if silent else np.where(advised, best, default),
    )


def never(lists: MeasuredLists, *, default: int) -> Rule:
    """Of lists that leave none to hold out."""
    return Rule(
        margin=NEVER_MARGIN,
        scenarios=0,
        groups=0,
        advised=0,
        worse=0,
        upper95=1.0,
        served=np.full(len(lists.group), default),
    )


def _margin(gains: NDArray[np.float64], worse: NDArray[np.bool_], used: NDArray[np.bool_]) -> float:
    """The largest gain of a worse choice among those used; at least 0, for a loss in score is never taken."""
    found: list[float] = gains[worse & used].tolist()
    return max(0.0, max(found, default=0.0))
