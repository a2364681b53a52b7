"""A change inside the estimator's own error is called none, and only what tips the choice is blamed for it."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.domain.manifest import Abstention
from service.expectation import Range
from service.forecast_error import changed, forecast_errors, told_apart
from service.policies import load_policy
from service.settings import Settings
from tests.service.bundles import EVALUATION, Linear, estimator_graph, only_sequences, write_bundle
from tests.service.conftest import QUESTION, Client

SEQS = "log2_max_num_seqs"
# From 1,024 sequences to 32 there are five factors of two.
STEPS = 5
Build = Callable[..., Client]


def evaluation(errors: Mapping[str, float]) -> bytes:
    forecast = {name: {"error": error} for name, error in errors.items()}
    return json.dumps({**EVALUATION, "test_sets": {"T": {"forecast": forecast}}}).encode()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """32 sequences have `gain` times the 6,837 tokens/s of vLLM's default, a tenth around it, and a chance of
    `not_worse` not to do worse.

    error: of such ratios; errors: of what else. slo: chances of meeting the limits, of 32 sequences and of the default.
    """

    def client(
        *,
        error: float = 0.08,
        errors: Mapping[str, float] | None = None,
        gain: float = 1.06,
        slope: float = -1.0,
        slo: tuple[float, float] = (0.9, 0.9),
        not_worse: float = 0.999,
        fixed: Linear | None = None,
        **abstention: float,
    ) -> Client:
        met, of_default = slo
        estimator = estimator_graph(
            throughput=Linear(at=math.log(6837) + 2 * math.log(gain), by={SEQS: -math.log(gain) / STEPS}),
            ttft=Linear(at=math.log(200)),
            tpot=Linear(at=math.log(20)),
            chances=(Linear(at=2 * met - of_default, by={SEQS: (of_default - met) / STEPS}), Linear(at=not_worse)),
            not_worse_than_fixed=fixed,
        )
        folder = write_bundle(
            tmp_path / "bundle",
            model=only_sequences(slope),
            estimator=estimator,
            abstention=Abstention(**{"margin": 0.01, "risk_price": 9.0, **abstention}),
            more={"evaluation.json": evaluation({"throughput_tps_ratio": error, **(errors or {})})},
        )
        return Client(create_app(Settings(bundle_dir=folder, data_dir=tmp_path / "data")))

    return client


def asked(client: Client, **changes: Any) -> dict[str, Any]:
    return client.answer({**QUESTION, **changes})


def test_a_gain_inside_the_error_is_no_gain(build: Build) -> None:
    # 6,837 · 1.06 is 7,247; 1.06 ÷ 1.1 is 0.964, 1.06 · 1.1 is 1.166. The error of the two numbers is nothing to it.
    answer = asked(build(errors={"throughput_tps": 0.01}))
    assert answer["decision"] == "recommended"
    words = "(expected no clear change of throughput against vLLM's defaults, -4 to +17 %: 7,247 tokens/s), judging"
    assert words in answer["summary"]
    assert answer["expected"]["told_apart"]["output_throughput_tps"] is False


def test_a_loss_inside_the_error_is_no_loss(build: Build) -> None:
    # 0.96 ÷ 1.1 is 0.873, 0.96 · 1.1 is 1.056.
    answer = asked(build(gain=0.96))
    assert answer["decision"] == "recommended"
    assert "no clear change of throughput against vLLM's defaults, -13 to +6 %: 6,564 tokens/s" in answer["summary"]


def test_what_changes_little_in_nearly_all_workloads_is_about_the_same(build: Build) -> None:
    # 1 ÷ 1.1 is 0.909.
    answer = asked(build(gain=1.0))
    assert "about the same throughput as with vLLM's defaults, -9 to +10 %: 6,837 tokens/s" in answer["summary"]


def test_a_change_beyond_the_error_is_said_with_its_range(build: Build) -> None:
    answer = asked(build(error=0.05))
    assert "(expected 7,247 tokens/s: +6.0 % against vLLM's defaults, -4 to +17 %), judging" in answer["summary"]
    assert answer["expected"]["told_apart"] == {
        "output_throughput_tps": True, "ttft_p95_ms": False, "tpot_p95_ms": False,
    }  # fmt: skip
    loss = asked(build(error=0.05, gain=1 / 1.06))
    assert "(expected 6,450 tokens/s: -5.7 % against vLLM's defaults, -14 to +4 %), judging" in loss["summary"]


def test_a_change_whose_range_lies_on_one_side_is_told_whatever_the_error(build: Build) -> None:
    # 1.12 ÷ 1.1 is 1.018: nearly all of the workloads gain.
    answer = asked(build(error=0.5, gain=1.12))
    assert "7,657 tokens/s: +12 % against vLLM's defaults, +2 to +23 %" in answer["summary"]


def test_the_change_is_that_of_the_first_ranked_set_or_declined(build: Build) -> None:
    by_hand = {"value": 0.06, "low": 1.06 / 1.1 - 1, "high": 1.06 * 1.1 - 1}
    for margin, side in ((0.01, "recommended"), (9.0, "declined")):
        expected = asked(build(margin=margin))["expected"]
        assert expected[side]["config_id"] == "s32-b2048-g0.45-p1"
        assert expected["change"]["output_throughput_tps"] == pytest.approx(by_hand, abs=1e-5)
        # What is the same for both is no change: a tenth to each side of none.
        same = {"value": 0.0, "low": 1 / 1.1 - 1, "high": 0.1}
        assert expected["change"]["ttft_p95_ms"] == pytest.approx(same, abs=1e-5)
        assert expected["change"]["tpot_p95_ms"] == pytest.approx(same, abs=1e-5)


def test_against_what_is_fixed_no_change_was_learnt_and_the_two_numbers_are_told(build: Build) -> None:
    # 8,192 tokens at once are no default; what then starts has 1,024 sequences all the same.
    client = build(errors={"throughput_tps": 0.05}, error=0.9)
    answer = asked(client, fixed={"max_num_batched_tokens": 8192})
    assert answer["expected"]["change"] is None
    assert answer["expected"]["told_apart"]["output_throughput_tps"] is True
    assert "(expected 7,247 tokens/s against 6,837 without it), judging" in answer["summary"]
    vague = asked(build(errors={"throughput_tps": 0.07}, error=0.0), fixed={"max_num_batched_tokens": 8192})
    words = "(expected about the same throughput: 7,247 tokens/s against 6,837 without it; the estimate cannot tell"
    assert words in vague["summary"]
    # What vLLM starts with anyway is its default.
    assert asked(client, fixed={"enable_prefix_caching": True})["expected"]["change"] is not None


def test_there_is_no_change_of_what_is_not_there(build: Build) -> None:
    # Nothing starts but what is fixed, and outside of support nobody knows.
    client = build()
    assert asked(client, fixed={"max_num_seqs": 64})["expected"]["change"] is None
    assert asked(client, workload={**QUESTION["workload"], "concurrency": 1})["expected"] is None


def test_of_a_range_the_change_is_that_of_its_middle(build: Build) -> None:
    client = build()
    over = asked(client, workload={**QUESTION["workload"], "concurrency": [16, 256]})
    assert over["range"]["middle"]["concurrency"] == QUESTION["workload"]["concurrency"]
    assert over["expected"]["change"] == asked(client)["expected"]["change"]


@pytest.mark.parametrize(
    ("slo", "not_worse", "words"),
    [
        ((0.97, 0.61), 0.999, "; the SLO met in 97 % of the workloads that may come, with vLLM's defaults in 61 %)"),
        ((0.4, 0.999), 0.4, "; the SLO met in 40 % of the workloads that may come, with vLLM's defaults in more than"),
    ],
)
def test_chances_of_the_slo_that_differ_much_are_said(
    build: Build, slo: tuple[float, float], not_worse: float, words: str
) -> None:
    assert words in asked(build(slo=slo, not_worse=not_worse))["summary"]


@pytest.mark.parametrize(("not_worse", "said"), [(0.83, True), (0.85, False)])
def test_chances_of_the_slo_that_contradict_the_chance_to_do_worse_are_not_said(
    build: Build, not_worse: float, said: bool
) -> None:
    # Who meets the limits in 66 % of workloads where the default does in 82 % is worse in 16 % of them or more.
    answer = asked(build(slo=(0.66, 0.82), not_worse=not_worse, risk_price=0.0))
    assert ("the SLO met" in answer["summary"]) is said


def test_chances_of_the_slo_are_not_said_where_they_are_alike_or_about_other_limits(build: Build) -> None:
    assert "the SLO met" not in asked(build(slo=(0.93, 0.9)))["summary"]
    assert "the SLO met" not in asked(build(slo=(0.97, 0.61)), slo={"max_p95_ttft_ms": 500})["summary"]


@pytest.mark.parametrize(
    ("slope", "margin", "cause"),
    [
        # Without the price the gain is 0.005 for each factor of two, 0.025 in all; the price is 9 · 0.001.
        (-0.005, 0.02, "gains too little for a chance of 0.1 % to do worse (expected"),
        (-0.005, 0.03, "is hardly scored above them (expected"),
        # -0.009 + 0.005 is still below vLLM's default.
        (-0.001, 0.02, "is not scored above them (expected"),
    ],
)
def test_the_chance_is_blamed_only_where_its_price_tips_the_choice(
    build: Build, slope: float, margin: float, cause: str
) -> None:
    answer = asked(build(slope=slope, margin=margin))
    assert answer["reason"] == "no_better_than_engine_default"
    assert cause in answer["summary"]


# 0.9 for 32 sequences, 0.98 for vLLM's 1,024: what is kept may do worse than candidate 0 too.
WORSE_THAN_FIXED = Linear(at=0.82, by={SEQS: 0.016})


@pytest.mark.parametrize(
    ("margin", "cause"),
    [
        # Scores gain 0.1; 9 · 0.001 and 0.5 · (0.1 - 0.02) are paid for it, 0.051 is left.
        (0.055, "gains too little for a chance of 0.1 % to do worse (expected"),
        (0.07, "for a chance of 10.0 % to do worse than s256-b8192-g0.90-p1, where they have 2.0 % (expected"),
        (0.095, "for its chances to do worse, 0.1 % than they and 10.0 % than s256-b8192-g0.90-p1 (expected"),
        (0.11, "is hardly scored above them (expected"),
    ],
)
def test_of_two_prices_the_one_is_blamed_that_tips_the_choice(build: Build, margin: float, cause: str) -> None:
    answer = asked(build(slope=-0.02, margin=margin, fixed=WORSE_THAN_FIXED, fixed_price=0.5))
    assert answer["reason"] == "no_better_than_engine_default"
    assert cause in answer["summary"]


def test_both_prices_are_paid_and_what_is_compared_with_itself_pays_none(build: Build) -> None:
    answer = asked(build(slope=-0.02, margin=0.05, fixed=WORSE_THAN_FIXED, fixed_price=0.5), explain=True)
    assert answer["decision"] == "recommended"
    rows = {row["config_id"]: row for row in answer["ranked"]}
    first, candidate_0 = rows["s32-b2048-g0.45-p1"], rows["s256-b8192-g0.90-p1"]
    # -0.02 · 5 - 9 · 0.001 - 0.5 · 0.1, and -0.02 · 8 - 9 · 0.001 with nothing for candidate 0 against itself.
    assert first["score"] == pytest.approx(-0.159, abs=1e-6)
    assert candidate_0["score"] == pytest.approx(-0.169, abs=1e-6)
    assert (first["p_not_worse_than_fixed"], candidate_0["p_not_worse_than_fixed"]) == (pytest.approx(0.9), 1.0)
    # vLLM's default, -0.2 and 0.5 · 0.02 less, pays for the one and not for the other.
    assert answer["explanation"]["margin"]["to_engine_default"] == pytest.approx(0.051, abs=1e-6)


def test_the_price_of_candidate_0_holds_by_itself_and_over_a_range(build: Build) -> None:
    client = build(slope=-0.02, fixed=WORSE_THAN_FIXED, fixed_price=0.5, risk_price=0.0)
    for workload in (QUESTION["workload"], {**QUESTION["workload"], "concurrency": [16, 256]}):
        answer = asked(client, workload=workload)
        assert answer["ranked"][0]["score"] == pytest.approx(-0.15, abs=1e-6)
        assert answer["ranked"][0]["p_not_worse_than_fixed"] == pytest.approx(0.9)
    # Who has fixed an argument pays no price, and the chance is not about what would run.
    fixed = asked(client, fixed={"max_num_batched_tokens": 8192})
    assert fixed["ranked"][0]["score"] == pytest.approx(-0.1, abs=1e-6)
    assert {row["p_not_worse_than_fixed"] for row in fixed["ranked"]} == {None}


def test_of_the_errors_of_the_test_sets_the_middle_one_counts() -> None:
    sets = {
        name: {"forecast": {"throughput_tps": {"error": error}, "ttft_p95_ms_ratio": {"error": error / 10}}}
        for name, error in zip("abc", (0.1, 0.9, 0.2), strict=True)
    }
    found = forecast_errors({"test_sets": {**sets, "d": {}, "e": None}})
    assert found == {"throughput_tps": 0.2, "ttft_p95_ms_ratio": 0.02}
    assert forecast_errors(None) == forecast_errors({"test_sets": []}) == {}


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (Range(0.06, -0.04, 0.17), 0.05, True),
        (Range(0.06, -0.04, 0.17), 0.07, False),
        # A loss of 5.7 % is the same factor as a gain of 6 %.
        (Range(1 / 1.06 - 1, -0.2, 0.01), 0.059, True),
        (Range(1 / 1.06 - 1, -0.2, 0.01), 0.061, False),
        (Range(0.06, 0.01, 0.17), 0.5, True),
        (Range(-0.06, -0.17, -0.01), None, True),
        (Range(0.06, 0.0, 0.17), None, False),
        # Nobody could measure it.
        (Range(0.004, 0.003, 0.005), 0.001, False),
        (None, 0.1, None),
    ],
)
def test_a_change_is_told_from_none_by_its_error_or_by_its_range(
    change: Range | None, error: float | None, told: bool | None
) -> None:
    assert changed(change, error=error) is told


def test_ranges_that_do_not_meet_are_told_apart_whatever_the_error() -> None:
    low, high = Range(100, 90, 110), Range(130, 111, 150)
    assert told_apart(low, high, error=0.5) is True
    assert told_apart(low, high._replace(low=109), error=0.5) is False
    # Without a known error the value of one lies outside of the other's range.
    assert told_apart(low, high._replace(low=99), error=None) is True
    assert told_apart(low, Range(105, 95, 120), error=None) is False
    assert told_apart(low, None, error=0.5) is None


def test_a_bundle_that_rests_keeps_the_errors_of_its_evaluation(tmp_path: Path) -> None:
    errors = {"throughput_tps": 0.17, "throughput_tps_ratio": 0.03}
    policy = load_policy(write_bundle(tmp_path, more={"evaluation.json": evaluation(errors)}))
    assert policy.forecast_errors == errors
    assert policy.at_rest().forecast_errors == errors
