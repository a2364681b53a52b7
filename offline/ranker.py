"""The ranker: an MLP 12 → 128 → 64 → 1 with ReLU that scores one candidate at a time."""

import io
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offline.artefacts import sha256_bytes
from service.domain.errors import ArtefactError
from service.domain.features import NUM_FEATURES
from service.domain.manifest import RANKER_PARAMETERS

HIDDEN_1, HIDDEN_2 = 128, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """Per-feature mean and standard deviation, [12] float64 each. From the train split alone."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Self:
        """Statistics over all rows of [lists, 15, 12]; a constant column keeps std 1, so it becomes 0."""
        rows = features.reshape(-1, features.shape[-1]).astype(np.float64)
        constant = (rows == rows[0]).all(axis=0)
        return cls(mean=rows.mean(axis=0), std=np.where(constant, 1.0, rows.std(axis=0)))


class Ranker(nn.Module):
    """Scores candidates: [..., 12] unnormalised features → [...] scores; higher is better."""

    mean: Tensor
    std: Tensor

    def __init__(self, normalisation: Normalisation) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(normalisation.mean.astype(np.float32)))
        self.register_buffer("std", torch.from_numpy(normalisation.std.astype(np.float32)))
        self.normalisation = normalisation
        self.layer_1 = nn.Linear(NUM_FEATURES, HIDDEN_1)
        self.layer_2 = nn.Linear(HIDDEN_1, HIDDEN_2)
        self.layer_3 = nn.Linear(HIDDEN_2, 1)
        count = sum(parameter.numel() for parameter in self.parameters())
        if count != RANKER_PARAMETERS:
            raise ArtefactError(f"the ranker has {count} parameters, the contract says {RANKER_PARAMETERS}")

    def forward(self, features: Tensor) -> Tensor:
        """Scores of unnormalised features."""
        hidden = torch.relu(self.layer_1((features - self.mean) / self.std))
        scores: Tensor = self.layer_3(torch.relu(self.layer_2(hidden))).squeeze(-1)
        return scores

    def score(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """[lists, 15] float32 scores of [lists, 15, 12] features."""
        with torch.no_grad():
            scores: NDArray[np.float32] = self(torch.from_numpy(features)).numpy()
        return scores

    def layers(self) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
        """(weight [out, in], bias [out]) of each layer, first to last."""
        return tuple(
            (layer.weight.detach().numpy(), layer.bias.detach().numpy())
            for layer in (self.layer_1, self.layer_2, self.layer_3)
        )

    def weights_sha256(self) -> str:
        """Digest of normalisation and weights: two rankers with the same digest give the same scores."""
        arrays = [self.normalisation.mean, self.normalisation.std, *(array for pair in self.layers() for array in pair)]
        return sha256_bytes(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))

    def to_bytes(self) -> bytes:
        """A NumPy archive of normalisation and weights."""
        arrays: dict[str, NDArray[Any]] = {"mean": self.normalisation.mean, "std": self.normalisation.std}
        for number, (weight, bias) in enumerate(self.layers(), start=1):
            arrays |= {f"weight_{number}": weight, f"bias_{number}": bias}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Inverse of to_bytes; ArtefactError if the archive is not one."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                ranker = cls(Normalisation(mean=arrays["mean"], std=arrays["std"]))
                with torch.no_grad():
                    for number, layer in enumerate((ranker.layer_1, ranker.layer_2, ranker.layer_3), start=1):
                        layer.weight.copy_(torch.from_numpy(arrays[f"weight_{number}"]))
                        layer.bias.copy_(torch.from_numpy(arrays[f"bias_{number}"]))
        except (ValueError, KeyError, OSError, RuntimeError) as error:
            raise ArtefactError(f"not a ranker's weights ({error}); run `python -m offline train` again") from error
        return ranker
