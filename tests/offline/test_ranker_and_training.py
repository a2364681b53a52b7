"""The network, its normalisation, and a training that repeats itself to the last bit."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from offline.arithmetic import pin_arithmetic
from offline.dataset import CellFiles, Development
from offline.ranker import Normalisation, Ranker
from offline.settings import GridPoint, TrainingSettings
from offline.train import best_on_dev, train
from service.domain.errors import ArtefactError
from tests.offline.synthetic import ROOT

SHORT = TrainingSettings(epochs=3, batch_lists=(16,), learning_rates=(0.003,), weight_decays=(0.0, 0.01))


def test_the_ranker_has_9985_parameters(synthetic_data: Development) -> None:
    ranker = Ranker(Normalisation.of(synthetic_data.train.questions.features))
    # 12 · 128 + 128, 128 · 64 + 64, 64 + 1
    assert [weight.size + bias.size for weight, bias in ranker.layers()] == [1664, 8256, 65]


def test_a_constant_column_is_normalised_to_0() -> None:
    features = np.array([[[5.0, 1.0], [5.0, 3.0]]], dtype=np.float32)
    normalisation = Normalisation.of(features)
    assert normalisation.mean.tolist() == [5.0, 2.0]
    assert normalisation.std.tolist() == [1.0, 1.0]


def test_normalisation_comes_from_the_train_split_alone(synthetic_data: Development) -> None:
    trained = train(synthetic_data, replace(SHORT, epochs=1))
    train_prompts = [scenario.workload.prompt_tokens for scenario in synthetic_data.train.questions.scenarios]
    assert trained.ranker.normalisation.mean[4] == pytest.approx(np.mean(train_prompts))
    # chat, rag and longgen: 512, 6000 and 256 tokens. summarize's 12000 would pull it up.
    assert np.mean(train_prompts) == pytest.approx((512 + 6000 + 256) / 3)


def test_two_trainings_give_the_same_weights(synthetic_data: Development) -> None:
    first, second = (train(synthetic_data, SHORT) for _ in range(2))
    assert first.ranker.weights_sha256() == second.ranker.weights_sha256()
    assert [result.to_json() for result in first.results] == [result.to_json() for result in second.results]


_TRAIN_ALONE = """
import os, sys
from pathlib import Path
os.environ.update(ATEN_CPU_CAPABILITY="avx2", MKL_CBWR="AVX2")
from offline.dataset import CellFiles, load_development
from offline.train import train
from tests.offline.test_ranker_and_training import SHORT
files = CellFiles(reference=Path(sys.argv[1]), engine_default=Path(sys.argv[2]))
print(train(load_development(files), SHORT).ranker.weights_sha256())
"""


def test_weights_do_not_depend_on_the_kernels_that_a_cpu_would_choose(
    synthetic_files: CellFiles, synthetic_data: Development
) -> None:
    paths = [str(synthetic_files.reference), str(synthetic_files.engine_default)]
    alone = subprocess.run(
        [sys.executable, "-c", _TRAIN_ALONE, *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert alone.stdout.strip() == train(synthetic_data, SHORT).ranker.weights_sha256()


def test_pinning_after_a_kernel_ran_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    with pytest.raises(RuntimeError, match="computes with AVX512 kernels already; call pin_arithmetic before"):
        pin_arithmetic()


def test_training_lowers_the_loss(synthetic_data: Development) -> None:
    brief = train(synthetic_data, replace(SHORT, epochs=1)).results[0].train_loss
    longer = train(synthetic_data, replace(SHORT, epochs=40)).results[0].train_loss
    assert longer < brief


def test_the_caller_sees_every_grid_point_go_by(synthetic_data: Development) -> None:
    seen: list[float] = []

    def watch(points: tuple[GridPoint, ...]) -> Iterator[GridPoint]:
        for point in points:
            seen.append(point.weight_decay)
            yield point

    train(synthetic_data, replace(SHORT, epochs=1), progress=watch)
    assert seen == [0.0, 0.01]


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([(0.5, 0.0), (0.25, 0.9)], 1),
        ([(0.25, 0.2), (0.25, 0.1)], 1),
        ([(0.25, 0.1), (0.25, 0.1)], 0),
        ([(0.25, None), (0.25, 0.9)], 1),
    ],
)
def test_dev_chooses_by_violations_then_regret_then_the_first(
    results: list[tuple[float, float | None]], best: int
) -> None:
    assert best_on_dev(results) == best


def test_lists_without_a_candidate_that_meets_the_slo_teach_nothing(synthetic_data: Development) -> None:
    outcomes = synthetic_data.train.outcomes
    hopeless = replace(outcomes, slo_met=np.zeros_like(outcomes.slo_met))
    data = replace(synthetic_data, train=replace(synthetic_data.train, outcomes=hopeless))
    with pytest.raises(ArtefactError, match="nothing to learn from"):
        train(data, SHORT)


def test_weights_survive_their_file(synthetic_data: Development) -> None:
    torch.manual_seed(1)
    ranker = Ranker(Normalisation.of(synthetic_data.train.questions.features))
    assert Ranker.from_bytes(ranker.to_bytes()).weights_sha256() == ranker.weights_sha256()


def test_a_damaged_weights_file_is_refused() -> None:
    with pytest.raises(ArtefactError, match="not a ranker's weights"):
        Ranker.from_bytes(b"PK damaged")
