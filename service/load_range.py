"""A workload of which some numbers are ranges: the points that stand for it, and the choice that holds over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES
from service.domain.scenario import Workload

MOST_POINTS = 64
# Utility is throughput as a share of the best where the limits are met: regrets as close as this are alike.
ALIKE = 0.02
_MIDDLE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """[low, high] of each number of a workload; both are the same where there is no range.

    prefix_tokens: where the prefix was given in tokens; shared_prefix_ratio is then their share of the prompt.
    """

    prompt_tokens: tuple[int, int]
    max_new_tokens: tuple[int, int]
    shared_prefix_ratio: tuple[float, float]
    concurrency: tuple[int, int]
    prefix_tokens: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "max_new_tokens", "shared_prefix_ratio", "concurrency", "prefix_tokens"):
            ends = getattr(self, name)
            if ends is not None and not ends[0] <= ends[1]:
                raise ValueError(f"{name} is the range {ends}, whose ends are reversed")
        if self.shared_prefix_ratio[1] > 1:
            raise ValueError(f"shared_prefix_ratio is the range {self.shared_prefix_ratio}; a share is at most 1")

    def at(self, shares: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """[points, 4]: the four numbers, in the order of the fields, at these shares of the way from low to high.

        Counts go by factors and are whole, the ratio and a prefix in tokens go by differences. shares: [points, 4].
        """
        prompt, new, prefix, clients = np.asarray(shares, dtype=np.float64).T
        prompt_tokens = _by_factor(self.prompt_tokens, prompt)
        low, high = self.shared_prefix_ratio if self.prefix_tokens is None else self.prefix_tokens
        ratio = low + (high - low) * prefix
        if self.prefix_tokens is not None:
            ratio = np.minimum(ratio / prompt_tokens, 1.0)
        new_tokens, concurrency = _by_factor(self.max_new_tokens, new), _by_factor(self.concurrency, clients)
        return np.stack([prompt_tokens, new_tokens, ratio, concurrency], axis=1)

    @property
    def middle(self) -> Workload:
        """Of every range the middle."""
        return workload_of(self.at([[_MIDDLE] * 4])[0])

    @property
    def extremes(self) -> NDArray[np.float64]:
        """[2, 4]: the least and the greatest of each number, which need not be one workload."""
        ends = (self.prompt_tokens, self.max_new_tokens, self.shared_prefix_ratio, self.concurrency)
        return np.array(ends, dtype=np.float64).T

    def points(self) -> tuple[NDArray[np.float64], int]:
        """[points, 4] as `at` has it, at most MOST_POINTS, and how many of them, the first ones, fill the inside
        evenly; then come the corners. No range: one point, which is all there is."""
        prefix = self.prefix_tokens or self.shared_prefix_ratio
        ends = (self.prompt_tokens, self.max_new_tokens, prefix, self.concurrency)
        shares, inside = _design(tuple(low < high for low, high in ends))
        return self.at(shares), inside


def workload_of(point: NDArray[np.float64]) -> Workload:
    """[4]: a row of the points."""
    prompt_tokens, new_tokens, ratio, clients = point.tolist()
    return Workload(
        prompt_tokens=int(prompt_tokens),
        max_new_tokens=int(new_tokens),
        shared_prefix_ratio=ratio,
        concurrency=int(clients),
    )


def _by_factor(ends: tuple[int, int], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = ends
    return np.clip(np.rint(low * (high / low) ** shares), low, high)


@lru_cache(maxsize=16)
def _design(moving: tuple[bool, ...]) -> tuple[list[list[float]], int]:
    """Shares [points, 4] and how many are inside: an additive recurrence, which fills a cube evenly whatever its
    dimension, and all corners. After M. Roberts, The Unreasonable Effectiveness of Quasirandom Sequences, 2018: steps
    are powers of 1 ÷ g where g^(d+1) = g + 1.
    """
    dimensions = sum(moving)
    if dimensions == 0:
        return [[_MIDDLE] * len(moving)], 1
    growth = 2.0
    for _ in range(64):
        growth = (1 + growth) ** (1 / (dimensions + 1))
    corners = 2**dimensions
    inside = MOST_POINTS - corners
    steps = growth ** -np.arange(1, dimensions + 1)
    filling = (_MIDDLE + np.arange(inside)[:, None] * steps) % 1
    bits = (np.arange(corners)[:, None] >> np.arange(dimensions)) & 1
    shares = np.full((MOST_POINTS, len(moving)), _MIDDLE)
    shares[:, np.array(moving)] = np.concatenate([filling, bits])
    return shares.tolist(), inside


class Held(NamedTuple):
    """How a configuration does over the points. Utilities: gain over the engine's default, regret against the best
    that can be chosen at the same point; worst_at is the point of the greatest regret."""

    mean_gain: float
    worst_regret: float
    worst_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeScores:
    """Scores of the 15 candidates and the engine's default at each point.

    points: [points, 4]; scores: [points, 16]; slope: utility per unit of score, so that a difference of scores at one
    point times it is a difference of expected utilities. inside: so many points, from the first, are averaged over; the
    worst case is looked for in all of them.
    """

    points: NDArray[np.float64]
    scores: NDArray[np.float32]
    inside: int
    slope: float

    @property
    def mean(self) -> NDArray[np.float32]:
        """[16]: over the points inside."""
        mean: NDArray[np.float32] = self.scores[: self.inside].mean(axis=0, dtype=np.float32)
        return mean

    def held(self, eligible: Sequence[bool]) -> list[Held]:
        """Of each candidate; regrets of those that cannot be chosen count against those that can, all the same."""
        candidates = self.scores[:, :-1].astype(np.float64)
        open_to_choice = np.array(eligible) if any(eligible) else np.ones(len(CANDIDATES), dtype=bool)
        regrets = (candidates[:, open_to_choice].max(axis=1, keepdims=True) - candidates) * self.slope
        gains = (candidates - self.scores[:, -1:])[: self.inside].mean(axis=0) * self.slope
        worst = regrets.argmax(axis=0)
        return [
            Held(float(gains[i]), float(max(regrets[worst[i], i], 0.0)), int(worst[i])) for i in range(len(CANDIDATES))
        ]

    def order(
        self, eligible: Sequence[bool], prefer: Callable[[NDArray[np.float32], Sequence[bool]], list[int]]
    ) -> list[int]:
        """Of the candidates whose worst regret is the least or alike, by their mean scores as `prefer` puts them; then
        the other eligible ones by the same; then the rest."""
        held = self.held(eligible)
        worst = [one.worst_regret for one, can in zip(held, eligible, strict=True) if can]
        bound = min(worst, default=0.0) + ALIKE
        steady = [can and one.worst_regret <= bound for one, can in zip(held, eligible, strict=True)]
        mean = self.mean[:-1]
        first = prefer(mean, steady)[: sum(steady)]
        return [*first, *(i for i in prefer(mean, eligible) if i not in first)]
