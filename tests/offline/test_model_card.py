"""The card says what the numbers say, and nothing else."""

import copy
from dataclasses import replace
from typing import Any

import matplotlib
import pytest

from offline.card import render_card
from offline.conclusions import DEV_CONCLUSIONS, TEST_CONCLUSIONS, number, paragraph
from offline.export import read_bundle
from offline.pipeline import Run, card_stage, evaluate_stage, export_stage, register_stage, train_stage
from offline.plots import draw_plots
from service.domain.manifest import Manifest


def _card(run: Run) -> str:
    return (run.bundle / "MODEL_CARD.md").read_text()


def _made(run: Run, *, opened: bool) -> tuple[Manifest, dict[str, Any]]:
    train_stage(run)
    if opened:
        register_stage(run)
    evaluation = evaluate_stage(run, open_test=opened)
    export_stage(run)
    card_stage(run)
    return read_bundle(run.bundle), evaluation


def test_the_title_names_the_evidence_class(quick_run: Run) -> None:
    _made(quick_run, opened=False)
    assert _card(quick_run).splitlines()[0].endswith("evidence: simulated")


def test_before_the_opening_the_card_says_that_the_test_split_is_closed(quick_run: Run) -> None:
    _made(quick_run, opened=False)
    card = _card(quick_run)
    assert "The test split is closed: no registration was written" in card
    assert "Registrations that ever opened this split: none." in card
    assert "9,483" not in card  # no published test figure without ours beside it


def test_after_the_opening_the_card_shows_ours_beside_the_published(quick_run: Run) -> None:
    _, evaluation = _made(quick_run, opened=True)
    fixed = evaluation["test_sets"]["T1"]["policies"]["FIXED"]
    card = _card(quick_run)
    assert f"{number(fixed['output_throughput_tps'])} / 9,483" in card
    assert f"{number(fixed['goodput_tps'])} / 5,343" in card
    assert "-1,311 [-2,408, -417]" in card
    assert "Opened once under registration `first`" in card
    assert "of 7 passed" in card


def test_a_selection_of_the_trees_is_the_first_thing_the_card_says(quick_run: Run) -> None:
    manifest, evaluation = _made(quick_run, opened=False)
    other = {**evaluation, "selected_policy": "LightGBM"}
    assert render_card(manifest, other, plots=()).splitlines()[2].startswith("**Dev selects LightGBM, not the MLP")


def test_limits_of_simulated_cells_vanish_when_cells_are_measured(quick_run: Run) -> None:
    manifest, evaluation = _made(quick_run, opened=False)
    assert "the cells are simulated, not measured" in render_card(manifest, evaluation, plots=())
    measured = render_card(replace(manifest, evidence="measured"), evaluation, plots=())
    assert "not measured" not in measured
    assert "No GPU was involved" not in measured


def test_an_unbounded_tail_is_shown_as_such_beside_the_number_of_failures(quick_run: Run) -> None:
    manifest, evaluation = _made(quick_run, opened=False)
    row = evaluation["test_sets"]["dev"]["policies"]["HEUR"]
    row.update(ttft_p95_p95_ms=None, ttft_p95_p95_ms_without_failures=1234.0, n_failed=3)
    line = next(
        line
        for line in render_card(manifest, evaluation, plots=()).splitlines()
        if line.startswith("| HEUR") and "∞" in line
    )
    assert "| ∞ | 1,234 |" in line
    assert "| 3 |" in line


def test_an_undefined_interval_of_a_gate_is_not_called_unbounded(quick_run: Run) -> None:
    manifest, evaluation = _made(quick_run, opened=True)
    verdicts = {verdict["metric"]: verdict for verdict in evaluation["test_sets"]["T1"]["gates"]["verdicts"]}
    for metric in ("regret", "ttft_tail_ratio"):
        verdicts[metric].update(interval_end=None, passed=False)
    card = render_card(manifest, evaluation, plots=())
    assert "| regret | upper end undefined | ≤ 0.05 | **failed** |" in card
    assert "| ttft_tail_ratio | upper end ∞ | ≤ 1.1 | **failed** |" in card


def test_the_selected_policys_differences_are_shown_although_nothing_was_published(quick_run: Run) -> None:
    manifest, evaluation = _made(quick_run, opened=True)
    test_set = evaluation["test_sets"]["T1"]
    test_set["gates"]["policy"] = "LightGBM"
    delta = test_set["comparisons"]["LightGBM-vs-FIXED"]["goodput_tps"]["delta"]
    lines = render_card(manifest, evaluation, plots=()).splitlines()
    (line,) = (line for line in lines if line.startswith("| LightGBM − FIXED, goodput tok/s |"))
    assert number(delta) in line
    assert line.endswith("| – |")
    assert sum(line.startswith("| MLP − FIXED, ") for line in lines) == 3


def _policies(**rows: tuple[float, float, float, float]) -> dict[str, Any]:
    names = ("slo_violation_rate", "failure_rate", "goodput_tps", "regret")
    return {"policies": {name: dict(zip(names, row, strict=True)) for name, row in rows.items()}}


def test_the_published_dev_numbers_support_every_published_dev_conclusion() -> None:
    table = _policies(
        FIXED=(0.5625, 0.375, 593, 0.194),
        HEUR=(0.5, 0.125, 682, 0.024),
        LightGBM=(0.375, 0.0, 1049, 0.0091),
        MLP=(0.375, 0.0, 1054, 0.0063),
    )
    assert all(conclusion.rule(table).holds for conclusion in DEV_CONCLUSIONS)
    assert "None of the published conclusions checked is contradicted." in paragraph(DEV_CONCLUSIONS, table)


def test_a_tie_supports_no_claim_of_a_winner() -> None:
    table = _policies(
        FIXED=(0.375, 0.0, 1000, 0.0),
        HEUR=(0.375, 0.0, 1000, 0.0),
        LightGBM=(0.375, 0.0, 1000, 0.0),
        MLP=(0.375, 0.0, 1000, 0.0),
    )
    assert not any(conclusion.rule(table).holds for conclusion in DEV_CONCLUSIONS)
    text = paragraph(DEV_CONCLUSIONS, table)
    assert text.startswith("No published conclusion holds here.")
    assert "nor that the MLP has the highest goodput of the four (FIXED 1,000" in text


def _published_test() -> dict[str, Any]:
    def row(violation: float, goodput: float, ttft: float) -> dict[str, Any]:
        return {
            "slo_violation_rate": violation,
            "failure_rate": 0.0,
            "goodput_tps": goodput,
            "ttft_p95_p95_ms": ttft,
            "tpot_p95_p95_ms_without_failures": 7.0,
        }

    def difference(delta: float, low: float, high: float) -> dict[str, Any]:
        return {"delta": delta, "ci": [low, high]}

    return {
        "policies": {
            "FIXED": row(0.25, 5343, 10780),
            "HEUR": row(0.25, 4090, 13110),
            "LightGBM": row(0.1875, 5811, 10430),
            "MLP": row(0.25, 5369, 12990),
        },
        "comparisons": {
            "MLP-vs-FIXED": {
                "slo_violation_rate": difference(0, 0, 0),
                "output_throughput_tps": difference(19, -82.8, 119.9),
                "goodput_tps": difference(26, -17, 77.7),
            },
            "HEUR-vs-FIXED": {"output_throughput_tps": difference(-1311, -2408, -417)},
        },
        "gates": {"policy": "MLP", "verdicts": [{"metric": "regret", "passed": True}] * 6},
    }


def test_the_published_test_numbers_support_every_published_test_conclusion() -> None:
    assert all(conclusion.rule(_published_test()).holds for conclusion in TEST_CONCLUSIONS)


def test_an_interval_that_excludes_0_contradicts_equivalence() -> None:
    table = copy.deepcopy(_published_test())
    table["comparisons"]["MLP-vs-FIXED"]["goodput_tps"] = {"delta": 26, "ci": [1, 77.7]}
    text = paragraph(TEST_CONCLUSIONS, table)
    assert "Our numbers do not support that the MLP's goodput cannot be told from FIXED's (26 [1, 77.7])." in text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "undefined"), (9482.6, "9,483"), (0.19412, "0.1941"), (-0.0, "0"), (-1311.0, "-1,311")]
)
def test_figures_are_printed_with_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_plots_are_the_same_bytes_each_time_and_carry_no_version(quick_run: Run) -> None:
    _, evaluation = _made(quick_run, opened=True)
    first, second = draw_plots(evaluation), draw_plots(evaluation)
    assert first == second
    assert set(first) == {"T1_differences.png", "T1_policies.png", "dev_differences.png", "dev_policies.png"}
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        assert draw_plots(evaluation) == first
    assert not any(b"atplotlib" in content for content in first.values())
