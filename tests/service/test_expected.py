"""Expected numbers, worked out by hand: an estimator whose logarithms are linear in the candidate's features.

Throughput is 1,024,000 ÷ sequences, TTFT 10 ms · sequences, TPOT 20 ms; the chance of not being worse than the engine's
default (1,024 sequences) is ½ + ½ · memory, and than candidate 0 0.4 + 0.6 · memory. The ranker prefers few sequences.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from service.app import create_app
from service.bundle import load_bundle
from service.domain.error_bands import BAND_METRICS, ERROR_BANDS_FILE, ErrorBand, ErrorBands
from service.domain.errors import ArtefactError
from service.domain.manifest import ESTIMATOR_FILE, Abstention
from service.domain.regime import REGIMES
from service.expectation import joined_range
from service.policies import load_policy
from service.settings import Settings
from tests.service.bundles import Linear, estimator_graph, graph, only_sequences, random_layers, write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import creation, decided

SEQS, MEMORY = "log2_max_num_seqs", "gpu_memory_utilization"
ESTIMATOR = estimator_graph(
    throughput=Linear(at=math.log(1_024_000), by={SEQS: -math.log(2)}),
    ttft=Linear(at=math.log(10), by={SEQS: math.log(2)}),
    tpot=Linear(at=math.log(20)),
    chances=(Linear(at=0.9), Linear(at=0.5, by={MEMORY: 0.5})),
    not_worse_than_fixed=Linear(at=0.4, by={MEMORY: 0.6}),
)
# In every regime simulations were between as measured and a quarter above it, a tenth on average.
BAND = ErrorBand(bias=0.1, low=0.0, high=0.25, n=9, source="by hand")
NO_DATA = ErrorBand(bias=None, low=None, high=None, n=0, reason="nobody measured it")

Build = Callable[..., Client]


def bands(**by_metric: ErrorBand) -> bytes:
    """error_bands.json with one band for each metric in all regimes."""
    metrics = {metric: dict.fromkeys(REGIMES, by_metric.get(metric, NO_DATA)) for metric in BAND_METRICS}
    return json.dumps(ErrorBands(bands={"measured": metrics}, provenance={}).to_json()).encode()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """An application with the estimator; what is given changes the bundle."""

    def client(**changes: Any) -> Client:
        parts = {"model": only_sequences(-1.0), "estimator": ESTIMATOR, "abstention": Abstention(margin=0.0), **changes}
        folder = write_bundle(tmp_path / "bundle", **parts)
        settings = Settings(bundle_dir=folder, data_dir=tmp_path / "data", hook_deadline_ms=60_000)
        return Client(create_app(settings))

    return client


def asked(client: Client, **changes: Any) -> dict[str, Any]:
    return client.answer({**QUESTION, **changes})


def test_the_recommended_and_the_engine_default_get_numbers_and_verdicts(build: Build) -> None:
    answer = asked(build())
    expected = answer["expected"]
    ours, theirs = expected["recommended"], expected["engine_default"]
    assert answer["decision"] == "recommended"
    assert (ours["config_id"], theirs["config_id"]) == ("s32-b2048-g0.45-p1", "s1024-b16384-g0.92-p1")
    # 32 sequences: 32,000 tokens/s and 320 ms; 1,024: 1,000 and 10,240 ms, more than the 3,000 of training.
    assert ours["output_throughput_tps"] == pytest.approx({"value": 32_000, "low": 25_600, "high": 40_000}, rel=1e-4)
    assert ours["ttft_p95_ms"] == pytest.approx({"value": 320, "low": 256, "high": 400}, rel=1e-4)
    assert ours["tpot_p95_ms"] == pytest.approx({"value": 20, "low": 16, "high": 25}, rel=1e-4)
    assert theirs["output_throughput_tps"]["value"] == pytest.approx(1_000, rel=1e-4)
    assert ours["meets_slo"] == {"max_p95_ttft_ms": True, "max_p95_tpot_ms": True}
    assert theirs["meets_slo"] == {"max_p95_ttft_ms": False, "max_p95_tpot_ms": True}
    assert ours["slo_met_chance"] == pytest.approx(0.9)
    assert expected["declined"] is None
    assert expected["slo"] == expected["slo_trained_for"] == {
        "max_p95_ttft_ms": 3000.0, "max_p95_tpot_ms": 60.0, "max_error_rate": 0.01,
    }  # fmt: skip
    assert (expected["evidence"], expected["band"]) == ("simulated", {"from_quantile": 0.05, "to_quantile": 0.95})
    # 32 times as much is 3,100 % more; a tenth around the ratio is 29.09 to 35.2 times.
    words = (
        "(expected 32,000 tokens/s: +3,100 % against vLLM's defaults, +2,809 to +3,420 %), judging by simulated runs."
    )
    assert words in answer["summary"]


def test_each_candidate_has_its_chance_of_not_being_worse(build: Build) -> None:
    for row in asked(build())["ranked"]:
        memory = row["engine_args"]["gpu_memory_utilization"]
        assert row["p_not_worse_than_engine_default"] == pytest.approx(0.5 + 0.5 * memory)
        itself = row["config_id"] == "s256-b8192-g0.90-p1"
        assert row["p_not_worse_than_fixed"] == pytest.approx(1.0 if itself else 0.4 + 0.6 * memory)


def test_errors_of_the_simulator_widen_the_range_in_which_they_are_known(build: Build) -> None:
    client = build(more={ERROR_BANDS_FILE: bands(throughput=BAND)})
    side = asked(client)["expected"]["recommended"]
    # In logarithms: the error's centre −log 1.1, its ends −log 1.25 and 0; the workloads' ends ± log 1.25.
    centre, spread = -math.log(1.1), math.log(1.25)
    below, above = math.hypot(spread, math.log(1.25) + centre), math.hypot(spread, -centre)
    found = side["output_throughput_tps"]
    assert found["value"] == pytest.approx(32_000, rel=1e-4)
    assert found["low"] == pytest.approx(32_000 * math.exp(centre - below), rel=1e-4)
    assert found["high"] == pytest.approx(32_000 * math.exp(centre + above), rel=1e-4)
    # Nothing is known of the other two: their range is that of the workloads, and it is said.
    assert side["ttft_p95_ms"]["high"] == pytest.approx(400, rel=1e-4)
    assert side["simulator_error_unknown"] == {"ttft_p95_ms": NO_DATA.reason, "tpot_p95_ms": NO_DATA.reason}


def test_spreads_join_as_the_sides_of_a_right_angle_and_the_value_stays_inside() -> None:
    # 3, 4, 5: the workloads 0.3 to each side, the simulator 0.4.
    even = ErrorBand(bias=0.0, low=math.expm1(-0.4), high=math.expm1(0.4), n=1, source="by hand")
    found = joined_range(1.7, 2.0, 2.3, even)
    assert found == pytest.approx((math.exp(2.0), math.exp(1.5), math.exp(2.5)))
    # Simulations were twice what was measured, always: all of the range lies at the half, and reaches to the value.
    twice = ErrorBand(bias=1.0, low=1.0, high=1.0, n=1, source="by hand")
    found = joined_range(1.9, 2.0, 2.1, twice)
    assert found == pytest.approx((math.exp(2.0), math.exp(2.0) / 2 * math.exp(-0.1), math.exp(2.0)))


def test_the_regime_is_that_of_each_configuration(build: Build) -> None:
    # 64 clients of 512 + 256: with 32 sequences half of them wait, with 1,024 none does, but 64 are no light load.
    expected = asked(build())["expected"]
    assert (expected["recommended"]["regime"], expected["engine_default"]["regime"]) == ("decode-bound", "decode-bound")
    few = asked(build(), workload={**QUESTION["workload"], "concurrency": 16})["expected"]
    assert few["engine_default"]["regime"] == "light"
    # 16 prompts of 6,000 own tokens in readings of 300 weigh 320 against 256 decode steps.
    long = asked(build(), workload={**QUESTION["workload"], "concurrency": 16, "prompt_tokens": 6000})["expected"]
    assert long["engine_default"]["regime"] == "prefill-bound"


def test_without_prefix_caching_a_shared_prefix_is_computed_each_time(build: Build) -> None:
    # 16 prompts of 6,000, of which 70 % are shared: 16 · 1,800 ÷ 300 = 96 readings of the weights against 256 steps of
    # the answers; computed in full they are 320.
    workload = {**QUESTION["workload"], "concurrency": 16, "prompt_tokens": 6000, "shared_prefix_ratio": 0.7}
    expected = asked(build(), workload=workload, fixed={"enable_prefix_caching": False})["expected"]
    assert expected["recommended"]["config_id"] == "s128-b2048-g0.85-p0"
    assert expected["recommended"]["regime"] == "prefill-bound"
    # Nor does what would run without it share any.
    without = expected["engine_default"]
    assert (without["config_id"], without["regime"]) == ("s1024-b16384-g0.92-p0", "prefill-bound")
    assert asked(build(), workload=workload)["expected"]["engine_default"]["regime"] == "light"


def test_of_a_default_that_would_not_start_nothing_is_expected(build: Build) -> None:
    # A context of 1,150,000 tokens · 147,456 bytes is 157.9 GiB beside 15.3 of weights and 3.5: 0.92 of 178 is less.
    answer = asked(build(), fixed={"gpu_memory_utilization": 1.0}, max_model_len=1_150_000)
    assert answer["reason"] == "no_candidate_matches_fixed"
    assert answer["expected"] is None
    # With 40,960 tokens it starts; of all of the memory nothing was learnt, of 0.88 there was.
    assert asked(build(), fixed={"gpu_memory_utilization": 1.0})["expected"] is None
    shorter = asked(build(), fixed={"gpu_memory_utilization": 0.88})["expected"]
    assert (shorter["recommended"], shorter["declined"]) == (None, None)
    assert shorter["engine_default"]["config_id"] == "s1024-b16384-g0.88-p1"


@pytest.mark.parametrize(
    "change", [{"gpu": "H200"}, {"engine_version": "0.21.0"}, {"workload": {**QUESTION["workload"], "concurrency": 1}}]
)
def test_outside_of_support_nothing_is_expected(build: Build, change: dict[str, Any]) -> None:
    answer = asked(build(), **change)
    assert answer["reason"] == "out_of_support"
    assert answer["expected"] is None
    assert {row["p_not_worse_than_engine_default"] for row in answer["ranked"]} == {None}
    assert {row["p_not_worse_than_fixed"] for row in answer["ranked"]} == {None}


def test_without_chunked_prefill_nothing_is_expected(build: Build) -> None:
    fixed = {"enable_chunked_prefill": False}
    assert asked(build(), fixed=fixed, max_model_len=2048)["expected"] is None


def test_where_no_clear_gain_is_promised_the_numbers_of_what_was_declined_are_shown(build: Build) -> None:
    # Scores −5 and −10: a gain of 5 is not more than 5.
    answer = asked(build(abstention=Abstention(margin=5.0)))
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "no_better_than_engine_default")
    assert answer["expected"]["recommended"] is None
    assert answer["expected"]["declined"]["config_id"] == answer["ranked"][0]["config_id"]
    assert answer["expected"]["engine_default"]["config_id"] == "s1024-b16384-g0.92-p1"
    assert "is hardly scored above them (expected 32,000 tokens/s: +3,100 %" in answer["summary"]


def test_what_is_not_safe_enough_comes_behind_what_is(build: Build) -> None:
    # 0.90 is asked for: 0.925 with 85 % of the memory, 0.95 with 90 %, 0.725 with 45 %.
    answer = asked(build(abstention=Abstention(margin=0.0, threshold=0.9)))
    assert answer["decision"] == "recommended"
    assert answer["ranked"][0]["config_id"] == "s32-b2048-g0.85-p1"
    assert {row["engine_args"][MEMORY] for row in answer["ranked"][:9]} == {0.85, 0.9}
    assert {row["engine_args"][MEMORY] for row in answer["ranked"][9:]} == {0.45}


def test_a_chance_of_being_worse_has_its_price(build: Build) -> None:
    # −5 less 10 · (1 − 0.925) with 85 % of the memory, less 10 · (1 − 0.725) with 45 %; the default pays nothing.
    client = build(abstention=Abstention(margin=4.2, risk_price=10.0))
    answer = asked(client)
    first = answer["ranked"][0]
    assert (answer["decision"], first["config_id"]) == ("recommended", "s32-b2048-g0.85-p1")
    assert first["score"] == pytest.approx(-5.75)
    (small,) = [row for row in answer["ranked"] if row["config_id"] == "s32-b2048-g0.45-p1"]
    assert small["score"] == pytest.approx(-7.75)
    # Its gain of 4.25 is more than 4.2; without a price it would be 5.
    kept = asked(build(abstention=Abstention(margin=4.3, risk_price=10.0)))
    assert kept["reason"] == "no_better_than_engine_default"
    assert "gains too little for a chance of 7.5 % to do worse (expected 32,000 tokens/s: +3,100 %" in kept["summary"]
    # Who has fixed an argument starts with something else than the chance is about.
    assert asked(client, fixed={"max_num_seqs": 32})["ranked"][0]["score"] == -5.0
    batch = client.request("POST", "/v1/recommend:batch", json={"items": [QUESTION]}).json()["items"]
    assert batch[0]["answer"]["ranked"] == answer["ranked"]


def test_where_nothing_is_safe_enough_the_engine_default_is_kept_and_the_chance_is_said(build: Build) -> None:
    answer = asked(build(abstention=Abstention(margin=0.0, threshold=0.99)))
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "not_safe_enough")
    assert answer["set"] == {}
    assert "has a chance of 72.5 % not to do worse than them, and 99.0 % is asked for" in answer["summary"]
    assert answer["expected"]["declined"]["config_id"] == "s32-b2048-g0.45-p1"


def test_who_has_fixed_an_argument_does_not_start_with_the_default_that_is_compared(build: Build) -> None:
    # All of 32 sequences score alike: nothing is gained over them with vLLM's defaults for the rest.
    answer = asked(build(abstention=Abstention(margin=0.0, threshold=0.999)), fixed={"max_num_seqs": 32})
    assert answer["reason"] == "no_better_than_engine_default"
    assert answer["expected"]["declined"]["config_id"] == "s32-b2048-g0.45-p1"
    assert answer["expected"]["engine_default"]["config_id"] == "s32-b16384-g0.92-p1"
    assert {row["p_not_worse_than_engine_default"] for row in answer["ranked"]} == {None}
    assert answer["ranked"][-1]["p_not_worse_than_engine_default"] is None  # contradicts what is fixed


def test_limits_of_one_s_own_are_judged_by_the_numbers(build: Build) -> None:
    answer = asked(build(), slo={"max_p95_ttft_ms": 300})
    assert answer["decision"] == "recommended"
    assert answer["support"] == {"in_distribution": True, "out_of_range": []}
    expected = answer["expected"]
    # 320 ms of 300; the default has 10,240 and misses them too.
    assert expected["recommended"]["meets_slo"]["max_p95_ttft_ms"] is False
    assert (expected["slo"]["max_p95_ttft_ms"], expected["slo_trained_for"]["max_p95_ttft_ms"]) == (300.0, 3000.0)
    assert expected["recommended"]["slo_met_chance"] is None
    assert any("trained for p95 TTFT up to 3,000 ms and p95 TPOT up to 60 ms" in text for text in answer["warnings"])
    missed = (
        "s32-b2048-g0.45-p1 is expected to miss your limits (p95 TTFT 320 ms of 300 ms: simulated); vLLM's defaults "
    )
    assert missed + "would miss them too." in answer["warnings"]
    assert not any("max_error_rate" in text for text in answer["warnings"])
    own_share = asked(build(), slo={"max_error_rate": 0.5})
    assert any("max_error_rate is not judged" in text for text in own_share["warnings"])


def test_the_default_is_kept_where_it_alone_of_both_meets_one_s_own_limits(build: Build) -> None:
    # Turned round: TTFT 40,960 ms ÷ sequences is 1,280 for 32 and 40 for 1,024.
    ttft = Linear(at=math.log(40_960), by={SEQS: -math.log(2)})
    estimator = estimator_graph(
        throughput=Linear(at=8.0), ttft=ttft, tpot=Linear(at=math.log(20)), chances=(Linear(at=0.9), Linear(at=0.9))
    )
    client = build(estimator=estimator)
    assert asked(client)["decision"] == "recommended"
    answer = asked(client, slo={"max_p95_ttft_ms": 500})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "engine_default_meets_slo")
    assert answer["set"] == {}
    assert (
        "expected to miss your limits, which they are expected to meet (p95 TTFT 1,280 ms of 500 ms)"
        in (answer["summary"])
    )
    assert asked(client, slo={"max_p95_ttft_ms": 1300})["decision"] == "recommended"


@pytest.mark.parametrize(
    ("ratio", "decision"),
    [
        (1.0, "recommended"),  # nothing changes in pairs
        (1.05, "recommended"),  # 1.05 ÷ 1.1 is less than 1: nothing that is told
        (1.2, "keep_engine_default"),  # 1.2 ÷ 1.1 is more than 1
        (0.8, "recommended"),  # it is told to take less
    ],
)
def test_a_missed_limit_is_held_against_what_is_told_to_take_longer(build: Build, ratio: float, decision: str) -> None:
    # TTFT is 520 ms for 32 sequences and 480 for 1,024, each estimated by itself.
    estimator = estimator_graph(
        throughput=Linear(at=8.0),
        ttft=Linear(at=2 * math.log(520) - math.log(480), by={SEQS: math.log(480 / 520) / 5}),
        tpot=Linear(at=math.log(20)),
        chances=(Linear(at=0.9), Linear(at=0.9)),
        ttft_ratio=Linear(at=2 * math.log(ratio), by={SEQS: -math.log(ratio) / 5}),
    )
    client = build(estimator=estimator)
    answer = asked(client, slo={"max_p95_ttft_ms": 500})
    assert answer["decision"] == decision
    (side,) = [text for text in answer["warnings"] if "is expected to miss" in text] or [None]
    if decision == "recommended":
        assert side is not None
        assert "vLLM's defaults would meet them, by an estimate of their own: the change between the two does" in side
    else:
        assert (answer["reason"], side) == ("engine_default_meets_slo", None)
    # Against what is fixed there is no change, and the two numbers have to do.
    fixed = asked(client, slo={"max_p95_ttft_ms": 500}, fixed={"max_num_batched_tokens": 8192})
    assert (fixed["expected"]["change"], fixed["reason"]) == (None, "engine_default_meets_slo")


def test_a_choice_holds_where_a_missed_limit_is_not_held_against_it(build: Build) -> None:
    # TTFT in proportion to clients: of 64 it is 480 ms for 32 sequences, 400 for 1,024; of 76 it is 571 and 476.
    by = {SEQS: math.log(400 / 480) / 5, "log2_concurrency": math.log(2)}
    ttft = Linear(at=2 * math.log(480) - math.log(400) - 6 * math.log(2), by=by)
    flat: dict[str, Any] = {
        "throughput": Linear(at=8.0),
        "tpot": Linear(at=math.log(20)),
        "chances": (Linear(at=0.9), Linear(at=0.9)),
    }
    limits: dict[str, Any] = {"slo": {"max_p95_ttft_ms": 500}, "explain": True}
    told = asked(build(estimator=estimator_graph(ttft=ttft, **flat)), **limits)
    assert told["holds_until"]["concurrency"]["above"]["choice"] == "engine_default"
    alike = asked(build(estimator=estimator_graph(ttft=ttft, ttft_ratio=Linear(at=0.0), **flat)), **limits)
    assert alike["decision"] == told["decision"] == "recommended"
    assert alike["holds_until"]["concurrency"]["above"] is None


def test_for_the_limits_of_training_the_ranking_and_its_caution_decide_alone(build: Build) -> None:
    # TTFT 128,000 ms ÷ sequences: 4,000 of 3,000 for 32, 125 for the default.
    estimator = estimator_graph(
        throughput=Linear(at=8.0),
        ttft=Linear(at=math.log(128_000), by={SEQS: -math.log(2)}),
        tpot=Linear(at=math.log(20)),
        chances=(Linear(at=0.9), Linear(at=0.9)),
    )
    answer = asked(build(estimator=estimator))
    assert answer["decision"] == "recommended"
    assert answer["expected"]["recommended"]["meets_slo"]["max_p95_ttft_ms"] is False
    assert answer["expected"]["engine_default"]["meets_slo"]["max_p95_ttft_ms"] is True
    missed = "s32-b2048-g0.45-p1 is expected to miss the limits (p95 TTFT 4,000 ms of 3,000 ms: simulated); vLLM's "
    assert missed + "defaults would meet them." in answer["warnings"]


def test_what_is_kept_is_said_to_miss_the_limits_and_what_was_declined_to_meet_them(build: Build) -> None:
    # The default has 10,240 ms of 3,000, 32 sequences have 320.
    answer = asked(build(abstention=Abstention(margin=5.0)))
    assert answer["decision"] == "keep_engine_default"
    missed = "s1024-b16384-g0.92-p1 is expected to miss the limits (p95 TTFT 10,240 ms of 3,000 ms: simulated); "
    assert missed + "s32-b2048-g0.45-p1, which was declined, would meet them." in answer["warnings"]
    calm = asked(build(abstention=Abstention(margin=0.0)))
    assert not any("is expected to miss" in text for text in calm["warnings"])


def test_answers_of_one_token_have_no_further_ones_to_wait_for(build: Build, tmp_path: Path) -> None:
    ranges = {**load_bundle(write_bundle(tmp_path / "plain")).manifest.training_range, "max_new_tokens": (1.0, 1024.0)}
    workload = {**QUESTION["workload"], "max_new_tokens": 1}
    side = asked(build(training_range=ranges), workload=workload)["expected"]["recommended"]
    assert side["tpot_p95_ms"] is None
    assert side["meets_slo"]["max_p95_tpot_ms"] is True
    assert "tpot_p95_ms" not in side["simulator_error_unknown"]


def test_near_ties_go_to_more_memory_unless_the_gpu_is_shared(build: Build) -> None:
    client = build(abstention=Abstention(margin=0.0, near_tie=0.5, low_utilisation_gain=1.0))
    assert asked(client)["set"]["gpu_memory_utilization"] == 0.85
    shared = asked(client, gpu_shared=True)
    assert shared["set"]["gpu_memory_utilization"] == 0.45
    assert "gpu_shared" not in shared["assumed"]


def test_every_door_expects_the_same(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = build(abstention=Abstention(margin=0.0, threshold=0.9))
    question = {**QUESTION, "slo": {"max_p95_ttft_ms": 300.0}, "gpu_shared": True}
    alone = {**asked(client, **question), "recommendation_id": ""}
    outside = {**QUESTION, "gpu": "H200"}
    items = [question, outside, question, {"model": {}}]
    batch = client.request("POST", "/v1/recommend:batch", json={"items": items}).json()["items"]
    assert [item["status"] for item in batch] == [200, 200, 200, 422]
    assert batch[0]["answer"] | {"recommendation_id": ""} == batch[2]["answer"] | {"recommendation_id": ""} == alone
    assert batch[1]["answer"]["expected"] is None
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(tmp_path / "bundle"))
    words = "--model Qwen/Qwen3-8B --gpu NVIDIA-B200 --prompt-tokens 512 --max-new-tokens 256 --shared-prefix-ratio 0 "
    words += "--concurrency 64 --max-p95-ttft-ms 300 --gpu-shared"
    assert main(["recommend", "--json", *words.split()]) == 0
    assert {**json.loads(capsys.readouterr().out), "recommendation_id": ""} == alone
    assert main(["recommend", *words.split()]) == 0
    shown = capsys.readouterr().out
    assert "expected of recommended s32-b2048-g0.85-p1 by simulated runs: 32,000 (25,600 to 40,000) tokens/s" in shown
    assert "p95 TTFT 320 (256 to 400) ms, p95 TPOT 20 (16 to 25) ms; misses max_p95_ttft_ms, decode-bound" in shown
    # TTFT is 320 of 10,240 ms: a 32nd, 97 % less; TPOT is the same, a tenth around.
    change = (
        "tokens/s +3,100 % (+2,809 to +3,420 %), p95 TTFT -97 % (-97 to -97 %), p95 TPOT about the same (-9 to +10 %)"
    )
    assert f"expected change against the engine default by simulated runs: {change}; estimated by itself, it" in shown
    assert "it need not be the quotient of the two numbers above\n" in shown


def test_the_hook_leaves_alone_what_is_not_safe_enough(build: Build) -> None:
    decision = decided(build(abstention=Abstention(margin=0.0, threshold=0.99)), creation())
    assert (decision["decision"], decision["reason"]) == ("skip", "not_safe_enough")
    assert "72.5 %" in decision["message"]


def test_the_hook_tells_the_rank_that_its_choice_has_with_nothing_pinned(build: Build) -> None:
    # Four of 32 sequences, five of 128, two of 256, then those of 512 in their order.
    pinned = {**creation()["request"], "workload_config": {"extra_args": "--max-num-seqs=512"}}
    decision = decided(build(abstention=None), creation(request=pinned))
    assert decision["engine_args"]["gpu_memory_utilization"] == 0.45
    assert decision["selected_rank"] == 12


def test_the_report_of_outcomes_has_what_was_expected(build: Build) -> None:
    client = build()
    client.app.state.api.memory.journal.start()
    answer = asked(client)
    report = {
        "recommendation_id": answer["recommendation_id"],
        "arm": "recommended",
        "engine_args": answer["set"],
        "measured": {"output_throughput_tps": 30_000.0},
    }
    response = client.request("POST", "/v1/outcomes", json=report)
    assert response.status_code in (200, 201, 202), response.text
    (group,) = client.get("/v1/outcomes/report").json()["groups"]
    client.app.state.api.memory.journal.close()
    numbers = {"output_throughput_tps": 32_000, "ttft_p95_ms": 320, "tpot_p95_ms": 20, "recommendations": 1}
    assert group["expected"] == pytest.approx(numbers, rel=1e-4)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"estimator": b"no graph"}, f"{ESTIMATOR_FILE}: ONNX Runtime cannot load it"),
        ({"estimator": graph(random_layers())}, f"{ESTIMATOR_FILE}: input and output are"),
        (
            {
                "estimator": estimator_graph(
                    throughput=Linear(at=math.inf), ttft=Linear(at=0), tpot=Linear(at=0), chances=(Linear(at=0),) * 2
                )
            },
            "quantiles, ratios, chances are not finite",
        ),
        ({"more": {ERROR_BANDS_FILE: b"{}"}}, f"{ERROR_BANDS_FILE}: error bands: schema_version None"),
        ({"more": {ERROR_BANDS_FILE: b"?"}}, f"{ERROR_BANDS_FILE}: Expecting value"),
    ],
)
def test_a_bundle_whose_further_files_cannot_be_used_is_refused(tmp_path: Path, parts: Any, says: str) -> None:
    with pytest.raises(ArtefactError, match=says) as caught:
        load_policy(write_bundle(tmp_path, **parts))
    assert "make train" in str(caught.value)
