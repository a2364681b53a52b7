"""Each metric on four scenarios whose values were worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline.dataset import Outcomes
from offline.metrics import (
    Picked,
    failures,
    goodputs,
    mean_of,
    percentile,
    pick,
    regrets,
    slo_regrets,
    tail_without_failures_ms,
    throughput_ratio_where_both_meet,
    throughputs,
    ttft_tail_ms,
    violations,
)

# Scenario 0 meets the SLO with half of the best; 1 violates it at more than the best; 2 failed; 3 has no feasible one.
PICKED = Picked(
    throughput_tps=np.array([50.0, 300.0, 0.0, 40.0]),
    ttft_p95_ms=np.array([1000.0, 5000.0, math.inf, 4000.0]),
    tpot_p95_ms=np.array([10.0, 20.0, math.inf, 30.0]),
    slo_met=np.array([True, False, False, False]),
    failed=np.array([False, False, True, False]),
    best_tps=np.array([100.0, 200.0, 100.0, math.nan]),
)


def test_the_violation_rate_counts_failures_as_violations() -> None:
    assert mean_of(violations(PICKED)) == 0.75


def test_the_failure_rate_counts_failures_alone() -> None:
    assert mean_of(failures(PICKED)) == 0.25


def test_throughput_counts_violators_and_goodput_does_not() -> None:
    assert mean_of(throughputs(PICKED)) == (50 + 300 + 0 + 40) / 4
    assert mean_of(goodputs(PICKED)) == 50 / 4


def test_published_regret_counts_a_violators_throughput_and_can_be_negative() -> None:
    # 1 − 50/100, 1 − 300/200, 1 − 0/100; the scenario without a feasible candidate is left out.
    values = regrets(PICKED)
    assert values[:3].tolist() == [0.5, -0.5, 1.0]
    assert math.isnan(values[3])
    assert mean_of(values) == pytest.approx(1 / 3)


def test_slo_regret_counts_a_violators_throughput_as_0() -> None:
    assert slo_regrets(PICKED)[:3].tolist() == [0.5, 1.0, 1.0]
    assert mean_of(slo_regrets(PICKED)) == pytest.approx(2.5 / 3)


def test_a_metric_that_covers_no_scenario_is_undefined_and_not_0() -> None:
    assert mean_of(np.array([math.nan, math.nan])) is None


def test_the_ttft_tail_is_unbounded_where_a_failure_reaches_it() -> None:
    # Position 0.95 · 3 = 2.85 lies between 5000 ms and the failure.
    assert ttft_tail_ms(PICKED) == math.inf


def test_the_published_tail_leaves_failures_out() -> None:
    # 1000, 4000, 5000: position 0.95 · 2 = 1.9, so 4000 + 0.9 · 1000.
    assert tail_without_failures_ms(PICKED.ttft_p95_ms, PICKED.failed) == pytest.approx(4900.0)
    assert tail_without_failures_ms(PICKED.ttft_p95_ms, np.ones(4, dtype=np.bool_)) is None


def test_percentiles_interpolate_linearly() -> None:
    assert float(percentile(np.array([4.0, 1.0, 3.0, 2.0]), 0.5)) == 2.5
    assert percentile(np.array([[1.0, 2.0], [5.0, 3.0]]), 0.95).tolist() == pytest.approx([1.95, 4.9])
    assert float(percentile(np.array([7.0]), 0.95)) == 7.0


def test_a_percentile_just_below_an_infinity_is_finite_only_if_it_needs_none_of_it() -> None:
    assert float(percentile(np.array([1.0, 2.0, math.inf]), 0.5)) == 2.0
    assert float(percentile(np.array([1.0, 2.0, math.inf]), 0.51)) == math.inf
    assert float(percentile(np.array([math.inf, math.inf]), 0.5)) == math.inf


@settings(deadline=None)
@given(
    latencies=st.lists(st.floats(min_value=1.0, max_value=1e6), min_size=1, max_size=20),
    failing=st.integers(min_value=0, max_value=19),
)
def test_turning_a_slow_scenario_into_a_failure_never_improves_the_tail(latencies: list[float], failing: int) -> None:
    values = np.array(latencies)
    with_failure = values.copy()
    with_failure[failing % len(values)] = math.inf
    assert float(percentile(with_failure, 0.95)) >= float(percentile(values, 0.95))


def test_leaving_failures_out_would_improve_the_tail_that_gates_must_not_use() -> None:
    slow = np.array([1000.0, 1000.0, 9000.0])
    failed = np.array([1000.0, 1000.0, math.inf])
    none, last = np.array([False, False, False]), np.array([False, False, True])
    without = tail_without_failures_ms(failed, last)
    slow_tail = tail_without_failures_ms(slow, none)
    assert without is not None
    assert slow_tail is not None
    assert without < slow_tail
    assert float(percentile(failed, 0.95)) > float(percentile(slow, 0.95))


def test_the_throughput_ratio_covers_scenarios_where_both_meet_the_slo() -> None:
    base = Picked(
        throughput_tps=np.array([100.0, 100.0, 100.0, 100.0]),
        ttft_p95_ms=np.ones(4),
        tpot_p95_ms=np.ones(4),
        slo_met=np.array([True, True, True, True]),
        failed=np.zeros(4, dtype=np.bool_),
        best_tps=PICKED.best_tps,
    )
    assert throughput_ratio_where_both_meet(PICKED, base) == (0.5, 1)


def test_no_common_scenario_leaves_the_throughput_ratio_undefined() -> None:
    never = Picked(
        throughput_tps=np.ones(4),
        ttft_p95_ms=np.ones(4),
        tpot_p95_ms=np.ones(4),
        slo_met=np.zeros(4, dtype=np.bool_),
        failed=np.zeros(4, dtype=np.bool_),
        best_tps=PICKED.best_tps,
    )
    assert throughput_ratio_where_both_meet(PICKED, never) == (None, 0)


def _outcomes() -> Outcomes:
    """Candidate i gives (i + 1) · 10 tokens/s, the default 500; only in the first scenario do 0 to 4 meet the SLO."""
    throughput = np.tile(np.array([*np.arange(1.0, 16.0) * 10, 500.0]), (2, 1))
    met = np.zeros((2, 16), dtype=np.bool_)
    met[0, :5] = True
    met[:, 15] = True
    return Outcomes(
        throughput_tps=throughput,
        ttft_p95_ms=throughput * 2,
        tpot_p95_ms=throughput * 3,
        slo_met=met,
        failed=np.zeros((2, 16), dtype=np.bool_),
    )


def test_picking_reads_the_chosen_column_of_each_scenario() -> None:
    picked = pick(_outcomes(), np.array([2, 15]))
    assert picked.throughput_tps.tolist() == [30.0, 500.0]
    assert picked.ttft_p95_ms.tolist() == [60.0, 1000.0]
    assert picked.tpot_p95_ms.tolist() == [90.0, 1500.0]
    assert picked.slo_met.tolist() == [True, True]


def test_the_best_is_taken_over_the_15_so_the_engine_default_can_beat_it() -> None:
    picked = pick(_outcomes(), np.array([15, 15]))
    assert picked.best_tps[0] == 50.0
    assert math.isnan(picked.best_tps[1])
    assert regrets(picked)[0] == -9.0


@pytest.mark.parametrize("choices", [[0], [0, 16], [-1, 0]])
def test_choices_that_do_not_fit_are_refused(choices: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit 2 scenarios"):
        pick(_outcomes(), np.array(choices))
