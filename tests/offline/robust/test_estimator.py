"""The estimator learns quantiles and chances, is calibrated on other lists, and its graph computes the same."""

import math
from dataclasses import replace

import numpy as np
import pytest

from offline.robust.curves import reliabilities
from offline.robust.estimator import (
    FIXED_ROW,
    EstimatorNetwork,
    EstimatorSettings,
    Predicted,
    calibrated,
    fit_estimator,
    happened,
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
    """A configuration has as many tokens per second as sequences, give or take a fifth as its latencies are. The
    engine's default keeps the SLO in a tenth of the lists, every other configuration in nine tenths."""
    made = read_lists(write(tmp_path_factory.mktemp("made") / "made.parquet", rows=400, draws=1))
    rng = np.random.default_rng(1)
    sequences = np.array([one.max_num_seqs for one in configurations()])
    made.outcomes.throughput_tps[:] = sequences * rng.uniform(0.8, 1.2, made.outcomes.met.shape)
    for latency in (made.outcomes.ttft_p95_ms, made.outcomes.tpot_p95_ms):
        latency *= rng.uniform(0.8, 1.2, latency.shape)
    kept = rng.random(made.outcomes.met.shape) < 0.9
    made.outcomes.met[:] = kept
    made.outcomes.met[:, DEFAULT_ROW] = ~kept[:, DEFAULT_ROW]
    return made


@pytest.fixture(scope="module")
def network(lists: Lists) -> EstimatorNetwork:
    return calibrated(fit_estimator(lists[:300], QUICK), lists[300:])


def test_it_learns_what_a_configuration_shows(lists: Lists, network: EstimatorNetwork) -> None:
    quantiles, _, chances = network.predict(lists.features())
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
    # Candidate 0 keeps it in nine tenths; there the default, which keeps it in a tenth, is worse but in a tenth.
    assert chances[:, DEFAULT_ROW, 2].mean() == pytest.approx(0.1 + 0.9 * 0.1, abs=0.06)


def test_a_ratio_is_known_better_than_what_both_share(lists: Lists) -> None:
    rng = np.random.default_rng(2)
    shared = lists[np.arange(len(lists))]
    # A draw does to all configurations alike, what a fifth does to each.
    shared.outcomes.throughput_tps[:] *= np.exp(rng.normal(0.0, 1.0, (len(lists), 1)))
    network = calibrated(fit_estimator(shared[:300], QUICK), shared[300:])
    found = network.predict(shared.features())
    for index, one in enumerate(configurations()[:DEFAULT_ROW]):
        assert np.exp(found.ratios[:, index, 0, 1]).mean() == pytest.approx(one.max_num_seqs / 1024, rel=0.3)
    own, ratio = (np.median(part[:, :DEFAULT_ROW, 0, 2] - part[:, :DEFAULT_ROW, 0, 0]) for part in found[:2])
    # Two standard deviations of 1.64 on each side, against at most ln(1.2 / 0.8) on each.
    assert own == pytest.approx(2 * 1.64, rel=0.3)
    assert ratio < 2 * np.log(1.2 / 0.8)
    errors = forecast_errors(found, shared.outcomes.reshape(len(shared), 1))
    assert errors["throughput_tps_ratio"]["coverage"] == pytest.approx(0.9, abs=0.03)
    assert errors["throughput_tps_ratio"]["error"] < errors["throughput_tps"]["error"]


def test_no_configuration_is_worse_than_itself_whatever_the_network_says(lists: Lists) -> None:
    network = fit_estimator(lists[:20], replace(QUICK, epochs=1))
    found = network.predict(lists[:5].features())
    wanted = found.chances[..., 1:].copy()
    assert (wanted < 1).all()
    wanted[:, DEFAULT_ROW, 0] = wanted[:, FIXED_ROW, 1] = 1.0
    assert (found.not_worse == wanted).all()
    assert (found.chances[..., 1:] < 1).all()  # a copy


def test_quantiles_never_cross_however_they_are_moved(lists: Lists, network: EstimatorNetwork) -> None:
    moved = replace(network, offset=np.full((6, 2), -5.0, dtype=np.float32))
    for one in (network, moved):
        for quantiles in one.predict(lists.features())[:2]:
            assert (np.diff(quantiles, axis=-1) >= 0).all()


def test_the_graph_computes_the_same_and_files_keep_everything(lists: Lists, network: EstimatorNetwork) -> None:
    content = build_estimator_graph(network)
    assert build_estimator_graph(estimator_from_bytes(estimator_bytes(network))) == content
    assert check_estimator_parity(network, content, lists.features()) < 1e-4
    assert estimator_sha256(network) != estimator_sha256(replace(network, shift=network.shift + 1))
    # The service probes a graph with zeros before it serves it.
    probed = run_estimator_graph(content, np.zeros((1, 16, 12), np.float32))
    assert [part.shape for part in probed] == [(1, 16, 3, 3), (1, 16, 3, 3), (1, 16, 3)]
    assert all(np.isfinite(part).all() for part in probed)


@pytest.mark.parametrize("column", [0, 5])
@pytest.mark.parametrize("chance", [None, 2])
def test_a_graph_that_computes_anything_else_is_refused(
    lists: Lists, network: EstimatorNetwork, column: int, chance: int | None
) -> None:
    # A number, a ratio, or the chance against candidate 0 is another.
    centre, shift = network.centre.copy(), network.shift.copy()
    if chance is None:
        centre[column] += 0.1
    else:
        shift[chance] += 0.1
    other = build_estimator_graph(replace(network, centre=centre, shift=shift))
    with pytest.raises(ArtefactError, match="the exported estimator differs"):
        check_estimator_parity(network, other, lists.features())


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
    # Than candidate 0, which keeps it with 100 tokens per second, the default is worse, too.
    expected[DEFAULT_ROW] = False
    assert not_worse(one.outcomes, FIXED_ROW)[0].tolist() == expected.tolist()
    (met, all_rows), (_, candidates), (against_fixed, others) = happened(one.outcomes)
    assert met[0].tolist() == one.outcomes.met[0].tolist()
    assert against_fixed[0].tolist() == expected.tolist()
    assert (all_rows, candidates, others) == (list(range(16)), list(range(15)), list(range(1, 16)))


def test_a_ratio_is_of_one_draw_and_undefined_where_either_is(lists: Lists) -> None:
    two = lists[4:6]
    two.outcomes.throughput_tps[:] = 100.0
    # What the draw does to both cancels: 200 of 400 and 50 of 100.
    two.outcomes.throughput_tps[:, 3], two.outcomes.throughput_tps[:, DEFAULT_ROW] = [200.0, 50.0], [400.0, 100.0]
    two.outcomes.tpot_p95_ms[0, DEFAULT_ROW] = np.nan
    two.outcomes.failed[1, 7] = True
    values, defined = logarithms(two.outcomes)
    assert values.shape == defined.shape == (2, 16, 6)
    assert np.exp(values[:, 3, 3]).tolist() == pytest.approx([0.5, 0.5])
    # Without the default's TPOT in the first draw there is no ratio of TPOT; what failed in the second has none at all.
    assert defined[0, 3].tolist() == [True, True, True, True, True, False]
    assert defined[1, 3].tolist() == [True] * 6
    assert defined[1, 7].tolist() == [False] * 6
    # The default's ratio to itself says nothing.
    assert defined[:, DEFAULT_ROW].tolist() == [[True, True, False] + [False] * 3, [True] * 3 + [False] * 3]


def test_where_the_default_fails_there_are_no_ratios(lists: Lists) -> None:
    one = lists[6:7]
    one.outcomes.failed[0, DEFAULT_ROW] = True
    defined = logarithms(one.outcomes)[1][0]
    assert not defined[:, 3:].any()
    assert defined[:DEFAULT_ROW, :3].all()


def test_a_failed_run_has_no_numbers_and_an_answer_of_one_token_no_tpot(lists: Lists) -> None:
    one = lists[1:2]
    one.outcomes.failed[0, 4] = True
    one.outcomes.tpot_p95_ms[0, 5] = np.nan
    defined = logarithms(one.outcomes)[1][0]
    assert defined[4].tolist() == [False] * 6
    assert defined[5].tolist() == [True, True, False] * 2


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
    outcomes.throughput_tps[0, 1, :DEFAULT_ROW] = 200.0
    quantiles, ratios = np.zeros((2, 1, 16, 3, 3), dtype=np.float32)
    quantiles[..., 0, :] = np.log([90.0, 220.0, 300.0])
    ratios[..., 0, :] = np.log([0.8, 0.9, 1.2])
    every = forecast_errors(Predicted(quantiles, ratios, np.zeros((1, 16, 3), np.float32)), outcomes)
    found = every["throughput_tps"]
    # The median of logarithms is √(100 · 200): 220 is 55.6 % off; both draws lie between 90 and 300, but for the
    # default's of 400.
    assert found["error"] == pytest.approx(220 / math.sqrt(100 * 200) - 1, rel=1e-4)
    assert found["coverage"] == 31 / 32
    assert found["width"] == pytest.approx(300 / 90, rel=1e-4)
    # Ratios of 1 and of a half, draw by draw: √½ in the middle. The default's own do not count.
    ratio = every["throughput_tps_ratio"]
    assert ratio["error"] == pytest.approx(0.9 / math.sqrt(0.5) - 1, rel=1e-4)
    assert ratio["coverage"] == 0.5
    assert ratio["width"] == pytest.approx(1.5, rel=1e-4)


def test_of_a_ratio_the_error_is_over_what_differs_from_the_default(lists: Lists) -> None:
    outcomes = lists[2:4].outcomes.reshape(1, 2)
    outcomes.throughput_tps[:] = 100.0
    outcomes.throughput_tps[:, :, 3] = 50.0
    told = np.zeros((1, 16, 3, 3), dtype=np.float32)
    found = forecast_errors(Predicted(told + np.log(np.float32(100)), told, np.zeros((1, 16, 3), np.float32)), outcomes)
    # Fourteen do exactly as the default does, of which the ratio of 1 is no merit; said of a half it is 100 % off.
    assert found["throughput_tps_ratio"]["error"] == pytest.approx(1.0)
    assert found["throughput_tps"]["error"] == pytest.approx(0.0, abs=1e-6)
    assert found["throughput_tps_ratio"]["coverage"] == pytest.approx(28 / 30)


def test_each_chance_is_judged_on_what_it_is_about(lists: Lists) -> None:
    outcomes = lists[8:10].outcomes.reshape(1, 2)
    outcomes.met[:] = True
    outcomes.throughput_tps[:] = 100.0
    outcomes.throughput_tps[0, 1, FIXED_ROW] = 110.0
    said = np.full((1, 16, 3), 0.75, dtype=np.float32)
    said[0, DEFAULT_ROW, 1] = said[0, FIXED_ROW, 2] = 0.05  # about themselves: not asked
    found = reliabilities(Predicted(np.zeros(0, np.float32), np.zeros(0, np.float32), said), outcomes)
    assert list(found) == ["slo_met", "not_worse_than_engine_default", "not_worse_than_fixed"]
    # All keep the SLO and are no worse than the default; than candidate 0 every other is worse in one draw of two.
    assert [one["ece"] for one in found.values()] == pytest.approx([0.25, 0.25, 0.25])
    assert [one["bins"][7]["happened"] for one in found.values()] == [1.0, 1.0, 0.5]
    assert [one["bins"][7]["n"] for one in found.values()] == [32, 30, 30]
