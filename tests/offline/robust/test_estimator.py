"""The estimator learns quantiles and chances, is calibrated on other lists, and its graph computes the same."""

from dataclasses import replace

import numpy as np
import pytest

from offline.robust.estimator import (
    EstimatorNetwork,
    EstimatorSettings,
    calibrated,
    fit_estimator,
    logarithms,
    not_worse,
    platt,
    reliability,
)
from offline.robust.estimator_graph import build_estimator_graph, check_estimator_parity, run_estimator_graph
from offline.robust.forecast import forecast_errors
from offline.robust.lists import DEFAULT_ROW, Lists, configurations, read_lists
from offline.robust.models import estimator_bytes, estimator_from_bytes, estimator_sha256
from service.domain.errors import ArtefactError
from tests.offline.robust.made_lists import write

QUICK = EstimatorSettings(hidden=(64,), epochs=80, batch_lists=32, learning_rate=1e-2, seeds=(0, 1))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Lists:
    """A configuration has as many tokens per second as sequences, give or take a fifth. The engine's default keeps the
    SLO in a tenth of the lists, every other configuration in nine tenths."""
    made = read_lists(write(tmp_path_factory.mktemp("made") / "made.parquet", rows=400, draws=1))
    rng = np.random.default_rng(1)
    sequences = np.array([one.max_num_seqs for one in configurations()])
    made.outcomes.throughput_tps[:] = sequences * rng.uniform(0.8, 1.2, made.outcomes.met.shape)
    kept = rng.random(made.outcomes.met.shape) < 0.9
    made.outcomes.met[:] = kept
    made.outcomes.met[:, DEFAULT_ROW] = ~kept[:, DEFAULT_ROW]
    return made


@pytest.fixture(scope="module")
def network(lists: Lists) -> EstimatorNetwork:
    return calibrated(fit_estimator(lists[:300], QUICK), lists[300:])


def test_it_learns_what_a_configuration_shows(lists: Lists, network: EstimatorNetwork) -> None:
    quantiles, chances = network.predict(lists.features())
    low, median, high = (np.exp(quantiles[..., 0, level]) for level in range(3))
    for index, one in enumerate(configurations()):
        assert median[:, index].mean() == pytest.approx(one.max_num_seqs, rel=0.3)
    # Calibrated on a quarter of these lists, to hold nine of ten.
    throughput = lists.outcomes.throughput_tps
    assert ((low <= throughput) & (throughput <= high))[300:].mean() == pytest.approx(0.9, abs=0.01)
    assert chances[:, :DEFAULT_ROW, 0].mean() == pytest.approx(0.9, abs=0.04)
    assert chances[:, DEFAULT_ROW, 0].mean() < 0.5
    # The default keeps it in a tenth; there most have fewer sequences, and so less than 95 % of its throughput.
    assert chances[:, :DEFAULT_ROW, 1].mean() == pytest.approx(0.9, abs=0.04)


def test_quantiles_never_cross_however_they_are_moved(lists: Lists, network: EstimatorNetwork) -> None:
    moved = replace(network, offset=np.full((3, 2), -5.0, dtype=np.float32))
    for one in (network, moved):
        quantiles = one.predict(lists.features())[0]
        assert (np.diff(quantiles, axis=-1) >= 0).all()


def test_the_graph_computes_the_same_and_files_keep_everything(lists: Lists, network: EstimatorNetwork) -> None:
    content = build_estimator_graph(network)
    assert build_estimator_graph(estimator_from_bytes(estimator_bytes(network))) == content
    assert check_estimator_parity(network, content, lists.features()) < 1e-4
    assert estimator_sha256(network) != estimator_sha256(replace(network, shift=network.shift + 1))
    # The service probes a graph with zeros before it serves it.
    assert all(np.isfinite(part).all() for part in run_estimator_graph(content, np.zeros((1, 16, 12), np.float32)))
    with pytest.raises(ArtefactError, match="the exported estimator differs"):
        check_estimator_parity(replace(network, shift=network.shift + 1), content, lists.features())


def test_equal_lists_and_settings_give_equal_weights_and_training_can_go_on(lists: Lists) -> None:
    short = replace(QUICK, epochs=2, jitter=0.1)
    first, second = fit_estimator(lists, short), fit_estimator(lists, short)
    assert estimator_sha256(first) == estimator_sha256(second)
    further = fit_estimator(lists, replace(short, epochs=1, learning_rate=1e-9), start=first)
    np.testing.assert_allclose(further.predict(lists.features())[0], first.predict(lists.features())[0], atol=1e-3)


def test_what_is_worse_than_the_default(lists: Lists) -> None:
    one = lists[:1]
    one.outcomes.met[:] = True
    one.outcomes.throughput_tps[:] = 100.0
    one.outcomes.throughput_tps[0, [1, 2]] = 95.0, 94.9
    one.outcomes.met[0, 3] = False
    expected = np.ones(16, dtype=bool)
    expected[[2, 3]] = False
    assert not_worse(one.outcomes)[0].tolist() == expected.tolist()
    # Where the default keeps no SLO, nothing can be worse.
    one.outcomes.met[0, DEFAULT_ROW] = False
    assert not_worse(one.outcomes).all()


def test_a_failed_run_has_no_numbers_and_an_answer_of_one_token_no_tpot(lists: Lists) -> None:
    one = lists[1:2]
    one.outcomes.failed[0, 4] = True
    one.outcomes.tpot_p95_ms[0, 5] = np.nan
    defined = logarithms(one.outcomes)[1][0]
    assert defined[4].tolist() == [False] * 3
    assert defined[5].tolist() == [True, True, False]


def test_platt_s_numbers_undo_a_logit_that_is_too_steep() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=40_000)
    happened = rng.random(40_000) < 1 / (1 + np.exp(-truth))
    slope, shift = platt(2 * truth + 1, happened)
    assert slope == pytest.approx(0.5, abs=0.03)
    assert shift == pytest.approx(-0.5, abs=0.03)


def test_a_calibration_error_is_the_mean_distance_of_what_was_said_from_what_happened() -> None:
    # Ten times 0.95 said and nine happened; ten times 0.25 said and five happened: 0.05 and 0.25 in equal parts.
    said = np.array([0.95] * 10 + [0.25] * 10)
    happened = np.array([True] * 9 + [False] + [True] * 5 + [False] * 5)
    found = reliability(said, happened)
    assert found["ece"] == pytest.approx(0.15)
    assert [row["n"] for row in found["bins"]] == [0, 0, 10, 0, 0, 0, 0, 0, 0, 10]


def test_a_forecast_is_compared_with_the_median_of_the_draws(lists: Lists) -> None:
    outcomes = lists[2:4].outcomes.reshape(1, 2)
    outcomes.throughput_tps[:] = [[[100.0] * 16, [400.0] * 16]]
    quantiles = np.zeros((1, 1, 16, 3, 3), dtype=np.float32)
    quantiles[..., 0, :] = np.log([90.0, 220.0, 300.0])
    found = forecast_errors(quantiles, outcomes)["throughput_tps"]
    # The median of logarithms is √(100 · 400) = 200: 10 % off; one of two draws lies between 90 and 300.
    assert found["error"] == pytest.approx(0.1, rel=1e-4)
    assert found["coverage"] == 0.5
    assert found["width"] == pytest.approx(300 / 90, rel=1e-4)
