"""Scores are those of the network, whatever the batch."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.domain.features import encode, encode_candidate, encode_state
from service.domain.gpu import GPUS, Gpu
from service.domain.scenario import ModelArch, Scenario, Workload
from service.policies import load_policy
from service.scorer import Scorer
from service.settings import DEFAULT_BUNDLE_DIR
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


WEIGHTS = st.floats(min_value=0.001, max_value=10_000.0)
COUNTS = st.integers(min_value=1, max_value=100_000)
SCENARIOS = st.builds(
    Scenario,
    model=st.builds(
        ModelArch,
        weight_gb=WEIGHTS,
        num_layers=st.integers(min_value=1, max_value=1_000),
        hidden_size=COUNTS,
        kv_bytes_per_token=COUNTS,
    ),
    workload=st.builds(
        Workload,
        prompt_tokens=COUNTS,
        max_new_tokens=COUNTS,
        shared_prefix_ratio=st.floats(min_value=0.0, max_value=1.0),
        concurrency=COUNTS,
    ),
)
QUESTIONS = st.tuples(SCENARIOS, st.sampled_from(GPUS))
REFERENCE_BUNDLE = DEFAULT_BUNDLE_DIR.parent / "qwen3-b200-reference"


@pytest.fixture(scope="module", params=[DEFAULT_BUNDLE_DIR, REFERENCE_BUNDLE], ids=lambda path: str(path.name))
def committed(request: pytest.FixtureRequest) -> Scorer:
    """The scorer of a bundle as it is committed."""
    return load_policy(request.param).scorer


def rows_of(scenario: Scenario, gpu: Gpu) -> NDArray[np.float32]:
    """[16, 12] as the domain encodes them: the candidates, then the engine's default."""
    default = np.array([*encode_state(scenario), *encode_candidate(gpu.engine_default)], dtype=np.float32)
    return np.concatenate([encode(scenario), default[None]])


def as_asked(scorer: Scorer, scenario: Scenario, gpu: Gpu) -> NDArray[np.float32]:
    return scorer.score_question(encode_state(scenario), encode_candidate(gpu.engine_default))


@settings(deadline=None)
@given(question=QUESTIONS)
def test_a_question_scores_as_its_encoded_rows_do_bit_for_bit(
    committed: Scorer, question: tuple[Scenario, Gpu]
) -> None:
    scenario, gpu = question
    scores = as_asked(committed, scenario, gpu)
    assert scores.tobytes() == committed.score_rows(rows_of(scenario, gpu)).tobytes()
    # Whether the default is scored beside them makes no difference to the candidates.
    assert scores[:-1].tobytes() == committed.score(encode(scenario)).tobytes()


@settings(deadline=None)
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=20))
def test_many_questions_score_as_each_does_alone_bit_for_bit(
    committed: Scorer, questions: list[tuple[Scenario, Gpu]]
) -> None:
    together = committed.score_questions(
        [encode_state(scenario) for scenario, _ in questions],
        [encode_candidate(gpu.engine_default) for _, gpu in questions],
    )
    assert together.shape == (len(questions), 16)
    for row, (scenario, gpu) in zip(together, questions, strict=True):
        assert row.tobytes() == as_asked(committed, scenario, gpu).tobytes()


def test_threads_that_ask_at_once_get_their_own_scores(committed: Scorer) -> None:
    states = [(16.0, 36.0, 4096.0, 147456.0, 512.0, 256.0, 0.0, float(n % 9)) for n in range(400)]
    beside = encode_candidate(GPUS[0].engine_default)
    alone = [committed.score_question(state, beside).tobytes() for state in states]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda state: committed.score_question(state, beside).tobytes(), states))
    assert len(set(alone)) == 9
    assert together == alone


def test_an_answer_keeps_its_scores_while_others_are_asked(committed: Scorer) -> None:
    beside = encode_candidate(GPUS[0].engine_default)
    first = committed.score_question((16.0, 36.0, 4096.0, 147456.0, 512.0, 256.0, 0.0, 6.0), beside)
    kept = first.copy()
    committed.score_question((1.0, 28.0, 1024.0, 114688.0, 6000.0, 128.0, 0.7, 2.0), beside)
    assert first.tobytes() == kept.tobytes()
