"""How far each number of a workload may move before the first choice is another one: `holds_until` of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES
from service.domain.features import encode_state
from service.domain.manifest import Manifest
from service.domain.scenario import ModelArch, Workload
from service.estimator import Estimates
from service.expectation import not_worse_chances
from service.load_range import LoadRange
from service.policies import Policy
from service.recommend import (
    DEFAULT_ROW,
    Decision,
    Query,
    Recommendation,
    cautious,
    default_features,
    expected_row,
    ordered,
)

Number = Literal["prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency"]
NUMBERS: tuple[Number, ...] = ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
# Of the way to the trained end: so many steps at once, then so many within the step in which the choice turned.
STEPS, FINER = 8, 4
_ENGINE_DEFAULT = "engine_default"


@dataclass(slots=True)
class _Side:
    """One number, one direction. turned: the least share of the way at which another choice was found, and which."""

    number: Number
    name: Literal["below", "above"]
    start: float
    end: float
    turned: tuple[float, int] | None = None

    def value(self, share: float) -> float:
        """Counts go by factors."""
        if self.number == "shared_prefix_ratio":
            return round(self.start + (self.end - self.start) * share, 4)
        count: float = self.start * (self.end / self.start) ** share
        return round(count)


def holds_until(query: Query, found: Recommendation, policy: Policy) -> dict[str, Any] | None:
    """None where nothing was learnt about the question or nothing starts: what comes first says nothing then.

    The other numbers stay as they are, at their middle where they are ranges. Two runs of the networks.
    """
    if found.out_of_range or found.decision == "none_feasible":
        return None
    sides = list(_sides(query, policy.manifest))
    # A range may turn within itself: its own end counts, the place that was asked about does not.
    first = 0 if query.load_range is not None else 1
    chosen = DEFAULT_ROW if not found.flags and not query.fixed else found.ranked[0].candidate_index
    coarse = [(side, step / STEPS) for side in sides for step in range(first, STEPS + 1)]
    _look(coarse, chosen, query, found, policy)
    finer = [
        (side, side.turned[0] - step / (STEPS * FINER))
        for side in sides
        if side.turned is not None and side.turned[0] > 0
        for step in range(1, FINER)
    ]
    _look(finer, chosen, query, found, policy)
    return {number: {side.name: _turn(side) for side in sides if side.number == number} for number in NUMBERS}


def _sides(query: Query, manifest: Manifest) -> Sequence[_Side]:
    asked = query.scenario.workload
    ends: LoadRange | Workload = query.load_range or asked
    sides = []
    for number in NUMBERS:
        span = getattr(ends, number)
        low, high = span if isinstance(span, tuple) else (span, span)
        least, most = _trained(number, manifest)
        most = min(most, _room(number, query.scenario.model, asked))
        sides.append(_Side(number=number, name="below", start=low, end=min(least, low)))
        sides.append(_Side(number=number, name="above", start=high, end=max(most, high)))
    return sides


def _trained(number: Number, manifest: Manifest) -> tuple[float, float]:
    if number == "concurrency":
        low, high = manifest.training_range["log2_concurrency"]
        return 2**low, 2**high
    return manifest.training_range[number]


def _room(number: Number, model: ModelArch, asked: Workload) -> float:
    """The most tokens that the model's context leaves for a number, or any number where it takes none."""
    if model.max_model_len is None:
        return float("inf")
    if number == "prompt_tokens":
        return model.max_model_len - asked.max_new_tokens
    return model.max_model_len - asked.prompt_tokens if number == "max_new_tokens" else float("inf")


def _look(
    places: Sequence[tuple[_Side, float]], chosen: int, query: Query, found: Recommendation, policy: Policy
) -> None:
    """Moves each side's turn to the nearest of these places at which another choice comes first."""
    workloads = [_with(query.scenario.workload, side.number, side.value(share)) for side, share in places]
    for (side, share), choice in zip(places, _first_choices(query, found, workloads, policy), strict=True):
        if choice != chosen and (side.turned is None or share < side.turned[0]):
            side.turned = share, choice


def _with(workload: Workload, number: Number, value: float) -> Workload:
    changes: dict[str, Any] = {number: value}
    return replace(workload, **changes)


def _turn(side: _Side) -> dict[str, Any] | None:
    if side.turned is None:
        return None
    share, choice = side.turned
    name = _ENGINE_DEFAULT if choice == DEFAULT_ROW else CANDIDATES[choice].config_id
    return {"value": side.value(share), "choice": name}


def _first_choices(query: Query, found: Recommendation, workloads: Sequence[Workload], policy: Policy) -> list[int]:
    """What would be set under each of these workloads: a candidate by its index, DEFAULT_ROW for nothing.

    What can be chosen under the question's own workload is taken to stay so. One run of each network.
    """
    if not workloads:
        return []
    states = [encode_state(replace(query.scenario, workload=workload)) for workload in workloads]
    beside = [default_features(query.gpu)] * len(workloads)
    estimates: Sequence[Estimates | None] = [None] * len(workloads)
    if policy.estimator is not None and found.expectation is not None:
        estimates = policy.estimator.estimate_all(states, beside)
    scores = policy.scorer.score_questions(states, beside)
    moved = [
        replace(query, scenario=replace(query.scenario, workload=workload), load_range=None) for workload in workloads
    ]
    return [_first(*one, found, policy) for one in zip(moved, scores, estimates, strict=True)]


def _first(
    query: Query, scores: NDArray[np.float32], estimates: Estimates | None, found: Recommendation, policy: Policy
) -> int:
    rows = {row.candidate_index: row for row in found.ranked}
    chances = None if estimates is None else not_worse_chances(estimates)
    top = ordered(query, policy.manifest, scores[:-1], [rows[i].exclusion for i in range(len(CANDIDATES))], chances)[0]
    if not query.as_trained:
        return top
    first = own = None
    if estimates is not None and query.slo != policy.manifest.slo:
        first = expected_row(query, policy, estimates, top, rows[top].capacity)
        own = expected_row(query, policy, estimates, DEFAULT_ROW, found.default_capacity)
    decision: Decision
    decision, _ = cautious(
        query,
        policy.manifest,
        gain=float(scores[top] - scores[-1]),
        chance=None if chances is None else chances[top],
        first=first,
        own=own,
    )
    return top if decision == "recommended" else DEFAULT_ROW
