"""Paired bootstrap, comparison and gates on values derived by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from offline.bootstrap import (
    binomial_upper_bound,
    interval,
    mean_difference_interval,
    resamples,
    tail_ratio,
    ttft_tail_ratio_interval,
)
from offline.comparison import Comparison, Estimate, compare
from offline.gates import GATES, judge
from offline.metrics import MEAN_METRICS, Picked
from offline.settings import BootstrapSettings

SETTINGS = BootstrapSettings()


def _picked(*, tps: list[float], met: list[bool], ttft: list[float] | None = None) -> Picked:
    count = len(tps)
    latencies = np.array(ttft if ttft is not None else [100.0] * count)
    return Picked(
        throughput_tps=np.array(tps),
        ttft_p95_ms=latencies,
        tpot_p95_ms=np.ones(count),
        slo_met=np.array(met),
        failed=np.isinf(latencies),
        best_tps=np.full(count, 100.0),
    )


def test_2000_resamples_are_drawn_and_always_the_same_ones() -> None:
    draws = resamples(16, SETTINGS)
    assert draws.shape == (2000, 16)
    assert draws.min() == 0
    assert draws.max() == 15
    assert np.array_equal(draws, resamples(16, SETTINGS))
    assert not np.array_equal(draws, resamples(16, replace(SETTINGS, seed=1)))


def test_a_constant_difference_has_an_interval_of_no_width() -> None:
    values = np.array([3.0, 14.0, 159.0])
    draws = resamples(3, SETTINGS)
    assert mean_difference_interval(values + 2.0, values, draws=draws, confidence=0.95) == (2.0, 2.0)


def test_the_bootstrap_pairs_scenarios() -> None:
    # Means of both drawn lists vary by hundreds; the difference is always 0, because both draw the same scenario.
    values = np.array([1.0, 1000.0])
    draws = np.array([[0, 0], [1, 1], [0, 1]])
    assert mean_difference_interval(values, values, draws=draws, confidence=0.95) == (0.0, 0.0)


def test_the_interval_is_the_percentiles_of_the_replicates() -> None:
    # 0, 1, … 40 at 2.5 % and 97.5 %: positions 1 and 39.
    assert interval(np.arange(41.0), confidence=0.95) == pytest.approx((1.0, 39.0))


def test_scenarios_that_a_metric_leaves_out_do_not_count_in_a_replicate() -> None:
    values, base = np.array([1.0, math.nan]), np.array([0.0, math.nan])
    draws = np.array([[0, 1], [0, 0], [1, 1]])
    assert mean_difference_interval(values, base, draws=draws, confidence=0.95) == (1.0, 1.0)


def test_an_interval_of_nothing_is_undefined() -> None:
    assert all(math.isnan(end) for end in interval(np.array([math.nan]), confidence=0.95))


@pytest.mark.parametrize(
    ("tail", "base", "ratio"),
    [(300.0, 200.0, 1.5), (math.inf, 200.0, math.inf), (300.0, math.inf, 0.0), (math.inf, math.inf, 1.0)],
)
def test_the_ratio_of_unbounded_tails(tail: float, base: float, ratio: float) -> None:
    assert float(tail_ratio(np.array(tail), np.array(base))) == ratio


def test_failures_make_the_tail_ratio_unbounded() -> None:
    slow = _picked(tps=[1.0, 1.0], met=[True, True], ttft=[100.0, math.inf])
    fine = _picked(tps=[1.0, 1.0], met=[True, True])
    draws = np.array([[0, 0], [1, 1]])
    low, high = ttft_tail_ratio_interval(slow, fine, draws=draws, confidence=0.95)
    assert high == math.inf
    assert low == math.inf  # between the two replicates 1 and +inf nothing is bounded


def test_the_upper_bound_of_a_rate_is_clopper_pearsons() -> None:
    # Nothing in n: 1 − 0.05^(1/n). All in n: 1. One in 2: (1 − p)² + 2 p (1 − p) = 1 − p² = 0.05.
    assert binomial_upper_bound(0, 16, confidence=0.95) == pytest.approx(1 - 0.05 ** (1 / 16))
    assert binomial_upper_bound(16, 16, confidence=0.95) == 1.0
    assert binomial_upper_bound(1, 2, confidence=0.95) == pytest.approx(math.sqrt(0.95))


def test_a_comparison_states_differences_and_the_rates_that_need_both() -> None:
    base = _picked(tps=[50.0, 50.0, 80.0, 10.0], met=[True, True, True, False])
    policy = _picked(tps=[100.0, 60.0, 90.0, 20.0], met=[True, True, False, False])
    oracle = _picked(tps=[100.0, 100.0, 100.0, 40.0], met=[True, True, True, True])
    comparison = compare(policy, base, oracle=oracle, coverage=0.75, settings=SETTINGS)
    assert comparison.differences["slo_violation_rate"].value == 0.25
    assert comparison.differences["output_throughput_tps"].value == (270 - 190) / 4
    assert comparison.differences["goodput_tps"].value == (160 - 180) / 4
    assert comparison.throughput_ratio == pytest.approx((100 / 50 + 60 / 50) / 2)
    assert comparison.both_meet == 2
    assert comparison.unsafe_rate == 0.25
    # Goodput 160 against 180 of the base and 340 of the oracle.
    assert comparison.oracle_gain_captured == pytest.approx(-20 / 160)
    assert comparison.coverage == 0.75
    assert comparison.differences["goodput_tps"].low < -5 < comparison.differences["goodput_tps"].high


def test_no_room_above_the_base_leaves_the_captured_gain_undefined() -> None:
    same = _picked(tps=[50.0], met=[True])
    assert compare(same, same, oracle=same, coverage=1.0, settings=SETTINGS).oracle_gain_captured is None


def test_an_unbounded_ratio_is_null_in_strict_json() -> None:
    slow = _picked(tps=[0.0, 0.0], met=[False, False], ttft=[math.inf, math.inf])
    fine = _picked(tps=[50.0, 50.0], met=[True, True])
    content = compare(slow, fine, oracle=fine, coverage=1.0, settings=SETTINGS).to_json()
    assert json.loads(json.dumps(content, allow_nan=False))["ttft_tail_ratio"] == {"value": None, "ci": [None, None]}


BASE_VALUES: dict[str, float | None] = {"output_throughput_tps": 1000.0, "goodput_tps": 400.0}


def _comparison(**ends: tuple[float, float]) -> Comparison:
    """Intervals of no width at 0 (ratio 1), except those given as metric=(low, high)."""
    tail = ends.pop("ttft_tail_ratio", (1.0, 1.0))
    return Comparison(
        differences={
            name: Estimate(value=0.0, low=ends.get(name, (0.0, 0.0))[0], high=ends.get(name, (0.0, 0.0))[1])
            for name in MEAN_METRICS
        },
        ttft_tail=Estimate(value=1.0, low=tail[0], high=tail[1]),
        throughput_ratio=1.0,
        both_meet=1,
        unsafe_rate=0.0,
        unsafe_upper95=0.0,
        oracle_gain_captured=None,
        coverage=1.0,
    )


def test_there_are_six_gates_and_a_seventh_on_the_tail() -> None:
    assert len(GATES) == 7
    assert GATES[-1].metric == "ttft_tail_ratio"


def test_a_policy_equal_to_fixed_passes_every_gate() -> None:
    assert all(verdict["passed"] for verdict in judge(_comparison(), base_values=BASE_VALUES))


@pytest.mark.parametrize(
    ("metric", "just_inside", "just_outside"),
    [
        ("slo_violation_rate", (-1.0, 0.0625), (-1.0, 0.0626)),
        ("failure_rate", (-1.0, 0.0), (-1.0, 0.01)),
        # Five per cent of FIXED's 1000 and 400 tokens/s.
        ("output_throughput_tps", (-50.0, 99.0), (-50.1, 99.0)),
        ("goodput_tps", (-20.0, 99.0), (-20.1, 99.0)),
        ("regret", (-1.0, 0.05), (-1.0, 0.051)),
        ("slo_regret", (-1.0, 0.05), (-1.0, 0.051)),
        ("ttft_tail_ratio", (0.1, 1.1), (0.1, 1.11)),
        ("ttft_tail_ratio", (0.1, 1.1), (0.1, math.inf)),
        ("regret", (-1.0, 0.05), (math.nan, math.nan)),
    ],
)
def test_each_gate_fails_when_the_far_end_of_its_interval_passes_the_margin(
    metric: str, just_inside: tuple[float, float], just_outside: tuple[float, float]
) -> None:
    inside = judge(_comparison(**{metric: just_inside}), base_values=BASE_VALUES)
    outside = judge(_comparison(**{metric: just_outside}), base_values=BASE_VALUES)
    assert all(verdict["passed"] for verdict in inside)
    assert [verdict["metric"] for verdict in outside if not verdict["passed"]] == [metric]
