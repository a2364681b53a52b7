"""Networks that score configurations: the 9,985-parameter ranker behind fixed transforms of its 12 features, and
larger ones that show what that limit costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offline.arithmetic import pin_arithmetic
from offline.robust.lists import Outcomes
from offline.robust.targets import centred_squared_error, listnet, soft_choice, utilities
from service.domain.features import FEATURE_NAMES, NUM_FEATURES

Loss = Literal["squared", "listnet", "soft"]
TransformName = Literal["none", "log", "log and prefix"]
LOGGED = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token", "prompt_tokens", "max_new_tokens")
# 1 − 0.99 · ratio: near 1 the uncached share decides, and at 1 a logarithm still has a value.
PREFIX_SLOPE = -0.99


# (weight [out, in], bias [out]) of each linear layer; ReLU between them.
Layers = tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Each feature by itself: linear · x + log(1 + logged · x), [12] float32 each. Finite wherever features are."""

    linear: NDArray[np.float32]
    logged: NDArray[np.float32]

    @classmethod
    def named(cls, name: TransformName) -> "Transform":
        """none: as they are; log: sizes and lengths by their logarithm; and prefix: the uncached share by its."""
        logged = np.zeros(NUM_FEATURES, dtype=np.float32)
        if name != "none":
            logged[[FEATURE_NAMES.index(one) for one in LOGGED]] = 1.0
        if name == "log and prefix":
            logged[FEATURE_NAMES.index("shared_prefix_ratio")] = PREFIX_SLOPE
        return cls(linear=(logged == 0).astype(np.float32), logged=logged)

    def apply(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[..., 12] → [..., 12]."""
        return np.asarray(self.linear * features + np.log(1 + self.logged * features), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a network is trained; every number that the weights depend on. temperature: of listnet and soft alone.

    violation, power and latency: of the utility. sixteenth: whether the engine's default is a row of every list.
    pinned: equal weights on every CPU; what is never shipped may use the faster kernels of the one it runs on.
    """

    loss: Loss = "soft"
    temperature: float = 0.1
    violation: float = 1.0
    power: float = 1.0
    latency: float = 0.0
    transform: TransformName = "log and prefix"
    sixteenth: bool = True
    hidden: tuple[int, ...] = (128, 64)
    epochs: int = 30
    batch_lists: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    seed: int = 0
    pinned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A trained network: transform, normalisation of the transformed features, layers. Picklable, without torch."""

    transform: Transform
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    layers: Layers

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[..., 12] unnormalised features → [...] scores; higher is better."""
        x = normalised(self.transform.apply(features), self.mean, self.std)
        return np.asarray(apply_layers(x, self.layers)[..., 0], dtype=np.float32)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(weight.size + bias.size for weight, bias in self.layers)


def utilities_of(outcomes: Outcomes, settings: FitSettings) -> NDArray[np.float64]:
    """[..., 16] utility by these settings."""
    return utilities(outcomes, violation=settings.violation, power=settings.power, latency=settings.latency)


def fit(
    features: NDArray[np.float32],
    targets: NDArray[np.float64],
    settings: FitSettings,
    *,
    start: Network | None = None,
    progress: Iterable[int] | None = None,
) -> Network:
    """Trains on features [lists, n, 12] and utilities [lists, n]. AdamW, one cosine cycle; equal input, equal weights.

    start: a network to go on from, with its transform and normalisation. progress: yields the epochs, so that a
    terminal can show how far it is.
    """
    if settings.pinned:
        pin_arithmetic()
    torch.manual_seed(settings.seed)
    transform = Transform.named(settings.transform) if start is None else start.transform
    x = transform.apply(features)
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    mean, std = (rows.mean(axis=0), rows.std(axis=0)) if start is None else (start.mean, start.std)
    std = np.where(std < 1e-9, 1.0, std)
    inputs = torch.from_numpy(((x - mean) / std).astype(np.float32))
    wanted = torch.from_numpy(targets.astype(np.float32))
    model = layers_of((NUM_FEATURES, *settings.hidden, 1), start=None if start is None else start.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    batches = -(-len(inputs) // settings.batch_lists)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.learning_rate, total_steps=settings.epochs * batches, pct_start=0.1
    )
    shuffle = torch.Generator().manual_seed(settings.seed)
    for _ in progress if progress is not None else range(settings.epochs):
        for batch in torch.split(torch.randperm(len(inputs), generator=shuffle), settings.batch_lists):
            optimizer.zero_grad(set_to_none=True)
            loss = _loss(model(inputs[batch]).squeeze(-1), wanted[batch], settings)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return Network(transform=transform, mean=mean, std=std, layers=weights_of(model))


def normalised(x: NDArray[np.float32], mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float32]:
    """[..., 12] → [..., 12]."""
    return np.asarray((x - mean.astype(np.float32)) / std.astype(np.float32), dtype=np.float32)


def apply_layers(x: NDArray[np.float32], layers: Layers) -> NDArray[np.float32]:
    """[..., in] → [..., out]."""
    for number, (weight, bias) in enumerate(layers, start=1):
        x = x @ weight.T + bias
        if number < len(layers):
            x = np.maximum(x, 0)
    return x


def layers_of(widths: Sequence[int], *, start: Layers | None = None) -> nn.Sequential:
    """Linear layers with ReLU between them, as torch draws them or with the weights of `start`."""
    parts: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        linear = nn.Linear(before, after)
        if start is not None:
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(start[number][0]))
                linear.bias.copy_(torch.from_numpy(start[number][1]))
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def weights_of(model: nn.Sequential) -> Layers:
    """(weight [out, in], bias [out]) of each."""
    return tuple(
        (layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy())
        for layer in model
        if isinstance(layer, nn.Linear)
    )


def _loss(scores: Tensor, targets: Tensor, settings: FitSettings) -> Tensor:
    if settings.loss == "squared":
        return centred_squared_error(scores, targets)
    if settings.loss == "listnet":
        return listnet(scores, targets, temperature=settings.temperature)
    return soft_choice(scores, targets, temperature=settings.temperature)
