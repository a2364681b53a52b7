"""Why an answer is what it is and how far it holds, for a ranker and an estimator that can be worked out by hand.

A configuration loses 0.5 for each factor of two that it has too few sequences for the clients, and 0.1 for each that it
has too many. Of 32, 128, 256, 512 and the engine's default, 1024, the first is best up to 40 clients: 0.5 · (x - 5) is
0.1 · (7 - x) at x = log2 clients = 5 1/3.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.__main__ import main
from service.api.reason_text import reason_lines
from service.app import create_app
from service.domain.errors import ArtefactError
from service.domain.features import FEATURE_NAMES
from service.domain.manifest import NEIGHBOURS_FILE, Abstention
from service.domain.neighbours import Neighbour, Neighbours, Numbers
from service.settings import Settings
from tests.service.bundles import Linear, estimator_graph, graph, write_bundle
from tests.service.conftest import QUESTION, Client

SEQS, CLIENTS = FEATURE_NAMES.index("log2_max_num_seqs"), FEATURE_NAMES.index("log2_concurrency")
PROMPT = FEATURE_NAMES.index("prompt_tokens")
S32, S128, S256 = "s32-b2048-g0.45-p1", "s128-b2048-g0.45-p1", "s256-b8192-g0.90-p1"
CHAT = {"prompt_tokens": 512, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 16}
# 1 s to the first token and 10 ms for each further one, whatever the load.
STEADY: dict[str, Any] = {
    "throughput": Linear(at=float(np.log(1000.0))),
    "ttft": Linear(at=float(np.log(1000.0))),
    "tpot": Linear(at=float(np.log(10.0))),
    "chances": (Linear(at=0.9), Linear(at=0.9)),
}
Build = Callable[..., Client]


def nearest_sequences(prompt: float = 0.0) -> bytes:
    """The ranker described above. prompt: factors of two that a token of the prompt is worth."""
    layers = [
        (np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.float32))
        for shape in ((128, 12), (64, 128), (1, 64))
    ]
    layers[0][0][0, [CLIENTS, PROMPT, SEQS]] = 1.0, prompt, -1.0
    layers[0][0][1, [CLIENTS, PROMPT, SEQS]] = -1.0, -prompt, 1.0
    layers[1][0][[0, 1], [0, 1]] = 1.0
    layers[2][0][0, :2] = -0.5, -0.1
    return graph(layers)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """An application with that ranker; what is given changes the bundle."""

    def client(**changes: Any) -> Client:
        folder = write_bundle(tmp_path / "bundle", **{"model": nearest_sequences(), **changes})
        return Client(create_app(Settings(bundle_dir=folder, data_dir=tmp_path / "data", hook_deadline_ms=60_000)))

    return client


def asked(client: Client, workload: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The answer, as documented."""
    return client.answer({**QUESTION, "workload": workload, **changes})


def test_without_a_range_or_explain_there_are_no_reasons(build: Build) -> None:
    answer = asked(build(), CHAT)
    assert (answer["range"], answer["holds_until"], answer["explanation"]) == (None, None, None)


def test_over_a_range_the_least_worst_case_is_chosen_and_the_best_mean_is_told(build: Build) -> None:
    answer = asked(build(score_slope=0.5), {**CHAT, "concurrency": [16, 256]})
    part = answer["range"]
    assert answer["ranked"][0]["config_id"] == part["first"]["config_id"] == part["least_regret"]["config_id"] == S256
    # 256 sequences lose 0.4 at 16 clients, where 32 lose 0.1; scores are worth half of that.
    assert part["first"]["worst_regret"] == pytest.approx(0.15, abs=1e-6)
    assert part["first"]["worst_at"]["concurrency"] <= 32
    # 128 lose 0.175 on average, 256 lose 0.2; at 256 clients 128 lose 0.5 and 256 nothing.
    assert part["best_mean"]["config_id"] == S128
    assert part["best_mean"]["worst_regret"] == pytest.approx(0.25, abs=1e-6)
    assert part["best_mean"]["worst_at"] == {**CHAT, "concurrency": 256}
    assert part["ends"]["concurrency"] == [16, 256]
    assert part["middle"] == {**CHAT, "concurrency": 64}
    assert part["points"] == 64
    assert part["first"]["mean_gain"] is None


def test_the_gain_over_the_engine_default_is_its_mean_over_the_range(build: Build) -> None:
    answer = asked(build(abstention=Abstention(margin=0.1)), {**CHAT, "concurrency": [16, 256]})
    # 1,024 sequences are two factors of two further from any of the loads than 256.
    assert answer["range"]["first"]["mean_gain"] == pytest.approx(0.2, abs=1e-5)
    assert answer["decision"] == "recommended"
    kept = asked(build(abstention=Abstention(margin=0.25)), {**CHAT, "concurrency": [16, 256]})
    assert (kept["decision"], kept["reason"]) == ("keep_engine_default", "no_better_than_engine_default")
    assert "16 to 256 clients of 512 + 256 tokens" in kept["summary"]


def test_a_range_whose_end_lies_outside_of_training_is_out_of_support(build: Build) -> None:
    answer = asked(build(), {**CHAT, "concurrency": [16, 257]})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    assert [entry["feature"] for entry in answer["support"]["out_of_range"]] == ["log2_concurrency"]
    assert answer["holds_until"] is None
    assert (answer["range"]["points"], answer["range"]["ends"]["concurrency"]) == (64, [16, 257])
    assert [answer["range"][name] for name in ("first", "best_mean", "least_regret")] == [None] * 3


def test_a_range_without_width_is_a_value(build: Build) -> None:
    client = build()
    ranged, plain = asked(client, {**CHAT, "concurrency": [16, 16]}), asked(client, CHAT)
    assert {**ranged, "recommendation_id": ""} == {**plain, "recommendation_id": ""}


def test_it_holds_until_the_first_number_of_clients_with_another_choice(build: Build) -> None:
    found = asked(build(), CHAT, explain=True)["holds_until"]
    assert found["choice"] == S32
    # By eighths of a factor of two from 16: the first beyond 40.3 is 16 · 2^(11/8) = 41.5.
    assert found["concurrency"] == {"below": None, "above": {"value": 41.0, "choice": S128}}
    assert found["prompt_tokens"] == found["max_new_tokens"] == found["shared_prefix_ratio"]
    assert found["prompt_tokens"] == {"below": None, "above": None}


def test_a_turn_to_the_engine_default_is_one_too(build: Build) -> None:
    found = asked(build(abstention=Abstention(margin=0.4)), CHAT, explain=True)["holds_until"]
    # The gain over 1,024 sequences is 0.5 up to 32 clients, 0.425 at 35 and 0.35 at 38.
    assert found["concurrency"]["above"] == {"value": 38.0, "choice": "engine_default"}


def test_of_a_range_the_middle_is_moved(build: Build) -> None:
    answer = asked(build(), {**CHAT, "concurrency": [48, 85]}, explain=True)
    assert answer["range"]["middle"]["concurrency"] == 64
    assert answer["ranked"][0]["config_id"] == S128
    found = answer["holds_until"]
    # At 64 clients 128 sequences are best: down to 40.3, and up to 143.7, where 0.5 · (x - 7) is 0.1 · (8 - x).
    assert found["choice"] == S128
    assert found["concurrency"]["below"]["choice"] == S32
    assert 40.3 * (4 / 64) ** (1 / 32) - 1 <= found["concurrency"]["below"]["value"] <= 40.3
    assert found["concurrency"]["above"]["choice"] == S256
    assert 143.7 <= found["concurrency"]["above"]["value"] <= 143.7 * (256 / 64) ** (1 / 32) + 1


def test_where_the_middle_gets_another_choice_than_the_range_nothing_is_said_of_how_far_that_holds(
    build: Build,
) -> None:
    client = build()
    answer = asked(client, {**CHAT, "concurrency": [16, 256]}, explain=True)
    assert answer["ranked"][0]["config_id"] == S256
    assert asked(client, {**CHAT, "concurrency": 64})["ranked"][0]["config_id"] == S128
    assert answer["holds_until"] is None


def test_a_range_alone_costs_no_reasons(build: Build) -> None:
    assert asked(build(), {**CHAT, "concurrency": [48, 85]})["holds_until"] is None


def test_where_nothing_can_be_chosen_nothing_holds(build: Build) -> None:
    answer = asked(build(), {**CHAT, "concurrency": [16, 64]}, explain=True, fixed={"max_num_seqs": 100})
    assert answer["reason"] == "no_candidate_matches_fixed"
    assert answer["holds_until"] is None
    assert answer["explanation"]["margin"]["second"] is None
    assert answer["explanation"]["limit"]["config_id"] == "s100-b16384-g0.92-p1"


def test_what_does_not_start_has_no_limit_that_binds(build: Build) -> None:
    question = {"model": {"name": "Qwen/Qwen3-8B"}, "max_model_len": 4_000_000}
    answer = asked(build(), CHAT, explain=True, **question)
    assert answer["decision"] == "none_feasible"
    assert answer["explanation"]["limit"] is None
    assert not any("binds" in line for line in reason_lines(answer))


def test_margins_are_told_in_utility(build: Build) -> None:
    client = build(abstention=Abstention(margin=0.4), score_slope=0.5)
    margin = asked(client, CHAT, explain=True)["explanation"]["margin"]
    # Scores -0.1 for all of 32 sequences and -0.6 for 1,024; four candidates have 32.
    assert margin == {
        "to_engine_default": pytest.approx(0.25, abs=1e-6),
        "to_second": pytest.approx(0.0, abs=1e-6),
        "second": "s32-b2048-g0.85-p1",
        "needed": pytest.approx(0.2),
    }
    outside = asked(client, {**CHAT, "concurrency": 257}, explain=True)["explanation"]["margin"]
    assert outside == dict.fromkeys(margin)
    fixed = asked(client, CHAT, explain=True, fixed={"max_num_seqs": 128})["explanation"]["margin"]
    # With 128 sequences fixed vLLM's defaults for the rest score as the best does.
    assert (fixed["to_engine_default"], fixed["needed"]) == (pytest.approx(0.0, abs=1e-6), pytest.approx(0.2))
    unchunked = {"enable_chunked_prefill": False, "max_num_batched_tokens": 16384}
    unlike = asked(client, CHAT, explain=True, fixed=unchunked, max_model_len=1024)["explanation"]["margin"]
    assert (unlike["to_engine_default"], unlike["needed"]) == (None, None)


def test_the_nearest_scenarios_of_training_are_shown_with_what_was_best_there(build: Build) -> None:
    qwen = (16.38147072, 36.0, 4096.0, 147456.0)
    best, default = Numbers(2000.0, 200.0, 8.0), Numbers(1500.0, 900.0, None)
    rows = [Neighbour((*qwen, 512.0, 256.0, 0.0, clients), S32, best, default) for clients in (8.0, 7.0, 5.5, 4.0)]
    answer = asked(build(more={NEIGHBOURS_FILE: Neighbours(rows=tuple(rows)).to_bytes()}), CHAT, explain=True)
    shown = answer["explanation"]["neighbours"]
    # Trained from 4 to 256 clients: six factors of two are the whole range.
    assert [one["distance"] for one in shown] == pytest.approx([0.0, 0.25, 0.5])
    assert [one["concurrency"] for one in shown] == [16, 45, 128]
    assert shown[0]["best"] == {"throughput_tps": 2000.0, "ttft_p95_ms": 200.0, "tpot_p95_ms": 8.0}
    assert shown[0]["engine_default"]["tpot_p95_ms"] is None
    assert (shown[0]["config_id"], shown[0]["hidden_size"], shown[0]["prompt_tokens"]) == (S32, 4096.0, 512.0)


def test_a_bundle_whose_scenarios_cannot_be_read_is_not_served(build: Build) -> None:
    with pytest.raises(ArtefactError, match=r"neighbours\.json\.gz: neighbours: BadGzipFile.*restore the folder"):
        build(more={NEIGHBOURS_FILE: b"{}"})


def test_a_bundle_without_scenarios_shows_none(build: Build) -> None:
    assert asked(build(), CHAT, explain=True)["explanation"]["neighbours"] == []


@pytest.mark.parametrize(
    ("workload", "fixed", "limit", "fact"),
    [
        # 64 · (1 + 512 / (0.7 · 256)) = 247 tokens of a step.
        ({"concurrency": 64}, {}, "none", "247 tokens of 2,048"),
        # 64 · (1 + 512 / 128) = 320.
        ({"concurrency": 64, "output_tokens": 128}, {}, "none", "320 tokens of 2,048"),
        # 64 · (1 + 512 / 256) = 192.
        ({"concurrency": 64, "confidence": "exact"}, {}, "none", "192 tokens of 2,048"),
        ({"concurrency": 64}, {"max_num_seqs": 32}, "sequences", "32 of 64 clients"),
        # 128 · (1 + 0.3 · 6000 / (0.7 · 128)) = 2,699 tokens of a step.
        (
            {"prompt_tokens": 6000, "max_new_tokens": 128, "shared_prefix_ratio": 0.7, "concurrency": 128},
            {"max_num_batched_tokens": 2048},
            "prefill_budget",
            "2,699 tokens",
        ),
        # 61.3 GiB hold 446,000 tokens.
        (
            {"prompt_tokens": 6000, "max_new_tokens": 1024, "concurrency": 128},
            {"gpu_memory_utilization": 0.45},
            "kv_memory",
            "61.3 GiB hold 63 whole requests of 7,024 tokens",
        ),
    ],
)
def test_the_limit_that_binds_is_named_with_its_facts(
    build: Build, workload: dict[str, Any], fixed: dict[str, Any], limit: str, fact: str
) -> None:
    answer = asked(build(), {**CHAT, **workload}, explain=True, fixed=fixed)
    part = answer["explanation"]["limit"]
    assert (part["limit"], part["config_id"]) == (limit, answer["ranked"][0]["config_id"])
    assert fact in part["sentence"]


def test_one_client_is_not_many(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qwen = (16.38147072, 36.0, 4096.0, 147456.0)
    near = Neighbour((*qwen, 512.0, 256.0, 0.0, 0.0), S32, Numbers(90.0, 20.0, 8.0), Numbers(80.0, 20.0, 8.0))
    build(more={NEIGHBOURS_FILE: Neighbours(rows=(near,)).to_bytes()})
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(tmp_path / "bundle"))
    assert (
        main(["recommend", "--model=Qwen/Qwen3-8B", "--gpu=B200", "--preset=chat", "--concurrency=1", "--explain"]) == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "the one client is served at once" in printed
    assert "trained on simulated runs, distance" in printed
    assert ": 1 client of 512 + 256 tokens" in printed
    assert "1 clients" not in printed


def test_a_front_end_that_is_busy_all_the_time_binds(build: Build) -> None:
    # 20,000 tokens a second are 111.6 requests of 179.2; each takes 1 + 0.1 + 5.4 ms of the front end: 72 % of it, and
    # 25,000 take 90 %.
    for throughput, limit in ((20_000, "none"), (25_000, "front_end")):
        numbers = {**STEADY, "throughput": Linear(at=float(np.log(throughput)))}
        answer = asked(build(estimator=estimator_graph(**numbers)), CHAT, explain=True)
        assert answer["explanation"]["limit"]["limit"] == limit
    assert "busy 90% of the time" in answer["explanation"]["limit"]["sentence"]


def test_where_the_engine_default_is_kept_its_own_limit_is_told(build: Build) -> None:
    answer = asked(build(abstention=Abstention(margin=9.0)), CHAT, explain=True)
    assert answer["decision"] == "keep_engine_default"
    assert answer["explanation"]["limit"]["config_id"] == "s1024-b16384-g0.92-p1"


# 89.6 tokens a second from each client: requests of 179.2 on average, 0.7 of 256, take 2 s whatever the load.
BY_CLIENTS = {**STEADY, "throughput": Linear(at=float(np.log(89.6)), by={"log2_concurrency": float(np.log(2.0))})}


def test_a_rate_becomes_the_clients_that_little_s_law_has(build: Build) -> None:
    client = build(estimator=estimator_graph(**BY_CLIENTS))
    shape = {"preset": "chat"}
    by_rate = asked(client, {**shape, "requests_per_second": 10.0})
    assert by_rate["assumed"]["workload.concurrency"] == 20
    assert by_rate["assumed"]["workload.latency_ms"] == pytest.approx(2000, rel=1e-4)
    assert by_rate["ranked"] == asked(client, {**shape, "concurrency": 20})["ranked"]
    shared = asked(client, {**shape, "requests_per_second": 30.0, "replicas": 3})
    assert shared["assumed"]["workload.concurrency"] == 20
    # Outputs of 44.8 tokens on average, a quarter, take a quarter of the time.
    shorter = {**CHAT, "output_tokens": 45, "requests_per_second": 10.0}
    del shorter["concurrency"]
    assert asked(client, shorter)["assumed"]["workload.concurrency"] == 6


@pytest.mark.parametrize("rate", [5.8, 7.9, 12.3, 15.0])
def test_the_clients_of_a_rate_are_expected_to_finish_it(build: Build, rate: float) -> None:
    # The fourth root: 16 times the clients finish twice as much, and one would 4 requests a second. Trained from 4 on.
    throughput = Linear(at=float(np.log(4 * 179.2)), by={"log2_concurrency": float(np.log(2.0)) / 4})
    client = build(estimator=estimator_graph(**{**STEADY, "throughput": throughput}))
    answer = asked(client, {"preset": "chat", "requests_per_second": rate})
    clients = answer["assumed"]["workload.concurrency"]
    found = answer["expected"]["engine_default"]["output_throughput_tps"]["value"] / 179.2
    assert found >= rate * 0.999
    assert 4 * (clients - 1) ** 0.25 < rate * 1.001


def test_what_is_not_sustained_is_what_the_most_clients_are_expected_to_finish(build: Build) -> None:
    client = build(estimator=estimator_graph(**BY_CLIENTS))
    most = asked(client, {"preset": "chat", "concurrency": 256})["expected"]["engine_default"]
    finished = most["output_throughput_tps"]["value"] / 179.2
    assert finished == pytest.approx(128.0, rel=1e-4)
    just = asked(client, {"preset": "chat", "requests_per_second": finished * 0.999})
    assert just["support"]["in_distribution"]
    beyond = asked(client, {"preset": "chat", "requests_per_second": finished * 1.001})
    assert not beyond["support"]["in_distribution"]


def test_a_range_of_rates_is_a_range_of_clients(build: Build) -> None:
    answer = asked(build(estimator=estimator_graph(**BY_CLIENTS)), {"preset": "chat", "requests_per_second": [5, 10]})
    assert answer["range"]["ends"]["concurrency"] == [10, 20]
    assert answer["range"]["ends"]["prompt_tokens"] == [512, 512]


def test_a_rate_that_is_not_sustained_is_said_with_the_replicas_that_would_do(build: Build) -> None:
    answer = asked(build(estimator=estimator_graph(**BY_CLIENTS)), {"preset": "chat", "requests_per_second": 300.0})
    assert (answer["decision"], answer["reason"]) == ("keep_engine_default", "out_of_support")
    # 256 clients, the most of training, finish 256 / 2 = 128 requests a second.
    (entry,) = answer["support"]["out_of_range"]
    assert entry["feature"] == "workload.requests_per_second"
    assert entry["trained_for"] == "at most 128 a second at up to 256 clients"
    (warning,) = [text for text in answer["warnings"] if "sustain" in text]
    assert "by simulated runs it finishes at most 128 a second" in warning
    assert "3 times as many replicas" in warning


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu": "H100"}, "gpu lies outside"),
        ({"engine_version": "0.21.0"}, "engine_version lies outside"),
        ({"extra_args": "--kv-cache-dtype=fp8"}, "extra_args.kv_cache_dtype lies outside"),
        ({"fixed": {"enable_chunked_prefill": False}}, "without chunked prefill"),
        ({"gpu_memory_gib": 170.0, "model": {"name": "Qwen/Qwen3-32B"}}, "weight_gb lies outside"),
    ],
)
def test_a_rate_without_a_stored_throughput_asks_for_clients(build: Build, changes: dict[str, Any], why: str) -> None:
    client = build(estimator=estimator_graph(**STEADY))
    body = {**QUESTION, "workload": {"preset": "chat", "requests_per_second": 10.0}, **changes}
    problem = client.recommend(body).json()
    assert [detail["path"] for detail in problem["details"]] == ["$.workload.requests_per_second"]
    assert why in problem["message"]
    assert "give concurrency instead" in problem["message"]


def test_a_bundle_without_an_estimator_asks_for_clients(build: Build) -> None:
    response = build().recommend({**QUESTION, "workload": {"preset": "chat", "requests_per_second": 10.0}})
    assert response.status_code == 422
    assert "stores no throughputs" in response.json()["message"]


def test_the_command_line_tells_the_reasons(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = build(abstention=Abstention(margin=0.1))
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(tmp_path / "bundle"))
    asking = ["recommend", "--model", "Qwen/Qwen3-8B", "--gpu", "B200", "--explain"]
    words = ["--preset", "chat", "--concurrency", "16:256"]
    assert main([*asking, *words, "--json"]) == 0
    from_cli = json.loads(capsys.readouterr().out)
    from_api = asked(client, {"preset": "chat", "concurrency": [16, 256]}, explain=True)
    assert {**from_cli, "recommendation_id": ""} == {**from_api, "recommendation_id": ""}
    assert main([*asking, *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"over the range, first: {S256}, gain 0.200 over what would run otherwise" in printed
    assert "ahead of what would run otherwise by 0.200, needed more than 0.100 ahead" in printed
    # The range gets another choice than its middle, 64 clients: nothing is said of how far that would hold.
    assert from_api["holds_until"] is None
    assert " holds for " not in printed
    assert main([*asking, "--preset", "chat", "--concurrency", "16"]) == 0
    printed_of_one = " ".join(capsys.readouterr().out.split())
    assert "s32-b2048-g0.45-p1 holds for concurrency below 41 (s128-b2048-g0.45-p1 there)" in printed_of_one
    assert "s32-b2048-g0.45-p1 holds for prompt_tokens to the end of what was trained" in printed_of_one
    assert "by -" not in printed
    assert "No limit of s256-b8192-g0.90-p1 binds" in printed


def test_what_is_told_of_other_loads_is_what_those_are_answered_with(build: Build) -> None:
    dice = np.random.default_rng(0)
    chance = Linear(at=0.2, by={"log2_max_num_seqs": 0.06, "shared_prefix_ratio": 0.2})
    of_fixed = Linear(at=0.5, by={"log2_max_num_seqs": 0.03, "shared_prefix_ratio": 0.2})
    estimator = estimator_graph(**{**STEADY, "chances": (Linear(at=0.9), chance)}, not_worse_than_fixed=of_fixed)
    turns: list[str] = []
    for rules in (
        {},
        {"near_tie": 0.05},
        {"near_tie": 0.05, "low_utilisation_gain": 0.02},
        {"threshold": 0.65},
        {"threshold": 0.5, "near_tie": 0.05},
        {"risk_price": 0.3, "near_tie": 0.05, "low_utilisation_gain": 0.02},
        {"risk_price": 0.3, "fixed_price": 0.4, "near_tie": 0.05},
        {"fixed_price": 0.5},
    ):
        caution = Abstention(margin=0.1, **rules)
        # Longer prompts count as more clients.
        client = build(model=nearest_sequences(prompt=2.0**-11), estimator=estimator, abstention=caution)
        for _ in range(6):
            workload = {
                "prompt_tokens": int(dice.integers(256, 6000)),
                "max_new_tokens": int(dice.integers(128, 1024)),
                "shared_prefix_ratio": float(dice.uniform(0, 0.7)),
                "concurrency": int(dice.integers(4, 256)),
            }
            found = asked(client, workload, explain=True)["holds_until"]
            assert found["choice"] == chosen(asked(client, workload))
            for number in workload:
                for turn in filter(None, found[number].values()):
                    value = turn["value"] if number == "shared_prefix_ratio" else int(turn["value"])
                    assert chosen(asked(client, {**workload, number: value})) == turn["choice"] != found["choice"]
                    turns.append(turn["choice"])
    assert len(turns) > 30
    assert "engine_default" in turns


def chosen(answer: dict[str, Any]) -> str:
    """The configuration that is set, or that none is."""
    first: str = answer["ranked"][0]["config_id"]
    return first if answer["decision"] == "recommended" else "engine_default"
