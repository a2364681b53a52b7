"""Training on measured lists: anew, or from a bundle's ranker. No setting is chosen on the lists that judge."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from offline.arithmetic import pin_arithmetic
from offline.losses import listnet_loss
from offline.measured.lists import MeasuredLists
from offline.measured.start import Start
from offline.onnx_graph import build_graph
from offline.ranker import Normalisation, Ranker
from offline.settings import GridPoint, TrainingSettings
from offline.train import fit
from service.domain.errors import ArtefactError

# A tenth of the reference's simplest step, for a quarter of its epochs: measured lists are few, and what the bundle
# knows of models and workloads beyond them should stay.
FINE_TUNE = GridPoint(learning_rate=1e-4, weight_decay=0.0, batch_lists=8)
RETRAIN = TrainingSettings().grid()[0]
FINE_TUNE_EPOCH_SHARE = 4

Score = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A trained ranker: how it scores [lists, n, 12] features, its graph, and the last epoch's mean loss."""

    score: Score
    graph: bytes
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a ranker comes from lists. start None: from random weights."""

    settings: TrainingSettings
    start: Start | None = None

    @classmethod
    def of(cls, settings: TrainingSettings, start: Start | None) -> Self:
        """The fixed recipe; fine-tuning takes a quarter of the epochs."""
        if start is None:
            return cls(settings=settings)
        return cls(settings=replace(settings, epochs=max(1, settings.epochs // FINE_TUNE_EPOCH_SHARE)), start=start)

    @property
    def point(self) -> GridPoint:
        """AdamW's setting."""
        return RETRAIN if self.start is None else FINE_TUNE

    def fit(self, lists: MeasuredLists, rows: NDArray[np.bool_]) -> Fitted:
        """A ranker from those lists of `rows` ([lists]) that teach an order; ArtefactError if none does."""
        pin_arithmetic()
        used = rows & lists.teaches
        if not used.any():
            raise ArtefactError("no list has a configuration that meets the SLO, so there is nothing to learn from")
        features = lists.features[used]
        targets = torch.from_numpy(lists.utilities()[used].astype(np.float32))
        if self.start is None:
            ranker, loss = fit(
                torch.from_numpy(features),
                targets,
                normalisation=_normalisation(features),
                point=self.point,
                settings=self.settings,
            )
            return Fitted(score=ranker.score, graph=build_graph(ranker), loss=loss)
        start, inputs = self.start, self.start.transformed(features)
        ranker = start.ranker(_normalisation(inputs))
        loss = _go_on(ranker, torch.from_numpy(inputs), targets, point=self.point, settings=self.settings)
        return Fitted(
            score=lambda asked: ranker.score(start.transformed(asked)), graph=start.with_layers_of(ranker), loss=loss
        )


def _normalisation(features: NDArray[np.float32]) -> Normalisation:
    """Of [lists, configurations, 12]; a constant column has its own size for its scale and still becomes 0.

    A site measures one model, say, whose 114,688 bytes per token times a weight of ordinary size would be subtracted
    from themselves in the exported graph, which float32 does to three digits only.
    """
    found = Normalisation.of(features)
    constant = (features == features[:1, :1]).all(axis=(0, 1))
    return replace(found, std=np.where(constant, np.maximum(1.0, np.abs(found.mean)), found.std))


def _go_on(
    ranker: Ranker, inputs: torch.Tensor, targets: torch.Tensor, *, point: GridPoint, settings: TrainingSettings
) -> float:
    """Trains a ranker on from its present weights; the last epoch's mean loss."""
    optimizer = torch.optim.AdamW(ranker.parameters(), lr=point.learning_rate, weight_decay=point.weight_decay)
    shuffle = torch.Generator().manual_seed(settings.seed)
    total = 0.0
    for _ in range(settings.epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(inputs), generator=shuffle), point.batch_lists):
            optimizer.zero_grad(set_to_none=True)
            loss = listnet_loss(ranker(inputs[batch]), targets[batch], temperature=settings.temperature)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(batch)
    return total / len(inputs)
