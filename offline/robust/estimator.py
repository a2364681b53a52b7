"""The estimator: what a configuration will show, and how likely it is not to be worse than the engine's default.

A small network beside the ranker, on the same lists and the same transformed features, one row a configuration. Its
outputs are quantiles over draws of the true workload (pinball loss) and probabilities (cross-entropy). Quantiles are
of each quantity, and of its ratio to what the engine's default shows in the same draw: what both share cancels there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offline.arithmetic import pin_arithmetic
from offline.robust.lists import DEFAULT_ROW, Bools, Floats, Lists, Outcomes
from offline.robust.network import Layers, Transform, apply_layers, layers_of, normalised, weights_of
from service.domain.features import NUM_FEATURES
from service.domain.manifest import CHANCES, QUANTITIES

LEVELS = (0.05, 0.5, 0.95)
# Losing up to this share of the default's goodput in a draw is not worse.
GOODPUT_SLACK = 0.05
# weight_gb, num_layers, hidden_size, kv_bytes_per_token come first.
MODEL_FEATURES = 4
# Quantities, then their ratios.
COLUMNS = 2 * len(QUANTITIES)
HEAD = (COLUMNS, COLUMNS, COLUMNS, len(CHANCES))
# The candidate that the published system is compared with.
FIXED_ROW = 0
_ASKED = tuple([row for row in range(DEFAULT_ROW + 1) if row != itself] for itself in (None, DEFAULT_ROW, FIXED_ROW))


class Predicted(NamedTuple):
    """[..., 3, 3] natural logarithms, quantities by LEVELS, of themselves and of their ratios to the engine default's;
    [..., 3] probabilities, in the order of CHANCES."""

    quantiles: NDArray[np.float32]
    ratios: NDArray[np.float32]
    chances: NDArray[np.float32]

    @property
    def not_worse(self) -> NDArray[np.float32]:
        """[..., 2] the chances not to be worse than the engine's default and than candidate 0; each of itself is 1."""
        found = self.chances[..., 1:].copy()
        found[..., DEFAULT_ROW, 0] = 1.0
        found[..., FIXED_ROW, 1] = 1.0
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSettings:
    """Every number that the estimator's weights depend on. seeds: one for each member.

    jitter: standard deviation of noise on each list's normalised model features, anew in every epoch: there are few
    models, and what is learnt about one should hold for another like it.
    """

    hidden: tuple[int, ...] = (128, 128, 64)
    epochs: int = 16
    batch_lists: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    seeds: tuple[int, ...] = (0,)
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorNetwork:
    """Transform, normalisation, the layers of each member, and the constants behind the mean of their outputs.

    Members differ in the seed alone; their mean errs less where nothing was trained.
    centre, scale: [6] of the logarithms of quantities and ratios; offset: [6, 2] by which the outer quantiles are moved
    outwards, in logarithms; slope, shift: [3] of the logit of each probability. The last three come from calibration.
    """

    transform: Transform
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    members: tuple[Layers, ...]
    centre: NDArray[np.float32]
    scale: NDArray[np.float32]
    offset: NDArray[np.float32]
    slope: NDArray[np.float32]
    shift: NDArray[np.float32]

    def predict(self, features: NDArray[np.float32]) -> Predicted:
        """Of [..., 12] unnormalised features."""
        medians, below, above, logits = self.raw(features)
        lower, upper = _outwards(below, self.offset[:, 0]), _outwards(above, self.offset[:, 1])
        quantiles = np.stack([medians - lower, medians, medians + upper], axis=-1)
        chances = 1 / (1 + np.exp(-(logits * self.slope + self.shift)))
        own, ratios = np.split(quantiles.astype(np.float32), 2, axis=-2)
        return Predicted(own, ratios, np.asarray(chances, dtype=np.float32))

    def raw(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Before calibration: medians and distances of the outer quantiles from them, [..., 6]; logits, [..., 3]."""
        x = normalised(self.transform.apply(features), self.mean, self.std)
        outputs = np.mean([apply_layers(x, layers) for layers in self.members], axis=0, dtype=np.float32)
        medians, below, above, logits = np.split(outputs, np.cumsum(HEAD)[:-1], axis=-1)
        softplus = (np.logaddexp(0, part) * self.scale for part in (below, above))
        return (medians * self.scale + self.centre, *softplus, logits)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(weight.size + bias.size for layers in self.members for weight, bias in layers)


def _outwards(distance: NDArray[np.float32], offset: NDArray[np.float32]) -> NDArray[np.float32]:
    """Moved, but never across the median."""
    return np.asarray(np.maximum(distance + offset, 0), dtype=np.float32)


def not_worse(outcomes: Outcomes, base: int = DEFAULT_ROW) -> Bools:
    """[..., 16]: no SLO newly violated, and goodput at most 5 % below what the configuration `base` gives."""
    base_met, base_tps = outcomes.met[..., base, None], outcomes.throughput_tps[..., base, None]
    kept = outcomes.met & (outcomes.throughput_tps >= (1 - GOODPUT_SLACK) * base_tps)
    return np.asarray(~base_met | kept, dtype=np.bool_)


def happened(outcomes: Outcomes) -> tuple[tuple[Bools, list[int]], ...]:
    """For each of CHANCES, [..., 16] whether it came true, and the rows that are asked: none is about itself."""
    came = (outcomes.met, not_worse(outcomes), not_worse(outcomes, FIXED_ROW))
    return tuple(zip(came, _ASKED, strict=True))


def logarithms(outcomes: Outcomes) -> tuple[Floats, Bools]:
    """(logarithms, whether defined), [..., 16, 6] each: of the quantities, then of their ratios to the default's.

    Undefined: nothing completed, answers of one token, the default's ratio to itself.
    """
    values = np.stack([outcomes.throughput_tps, outcomes.ttft_p95_ms, outcomes.tpot_p95_ms], axis=-1)
    defined = np.isfinite(values) & (values > 0) & ~outcomes.failed[..., None]
    own = np.log(np.where(defined, values, 1.0))
    both = defined & defined[..., DEFAULT_ROW, None, :]
    both[..., DEFAULT_ROW, :] = False
    ratios = np.where(both, own - own[..., DEFAULT_ROW, None, :], 0.0)
    return np.concatenate([own, ratios], axis=-1), np.concatenate([defined, both], axis=-1)


def fit_estimator(
    lists: Lists,
    settings: EstimatorSettings,
    *,
    start: EstimatorNetwork | None = None,
    progress: Callable[[str], Iterable[int]] | None = None,
) -> EstimatorNetwork:
    """Trains on lists, before any calibration. start: weights to go on from. Equal input, equal weights."""
    pin_arithmetic()
    transform = Transform.named("log and prefix") if start is None else start.transform
    x = transform.apply(lists.features())
    rows = x.reshape(-1, NUM_FEATURES).astype(np.float64)
    mean, std = (rows.mean(axis=0), rows.std(axis=0)) if start is None else (start.mean, start.std)
    std = np.where(std < 1e-9, 1.0, std)
    values, defined = logarithms(lists.outcomes)
    if start is None:
        known = [values[..., k][defined[..., k]] for k in range(COLUMNS)]
        centre = np.array([column.mean() for column in known], dtype=np.float32)
        scale = np.array([column.std() or 1.0 for column in known], dtype=np.float32)
    else:
        centre, scale = start.centre, start.scale
    data = _Targets(
        inputs=torch.from_numpy(((x - mean) / std).astype(np.float32)),
        values=torch.from_numpy(((values - centre) / scale).astype(np.float32)),
        defined=torch.from_numpy(defined.astype(np.float32)),
        came_true=torch.from_numpy(
            np.stack([came for came, _ in happened(lists.outcomes)], axis=-1).astype(np.float32)
        ),
    )
    members = []
    for number, seed in enumerate(settings.seeds):
        torch.manual_seed(seed)
        before = None if start is None else start.members[number]
        model = layers_of((NUM_FEATURES, *settings.hidden, sum(HEAD)), start=before)
        steps = range(settings.epochs)
        _descend(model, data, settings, seed=seed, progress=steps if progress is None else progress(f"member {number}"))
        members.append(weights_of(model))
    return EstimatorNetwork(
        transform=transform,
        mean=np.asarray(mean),
        std=std,
        members=tuple(members),
        centre=centre,
        scale=scale,
        offset=np.zeros((COLUMNS, 2), dtype=np.float32),
        slope=np.ones(len(CHANCES), dtype=np.float32),
        shift=np.zeros(len(CHANCES), dtype=np.float32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """[lists, 16, …] tensors."""

    inputs: Tensor
    values: Tensor
    defined: Tensor
    came_true: Tensor

    def __getitem__(self, index: Any) -> "_Targets":
        return _Targets(
            inputs=self.inputs[index],
            values=self.values[index],
            defined=self.defined[index],
            came_true=self.came_true[index],
        )


def _descend(
    model: nn.Sequential, data: _Targets, settings: EstimatorSettings, *, seed: int, progress: Iterable[int]
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    batches = -(-len(data.inputs) // settings.batch_lists)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.learning_rate, total_steps=settings.epochs * batches, pct_start=0.1
    )
    shuffle = torch.Generator().manual_seed(seed)
    for _ in progress:
        for batch in torch.split(torch.randperm(len(data.inputs), generator=shuffle), settings.batch_lists):
            optimizer.zero_grad(set_to_none=True)
            part = data[batch]
            noise = torch.randn((len(part.inputs), 1, MODEL_FEATURES), generator=shuffle) * settings.jitter
            part.inputs[..., :MODEL_FEATURES] += noise
            loss = _loss(model, part)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def _loss(model: nn.Sequential, data: _Targets) -> Tensor:
    """Pinball loss of three quantiles of each column, and cross-entropy of each event, each a mean over rows."""
    medians, below, above, logits = torch.split(model(data.inputs), list(HEAD), dim=-1)
    softplus = nn.functional.softplus
    total = torch.zeros(())
    count = data.defined.sum(dim=(0, 1)).clamp(min=1)
    for level, guess in zip(LEVELS, (medians - softplus(below), medians, medians + softplus(above)), strict=True):
        miss = data.values - guess
        pinball = torch.maximum(level * miss, (level - 1) * miss) * data.defined
        total = total + (pinball.sum(dim=(0, 1)) / count).sum() / len(QUANTITIES)
    for k, rows in enumerate(_ASKED):
        total = total + nn.functional.binary_cross_entropy_with_logits(logits[:, rows, k], data.came_true[:, rows, k])
    return total


def calibrated(network: EstimatorNetwork, lists: Lists) -> EstimatorNetwork:
    """The same with offsets and logits fitted to lists that it was not trained on.

    Outer quantiles: moved so that in each tail as many rows lie beyond as the level says (conformalised quantile
    regression, Romano et al., 2019, each side by itself). Probabilities: Platt's two numbers.
    """
    medians, below, above, logits = network.raw(lists.features())
    values, defined = logarithms(lists.outcomes)
    offset = np.zeros((COLUMNS, 2), dtype=np.float32)
    for k in range(COLUMNS):
        inside = defined[..., k]
        miss_low = (medians[..., k] - below[..., k] - values[..., k])[inside]
        miss_high = (values[..., k] - medians[..., k] - above[..., k])[inside]
        offset[k] = np.quantile(miss_low, 1 - LEVELS[0]), np.quantile(miss_high, LEVELS[2])
    fits = [
        platt(logits[:, rows, k].ravel().astype(np.float64), came[:, rows].ravel())
        for k, (came, rows) in enumerate(happened(lists.outcomes))
    ]
    slope, shift = np.array(fits, dtype=np.float32).T
    return replace(network, offset=offset, slope=slope, shift=shift)


def platt(logits: Floats, happened: Bools, *, steps: int = 50) -> tuple[float, float]:
    """(slope, shift) that minimise the cross-entropy of sigmoid(slope · logit + shift), by Newton's method."""
    design = np.stack([logits, np.ones_like(logits)], axis=1)
    found = np.array([1.0, 0.0])
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-design @ found))
        gradient = design.T @ (chance - happened)
        curvature = (design * (chance * (1 - chance))[:, None]).T @ design + 1e-6 * np.eye(2)
        found = found - np.linalg.solve(curvature, gradient)
    return float(found[0]), float(found[1])


def reliability(chance: NDArray[np.floating[Any]], happened: Bools, *, bins: int = 10) -> dict[str, Any]:
    """Equal-width bins of predicted chance with what happened in them, and the expected calibration error."""
    chance, happened = np.ravel(chance).astype(np.float64), np.ravel(happened)
    which = np.minimum((chance * bins).astype(np.int64), bins - 1)
    table, error = [], 0.0
    for number in range(bins):
        inside = which == number
        count = int(inside.sum())
        if not count:
            table.append(
                {"low": number / bins, "high": (number + 1) / bins, "n": 0, "predicted": None, "happened": None}
            )
            continue
        predicted, share = float(chance[inside].mean()), float(happened[inside].mean())
        error += abs(predicted - share) * count / len(chance)
        table.append(
            {"low": number / bins, "high": (number + 1) / bins, "n": count, "predicted": predicted, "happened": share}
        )
    return {"bins": table, "ece": error}
