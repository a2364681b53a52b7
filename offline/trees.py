"""The LightGBM baseline: a classifier of P(SLO met) and a regressor of throughput over all rows."""

from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from offline.artefacts import sha256_bytes
from offline.settings import TreeSettings
from service.domain.features import FEATURE_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePair:
    """Both trained models; threshold is the P(SLO met) from which a candidate counts as safe."""

    classifier: lgb.Booster
    regressor: lgb.Booster
    threshold: float

    def sha256(self) -> str:
        """Digest of both models' text."""
        text = self.classifier.model_to_string() + self.regressor.model_to_string()
        return sha256_bytes(text.encode())

    def predict(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """P(SLO met) and predicted tokens per second, [lists, 15] each, of features [lists, 15, 12]."""
        rows = features.reshape(-1, features.shape[-1])
        shape = features.shape[:2]
        chance = np.asarray(self.classifier.predict(rows, num_threads=1), dtype=np.float64)
        throughput = np.asarray(self.regressor.predict(rows, num_threads=1), dtype=np.float64)
        return chance.reshape(shape), throughput.reshape(shape)


def fit_trees(
    features: NDArray[np.float32],
    *,
    throughput_tps: NDArray[np.float64],
    slo_met: NDArray[np.bool_],
    settings: TreeSettings,
) -> TreePair:
    """Trains on features [lists, 15, 12] and labels [lists, 15]; a failed row has throughput 0. Deterministic."""
    rows = features.reshape(-1, features.shape[-1])
    return TreePair(
        classifier=_fit(rows, slo_met.reshape(-1).astype(np.float64), objective="binary", settings=settings),
        regressor=_fit(rows, throughput_tps.reshape(-1), objective="regression", settings=settings),
        threshold=settings.threshold,
    )


def _fit(rows: NDArray[np.float32], labels: NDArray[np.float64], *, objective: str, settings: TreeSettings) -> Any:
    parameters = {
        "objective": objective,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.num_leaves,
        "min_data_in_leaf": settings.min_data_in_leaf,
        "seed": settings.seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    data = lgb.Dataset(rows, labels, feature_name=list(FEATURE_NAMES), params={"verbosity": -1})
    return lgb.train(parameters, data, num_boost_round=settings.rounds)
