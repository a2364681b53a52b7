"""Policies choose as described, and what choices cost is measured over draws and clusters."""

from pathlib import Path

import numpy as np
import pytest

from offline.robust import choices as choose
from offline.robust.explanation import explain
from offline.robust.lists import DEFAULT_ROW, Lists, Outcomes, read_lists
from offline.robust.measures import Resampling, captured, compare, per_scenario, pick, policy_row, risk_of, worse_draws
from offline.robust.network import FitSettings
from offline.robust.panel import Panel, panel_of
from offline.robust.protocol import ENGINE_DEFAULT, ROBUST
from tests.offline.robust.made_lists import write

ONCE = Resampling(weights=np.ones((3, 2)))


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return read_lists(write(tmp_path / "made.parquet", rows=2, draws=2))


@pytest.fixture
def panel(lists: Lists) -> Panel:
    """Two scenarios of two draws in which candidate 0 and the default differ draw by draw."""
    made = panel_of(lists, draws=2)
    met = np.ones((2, 2, 16), dtype=bool)
    met[0, 1, 0] = False  # candidate 0 violates in one of four draws
    met[:, 0, DEFAULT_ROW] = False  # the default in two
    throughput = np.full((2, 2, 16), 100.0)
    throughput[..., 0] = 120.0
    ttft = np.full((2, 2, 16), 1000.0)
    ttft[..., 0] = 500.0
    judged = Outcomes(
        throughput_tps=throughput, ttft_p95_ms=ttft, tpot_p95_ms=ttft / 100, met=met, failed=np.zeros_like(met)
    )
    return Panel(scenarios=made.scenarios, judged=judged, with_oracle=np.arange(0), further=None, nominal=None)


def test_flags_are_set_only_where_the_gain_exceeds_the_margin(lists: Lists) -> None:
    scores = np.zeros((4, 16), dtype=np.float32)
    scores[:, 3] = [0.01, 0.02, 0.03, -1.0]
    assert choose.with_abstention(lists, scores, margin=0.015).tolist() == [15, 3, 3, 15]
    # Without a margin a tie keeps the default: 0 is no gain.
    assert choose.with_abstention(lists, scores, margin=0.0).tolist() == [3, 3, 3, 15]


def test_what_would_not_start_is_never_chosen(lists: Lists) -> None:
    scores = np.zeros((4, 16), dtype=np.float32)
    scores[:, 3] = 1.0
    lists.starts[0, 3] = False
    lists.starts[1, :DEFAULT_ROW] = False
    assert choose.highest_candidate(lists, scores).tolist() == [0, DEFAULT_ROW, 3, 3]


def test_the_oracle_takes_the_best_mean_over_the_draws_it_is_shown_and_keeps_the_default_in_a_tie() -> None:
    met = np.ones((2, 2, 16), dtype=bool)
    throughput = np.full((2, 2, 16), 100.0)
    throughput[0, :, 4] = [190.0, 120.0]  # best on average in the first scenario
    throughput[0, 0, 5] = 200.0  # best in one draw
    shown = Outcomes(throughput_tps=throughput, ttft_p95_ms=throughput, tpot_p95_ms=throughput, met=met, failed=~met)
    assert choose.oracle(shown, FitSettings()).tolist() == [4, DEFAULT_ROW]


def test_a_scenarios_value_is_the_mean_over_its_draws(panel: Panel) -> None:
    values = per_scenario(pick(panel, np.array([0, 0])))
    assert values["slo_violation_rate"].tolist() == [0.5, 0.0]
    # 120 where met, 0 where violated.
    assert values["goodput_tps"].tolist() == [60.0, 120.0]
    # The best that meets the SLO is candidate 0 itself, or 100 where it violates: 1 − 0 and 1 − 0 / 100.
    assert values["slo_regret"].tolist() == [0.5, 0.0]


def test_a_comparison_counts_violations_that_were_added_and_repaired(panel: Panel) -> None:
    ours, base = pick(panel, np.array([0, 0])), pick(panel, np.array([DEFAULT_ROW, DEFAULT_ROW]))
    found = compare(ours, base, ONCE)
    assert found["slo_violation_rate"]["delta"] == pytest.approx(0.25 - 0.5)
    # The default met the SLO in both second draws; candidate 0 violated one of them and repaired both first ones.
    assert found["unsafe_rate"]["value"] == pytest.approx(0.25)
    assert found["repaired_rate"]["value"] == pytest.approx(0.5)
    # 120 tokens per second are no less than 100, so only the violation makes a draw worse.
    assert found["worse_rate"]["value"] == pytest.approx(0.25)
    assert found["ttft_tail_ratio"]["value"] == pytest.approx(0.5)
    assert found["coverage"] == 1.0


def test_a_failure_is_an_unbounded_tail(panel: Panel) -> None:
    panel.judged.ttft_p95_ms[..., 0] = np.inf
    row = policy_row(pick(panel, np.array([0, 0])))
    assert row["ttft_p95_p95_ms"] is None


def test_the_captured_share_is_our_gain_over_the_oracles(panel: Panel) -> None:
    ours, base = pick(panel, np.array([0, DEFAULT_ROW])), pick(panel, np.array([DEFAULT_ROW, DEFAULT_ROW]))
    oracle = pick(panel, np.array([0, 0]))
    found = captured(ours, base, oracle, ONCE)
    # Goodput: ours 60 and 50 against 50 and 50; the oracle 60 and 120.
    assert found["goodput_tps"]["value"] == pytest.approx(10 / 80)
    # Violations: none repaired on balance in the first scenario, all of the second by the oracle alone.
    assert found["slo_violation_rate"]["value"] == pytest.approx(0.0)


def test_clusters_are_drawn_whole() -> None:
    resampling = Resampling.of(np.array(["a", "a", "b"]), replicates=50, seed=1)
    assert (resampling.weights[:, 0] == resampling.weights[:, 1]).all()
    assert (resampling.weights[:, 0] + resampling.weights[:, 2] == 2).all()


def test_what_broke_the_slo_is_told_apart(panel: Panel) -> None:
    panel.judged.tpot_p95_ms[:, 0, DEFAULT_ROW] = 80.0  # the default's violations are of TPOT
    panel.judged.ttft_p95_ms[0, 1, 0] = 4000.0  # candidate 0's is of TTFT
    found = explain(panel, {ROBUST: np.array([0, 0]), ENGINE_DEFAULT: np.array([DEFAULT_ROW] * 2)})
    assert found["broken"][ENGINE_DEFAULT] == {"failed": 0.0, "TTFT alone": 0.0, "TPOT alone": 0.5, "both": 0.0}
    assert found["broken"][ROBUST] == {"failed": 0.0, "TTFT alone": 0.25, "TPOT alone": 0.0, "both": 0.0}
    # Both violations of the default are repaired, in draws with 1,000 ms before and 500 ms after.
    assert found["repaired"] == found["repaired_by_tpot_alone"] == 0.5
    assert found["ttft_median_where_repaired_ms"] == {ENGINE_DEFAULT: 1000.0, ROBUST: 500.0}


def test_a_draw_is_worse_if_it_loses_more_than_a_twentieth_of_the_default_s_goodput(panel: Panel) -> None:
    # Candidate 1 keeps the SLO everywhere; of the default's two draws that keep it, one gives 100 and one 106.
    panel.judged.throughput_tps[0, 1, DEFAULT_ROW] = 106.0
    ours, base = pick(panel, np.array([1, 1])), pick(panel, np.array([DEFAULT_ROW] * 2))
    # 100 is 5.7 % below 106, and exactly what the other draw gives.
    assert worse_draws(ours, base).tolist() == [[False, True], [False, False]]
    panel.judged.throughput_tps[0, 1, DEFAULT_ROW] = 105.0
    assert not worse_draws(ours, pick(panel, np.array([DEFAULT_ROW] * 2))).any()


def test_the_risk_is_counted_where_flags_are_set_of_all_draws_and_with_any_answer_in_support(panel: Panel) -> None:
    # Candidate 0 gives 120 and violates one draw of four; the default violates the first draw of each scenario.
    ours, fixed = pick(panel, np.array([1, DEFAULT_ROW])), pick(panel, np.array([0, 0]))
    # In the first scenario candidate 1 loses 17 % in the draw that candidate 0 keeps; in the second the default loses
    # both, one of them to a violation.
    both = risk_of(ours, fixed, np.array([True, True]), ONCE)
    assert both["where set"] == {"value": pytest.approx(1 / 4), "upper95": pytest.approx(1 / 4)}
    assert both["in support"] == {"value": pytest.approx(3 / 4), "upper95": pytest.approx(3 / 4)}
    # Out of support nothing was answered, whatever the default does there; where flags are set is of all draws still.
    first = risk_of(ours, fixed, np.array([True, False]), ONCE)
    assert first["in support"]["value"] == pytest.approx(1 / 2)
    assert first["where set"]["value"] == pytest.approx(1 / 4)
