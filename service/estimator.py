"""What a configuration is expected to deliver, from the bundle's second, small network."""

from collections.abc import Sequence
from typing import NamedTuple

from service.domain.manifest import (
    CHANCES,
    ESTIMATOR_CHANCES,
    ESTIMATOR_FILE,
    ESTIMATOR_QUANTILES,
    ESTIMATOR_RATIOS,
    QUANTITIES,
)
from service.graph import Graph, Rows

_OUTPUTS = {
    ESTIMATOR_QUANTILES: 3 * len(QUANTITIES),
    ESTIMATOR_RATIOS: 3 * len(QUANTITIES),
    ESTIMATOR_CHANCES: len(CHANCES),
}


class Estimates(NamedTuple):
    """Of the 15 candidates and the configuration beside them. quantiles: [16, 9] of the quantities, ratios: [16, 9] of
    what they are to the engine default's, both natural logarithms; chances: [16, 3]."""

    quantiles: Rows
    ratios: Rows
    chances: Rows


class Estimator:
    """Refuses a graph with other ends, or whose numbers are not finite."""

    def __init__(self, content: bytes) -> None:
        self._graph = Graph(content, file=ESTIMATOR_FILE, outputs=_OUTPUTS)

    def estimate(self, state: Sequence[float], beside: Sequence[float]) -> Estimates:
        """state: 8 features of the question, beside: 4 of the configuration that is compared with."""
        return Estimates(*self._graph.ask(state, beside))

    def estimate_all(self, states: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> list[Estimates]:
        """The same for many, in one run. states: [n, 8], beside: [n, 4]."""
        return [Estimates(*found) for found in zip(*self._graph.ask_all(states, beside), strict=True)]
