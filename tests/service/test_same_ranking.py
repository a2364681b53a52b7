"""One question, asked at every door: the ranking and the choice are the same."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.__main__ import main
from service.api.hook import asked_of, read_hook
from service.api.hook_decision import HookDecision, decide, skipped
from service.api.mapping import NO_MAPPING
from service.api.skip import SkipError
from service.policies import Policies, Policy
from tests.engine.argument_strings import HAND_WRITTEN, generated
from tests.service.conftest import QUESTION, Client

ARGUMENTS = st.sampled_from(
    [
        "--max-num-seqs=128",
        "--max_num_seqs 512",
        "--max-num-seqs 100",
        "--max-num-batched-tokens 8192",
        "--max-num-batched-tokens=2k",
        "--gpu-memory-utilization .85",
        "--gpu-memory-utilization=0.45",
        "--no-enable-prefix-caching",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--seed 3",
        "--max-model-len 30000",
    ]
)
WORKLOADS = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(1, 6000),
        "max_new_tokens": st.integers(1, 2000),
        "shared_prefix_ratio": st.floats(0, 1),
        "concurrency": st.integers(1, 2048),
    }
)
QUESTIONS = st.fixed_dictionaries(
    {
        # Those with room for the longest of the workloads.
        "model": st.sampled_from(["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B-Instruct"]),
        "gpu": st.sampled_from(["NVIDIA-B200", "H100", "L40S", "A10"]),
        "engine_version": st.sampled_from(["0.28.0", "0.21.0"]),
        "workload": WORKLOADS,
        # Not all four: the hook has nothing to rank then.
        "words": st.lists(ARGUMENTS, max_size=3),
    }
)


@pytest.fixture(autouse=True)
def _bundle(bundle_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORYPOLICY_BUNDLE_DIR", str(bundle_dir))


def by_command_line(question: dict[str, Any]) -> dict[str, Any]:
    load = question["workload"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = main(
            [
                *("recommend", "--json", "--model", question["model"], "--gpu", question["gpu"]),
                *("--engine-version", question["engine_version"], f"--extra-args={' '.join(question['words'])}"),
                *(f"--{name.replace('_', '-')}={value!r}" for name, value in load.items()),
            ]
        )
    assert status == 0
    answer: dict[str, Any] = json.loads(shown.getvalue())
    return answer


def hook_decision(question: dict[str, Any], extra_args: str, policy: Policy) -> HookDecision:
    body = {
        "hook_version": "v1",
        "event": "endpoint.creating",
        "request": {
            "name": "e",
            "model": question["model"],
            "workload_type": "VLLM",
            "workload_config": {"extra_args": extra_args},
        },
        "context": {"gpu_product": question["gpu"], "engine_version": question["engine_version"]},
        "workload": question["workload"],
    }
    try:
        return decide(asked_of(read_hook(body), NO_MAPPING), Policies(policy), recommendation_id="r")
    except SkipError as error:
        return skipped(error)


def by_hook(question: dict[str, Any], policy: Policy) -> dict[str, Any]:
    decision = hook_decision(question, " ".join(question["words"]), policy)
    assert decision.content is not None, decision.message
    return decision.content


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the door: all but the id, and the limits and arguments that a door fills in or leaves."""
    return {name: answer[name] for name in ("ranked", "decision", "reason", "set", "support", "engine_default")}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=3))
def test_every_door_gives_the_same_ranking(client: Client, policy: Policy, questions: list[dict[str, Any]]) -> None:
    bodies = [
        {
            "model": {"name": question["model"]},
            **{name: question[name] for name in ("gpu", "engine_version", "workload")},
            "extra_args": " ".join(question["words"]),
        }
        for question in questions
    ]
    batch = client.request("POST", "/v1/recommend:batch", json={"items": bodies}).json()["items"]
    for question, body, item in zip(questions, bodies, batch, strict=True):
        response = client.recommend(body)
        assert response.status_code == 200, response.text
        by_api = response.json()
        in_batch = item["answer"]
        assert {**in_batch, "recommendation_id": ""} == {**by_api, "recommendation_id": ""}
        on_command_line = by_command_line(question)
        assert {**on_command_line, "recommendation_id": ""} == {**by_api, "recommendation_id": ""}
        assert told(json.loads(json.dumps(by_hook(question, policy)))) == told(by_api)


@pytest.mark.parametrize("text", [*HAND_WRITTEN, *generated(10, 150)])
def test_whatever_stands_in_the_arguments_the_hook_and_the_question_read_it_alike(
    client: Client, policy: Policy, text: str
) -> None:
    response = client.recommend({**QUESTION, "extra_args": text})
    decision = hook_decision({**QUESTION, "model": QUESTION["model"]["name"], "engine_version": "0.28.0"}, text, policy)
    refused = {"unparsable_args", "user_config_file", "secret_in_args", "conflicting_args"}
    if decision.reason in refused:
        assert response.status_code == 422
        assert response.json()["details"][0]["path"] == "$.extra_args"
        return
    assert response.status_code == 200, response.text
    answer = response.json()
    if decision.reason in ("unsupported_args", "not_one_gpu"):
        assert answer["decision"] != "recommended"
        assert any(entry["feature"].startswith("extra_args.") for entry in answer["support"]["out_of_range"])
    elif decision.reason != "all_pinned":
        assert decision.content is not None
        assert told(json.loads(json.dumps(decision.content))) == told(answer)
        assert dict(decision.flags) == (answer["set"] or {})
