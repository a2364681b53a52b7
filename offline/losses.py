"""The ranking loss."""

import torch
from torch import Tensor


def listnet_loss(scores: Tensor, utilities: Tensor, *, temperature: float) -> Tensor:
    """ListNet top-one cross-entropy, mean over lists: −Σ softmax(utilities / temperature) · log softmax(scores).

    scores, utilities: [lists, n]; higher is better; the temperature divides the utilities alone.
    Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, ICML 2007.
    """
    if scores.ndim != 2 or scores.shape != utilities.shape:
        raise ValueError(f"scores {tuple(scores.shape)} and utilities {tuple(utilities.shape)} must be one [lists, n]")
    target = torch.softmax(utilities / temperature, dim=1)
    return -(target * torch.log_softmax(scores, dim=1)).sum(dim=1).mean()
