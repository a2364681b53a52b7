"""When flags are recommended, and which: the rule that a bundle carries, and how it is calibrated.

Every score, the engine default's too, is reduced by a price for the chance to be worse than the engine's default and by
another for that to be worse than candidate 0. Recommended is the first by service.domain.preference if what is left
exceeds what is left of the default's by more than `margin` and the chance not to be worse than the default is at least
`threshold`; nothing is recommended out of support.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline.robust.choices import Choices
from offline.robust.estimator import FIXED_ROW, EstimatorNetwork, not_worse
from offline.robust.lists import DEFAULT_ROW, Bools, Floats, Lists
from offline.robust.network import Network
from service.domain.candidate import Candidate
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES
from service.domain.preference import cautious, prefer

# Of the draws, at most this share may be worse, which leaves room below the promised 1 % for what other sets vary by …
RISK, CONFIDENCE = 0.009, 0.95
# … by a bound that is tested from the highest price on, until it is first exceeded.
PRICES = (60.0, 40.0, 30.0, 24.0, 20.0, 16.0, 12.0, 10.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5)
# Nothing is recommended that is expected to be worse more often than this, however much it gains otherwise.
THRESHOLD = 0.8
# A larger one would cost little utility on average, and withhold flags where the choice matters.
MARGINS = (0.0, 0.002, 0.005, 0.01)
MARGIN_PRICE = 8.0
NEAR_TIES = (0.0, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03)
# Of mean utility this little may be lost for fewer flags, and for a preference among near ties.
MARGIN_TOLERANCE, TOLERANCE = 0.001, 0.0005
# Of utility, that is of throughput as a share of the best where the SLO is met.
LOW_UTILISATION_GAIN = 0.02
Range = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """margin, near_tie and low_utilisation_gain are differences of scores, the prices are of a whole unit of chance,
    and threshold is a probability. By default the highest score decides.
    """

    margin: float = 0.0
    risk_price: float = 0.0
    fixed_price: float = 0.0
    threshold: float = 0.0
    near_tie: float = 0.0
    low_utilisation_gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a rule decides on, for [n] scenarios: scores of 16, their chances [n, 16, 2] not to be worse than either
    base, what starts, support."""

    scores: NDArray[np.float32]
    not_worse: NDArray[np.float32]
    starts: Bools
    supported: Bools
    engine_default: Candidate

    @classmethod
    def of(cls, lists: Lists, ranker: Network, estimator: EstimatorNetwork, support: Range) -> "Question":
        """As the service would ask it."""
        features = lists.features()
        return cls(
            scores=ranker.score(features),
            not_worse=estimator.predict(features).not_worse,
            starts=lists.starts,
            supported=in_support(lists, support),
            engine_default=lists.engine_default,
        )

    @property
    def chances(self) -> NDArray[np.float32]:
        """[n, 15] of the candidates not to be worse than the engine's default."""
        return self.not_worse[:, :DEFAULT_ROW, 0]

    def choices(self, rule: Rule) -> Choices:
        """What is recommended; the engine's default where nothing is."""
        left = cautious(self.scores, self.not_worse, prices=(rule.risk_price, rule.fixed_price))
        scores, safe = left[:, :DEFAULT_ROW], self.chances >= np.float32(rule.threshold)
        # Only where some safe candidate exceeds the margin can one be recommended, so only there the order matters.
        gains = np.where(safe & self.starts[:, :DEFAULT_ROW], scores, -np.inf) - left[:, DEFAULT_ROW, None]
        chosen = np.full(len(scores), DEFAULT_ROW, dtype=np.int64)
        for row in np.flatnonzero((gains.max(axis=1) > rule.margin) & self.supported):
            first = prefer(
                scores[row],
                self.starts[row, :DEFAULT_ROW].tolist(),
                near_tie=rule.near_tie,
                low_utilisation_gain=rule.low_utilisation_gain,
                shared_gpu=False,
                engine_default=self.engine_default,
                safe=safe[row].tolist(),
            )[0]
            if gains[row, first] > rule.margin:
                chosen[row] = first
        return chosen


def in_support(lists: Lists, support: Range) -> Bools:
    """[lists] whether all 8 features lie within the ranges that were trained on."""
    inside = np.ones(len(lists), dtype=np.bool_)
    for name, (low, high) in support.items():
        column = lists.state[:, FEATURE_NAMES.index(name)].astype(np.float64)
        inside &= (low <= column) & (column <= high)
    return inside


def upper_bound(events: int, trials: int) -> float:
    """Clopper and Pearson's one-sided upper bound on a probability, at CONFIDENCE.

    The largest probability at which so few events of so many independent trials are not yet rarer than 1 − CONFIDENCE.
    """
    low, high = events / trials, 1.0
    if events >= trials:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(events, trials, middle) > 1 - CONFIDENCE else (low, middle)
    return high


def _at_most(events: int, trials: int, probability: float) -> float:
    """The binomial probability of at most so many events."""
    logarithms = (
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(probability)
        + (trials - k) * math.log1p(-probability)
        for k in range(events + 1)
        if 0 < probability < 1
    )
    return sum(map(math.exp, logarithms)) if 0 < probability < 1 else float(probability == 0)


def worse(lists: Lists, chosen: Choices, base: int = DEFAULT_ROW) -> Bools:
    """[lists] whether flags were set and the draw went worse than with the configuration `base`."""
    went_worse = ~not_worse(lists.outcomes, base)[np.arange(len(lists)), chosen]
    return np.asarray(went_worse & (chosen != DEFAULT_ROW), dtype=np.bool_)


def calibrate(
    question: Question, lists: Lists, utility: Floats, groups: NDArray[np.str_], *, start: Rule
) -> tuple[Rule, list[dict[str, Any]]]:
    """The rule, and a row for each price and each near tie that was looked at.

    Learn then Test (Angelopoulos et al., 2021) with a fixed sequence: prices from the highest on, each accepted if in
    every group the upper bounds on the shares of draws that flags made worse, than the engine's default and than
    candidate 0, are at most RISK; the last accepted is taken. Lists are one draw each, so independent.
    utility: [lists, 16]; start: everything but the price and the near tie. ArtefactError if not even the highest price
    is accepted.
    """
    found: list[dict[str, Any]] = []
    accepted: Rule | None = None
    for price in PRICES:
        rule = replace(start, risk_price=price)
        row = {"risk_price": price, **risk_row(question.choices(rule), lists, utility, groups)}
        found.append(row)
        if row["upper95"] > RISK:
            break
        accepted = rule
    if accepted is None:
        raise ArtefactError(f"not even a price of {PRICES[0]} keeps the risk below {RISK}; train longer")
    return _with_near_tie(question, lists, utility, groups, accepted, found), found


def _with_near_tie(
    question: Question,
    lists: Lists,
    utility: Floats,
    groups: NDArray[np.str_],
    rule: Rule,
    found: list[dict[str, Any]],
) -> Rule:
    """The widest near tie that costs nothing: neither utility beyond TOLERANCE nor the bound on the risk."""
    least = None
    for near_tie in NEAR_TIES:
        tried = replace(rule, near_tie=near_tie)
        row = risk_row(question.choices(tried), lists, utility, groups)
        found.append({"near_tie": near_tie, **row})
        least = row["utility"] - TOLERANCE if least is None else least
        if row["utility"] < least or row["upper95"] > RISK:
            break
        rule = tried
    return rule


def risk_row(chosen: Choices, lists: Lists, utility: Floats, groups: NDArray[np.str_]) -> dict[str, Any]:
    """How often flags are set, what they gain, how many draws they made worse in each group, and the worst bound."""
    went_worse = {"default": worse(lists, chosen), "fixed": worse(lists, chosen, FIXED_ROW)}
    by_group: dict[str, dict[str, Any]] = {}
    for group in sorted(set(groups.tolist())):
        inside = groups == group
        trials = int(inside.sum())
        events = {base: int(one[inside].sum()) for base, one in went_worse.items()}
        bounds = {base: upper_bound(count, trials) for base, count in events.items()}
        by_group[group] = {"worse": events, "n": trials, "upper95": bounds}
    return {
        "coverage": float((chosen != DEFAULT_ROW).mean()),
        "utility": float(utility[np.arange(len(chosen)), chosen].mean()),
        "worse": {base: float(one.mean()) for base, one in went_worse.items()},
        "by_group": by_group,
        "upper95": max(bound for one in by_group.values() for bound in one["upper95"].values()),
    }


def choose_margin(question: Question, utility: Floats, *, fixed_price: float) -> float:
    """On dev, of margins whose mean utility is within MARGIN_TOLERANCE of the best, the largest: fewer flags."""
    rows = np.arange(len(utility))
    reached = {}
    for margin in MARGINS:
        rule = Rule(margin=margin, risk_price=MARGIN_PRICE, fixed_price=fixed_price, threshold=THRESHOLD)
        chosen = question.choices(rule)
        reached[margin] = float(utility[rows, chosen].mean())
    best = max(reached.values())
    return max(margin for margin, value in reached.items() if value >= best - MARGIN_TOLERANCE)
