"""Registrations of the robust ranker: written once, each set opened once, nothing opened after a change."""

from dataclasses import replace
from pathlib import Path

import pytest

from offline.registration import State
from offline.robust import register
from offline.robust.bars import bars
from offline.robust.forecast import RATIOS
from offline.robust.protocol import BASES, CENTRAL, ENGINE_DEFAULT, ORACLE_ROBUST, ROBUST, Goal, goals, judge
from service.domain.errors import ArtefactError
from service.domain.manifest import CHANCES, QUANTITIES

STATE = State(
    cells_sha256={"train-base": "1" * 64},
    split_sha256="2" * 64,
    features_sha256="3" * 64,
    settings={"margin": 0.01},
    analysis_sha256="4" * 64,
    gates=[],
    selected_policy=ROBUST,
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_set_is_opened_once_under_a_registration() -> None:
    registration = register.register("robust-9", STATE)
    register.record_opening(registration, STATE, "T2", lists_sha256="5" * 64, tables={"T2": {"n": 1}})
    with pytest.raises(ArtefactError, match="opened under registration 'robust-9' before"):
        register.record_opening(registration, STATE, "T2", lists_sha256="5" * 64, tables={"T2": {"n": 2}})
    assert register.read_openings(registration, ("T2", "T3"))["T2"]["tables"] == {"T2": {"n": 1}}


def test_a_registration_is_never_replaced() -> None:
    register.register("robust-9", STATE)
    with pytest.raises(ArtefactError, match="registrations do not change"):
        register.register("robust-9", replace(STATE, split_sha256="6" * 64))


@pytest.mark.parametrize(
    "changed",
    [
        {"split_sha256": "0" * 64},
        {"analysis_sha256": "0" * 64},
        {"settings": {"margin": 0.02}},
        {"cells_sha256": {"train-base": "0" * 64}},
    ],
)
def test_nothing_is_opened_after_a_change(changed: dict[str, object]) -> None:
    registration = register.register("robust-9", STATE)
    with pytest.raises(ArtefactError, match="does not cover this run"):
        register.record_opening(
            registration,
            replace(STATE, **changed),  # type: ignore[arg-type] # any field
            "T2",
            lists_sha256="5" * 64,
            tables={},
        )
    assert not register.opened_path("robust-9", "T2").exists()


def test_tables_that_were_changed_afterwards_are_refused() -> None:
    registration = register.register("robust-9", STATE)
    register.record_opening(registration, STATE, "T2", lists_sha256="5" * 64, tables={"T2": {"n": 1}})
    path = register.opened_path("robust-9", "T2")
    path.write_text(path.read_text().replace('"n": 1', '"n": 2'))
    with pytest.raises(ArtefactError, match="tables were changed"):
        register.read_openings(registration, ("T2",))


def test_without_a_registration_nothing_is_evaluated() -> None:
    with pytest.raises(ArtefactError, match="register first"):
        register.registered("robust-9")


def comparison(violations: float, goodput: float) -> dict[str, object]:
    return {
        "slo_violation_rate": {"delta": violations, "ci": [violations - 0.01, violations + 0.01]},
        "goodput_tps": {"delta": goodput, "ci": [goodput - 10, goodput + 10]},
        "ttft_tail_ratio": {"value": 1.0, "ci": [0.9, 1.1]},
        "unsafe_rate": {"value": 0.01, "upper95": 0.02},
        "worse_rate": {"value": 0.01, "upper95": 0.012},
        "repaired_rate": {"value": 0.01},
        "captured": {"slo_violation_rate": {"value": 0.8}, "goodput_tps": {"value": None}},
    }


def risk(where_set: float, in_support: float) -> dict[str, object]:
    return {
        "where set": {"value": where_set / 2, "upper95": where_set},
        "in support": {"value": in_support / 2, "upper95": in_support},
    }


def test_a_goal_asks_for_the_end_of_the_interval_and_an_undefined_figure_meets_none() -> None:
    keys = (f"{ROBUST}-vs-ENGINE_DEFAULT", f"{ROBUST}-vs-FIXED")
    oracle = {f"{ORACLE_ROBUST}-vs-{ENGINE_DEFAULT}": comparison(-0.03, 8.0)}
    sets = {
        name: {
            "comparisons": {key: comparison(-0.02, 5.0) for key in keys} | oracle,
            "risk": {base: risk(where_set, 0.02) for base, where_set in zip(BASES, (0.03, 0.01), strict=True)},
            "where_it_matters": {"n": 10, "coverage": 0.7},
            "reliability": dict(zip(CHANCES, ({"ece": ece} for ece in (0.5, 0.031, 0.03)), strict=True)),
            "forecast": {name: {"error": 0.1, "coverage": 0.9} for name in QUANTITIES}
            | {name: {"error": 0.06, "coverage": 0.84} for name in RATIOS},
        }
        for name in {goal.test_set for goal in goals()}
    }
    found = {goal.name: judge(goal, sets) for goal in goals()}
    rounded = {name: (None if value is None else round(value, 9), met) for name, (value, met) in found.items()}
    assert rounded["T2-vs-default-violations"] == (-0.01, True)  # upper end −0.02 + 0.01
    assert rounded["T2-vs-default-goodput"] == (-5.0, False)  # lower end 5 − 10
    assert found["T2-vs-fixed-ttft-tail"] == (1.0, True)  # at most 1.00
    assert rounded["T2-kept-violations"] == (0.002, True)  # 0.02 of the oracle's 0.03, 60 % of which is 0.018
    assert rounded["T2-kept-goodput"] == (1.0, True)  # 5 of the oracle's 8, half of which is 4
    assert found["T2-worse-than-default"] == (0.012, False)  # the upper end, at most 0.01
    assert found["T4-worse-than-fixed-where-set"] == (0.01, True)  # the upper end against candidate 0
    assert found["T4-worse-than-fixed-in-support"] == (0.02, False)
    assert found["T7-h100-worse-than-fixed-where-set"] == (0.01, True)
    assert found["T2-covered-where-it-matters"] == (0.7, True)  # at least 0.7
    assert found["T4-ece"] == (0.031, False)  # at most 0.03
    assert found["T4-ece-fixed"] == (0.03, True)
    assert found["T3-tpot-error"] == (0.1, True)  # at most 0.12
    assert found["T3-ttft-band"] == (0.9, True)  # at least 0.85
    assert found["T3-ttft-ratio-error"] == (0.06, True)  # at most 0.1
    assert found["T3-throughput-ratio-error"] == (0.06, False)  # at most 0.05
    assert found["T3-tpot-ratio-band"] == (0.84, False)  # at least 0.85
    assert found["T6-2x-new-minus-repaired"] == (0.0, True)  # as many as repaired
    assert found["T5-vs-default-goodput-sign"] == (5.0, True)  # the sign alone


def test_each_central_set_is_judged_by_draws_for_its_oracle() -> None:
    asked = {(goal.figure, goal.test_set) for goal in goals() if goal.figure.partition(" ")[0] in ("covered", "kept")}
    assert asked == {
        (figure, f"{name}-oracle") for figure in ("covered", "kept violations", "kept goodput") for name in CENTRAL
    }


@pytest.mark.parametrize(
    ("goodput", "best", "kept"),
    [(50.0, 100.0, 0.0), (49.0, 100.0, -1.0), (0.0, -30.0, 0.0), (-1.0, -30.0, -1.0), (60.0, 0.0, 60.0)],
)
def test_kept_says_what_a_captured_share_says_and_loses_nothing_where_the_oracle_gains_nothing(
    goodput: float, best: float, kept: float
) -> None:
    comparisons = {
        f"{ROBUST}-vs-{ENGINE_DEFAULT}": comparison(0.0, goodput),
        f"{ORACLE_ROBUST}-vs-{ENGINE_DEFAULT}": comparison(0.0, best),
    }
    (goal,) = (goal for goal in goals() if goal.name == "T2-kept-goodput")
    assert judge(goal, {"T2-oracle": {"comparisons": comparisons}}) == (kept, kept >= 0)


@pytest.mark.parametrize(
    ("figure", "op", "target", "verdict"),
    [
        ("captured violations", ">=", 0.6, (0.8, True)),
        ("captured goodput", ">=", 0.5, (None, False)),
        ("ece", "<=", 0.03, (0.031, False)),
    ],
)
def test_goals_of_earlier_registrations_are_judged_on_their_tables(
    figure: str, op: str, target: float, verdict: tuple[float | None, bool]
) -> None:
    table = {
        "comparisons": {f"{ROBUST}-vs-{ENGINE_DEFAULT}": comparison(-0.02, 5.0)},
        "reliability": {"not_worse": {"ece": 0.031}},
    }
    content = {"figure": figure, "op": op, "target": target, "base": ENGINE_DEFAULT, "end": "value"}
    goal = Goal(name="of then", test_set="T2", **content)  # type: ignore[arg-type] # as a registration's file has it
    assert judge(goal, {"T2": table}) == verdict


def test_every_goal_has_its_line_and_a_closed_set_is_short() -> None:
    lines = bars([{"goals": [{"name": "T2-vs-default-violations", "value": -0.01, "met": True}]}, {"goals": []}])
    assert len(lines) == len(goals())
    assert lines[0] == "BAR T2-vs-default-violations -0.01 < 0 ok"
    assert lines[1] == "BAR T2-vs-default-goodput undefined > 0 short"
