"""What the robust ranker learns: the expected utility of each of the 16 configurations, and the losses that ask for it.

One draw of the true workload gives one noisy utility; a network that is trained on very many such lists by squared
error learns their expectation.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline.robust.lists import Outcomes
from service.domain.slo import REFERENCE_SLO


def utilities(outcomes: Outcomes, *, violation: float, power: float = 1.0, latency: float = 0.0) -> NDArray[np.float64]:
    """[..., 16] utility of each configuration in each list; higher is better.

    SLO met: (throughput ÷ the best throughput in the list among those that meet the SLO) to `power`, in (0, 1], less
    `latency` · p95 TTFT ÷ its limit; else −violation. Where none meets it all are −violation: such a list teaches
    nothing, and costs nothing.
    """
    throughput = np.where(outcomes.met, outcomes.throughput_tps, 0.0)
    best = throughput.max(axis=-1, keepdims=True)
    share = np.divide(throughput, best, out=np.zeros_like(throughput), where=best > 0)
    waiting = np.where(outcomes.met, outcomes.ttft_p95_ms, 0.0) / REFERENCE_SLO.max_p95_ttft_ms
    return np.where(outcomes.met, share**power - latency * waiting, -violation)


def centred_squared_error(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean over lists and rows of ((score − list's mean) − (utility − list's mean))²; [lists, n] each."""
    difference = (scores - scores.mean(dim=1, keepdim=True)) - (targets - targets.mean(dim=1, keepdim=True))
    return (difference**2).mean()


def listnet(scores: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """ListNet top-one cross-entropy, mean over lists. Cao et al., ICML 2007. [lists, n] each; higher is better."""
    wanted = torch.softmax(targets / temperature, dim=1)
    return -(wanted * torch.log_softmax(scores, dim=1)).sum(dim=1).mean()


def soft_choice(scores: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """−(expected utility when a configuration is drawn with softmax(score ÷ temperature)), mean over lists."""
    return -(torch.softmax(scores / temperature, dim=1) * targets).sum(dim=1).mean()
