"""Scores are those of the network, whatever the batch."""

import numpy as np
import pytest
from numpy.typing import NDArray

from service.domain.features import encode
from service.domain.scenario import ModelArch, Scenario, Workload
from service.scorer import Scorer
from tests.service.bundles import graph, random_layers


def features_at(concurrency: int) -> NDArray[np.float32]:
    """[15, 12] of Qwen3-8B under chat."""
    model = ModelArch(weight_gb=16.38, num_layers=36, hidden_size=4096, kv_bytes_per_token=147456)
    workload = Workload(prompt_tokens=512, max_new_tokens=256, shared_prefix_ratio=0.0, concurrency=concurrency)
    return encode(Scenario(model=model, workload=workload))


def test_scores_are_relu_of_relu_by_hand() -> None:
    layers = random_layers(seed=3)
    hidden = features_at(64).astype(np.float64)
    for weights, bias in layers[:2]:
        hidden = np.maximum(hidden @ weights.T + bias, 0)
    by_hand = (hidden @ layers[2][0].T + layers[2][1])[:, 0]
    scores = Scorer(graph(layers)).score(features_at(64))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, by_hand, rtol=1e-4, atol=1e-5)


def test_a_batch_scores_as_its_members_do() -> None:
    scorer = Scorer(graph(random_layers()))
    single = [features_at(concurrency) for concurrency in (4, 64, 256)]
    batch = scorer.score(np.stack(single))
    assert batch.shape == (3, 15)
    np.testing.assert_allclose(batch, np.stack([scorer.score(rows) for rows in single]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(15,), (12, 15), (14, 12), (2, 15, 11), (1, 1, 15, 12)])
def test_features_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Scorer(graph(random_layers())).score(np.zeros(shape, dtype=np.float32))
