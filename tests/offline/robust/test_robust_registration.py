"""Registrations of the robust ranker: written once, each set opened once, nothing opened after a change."""

from dataclasses import replace
from pathlib import Path

import pytest

from offline.registration import State
from offline.robust import register
from offline.robust.bars import bars
from offline.robust.protocol import ROBUST, goals, judge
from service.domain.errors import ArtefactError
from service.domain.manifest import QUANTITIES

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


def test_a_goal_asks_for_the_end_of_the_interval_and_an_undefined_figure_meets_none() -> None:
    keys = (f"{ROBUST}-vs-ENGINE_DEFAULT", f"{ROBUST}-vs-FIXED")
    sets = {
        name: {
            "comparisons": {key: comparison(-0.02, 5.0) for key in keys},
            "where_it_matters": {"n": 10, "coverage": 0.7},
            "reliability": {"not_worse": {"ece": 0.031}},
            "forecast": {name: {"error": 0.1, "coverage": 0.9} for name in QUANTITIES},
        }
        for name in {goal.test_set for goal in goals()}
    }
    found = {goal.name: judge(goal, sets) for goal in goals()}
    rounded = {name: (None if value is None else round(value, 9), met) for name, (value, met) in found.items()}
    assert rounded["T2-vs-default-violations"] == (-0.01, True)  # upper end −0.02 + 0.01
    assert rounded["T2-vs-default-goodput"] == (-5.0, False)  # lower end 5 − 10
    assert found["T2-vs-fixed-ttft-tail"] == (1.0, True)  # at most 1.00
    assert found["T2-captured-violations"] == (0.8, True)  # at least 0.6
    assert found["T2-worse-than-default"] == (0.012, False)  # the upper end, at most 0.01
    assert found["T2-covered-where-it-matters"] == (0.7, True)  # at least 0.7
    assert found["T4-ece"] == (0.031, False)  # at most 0.03
    assert found["T3-tpot-error"] == (0.1, True)  # at most 0.12
    assert found["T3-ttft-band"] == (0.9, True)  # at least 0.85
    assert found["T2-captured-goodput"] == (None, False)
    assert found["T6-2x-new-minus-repaired"] == (0.0, True)  # as many as repaired
    assert found["T5-vs-default-goodput-sign"] == (5.0, True)  # the sign alone


def test_every_goal_has_its_line_and_a_closed_set_is_short() -> None:
    lines = bars([{"goals": [{"name": "T2-vs-default-violations", "value": -0.01, "met": True}]}, {"goals": []}])
    assert len(lines) == len(goals())
    assert lines[0] == "BAR T2-vs-default-violations -0.01 < 0 ok"
    assert lines[1] == "BAR T2-vs-default-goodput undefined > 0 short"
