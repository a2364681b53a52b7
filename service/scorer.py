"""Scores candidates with the bundle's ranker."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.domain.candidate import CANDIDATES
from service.domain.features import NUM_FEATURES
from service.domain.manifest import MODEL_FILE, ONNX_OUTPUT
from service.graph import Graph


class Scorer:
    """Refuses a graph whose ends are not those that the manifest's format prescribes."""

    def __init__(self, model: bytes) -> None:
        self._graph = Graph(model, file=MODEL_FILE, outputs={ONNX_OUTPUT: 1})

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[15, 12] -> [15] or [n, 15, 12] -> [n, 15], float32; unnormalised features in, higher is better."""
        if features.ndim not in (2, 3) or features.shape[-2:] != (len(CANDIDATES), NUM_FEATURES):
            raise ValueError(f"features of shape {features.shape}, expected [15, 12] or [n, 15, 12]")
        return self.score_rows(features.reshape(-1, NUM_FEATURES)).reshape(features.shape[:-1])

    def score_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, 12] -> [n]: any configurations, each scored by itself."""
        return self._graph.run(rows)[0].reshape(-1)

    def score_question(self, state: Sequence[float], beside: Sequence[float]) -> NDArray[np.float32]:
        """[16]: the 15 candidates, then the configuration beside them. state: 8 features, beside: 4."""
        return self._graph.ask(state, beside)[0][:, 0]

    def score_questions(
        self, states: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]
    ) -> NDArray[np.float32]:
        """[n, 16] in one run, rows as in score_question. states: [n, 8], beside: [n, 4]."""
        return self._graph.ask_all(states, beside)[0][:, :, 0]
