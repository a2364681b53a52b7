"""How far each number of a workload may move before the first choice is another one: `holds_until` of an answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from service.decision import cautious
from service.domain.candidate import CANDIDATES
from service.domain.capacity import Capacity
from service.domain.features import FEATURE_NAMES, encode_state
from service.domain.manifest import CHANCES, Manifest
from service.domain.preference import LOW_UTILISATION
from service.domain.scenario import ModelArch, Workload
from service.estimator import Estimates
from service.exclusion import Exclusion
from service.expectation import change_of, not_worse, priced
from service.policies import Policy
from service.recommend import (
    DEFAULT_ROW,
    Query,
    Recommendation,
    expected_row,
    ordered,
    recommend,
    rules_of,
)

Number = Literal["prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency"]
NUMBERS: tuple[Number, ...] = ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency")
# Of the way to the trained end: so many steps at once, then so many within the step in which the choice turned.
STEPS, FINER = 8, 4
_COLUMNS = {number: FEATURE_NAMES.index(number) for number in NUMBERS if number != "concurrency"} | {
    "concurrency": FEATURE_NAMES.index("log2_concurrency")
}
_ENGINE_DEFAULT = "engine_default"
_NOT_WORSE = CHANCES.index("not_worse_than_engine_default")


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
    """None where nothing was learnt about the question or nothing can be chosen: what comes first says nothing then.

    Of a range it is the middle that is moved, with the other numbers at theirs; None where the middle alone gets
    another choice than the range, of which nothing would be said. What can be chosen is taken to stay so. Two runs of
    each network.
    """
    if found.out_of_range or all(row.exclusion is not None for row in found.ranked):
        return None
    moves = _Moves.of(query, found, policy)
    if moves.chosen != _choice(found):
        return None
    sides = _sides(query, policy.manifest)
    moves.look([(side, step / STEPS) for side in sides for step in range(1, STEPS + 1)])
    moves.look(
        [
            (side, side.turned[0] - step / (STEPS * FINER))
            for side in sides
            if side.turned is not None
            for step in range(FINER - 1, 0, -1)
        ]
    )
    by_name = {(side.number, side.name): side for side in sides}
    turns: dict[str, Any] = {
        number: {name: _turn(by_name.get((number, name))) for name in ("below", "above")} for number in NUMBERS
    }
    return {"choice": _name(moves.chosen), **turns}


def _sides(query: Query, manifest: Manifest) -> list[_Side]:
    """Those on which there is a way to go."""
    asked = query.scenario.workload
    sides = []
    for number in NUMBERS:
        value = getattr(asked, number)
        least, most = _trained(number, manifest)
        most = min(most, _room(number, query.scenario.model, asked))
        sides.append(_Side(number=number, name="below", start=value, end=min(least, value)))
        sides.append(_Side(number=number, name="above", start=value, end=max(most, value)))
    return [side for side in sides if side.start != side.end]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moves:
    """The question with one number moved. chosen: what is set under its own workload, DEFAULT_ROW for nothing."""

    query: Query
    found: Recommendation
    policy: Policy
    chosen: int
    exclusions: Sequence[Exclusion | None]
    capacities: Sequence[Capacity]

    @classmethod
    def of(cls, query: Query, found: Recommendation, policy: Policy) -> Self:
        """Of the answer under its own workload."""
        rows = sorted(found.ranked, key=lambda row: row.candidate_index)
        here = found if query.load_range is None else recommend(replace(query, load_range=None), policy)
        return cls(
            query=query,
            found=found,
            policy=policy,
            chosen=_choice(here),
            exclusions=[row.exclusion for row in rows],
            capacities=[*(row.capacity for row in rows), found.kept_capacity],
        )

    @property
    def compares(self) -> bool:
        """Whether what starts where nothing further is set would be kept if little were gained."""
        return self.query.as_trained or (
            self.query.chunked_prefill and self.found.kept_capacity.full_length_request_fits
        )

    def look(self, places: Sequence[tuple[_Side, float]]) -> None:
        """Notes for each side the first of its places, which go outwards, at which another choice comes first."""
        if not places:
            return
        asked = encode_state(self.query.scenario)
        states = [_moved(asked, side, share) for side, share in places]
        beside = [self.query.beside] * len(places)
        scores = self.policy.scorer.score_questions(states, beside)
        estimates: Sequence[Estimates | None] = [None] * len(places)
        if self.policy.estimator is not None and self.found.expectation is not None:
            estimates = self.policy.estimator.estimate_all(states, beside)
            rules = rules_of(self.query, self.policy.manifest)
            scores = np.stack([priced(row, one, rules) for row, one in zip(scores, estimates, strict=True)])
        turned: set[int] = set()
        plain = self._plain(scores, estimates)
        for (side, share), row, choice, one in zip(places, scores, plain, estimates, strict=True):
            # Deciding costs more than the networks do, so nothing is decided beyond the first turn.
            if id(side) in turned:
                continue
            if choice is None:
                choice = self._first(side, share, row, one)
            if choice != self.chosen:
                turned.add(id(side))
                side.turned = share, choice

    def _plain(self, scores: NDArray[np.float32], estimates: Sequence[Estimates | None]) -> list[int | None]:
        """What is chosen at each place as far as it can be seen without weighing near ties against each other."""
        query, abstention = self.query, self.policy.manifest.abstention
        rules = rules_of(query, self.policy.manifest)
        margin = None if abstention is None or not self.compares else abstention.margin
        open_to_choice = [i for i, exclusion in enumerate(self.exclusions) if exclusion is None]
        # The best and the second, which is infinitely far behind where there is none.
        best = np.sort(scores[:, open_to_choice], axis=1)[:, ::-1]
        second = best[:, 1] if len(open_to_choice) > 1 else np.full(len(scores), -np.inf, dtype=np.float32)
        gains = best[:, 0] - scores[:, -1]
        near_tie = 0.0 if abstention is None else abstention.near_tie or 0.0
        clear = (scores[:, min(self.chosen, DEFAULT_ROW - 1)] == best[:, 0]) & (second < best[:, 0] - near_tie)
        usual = self.chosen != DEFAULT_ROW and CANDIDATES[self.chosen].gpu_memory_utilization >= LOW_UTILISATION
        clear &= (usual or abstention is None) and self.chosen != DEFAULT_ROW and query.slo == self.policy.manifest.slo
        found: list[int | None] = []
        for gain, is_clear, one in zip(gains.tolist(), clear.tolist(), estimates, strict=True):
            # However near ties fall, nobody's gain exceeds that of the best.
            if margin is not None and gain <= margin:
                found.append(DEFAULT_ROW)
            elif is_clear and (
                rules is None
                or rules.threshold is None
                or one is None
                or one.chances[self.chosen, _NOT_WORSE] >= rules.threshold
            ):
                found.append(self.chosen)
            else:
                found.append(None)
        return found

    def _first(self, side: _Side, share: float, scores: NDArray[np.float32], estimates: Estimates | None) -> int:
        query, policy = self.query, self.policy
        chances = not_worse(estimates).tolist() if estimates is not None and query.as_trained else None
        top = ordered(query, policy.manifest, scores[:-1], self.exclusions, chances)[0]
        if not self.compares:
            return top
        first = own = change = None
        if estimates is not None and query.slo != policy.manifest.slo:
            changes: dict[str, Any] = {side.number: side.value(share)}
            workload = replace(query.scenario.workload, **changes)
            moved = replace(query, scenario=replace(query.scenario, workload=workload), load_range=None)
            first = expected_row(moved, policy, estimates, top, self.capacities[top])
            own = expected_row(moved, policy, estimates, DEFAULT_ROW, self.capacities[DEFAULT_ROW])
            if query.as_trained:
                change = change_of(estimates.ratios[top].tolist(), answer_tokens=workload.max_new_tokens)
        decision, _ = cautious(
            policy.manifest,
            slo=query.slo,
            gain=float(scores[top] - scores[-1]),
            chance=None if chances is None else chances[top][0],
            first=first,
            own=own,
            change=change,
            errors=policy.forecast_errors,
        )
        return top if decision == "recommended" else DEFAULT_ROW


def _choice(found: Recommendation) -> int:
    return DEFAULT_ROW if found.decision == "keep_engine_default" else found.ranked[0].candidate_index


def _moved(state: Sequence[float], side: _Side, share: float) -> list[float]:
    moved, value = list(state), side.value(share)
    moved[_COLUMNS[side.number]] = math.log2(value) if side.number == "concurrency" else value
    return moved


def _turn(side: _Side | None) -> dict[str, Any] | None:
    if side is None or side.turned is None:
        return None
    share, choice = side.turned
    return {"value": side.value(share), "choice": _name(choice)}


def _name(choice: int) -> str:
    return _ENGINE_DEFAULT if choice == DEFAULT_ROW else CANDIDATES[choice].config_id
