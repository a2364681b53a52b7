"""The one ordering of candidates that every program uses."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank(scores: NDArray[np.float32], eligible: Sequence[bool] | None = None) -> list[int]:
    """Candidate indices, best first. scores: [n], higher is better; ties go to the lower index.

    Candidates that are not eligible come last, in the same order among themselves.
    """
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be one finite row, got shape {scores.shape}")
    order = np.argsort(-scores, kind="stable").tolist()
    if eligible is None:
        return [int(i) for i in order]
    if len(eligible) != len(scores):
        raise ValueError(f"{len(eligible)} eligibilities for {len(scores)} scores")
    return sorted((int(i) for i in order), key=lambda i: not eligible[i])
