"""Who has fixed an argument is advised as cautiously as who has not: against what would run if nothing further is set.

The ranker scores -log2(max_num_seqs): -5 for 32 sequences, -7 for 128, -9 for 512, -10 for vLLM's 1,024.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.domain.manifest import Abstention
from service.settings import Settings
from tests.service.bundles import Linear, estimator_graph, only_sequences, write_bundle
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import creation, decided

SEQS, MEMORY = "log2_max_num_seqs", "gpu_memory_utilization"
# 1,024,000 tokens/s ÷ sequences; a chance of ½ + ½ · memory not to be worse than vLLM's default.
ESTIMATOR = estimator_graph(
    throughput=Linear(at=math.log(1_024_000), by={SEQS: -math.log(2)}),
    ttft=Linear(at=math.log(10), by={SEQS: math.log(2)}),
    tpot=Linear(at=math.log(20)),
    chances=(Linear(at=0.9), Linear(at=0.5, by={MEMORY: 0.5})),
)
CAUTION = Abstention(margin=4.3, threshold=0.8, risk_price=10.0)
RANGE = {**QUESTION["workload"], "concurrency": [32, 128]}

Build = Callable[..., Client]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def client(**changes: Any) -> Client:
        parts = {"model": only_sequences(-1.0), "estimator": ESTIMATOR, "abstention": CAUTION, **changes}
        folder = write_bundle(tmp_path / "bundle", **parts)
        settings = Settings(bundle_dir=folder, data_dir=tmp_path / "data", hook_deadline_ms=60_000)
        return Client(create_app(settings))

    return client


def asked(client: Client, **changes: Any) -> dict[str, Any]:
    return client.answer({**QUESTION, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"fixed": {"enable_prefix_caching": True}},
        {"extra_args": "--enable-prefix-caching"},
        {"fixed": {"enable_prefix_caching": True}, "workload": RANGE},
    ],
)
def test_fixing_what_vllm_starts_with_anyway_leaves_the_caution_as_it_is(build: Build, change: dict[str, Any]) -> None:
    # −5 less 10 · (1 − 0.925) is −5.75: a gain of 4.25, and 4.3 is asked for.
    client = build()
    plain = asked(client, **{name: value for name, value in change.items() if name == "workload"})
    pinned = asked(client, **change)
    assert plain["reason"] == pinned["reason"] == "no_better_than_engine_default"
    assert pinned["expected"] == plain["expected"]
    scores = {row["config_id"]: (row["score"], row["p_not_worse_than_engine_default"]) for row in plain["ranked"]}
    for row in pinned["ranked"]:
        if row["feasible"]:
            assert (row["score"], row["p_not_worse_than_engine_default"]) == scores[row["config_id"]]


def test_the_hook_is_as_cautious_with_what_vllm_starts_with_anyway(build: Build) -> None:
    pinned = {**creation()["request"], "workload_config": {"extra_args": "--enable-prefix-caching"}}
    decision = decided(build(), creation(request=pinned))
    assert (decision["decision"], decision["reason"]) == ("skip", "no_better_than_engine_default")


@pytest.mark.parametrize(("margin", "decision"), [(4.9, "recommended"), (5.0, "keep_engine_default")])
def test_a_choice_has_to_beat_what_would_run_with_what_is_fixed(build: Build, margin: float, decision: str) -> None:
    # 8,192 tokens at once: vLLM would start with 1,024 sequences, which score −10; the best that agrees has −5.
    client = build(abstention=Abstention(margin=margin, threshold=0.999, risk_price=10.0))
    fixed = {"max_num_batched_tokens": 8192}
    answer = asked(client, fixed=fixed, explain=True)
    assert answer["decision"] == decision
    first = answer["ranked"][0]
    # Chance and price are about vLLM's default, which would not run here.
    assert (first["score"], first["p_not_worse_than_engine_default"]) == (-5.0, None)
    assert answer["explanation"]["margin"]["to_engine_default"] == pytest.approx(5.0)
    assert answer["expected"]["engine_default"]["config_id"] == "s1024-b8192-g0.92-p1"
    batch = client.request("POST", "/v1/recommend:batch", json={"items": [{**QUESTION, "fixed": fixed}]}).json()
    assert batch["items"][0]["answer"]["decision"] == decision
    assert asked(client, fixed=fixed, workload=RANGE)["decision"] == decision


def test_what_is_fixed_stays_alone_where_it_is_as_good_as_the_best(build: Build) -> None:
    # With 32 sequences fixed everything that can run has −5.
    client = build(abstention=Abstention(margin=0.0))
    answer = asked(client, fixed={"max_num_seqs": 32}, explain=True)
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "no_better_than_engine_default")
    assert answer["set"] == {}
    assert "Keep what you fixed with vLLM's defaults for the rest" in answer["summary"]
    assert answer["expected"]["engine_default"]["config_id"] == "s32-b16384-g0.92-p1"
    assert answer["expected"]["engine_default"]["output_throughput_tps"]["value"] == pytest.approx(32_000, rel=1e-4)
    assert answer["explanation"]["limit"]["config_id"] == "s32-b16384-g0.92-p1"
    assert answer["holds_until"]["choice"] == "engine_default"
    # Nothing turns: with that many sequences no number of the workload changes a score.
    assert all(answer["holds_until"][name] == {"below": None, "above": None} for name in QUESTION["workload"])
    pinned = {**creation()["request"], "workload_config": {"extra_args": "--max-num-seqs=32"}}
    assert decided(client, creation(request=pinned))["reason"] == "no_better_than_engine_default"


def test_numbers_are_those_of_what_would_run_or_none_where_nothing_like_it_was_learnt(build: Build) -> None:
    client = build()
    # One sequence is none that was simulated, and no candidate has 64.
    one = asked(client, fixed={"max_num_seqs": 1}, explain=True)
    assert (one["reason"], one["expected"]) == ("no_candidate_matches_fixed", None)
    assert any("s1-b16384-g0.92-p1" in text and "no numbers" in text for text in one["warnings"])
    some = asked(client, fixed={"max_num_seqs": 64})
    assert some["reason"] == "no_candidate_matches_fixed"
    assert some["expected"]["engine_default"]["config_id"] == "s64-b16384-g0.92-p1"
    assert some["expected"]["engine_default"]["output_throughput_tps"]["value"] == pytest.approx(16_000, rel=1e-4)


def test_the_report_of_outcomes_has_the_numbers_of_what_ran(build: Build) -> None:
    # 64 sequences, which no candidate has: 1,024,000 ÷ 64 is 16,000, and not the 1,000 of vLLM's 1,024.
    client = build()
    client.app.state.api.memory.journal.start()
    answer = asked(client, fixed={"max_num_seqs": 64})
    report = {
        "recommendation_id": answer["recommendation_id"],
        "arm": "engine_default",
        "engine_args": {"max_num_seqs": 64},
        "measured": {"output_throughput_tps": 15_000.0},
    }
    assert client.request("POST", "/v1/outcomes", json=report).status_code in (200, 201, 202)
    (group,) = client.get("/v1/outcomes/report").json()["groups"]
    client.app.state.api.memory.journal.close()
    assert group["expected"]["output_throughput_tps"] == pytest.approx(16_000, rel=1e-4)
