"""A workload in the words of who has it: what is filled in, what it means for four numbers, and what contradicts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench_runner.announced import Announced
from bench_runner.architectures import architectures
from bench_runner.true_workload import Uncertainty, draw_numbers, lengths_of
from service.api.workload_words import SHARE_OF_LIMIT
from service.domain.scenario import Workload
from tests.service.conftest import QUESTION, Client

Ask = Callable[[object], dict[str, Any]]


def asking(**workload: object) -> dict[str, Any]:
    """The usual question with another workload."""
    return {**QUESTION, "workload": workload}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Two answers that rank and decide alike."""
    names = ("ranked", "decision", "reason", "set", "support", "engine_default", "memory")
    return all(first[name] == second[name] for name in names)


@pytest.mark.parametrize(
    ("preset", "prompt", "new", "ratio"),
    [
        ("chat", 512, 256, 0.0),
        ("rag", 6000, 128, 0.7),
        ("longgen", 256, 1024, 0.0),
        ("summarize", 12000, 256, 0.1),
        ("agent", 3000, 256, 0.9),
        ("codeassist", 1500, 512, 0.5),
    ],
)
def test_a_preset_is_the_numbers_of_its_name_and_says_so(
    ask: Ask, preset: str, prompt: int, new: int, ratio: float
) -> None:
    numbers = {"prompt_tokens": prompt, "max_new_tokens": new, "shared_prefix_ratio": ratio}
    by_name = ask(asking(preset=preset, concurrency=16))
    assert same(by_name, ask(asking(**numbers, concurrency=16)))
    assert {f"workload.{name}": value for name, value in numbers.items()}.items() <= by_name["assumed"].items()


def test_a_number_beside_a_preset_that_agrees_is_no_assumption(ask: Ask) -> None:
    answer = ask(asking(preset="rag", prompt_tokens=6000, shared_prefix_tokens=4200, concurrency=16))
    assert same(answer, ask(asking(preset="rag", concurrency=16)))
    assert "workload.prompt_tokens" not in answer["assumed"]
    assert answer["assumed"]["workload.max_new_tokens"] == 128


def test_a_prefix_in_tokens_is_its_share_of_the_prompt(ask: Ask) -> None:
    others = {"prompt_tokens": 2000, "max_new_tokens": 256, "concurrency": 16}
    in_tokens = ask(asking(**others, shared_prefix_tokens=500))
    assert same(in_tokens, ask(asking(**others, shared_prefix_ratio=0.25)))
    assert in_tokens["assumed"]["workload.shared_prefix_ratio"] == 0.25


def test_clients_are_divided_among_replicas_and_rounded_up(ask: Ask) -> None:
    others = {"prompt_tokens": 2000, "max_new_tokens": 256, "shared_prefix_ratio": 0.0}
    # 100 clients of 3 servers: 33.3 each, so that one of them has 34.
    shared = ask(asking(**others, concurrency=100, replicas=3))
    assert same(shared, ask(asking(**others, concurrency=34)))
    assert shared["assumed"]["workload.concurrency_per_replica"] == 34


def test_the_mean_output_stands_for_the_limit_that_traffic_of_training_used_so_much_of(ask: Ask) -> None:
    others = {"prompt_tokens": 2000, "shared_prefix_ratio": 0.0, "concurrency": 16}
    # 210 ÷ 0.7 = 300.
    by_mean = ask(asking(**others, output_tokens=210))
    assert same(by_mean, ask(asking(**others, max_new_tokens=300)))
    assert by_mean["assumed"]["workload.max_new_tokens"] == 300
    below_longest = ask(asking(**others, output_tokens=210, max_output_tokens=256))
    assert below_longest["assumed"]["workload.max_new_tokens"] == 256
    assert same(ask(asking(**others, max_output_tokens=256)), ask(asking(**others, max_new_tokens=256)))


def test_a_mean_that_is_exact_is_what_every_request_generates(ask: Ask) -> None:
    workload = {"prompt_tokens": 2000, "output_tokens": 210, "shared_prefix_ratio": 0.0, "concurrency": 16}
    assert ask(asking(**workload, confidence="exact"))["assumed"]["workload.max_new_tokens"] == 210


def test_the_share_of_the_limit_is_that_of_the_traffic_in_training() -> None:
    # The uncertainty about the limit itself is left out: what counts is what is generated of the true one.
    workload = Workload(prompt_tokens=1000, max_new_tokens=1000, shared_prefix_ratio=0.0, concurrency=4)
    announced = Announced(architecture=architectures()[0], workload=workload, stratum="base")
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(1500):
        true = draw_numbers(rng, announced, Uncertainty(length_factor=1.0))
        _, output = lengths_of(rng, true, 64, context=1_000_000)
        shares.append(output.mean() / true.output_cap)
    assert np.mean(shares) == pytest.approx(SHARE_OF_LIMIT, abs=0.03)


def test_the_longest_output_has_to_fit_and_is_not_ranked_by(ask: Ask, client: Client) -> None:
    numbers = {"weight_gb": 16.4, "num_layers": 36, "hidden_size": 4096, "kv_bytes_per_token": 147456}
    workload = {"prompt_tokens": 2000, "max_new_tokens": 256, "shared_prefix_ratio": 0.0, "concurrency": 16}
    short = ask({**asking(**workload), "model": numbers})
    long = ask({**asking(**workload, max_output_tokens=6000), "model": numbers})
    assert [row["score"] for row in long["ranked"]] == [row["score"] for row in short["ranked"]]
    assert (short["memory"]["context_tokens"], long["memory"]["context_tokens"]) == (2256, 8000)
    # Qwen3-8B has a context of 40,960 tokens.
    refused = client.recommend(asking(**workload, max_output_tokens=39_000))
    assert refused.status_code == 422
    assert [detail["path"] for detail in refused.json()["details"]] == [
        "$.workload.prompt_tokens",
        "$.workload.max_output_tokens",
    ]
    assert refused.json()["message"] == (
        "$.workload.prompt_tokens (2000) and $.workload.max_output_tokens (39000): prompt 2000 + output 39000 = 41000 "
        "exceeds the 40960-token context of Qwen/Qwen3-8B; shorten one of them"
    )


@pytest.mark.parametrize(
    ("workload", "sent"),
    [
        ({"prompt_tokens": [900, 40_900], "max_new_tokens": 256}, "$.workload.prompt_tokens ([900, 40900]) and $.wor"),
        (
            {"preset": "chat", "max_output_tokens": 40_900},
            "$.workload.preset ('chat') and $.workload.max_output_tokens",
        ),
        ({"prompt_tokens": 20_000, "output_tokens": 20_000}, "and $.workload.output_tokens (20000): prompt 20000 + "),
    ],
)
def test_a_request_beyond_the_context_is_refused_by_what_was_sent(
    client: Client, workload: dict[str, object], sent: str
) -> None:
    shared = {} if "preset" in workload else {"shared_prefix_ratio": 0.0}
    response = client.recommend(asking(**workload, **shared, concurrency=4))
    assert response.status_code == 422, response.text
    assert sent in response.json()["message"]


FOUR = {"prompt_tokens": 2000, "max_new_tokens": 256, "shared_prefix_ratio": 0.5, "concurrency": 16}


def without(*names: str) -> dict[str, object]:
    """The four numbers less some."""
    return {name: value for name, value in FOUR.items() if name not in names}


@pytest.mark.parametrize(
    ("workload", "paths"),
    [
        ({**FOUR, "preset": "rag"}, ["preset", "prompt_tokens"]),
        ({"preset": "rag", "concurrency": 4, "shared_prefix_tokens": 4000}, ["preset", "shared_prefix_tokens"]),
        ({"preset": "chat", "concurrency": 64, "shared_prefix_tokens": [0, 900]}, ["preset", "shared_prefix_tokens"]),
        ({"preset": "chat", "concurrency": 1, "shared_prefix_tokens": [0, 10**5]}, ["preset", "shared_prefix_tokens"]),
        ({"preset": "rag", "concurrency": 4, "output_tokens": 100}, ["preset", "output_tokens"]),
        ({"preset": "rag", "concurrency": 4, "max_output_tokens": 100}, ["preset", "max_output_tokens"]),
        ({"preset": "rag", "concurrency": 4, "prompt_tokens": [4000, 5000]}, ["preset", "prompt_tokens"]),
        ({**FOUR, "requests_per_second": 3.0}, ["concurrency", "requests_per_second"]),
        ({**FOUR, "shared_prefix_tokens": 1000}, ["shared_prefix_ratio", "shared_prefix_tokens"]),
        ({**without("shared_prefix_ratio"), "shared_prefix_tokens": 2001}, ["shared_prefix_tokens", "prompt_tokens"]),
        (
            {**without("shared_prefix_ratio"), "shared_prefix_tokens": 1500, "prompt_tokens": [1000, 2000]},
            ["shared_prefix_tokens", "prompt_tokens"],
        ),
        ({**FOUR, "output_tokens": 257}, ["output_tokens", "max_new_tokens"]),
        (
            {**FOUR, "output_tokens": [200, 250], "max_new_tokens": [100, 300]},
            ["output_tokens", "max_new_tokens"],
        ),
        ({**FOUR, "max_output_tokens": 255}, ["max_new_tokens", "max_output_tokens"]),
        (
            {**without("max_new_tokens"), "output_tokens": 300, "max_output_tokens": 200},
            ["output_tokens", "max_output_tokens"],
        ),
        ({**FOUR, "prompt_tokens": [3000, 2000]}, ["prompt_tokens[0]", "prompt_tokens[1]"]),
        ({**FOUR, "shared_prefix_ratio": [0.5, 0.4]}, ["shared_prefix_ratio[0]", "shared_prefix_ratio[1]"]),
    ],
)
def test_a_contradiction_names_both_places(client: Client, workload: dict[str, object], paths: list[str]) -> None:
    response = client.recommend(asking(**workload))
    assert response.status_code == 422, response.text
    problem = response.json()
    assert [detail["path"] for detail in problem["details"]] == [f"$.workload.{path}" for path in paths]
    assert all(f"$.workload.{path} (" in problem["message"] for path in paths)
    assert "contradict each other" in problem["message"]


def test_what_stands_in_both_places_is_shown(client: Client) -> None:
    problem = client.recommend(asking(preset="rag", prompt_tokens=[7000, 8000], concurrency=4)).json()
    assert problem["message"] == (
        "$.workload.preset ('rag') and $.workload.prompt_tokens ([7000, 8000]) contradict each other: rag has 6000 "
        "there; leave one of them out"
    )
    assert [detail["value"] for detail in problem["details"]] == ["rag", "a list of 2"]
    reversed_range = client.recommend(asking(**{**FOUR, "concurrency": [8, 4]})).json()
    assert [detail["value"] for detail in reversed_range["details"]] == [8, 4]


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ({**FOUR, "prompt_tokens": []}, "prompt_tokens"),
        ({**FOUR, "prompt_tokens": [1, 2, 3]}, "prompt_tokens"),
        ({**FOUR, "prompt_tokens": [0, 2]}, "prompt_tokens[0]"),
        ({**FOUR, "prompt_tokens": [1, "2"]}, "prompt_tokens[1]"),
        ({**FOUR, "shared_prefix_ratio": [0.5, 1.5]}, "shared_prefix_ratio[1]"),
        ({**FOUR, "concurrency": {"low": 1}}, "concurrency"),
        ({**FOUR, "max_output_tokens": [300, 400]}, "max_output_tokens"),
        ({**FOUR, "replicas": 0}, "replicas"),
        ({**without("concurrency"), "requests_per_second": 0}, "requests_per_second"),
        ({**without("concurrency"), "requests_per_second": [0.0, 1.0]}, "requests_per_second[0]"),
        ({"preset": "email", "concurrency": 4}, "preset"),
        ({"preset": "chat"}, "concurrency"),
        (without("max_new_tokens"), "max_new_tokens"),
    ],
)
def test_a_word_that_cannot_be_used_is_named_by_its_path(
    client: Client, workload: dict[str, object], path: str
) -> None:
    response = client.recommend(asking(**workload))
    assert response.status_code == 422, response.text
    assert [detail["path"] for detail in response.json()["details"]] == [f"$.workload.{path}"]


def test_all_that_is_missing_is_named_at_once(client: Client) -> None:
    problem = client.recommend(asking()).json()
    assert [detail["path"] for detail in problem["details"]] == [
        "$.workload.prompt_tokens",
        "$.workload.max_new_tokens",
        "$.workload.shared_prefix_ratio",
        "$.workload.concurrency",
    ]
