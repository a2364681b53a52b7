"""Stage 2: the MLP over a small grid of AdamW settings, chosen on dev."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offline.arithmetic import pin_arithmetic
from offline.dataset import ENGINE_DEFAULT_CHOICE, Development, LabelledSet
from offline.losses import listnet_loss
from offline.metrics import mean_of, pick, regrets, violations
from offline.policies import mlp_choices
from offline.ranker import Normalisation, Ranker
from offline.settings import GridPoint, TrainingSettings
from offline.utility import utilities
from service.domain.errors import ArtefactError


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """One trained grid point and what it reaches on dev; regret is None if no dev scenario is feasible."""

    point: GridPoint
    ranker: Ranker
    train_loss: float
    dev_slo_violation_rate: float
    dev_regret: float | None

    def to_json(self) -> dict[str, Any]:
        """The record in the manifest."""
        return {
            **asdict(self.point),
            "train_loss": self.train_loss,
            "dev_slo_violation_rate": self.dev_slo_violation_rate,
            "dev_regret": self.dev_regret,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The whole grid in order, and the index of the point that dev chose."""

    results: tuple[GridResult, ...]
    chosen: int

    @property
    def ranker(self) -> Ranker:
        """The ranker that dev chose."""
        return self.results[self.chosen].ranker


def train(
    data: Development,
    settings: TrainingSettings,
    *,
    progress: Callable[[tuple[GridPoint, ...]], Iterable[GridPoint]] = iter,
) -> Trained:
    """Trains every grid point on train and chooses on dev by (SLO violation rate, regret, first in the grid).

    progress wraps the grid's points, so that a terminal can show how far it is.
    """
    pin_arithmetic()
    features, targets = _lists(data.train)
    normalisation = Normalisation.of(data.train.questions.features)
    results = []
    for point in progress(settings.grid()):
        ranker, loss = fit(features, targets, normalisation=normalisation, point=point, settings=settings)
        rate, regret = _on_dev(ranker, data.dev)
        results.append(
            GridResult(point=point, ranker=ranker, train_loss=loss, dev_slo_violation_rate=rate, dev_regret=regret)
        )
    return Trained(
        results=tuple(results), chosen=best_on_dev([(r.dev_slo_violation_rate, r.dev_regret) for r in results])
    )


def best_on_dev(results: list[tuple[float, float | None]]) -> int:
    """Index of the lowest (SLO violation rate, regret); the first of equals; an undefined regret comes last."""

    def key(index: int) -> tuple[float, float]:
        rate, regret = results[index]
        return rate, float("inf") if regret is None else regret

    return min(range(len(results)), key=key)


def fit(
    features: torch.Tensor,
    targets: torch.Tensor,
    *,
    normalisation: Normalisation,
    point: GridPoint,
    settings: TrainingSettings,
) -> tuple[Ranker, float]:
    """A ranker after all epochs, and the last epoch's mean loss. features: [lists, 15, 12]; targets: [lists, 15]."""
    torch.manual_seed(settings.seed)
    ranker = Ranker(normalisation)
    optimizer = torch.optim.AdamW(ranker.parameters(), lr=point.learning_rate, weight_decay=point.weight_decay)
    shuffle = torch.Generator().manual_seed(settings.seed)
    total = 0.0
    for _ in range(settings.epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(features), generator=shuffle), point.batch_lists):
            optimizer.zero_grad(set_to_none=True)
            loss = listnet_loss(ranker(features[batch]), targets[batch], temperature=settings.temperature)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(batch)
    return ranker, total / len(features)


def _lists(train_set: LabelledSet) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and utilities of the lists that teach an order: those with a candidate that meets the SLO."""
    met = train_set.outcomes.slo_met[:, :ENGINE_DEFAULT_CHOICE]
    teaches = met.any(axis=1)
    if not teaches.any():
        raise ArtefactError("no train scenario has a candidate that meets the SLO, so there is nothing to learn from")
    target: NDArray[np.float64] = utilities(
        throughput_tps=train_set.outcomes.throughput_tps[teaches, :ENGINE_DEFAULT_CHOICE], slo_met=met[teaches]
    )
    features = torch.from_numpy(train_set.questions.features[teaches])
    return features, torch.from_numpy(target.astype(np.float32))


def _on_dev(ranker: Ranker, dev: LabelledSet) -> tuple[float, float | None]:
    picked = pick(dev.outcomes, mlp_choices(dev.questions, ranker=ranker))
    return float(violations(picked).mean()), mean_of(regrets(picked))
