"""A difference inside the estimator's own error is called none, and only what tips the choice is blamed for it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.domain.manifest import Abstention
from service.expectation import Range
from service.forecast_error import forecast_errors, told_apart
from service.policies import load_policy
from service.settings import DEFAULT_BUNDLE_DIR, Settings
from tests.service.bundles import EVALUATION, Linear, estimator_graph, only_sequences, write_bundle
from tests.service.conftest import QUESTION, Client

SEQS = "log2_max_num_seqs"
# From 1,024 sequences to 32 there are five factors of two.
GAIN = 1.12
Build = Callable[..., Client]


def evaluation(error: float) -> bytes:
    quantities = {"throughput_tps": {"error": error}, "ttft_p95_ms": {"error": 0.3}}
    return json.dumps({**EVALUATION, "test_sets": {"T": {"forecast": quantities}}}).encode()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """32 sequences have GAIN times the 6,837 tokens/s of vLLM's default, or what is given, and a chance of 0.999."""

    def client(*, error: float = 0.17, gain: float = GAIN, slope: float = -1.0, **abstention: float) -> Client:
        estimator = estimator_graph(
            throughput=Linear(at=math.log(6837) + 2 * math.log(gain), by={SEQS: -math.log(gain) / 5}),
            ttft=Linear(at=math.log(200)),
            tpot=Linear(at=math.log(20)),
            chances=(Linear(at=0.9), Linear(at=0.999)),
        )
        folder = write_bundle(
            tmp_path / "bundle",
            model=only_sequences(slope),
            estimator=estimator,
            abstention=Abstention(**{"margin": 0.01, "risk_price": 9.0, **abstention}),
            more={"evaluation.json": evaluation(error)},
        )
        return Client(create_app(Settings(bundle_dir=folder, data_dir=tmp_path / "data")))

    return client


def asked(client: Client, **changes: Any) -> dict[str, Any]:
    return client.answer({**QUESTION, **changes})


def test_a_gain_inside_the_error_is_no_gain(build: Build) -> None:
    # 6,837 · 1.12 is 7,657.
    answer = asked(build())
    assert answer["decision"] == "recommended"
    words = (
        "(expected about the same throughput: 7,657 tokens/s against 6,837 with vLLM's defaults; the estimate cannot "
    )
    assert words + "tell them apart)" in answer["summary"]
    assert answer["expected"]["told_apart"]["output_throughput_tps"] is False


def test_a_loss_inside_the_error_is_no_loss(build: Build) -> None:
    answer = asked(build(gain=0.95))
    assert answer["decision"] == "recommended"
    assert "about the same throughput: 6,495 tokens/s against 6,837" in answer["summary"]


def test_a_gain_beyond_the_error_is_said(build: Build) -> None:
    answer = asked(build(error=0.11))
    assert "(expected 7,657 tokens/s against 6,837 with vLLM's defaults)" in answer["summary"]
    assert answer["expected"]["told_apart"] == {
        "output_throughput_tps": True, "ttft_p95_ms": False, "tpot_p95_ms": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slope", "margin", "cause"),
    [
        # Without the price the gain is 0.005 for each factor of two, 0.025 in all; the price is 9 · 0.001.
        (-0.005, 0.02, "gains too little for a chance of 0.1% to do worse (expected"),
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


def test_of_the_errors_of_the_test_sets_the_middle_one_counts() -> None:
    sets = {
        name: {"forecast": {"throughput_tps": {"error": error}}}
        for name, error in zip("abc", (0.1, 0.9, 0.2), strict=True)
    }
    assert forecast_errors({"test_sets": {**sets, "d": {}, "e": None}}) == {"throughput_tps": 0.2}
    assert forecast_errors(None) == forecast_errors({"test_sets": []}) == {}


def test_ranges_that_do_not_meet_are_told_apart_whatever_the_error() -> None:
    low, high = Range(100, 90, 110), Range(130, 111, 150)
    assert told_apart(low, high, error=0.5) is True
    assert told_apart(low, high._replace(low=109), error=0.5) is False
    # Without a known error the value of one lies outside of the other's range.
    assert told_apart(low, high._replace(low=99), error=None) is True
    assert told_apart(low, Range(105, 95, 120), error=None) is False
    assert told_apart(low, None, error=0.5) is None


def test_a_bundle_that_rests_keeps_the_errors_of_its_evaluation() -> None:
    policy = load_policy(DEFAULT_BUNDLE_DIR)
    errors = policy.forecast_errors
    assert set(errors) == {"throughput_tps", "ttft_p95_ms", "tpot_p95_ms"}
    assert policy.at_rest().forecast_errors == errors
