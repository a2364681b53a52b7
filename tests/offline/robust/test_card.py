"""A card says first what is missed, shows every picture that it has, and has the fields that a hub reads."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import yaml

from offline.__main__ import main
from offline.export import EVALUATION_FILE, read_bundle, seal
from offline.robust import losses, maps
from offline.robust.card import render_card, verdict
from offline.robust.cards import bundles_in, write_card
from offline.robust.opening import scenarios_path
from offline.robust.pictures import draw_pictures
from offline.robust.report import EARLIER, Report, read_report
from service.domain.errors import ArtefactError
from service.domain.manifest import Confidence
from tests.offline.robust.made_evaluation import (
    REGISTRATION,
    ROOT,
    SCENARIOS,
    evaluation,
    judged,
    manifest,
    oracle_table,
    write_bundle,
    write_scenarios,
)

HEADINGS = [
    "Model Details",
    "Uses",
    "Bias, Risks, and Limitations",
    "How to Get Started with the Model",
    "Training Details",
    "Evaluation",
    "Environmental Impact",
    "Technical Specifications",
    "Citation",
]
TAIL = "T2-vs-default-ttft-tail"
MISSED_BEFORE = ({"name": TAIL, "test_set": "T2", "op": "<=", "target": 1.0, "value": 1.06},)


def report(content: dict[str, Any], **changes: Any) -> Report:
    scenarios = dict.fromkeys(content["test_sets"], SCENARIOS)
    return Report(
        **{
            "manifest": manifest(),
            "evaluation": content,
            "scenarios": scenarios,
            "missed_before": MISSED_BEFORE,
            **changes,
        }
    )


def card(content: dict[str, Any], *pictures: str) -> str:
    return render_card(report(content), pictures)


def body(text: str) -> list[str]:
    """The lines behind the front matter."""
    return text.split("\n---\n", maxsplit=1)[1].lstrip("\n").splitlines()


def test_what_is_missed_stands_before_everything_else() -> None:
    text = card(evaluation(tails={"T2": 1.25, "T3": 0.9}))
    assert body(text)[:3] == [
        "# dense-b200-robust",
        "",
        "**1 of 4 goals is missed:** `T2-vs-default-ttft-tail` 1.25, wanted <= 1. Every test set was opened once.",
    ]
    rows = [line for line in text.splitlines() if re.match(r"\| T[23]-", line) and line.count("|") == 7]
    assert rows[0] == "| T2-vs-default-ttft-tail | ttft_tail_ratio | value | 1.25 | <= 1 | **missed** |"
    assert [row.endswith("| met |") for row in rows] == [False, True, True, True]


def test_what_all_answers_risk_against_candidate_0_stands_before_the_summary() -> None:
    text = card(evaluation(tails={"T2": 1.25}))
    said = "with these answers than with FIXED, candidate 0, those to set nothing included: T2 1.30 % (at most 1.92 %)"
    assert text.index(said) < text.index("Ranks 15 start-up configurations")
    assert "candidate 0, those" not in card(evaluation())


def test_which_draws_the_coverage_goes_by_is_said() -> None:
    assert "Of 2 scenarios in support in which the choice matters by the judged draws, flags are set in 50 %" in card(
        evaluation(tails={"T2": 1.25})
    )


def test_where_every_goal_is_met_the_card_says_so_and_which_sets_are_closed() -> None:
    content = evaluation(tails={"T2": 1.0})
    assert verdict(content) == "All 2 goals that were judged are met. Every test set was opened once."
    closed = {**content, "not_opened": ["T3", "T4"]}
    assert verdict(closed).endswith("**Test sets that are still closed: T3, T4**; nothing is claimed about them.")


def test_weights_that_no_registration_fixes_are_said_to_be_tested_on_nothing() -> None:
    text = card({**evaluation(), "registration": None})
    assert body(text)[2] == "**For trying out: these weights are registered nowhere and were tested on nothing.**"
    assert "No test set has been opened, so no goal is judged." in text


def test_the_front_matter_has_what_a_hub_requires_and_names_the_evidence() -> None:
    content = evaluation(tails={"T2": 1.25})
    matter = yaml.safe_load(card(content).split("---\n")[1])
    assert matter["license"] == "apache-2.0"
    assert matter["library_name"] == "onnx"
    assert {"vllm", "evidence-simulated", "nvidia-b200"} <= set(matter["tags"])
    (model,) = matter["model-index"]
    assert model["name"] == "dense-b200-robust"
    calibration, t2 = model["results"]
    assert calibration["dataset"]["split"] == "calibration"
    assert t2["dataset"] == {
        "type": "memorypolicy-lists",
        "name": "T2, 4 scenarios (simulated)",
        "split": "T2",
    }
    for result in (calibration, t2):
        assert result["task"]["type"]
        for metric in result["metrics"]:
            assert metric["type"]
            assert metric["name"].endswith(" (simulated)")
            assert isinstance(metric["value"], float)


def test_values_of_the_front_matter_are_those_of_the_evaluation() -> None:
    content = evaluation(tails={"T2": 1.25})
    t2 = yaml.safe_load(card(content).split("---\n")[1])["model-index"][0]["results"][1]
    found = {metric["name"].removesuffix(" (simulated)"): metric["value"] for metric in t2["metrics"]}
    assert found["SLO violation rate, MLP-robust"] == 0.125
    assert found["SLO violation rate, ENGINE_DEFAULT"] == 0.1875
    assert found["goodput, tokens/s, FIXED"] == 900.0
    assert found["draws worse than the engine's default, 95 % bound"] == 0.0075
    assert found["draws worse than FIXED, where set, 95 % bound"] == 0.0061
    assert found["draws worse than FIXED, in support"] == 0.013
    assert found["expected calibration error, SLO met"] == 0.02
    assert found["expected calibration error, not worse than ENGINE_DEFAULT"] == 0.0123
    assert found["expected calibration error, not worse than FIXED"] == 0.0145
    assert found["median relative error, ttft_p95_ms"] == 0.1
    assert found["median relative error, ttft_p95_ms_ratio"] == 0.0234


def test_a_figure_that_is_undefined_is_left_out_of_the_front_matter() -> None:
    content = evaluation(tails={"T2": 1.0})
    content["test_sets"]["T2"]["policies"]["MLP-robust"]["slo_regret"] = None
    t2 = yaml.safe_load(card(content).split("---\n")[1])["model-index"][0]["results"][1]
    assert "slo_regret, MLP-robust (simulated)" not in {metric["name"] for metric in t2["metrics"]}


def test_the_sections_are_those_of_hugging_faces_form_in_its_order() -> None:
    text = card(evaluation(tails={"T2": 1.25}))
    assert [line[3:] for line in body(text) if line.startswith("## ")] == HEADINGS


def test_a_card_states_the_uncertainty_that_its_bundle_was_trained_for() -> None:
    def limits(confidence: Confidence) -> str:
        one = report(evaluation(), manifest=replace(manifest(), confidence=confidence))
        return render_card(one, ()).split("## Bias, Risks, and Limitations")[1].split("\n## ")[0]

    assert "one standard deviation 1.4 for lengths" in limits("typical")
    assert "one standard deviation 1.4² for lengths" in limits("rough")
    assert "standard deviation" not in limits("exact")


def test_the_tables_show_the_evaluations_figures() -> None:
    lines = card(evaluation(tails={"T2": 1.25})).splitlines()
    (ours,) = (line for line in lines if line.startswith("| MLP-robust | 12.50 %"))
    assert ours == "| MLP-robust | 12.50 % | 0.00 % | 1,200 | 1,050 | 0.02 | 0.03 | unbounded | 50.00 % |"
    (difference,) = (line for line in lines if line.startswith("| MLP-robust-vs-ENGINE_DEFAULT"))
    assert "-6.25 [-8.00, -4.00]" in difference
    assert any("p95 TPOT over 60 ms in 1" in line for line in lines)


def test_the_risk_against_both_bases_is_shown_where_flags_are_set_and_in_support() -> None:
    lines = card(evaluation(tails={"T2": 1.25})).splitlines()
    at = lines.index("| worse than | all draws | where set | in support |")
    assert lines[at + 2 : at + 4] == [
        "| ENGINE_DEFAULT | 0.40 % (at most 0.75 %) | 0.40 % (at most 0.75 %) | 0.50 % (at most 0.85 %) |",
        "| FIXED | 0.40 % (at most 0.75 %) | 0.30 % (at most 0.61 %) | 1.30 % (at most 1.92 %) |",
    ]


def test_what_is_kept_of_the_oracles_gain_is_shown_with_its_unit_and_verdict() -> None:
    content = evaluation(tails={"T6-typical": 1.0})
    name = "T6-typical-oracle"
    content["test_sets"][name] = oracle_table(violations=-0.02, goodput=-3.0)
    content["goals"] = judged(content["test_sets"], ("kept violations", "kept goodput"))
    # 2 points of the oracle's 5, of which 3 have to be kept; the oracle gains no goodput, so nothing may be lost.
    assert (
        "to be kept: `T6-typical-kept-violations` -1.00 points, **missed** from 0 on; `T6-typical-kept-goodput` "
        "-3.0 tok/s, **missed** from 0 on."
    ) in card(content)
    content["test_sets"][name] = oracle_table(violations=-0.035, goodput=4.0)
    content["goals"] = judged(content["test_sets"], ("kept violations", "kept goodput"))
    assert "+0.50 points, met from 0 on; `T6-typical-kept-goodput` +4.0 tok/s, met from 0 on." in card(content)


def test_the_rule_is_told_with_both_prices_and_bounds_and_what_a_low_utilisation_gains() -> None:
    text = render_card(report(evaluation(), manifest=replace(manifest(), score_slope=0.5)), ())
    assert "reduced by 9 for a whole unit" in text
    assert "by 2.25 for that to be worse than FIXED" in text
    assert "a utilisation of 0.45 has to gain more than 0.04, that is 0.02 of utility." in text
    assert "| price of risk | flags set | utility | worse of 200, families | bound, families | worst bound |" in text
    assert "| 9 | 40.0 | 0.5000 | 2 / 0 | 2.94 / 1.53 | 2.94 |" in text


def test_the_estimators_three_chances_and_its_ratios_have_their_errors() -> None:
    text = card(evaluation(tails={"T2": 1.0}))
    assert "| set | SLO met | not worse than ENGINE_DEFAULT | not worse than FIXED |" in text
    assert "| T2 | 0.0200 | 0.0123 | 0.0145 |" in text
    assert "| T2 | itself | 10.0 | 10.0 | 10.0 | 90.0 | 90.0 | 90.0 |" in text
    assert "| T2 | ÷ ENGINE_DEFAULT's | 2.3 | 2.3 | 2.3 | 89.0 | 89.0 | 89.0 |" in text


def missed_row(content: dict[str, Any], **missed: Any) -> str:
    """The line of a goal that was missed before."""
    text = render_card(report(content, missed_before=({**MISSED_BEFORE[0], **missed},)), ())
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {missed.get('name', TAIL)}, "))
    return row


def test_a_goal_missed_before_stands_beside_the_one_of_its_name_now() -> None:
    now = f"{TAIL}, T2: <= 1"
    missed, met = (evaluation(tails={"T2": tail}) for tail in (1.25, 0.9))
    assert missed_row(missed, same_now=1.25) == f"| {TAIL}, T2 | <= 1 | 1.06 | 1.25 | {now} | 1.25 | **missed** |"
    assert missed_row(met, same_now=0.9) == f"| {TAIL}, T2 | <= 1 | 1.06 | 0.9 | {now} | 0.9 | met |"
    assert missed_row(evaluation()) == f"| {TAIL}, T2 | <= 1 | 1.06 |  | {now} |  | not judged |"


def test_a_captured_share_missed_before_stands_beside_what_is_kept_now() -> None:
    content = evaluation(tails={"T2": 0.9})
    content["test_sets"]["T2-oracle"] = oracle_table(violations=-0.03, goodput=5.0)
    content["goals"] = judged(content["test_sets"], ("kept goodput",))
    before = {"test_set": "T2-oracle", "op": ">=", "target": 0.5, "value": None, "same_now": None}
    assert missed_row(content, name="T2-captured-goodput", **before) == (
        "| T2-captured-goodput, T2-oracle | >= 0.5 | undefined | undefined | T2-kept-goodput, T2-oracle: >= 0 "
        "| 5 | met |"
    )
    assert missed_row(content, name="T2-given-up", **before).endswith("| none |  | not judged |")


def test_each_loss_has_one_reason_and_shares_of_them_are_the_whole() -> None:
    found = losses.losses_of(SCENARIOS)
    # 0.4 + 0.3 + 0.1 + 0.1 are lost in four scenarios.
    assert found[losses.OUT_OF_SUPPORT].lost == pytest.approx(0.4 / 4)
    assert found[losses.ABSTAINED].lost == pytest.approx(0.3 / 4)
    assert found[losses.SECOND_BEST].lost == pytest.approx(0.1 / 4)
    assert found[losses.WORSE].lost == pytest.approx(0.1 / 4)
    assert found[losses.OUT_OF_SUPPORT].share == pytest.approx(4 / 9)
    assert sum(one.share for one in found.values()) == pytest.approx(1.0)
    assert all(one.scenarios == 0.25 for one in found.values())


def test_where_nothing_is_lost_no_reason_has_a_share() -> None:
    nothing = {**SCENARIOS, "gain_of_the_best": SCENARIOS["gain_of_the_choice"]}
    assert all(one.share == one.scenarios == 0 for one in losses.losses_of(nothing).values())


def test_the_card_names_the_largest_loss_of_a_set_first() -> None:
    lines = card(evaluation(tails={"T2": 1.0})).splitlines()
    first = next(line for line in lines if line.startswith(f"| T2 | {losses.OUT_OF_SUPPORT}"))
    assert first == f"| T2 | {losses.OUT_OF_SUPPORT} | 25.0 | 0.1000 | 44 |"
    assert lines[lines.index(first) - 1] == "| --- | --- | --- | --- | --- |"


def test_the_map_is_of_the_set_drawn_from_the_whole_space_if_there_is_one() -> None:
    assert maps.set_of(report(evaluation())) is None
    assert maps.set_of(report(evaluation(tails={"T2": 1.0}))) == "T2"
    assert maps.set_of(report(evaluation(tails={"T2": 1.0, "T6-typical": 1.0}))) == "T6-typical"
    assert maps.position({"prompt_tokens": [512, 2047], "concurrency": [64, 255]}) == (2, 3)


def test_pictures_are_the_same_bytes_each_time_and_carry_no_version() -> None:
    one = report(evaluation(tails={"T2": 1.0, "T3": 1.0, "T4": 1.0, "T6-typical": 1.0, "T5": 1.0}))
    first = draw_pictures(one)
    assert list(first) == [
        "policies_1.png",
        "policies_2.png",
        "regret.png",
        "losses.png",
        "coverage_risk.png",
        "reliability.png",
        "map_best.png",
        "map_gain.png",
    ]
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        assert draw_pictures(one) == first
    assert not any(b"atplotlib" in content for content in first.values())


def test_a_bundle_with_closed_sets_has_the_pictures_of_its_calibration() -> None:
    assert list(draw_pictures(report(evaluation(), scenarios={}))) == ["coverage_risk.png", "reliability.png"]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    content = evaluation(tails={"T2": 1.25})
    write_scenarios(content)
    return write_bundle(tmp_path / "bundles" / "dense-b200-robust", content)


def test_every_picture_of_the_card_is_in_the_bundle_and_in_the_manifest_and_no_other(bundle: Path) -> None:
    write_card(bundle)
    named = set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", (bundle / "MODEL_CARD.md").read_text()))
    assert named == {path.name for path in bundle.glob("*.png")}
    assert {"policies_1.png", "regret.png", "map_best.png", "map_gain.png", "losses.png"} <= named
    assert named == {name for name in read_bundle(bundle).files if name.endswith(".png")}


def test_the_goals_missed_under_the_registration_before_come_from_its_records(bundle: Path) -> None:
    assert EARLIER == "robust-2"
    missed = {goal["name"]: goal for goal in read_report(bundle).missed_before}
    assert {name: goal["value"] and round(goal["value"], 2) for name, goal in missed.items()} == {
        "T3-vs-default-ttft-tail": 1.04,
        "T4-vs-default-ttft-tail": 1.06,
        "T6-typical-vs-default-ttft-tail": 1.06,
        "T2-covered-where-it-matters": 0.69,
        "T2-captured-goodput": None,
        "T3-covered-where-it-matters": 0.61,
        "T6-typical-covered-where-it-matters": 0.68,
    }
    # The made evaluation has opened T2 alone.
    assert not any("same_now" in goal for goal in missed.values())


def test_the_same_figure_is_read_off_the_sets_that_were_opened_since(tmp_path: Path, bundle: Path) -> None:
    content = evaluation(tails={"T3": 1.25, "T2": 1.0})
    content["test_sets"]["T2-oracle"] = oracle_table(violations=-0.03, goodput=5.0)
    write_scenarios(content)
    missed = read_report(write_bundle(tmp_path / "other", content)).missed_before
    assert {goal["name"]: goal["same_now"] for goal in missed if "same_now" in goal} == {
        "T3-vs-default-ttft-tail": 1.25,
        "T2-covered-where-it-matters": 0.5,
        "T2-captured-goodput": None,
    }


def test_what_another_bundle_missed_is_not_this_ones(tmp_path: Path, bundle: Path) -> None:
    rough, exact = (read_report(write_bundle(tmp_path / v, evaluation(variant=v))) for v in ("rough", "exact"))
    assert [goal["name"] for goal in rough.missed_before] == ["T6-rough-worse-than-default"]
    assert exact.missed_before == ()


def test_records_of_scenarios_that_were_changed_or_lost_are_refused(bundle: Path) -> None:
    path = scenarios_path(REGISTRATION, "T2")
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    with pytest.raises(ArtefactError, match=r"robust-9-t2\.scenarios\.json\.gz has sha256 .* restore"):
        write_card(bundle)
    path.unlink()
    with pytest.raises(ArtefactError, match="restore the committed file"):
        write_card(bundle)
    assert (bundle / "of_an_earlier_card.png").exists()  # nothing was touched


def test_an_evaluation_of_another_schema_version_is_refused(bundle: Path) -> None:
    content = json.loads((bundle / EVALUATION_FILE).read_text())
    (bundle / EVALUATION_FILE).write_text(json.dumps({**content, "schema_version": 1}))
    seal(bundle, manifest())
    with pytest.raises(ArtefactError, match="schema_version 1, this program reads 2; run"):
        read_report(bundle)


def test_one_command_writes_the_cards_of_all_bundles_in_a_folder(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = bundle.parent / "qwen3-b200-reference"
    committed = ROOT / "service" / "bundles" / reference.name
    shutil.copytree(committed, reference)
    (reference / "MODEL_CARD.md").unlink()
    seal(reference, read_bundle(committed))
    assert bundles_in(bundle.parent) == (bundle,)
    assert main(["card", "--bundle", str(reference)]) == 0
    assert (reference / "MODEL_CARD.md").read_text() == (committed / "MODEL_CARD.md").read_text()
    assert body((bundle / "MODEL_CARD.md").read_text())[2].startswith("**1 of 2 goals is missed:**")
    said = capsys.readouterr().out
    assert "qwen3-b200-reference" in said
    assert "dense-b200-robust" in said
